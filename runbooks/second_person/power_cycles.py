"""Leave for a power cycle, where the site wants two persons: the first who approves asks, the
second gives leave, both for the one state that the run has shown."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from incidents.db.prepared import Prepared
from incidents.state import transitions
from incidents.text.wording import format_moment
from runbooks.engine import approvals
from runbooks.guards.verdicts import Act
from runbooks.library import library
from runbooks.models import Approval, Mode, Run, RunState, SecondPersonRequest
from runbooks.outcomes import AskedSecond, ControlRefused
from runbooks.second_person import requests
from runbooks.second_person.changes import Kind, ModeChange, Order

_OPEN = Prepared(lambda: SecondPersonRequest.objects.filter(ended_at=None).values_list("pk")[:1])


def lock_if_needed() -> None:
    """In the caller's transaction, before it reads the run."""
    if requests.is_needed(Kind.COLD_CYCLE):
        requests.lock()


def ask_or_confirm(run: Run, *, actor: str, now: datetime) -> AskedSecond | ControlRefused | str:
    """Who gives leave by now, as people read it; or that a second person is asked. The caller has
    compared the state that `actor` saw, and holds the lock."""
    approval = approvals.get_open_approval(run)
    if approval is None or not requests.is_needed(Kind.COLD_CYCLE):
        return actor
    try:
        is_power_cycle = _is_power_cycle(run)
    except library.LibraryError as error:
        return ControlRefused(f"What run {run.pk} would do cannot be read: {error}")
    if not is_power_cycle:
        return actor
    standing = _find_standing(approval)
    if standing is None or standing.until <= now:
        return _ask(run, approval, actor, now)
    seen = requests.get_seen(standing)
    found = requests.confirm(standing, state=standing.state, actor=actor, seen=seen, now=now)
    return found if isinstance(found, ControlRefused) else found.people


def find_first(run: Run) -> SecondPersonRequest | None:
    """The leave of the first person, which waits for the second."""
    approval = approvals.get_open_approval(run)
    return _find_standing(approval) if approval is not None else None


def _find_standing(approval: Approval) -> SecondPersonRequest | None:
    rows = SecondPersonRequest.objects.filter(order=Order.APPROVAL, run=approval.run_id)
    return rows.filter(ended_at=None, terms__approval=approval.pk).first()


def describe_first(request: SecondPersonRequest) -> str:
    return (
        f"{request.asked_by} has approved it at {format_moment(request.asked_at)}: a second person"
        f" approves it too until {format_moment(request.until)}, or aborts it"
    )


def sweep(now: datetime) -> None:
    """Ends what nobody can confirm any more: its time is over, its run does not ask any more, or
    what it is about has changed."""
    if not _OPEN.values():
        return
    with transaction.atomic():
        requests.lock()
        for request in requests.expire(now):
            if request.order == Order.APPROVAL and _is_asked_still(request):
                _ask_anew(request, now)
        requests.end_moved(now)
        for request in SecondPersonRequest.objects.filter(ended_at=None, order=Order.APPROVAL):
            if not _is_asked_still(request):
                requests.end_outdated(request, now)


def _is_asked_still(request: SecondPersonRequest) -> bool:
    asked = Approval.objects.filter(pk=request.terms["approval"], given_at=None, ended_at=None)
    return asked.filter(run__state=RunState.AWAITING_APPROVAL).exists()


def _ask_anew(request: SecondPersonRequest, now: datetime) -> None:
    run = Run.objects.select_related("incident").get(pk=request.run or 0)
    text = f"No second person came: the leave of {request.asked_by} has expired. {request.what}"
    ask = f"Approve or abort run {run.pk}, which takes two persons: {request.what}"
    transitions.record(run.incident_id, kind="run_note", text=text, now=now, needs_human=ask)


def _ask(run: Run, approval: Approval, actor: str, now: datetime) -> AskedSecond | ControlRefused:
    plan = library.load_plan(run.plan)[run.step].step.plan.format(node=run.place)
    what = f"Run {run.pk} on {run.place}: {plan}."
    shown = approvals.get_fingerprint(run)
    terms = {"approval": approval.pk, "shown": shown}
    change = ModeChange(Order.APPROVAL, run.runbook, Mode(run.mode), what, terms)
    asked = requests.ask(change, Kind.COLD_CYCLE, state=shown, actor=actor, now=now, run=run)
    if isinstance(asked, AskedSecond):
        ask = f"Approve or abort as a second person, beside {actor}: {what}"
        transitions.record(
            run.incident_id,
            kind="run_note",
            text=asked.text,
            actor=actor,
            now=now,
            needs_human=ask,
        )
    return asked


def _is_power_cycle(run: Run) -> bool:
    return library.load_plan(run.plan)[run.step].step.act is Act.POWER_CYCLE
