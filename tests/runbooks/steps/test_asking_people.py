"""Steps that speak to people: a message, a question with its answer, a machine set aside."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from incidents.models import Incident
from incidents.reserve import lemons
from runbooks import questions
from runbooks.library import library
from runbooks.library.library import LibraryError
from runbooks.models import Question, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def a_run(site: Site, *steps: tuple[str, dict[str, Any]]) -> Run:
    run = site.begin(site.raise_fault())
    run.plan = [library.plan_step(name, given).as_row() for name, given in steps]
    run.save()
    return run


ASKS = (
    "ask_person",
    {"question": "May {node} lose its jobs for {fault_type}?", "answers": ["yes", "no"]},
)


def test_a_message_is_told_with_the_runs_own_words() -> None:
    site = Site(nodes=1)
    run = a_run(
        site,
        ("drain", {}),
        ("notify", {"text": "{node} is out for #{incident}."}),
        ("wait_for_jobs", {}),
    )
    site.play(run, limit=HOUR)
    assert f"gn001 is out for #{run.incident_id}." in site.story(Incident.objects.get())


@pytest.mark.parametrize(
    "text", ["{node.name}", "{0}", "{password}", "{node!r}", "{node:>9}", "", "x" * 1001]
)
def test_a_text_that_reaches_for_more_is_refused(text: str) -> None:
    for step, parameter in (("notify", "text"), ("ask_person", "question")):
        with pytest.raises(LibraryError, match=f"{step}: {parameter} is"):
            library.plan_step(step, {parameter: text})


@pytest.mark.parametrize("answers", ["yes", ["yes"], ["yes", 2], [], [""]])
def test_answers_that_leave_no_choice_are_refused(answers: object) -> None:
    with pytest.raises(LibraryError, match="a list of two words or more"):
        library.plan_step("ask_person", {"question": "Go on?", "answers": answers})


def test_a_question_is_asked_once_and_its_answer_lets_the_run_go_on() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ASKS, ("wait_for_jobs", {}))
    site.play(run, limit=HOUR)
    row = Question.objects.get()
    assert (run.state, row.text) == (RunState.RUNNING, "May gn001 lose its jobs for gpu.xid.79?")
    incident = Incident.objects.get()
    assert incident.needs_human == f'Answer run {run.pk} with "yes" or "no": {row.text}'
    assert sum(row.text in text for text in site.story(incident)) == 1
    assert isinstance(questions.answer(row.pk, "yes", actor="omar", now=site.now), Controlled)
    site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert run.steps.get(name="ask_person").evidence == {"answer": "yes"}


def test_an_answer_wakes_the_run_at_once() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ASKS, ("wait_for_jobs", {}))
    site.play(run, limit=HOUR)
    questions.answer(Question.objects.get().pk, "yes", actor="omar", now=site.now)
    run.refresh_from_db()
    assert run.wake_at == site.now


def test_another_answer_ends_the_run_and_leaves_the_node() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ASKS, ("wait_for_jobs", {}))
    site.play(run, limit=HOUR)
    questions.answer(Question.objects.get().pk, "no", actor="omar", now=site.now)
    site.play(run, limit=HOUR)
    assert (run.state, run.outcome) == (
        RunState.FAILED,
        'omar answered "no" to: May gn001 lose its jobs for gpu.xid.79?',
    )
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_the_first_answer_stands() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ASKS)
    site.play(run, limit=HOUR)
    number = Question.objects.get().pk
    for words in (" ", "perhaps"):
        refused = questions.answer(number, words, actor="omar", now=site.now)
        assert isinstance(refused, ControlRefused)
        assert "expected yes or no" in refused.reason
    questions.answer(number, "yes", actor="omar", now=site.now)
    assert isinstance(questions.answer(number, "no", actor="ada", now=site.now), ControlRefused)
    assert Question.objects.get().answer == "yes"


def test_without_a_question_the_rest_is_a_persons() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ("wait_for_jobs", {}), ("ask_person", {}))
    site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert Incident.objects.get().needs_human.startswith("Power-cycle gn001 or call the vendor")


def test_a_lemon_is_set_aside_and_says_so_on_the_node() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", {}), ("wait_for_jobs", {}), ("quarantine", {}))
    site.play(run, limit=HOUR)
    incident = Incident.objects.get()
    state = site.slurm.read_nodes(("gn001",))["gn001"]
    assert state.is_drained
    assert state.reason.startswith(f"kintsugi:{incident.pk}/")
    assert state.reason.endswith(" lemon: set aside, a person decides")
    assert lemons.get_quarantined() == {"gn001"}
    assert incident.needs_human.startswith("Have gn001 examined by the vendor")
    site.now += timedelta(days=2)
    site.raise_fault(resource=site.gpu("gn001", 3))
    assert site.start() == []
    assert Run.objects.count() == 1
