"""Ask a person: a question whose answer the run waits for, or, without one, to mend what no runbook
mends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from runbooks import answer_words, questions, text_templates
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


def _answers(value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) < 2
        or not all(isinstance(word, str) and word for word in value)
    ):
        raise ValueError("no list of words")
    return tuple(word.strip()[: answer_words.LONGEST_ANSWER] for word in value)


class AskPerson(Base):
    """With `question` the run goes on by the first of `answers`; by any other it ends and leaves
    the node as it is."""

    name: ClassVar[str] = "ask_person"
    plan: ClassVar[str] = "ask a person"
    needs_node: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "question": Parameter(text_templates.read, text_templates.EXPECTED, default=""),
        "answers": Parameter(
            _answers,
            "a list of two words or more, the first of which goes on",
            default=answer_words.ANSWERS,
        ),
    }

    def run(self, ctx: Context) -> Result:
        if not ctx.params.get("question"):
            return HandedOver(
                f"{ctx.node} is drained and empty. {ctx.fault_type} on {ctx.resource} is not cured"
                " by a reboot.",
                ask=(
                    f"Power-cycle {ctx.node} or call the vendor; afterwards resume it and resolve"
                    " the incident."
                ),
            )
        answers: tuple[str, ...] = ctx.params["answers"]
        text = text_templates.fill(
            ctx.params["question"],
            node=ctx.node,
            fault_type=ctx.fault_type,
            incident=ctx.incident_id,
        )
        row = questions.ask(ctx.run_id, ctx.key, text, now=ctx.now)
        if row.answered_at is None:
            ways = " or ".join(f'"{word}"' for word in answers)
            return Wait(
                f"Waits for an answer to: {row.text}",
                get_backoff(row.asked_at, ctx.now, longest=_LONGEST),
                ask=f"Answer run {ctx.run_id} with {ways}: {row.text}",
                is_told=True,
            )
        if row.answer == answers[0]:
            return Done(
                f'{row.answered_by} answered "{row.answer}" to: {row.text}',
                evidence={"answer": row.answer},
            )
        return Failed(
            f'{row.answered_by} answered "{row.answer}" to: {row.text}',
            ask=f"Finish by hand what run {ctx.run_id} began on {ctx.node}.",
        )
