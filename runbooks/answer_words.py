"""The words that a question of a run may be answered with."""

from __future__ import annotations

from runbooks.models import Question

ANSWERS: tuple[str, ...] = ("go on", "stop")
LONGEST_ANSWER = 40


def get_ways(question: Question) -> tuple[str, ...]:
    """The words that it may be answered with, as the run's plan gives them. The first one lets the
    run go on."""
    plan, index = question.run.plan, int(question.key.split("-")[1])
    words = plan[index]["with"].get("answers") if index < len(plan) else None
    if not words:
        return ANSWERS
    return tuple(str(word).strip()[:LONGEST_ANSWER] for word in words)
