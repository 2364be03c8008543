"""Questions that runs ask people: asked once, answered once, and the run woken. The only writer of
`Question`."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from incidents.state import transitions
from runbooks.answer_words import get_ways
from runbooks.models import Question, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused


def ask(run_id: int, key: str, text: str, *, now: datetime) -> Question:
    """The question of that key, made when it is not there yet."""
    row, _ = Question.objects.get_or_create(
        key=key, defaults={"run_id": run_id, "text": text[:255], "asked_at": now}
    )
    return row


def answer(
    question_id: int, reply: str, *, actor: str, now: datetime
) -> Controlled | ControlRefused:
    """Stores the first answer and wakes the run."""
    word = reply.strip()[:255]
    question = Question.objects.select_related("run").filter(pk=question_id).first()
    if question is None:
        return ControlRefused(f"There is no question {question_id}.")
    ways = get_ways(question)
    if word not in ways:
        expected = " or ".join(ways)
        return ControlRefused(
            f'"{word}" is no answer to question {question_id}; expected {expected}.'
        )
    with transaction.atomic():
        values = {"answer": word, "answered_by": actor[:150], "answered_at": now}
        if Question.objects.filter(pk=question_id, answered_at=None).update(**values) != 1:
            return ControlRefused(f"Question {question_id} has its answer already.")
        row = Question.objects.select_related("run").get(pk=question_id)
        Run.objects.filter(pk=row.run_id, state=RunState.RUNNING, wake_at__gt=now).update(
            wake_at=now
        )
        text = f'{actor} answered run {row.run_id}: "{word}".'
        transitions.record(
            row.run.incident_id, kind="answered", text=text, actor=actor, now=now, needs_human=""
        )
    return Controlled(text)


def get_open_question(run_id: int) -> Question | None:
    """What the run asks and nobody has answered."""
    return Question.objects.filter(run_id=run_id, answered_at=None).first()
