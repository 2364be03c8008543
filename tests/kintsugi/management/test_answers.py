"""How people answer what a run asks: on its page, by command, and who may."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from incidents.models import Incident
from runbooks import questions
from runbooks.library import library
from runbooks.models import Question, Run
from tests.builders import NOW, a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def question() -> Question:
    a_node()
    run = a_run(an_incident())
    steps = [
        ("drain", {}),
        ("ask_person", {"question": "May {node} go?", "answers": ["yes", "no"]}),
    ]
    Run.objects.filter(pk=run.pk).update(
        plan=[library.plan_step(name, given).as_row() for name, given in steps]
    )
    return questions.ask(run.pk, f"{run.pk}-1-ask_person", "May gn042 go?", now=NOW)


def page_of(question: Question) -> str:
    return f"/runbooks/run/{question.run_id}/change/"


def test_the_runs_page_asks_those_who_may_answer(people: People, question: Question) -> None:
    page = people.on_call.get(page_of(question)).content.decode()
    assert "May gn042 go?" in page
    assert page.index('value="yes"') < page.index('value="no"')
    seen = people.viewer.get(page_of(question)).content.decode()
    assert "May gn042 go?" in seen
    assert 'value="yes"' not in seen


def test_an_answer_is_stored_with_its_person_and_told(people: People, question: Question) -> None:
    answer = people.on_call.post(f"/answer/{question.pk}/", {"answer": "yes"})
    assert answer.headers["Location"] == page_of(question)
    question.refresh_from_db()
    assert (question.answer, question.answered_by) == ("yes", "omar")
    told = Incident.objects.get().timeline.get(kind="answered")
    assert told.text == f'omar answered run {question.run_id}: "yes".'
    assert "May gn042 go?" not in people.on_call.get(page_of(question)).content.decode()


@pytest.mark.parametrize("who", ["anonymous", "stranger", "viewer"])
def test_who_may_not_control_runs_answers_none(
    people: People, question: Question, who: str
) -> None:
    answer = getattr(people, who).post(f"/answer/{question.pk}/", {"answer": "yes"})
    assert answer.status_code in (302, 403)
    question.refresh_from_db()
    assert question.answer == ""


def test_a_word_that_was_not_offered_is_refused(people: People, question: Question) -> None:
    people.on_call.post(f"/answer/{question.pk}/", {"answer": "maybe"})
    question.refresh_from_db()
    assert question.answer == ""
    assert people.on_call.post("/answer/999/", {"answer": "yes"}).status_code == 404


def test_a_command_lists_and_answers(question: Question) -> None:
    out = io.StringIO()
    call_command("answer", stdout=out)
    assert out.getvalue().startswith(f"{question.pk}  run {question.run_id} of")
    assert out.getvalue().endswith("May gn042 go? (yes | no)\n")
    call_command("answer", str(question.pk), "no", "--actor", "ada", stdout=out)
    with pytest.raises(CommandError, match="has its answer already"):
        call_command("answer", str(question.pk), "yes")
    with pytest.raises(CommandError, match="There is no question 999"):
        call_command("answer", "999", "yes")
