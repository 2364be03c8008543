"""Turns rows into what a person reads: who, what, where, since when, what Kintsugi does now, what
you can do.

Plain text only; markup and limits belong to the notifier that renders it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, Q

from detectors.catalog import catalog
from detectors.catalog.advice import Advice
from detectors.faults import Severity
from incidents.impact import impact
from incidents.inventory.resource_names import format_resource
from incidents.models import Incident, Notice, Notification, Switch, TimelineEntry
from incidents.notify.notifier import Card, Message, MessageKey, NoticeCard, Reply
from incidents.state.outbox import CARD_SEQUENCE, LOUD, NOT_TOLD
from incidents.text.wording import format_clock
from incidents.vocabulary.lifecycle import State

RunWords = Callable[[Incident, datetime], str]
"""What a run does about the incident now, or what keeps it from it; empty where none is under
way."""

# What Kintsugi does by itself in each state, when no run and no hold has more to say.
DOING: dict[State, str] = {
    State.OPEN: "Kintsugi does nothing to it by itself. New faults of the same cause join it.",
    State.ACKNOWLEDGED: "Kintsugi does nothing to it by itself: a person has taken it.",
    State.REPAIRING: "Kintsugi is repairing it, one checked step after the other.",
    State.MONITORING: (
        "Repaired or cleared. Kintsugi waits out the quiet period, then resolves it by itself."
    ),
    State.AWAITING_VENDOR: "Waiting for the vendor's part. Kintsugi leaves the node as it is.",
    State.RESOLVED: "Nothing: it is over.",
    State.FALSE_POSITIVE: "Nothing: an engineer found that this was no fault.",
    State.DUPLICATE: "Nothing: another incident tells this story.",
}

# What a person can do in each state, when nobody is asked for something in particular.
ASKED: dict[State, str] = {
    State.OPEN: "Acknowledge it in the console, or mark it a false alarm.",
    State.ACKNOWLEDGED: "Resolve it in the console once service is back.",
    State.REPAIRING: "Nothing is needed. The run can be paused or aborted in the console.",
    State.MONITORING: "Nothing is needed.",
    State.AWAITING_VENDOR: (
        "Mark it resolved in the console once the part is in and the node is back."
    ),
    State.RESOLVED: "Nothing is needed.",
    State.FALSE_POSITIVE: "Nothing is needed.",
    State.DUPLICATE: "Nothing is needed.",
}


# States in which nothing happens unless a person does it.
_WITH_PEOPLE = (State.OPEN, State.ACKNOWLEDGED)
# What many machines share is in no rack of its own.
_SHARED = {
    "rack": "rack",
    "feed": "power feed",
    "pod": "pod of the network",
    "site": "whole site",
    "storage": "file system",
}
# Kinds that tell how a repair goes, as against what else happened meanwhile.
REPAIR_KINDS = ("repair_started", "step_done", "run_waiting", "run_note")
STOPPED = "Kintsugi has stopped here and waits for a person."
QUIET = (
    "Kept quiet: a window keeps it from people, and no message is sent until that ends or no longer"
    " covers it."
)


def get_console_url(incident: int) -> str:
    """The incident's page in the console."""
    return _get_page_url(f"/incidents/incident/{incident}/change/")


def _get_page_url(path: str) -> str:
    base = settings.KINTSUGI["KINTSUGI_BASE_URL"].rstrip("/")
    return f"{base}{path}"


def format_place(incident: Incident) -> str:
    """Rack, pod and role as far as the inventory knows them, such as `rack r07, pod-a`."""
    node = incident.node
    if node is not None:
        known = [f"rack {node.rack}" if node.rack else "", node.pod]
        known.append("not in the inventory" if node.is_provisional else "")
        return ", ".join(part for part in known if part) or "place not in the inventory"
    kind, _, switch_name = incident.owner.partition("/")
    if kind in _SHARED:
        return _SHARED[kind]
    switch = Switch.objects.filter(name=switch_name).first()
    if switch is None or switch.is_provisional:
        return "not in the inventory"
    places = (f"{switch.role} switch", switch.pod, _format_rail(switch))
    return ", ".join(text for text in places if text)


def _format_rail(switch: Switch) -> str:
    return "" if switch.rail is None else f"rail {switch.rail}"


def say_nothing_of_runs(incident: Incident, now: datetime) -> str:
    """Where nothing is known of runs."""
    return ""


def build_card(
    incident: Incident, *, now: datetime, run_words: RunWords = say_nothing_of_runs
) -> Card:
    """The incident as its card tells it now. A fixed number of queries."""
    state = State(incident.state)
    entries = incident.timeline.exclude(kind__in=NOT_TOLD).order_by("-id")
    latest = entries.values_list("text", flat=True).first() or ""
    does = format_doing(incident, run_words(incident, now), now)
    active = Count("pk", filter=Q(fault__is_active=True))
    faults = incident.members.aggregate(joined=Count("pk"), active=active)
    asks = incident.is_open and bool(incident.needs_human)
    impact_tally = impact.get_tally(incident)
    impact_text = impact_tally.format_words() if impact_tally is not None else ""
    asked = incident.needs_human if asks else ASKED[state]
    latest_text = "" if latest in does else latest
    fault_count = faults["joined"] or 1
    active_count = faults["active"]
    advice_text, advice_url = _format_advice(incident)
    fields = _describe_incident(incident) | _get_times(incident)
    return Card(
        **fields,
        state=state,
        now=does,
        asked=asked,
        faults=fault_count,
        active_faults=active_count,
        needs_human=asks,
        latest=latest_text,
        impact=impact_text,
        advice=advice_text,
        advice_url=advice_url,
    )


def _format_advice(incident: Incident) -> tuple[str, str]:
    """What a person does about it, and the page that says more; both empty where nothing is
    advised."""
    advice = find_advice(incident)
    if advice is None:
        return "", ""
    return advice.format(incident.root_resource), advice.url


def find_advice(incident: Incident) -> Advice | None:
    """What a person does about a fault of its type.

    None while Kintsugi or the vendor is at work, or where the catalogue has none.
    """
    is_with_people = bool(incident.needs_human) or State(incident.state) in _WITH_PEOPLE
    if not incident.is_open or not is_with_people:
        return None
    return catalog.load().get_advice(incident.fault_type)


def _describe_incident(incident: Incident) -> dict[str, Any]:
    """What and where it is, as the card's fields of the same names."""
    severity = Severity(incident.severity)
    component = incident.component.replace("_", " ")
    channels = tuple(incident.channels)
    resource = format_resource(incident.root_resource)
    where = format_place(incident)
    return {
        "incident": incident.pk,
        "title": incident.title,
        "severity": severity,
        "resource": resource,
        "where": where,
        "component": component,
        "channels": channels,
        "url": get_console_url(incident.pk),
    }


def _get_times(incident: Incident) -> dict[str, Any]:
    return {
        "onset_at": incident.onset_at,
        "opened_at": incident.opened_at,
        "restored_at": incident.restored_at,
        "closed_at": incident.closed_at,
    }


def format_doing(incident: Incident, run: str, now: datetime) -> str:
    """What Kintsugi does about it now, for messages and pages alike. `run`: what `RunWords` says of
    it."""
    if not incident.is_open:
        return DOING[State(incident.state)]
    quiet = QUIET if incident.silence_id is not None else ""
    sentences = [part for part in (run, _format_hold(incident, run, now), quiet) if part]
    return " ".join(sentences) or _format_without_run(incident)


def _format_hold(incident: Incident, run: str, now: datetime) -> str:
    """Until when its repair waits for what is counted, unless its run says so itself."""
    if (
        incident.held_until is None
        or incident.held_until <= now
        or incident.held_reason.rstrip(".") in run
    ):
        return ""
    return f"No repair before {format_clock(incident.held_until)}: {incident.held_reason}"


def _format_without_run(incident: Incident) -> str:
    state = State(incident.state)
    if incident.needs_human:
        return STOPPED
    repair = _format_last_of_repair(incident) if state is State.REPAIRING else ""
    return f"Kintsugi is repairing it. {repair}" if repair else DOING[state]


def _format_last_of_repair(incident: Incident) -> str:
    entries = incident.timeline.filter(kind__in=REPAIR_KINDS).order_by("-id")
    return entries.values_list("text", flat=True).first() or ""


def build_reply(entry: TimelineEntry) -> Reply:
    return Reply(
        incident=entry.incident_id,
        kind=entry.kind,
        text=entry.text,
        actor=entry.actor,
        occurred_at=entry.occurred_at,
        is_loud=entry.kind in LOUD,
    )


def build_notice_card(notice: Notice) -> NoticeCard:
    url = _get_page_url(notice.path)
    return NoticeCard(
        number=notice.pk,
        title=notice.title,
        text=notice.text,
        now=notice.doing,
        asked=notice.asked,
        url=url,
        is_open=notice.is_open,
    )


def build_message(
    row: Notification,
    *,
    now: datetime,
    thread_ts: str = "",
    run_words: RunWords = say_nothing_of_runs,
) -> Message:
    """The row as it reads at this moment."""
    written = row.recorded_at.isoformat()
    if row.notice is not None:
        key = MessageKey(0, row.notice.pk, written)
        return Message(channel=row.channel, key=key, content=build_notice_card(row.notice))
    number = row.incident_id or 0
    key = MessageKey(number, row.sequence, written)
    if row.sequence == CARD_SEQUENCE:
        incident = Incident.objects.select_related("node").get(pk=number)
        return Message(
            channel=row.channel, key=key, content=build_card(incident, now=now, run_words=run_words)
        )
    entry = TimelineEntry.objects.get(pk=row.sequence)
    return Message(channel=row.channel, key=key, content=build_reply(entry), thread_ts=thread_ts)
