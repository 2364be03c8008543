"""What one person asks for and a second one confirms: asked, confirmed, rejected and expired, each
by a compare-and-swap with its line in the audit log.

Two persons are two active accounts of the console that may do it. The second confirms the order as
it was asked, in the state in which it was asked; where that has changed, it is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet

from incidents.text.wording import format_moment
from runbooks.engine import audit
from runbooks.models import FleetLock, Run, SecondPersonRequest
from runbooks.outcomes import AskedSecond, ControlRefused
from runbooks.second_person import changes, notices
from runbooks.second_person.changes import Kind, ModeChange, Order

SETTING = "KINTSUGI_SECOND_PERSON"
Ending = SecondPersonRequest.Ending
_LOCK = "second_person"
_MOVED = "Modes, armings or nodes that it is about have changed since."
_PERMISSIONS = {
    Kind.ARMING: "runbooks.set_mode",
    Kind.WIDENING: "runbooks.set_mode",
    Kind.COLD_CYCLE: "runbooks.control_run",
}


@dataclass(frozen=True)
class Confirmation:
    """A request that its second person has confirmed just now, in the caller's transaction.
    `people` names both."""

    request: SecondPersonRequest
    people: str


def is_needed(kind: Kind) -> bool:
    """Whether the site says so."""
    return kind in (settings.KINTSUGI[SETTING] or ())


def lock() -> None:
    """One order at a time, in the caller's transaction: what one compares, no other changes.
    SQLite's transactions are immediate: there the whole database is the lock."""
    FleetLock.objects.get_or_create(name=_LOCK)
    FleetLock.objects.select_for_update().get(name=_LOCK)


def list_standing(now: datetime) -> QuerySet[SecondPersonRequest]:
    """Those that somebody can confirm now, the oldest first."""
    rows = SecondPersonRequest.objects.filter(ended_at=None, until__gt=now)
    return rows.order_by("pk")


def find_standing(mark: str, now: datetime) -> SecondPersonRequest | None:
    return list_standing(now).filter(mark=mark).first()


def get_seen(request: SecondPersonRequest) -> str:
    """What a person hands back who has read the request."""
    return changes.make_mark(request.pk, request.mark, request.state)


def ask_if_needed(
    change: ModeChange, *, actor: str, now: datetime
) -> AskedSecond | ControlRefused | None:
    """None: one person is enough, and the order is done. In the transaction of the order."""
    if not settings.KINTSUGI[SETTING]:
        return None
    lock()
    kind = changes.find_kind(change, now)
    if kind is None or not is_needed(kind):
        return None
    return ask(change, kind, state=changes.get_state(change, now), actor=actor, now=now)


def ask(
    change: ModeChange, kind: Kind, *, state: str, actor: str, now: datetime, run: Run | None = None
) -> AskedSecond | ControlRefused:
    objection = _find_objection(kind, actor)
    if objection:
        return ControlRefused(f"{objection} Nothing is asked for.")
    expire(now)
    terms = {"mode": change.mode, **change.terms}
    standing = find_standing(change.mark, now)
    if standing is not None:
        is_same = (standing.state, standing.terms) == (state, terms)
        if is_same or not is_asker(standing, actor):
            return ControlRefused(_format_repeated(standing, actor))
        _end(standing, Ending.OUTDATED, actor, now, why=f"{actor} asks for it anew.")
    request = SecondPersonRequest(
        kind=kind, order=change.order, runbook=change.runbook, what=change.what, mark=change.mark
    )
    request.run = run.pk if run is not None else None
    request.terms = terms
    request.state = state
    request.asked_by = actor[:150]
    request.asked_at = now
    request.until = now + settings.KINTSUGI["KINTSUGI_APPROVAL_TIME"]
    request.save(force_insert=True)
    notice = notices.announce(request, change, now)
    if notice is not None:
        request.notice = notice
        request.save(update_fields=["notice"])
    text = (
        f"{actor} asks for this: {request.what} Nothing is done yet: a second person confirms it"
        f" until {format_moment(request.until)}"
    )
    audit.record_person(actor, "ask_second_person", f"{text}.", now=now, run=run)
    return AskedSecond(f"{text}, {_format_way(request)}.")


def _format_way(request: SecondPersonRequest) -> str:
    if request.order == Order.APPROVAL:
        return f"by approving run {request.run} too"
    in_slack = ", in Slack," if settings.KINTSUGI["SLACK_SIGNING_SECRET"] else ""
    return f"on the page of modes{in_slack} or by kintsugi arming confirm {request.pk}"


def _format_repeated(standing: SecondPersonRequest, actor: str) -> str:
    who = "You have" if is_asker(standing, actor) else f"{standing.asked_by} has"
    whose = "another person" if is_asker(standing, actor) else "you, or another person"
    asked = f"{who} asked for this at {format_moment(standing.asked_at)}: {standing.what}"
    waits = f"Request {standing.pk} waits until {format_moment(standing.until)}"
    return f"{asked} {waits} for {whose} to confirm it, {_format_way(standing)}."


def is_asker(request: SecondPersonRequest, actor: str) -> bool:
    return request.asked_by.casefold() == actor[:150].casefold()


def find(number: int) -> SecondPersonRequest | ControlRefused:
    """One that nobody has ended."""
    request = SecondPersonRequest.objects.select_for_update().filter(pk=number).first()
    if request is None:
        return ControlRefused(f"There is no request {number}.")
    if request.ended_at is not None:
        by = f" by {request.ended_by}" if request.ended_by else ""
        at = format_moment(request.ended_at)
        return ControlRefused(f"Request {number} was {request.ending}{by} at {at}.")
    return request


def confirm(
    request: SecondPersonRequest, *, state: str, actor: str, seen: str, now: datetime
) -> Confirmation | ControlRefused:
    """In the transaction that does what was asked. `state`: as it is now."""
    number = request.pk
    if request.until <= now:
        expire(now)
        return ControlRefused(
            f"Request {number} of {request.asked_by} has expired at"
            f" {format_moment(request.until)}: ask"
            " again."
        )
    if is_asker(request, actor):
        return ControlRefused(
            f"You have asked for this yourself. A second person who may do it confirms it until"
            f" {format_moment(request.until)}."
        )
    objection = _find_objection(Kind(request.kind), actor)
    if objection:
        return ControlRefused(f"{objection} Nothing is confirmed.")
    if seen != get_seen(request):
        return ControlRefused(
            f"Request {number} is about something else than what you saw. Look at it again."
        )
    if state != request.state:
        _end(request, Ending.OUTDATED, actor, now, why=_MOVED)
        return ControlRefused(
            f"Since {request.asked_by} asked for it, modes, armings or nodes that request {number}"
            " is about have changed. It is ended: ask again."
        )
    if not _end(request, Ending.CONFIRMED, actor, now):
        return ControlRefused(f"Request {number} is ended. Look at it again.")
    return Confirmation(request, f"{request.asked_by}, confirmed by {actor}"[:150])


def reject(request: SecondPersonRequest, reason: str, *, actor: str, now: datetime) -> str:
    """By the second person, or taken back by the first. What people read of it."""
    _end(request, Ending.REJECTED, actor, now, why=reason)
    return f"Request {request.pk} of {request.asked_by} is rejected: nothing has changed."


def expire(now: datetime) -> list[SecondPersonRequest]:
    """Ends those whose time is over; which. Under the lock."""
    past = list(SecondPersonRequest.objects.filter(ended_at=None, until__lte=now))
    return [request for request in past if _end(request, Ending.EXPIRED, audit.KINTSUGI, now)]


def end_outdated(request: SecondPersonRequest, now: datetime) -> None:
    """What it asked for is asked no more."""
    _end(request, Ending.OUTDATED, audit.KINTSUGI, now)


def end_moved(now: datetime) -> None:
    """Ends those that nobody could confirm any more, since modes, armings or nodes have changed:
    who reads of them must not take them for standing. Under the lock."""
    for request in list_standing(now).exclude(order=Order.APPROVAL):
        if changes.get_state(changes.read(request), now) != request.state:
            _end(request, Ending.OUTDATED, audit.KINTSUGI, now, why=_MOVED)


def _end(
    request: SecondPersonRequest, ending: Ending, actor: str, now: datetime, why: str = ""
) -> bool:
    """False: somebody has ended it before."""
    standing = SecondPersonRequest.objects.filter(pk=request.pk, ended_at=None)
    values = {"ended_at": now, "ended_by": actor[:150], "ending": ending}
    if not standing.update(**values):
        return False
    reason = f" {why}" if why else ""
    text = f"Request {request.pk} of {request.asked_by} is {ending}: {request.what}{reason}"
    notices.close(request, ending, actor=actor, why=why, now=now)
    audit.record_person(actor, f"second_person_{ending}", text, now=now)
    return True


def _find_objection(kind: Kind, actor: str) -> str:
    """Why this is none of the two persons; empty where it may be."""
    permission = _PERMISSIONS[kind]
    user = User.objects.filter(username=actor, is_active=True).first()
    if user is not None and user.has_perm(permission):
        return ""
    return (
        f"The site wants two persons for this ({SETTING}), each with an account of the console that"
        f" may do it: {actor} has none."
    )
