"""Template tags of runs: states and outcomes with a symbol beside the word."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.templatetags.console import fault_type, icon, when, where, words
from runbooks import answer_words, questions
from runbooks.engine import approvals, start
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import UNFINISHED, Approval, Question, Run, RunState, StepRun
from runbooks.people import progress

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
# What a person can do about a run, by its state; a question, the next run and what its incident
# asks go before these.
CAN_DO: dict[RunState, str] = {
    RunState.RUNNING: "Nothing is asked of you. You can pause it, take over, or abort it.",
    RunState.AWAITING_APPROVAL: (
        "Read below what would be done, then approve or abort it. Nothing is done before."
    ),
    RunState.PAUSED: "Resume it, take over, or abort it. Nothing is done before.",
    RunState.SUCCEEDED: "Nothing: it is done.",
    RunState.FAILED: "See on the incident's page what became of it.",
    RunState.WITHDRAWN: "Nothing: its reason is gone.",
    RunState.ABORTED: "The node is yours: bring it back by hand, or leave it out.",
    RunState.SHADOWED: (
        "Nothing was done to the node. If the fault is not there, mark the incident a false alarm:"
        " the dry-run report counts it."
    ),
    RunState.NOT_CURED: "Nothing yet: the next repair begins by itself where there is one.",
}


@register.filter
def run_state(value: str) -> SafeString:
    word = RunState(value)
    return _format_badge("run", word.value, RUN_ICONS[word])


@register.filter
def step_outcome(value: str) -> SafeString:
    word = StepRun.Outcome(value)
    return _format_badge("step", word.value, STEP_ICONS[word])


@register.simple_tag
def get_run_question(run: Run) -> Question | None:
    return questions.get_open_question(run.pk) if run.state in UNFINISHED else None


@register.simple_tag
def can_do(run: Run) -> str | SafeString:
    """What a person can do now, in a sentence."""
    if run.state in UNFINISHED and get_run_question(run) is not None:
        return "Answer the question below."
    if run.state in UNFINISHED:
        is_asked = (
            run.state == RunState.RUNNING and run.incident.is_open and run.incident.needs_human
        )
        return run.incident.needs_human if is_asked else CAN_DO[RunState(run.state)]
    following = Run.objects.filter(incident=run.incident_id, pk__gt=run.pk).order_by("pk").first()
    if following is not None:
        address = reverse("admin:runbooks_run_change", args=[following.pk])
        title = runbook_title(following.runbook)
        return format_html(
            'Nothing here: it goes on in <a href="{}">run #{}</a>, {}.',
            address,
            following.pk,
            title,
        )
    if run.incident.is_open and run.incident.needs_human:
        return run.incident.needs_human
    return CAN_DO[RunState(run.state)]


@register.filter
def waits_for(run: Run) -> str:
    """What an unfinished run waits for, and since when that is so."""
    return progress.format_wait(run)


@register.simple_tag
def describe_request(approval: Approval) -> str:
    """What leave is asked for: all that the run does, or one step of it."""
    run = approval.run
    if approvals.is_for_the_whole_run(approval):
        return start.format_plan(run)
    return start.format_step(run, approval.index)


@register.filter
def format_active_fault(text: str) -> str | SafeString:
    """`gpu.xid.79 on node/gn042/gpu/0000:19:00.0`, as an approval keeps it, with its page and by
    its people's name."""
    name, _, path = text.partition(" on ")
    return format_html("{} on {}", fault_type(name), where(path)) if path else text


@register.filter
def list_run_facts(run: Run) -> list[tuple[str, Any]]:
    """What steps keep for each other, as far as it tells people something: times as times, no keys
    of single steps."""
    shown_elsewhere = ("why", "resource", lease.SAID_AT)
    known = (
        (name, value)
        for name, value in run.facts.items()
        if ":" not in name and name not in shown_elsewhere
    )
    return [(words(name), _format_value(value)) for name, value in known]


@register.filter
def list_answers(question: Question) -> tuple[str, ...]:
    """The words that it may be answered with."""
    return answer_words.get_ways(question)


@register.filter
def list_steps_ahead(run: Run) -> list[str]:
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


def _format_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{words(name)} {part}" for name, part in value.items())
    try:
        return (
            when(datetime.fromisoformat(value))
            if isinstance(value, str) and "T" in value
            else value
        )
    except ValueError:
        return value


def _format_badge(kind: str, value: str, symbol: str) -> SafeString:
    return format_html(
        '<span class="k-badge k-{}-{}">{}{}</span>',
        kind,
        value,
        icon(symbol),
        value.replace("_", " "),
    )
