"""Faults and incidents as one batch changes them: rows beside what is to be written of them. No
queries.

Ingest, reports and the sweep change cases; `incidents.state.batch` reads and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detectors import provenance as provenances
from detectors.faults import Action, ClearRule, FaultEvent, Role, Severity
from detectors.provenance import Forger, Provenance
from incidents.faults import flapping
from incidents.faults.clocks import Whose
from incidents.faults.dedup import APART, Standing
from incidents.faults.fault_views import USER_REPORT, FaultView, IncidentView, view_stored
from incidents.faults.flapping import USUAL, FlapLimits
from incidents.models import Fault, Incident
from incidents.vocabulary.lifecycle import State

LONGEST_EXCERPT = 2000


@dataclass(eq=False)
class FaultCase:
    """A fault and what this batch adds to it. `member` is the incident it belongs to, None while it
    has none."""

    row: Fault
    opens_incident: bool
    is_sympathetic: bool
    is_new: bool = False
    is_changed: bool = False
    added: int = 0
    excerpts: list[tuple[str, datetime, str]] = field(default_factory=list)
    excerpts_before: int = 0
    last_provenance: Provenance | None = None
    """Of the last event that this batch brought."""
    member: IncidentCase | None = None
    has_come: bool = False
    """Whether this batch brought it: raised, back, or past its hold-down."""
    is_seen_anew: bool = False
    """Whether this batch saw it again, well after it was last seen."""
    key: int = 0
    """Its own in the batch: that of its row, less than 0 while it has none."""
    _seen: tuple[tuple[object, ...], FaultView] | None = None

    def __post_init__(self) -> None:
        self.key = self.row.pk or -id(self)

    @property
    def fault_type(self) -> str:
        return self.row.fault_type

    @property
    def owner(self) -> str:
        return self.row.owner

    def view(self) -> FaultView:
        """The same value until the fault changes: many rules ask for it."""
        row = self.row
        stamp = (
            *(row.severity, row.action, row.is_active, row.component, row.raised_at),
            row.forger,
        )
        if self._seen is None or self._seen[0] != stamp:
            view = view_stored(
                row, opens_incident=self.opens_incident, is_sympathetic=self.is_sympathetic
            )
            self._seen = stamp, view
        return self._seen[1]

    @property
    def is_believed(self) -> bool:
        """Whether no user of its machine can have written what tells of it."""
        return bool(self.row.forger) and Forger(self.row.forger).is_believed

    @property
    def is_believed_repair(self) -> bool:
        """Whether it stands, is believed, and calls for a repair."""
        calls = Action(self.row.action).at_least(Action.RESET_GPU)
        return self.row.is_active and self.is_believed and calls

    @property
    def is_of_people(self) -> bool:
        """Whether people alone have told of it, by whatever type."""
        return self.row.fault_type == USER_REPORT or self.row.clock == str(Whose.PERSON)

    def is_held(self, now: datetime) -> bool:
        """Whether the type's hold-down still runs."""
        return self.row.held_until is not None and self.row.held_until > now

    def get_standing(self) -> Standing:
        row = self.row
        return Standing(
            is_active=row.is_active,
            severity=Severity(row.severity),
            action=Action(row.action),
            clears=ClearRule(row.clears),
            raised_at=row.raised_at,
            last_seen_at=row.last_seen_at,
            cleared_at=row.cleared_at,
            is_flapping=row.is_flapping,
            changes_at=tuple(flapping.read(row.changes_at)),
            has_ended=row.is_flapping and row.clears_at is not None,
        )

    def count(self, event: FaultEvent, quiet: timedelta | None) -> bool:
        """Adds one event to an active fault. `quiet` is the period of a type that clears after it.
        Whether the fault is better known by this event than before."""
        self._note_platform_signal()
        if event.provenance.forger.is_believed and not self.is_believed:
            # What a text alone has called for counts no more.
            self.row.severity, self.row.action = str(event.severity), str(event.action)
        is_better_known = self.take_provenance(event.provenance)
        self.added += event.count
        row = self.row
        self.is_seen_anew = self.is_seen_anew or event.occurred_at - row.last_seen_at >= APART
        row.last_seen_at = max(row.last_seen_at, event.occurred_at)
        if row.is_flapping:
            row.clears_at, self.is_changed = None, True
        elif quiet is not None:
            until = event.observed_at + quiet
            row.clears_at = max(row.clears_at, until) if row.clears_at else until
        if event.excerpt:
            self.excerpts.append(
                (event.source[:64], event.occurred_at, event.excerpt[:LONGEST_EXCERPT])
            )
        return is_better_known

    def take_provenance(self, told_by: Provenance) -> bool:
        """Who tells of it now; the best of those who have told since it was raised is kept. Whether
        it is better known by this than before."""
        row = self.row
        row.last_provenance = provenances.to_wire(told_by)
        self.last_provenance = told_by
        known = Forger(row.forger) if row.forger else None
        if known is not None and told_by.forger.rank <= known.rank:
            return False
        row.forger, row.best_provenance = str(told_by.forger), row.last_provenance
        self.is_changed = True
        if self.member is not None and told_by.forger.is_believed:
            self.member.raise_to(self)
        return known is not None

    def _note_platform_signal(self) -> None:
        """What people told first is from now on the platform's too, which will see its end."""
        if self.row.clock == str(Whose.PERSON):
            self.row.clock, self.is_changed = str(Whose.OURS), True
        incident = self.member
        if incident is not None and not incident.row.has_platform_signal:
            incident.row.has_platform_signal = incident.is_changed = True

    def clear(self, at: datetime, reason: str) -> None:
        """A device that dates its end before we dated its beginning has another clock: it lasted no
        time at least."""
        row = self.row
        at = max(at, row.raised_at)
        if not row.is_flapping:
            self.changed(at)
        row.is_active, row.cleared_at, row.cleared_reason = False, at, reason[:255]
        row.clears_at = row.held_until = None
        row.is_flapping, self.is_changed = False, True

    def come_back(self, at: datetime, limits: FlapLimits, *, is_flapping: bool) -> None:
        row = self.row
        row.is_active, row.cleared_at, row.cleared_reason = True, None, ""
        row.returns += 1
        row.forger, row.best_provenance = "", {}
        row.is_flapping = is_flapping
        self.changed(at, limits)
        self.is_changed = self.has_come = True

    def changed(self, at: datetime, limits: FlapLimits = USUAL) -> None:
        """One change of state more, and how much the fault flaps by it."""
        changes = flapping.add_change(flapping.read(self.row.changes_at), at)
        self.row.changes_at = flapping.format_changes(changes)
        self.row.flap_percent = flapping.compute_percent(changes, changes[-1], limits)
        self.is_changed = True


@dataclass
class TimelineNote:
    """A timeline entry to be. Entries of one kind and `group` become one line, so that fifty joins
    are told once."""

    kind: str
    text: str
    occurred_at: datetime
    group: str = ""


@dataclass(frozen=True)
class Absorbed:
    """An incident that became part of another one, and the rule and sentence that say why."""

    case: IncidentCase
    rule: str
    reason: str


@dataclass(eq=False)
class IncidentCase:
    """An open incident and what this batch makes of it. `key` is its place on the batch.

    `is_fixed`: a person chose the root. `into`: the incident that it became part of.
    """

    row: Incident
    key: int
    root: FaultCase
    members: list[FaultCase] = field(default_factory=list)
    joins: list[tuple[FaultCase, Role, str, str]] = field(default_factory=list)
    role_changes: list[tuple[FaultCase, Role, str, str]] = field(default_factory=list)
    entries: list[TimelineNote] = field(default_factory=list)
    absorbed: list[Absorbed] = field(default_factory=list)
    is_new: bool = False
    is_changed: bool = False
    is_unsettled: bool = False
    is_fixed: bool = False
    into: IncidentCase | None = None
    machines: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machines.update(member.row.owner for member in self.members)

    def view(self) -> IncidentView:
        row = self.row
        is_silent = row.silence_id is not None and row.announced_at is None
        return IncidentView(
            key=self.key,
            state=State(row.state),
            root=self.root.view(),
            members=self.members,
            has_platform_signal=row.has_platform_signal,
            is_fixed=self.is_fixed or row.is_root_by_person,
            is_told=not is_silent,
            is_written=not self.is_new,
            opened_at=row.opened_at,
            machines=self.machines,
        )

    @property
    def is_watched(self) -> bool:
        return self.row.state == State.MONITORING.value

    @property
    def survivor(self) -> IncidentCase:
        """The incident itself, or the one that it became part of."""
        return self if self.into is None else self.into.survivor

    def add(self, fault: FaultCase) -> None:
        self.members.append(fault)
        self.machines.add(fault.row.owner)

    def demote(self, root: FaultCase, rule: str, reason: str) -> None:
        self._update_role(root, Role.SYMPTOM, rule, reason)

    def promote(self, symptom: FaultCase, rule: str, reason: str) -> None:
        self._update_role(symptom, Role.ROOT, rule, reason)

    def _update_role(self, fault: FaultCase, role: Role, rule: str, reason: str) -> None:
        self.role_changes.append((fault, role, rule, reason[:255]))
        self.is_changed = True

    def raise_to(self, fault: FaultCase) -> bool:
        """Takes the fault's severity and action where they are higher; True when they were.

        What a symptom on another machine calls for is not what the root calls for.
        """
        if fault.is_sympathetic or not fault.opens_incident:
            return False
        before = (self.row.severity, self.row.action)
        self.row.severity = str(
            max(Severity(self.row.severity), Severity(fault.row.severity), key=lambda s: s.rank)
        )
        if fault.row.owner == self.root.row.owner:
            self._weigh_repair(fault)
        is_raised = before != (self.row.severity, self.row.action)
        self.is_changed = self.is_changed or is_raised
        return is_raised

    def _weigh_repair(self, fault: FaultCase) -> None:
        """What the incident calls for with this fault. While one stands that is believed and calls
        for a repair, what texts alone have told lifts nothing: a run asks the node for it."""
        believed = [
            member
            for member in (*self.members, fault)
            if member.is_believed_repair and self._is_weighed(member)
        ]
        if not believed:
            actions = (Action(self.row.action), Action(fault.row.action))
            self.row.action = str(max(actions, key=lambda action: action.rank))
            return
        strongest = max(believed, key=lambda member: Action(member.row.action).rank)
        self.row.action = strongest.row.action
        if not self.root.is_believed:
            self.row.component = strongest.row.component

    def _is_weighed(self, fault: FaultCase) -> bool:
        is_on_machine = fault.row.owner == self.root.row.owner
        return is_on_machine and fault.opens_incident and not fault.is_sympathetic

    def weigh(self) -> None:
        """Severity and action anew, after another root was found: no repair of a node for what a
        switch did."""
        self.row.severity, self.row.action = self.root.row.severity, self.root.row.action
        for member in self.members:
            self.raise_to(member)
        self.is_changed = True


def blocks(fault: FaultCase, root_id: int | None) -> bool:
    """Whether an incident waits for this fault to clear: echoes and reports follow the fault they
    are about."""
    if fault.row.pk == root_id:
        return True
    return fault.opens_incident and not fault.is_sympathetic and not fault.is_of_people
