"""What people and repairs did to incidents of the site, done again in a play where it finds its
incident.

An incident is found by its root at that time. Where other rules gave that fault no incident of its
own, nothing is done: nobody can say what a person would have done to an incident that never was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
        what = f"merged into #{self.other}" if self.kind == _MERGED else _WORDS.get(self.kind)
        did = (
            f"#{self.incident} was {what}"
            if what
            else f"#{self.incident}: {self.kind.replace('_', ' ')}"
        )
        by = f" by {self.actor}" if self.is_by_person else ""
        return f"{did}{by} ({self.at:%Y-%m-%d %H:%M} UTC)"


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
        told = {
            ShadowResult.DONE: "done",
            ShadowResult.BY_ITSELF: "the rules do it by themselves",
            ShadowResult.NO_PLACE: f"not done: {self.why}",
        }
        return f"{self.step.words}: {told[self.result]}"

    def as_json(self) -> dict[str, object]:
        return {
            "incident": self.step.incident,
            "kind": self.step.kind,
            "actor": self.step.actor,
            "at": self.step.at.isoformat(),
            "result": self.result.value,
            "why": self.why,
            "text": self.text,
        }


# Reading the site
# ---------------------------------------------------------------------------


def read(since: datetime, until: datetime) -> list[ShadowStep]:
    """In order of time. What cannot be told any more (which faults left, long ago) is left out.
    Reads only."""
    kinds = [*_TRIGGERS, _MERGED, _SPLIT, _REROOTED, _OPENED]
    entries = list(
        TimelineEntry.objects.filter(kind__in=kinds, occurred_at__gte=since, occurred_at__lte=until)
        .order_by("occurred_at", "pk")
        .select_related("incident")
    )
    site = _Site(entries)
    return [step for entry in entries if (step := site.step(entry)) is not None]


class _Site:
    """What is known of the incidents of these entries: their roots over time, and what people
    moved."""

    def __init__(self, entries: Sequence[TimelineEntry]) -> None:
        self._roots: dict[int, list[tuple[datetime, int]]] = defaultdict(list)
        self._chosen: dict[tuple[int, str, datetime], int] = {}
        told = Decision.objects.filter(kind__in=[Decision.Kind.OPENED, Decision.Kind.REROOTED])
        told = told.filter(incident__isnull=False, fault__isnull=False).order_by(
            "recorded_at", "pk"
        )
        columns = ("incident_id", "fault_id", "rule", "actor", "recorded_at")
        for incident, fault, rule, actor, at in told.values_list(*columns).iterator():
            self._roots[incident].append((at, fault))
            if rule == BY_PERSON:
                self._chosen[incident, actor, at] = fault
        self._last = dict(Incident.objects.values_list("pk", "root_fault_id").iterator())
        self._people = {
            (entry.kind, entry.actor, entry.occurred_at): entry
            for entry in entries
            if entry.actor != KINTSUGI
        }
        self._moved = _moved_by_people()
        faults = {fault for roots in self._roots.values() for _, fault in roots}
        faults |= {fault for fault in self._last.values() if fault is not None}
        faults |= {fault for moved in self._moved.values() for fault in moved}
        rows = Fault.objects.values_list("pk", "fingerprint", "raised_at")
        self._marks = {row[0]: FaultMark(*row) for row in rows.iterator() if row[0] in faults}

    def step(self, entry: TimelineEntry) -> ShadowStep | None:
        """None: a play does it by itself, it is told by another entry, or too little is known of
        it."""
        root = self._root_of(entry.incident_id, entry.occurred_at)
        is_by_person = entry.actor != KINTSUGI
        if (
            root is None
            or entry.kind in (_MERGED, _OPENED)
            or (not is_by_person and entry.kind not in _TRIGGERS)
        ):
            return None
        if entry.kind == Trigger.MARK_DUPLICATE.value:
            return self._duplicate(entry, root) if is_by_person else None
        chosen: tuple[FaultMark, ...] = ()
        if entry.kind == _SPLIT:
            chosen = self._left(entry)
        elif entry.kind == _REROOTED:
            fault = self._chosen.get((entry.incident_id, entry.actor, entry.occurred_at))
            chosen = self._marked([fault])
            root = self._root_of(entry.incident_id, entry.occurred_at, before=True) or root
        if entry.kind in (_SPLIT, _REROOTED) and not chosen:
            return None
        return ShadowStep(
            entry.occurred_at,
            entry.kind,
            entry.actor,
            entry.incident_id,
            root,
            entry.text,
            chosen=chosen,
        )

    def _duplicate(self, entry: TimelineEntry, root: FaultMark) -> ShadowStep | None:
        """Merged by a person, which the other incident tells, or marked as one that repeats it."""
        merged = self._people.get((_MERGED, entry.actor, entry.occurred_at))
        other = merged.incident_id if merged is not None else entry.incident.duplicate_of_id
        into = self._root_of(other, entry.occurred_at) if other is not None else None
        if into is None:
            return None
        kind = _MERGED if merged is not None else entry.kind
        return ShadowStep(
            entry.occurred_at,
            kind,
            entry.actor,
            entry.incident_id,
            root,
            entry.text,
            into=into,
            other=other,
        )

    def _left(self, entry: TimelineEntry) -> tuple[FaultMark, ...]:
        """The root of the new incident first."""
        fresh = self._people.get((_OPENED, entry.actor, entry.occurred_at))
        left = self._marked(self._moved.get((entry.incident_id, entry.actor), ()))
        root = self._root_of(fresh.incident_id, entry.occurred_at) if fresh is not None else None
        return (
            (root, *(mark for mark in left if mark != root))
            if root in left and root is not None
            else ()
        )

    def _root_of(self, incident: int, at: datetime, *, before: bool = False) -> FaultMark | None:
        known = self._roots.get(incident, [])
        then = [fault for since, fault in known if since < at or (since == at and not before)]
        fault = then[-1] if then else known[0][1] if known else self._last.get(incident)
        return self._marks.get(fault) if fault is not None else None

    def _marked(self, faults: Iterable[int | None]) -> tuple[FaultMark, ...]:
        return tuple(self._marks[fault] for fault in faults if fault in self._marks)


def _moved_by_people() -> Mapping[tuple[int, str], list[int]]:
    """The faults that a person split off, by the incident that they left and who did it."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    links = IncidentFault.objects.filter(
        rule=BY_PERSON, reason__startswith="moved out of incident #"
    ).order_by("pk")
    for fault, reason, actor in links.values_list("fault_id", "reason", "placed_by"):
        number = reason.removeprefix("moved out of incident #").split(" ", 1)[0]
        if number.isdecimal():
            found[int(number), actor].append(fault)
    return found


# Playing
# ---------------------------------------------------------------------------


def play(step: ShadowStep) -> ShadowStepDone:
    """Does it on the play's database, or says why not."""
    incident = _holder(step.root, step.at)
    if incident is None:
        return ShadowStepDone(step, ShadowResult.NO_PLACE, "its fault is in no incident")
    if step.kind == _REROOTED and _is_root(incident, step.chosen[0]):
        return ShadowStepDone(step, ShadowResult.BY_ITSELF)
    other = _holder(step.into, step.at) if step.into is not None else None
    if step.into is not None and other == incident:
        return ShadowStepDone(step, ShadowResult.BY_ITSELF)
    if not _is_root(incident, step.root):
        return ShadowStepDone(
            step, ShadowResult.NO_PLACE, f"its root is a symptom of {_titled(incident)}"
        )
    if step.into is not None and other is None:
        return ShadowStepDone(step, ShadowResult.NO_PLACE, "the other fault is in no incident")
    return _rearranged(step, incident, other)


def _rearranged(step: ShadowStep, incident: Incident, other: Incident | None) -> ShadowStepDone:
    actor, now = step.actor, step.at
    outcome: Rearranged | Acted | Refused
    if step.kind == _MERGED and other is not None:
        outcome = services.merge(incident.pk, other.pk, actor=actor, now=now)
    elif step.kind in (_SPLIT, _REROOTED):
        first, *rest = [_standing(mark, now) for mark in step.chosen]
        if _holder_of(first) != incident:
            result = ShadowResult.BY_ITSELF if step.kind == _SPLIT else ShadowResult.NO_PLACE
            return ShadowStepDone(step, result, "the other fault is no part of it")
        if step.kind == _SPLIT:
            here = [
                first,
                *(fault for fault in rest if fault != first and _holder_of(fault) == incident),
            ]
            outcome = services.split(incident.pk, here, root_id=first, actor=actor, now=now)
        else:
            outcome = services.reroot(incident.pk, first, actor=actor, now=now)
    else:
        changes = {"duplicate_of_id": other.pk} if other is not None else {}
        trigger = Trigger(step.kind)
        outcome = services.act(
            incident.pk, trigger, actor=actor, note=step.text, now=now, **changes
        )
    if not isinstance(outcome, Refused):
        return ShadowStepDone(step, ShadowResult.DONE)
    incident.refresh_from_db(fields=["state"])
    return ShadowStepDone(
        step,
        ShadowResult.NO_PLACE,
        f"{_titled(incident)} would be {incident.state.replace('_', ' ')} then",
    )


def get_last_active(rows: Sequence[tuple[datetime, int]], at: datetime) -> int:
    """Of a fingerprint's faults as (raised at, number), in order: the one that stood last at that
    time; 0: none."""
    earlier = [pk for raised_at, pk in rows if raised_at <= at]
    return earlier[-1] if earlier else rows[0][1] if rows else 0


def _standing(mark: FaultMark, at: datetime) -> int:
    rows = Fault.objects.filter(fingerprint=mark.fingerprint, observed_at__lte=at).order_by(
        "raised_at"
    )
    return get_last_active(
        list(rows.values_list("raised_at", "pk")), mark.raised_at + _CONCLUDED_LATER
    )


def _holder(mark: FaultMark, at: datetime) -> Incident | None:
    return _holder_of(_standing(mark, at))


def _holder_of(fault: int) -> Incident | None:
    around = ("incident__root_fault", "incident__duplicate_of__root_fault")
    link = IncidentFault.objects.select_related(*around).filter(fault=fault).first()
    return (link.incident.duplicate_of or link.incident) if link is not None else None


def _is_root(incident: Incident, mark: FaultMark) -> bool:
    root = incident.root_fault
    return root is not None and root.fingerprint == mark.fingerprint


def _titled(incident: Incident) -> str:
    return f'"{incident.title}"'
