"""What people may answer with a click: the state they decide on, and a button for each answer.
Reads only."""

from __future__ import annotations

from incidents.models import TimelineEntry
from incidents.notify.notifier import Ask, Button, Message, Reply
from runbooks import answer_words, questions
from runbooks.engine import approval_snapshot, approvals
from runbooks.models import UNFINISHED, Approval, Question, Run, RunState

APPROVE, ABORT, ANSWER = "approve", "abort", "answer"
"""Names of buttons. `answer` has the number of the word behind it: names are single within a
message."""


def of_message(message: Message) -> Ask | None:
    """What the message of a timeline entry asks, as long as nobody has answered; None where it asks
    nothing."""
    kind = message.content.kind if isinstance(message.content, Reply) else ""
    entry = TimelineEntry.objects.filter(pk=message.key.sequence, kind=kind).first()
    if entry is None:
        return None
    if kind == "approval_asked":
        return _of_approval(entry)
    return _of_question(entry) if kind == "run_waiting" else None


def of_run(run: Run) -> Ask | None:
    """What the run asks now: leave for its next step, or a question."""
    leave = approvals.get_open_approval(run) if run.state == RunState.AWAITING_APPROVAL else None
    if leave is not None:
        return _leave(leave)
    question = questions.get_open_question(run.pk) if run.state in UNFINISHED else None
    return _answers(question) if question is not None else None


def _of_approval(entry: TimelineEntry) -> Ask | None:
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
    return _leave(found[0]) if len(found) == 1 else None


def _of_question(entry: TimelineEntry) -> Ask | None:
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
    return _answers(found[0]) if len(found) == 1 else None


def _leave(asked: Approval) -> Ask:
    shown, run = asked.shown, asked.run
    value = f"{run.pk} {approval_snapshot.mark(asked.pk, shown)}"
    lines = (
        f"{shown['node']}: {shown['service']} {shown['reason']}".rstrip(),
        f"Jobs on it: {', '.join(shown['jobs']) or 'none'}",
        f"Faults that stand: {', '.join(shown['faults']) or 'none that calls for a repair'}",
        *((f"Power: {shown['power']}",) if shown["power"] else ()),
        f"Out of service beside it: {shown['nodes_out']}",
    )
    go = f"Run {run.pk} on {run.place} takes the step that was shown, while the node is as shown."
    end = (
        f"Run {run.pk} on {run.place} ends here. The node stays as it is: drained if it was"
        " drained."
    )
    return Ask(
        lines,
        (
            Button(APPROVE, f"Approve run {run.pk}", value, question=go),
            Button(ABORT, f"Abort run {run.pk}", value, question=end, is_danger=True),
        ),
    )


def _answers(question: Question) -> Ask:
    words = answer_words.ways(question)
    buttons = (
        Button(f"{ANSWER}_{number}", word, f"{question.pk} {word}")
        for number, word in enumerate(words)
    )
    return Ask(
        (f"Run {question.run_id} on {question.run.place} asks: {question.text}",), tuple(buttons)
    )
