"""What people and repairs did to incidents of the site, done again in a play where it finds its
incident.

An incident is found by its root at that time. Where other rules gave that fault no incident of its
own, nothing is done: nobody can say what a person would have done to an incident that never was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from incidents import services
from incidents.models import Decision, Fault, Incident, IncidentFault, TimelineEntry
from incidents.people.edit import BY_PERSON
from incidents.services import Acted, Rearranged, Refused
from incidents.vocabulary.changes import KINTSUGI
from incidents.vocabulary.lifecycle import Trigger

_MERGED, _SPLIT, _REROOTED, _OPENED = "merged", "split", "root_changed", "opened"
# What a play does by itself: faults that clear and return, quiet periods, incidents that rules
# merge.
_BY_RULES = frozenset({Trigger.FAULTS_CLEARED, Trigger.FAULT_RETURNED, Trigger.QUIET_ELAPSED})
_TRIGGERS = frozenset(trigger.value for trigger in Trigger if trigger not in _BY_RULES)
_WORDS = {
    Trigger.ACKNOWLEDGE.value: "acknowledged",
    Trigger.CONFIRM.value: "confirmed",
    Trigger.HANDED_TO_VENDOR.value: "handed to the vendor",
    Trigger.RESOLVE.value: "resolved",
    Trigger.MARK_FALSE_POSITIVE.value: "marked a false positive",
    Trigger.MARK_DUPLICATE.value: "marked a duplicate",
    _REROOTED: "given another root",
    _SPLIT: "split",
}

# A play sweeps at other seconds than the site did, so what is concluded has another time by up to
# two of its sweeps.
_CONCLUDED_LATER = timedelta(minutes=1)
_MOVED = "moved out of incident #"
_NO_PART = "the other fault is no part of it"


@dataclass(frozen=True)
class FaultMark:
    """How a fault of the site is found again among those of a play. `key`: its number at the
    site."""

    key: int
    fingerprint: str
    raised_at: datetime


@dataclass(frozen=True)
class ShadowStep:
    """`kind`: a trigger, or `merged` (into the incident of `into`), `split` or `root_changed` (with
    `chosen`).

    `incident` and `other` are numbers at the site; `root` is the incident's root at `at`.
    """

    at: datetime
    kind: str
    actor: str
    incident: int
    root: FaultMark
    text: str
    into: FaultMark | None = None
    other: int | None = None
    chosen: tuple[FaultMark, ...] = ()

    @property
    def is_by_person(self) -> bool:
        return self.actor != KINTSUGI

    @property
    def words(self) -> str:
        """`#7 was merged into #5 by yuki (2025-01-15 03:04 UTC)`."""
        by = f" by {self.actor}" if self.is_by_person else ""
        return f"{self._change}{by} ({self.at:%Y-%m-%d %H:%M} UTC)"

    @property
    def _change(self) -> str:
        if self.kind == _MERGED:
            return f"#{self.incident} was merged into #{self.other}"
        if self.kind in _WORDS:
            return f"#{self.incident} was {_WORDS[self.kind]}"
        return f"#{self.incident}: {self.kind.replace('_', ' ')}"


class ShadowResult(StrEnum):
    DONE = "done"
    BY_ITSELF = "by_itself"
    NO_PLACE = "no_place"


@dataclass(frozen=True)
class ShadowStepDone:
    step: ShadowStep
    result: ShadowResult
    why: str = ""

    @property
    def text(self) -> str:
        results = {
            ShadowResult.DONE: "done",
            ShadowResult.BY_ITSELF: "the rules do it by themselves",
            ShadowResult.NO_PLACE: f"not done: {self.why}",
        }
        return f"{self.step.words}: {results[self.result]}"

    def as_json(self) -> dict[str, object]:
        step = self.step
        return {
            "incident": step.incident,
            "kind": step.kind,
            "actor": step.actor,
            "at": step.at.isoformat(),
            "result": self.result,
            "why": self.why,
            "text": self.text,
        }


# Reading the site
# ---------------------------------------------------------------------------


def read(since: datetime, until: datetime) -> list[ShadowStep]:
    """In order of time. What cannot be told any more (which faults left, long ago) is left out.
    Reads only."""
    kinds = [*_TRIGGERS, _MERGED, _SPLIT, _REROOTED, _OPENED]
    rows = TimelineEntry.objects.filter(
        kind__in=kinds, occurred_at__gte=since, occurred_at__lte=until
    )
    entries = list(rows.order_by("occurred_at", "pk").select_related("incident"))
    site = _Site(entries)
    steps = (site.build_step(entry) for entry in entries)
    return [step for step in steps if step is not None]


class _Site:
    """What is known of the incidents of these entries: their roots over time, and what people
    moved."""

    def __init__(self, entries: Sequence[TimelineEntry]) -> None:
        self._roots: dict[int, list[tuple[datetime, int]]] = defaultdict(list)
        self._chosen_roots: dict[tuple[int, str, datetime], int] = {}
        self._read_decisions()
        self._last_roots = dict(Incident.objects.values_list("pk", "root_fault_id").iterator())
        self._moved = _read_moved_by_people()
        self._by_people: dict[tuple[str, str, datetime], TimelineEntry] = {}
        for entry in entries:
            if entry.actor != KINTSUGI:
                self._by_people[entry.kind, entry.actor, entry.occurred_at] = entry
        self._marks = _read_marks(self._list_known_faults())

    def _read_decisions(self) -> None:
        kinds = [Decision.Kind.OPENED, Decision.Kind.REROOTED]
        decisions = Decision.objects.filter(
            kind__in=kinds, incident__isnull=False, fault__isnull=False
        )
        columns = ("incident_id", "fault_id", "rule", "actor", "recorded_at")
        rows = decisions.order_by("recorded_at", "pk").values_list(*columns)
        for incident, fault, rule, actor, at in rows.iterator():
            self._roots[incident].append((at, fault))
            if rule == BY_PERSON:
                self._chosen_roots[incident, actor, at] = fault

    def _list_known_faults(self) -> set[int]:
        faults = {fault for fault in self._last_roots.values() if fault is not None}
        for roots in self._roots.values():
            faults.update(fault for _, fault in roots)
        for moved in self._moved.values():
            faults.update(moved)
        return faults

    def build_step(self, entry: TimelineEntry) -> ShadowStep | None:
        """None: a play does it by itself, it is told by another entry, or too little is known of
        it."""
        root = self._find_root(entry.incident_id, entry.occurred_at)
        is_by_person = entry.actor != KINTSUGI
        if root is None or entry.kind in (_MERGED, _OPENED):
            return None
        if not is_by_person and entry.kind not in _TRIGGERS:
            return None
        if entry.kind == Trigger.MARK_DUPLICATE.value:
            return self._build_duplicate_step(entry, root) if is_by_person else None
        if entry.kind == _SPLIT:
            return self._build_split_step(entry, root)
        if entry.kind == _REROOTED:
            return self._build_reroot_step(entry, root)
        return _make_step(entry, root)

    def _build_duplicate_step(self, entry: TimelineEntry, root: FaultMark) -> ShadowStep | None:
        """Merged by a person, which the other incident tells, or marked as one that repeats it."""
        merge = self._by_people.get((_MERGED, entry.actor, entry.occurred_at))
        target = merge.incident_id if merge is not None else entry.incident.duplicate_of_id
        into = self._find_root(target, entry.occurred_at) if target is not None else None
        if into is None:
            return None
        kind = _MERGED if merge is not None else entry.kind
        return replace(_make_step(entry, root), kind=kind, into=into, other=target)

    def _build_split_step(self, entry: TimelineEntry, root: FaultMark) -> ShadowStep | None:
        """Of what it takes out, the root of the new incident comes first."""
        opening = self._by_people.get((_OPENED, entry.actor, entry.occurred_at))
        if opening is None:
            return None
        new_root = self._find_root(opening.incident_id, entry.occurred_at)
        moved = self._moved.get((entry.incident_id, entry.actor), ())
        marks = [self._marks[fault] for fault in moved if fault in self._marks]
        if new_root is None or new_root not in marks:
            return None
        others = [mark for mark in marks if mark != new_root]
        return replace(_make_step(entry, root), chosen=(new_root, *others))

    def _build_reroot_step(self, entry: TimelineEntry, root: FaultMark) -> ShadowStep | None:
        fault = self._chosen_roots.get((entry.incident_id, entry.actor, entry.occurred_at))
        new_root = self._marks.get(fault) if fault is not None else None
        if new_root is None:
            return None
        old_root = self._find_root(entry.incident_id, entry.occurred_at, is_before=True)
        return replace(_make_step(entry, old_root or root), chosen=(new_root,))

    def _find_root(
        self, incident: int, at: datetime, *, is_before: bool = False
    ) -> FaultMark | None:
        """The root at that time, or, where that is not known, the nearest that is."""
        fault = self._last_roots.get(incident)
        roots = self._roots.get(incident, [])
        if roots:
            fault = roots[0][1]
        for since, root in roots:
            if since < at or (since == at and not is_before):
                fault = root
        return self._marks.get(fault) if fault is not None else None


def _make_step(entry: TimelineEntry, root: FaultMark) -> ShadowStep:
    return ShadowStep(
        at=entry.occurred_at,
        kind=entry.kind,
        actor=entry.actor,
        incident=entry.incident_id,
        root=root,
        text=entry.text,
    )


def _read_marks(faults: set[int]) -> dict[int, FaultMark]:
    rows = Fault.objects.values_list("pk", "fingerprint", "raised_at")
    return {row[0]: FaultMark(*row) for row in rows.iterator() if row[0] in faults}


def _read_moved_by_people() -> Mapping[tuple[int, str], list[int]]:
    """The faults that a person split off, by the incident that they left and who did it."""
    moved: dict[tuple[int, str], list[int]] = defaultdict(list)
    links = IncidentFault.objects.filter(rule=BY_PERSON, reason__startswith=_MOVED).order_by("pk")
    for fault, reason, actor in links.values_list("fault_id", "reason", "placed_by"):
        number = reason.removeprefix(_MOVED).split(" ", 1)[0]
        if number.isdecimal():
            moved[int(number), actor].append(fault)
    return moved


# Playing
# ---------------------------------------------------------------------------


def play(step: ShadowStep) -> ShadowStepDone:
    """Does it on the play's database, or says why not."""
    incident = _find_incident(step.root, step.at)
    if incident is None:
        return _build_no_place(step, "its fault is in no incident")
    if step.kind == _REROOTED and _is_root(incident, step.chosen[0]):
        return ShadowStepDone(step, ShadowResult.BY_ITSELF)
    target = _find_incident(step.into, step.at) if step.into is not None else None
    if target == incident:
        return ShadowStepDone(step, ShadowResult.BY_ITSELF)
    if not _is_root(incident, step.root):
        return _build_no_place(step, f'its root is a symptom of "{incident.title}"')
    if step.into is not None and target is None:
        return _build_no_place(step, "the other fault is in no incident")
    if step.kind == _SPLIT:
        return _play_split(step, incident)
    if step.kind == _REROOTED:
        return _play_reroot(step, incident)
    if step.kind == _MERGED and target is not None:
        outcome = services.merge(incident.pk, target.pk, actor=step.actor, now=step.at)
        return _conclude(step, incident, outcome)
    return _play_trigger(step, incident, target)


def _play_split(step: ShadowStep, incident: Incident) -> ShadowStepDone:
    first, *rest = [_find_fault(mark, step.at) for mark in step.chosen]
    if _find_incident_of_fault(first) != incident:
        return ShadowStepDone(step, ShadowResult.BY_ITSELF, _NO_PART)
    faults = [first]
    for fault in rest:
        if fault != first and _find_incident_of_fault(fault) == incident:
            faults.append(fault)
    outcome = services.split(incident.pk, faults, root_id=first, actor=step.actor, now=step.at)
    return _conclude(step, incident, outcome)


def _play_reroot(step: ShadowStep, incident: Incident) -> ShadowStepDone:
    new_root = _find_fault(step.chosen[0], step.at)
    if _find_incident_of_fault(new_root) != incident:
        return _build_no_place(step, _NO_PART)
    outcome = services.reroot(incident.pk, new_root, actor=step.actor, now=step.at)
    return _conclude(step, incident, outcome)


def _play_trigger(
    step: ShadowStep, incident: Incident, duplicate_of: Incident | None
) -> ShadowStepDone:
    changes = {"duplicate_of_id": duplicate_of.pk} if duplicate_of is not None else {}
    outcome = services.act(
        incident.pk,
        Trigger(step.kind),
        actor=step.actor,
        note=step.text,
        now=step.at,
        **changes,
    )
    return _conclude(step, incident, outcome)


def _conclude(
    step: ShadowStep, incident: Incident, outcome: Rearranged | Acted | Refused
) -> ShadowStepDone:
    if not isinstance(outcome, Refused):
        return ShadowStepDone(step, ShadowResult.DONE)
    incident.refresh_from_db(fields=["state"])
    state = incident.state.replace("_", " ")
    return _build_no_place(step, f'"{incident.title}" would be {state} then')


def _build_no_place(step: ShadowStep, why: str) -> ShadowStepDone:
    return ShadowStepDone(step, ShadowResult.NO_PLACE, why)


def get_last_active(rows: Sequence[tuple[datetime, int]], at: datetime) -> int:
    """Of a fingerprint's faults as (raised at, number), in order: the last that was active at that
    time, else the first; 0: none."""
    if not rows:
        return 0
    earlier = [pk for raised_at, pk in rows if raised_at <= at]
    return earlier[-1] if earlier else rows[0][1]


def _find_fault(mark: FaultMark, at: datetime) -> int:
    faults = Fault.objects.filter(fingerprint=mark.fingerprint, observed_at__lte=at)
    rows = list(faults.order_by("raised_at").values_list("raised_at", "pk"))
    return get_last_active(rows, mark.raised_at + _CONCLUDED_LATER)


def _find_incident(mark: FaultMark, at: datetime) -> Incident | None:
    return _find_incident_of_fault(_find_fault(mark, at))


def _find_incident_of_fault(fault: int) -> Incident | None:
    """The incident that the fault is in; of a duplicate, the one that it repeats."""
    links = IncidentFault.objects.select_related(
        "incident__root_fault", "incident__duplicate_of__root_fault"
    )
    link = links.filter(fault=fault).first()
    return (link.incident.duplicate_of or link.incident) if link is not None else None


def _is_root(incident: Incident, mark: FaultMark) -> bool:
    root = incident.root_fault
    return root is not None and root.fingerprint == mark.fingerprint
