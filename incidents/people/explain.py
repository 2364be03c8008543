"""Reads what explains an incident: members, evidence, decisions, silences, people's hands. Writes
nothing.

A fixed number of queries, however many faults an incident has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from detectors import provenance as provenances
from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.faults import Action
from detectors.provenance import BELIEVED
from incidents.inventory import aliases
from incidents.maintenance import site_changes
from incidents.models import Decision, Evidence, Fault, Incident, IncidentFault
from incidents.people.edit import filter_members
from incidents.text import wording
from incidents.text.account import (
    KINTSUGI,
    Account,
    ChangeBefore,
    DecisionGroup,
    Joined,
    Other,
    PersonsAct,
    Quiet,
    Reported,
    RootAccount,
    SeenFaults,
)

_PLACES = 5
# Kinds of decisions that members and timeline tell already.
_TOLD_ELSEWHERE = (Decision.Kind.OPENED, Decision.Kind.JOINED)
_LONGEST_EXCERPT = 300
# What an account repeats of its incident, by the same names.
_INCIDENT_FIELDS = (
    "title",
    "state",
    "severity",
    "onset_at",
    "opened_at",
    "held_until",
    "held_reason",
)


def build_account(incident_id: int) -> Account | None:
    """None: there is no such incident."""
    incident = (
        Incident.objects.filter(pk=incident_id)
        .select_related("silence", "duplicate_of", "follows")
        .first()
    )
    if incident is None:
        return None
    members: list[IncidentFault] = list(filter_members(incident.pk))
    reader = _Reader(incident, members)
    fields = {name: getattr(incident, name) for name in _INCIDENT_FIELDS}
    root = reader.build_root()
    seen = tuple(reader.list_seen())
    reported = tuple(reader.list_reports())
    changes = tuple(reader.list_changes())
    joined = tuple(reader.list_joined())
    judged = tuple(_group_decisions(incident))
    silence = _find_silence(incident)
    people = tuple(_list_persons_acts(incident))
    others = tuple(_list_others(incident))
    fault_count = len(members)
    return Account(
        incident=incident_id,
        faults=fault_count,
        root=root,
        seen=seen,
        reported=reported,
        changes=changes,
        joined=joined,
        judged=judged,
        silence=silence,
        people=people,
        others=others,
        **fields,
    )


class _Reader:
    """The members of one incident, with their places and sources as people say them."""

    def __init__(self, incident: Incident, members: Sequence[IncidentFault]) -> None:
        self._incident, self._members = incident, members
        self._catalog = fault_catalog.load()
        of_gpus = [link.fault for link in members if "/gpu/" in link.fault.resource]
        hosts = {resources.host_of(fault.owner) for fault in of_gpus}
        known_hosts = [host for host in hosts if host is not None]
        self._gpus: Mapping[str, int] = aliases.get_gpu_indexes(known_hosts)
        self._sources = _load_sources(incident)

    def build_root(self) -> RootAccount | None:
        root_id = self._incident.root_fault_id
        link = next((link for link in self._members if link.fault_id == root_id), None)
        if link is None:
            return None
        fault = link.fault
        first = Evidence.objects.filter(fault=fault).order_by("occurred_at", "pk").first()
        excerpt = first.excerpt[:_LONGEST_EXCERPT] if first is not None else ""
        title = self._get_title(fault.fault_type)
        place = self._format_resource(fault.resource)
        sources = self._list_sources([fault])
        reason, rule, by = link.reason, link.rule, link.placed_by
        raised_at, observed_at, clock = fault.raised_at, fault.observed_at, fault.clock
        root = RootAccount(
            fault.fault_type,
            title,
            place,
            because=reason,
            rule=rule,
            by=by,
            at=raised_at,
            observed_at=observed_at,
            clock=clock,
            sources=sources,
            excerpt=excerpt,
        )
        return replace(root, told_by=_list_tellers([fault]))

    def list_seen(self) -> list[SeenFaults]:
        groups: dict[str, list[IncidentFault]] = defaultdict(list)
        for link in self._members:
            groups[link.fault.fault_type].append(link)
        rows = [self._make_seen_faults(fault_type, links) for fault_type, links in groups.items()]
        return sorted(rows, key=lambda seen: (seen.first_at, seen.fault_type))

    def _make_seen_faults(self, fault_type: str, links: Sequence[IncidentFault]) -> SeenFaults:
        faults = [link.fault for link in links]
        faults.sort(key=lambda fault: (fault.raised_at, fault.pk))
        severity, first_at = faults[0].severity, faults[0].raised_at
        fault_count = len(faults)
        title = self._get_title(fault_type)
        active = sum(fault.is_active for fault in faults)
        events = sum(fault.count for fault in faults)
        places = self._list_places(fault.resource for fault in faults)
        last_at = max(fault.last_seen_at for fault in faults)
        observed_at = min(fault.observed_at for fault in faults)
        sources = self._list_sources(faults)
        clocks = tuple(sorted({fault.clock for fault in faults}))
        seen = SeenFaults(
            fault_type,
            title,
            severity,
            faults=fault_count,
            active=active,
            events=events,
            places=places,
            first_at=first_at,
            last_at=last_at,
            observed_at=observed_at,
            sources=sources,
            clocks=clocks,
        )
        told_by = _list_tellers(faults)
        return replace(seen, told_by=told_by, is_doubted=self._is_doubted(faults))

    def _is_doubted(self, faults: Iterable[Fault]) -> bool:
        """Whether a text alone has told of these, and they call for a repair beside what is
        believed: that is what the incident calls for."""
        believed = (link.fault for link in self._members if link.fault.forger in BELIEVED)
        doubted = [fault for fault in faults if fault.forger not in BELIEVED]
        return any(map(_calls_for_repair, believed)) and any(map(_calls_for_repair, doubted))

    def _list_sources(self, faults: Iterable[Fault]) -> tuple[str, ...]:
        """Who told of any of these faults."""
        sources: set[str] = set()
        for fault in faults:
            sources |= self._sources.get(fault.pk, set())
        return tuple(sorted(sources))

    def list_joined(self) -> list[Joined]:
        groups: dict[tuple[str, str, str], list[IncidentFault]] = defaultdict(list)
        for link in self._members:
            if link.fault_id != self._incident.root_fault_id:
                groups[link.rule, link.placed_by, _get_common_reason(link.reason)].append(link)
        rows = []
        for (rule, by, because), links in groups.items():
            fault_types = tuple(sorted({link.fault.fault_type for link in links}))
            times = sorted(link.joined_at for link in links)
            first_at = times[0]
            last_at = times[-1]
            places = self._list_places(link.fault.resource for link in links)
            reason = links[0].reason if len(links) == 1 else because
            joined = Joined(
                rule=rule,
                because=reason,
                by=by,
                faults=len(links),
                fault_types=fault_types,
                places=places,
                first_at=first_at,
                last_at=last_at,
            )
            rows.append(joined)
        return rows

    def list_reports(self) -> list[Reported]:
        reports = self._incident.reports.order_by("reported_at", "pk")
        reported = []
        for row in reports:
            place = self._format_resource(row.resource)
            reported.append(Reported(row.author, row.text, place, row.reported_at))
        return reported

    def list_changes(self) -> list[ChangeBefore]:
        """Of the machines of its members and of the whole site, the last one first."""
        owners = {link.fault.owner for link in self._members}
        rows = site_changes.list_changes_before(owners, self._incident.onset_at)
        changes = []
        for row in rows:
            places = self._list_places(row.machines)
            reference = row.reference or ""
            machines = len(row.machines)
            change = ChangeBefore(row.author, row.summary, reference, places, machines, row.at)
            changes.append(change)
        return changes

    def _get_title(self, fault_type: str) -> str:
        known = self._catalog.get(fault_type)
        return known.title if known else fault_type

    def _format_resource(self, path: str) -> str:
        return wording.format_resource_path(path, self._gpus)

    def _list_places(self, paths: Iterable[str]) -> tuple[str, ...]:
        distinct = list(dict.fromkeys(paths))
        return tuple(self._format_resource(path) for path in distinct[:_PLACES])


def _calls_for_repair(fault: Fault) -> bool:
    return Action(fault.action).at_least(Action.RESET_GPU)


def _list_tellers(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Who told, the best and the last of each fault, in words; those that the fewest could have
    forged first."""
    found = set()
    for fault in faults:
        known = (fault.best_provenance, fault.last_provenance)
        found |= {provenances.from_wire(wire) for wire in known if wire}
    ordered = sorted(
        found, key=lambda provenance: (-provenance.forger.rank, provenances.describe(provenance))
    )
    return tuple(provenances.describe(provenance) for provenance in ordered)


def _get_common_reason(reason: str) -> str:
    """What joins of one kind have in common: `2 s after X on Y: it runs over that switch` without
    its time."""
    _, separator, because = reason.partition(": ")
    return because if separator else reason


def _load_sources(incident: Incident) -> dict[int, set[str]]:
    """Who told of each fault, as its excerpts say."""
    sources: dict[int, set[str]] = defaultdict(set)
    faults = filter_members(incident.pk).order_by().values("fault")
    evidence = Evidence.objects.filter(fault__in=faults).order_by()
    for fault, source in evidence.values_list("fault_id", "source").distinct():
        sources[fault].add(source)
    return sources


def _group_decisions(incident: Incident) -> list[DecisionGroup]:
    """Decisions about the incident and its faults, those of one kind, rule and sense as one."""
    faults = filter_members(incident.pk).order_by().values("fault")
    told_here = Decision.objects.exclude(kind__in=_TOLD_ELSEWHERE).order_by()
    # A union: an OR over two columns reads every decision that there has been.
    about_incident = told_here.filter(incident=incident)
    rows = about_incident.union(told_here.filter(fault__in=faults)).order_by("pk")
    groups: dict[tuple[str, str, str, str], list[Decision]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.rule, row.actor, _get_common_reason(row.text)].append(row)
    return [_make_decision_group(decisions) for decisions in groups.values()]


def _make_decision_group(decisions: Sequence[Decision]) -> DecisionGroup:
    first, last = decisions[0], decisions[-1]
    return DecisionGroup(
        last.kind,
        last.rule,
        last.text,
        last.actor,
        len(decisions),
        first.recorded_at,
        last.recorded_at,
        last.until,
    )


def _find_silence(incident: Incident) -> Quiet | None:
    window = incident.silence
    if window is None:
        return None
    return Quiet(window.kind, window.author, window.reason, window.ends_at)


def _list_persons_acts(incident: Incident) -> list[PersonsAct]:
    entries = incident.timeline.exclude(actor=KINTSUGI).exclude(kind="user_report").order_by("pk")
    return [PersonsAct(entry.actor, entry.kind, entry.text, entry.occurred_at) for entry in entries]


def _list_others(incident: Incident) -> list[Other]:
    duplicates = incident.duplicates.order_by("pk")
    others = [Other(row.pk, "was merged into this one", row.title) for row in duplicates]
    original, earlier = incident.duplicate_of, incident.follows
    if original is not None:
        others.append(Other(original.pk, "has its faults now", original.title))
    if earlier is not None:
        others.append(Other(earlier.pk, "was the same fault before", earlier.title))
    return others
