"""What cards and pages say that Kintsugi does now, over all states of runs and incidents."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import EventKind, to_wire
from incidents.models import Incident
from incidents.notify import story
from incidents.notify.notifier import Card
from incidents.vocabulary.lifecycle import OPEN, State
from runbooks.engine.result import RunTurn, refuse, wait
from runbooks.guards.table import GuardRefused, Refusal
from runbooks.models import UNFINISHED, Run, RunState
from runbooks.people import progress
from runbooks.step import Wait
from tests.builders import an_event
from tests.kintsugi.people import People, people
from tests.kintsugi.test_pipeline import House
from tests.kintsugi.web.test_wider_causes import armed, drained, happen
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
__all__ = ["armed", "people"]

WHY = "5 of 100 nodes of partition gpu are out, and the cap is 5"


def card_of(incident: Incident, site: Site) -> Card:
    incident.refresh_from_db()
    return story.build_card(incident, now=site.now, run_words=progress.format_progress)


def a_run(site: Site) -> tuple[Incident, Run]:
    incident = site.lose_gpu()
    run = site.begin(incident)
    return incident, Run.objects.select_related("incident", "node").get(pk=run.pk)


def set_states(incident: Incident, run: Run, state: State, run_state: RunState) -> None:
    Incident.objects.filter(pk=incident.pk).update(state=state.value)
    Run.objects.filter(pk=run.pk).update(state=run_state)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("kind", list(Refusal))
def test_a_critical_card_says_by_what_and_until_when_while_its_run_is_refused(
    kind: Refusal, state: State
) -> None:
    site = Site(nodes=2)
    incident, run = a_run(site)
    refuse(RunTurn(run, None, site.now), GuardRefused(kind, WHY, site.now + timedelta(minutes=1)))
    set_states(incident, run, state, RunState.RUNNING)

    told = card_of(incident, site).now

    assert "watches" not in told
    if state in OPEN:
        assert WHY in told
        assert "It goes on " in told or "Asked again at 2025-01-15 03:01:00 UTC" in told
        assert "(as of 2025-01-15 03:00 UTC)" in told


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("run_state", list(RunState))
@pytest.mark.parametrize("waits", [True, False])
def test_no_critical_card_says_that_kintsugi_watches(
    waits: bool, run_state: RunState, state: State
) -> None:
    site = Site(nodes=2)
    incident, run = a_run(site)
    if waits:
        wait(
            RunTurn(run, None, site.now),
            Wait("1 job is still on gn001 (17 of alice).", timedelta(minutes=1)),
        )
    set_states(incident, run, state, run_state)

    told = card_of(incident, site).now

    assert "watches" not in told
    if state in OPEN and run_state == RunState.RUNNING and waits:
        assert told == (
            "Runs “Drain, reboot, verify” on gn001. 1 job is still on gn001 (17 of alice) (as of 2025-01-15 03:00 UTC)."
        )
    if state in OPEN and run_state in UNFINISHED:
        assert "“Drain, reboot, verify” on gn001" in told


def test_the_page_says_what_the_card_says(people: People) -> None:
    site = Site(nodes=2)
    incident, run = a_run(site)
    refuse(
        RunTurn(run, None, site.now),
        GuardRefused(Refusal.CAP, WHY, site.now + timedelta(minutes=1)),
    )

    page = people.on_call.get(f"/incidents/incident/{incident.pk}/change/").content.decode()

    assert card_of(incident, site).now in page


def test_a_card_says_until_when_a_repair_is_held_before_any_run_has_begun() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    until = site.now + timedelta(minutes=2)
    Incident.objects.filter(pk=incident.pk).update(
        held_until=until, held_reason="leaf-01 may be the cause."
    )

    assert card_of(incident, site).now == "No repair before 03:02:00 UTC: leaf-01 may be the cause."
    site.now = until
    assert "No repair before" not in card_of(incident, site).now


def test_a_card_says_which_run_goes_first_when_its_node_has_one_for_another_incident() -> None:
    site = Site(nodes=2)
    first, run = a_run(site)
    second = site.raise_fault(fault_type="nic.firmware.unhealthy", resource="node/gn001/nic/mlx5_0")
    assert second.pk != first.pk

    assert card_of(second, site).now.startswith(
        f"Waits for run {run.pk}, which is on gn001 for incident #{first.pk}. "
    )


def says(house: House, incident: Incident) -> str:
    """What the incident's last message said that Kintsugi does now."""
    cards = [
        message.content
        for message in house.stage.notifier.messages
        if isinstance(message.content, Card)
    ]
    return [card.now for card in cards if card.incident == incident.pk][-1]


def test_messages_say_by_what_and_until_when_a_repair_waits_for_its_rack(armed: House) -> None:
    supplies = [f"node/gn00{number}" for number in (2, 3, 4)]
    happen(armed, "node.power_supply.failed", *supplies)
    rack = Incident.objects.get(root_resource="rack/r01")
    happen(armed, "gpu.xid.79", "node/gn001/gpu/0000:19:00.0")
    armed.let_pass(timedelta(minutes=1))
    incident = Incident.objects.get(node__name="gn001")
    assert says(armed, incident).startswith(
        "No repair before 03:10:01 UTC: 3 of 101 behind feed-1 show the same kind"
    )

    armed.let_pass(timedelta(minutes=12))
    assert drained(armed) == []
    assert says(armed, incident).startswith(
        "Does not go on with “Drain, reboot, verify” on gn001: A wider cause is suspected: "
        f"incident #{rack.pk}, {rack.title}, is open on rack/r01. It goes on when that is restored. Asked again at "
    )

    over = [
        an_event("node.power_supply.failed", one, kind=EventKind.CLEARED, at=armed.now)
        for one in supplies
    ]
    armed.pipeline.ingest([to_wire(event) for event in over])
    armed.let_pass(timedelta(minutes=2))
    assert drained(armed) == ["gn001"]


def test_nothing_of_an_incident_that_is_over_is_told_as_going_on() -> None:
    site = Site(nodes=2)
    incident, run = a_run(site)
    set_states(incident, run, State.RESOLVED, RunState.RUNNING)

    assert card_of(incident, site).now == story.DOING[State.RESOLVED]
