"""Where faults meet: an index of the open incidents and loose faults of one transaction, by rule,
side and key. Pure.

A new fault looks into the index and never at every other fault; it decides nothing
(`incidents.correlation.engine` does).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from incidents.correlation import relations
from incidents.correlation.relations import Surroundings
from incidents.correlation.rules import Rule, RuleSet
from incidents.faults.fault_views import FaultView, IncidentView, Seen
from incidents.vocabulary.relations import Relation, Side

_Place = tuple[Relation, str]
# Rule, side, and whether loose faults are meant.
_Asked = tuple[str, Side, bool]


class Group(Protocol):
    """An open incident, or the view of one."""

    def view(self) -> IncidentView: ...


@dataclass(eq=False)
class Seat:
    """One fault's place: the key of its incident, None while it is loose."""

    seen: Seen
    incident: int | None
    number: int = 0
    """In the order in which faults were seated."""


@dataclass(eq=False)
class Field:
    """Incidents by key, and every fault that belongs to one or is loose. What is seated later is
    met later."""

    rules: RuleSet
    around: Surroundings = field(default_factory=Surroundings)
    incidents: dict[int, Group] = field(default_factory=dict)
    _seats: dict[int, Seat] = field(default_factory=dict)
    _by_type: dict[str, list[Seat]] = field(default_factory=lambda: defaultdict(list))
    _seated: int = 0
    _roots: dict[int, Seat] = field(default_factory=dict)
    _buckets: dict[_Asked, dict[_Place, list[Seat]]] = field(default_factory=dict)
    _keys: dict[tuple[Relation, Side, FaultView], frozenset[str]] = field(default_factory=dict)

    def surround(self, around: Surroundings) -> None:
        """What relations look at from now on; it holds what it held before, and more."""
        before = self.around
        self.around = Surroundings(
            around.graph,
            jobs={**before.jobs, **around.jobs},
            machines={**before.machines, **around.machines},
            windows={**before.windows, **around.windows},
        )
        self._keys.clear()
        self._buckets.clear()

    def enter(self, key: int, group: Group, *, root: Seen, members: Iterable[Seen]) -> None:
        """An incident with its faults, of which `root` is one."""
        self.incidents[key] = group
        for seen in members:
            self.assign(seen, key)
        self._roots[key] = self.assign(root, key)

    def assign(self, seen: Seen, incident: int | None) -> Seat:
        """Gives the fault its place, or moves it to another incident. None: loose."""
        seat = self._seats.get(id(seen))
        if seat is None:
            self._seated += 1
            seat = self._seats[id(seen)] = Seat(seen, incident, self._seated)
            self._by_type[seen.view().fault_type].append(seat)
            self._index(seat)
        elif seat.incident != incident:
            seat.incident = incident
            self._index(seat)
        return seat

    def leave(self, seen: Seen) -> None:
        """The fault is about to be placed anew."""
        seat = self._seats.pop(id(seen), None)
        if seat is not None:
            seat.incident = _GONE

    def reroot(self, incident: int, root: Seen) -> None:
        """`root` is, or becomes, a member of the incident and its root."""
        seat = self.assign(root, incident)
        self._roots[incident] = seat
        self._index(seat)

    def merge(self, gone: int, into: int) -> None:
        """Every fault of one incident belongs to the other; its root is a member from now on."""
        self.incidents.pop(gone, None)
        self._roots.pop(gone, None)
        for seat in self._seats.values():
            if seat.incident == gone:
                seat.incident = into

    def root(self, incident: int) -> Seen:
        return self._roots[incident].seen

    def is_root(self, seat: Seat) -> bool:
        return seat.incident is not None and self._roots.get(seat.incident) is seat

    def find_matches(
        self, rule: Rule, side: Side, fault: FaultView, *, loose: bool = False
    ) -> Iterator[Seat]:
        """Those whom a fault on this side of the rule meets, each once: every member that may be
        its cause, the roots that may be its effects or its peers; or, instead, the loose faults."""
        other = Side.CAUSE if side is Side.EFFECT else Side.EFFECT
        bucket = self._bucket(rule, other, loose=loose)
        is_any_member = other is Side.CAUSE and not rule.is_of_peers and not rule.by_root
        told: set[int] = set()
        for place in self.places(rule, side, fault):
            seats = bucket.get(place)
            if not seats:
                continue
            known = [seat for seat in seats if self._counts(seat, is_any_member, loose=loose)]
            if len(known) < len(seats):
                bucket[place] = known
            for seat in known:
                if id(seat) not in told and seat.seen.view() is not fault:
                    told.add(id(seat))
                    yield seat

    def places(self, rule: Rule, side: Side, fault: FaultView) -> Iterator[_Place]:
        for relation in rule.relations:
            for key in self.keys(relation, side, fault):
                yield relation, key

    def keys(self, relation: Relation, side: Side, fault: FaultView) -> frozenset[str]:
        asked = (relation, side, fault)
        known = self._keys.get(asked)
        if known is None:
            known = self._keys[asked] = relations.keys(relation, side, fault, self.around)
        return known

    def roots(self) -> Iterator[Seat]:
        yield from self._roots.values()

    def _counts(self, seat: Seat, is_any_member: bool, *, loose: bool) -> bool:
        """Seats that count no longer never do again there, unless they are seated again."""
        if loose or seat.incident is None or seat.incident == _GONE:
            return loose and seat.incident is None
        return is_any_member or self.is_root(seat)

    def _bucket(self, rule: Rule, side: Side, *, loose: bool) -> dict[_Place, list[Seat]]:
        asked = (rule.name, side, loose)
        if asked not in self._buckets:
            self._buckets[asked] = {}
            for seat in sorted(
                self._on_side(rule, side, loose=loose), key=lambda seat: seat.number
            ):
                self._put(self._buckets[asked], rule, side, seat)
        return self._buckets[asked]

    def _on_side(self, rule: Rule, side: Side, *, loose: bool) -> Iterator[Seat]:
        """Whole types are left out at once: a rule speaks of few."""
        for fault_type, seats in self._by_type.items():
            classes = self.rules.classes_of(rule, side, fault_type)
            if classes:
                for seat in seats:
                    if (
                        seat.incident != _GONE
                        and (seat.incident is None) is loose
                        and any(one.holds_place(seat.seen.view()) for one in classes)
                    ):
                        yield seat

    def _index(self, seat: Seat) -> None:
        if not self._buckets:
            return  # nothing was asked yet: what is asked first is built of all seats
        for rule, side in self.rules.sides(seat.seen.view()):
            bucket = self._buckets.get((rule.name, side, seat.incident is None))
            if bucket is not None:
                self._put(bucket, rule, side, seat)

    def _put(self, bucket: dict[_Place, list[Seat]], rule: Rule, side: Side, seat: Seat) -> None:
        for place in self.places(rule, side, seat.seen.view()):
            bucket.setdefault(place, []).append(seat)


# The incident of a seat that was left: no incident has this key.
_GONE = 0
