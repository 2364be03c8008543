"""Runs whose incident turned out to have its cause elsewhere, and runs that wait while a wider
cause is suspected."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Decision, Incident
from incidents.vocabulary.lifecycle import State
from runbooks.models import Mode, Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def is_out(site: Site, node: str = "gn001") -> bool:
    return site.slurm.read_nodes((node,))[node].is_out


def root_elsewhere(incident: Incident) -> None:
    """As re-rooting leaves it: the root is on no node any more."""
    Incident.objects.filter(pk=incident.pk).update(
        node=None,
        component="facility",
        owner="rack/r01",
        root_resource="rack/r01",
        fault_type="facility.nodes_down",
    )


def test_nothing_is_drained_when_the_cause_is_found_before_the_first_step() -> None:
    site = Site()
    incident = site.raise_fault()
    run = site.begin(incident)
    root_elsewhere(incident)

    run = site.advance(run)

    assert run.state == RunState.WITHDRAWN
    assert "the cause of its incident lies elsewhere" in run.outcome
    assert not is_out(site)
    assert ("drain", "gn001") not in [act[:2] for act in site.slurm.journal]
    assert Decision.objects.get(kind="withdrawn").incident_id == incident.pk


def test_what_was_drained_is_handed_back_when_the_cause_is_found_then() -> None:
    site = Site()
    incident = site.raise_fault()
    run = site.advance(site.begin(incident))
    assert is_out(site)
    root_elsewhere(incident)

    run = site.advance(run)

    assert run.state == RunState.WITHDRAWN
    assert not is_out(site)
    incident.refresh_from_db()
    assert incident.state == State.OPEN


def test_a_run_is_withdrawn_at_once_when_it_was_to_wait_for_long() -> None:
    site = Site()
    incident = site.raise_fault()
    run = site.begin(incident)
    Run.objects.filter(pk=run.pk).update(wake_at=site.now + timedelta(hours=1))
    root_elsewhere(incident)

    assert site.advance(run).state == RunState.WITHDRAWN


def test_a_run_goes_on_when_it_has_rebooted_the_node_already() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.play(
        site.begin(incident), until=lambda run: run.steps.filter(name="reboot").exists()
    )
    root_elsewhere(incident)

    run = site.play(run, limit=timedelta(hours=1))

    assert run.state == RunState.SUCCEEDED
    assert not is_out(site)


def test_a_run_that_nobody_approved_is_withdrawn_when_the_cause_lies_elsewhere() -> None:
    site = Site(mode=Mode.APPROVAL)
    incident = site.raise_fault()
    run = site.advance(site.begin(incident))
    assert run.state == RunState.AWAITING_APPROVAL
    root_elsewhere(incident)

    site.start()

    run.refresh_from_db()
    assert run.state == RunState.WITHDRAWN


def test_no_run_starts_while_its_incident_is_held() -> None:
    site = Site()
    incident = site.raise_fault()
    Incident.objects.filter(pk=incident.pk).update(
        held_until=site.now + timedelta(minutes=2), held_reason="suspected"
    )

    site.start()
    assert not Run.objects.exists()

    site.now += timedelta(minutes=2)
    site.start()
    assert Run.objects.get().incident_id == incident.pk


def test_a_started_run_drains_nobody_before_its_hold_is_over() -> None:
    site = Site()
    incident = site.raise_fault()
    run = site.begin(incident)
    until = site.now + timedelta(minutes=2)
    Incident.objects.filter(pk=incident.pk).update(
        held_until=until, held_reason="leaf-01 may be the cause."
    )

    run = site.advance(run)

    assert not is_out(site)
    assert run.wake_at == until
    assert run.waiting_for.startswith("A wider cause is suspected: leaf-01 may be the cause.")
    site.now = until
    site.advance(run)
    assert is_out(site)
