"""Template tags of runs: states and outcomes with a symbol beside the word."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.templatetags.console import icon
from runbooks import library, questions
from runbooks.models import UNFINISHED, Question, Run, RunState, StepRun

register = template.Library()

RUN_ICONS: dict[RunState, str] = {
    RunState.RUNNING: "play_circle",
    RunState.AWAITING_APPROVAL: "back_hand",
    RunState.PAUSED: "pause_circle",
    RunState.SUCCEEDED: "check_circle",
    RunState.FAILED: "error",
    RunState.WITHDRAWN: "undo",
    RunState.ABORTED: "cancel",
    RunState.SHADOWED: "visibility",
    RunState.NOT_CURED: "stairs",
}
STEP_ICONS: dict[StepRun.Outcome, str] = {
    StepRun.Outcome.ATTEMPTED: "help",
    StepRun.Outcome.DONE: "check_circle",
    StepRun.Outcome.WAITING: "hourglass_top",
    StepRun.Outcome.FAILED: "error",
    StepRun.Outcome.REFUSED: "block",
    StepRun.Outcome.ALREADY_DONE: "done_all",
    StepRun.Outcome.WOULD_RUN: "visibility",
}


@register.filter
def run_state(value: str) -> SafeString:
    word = RunState(value)
    return _badge("run", word.value, RUN_ICONS[word])


@register.filter
def step_outcome(value: str) -> SafeString:
    word = StepRun.Outcome(value)
    return _badge("step", word.value, STEP_ICONS[word])


@register.simple_tag
def question_of(run: Run) -> Question | None:
    return questions.standing(run.pk) if run.state in UNFINISHED else None


@register.filter
def ways(question: Question) -> tuple[str, ...]:
    """The words that it may be answered with."""
    return questions.ways(question)


@register.filter
def ahead(run: Run) -> list[str]:
    """The steps that an unfinished run has not come to yet, by name."""
    if run.state not in UNFINISHED:
        return []
    tried = max((step.index for step in run.steps.all()), default=-1)
    return [row["step"] for row in run.plan[tried + 1 :]]


@register.filter
def runbook_title(runbook: str) -> str:
    """A runbook's title; its name where the library no longer has it."""
    book = library.load().get(runbook)
    return book.title if book is not None else runbook


def _badge(kind: str, value: str, symbol: str) -> SafeString:
    return format_html('<span class="k-badge k-{}-{}">{}{}</span>', kind, value, icon(symbol), value.replace("_", " "))
