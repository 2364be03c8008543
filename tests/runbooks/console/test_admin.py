"""What people do to a run on its page."""

from __future__ import annotations

import pytest

from incidents.models import Incident
from runbooks.library import library
from runbooks.models import Mode, Run, RunState, StepRun
from tests.builders import NOW, a_node, an_incident
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(db: None) -> Run:
    a_node()
    incident = an_incident()
    assert incident.node is not None
    values = {
        "runbook": "drain_reboot_verify",
        "fault_type": incident.fault_type,
        "mode": Mode.ARMED,
    }
    return Run.objects.create(
        incident=incident,
        node=incident.node,
        state=RunState.RUNNING,
        plan=[planned.as_row() for planned in library.load()["drain_reboot_verify"].steps],
        started_at=NOW,
        waiting_for="Job 48812.",
        **values,
    )


def test_the_page_shows_what_was_done_what_is_waited_for_and_what_is_to_come(
    people: People, run: Run
) -> None:
    StepRun.objects.create(
        run=run, index=0, name="drain", outcome="done", text="gn042 drains.", started_at=NOW
    )
    page = people.viewer.get(f"/runbooks/run/{run.pk}/change/").content.decode()
    assert "gn042 drains." in page
    assert "Job 48812." in page
    assert page.index("gn042 drains.") < page.index("to come")
    assert "wait for boot" in page


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        (RunState.RUNNING, {"pause", "take_over", "abort"}),
        (RunState.AWAITING_APPROVAL, {"approve", "take_over", "abort"}),
        (RunState.PAUSED, {"resume", "take_over", "abort"}),
        (RunState.SUCCEEDED, set()),
    ],
)
def test_only_what_the_state_allows_is_offered(
    people: People, run: Run, state: RunState, offered: set[str]
) -> None:
    Run.objects.filter(pk=run.pk).update(state=state)
    forms = people.on_call.get(f"/runbooks/run/{run.pk}/change/").context["forms"]
    assert {control.name for control, _, _ in forms} == offered


@pytest.mark.parametrize(
    ("before", "control", "after"),
    [
        (RunState.AWAITING_APPROVAL, "approve", RunState.RUNNING),
        (RunState.RUNNING, "pause", RunState.PAUSED),
        (RunState.PAUSED, "resume", RunState.RUNNING),
        (RunState.RUNNING, "abort", RunState.ABORTED),
    ],
)
def test_a_control_moves_the_run_and_is_written_to_the_timeline(
    people: People, run: Run, before: RunState, control: str, after: RunState
) -> None:
    Run.objects.filter(pk=run.pk).update(state=before)
    form = {"control": control, f"{control}-note": "Checked with the users."}
    assert people.on_call.post(f"/runbooks/run/{run.pk}/control/", form).status_code == 302
    run.refresh_from_db()
    assert run.state == after
    assert (
        Incident.objects.get()
        .timeline.filter(actor="omar", text__contains="Checked with the users.")
        .exists()
    )


def test_a_refused_control_says_why_and_keeps_the_word(people: People, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED, finished_at=NOW)
    form = {"control": "pause", "pause-note": "Let me look."}
    answer = people.on_call.post(f"/runbooks/run/{run.pk}/control/", form)
    assert answer.status_code == 409
    assert "cannot be paused" in answer.content.decode()
    assert "Let me look." in answer.content.decode()


def test_a_control_without_a_word_is_not_done(people: People, run: Run) -> None:
    answer = people.on_call.post(
        f"/runbooks/run/{run.pk}/control/", {"control": "abort", "abort-note": " "}
    )
    run.refresh_from_db()
    assert (answer.status_code, run.state) == (409, RunState.RUNNING)
    assert "Say in a few words why" in answer.content.decode()
