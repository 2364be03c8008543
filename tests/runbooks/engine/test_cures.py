"""What came of rungs: judged by whether the fault comes back within the window; read by the
ladder."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.faults import Recovery
from incidents.models import Fault, Incident, InService, Node
from runbooks import services
from runbooks.engine import outcome_history
from runbooks.library import library
from runbooks.models import CureAttempt, Mode, Run, RunState
from runbooks.plan.escalation import WINDOW
from tests.builders import NOW, a_node, an_incident

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
PART = "node/gn042/gpu/0000:19:00.0"


@pytest.fixture
def incident() -> Incident:
    a_node()
    return an_incident()


def a_run(
    incident: Incident,
    state: RunState = RunState.SUCCEEDED,
    *,
    ended_at: datetime = NOW,
    serial: str = "",
) -> Run:
    node = Node.objects.get()
    run = Run.objects.create(
        incident=incident,
        node=node,
        runbook="drain_reboot_verify",
        fault_type=incident.fault_type,
        mode=Mode.ARMED,
        state=state,
        facts={"resource": incident.root_resource},
        outcome="it did not come back",
        started_at=ended_at - HOUR,
        finished_at=ended_at if state not in (RunState.RUNNING, RunState.PAUSED) else None,
    )
    CureAttempt.objects.create(
        run=run,
        node=node,
        resource=incident.root_resource,
        serial=serial,
        fault_type=incident.fault_type,
        rung=Recovery.NODE_RESTART,
        tried_at=ended_at - HOUR / 2,
    )
    return run


def verdict(run: Run) -> bool | None:
    return CureAttempt.objects.get(run=run).has_cured


def test_rung_has_cured_when_the_fault_stays_away_for_its_window(incident: Incident) -> None:
    run = a_run(incident)
    Fault.objects.update(is_active=False, last_seen_at=NOW - HOUR, observed_at=NOW - HOUR)
    assert services.evaluate_outcomes(NOW + WINDOW - HOUR) == 0
    assert services.evaluate_outcomes(NOW + WINDOW) == 1
    assert verdict(run) is True
    assert "did not come back within 24 h" in CureAttempt.objects.get().why


def test_rung_has_not_cured_when_the_fault_is_back_within_the_window(incident: Incident) -> None:
    run = a_run(incident)
    Fault.objects.update(last_seen_at=NOW + 2 * HOUR)
    services.evaluate_outcomes(NOW + 2 * HOUR)
    assert verdict(run) is False
    assert "the fault was back at" in CureAttempt.objects.get().why


def test_judgement_once_made_stands(incident: Incident) -> None:
    run = a_run(incident)
    Fault.objects.update(is_active=False, last_seen_at=NOW - HOUR, observed_at=NOW - HOUR)
    services.evaluate_outcomes(NOW + WINDOW)
    Fault.objects.update(last_seen_at=NOW + 2 * WINDOW)
    assert services.evaluate_outcomes(NOW + 2 * WINDOW) == 0
    assert verdict(run) is True


@pytest.mark.parametrize(
    ("state", "has_cured", "judged"),
    [
        (RunState.FAILED, False, True),
        (RunState.ABORTED, None, True),
        (RunState.WITHDRAWN, None, True),
        (RunState.RUNNING, None, False),
    ],
)
def test_how_the_run_ended_tells_of_its_rung(
    incident: Incident, state: RunState, has_cured: bool | None, judged: bool
) -> None:
    run = a_run(incident, state)
    services.evaluate_outcomes(NOW)
    assert verdict(run) is has_cured
    assert (CureAttempt.objects.get().judged_at is not None) is judged


def test_sweep_with_nothing_to_judge_asks_once(incident: Incident) -> None:
    with CaptureQueriesContext(
        connection,
    ) as asked:
        services.evaluate_outcomes(NOW)
    assert len(asked) == 1


def test_the_ladder_is_told_of_every_part_of_the_node_with_the_same_fault(
    incident: Incident,
) -> None:
    a_run(incident)
    (tried,) = outcome_history.load_past(incident, incident.fault_type, library.load(), NOW).tried
    assert (tried.rung, tried.resource) == (Recovery.NODE_RESTART, incident.root_resource)
    assert outcome_history.load_past(incident, "gpu.xid.62", library.load(), NOW).tried == []


def test_a_new_part_in_the_slot_begins_at_the_foot(incident: Incident) -> None:
    a_run(incident, serial="1320221000001")
    stays = InService.objects.create(
        part="gpu",
        serial="1320221000001",
        slot=incident.root_resource,
        owner="node/gn042",
        from_at=NOW - 90 * 24 * HOUR,
        came="seen",
    )
    assert (
        len(outcome_history.load_past(incident, incident.fault_type, library.load(), NOW).tried)
        == 1
    )
    InService.objects.filter(pk=stays.pk).update(serial="1320221999999")
    assert outcome_history.load_past(incident, incident.fault_type, library.load(), NOW).tried == []


def test_rung_that_could_not_even_be_tried_is_passed(incident: Incident) -> None:
    run = a_run(incident, RunState.NOT_CURED)
    CureAttempt.objects.all().delete()
    past = outcome_history.load_past(incident, incident.fault_type, library.load(), NOW)
    assert [(tried.rung, tried.has_cured) for tried in past.tried] == [
        (Recovery.NODE_RESTART, False)
    ]
    assert past.spent == {run.runbook}
