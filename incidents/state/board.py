"""The board of one transaction: the faults and incidents that a batch touches, read once and
written once.

Placement happens here in memory by `incidents.correlation.engine`; the caller holds the placement
lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings

from detectors import resources
from detectors.catalog.catalog import Catalog, FaultType
from detectors.faults import Action, Role, Severity
from incidents.correlation import engine
from incidents.correlation.meeting import Field
from incidents.correlation.near_misses import Nearly
from incidents.inventory import aliases
from incidents.models import Decision, Fault, Incident, Node
from incidents.state import board_rows, merge, nearby, site_rules, writing
from incidents.state.cases import Entry, FaultCase, IncidentCase
from incidents.text import wording
from incidents.vocabulary import changes
from incidents.vocabulary.changes import Change, ChangeKind
from incidents.vocabulary.lifecycle import State


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
    replaced: list[FaultCase] = field(default_factory=list)
    """Faults that ended in this batch, and came again as others: their own end is written with the
    rest."""
    loose: list[FaultCase] = field(default_factory=list)
    incidents: dict[int, IncidentCase] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    """What was judged and why, of rows that may be new: written after them."""
    hidden: frozenset[int] = frozenset()
    """Incidents that this board leaves out: what parts from one must not be placed there again."""
    met: Field = field(default_factory=lambda: Field(site_rules.joining()))
    """Where the faults of this board meet by the rules."""
    _gpus: dict[str, int] = field(default_factory=dict)
    _looked_up: set[str] = field(default_factory=set)
    _opened: int = 0
    _pending: list[tuple[ChangeKind, FaultCase, IncidentCase | None, str]] = field(
        default_factory=list
    )

    # Reading
    # ---------------------------------------------------------------------------

    def case(self, row: Fault) -> FaultCase:
        """The row as a case; a type that left the catalogue is taken for one that opens
        incidents."""
        known = self.catalog.get(row.fault_type)
        return FaultCase(
            row,
            opens_incident=known is None or known.opens_incident,
            is_sympathetic=known is not None and known.is_sympathetic,
            excerpts_before=row.excerpts,
        )

    def read_neighbourhood(self, faults: Iterable[tuple[str, str]]) -> None:
        """Open incidents and loose faults where rules may find the others of these (fault type,
        resource) pairs."""
        near = nearby.read_nearby(faults, self.catalog, now=self.now, window=window())
        self.met.surround(near.around)
        known = {case.row.pk: case for case in self.faults.values()}
        self.read_incidents(board_rows.open_near(near) | board_rows.holding(list(known)))
        loose = board_rows.loose_at(near.owners, since=self.now - window())
        # What joined an incident of this board a moment ago is loose in its table still.
        known.update(
            {case.row.pk: case for incident in self.incidents.values() for case in incident.members}
        )
        listed = {case.row.pk: case for case in self.loose}
        found = [known.get(row.pk) or listed.get(row.pk) or self.case(row) for row in loose]
        self.loose += [case for case in found if case.row.pk not in listed and case.member is None]
        for case in self.loose:
            self.met.assign(case, None)

    def take(self, rows: Iterable[Fault]) -> list[FaultCase]:
        """These faults, and the open incidents that they belong to."""
        cases = [self.case(row) for row in rows]
        self.faults.update({case.row.fingerprint: case for case in cases})
        self.read_incidents(board_rows.holding([case.row.pk for case in cases]))
        return cases

    def read_incidents(self, ids: Iterable[int]) -> list[IncidentCase]:
        """The open ones among these, with their faults; those of their duplicates count as
        theirs."""
        by_pk = {case.row.pk: case for case in self.faults.values() if case.row.pk}
        wanted = set(ids) - set(self.incidents) - self.hidden
        rows = board_rows.incidents(wanted)
        links_of = board_rows.members_of([row.pk for row in rows])
        for row in rows:
            links = links_of[row.pk]
            members = {link.fault: by_pk.get(link.fault) or self.case(link.row()) for link in links}
            root = members.get(row.root_fault_id or 0)
            if root is None:
                continue
            is_fixed = any(
                link.fault == row.root_fault_id and link.placed_by != changes.KINTSUGI
                for link in links
            )
            incident = IncidentCase(
                row, key=row.pk, root=root, members=list(members.values()), is_fixed=is_fixed
            )
            for member in incident.members:
                member.member = incident
            self._put(incident)
        return list(self.incidents.values())

    def format_resource(self, path: str) -> str:
        """A resource as people say it, its GPU by index; one query for all nodes of the batch."""
        if "/gpu/" in path and resources.owner(path) not in self._looked_up:
            owners = {
                resources.owner(path),
                *self.nodes,
                *(case.row.owner for case in self.faults.values()),
            }
            owners -= self._looked_up
            self._looked_up |= owners
            self._gpus.update(aliases.gpu_indexes({owner.partition("/")[2] for owner in owners}))
        return wording.resource(path, self._gpus)

    def named(self, row: Fault) -> str:
        """`GPU has fallen off the bus (gpu.xid.79) on gn017 GPU 3`."""
        known = self.catalog.get(row.fault_type)
        what = f"{known.title} ({row.fault_type})" if known else row.fault_type
        return f"{what} on {self.format_resource(row.resource)}"

    def _put(self, incident: IncidentCase) -> None:
        self.incidents[incident.key] = incident
        self.met.enter(incident.key, incident, root=incident.root, members=incident.members)

    # Placing
    # ---------------------------------------------------------------------------

    def settle_in(self, fault: FaultCase, *, follows: Incident | None = None) -> None:
        """Gives a new fault its place: an incident of its own, one that is open, or none for
        now."""
        self.met.leave(fault)
        setting = self.setting()
        placed = engine.judge(fault.view(), self.met, setting)
        fault.is_changed = True
        if isinstance(placed, engine.Keeps):
            self.keep(fault, placed.reason)
        elif (
            fault.row.held_until is not None and fault.is_held(self.now) and self._waits_for(placed)
        ):
            self.keep(
                fault,
                f"held down until {wording.clock(fault.row.held_until)}: it may pass by itself",
            )
        elif isinstance(placed, engine.Joins):
            self.join(fault, self.incidents[placed.incident], placed)
        elif isinstance(placed, engine.Merges):
            merge.merge(self, fault, placed)
        else:
            fault.row.held_until = None
            incident = self.open(fault, placed.reason, follows)
            self._tell_nearly(fault, incident, placed.nearly)

    def keep(self, fault: FaultCase, reason: str) -> None:
        """Without an incident for now; one that explains it takes it later."""
        self.loose.append(fault)
        self.met.assign(fault, None)
        self.note(ChangeKind.RECORDED, fault, None, reason)
        self.decide(Decision.Kind.RECORDED, fault, None, reason)

    def _tell_nearly(
        self, fault: FaultCase, incident: IncidentCase, nearly: Sequence[Nearly]
    ) -> None:
        for one in nearly:
            other = self.incidents[one.incident].row
            to = f"#{other.pk}" if other.pk else "another incident of this moment"
            self.decide(
                Decision.Kind.NEARLY,
                fault,
                incident,
                f"not joined to {to}, {one.reason}",
                rule=one.rule,
            )

    def _waits_for(self, placed: engine.Placement) -> bool:
        """A hold-down is waited out before anything is opened, and before an incident that seemed
        over is joined."""
        if not isinstance(placed, engine.Joins | engine.Merges):
            return True
        return self.incidents[placed.incident].is_watched

    def setting(self) -> engine.Setting:
        return engine.Setting(self.met.around, window(), self.format_resource, self.met.rules)

    def open(self, fault: FaultCase, reason: str, follows: Incident | None) -> IncidentCase:
        row = fault.row
        title = self.title_of(fault)
        self._opened += 1
        incident = IncidentCase(
            Incident(
                state=State.OPEN.value,
                has_platform_signal=not fault.is_of_people,
                follows=follows,
                onset_at=row.raised_at,
                last_known_good_at=row.last_known_good_at,
                opened_at=row.observed_at,
                recorded_at=self.now,
                updated_at=self.now,
            ),
            key=-self._opened,
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
            when = (
                f"closed {wording.moment(follows.closed_at)}" if follows.closed_at else "still open"
            )
            text = (
                f"The same fault was incident #{follows.pk}, {when} as"
                f" {follows.state.replace('_', ' ')}."
            )
            incident.entries.append(Entry("same_fault_back", text, row.raised_at))
        fault.member = incident
        self._put(incident)
        self.note(ChangeKind.OPENED, fault, incident, reason)
        self.decide(Decision.Kind.OPENED, fault, incident, reason)
        self._draw_in(fault, incident)
        return incident

    def join(self, fault: FaultCase, incident: IncidentCase, placed: engine.Joins) -> None:
        self._add(fault, incident, placed)
        self._draw_in(fault, incident)

    def _add(self, fault: FaultCase, incident: IncidentCase, placed: engine.Joins) -> None:
        row = incident.row
        fault.member = incident
        fault.row.held_until, fault.has_come = None, True
        incident.add(fault)
        incident.joins.append((fault, placed.role, placed.rule, placed.reason))
        if not fault.is_of_people:
            row.has_platform_signal = True
        if fault.row.raised_at < row.onset_at:
            row.onset_at, row.last_known_good_at = fault.row.raised_at, fault.row.last_known_good_at
        incident.is_changed = incident.is_unsettled = True
        self.met.assign(fault, incident.key)
        if placed.role is Role.ROOT:
            self.take_root(incident, fault, placed)
        else:
            incident.raise_to(fault)
            kind = "noted" if fault.view().is_detail else "joined"
            text = f"{self.named(fault.row)}, {placed.reason}"
            group = placed.rule if kind == "joined" else kind
            incident.entries.append(Entry(kind, text, fault.row.raised_at, group))
        self.note(ChangeKind.JOINED, fault, incident, placed.reason)
        self.decide(Decision.Kind.JOINED, fault, incident, placed.reason, rule=placed.rule)

    def take_root(self, incident: IncidentCase, fault: FaultCase, placed: engine.Joins) -> None:
        """The fault, a member already, becomes the root; what the incident calls for is weighed
        anew."""
        old = incident.root
        if old is fault:
            return
        incident.demote(old, placed.rule, f"was the root until {fault.row.fault_type} came")
        self._root_is(incident, fault)
        incident.weigh()
        self.met.reroot(incident.key, fault)
        text = (
            f"The root cause is now {self.named(fault.row)}, {placed.reason}; {self.named(old.row)}"
            " is a symptom of it."
        )
        incident.entries.append(Entry("root_changed", text, fault.row.raised_at))
        self.decide(Decision.Kind.REROOTED, fault, incident, text, rule=placed.rule)

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
        what = known.title if known else fault.row.fault_type
        return f"{self.format_resource(fault.row.resource)}: {what}"

    def _draw_in(self, fault: FaultCase, incident: IncidentCase) -> None:
        """Loose faults that belong to the incident, now that this one does, join it; and what
        follows from those."""
        drawing = [fault]
        while drawing:
            one = drawing.pop(0)
            view, setting = incident.view(), self.setting()
            found = engine.effects(
                one.view(), self.met, setting, incident=view, is_root=one is incident.root
            )
            for loose, placed in [(seat.seen, joins) for seat, joins in found]:
                if isinstance(loose, FaultCase) and loose.member is None and loose in self.loose:
                    self.loose.remove(loose)
                    self._add(loose, incident, placed)
                    drawing.append(loose)

    def ended(self, fault: FaultCase, at: datetime, reason: str) -> None:
        """Clears a fault. Its root's end is told at once, its symptoms' ends when all have
        ended."""
        fault.clear(at, reason)
        incident = fault.member
        if incident is not None:
            incident.is_unsettled = True
            if fault is incident.root:
                text = f"{self.named(fault.row)} has cleared: {reason}."
                incident.entries.append(Entry("cleared", text, at))
        self.note(ChangeKind.CLEARED, fault, incident, reason)

    def note(
        self, kind: ChangeKind, fault: FaultCase, incident: IncidentCase | None, text: str
    ) -> None:
        self._pending.append((kind, fault, incident, text))

    def decide(
        self,
        kind: Decision.Kind,
        fault: FaultCase | None,
        incident: IncidentCase | None,
        text: str,
        *,
        rule: str = "",
    ) -> None:
        """Says why, in the transaction of what it explains."""
        self.decisions.append(
            Decision(
                fault=fault.row if fault else None,
                incident=incident.row if incident else None,
                kind=kind,
                rule=rule,
                text=text[:500],
                recorded_at=self.now,
            )
        )

    # Writing
    # ---------------------------------------------------------------------------

    def write(self) -> None:
        """Everything that changed, and what came of it into `changes`."""
        cases = {id(case): case for case in (*self.replaced, *self.faults.values())}
        cases.update(
            {id(case): case for incident in self.incidents.values() for case in incident.members}
        )
        incidents = list(self.incidents.values())
        writing.create(list(cases.values()), incidents)
        merge.close(incidents, now=self.now)
        writing.update(incidents, now=self.now)
        self.changes += [
            Change(incident.survivor.row.pk if incident else None, fault.row.pk, kind, text)
            for kind, fault, incident, text in self._pending
        ]
        self._pending.clear()
        if self.decisions:
            Decision.objects.bulk_create(self.decisions)
            self.decisions.clear()


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
