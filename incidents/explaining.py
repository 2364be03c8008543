"""Reads what explains an incident: members, evidence, decisions, silences, people's hands. Writes nothing.

A fixed number of queries, however many faults an incident has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Q

from detectors import catalog as fault_catalog
from detectors import resources
from incidents import naming, wording
from incidents.account import (
    KINTSUGI,
    Account,
    Done,
    Joined,
    Judged,
    Other,
    Quiet,
    Reported,
    Root,
    Seen,
)
from incidents.models import Decision, Evidence, Incident, IncidentFault
from incidents.rearranging import members_of

_PLACES = 5
# Kinds of decisions that members and timeline tell already.
_TOLD_ELSEWHERE = (Decision.Kind.OPENED, Decision.Kind.JOINED)
_LONGEST_EXCERPT = 300


def account(incident_id: int) -> Account | None:
    """None: there is no such incident."""
    incident = Incident.objects.filter(pk=incident_id).select_related("silence", "duplicate_of", "follows").first()
    if incident is None:
        return None
    members: list[IncidentFault] = list(members_of(incident.pk))
    reader = _Reader(incident, members)
    return Account(
        incident=incident.pk,
        title=incident.title,
        state=incident.state,
        severity=incident.severity,
        onset_at=incident.onset_at,
        opened_at=incident.opened_at,
        faults=len(members),
        root=reader.root(),
        seen=tuple(reader.seen()),
        reported=tuple(reader.reported()),
        joined=tuple(reader.joined()),
        held_until=incident.held_until,
        held_reason=incident.held_reason,
        judged=tuple(_judged(incident)),
        silence=_silence(incident),
        people=tuple(_people(incident)),
        others=tuple(_others(incident)),
    )


class _Reader:
    """The members of one incident, with their places and sources as people say them."""

    def __init__(self, incident: Incident, members: Sequence[IncidentFault]) -> None:
        self._incident, self._members = incident, members
        self._catalog = fault_catalog.load()
        hosts = {resources.host_of(link.fault.owner) for link in members if "/gpu/" in link.fault.resource}
        self._gpus: Mapping[str, int] = naming.gpu_indexes({host for host in hosts if host is not None})
        self._sources = _sources(incident)

    def root(self) -> Root | None:
        link = next((link for link in self._members if link.fault_id == self._incident.root_fault_id), None)
        if link is None:
            return None
        fault = link.fault
        first = Evidence.objects.filter(fault=fault).order_by("occurred_at", "pk").first()
        return Root(
            fault_type=fault.fault_type,
            title=self._title(fault.fault_type),
            place=self._said(fault.resource),
            because=link.reason,
            rule=link.rule,
            by=link.placed_by,
            at=fault.raised_at,
            observed_at=fault.observed_at,
            clock=fault.clock,
            sources=tuple(sorted(self._sources.get(fault.pk, ()))),
            excerpt=first.excerpt[:_LONGEST_EXCERPT] if first is not None else "",
        )

    def seen(self) -> list[Seen]:
        groups: dict[str, list[IncidentFault]] = defaultdict(list)
        for link in self._members:
            groups[link.fault.fault_type].append(link)
        told = [self._seen(fault_type, links) for fault_type, links in groups.items()]
        return sorted(told, key=lambda seen: (seen.first_at, seen.fault_type))

    def _seen(self, fault_type: str, links: Sequence[IncidentFault]) -> Seen:
        faults = sorted((link.fault for link in links), key=lambda fault: (fault.raised_at, fault.pk))
        return Seen(
            fault_type=fault_type,
            title=self._title(fault_type),
            severity=faults[0].severity,
            faults=len(faults),
            active=sum(fault.is_active for fault in faults),
            events=sum(fault.count for fault in faults),
            places=self._places(fault.resource for fault in faults),
            first_at=faults[0].raised_at,
            last_at=max(fault.last_seen_at for fault in faults),
            observed_at=min(fault.observed_at for fault in faults),
            sources=tuple(sorted({word for fault in faults for word in self._sources.get(fault.pk, ())})),
            clocks=tuple(sorted({fault.clock for fault in faults})),
        )

    def joined(self) -> list[Joined]:
        groups: dict[tuple[str, str, str], list[IncidentFault]] = defaultdict(list)
        for link in self._members:
            if link.fault_id != self._incident.root_fault_id:
                groups[link.rule, link.placed_by, _because(link.reason)].append(link)
        return [
            Joined(
                rule=rule,
                because=links[0].reason if len(links) == 1 else because,
                by=by,
                faults=len(links),
                fault_types=tuple(sorted({link.fault.fault_type for link in links})),
                places=self._places(link.fault.resource for link in links),
                first_at=min(link.joined_at for link in links),
                last_at=max(link.joined_at for link in links),
            )
            for (rule, by, because), links in groups.items()
        ]

    def reported(self) -> list[Reported]:
        reports = self._incident.reports.order_by("reported_at", "pk")
        return [Reported(row.author, row.text, self._said(row.resource), row.reported_at) for row in reports]

    def _title(self, fault_type: str) -> str:
        known = self._catalog.get(fault_type)
        return known.title if known else fault_type

    def _said(self, path: str) -> str:
        return wording.resource(path, self._gpus)

    def _places(self, paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._said(path) for path in list(dict.fromkeys(paths))[:_PLACES])


def _because(reason: str) -> str:
    """What joins of one kind have in common: `2 s after X on Y: it runs over that switch` without its time."""
    _, separator, because = reason.partition(": ")
    return because if separator else reason


def _sources(incident: Incident) -> dict[int, set[str]]:
    """Who told of each fault, as its excerpts say."""
    told: dict[int, set[str]] = defaultdict(set)
    kept = Evidence.objects.filter(fault__in=members_of(incident.pk).order_by().values("fault"))
    for fault, source in kept.order_by().values_list("fault_id", "source").distinct():
        told[fault].add(source)
    return told


def _judged(incident: Incident) -> list[Judged]:
    """Decisions about the incident and its faults, those of one kind, rule and sense as one."""
    about = Q(incident=incident) | Q(fault__in=members_of(incident.pk).order_by().values("fault"))
    rows = Decision.objects.filter(about).exclude(kind__in=_TOLD_ELSEWHERE).order_by("pk")
    groups: dict[tuple[str, str, str, str], list[Decision]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.rule, row.actor, _because(row.text)].append(row)
    return [
        Judged(kind, rule, same[-1].text, actor, len(same), same[0].recorded_at, same[-1].recorded_at, same[-1].until)
        for (kind, rule, actor, _), same in groups.items()
    ]


def _silence(incident: Incident) -> Quiet | None:
    window = incident.silence
    return None if window is None else Quiet(window.kind, window.author, window.reason, window.ends_at)


def _people(incident: Incident) -> list[Done]:
    entries = incident.timeline.exclude(actor=KINTSUGI).exclude(kind="user_report").order_by("pk")
    return [Done(entry.actor, entry.kind, entry.text, entry.occurred_at) for entry in entries]


def _others(incident: Incident) -> list[Other]:
    found = [Other(row.pk, "was merged into this one", row.title) for row in incident.duplicates.order_by("pk")]
    if incident.duplicate_of is not None:
        found.append(Other(incident.duplicate_of.pk, "has its faults now", incident.duplicate_of.title))
    if incident.follows is not None:
        found.append(Other(incident.follows.pk, "was the same fault before", incident.follows.title))
    return found
