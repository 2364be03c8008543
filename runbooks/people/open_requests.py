"""What people may answer with a click: the state they decide on, and a button for each answer.
Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from incidents.models import TimelineEntry
from incidents.notify.notifier import Ask, Button, Message, NoticeCard, Reply
from runbooks import answer_words, questions
from runbooks.engine import approval_snapshot, approvals
from runbooks.models import UNFINISHED, Approval, Question, Run, RunState, SecondPersonRequest
from runbooks.second_person import power_cycles, requests

APPROVE, ABORT, ANSWER, CONFIRM = "approve", "abort", "answer", "confirm"
"""Names of buttons. `answer` has the number of the word behind it: names are single within a
message."""


def find_message_ask(message: Message) -> Ask | None:
    """What the message of a timeline entry, or one of no incident, asks, as long as nobody has
    answered; None where it asks nothing."""
    if isinstance(message.content, NoticeCard):
        asked = SecondPersonRequest.objects.filter(notice=message.content.number, ended_at=None)
        request = asked.first()
        return build_second_person_ask(request) if request is not None else None
    kind = message.content.kind if isinstance(message.content, Reply) else ""
    entry = TimelineEntry.objects.filter(pk=message.key.sequence, kind=kind).first()
    if entry is None:
        return None
    if kind == "approval_asked":
        return _find_approval_ask(entry)
    return _find_question_ask(entry) if kind == "run_waiting" else None


def find_run_ask(run: Run) -> Ask | None:
    """What the run asks now: leave for its next step, or a question."""
    leave = approvals.get_open_approval(run) if run.state == RunState.AWAITING_APPROVAL else None
    if leave is not None:
        return _build_approval_ask(leave)
    question = questions.get_open_question(run.pk) if run.state in UNFINISHED else None
    return _build_question_ask(question) if question is not None else None


def build_second_person_ask(request: SecondPersonRequest) -> Ask:
    """A button to confirm just this."""
    value = f"{request.pk} {requests.get_seen(request)}"
    label = f"Confirm request {request.pk}"
    return Ask((), (Button(CONFIRM, label, value, question=request.what),))


def _find_approval_ask(entry: TimelineEntry) -> Ask | None:
    """Entry and question were written in one transaction with one time. What came after it is
    another question."""
    rows = Approval.objects.filter(
        run__incident_id=entry.incident_id,
        run__state=RunState.AWAITING_APPROVAL,
        asked_at=entry.occurred_at,
        given_at=None,
        ended_at=None,
    )
    found = list(rows.select_related("run__node", "run__incident")[:2])
    return _build_approval_ask(found[0]) if len(found) == 1 else None


def _find_question_ask(entry: TimelineEntry) -> Ask | None:
    rows = Question.objects.filter(
        run__incident_id=entry.incident_id,
        run__state__in=UNFINISHED,
        asked_at__lte=entry.occurred_at,
        answered_at=None,
    )
    found = [
        row
        for row in rows.select_related("run__node", "run__incident")
        if entry.text.endswith(row.text)
    ]
    return _build_question_ask(found[0]) if len(found) == 1 else None


def _build_approval_ask(approval: Approval) -> Ask:
    run = approval.run
    fingerprint = approval_snapshot.get_fingerprint(approval.pk, approval.shown)
    value = f"{run.pk} {fingerprint}"
    place = f"Run {run.pk} on {run.place}"
    go_on = f"{place} takes the step that was shown, while the node is as shown."
    end = f"{place} ends here. The node stays as it is: drained if it was drained."
    approve = Button(APPROVE, f"Approve run {run.pk}", value, question=go_on)
    abort = Button(ABORT, f"Abort run {run.pk}", value, question=end, is_danger=True)
    first = power_cycles.find_first(run)
    lines = (f"{power_cycles.describe_first(first)}.",) if first is not None else ()
    return Ask((*lines, *_format_snapshot(approval.shown)), (approve, abort))


def _format_snapshot(shown: Mapping[str, Any]) -> tuple[str, ...]:
    """What the person decides on, a line each."""
    node = f"{shown['node']}: {shown['service']} {shown['reason']}".rstrip()
    jobs = ", ".join(shown["jobs"]) or "none"
    faults = ", ".join(shown["faults"]) or "none that calls for a repair"
    lines = [node, f"Jobs on it: {jobs}", f"Faults that stand: {faults}"]
    if shown["power"]:
        lines.append(f"Power: {shown['power']}")
    return (*lines, f"Out of service beside it: {shown['nodes_out']}")


def _build_question_ask(question: Question) -> Ask:
    words = answer_words.get_ways(question)
    buttons = [
        Button(f"{ANSWER}_{number}", word, f"{question.pk} {word}")
        for number, word in enumerate(words)
    ]
    run = f"Run {question.run_id} on {question.run.place}"
    return Ask((f"{run} asks: {question.text}",), tuple(buttons))
