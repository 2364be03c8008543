"""The board of one transaction: the faults and incidents that a batch touches, read once and written once.

Placement happens here in memory by `incidents.correlate`; the caller holds the placement lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

from django.conf import settings
from django.db.models import Q

from detectors import resources
from detectors.catalog import Catalog, FaultType
from detectors.faults import Action, Role, Severity
from incidents import cabling, correlate, upsert
from incidents.cases import Entry, FaultCase, IncidentCase
from incidents.changes import Change, ChangeKind
from incidents.lifecycle import CLOSED, State
from incidents.models import Fault, Incident, IncidentFault, Node, TimelineEntry
from incidents.notify import outbox
from incidents.topology import Topology
from incidents.wording import resource as spoken

KINTSUGI = "kintsugi"
_CLOSED = [state.value for state in CLOSED]


def window() -> timedelta:
    period: timedelta = settings.KINTSUGI["KINTSUGI_JOIN_WINDOW"]
    return period


def quiet_period() -> timedelta:
    period: timedelta = settings.KINTSUGI["KINTSUGI_QUIET_PERIOD"]
    return period


@dataclass
class Board:
    """Faults by fingerprint, open incidents by key, and the changes made so far, in order."""

    catalog: Catalog
    now: datetime
    nodes: dict[str, Node] = field(default_factory=dict)
    faults: dict[str, FaultCase] = field(default_factory=dict)
    loose: list[FaultCase] = field(default_factory=list)
    incidents: dict[int, IncidentCase] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    topology: Topology = field(default_factory=Topology)
    _by_owner: dict[str, list[IncidentCase]] = field(default_factory=lambda: defaultdict(list))
    _pending: list[tuple[ChangeKind, FaultCase, IncidentCase | None, str]] = field(default_factory=list)

    # Reading -----------------------------------------------------------------------------------------------

    def case(self, row: Fault) -> FaultCase:
        """The row as a case; a type that left the catalogue is taken for one that opens incidents."""
        known = self.catalog.get(row.fault_type)
        return FaultCase(
            row,
            opens_incident=known is None or known.opens_incident,
            is_sympathetic=known is not None and known.is_sympathetic,
            excerpts_before=row.excerpts,
        )

    def read_neighbourhood(self, faults: Iterable[tuple[str, str]]) -> None:
        """Open incidents and loose faults near these (fault type, resource) pairs: on their machines, and for
        what runs over the network also on the machines that are cabled to them."""
        near = set()
        for fault_type, resource in faults:
            near.add(resources.owner(resource))
            if correlate.is_networked(fault_type, resource):
                self.topology = cabling.current()
                near |= self.topology.machines_near(resource)
        self._read_incidents(Q(owner__in=near) | _holding([case.row.pk for case in self.faults.values()]))
        since = self.now - window()
        known = {case.row.pk: case for case in self.faults.values()}
        loose = Fault.objects.filter(owner__in=near, membership__isnull=True).filter(
            Q(is_active=True) | Q(raised_at__gte=since) | Q(observed_at__gte=since)
        )
        self.loose = [known.get(row.pk) or self.case(row) for row in loose.order_by("id")]

    def take(self, rows: Iterable[Fault]) -> list[FaultCase]:
        """These faults, and the open incidents that they belong to."""
        cases = [self.case(row) for row in rows]
        self.faults.update({case.row.fingerprint: case for case in cases})
        self._read_incidents(_holding([case.row.pk for case in cases]))
        return cases

    def read_incidents(self, ids: Iterable[int]) -> list[IncidentCase]:
        """The open ones among these incidents."""
        self._read_incidents(Q(pk__in=list(ids)))
        return list(self.incidents.values())

    def _read_incidents(self, which: Q) -> None:
        """Open incidents with their faults; those of their duplicates count as theirs."""
        ids = set(Incident.objects.filter(which).exclude(state__in=_CLOSED).values_list("pk", flat=True))
        by_pk = {case.row.pk: case for case in self.faults.values() if case.row.pk}
        rows = Incident.objects.filter(pk__in=ids - set(self.incidents), root_fault__isnull=False).order_by("id")
        for row in rows.prefetch_related("members__fault", "duplicates__members__fault"):
            links = [*row.members.all(), *(link for other in row.duplicates.all() for link in other.members.all())]
            members = {link.fault_id: by_pk.get(link.fault_id) or self.case(link.fault) for link in links}
            root = members.get(row.root_fault_id or 0)
            if root is None:
                continue
            incident = IncidentCase(row, key=row.pk, root=root, members=list(members.values()))
            for member in incident.members:
                member.member = incident
            self._put(incident)

    def _machines_near(self, fault: FaultCase) -> set[str]:
        row = fault.row
        if correlate.is_networked(row.fault_type, row.resource):
            return self.topology.machines_near(row.resource)
        return {row.owner}

    def _put(self, incident: IncidentCase) -> None:
        self.incidents[incident.key] = incident
        self._by_owner[incident.root.row.owner].append(incident)

    # Placing -----------------------------------------------------------------------------------------------

    def settle_in(self, fault: FaultCase, *, follows: Incident | None = None) -> None:
        """Gives a new fault its place: an incident of its own, one that is open, or none for now."""
        placed = self._place(fault)
        fault.is_changed = True
        if isinstance(placed, correlate.Joins):
            self.join(fault, self.incidents[placed.incident], placed)
        elif isinstance(placed, correlate.Keeps):
            self.loose.append(fault)
            self.note(ChangeKind.RECORDED, fault, None, placed.reason)
        elif fault.is_held(self.now):
            self.loose.append(fault)
            self.note(
                ChangeKind.RECORDED, fault, None, f"held down until {fault.row.held_until}: it may pass by itself"
            )
        else:
            fault.row.held_until = None
            self.open(fault, placed.reason, follows)

    def _place(self, fault: FaultCase) -> correlate.Placement:
        setting = correlate.Setting(self.topology, window())
        return correlate.place(fault.view(), [incident.view() for incident in self._near(fault)], setting)

    def _near(self, fault: FaultCase) -> list[IncidentCase]:
        near = self._machines_near(fault)
        found = {incident.key: incident for owner in near for incident in self._by_owner.get(owner, ())}
        return list(found.values())

    def open(self, fault: FaultCase, reason: str, follows: Incident | None) -> IncidentCase:
        row = fault.row
        title = self.title_of(fault)
        incident = IncidentCase(
            Incident(
                state=State.OPEN.value,
                has_platform_signal=row.fault_type != correlate.USER_REPORT,
                follows=follows,
                onset_at=row.raised_at,
                last_known_good_at=row.last_known_good_at,
                opened_at=row.observed_at,
                recorded_at=self.now,
                updated_at=self.now,
            ),
            key=-1 - len(self.incidents),
            root=fault,
            members=[fault],
            is_new=True,
        )
        self._root_is(incident, fault)
        incident.joins.append((fault, Role.ROOT, "root", reason))
        incident.entries.append(
            Entry("opened", f"{title} ({row.fault_type}, {row.severity}): {reason}.", row.raised_at)
        )
        if follows is not None:
            when = follows.closed_at.isoformat(timespec="seconds") if follows.closed_at else "still open"
            text = f"The same fault was incident #{follows.pk}, closed {when} as {follows.state.replace('_', ' ')}."
            incident.entries.append(Entry("same_fault_back", text, row.raised_at))
        fault.member = incident
        self._put(incident)
        self.note(ChangeKind.OPENED, fault, incident, reason)
        self._gather(incident)
        return incident

    def join(self, fault: FaultCase, incident: IncidentCase, placed: correlate.Joins) -> None:
        row = incident.row
        fault.member = incident
        fault.row.held_until = None
        incident.members.append(fault)
        incident.joins.append((fault, placed.role, placed.rule, placed.reason))
        if fault.row.fault_type != correlate.USER_REPORT:
            row.has_platform_signal = True
        row.onset_at = min(row.onset_at, fault.row.raised_at)
        incident.is_changed = True
        what = f"{fault.row.fault_type} on {spoken(fault.row.resource)}"
        if placed.role is Role.ROOT:
            self._take_root(incident, fault, placed)
        else:
            incident.raise_to(fault)
            incident.entries.append(Entry("joined", f"{what}, {placed.reason}", fault.row.raised_at, placed.rule))
        incident.is_unsettled = True
        self.note(ChangeKind.JOINED, fault, incident, placed.reason)
        if placed.role is Role.ROOT:
            self._gather(incident)

    def _take_root(self, incident: IncidentCase, fault: FaultCase, placed: correlate.Joins) -> None:
        old = incident.root
        self._by_owner[fault.row.owner].append(incident)
        incident.demoted.append((old, placed.rule, f"was the root until {fault.row.fault_type} came"[:255]))
        self._root_is(incident, fault)
        text = (
            f"The root cause is now {fault.row.fault_type} on {spoken(fault.row.resource)}, {placed.reason};"
            f" {old.row.fault_type} on {spoken(old.row.resource)} is a symptom of it."
        )
        incident.entries.append(Entry("root_changed", text, fault.row.raised_at))

    def _root_is(self, incident: IncidentCase, fault: FaultCase) -> None:
        row, root = incident.row, fault.row
        incident.root = fault
        row.title = self.title_of(fault)[:255]
        row.component, row.fault_type = root.component, root.fault_type
        row.severity = row.severity or str(Severity.INDETERMINATE)
        row.action = row.action or str(Action.NONE)
        row.root_resource, row.owner = root.resource, root.owner
        row.node = self.nodes.get(root.owner)
        if not incident.raise_to(fault) and incident.is_new:
            row.severity, row.action = root.severity, root.action

    def title_of(self, fault: FaultCase) -> str:
        known = self.catalog.get(fault.row.fault_type)
        return f"{spoken(fault.row.resource)}: {known.title if known else fault.row.fault_type}"

    def _gather(self, incident: IncidentCase) -> None:
        """Loose faults that the new root explains join it."""
        setting = correlate.Setting(self.topology, window())
        near = self._machines_near(incident.root)
        for fault in [fault for fault in self.loose if fault.row.owner in near and fault.member is None]:
            placed = correlate.place(fault.view(), [incident.view()], setting)
            if isinstance(placed, correlate.Joins) and placed.role is Role.SYMPTOM:
                self.loose.remove(fault)
                self.join(fault, incident, placed)

    def note(self, kind: ChangeKind, fault: FaultCase, incident: IncidentCase | None, text: str) -> None:
        self._pending.append((kind, fault, incident, text))

    # Writing -----------------------------------------------------------------------------------------------

    def write(self) -> list[TimelineEntry]:
        """Everything, in the order that keys need; the timeline entries, to be told."""
        self._write_faults()
        self._write_incidents()
        entries = self._write_timeline()
        self.changes += [
            Change(incident.row.pk if incident else None, fault.row.pk, kind, text)
            for kind, fault, incident, text in self._pending
        ]
        self._pending.clear()
        return entries

    def _touched(self) -> list[FaultCase]:
        cases = {id(case): case for case in self.faults.values()}
        cases.update({id(case): case for incident in self.incidents.values() for case in incident.members})
        return list(cases.values())

    def _write_faults(self) -> None:
        cases = self._touched()
        new = [case for case in cases if case.is_new]
        for case in new:
            case.row.count, case.row.excerpts = case.added, len(case.excerpts)
        Fault.objects.bulk_create([case.row for case in new])
        grown = [case for case in cases if case.added and not case.is_new]
        upsert.add_repeats(
            [
                upsert.Repeat(case.row.pk, case.added, case.row.last_seen_at, case.row.clears_at, len(case.excerpts))
                for case in grown
            ]
        )
        changed = [case.row for case in cases if case.is_changed and not case.is_new]
        if changed:
            Fault.objects.bulk_update(sorted(changed, key=lambda row: row.fingerprint), _CHANGING)
        upsert.put_excerpts([one for case in cases for one in _excerpts(case)])

    def _write_incidents(self) -> None:
        new = [incident for incident in self.incidents.values() if incident.is_new]
        for incident in new:
            incident.row.root_fault = incident.root.row
        Incident.objects.bulk_create([incident.row for incident in new])
        for incident in self.incidents.values():
            if incident.is_changed and not incident.is_new:
                incident.row.root_fault = incident.root.row
                incident.row.updated_at = self.now
                incident.row.save(update_fields=_INCIDENT_CHANGING)
            for fault, rule, reason in incident.demoted:
                IncidentFault.objects.filter(fault_id=fault.row.pk).update(
                    role=str(Role.SYMPTOM), rule=rule, reason=reason
                )
        IncidentFault.objects.bulk_create([link for case in self.incidents.values() for link in self._links(case)])

    def _links(self, incident: IncidentCase) -> Iterable[IncidentFault]:
        gone = {id(fault): (rule, reason) for fault, rule, reason in incident.demoted}
        for fault, role, rule, reason in incident.joins:
            if id(fault) in gone:
                role, (rule, reason) = Role.SYMPTOM, gone[id(fault)]
            yield IncidentFault(
                incident=incident.row,
                fault=fault.row,
                role=str(role),
                rule=rule,
                reason=reason[:255],
                joined_at=self.now,
            )

    def _write_timeline(self) -> list[TimelineEntry]:
        entries = [
            TimelineEntry(
                incident=incident.row,
                kind=entry.kind,
                actor=KINTSUGI,
                text=entry.text,
                occurred_at=entry.occurred_at,
                recorded_at=self.now,
            )
            for incident in self.incidents.values()
            for entry in _told_once(incident.entries)
        ]
        TimelineEntry.objects.bulk_create(entries)
        outbox.enqueue(entries, now=self.now)
        return entries


_CHANGING = [
    "severity",
    "action",
    "is_active",
    "is_flapping",
    "returns",
    "last_seen_at",
    "cleared_at",
    "cleared_reason",
    "clears_at",
    "held_until",
]
# The state is not among them: it changes by compare-and-swap alone.
_INCIDENT_CHANGING = [
    "title",
    "component",
    "fault_type",
    "severity",
    "action",
    "root_resource",
    "owner",
    "node",
    "root_fault",
    "has_platform_signal",
    "has_user_report",
    "onset_at",
    "updated_at",
]


def new_fault(kind: FaultType, *, fingerprint: str, resource: str, qualifier: str) -> Fault:
    """A row with what the type and the identity say; the caller fills in the event."""
    return Fault(
        fingerprint=fingerprint,
        fault_type=kind.id,
        resource=resource,
        qualifier=qualifier,
        owner=resources.owner(resource),
        clears=str(kind.clears),
        code=kind.code,
        is_active=True,
    )


def _excerpts(case: FaultCase) -> list[upsert.Excerpt]:
    before = 0 if case.is_new else case.excerpts_before
    return [
        upsert.Excerpt(case.row.pk, slot, *case.excerpts[index])
        for index, slot in upsert.slots(before, len(case.excerpts))
    ]


def _told_once(entries: Sequence[Entry]) -> list[Entry]:
    """Entries as given; neighbours of one kind and group become one that says how many."""
    told: list[Entry] = []
    for (kind, group), same in groupby(entries, key=lambda entry: (entry.kind, entry.group)):
        run = list(same)
        if not group or len(run) == 1:
            told.extend(run)
            continue
        shown = "; ".join(entry.text for entry in run[:3])
        more = f"; and {len(run) - 3} more" if len(run) > 3 else ""
        told.append(Entry(kind, f"{len(run)} faults: {shown}{more}", run[0].occurred_at, group))
    return told


def _holding(faults: Sequence[int]) -> Q:
    """Incidents of which these faults are part, or are part of a duplicate."""
    return Q(members__fault__in=faults) | Q(duplicates__members__fault__in=faults)
