"""The words that a question of a run may be answered with."""

from __future__ import annotations

from runbooks.models import Question

ANSWERS: tuple[str, ...] = ("go on", "stop")
LONGEST_ANSWER = 40


def ways(question: Question) -> tuple[str, ...]:
    """The words that it may be answered with, as the run's plan gives them. The first one lets the
    run go on."""
    index = int(question.key.split("-")[1])
    given = (
        question.run.plan[index]["with"].get("answers") if index < len(question.run.plan) else None
    )
    return tuple(str(word).strip()[:LONGEST_ANSWER] for word in given) if given else ANSWERS
