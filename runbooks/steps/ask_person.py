"""Ask a person: a question whose answer the run waits for, or, without one, to mend what no runbook
mends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from runbooks import answer_words, questions, text_templates
from runbooks.models import Question
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    HandedOver,
    Parameter,
    Result,
    Wait,
    get_backoff,
)

_LONGEST = timedelta(minutes=5)
_EXPECTED = "a list of two words or more, the first of which goes on"
_QUESTION = Parameter(text_templates.parse_template, text_templates.EXPECTED, default="")


def _parse_answers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError("no list of words")
    if not all(isinstance(word, str) and word for word in value):
        raise ValueError("no list of words")
    return tuple(word.strip()[: answer_words.LONGEST_ANSWER] for word in value)


class AskPerson(Base):
    """With `question` the run goes on by the first of `answers`; by any other it ends and leaves
    the node as it is."""

    name: ClassVar[str] = "ask_person"
    plan: ClassVar[str] = "ask a person"
    needs_node: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "question": _QUESTION,
        "answers": Parameter(_parse_answers, _EXPECTED, default=answer_words.ANSWERS),
    }

    def run(self, ctx: Context) -> Result:
        if not ctx.params.get("question"):
            return _hand_over(ctx)
        row = questions.ask(ctx.run_id, ctx.key, _fill_question(ctx), now=ctx.now)
        answers: tuple[str, ...] = ctx.params["answers"]
        if row.answered_at is None:
            return _wait_for_answer(ctx, row, answers)
        text = f'{row.answered_by} answered "{row.answer}" to: {row.text}'
        if row.answer == answers[0]:
            return Done(text, evidence={"answer": row.answer})
        return Failed(text, ask=f"Finish by hand what run {ctx.run_id} began on {ctx.node}.")


def _hand_over(ctx: Context) -> HandedOver:
    fault = f"{ctx.fault_type} on {ctx.resource}"
    return HandedOver(
        f"{ctx.node} is drained and empty. {fault} is not cured by a reboot.",
        ask=(
            f"Power-cycle {ctx.node} or call the vendor; afterwards resume it and resolve the"
            " incident."
        ),
    )


def _fill_question(ctx: Context) -> str:
    return text_templates.fill(
        ctx.params["question"],
        node=ctx.node,
        fault_type=ctx.fault_type,
        incident=ctx.incident_id,
    )


def _wait_for_answer(ctx: Context, question: Question, answers: Sequence[str]) -> Wait:
    words = " or ".join(f'"{word}"' for word in answers)
    text = f"Waits for an answer to: {question.text}"
    again_in = get_backoff(question.asked_at, ctx.now, longest=_LONGEST)
    ask = f"Answer run {ctx.run_id} with {words}: {question.text}"
    return Wait(text, again_in, ask=ask, is_told=True)
