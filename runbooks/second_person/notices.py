"""The message in the channel that asks a second person: what one asks for, and what became of it.

It is written in the transaction of the request, and written anew in that of its end. Leave for a
power cycle has none: its incident asks for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.conf import settings

from incidents.models import Notice
from incidents.state import outbox
from incidents.text.wording import format_moment
from runbooks.fleet import fleet
from runbooks.models import Mode, SecondPersonRequest
from runbooks.second_person import changes
from runbooks.second_person.changes import Kind, ModeChange, Order

Ending = SecondPersonRequest.Ending
_KIND = "second_person"
_PAGE = "/modes/"
_NAMED = 5
_NAMES: Mapping[Kind, str] = {Kind.ARMING: "Arming", Kind.WIDENING: "Widening"}
_MODES: Mapping[Mode, str] = {
    Mode.OFF: "starts no run",
    Mode.SHADOW: "writes down what it would do, and touches nothing",
    Mode.APPROVAL: "asks a person before its first act",
    Mode.ARMED: "acts by itself, within the guards",
}
_TITLES: Mapping[Ending, str] = {
    Ending.CONFIRMED: "{name} confirmed by {actor}",
    Ending.REJECTED: "{name} rejected by {actor}",
    Ending.EXPIRED: "{name}: no second person came",
    Ending.OUTDATED: "{name}: the request has ended",
}
# `reason` is `why` without the full stop at its end.
_DOINGS: Mapping[Ending, str] = {
    Ending.CONFIRMED: "{actor} confirmed it at {at}, and it was done as asked.",
    Ending.REJECTED: "{actor} rejected it at {at}: {reason}. Nothing has changed.",
    Ending.EXPIRED: "Nobody confirmed it until {until}. Nothing has changed.",
    Ending.OUTDATED: "It ended at {at}. {why} Nothing has changed by it.",
}
_ASK_AGAIN = "Whoever still wants it asks for it again."


def announce(request: SecondPersonRequest, change: ModeChange, now: datetime) -> Notice | None:
    """None where the incident asks."""
    if request.order == Order.APPROVAL:
        return None
    title = f"{_get_name(request)} waits for a second person"
    text = f"{request.asked_by} asks for this: {request.what} {_format_reach(change)}"
    doing = f"Nothing of it is done yet. {_format_present(request, now)}"
    asked = _format_ways(request)
    notice = Notice(
        kind=_KIND,
        title=title,
        text=text,
        doing=doing,
        asked=asked,
        path=_PAGE,
        is_open=True,
    )
    return outbox.announce(notice, now=now)


def _get_name(request: SecondPersonRequest) -> str:
    return _NAMES[Kind(request.kind)]


def _format_reach(change: ModeChange) -> str:
    """On which nodes and for how long, as far as the order itself does not say it."""
    if change.order == Order.MODE:
        return "That is on all nodes, until a person sets another mode, for any number of runs."
    if change.order == Order.END_ARMING:
        return "What held it back there ends with it."
    names = changes.list_covered(change)
    named = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    nodes = "node" if len(names) == 1 else "nodes"
    runs = " It is for any number of runs." if change.terms["runs"] is None else ""
    return f"That is {len(names)} {nodes} now: {named}{more}.{runs}"


def _format_present(request: SecondPersonRequest, now: datetime) -> str:
    """How far it may go without it."""
    if request.runbook == fleet.SITE:
        mode = fleet.get_site_mode()
        held = f"The site is at {mode}" if mode is not None else "The site has no mode of its own"
        return f"{held}: each runbook goes as far as its own mode and armings let it."
    table = fleet.load_modes((request.runbook,), now)
    mode = fleet.get_lower_mode(table.own[request.runbook], table.site)
    count = sum(row.runbook == request.runbook for row in table.armings)
    armings = "arming" if count == 1 else "armings"
    besides = f", besides {count} {armings} on some nodes" if count else ""
    return f"{request.runbook} is at {mode}{besides}: there it {_MODES[mode]}."


def _format_ways(request: SecondPersonRequest) -> str:
    number = request.pk
    is_in_slack = bool(settings.KINTSUGI["SLACK_SIGNING_SECRET"])
    here = "here, " if is_in_slack else ""
    order = f", by /kintsugi reject {number} WHY" if is_in_slack else ""
    return (
        f"Another administrator than {request.asked_by} confirms it {here}on the page of modes or"
        f" by kintsugi arming confirm {number}, until {format_moment(request.until)}. Reject it"
        " with a"
        f" reason{order}, on that page or by kintsugi arming reject {number}."
    )


def close(
    request: SecondPersonRequest, ending: Ending, *, actor: str, why: str, now: datetime
) -> None:
    """Says how the request has ended. `why`: a sentence; empty where the ending says it all."""
    notice = request.notice
    if notice is None:
        return
    title = _TITLES[ending].format(name=_get_name(request), actor=actor)
    at, until = format_moment(now), format_moment(request.until)
    reason = why.rstrip(".")
    is_done = ending is Ending.CONFIRMED
    notice.title = title[: Notice._meta.get_field("title").max_length or 0]
    notice.doing = _DOINGS[ending].format(actor=actor, at=at, until=until, why=why, reason=reason)
    notice.asked = (
        "A lower mode, or the end of an arming, takes one person." if is_done else _ASK_AGAIN
    )
    notice.is_open = False
    outbox.rewrite(notice, now=now)
