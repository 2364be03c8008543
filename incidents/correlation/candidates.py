"""Where faults meet: an index of the open incidents and unassigned faults of a transaction, by
rule, side and key. Pure.

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
# Rule, side, and whether unassigned faults are meant.
_Asked = tuple[str, Side, bool]


class Group(Protocol):
    """An open incident, or the view of one."""

    def view(self) -> IncidentView: ...


@dataclass(eq=False)
class Candidate:
    """One fault's place: the key of its incident, None while it has none."""

    seen: Seen
    incident: int | None
    number: int = 0
    """In the order in which faults were seated."""


@dataclass(eq=False)
class CandidateIndex:
    """Incidents by key, and every fault that belongs to one or is unassigned. What is entered later
    is met later."""

    rules: RuleSet
    surroundings: Surroundings = field(default_factory=Surroundings)
    incidents: dict[int, Group] = field(default_factory=dict)
    _candidates: dict[int, Candidate] = field(default_factory=dict)
    _by_type: dict[str, list[Candidate]] = field(default_factory=lambda: defaultdict(list))
    _entered: int = 0
    _roots: dict[int, Candidate] = field(default_factory=dict)
    _buckets: dict[_Asked, dict[_Place, list[Candidate]]] = field(default_factory=dict)
    _keys: dict[tuple[Relation, Side, FaultView], frozenset[str]] = field(default_factory=dict)

    def set_surroundings(self, around: Surroundings) -> None:
        """What relations look at from now on; it holds what it held before, and more."""
        before = self.surroundings
        self.surroundings = Surroundings(
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

    def assign(self, seen: Seen, incident: int | None) -> Candidate:
        """Gives the fault its place, or moves it to another incident. None: to none."""
        candidate = self._candidates.get(id(seen))
        if candidate is None:
            self._entered += 1
            candidate = self._candidates[id(seen)] = Candidate(seen, incident, self._entered)
            self._by_type[seen.view().fault_type].append(candidate)
            self._index(candidate)
        elif candidate.incident != incident:
            candidate.incident = incident
            self._index(candidate)
        return candidate

    def leave(self, seen: Seen) -> None:
        """The fault is about to be placed anew."""
        candidate = self._candidates.pop(id(seen), None)
        if candidate is not None:
            candidate.incident = _GONE

    def replace_root(self, incident: int, root: Seen) -> None:
        """`root` is, or becomes, a member of the incident and its root."""
        candidate = self.assign(root, incident)
        self._roots[incident] = candidate
        self._index(candidate)

    def merge(self, gone: int, into: int) -> None:
        """Every fault of one incident belongs to the other; its root is a member from now on."""
        self.incidents.pop(gone, None)
        self._roots.pop(gone, None)
        for candidate in self._candidates.values():
            if candidate.incident == gone:
                candidate.incident = into

    def root(self, incident: int) -> Seen:
        return self._roots[incident].seen

    def is_root(self, candidate: Candidate) -> bool:
        return candidate.incident is not None and self._roots.get(candidate.incident) is candidate

    def find_matches(
        self, rule: Rule, side: Side, fault: FaultView, *, unassigned: bool = False
    ) -> Iterator[Candidate]:
        """Those whom a fault on this side of the rule meets, each once: every member that may be
        its cause, the roots that may be its effects or its peers; or, instead, the unassigned
        faults."""
        other = Side.CAUSE if side is Side.EFFECT else Side.EFFECT
        bucket = self._bucket(rule, other, unassigned=unassigned)
        is_any_member = other is Side.CAUSE and not rule.is_of_peers and not rule.by_root
        told: set[int] = set()
        for place in self.places(rule, side, fault):
            candidates = bucket.get(place)
            if not candidates:
                continue
            known = [
                candidate
                for candidate in candidates
                if self._counts(candidate, is_any_member, unassigned=unassigned)
            ]
            if len(known) < len(candidates):
                bucket[place] = known
            for candidate in known:
                if id(candidate) not in told and candidate.seen.view() is not fault:
                    told.add(id(candidate))
                    yield candidate

    def places(self, rule: Rule, side: Side, fault: FaultView) -> Iterator[_Place]:
        for relation in rule.relations:
            for key in self.keys(relation, side, fault):
                yield relation, key

    def keys(self, relation: Relation, side: Side, fault: FaultView) -> frozenset[str]:
        asked = (relation, side, fault)
        known = self._keys.get(asked)
        if known is None:
            known = self._keys[asked] = relations.keys(relation, side, fault, self.surroundings)
        return known

    def roots(self) -> Iterator[Candidate]:
        yield from self._roots.values()

    def _counts(self, candidate: Candidate, is_any_member: bool, *, unassigned: bool) -> bool:
        """Seats that count no longer never do again there, unless they are seated again."""
        if unassigned or candidate.incident is None or candidate.incident == _GONE:
            return unassigned and candidate.incident is None
        return is_any_member or self.is_root(candidate)

    def _bucket(self, rule: Rule, side: Side, *, unassigned: bool) -> dict[_Place, list[Candidate]]:
        asked = (rule.name, side, unassigned)
        if asked not in self._buckets:
            self._buckets[asked] = {}
            for candidate in sorted(
                self._on_side(rule, side, unassigned=unassigned),
                key=lambda candidate: candidate.number,
            ):
                self._put(self._buckets[asked], rule, side, candidate)
        return self._buckets[asked]

    def _on_side(self, rule: Rule, side: Side, *, unassigned: bool) -> Iterator[Candidate]:
        """Whole types are left out at once: a rule speaks of few."""
        for fault_type, candidates in self._by_type.items():
            classes = self.rules.classes_of(rule, side, fault_type)
            if classes:
                for candidate in candidates:
                    if (
                        candidate.incident != _GONE
                        and (candidate.incident is None) is unassigned
                        and any(one.holds_place(candidate.seen.view()) for one in classes)
                    ):
                        yield candidate

    def _index(self, candidate: Candidate) -> None:
        if not self._buckets:
            return  # nothing was asked yet: what is asked first is built of all seats
        for rule, side in self.rules.sides(candidate.seen.view()):
            bucket = self._buckets.get((rule.name, side, candidate.incident is None))
            if bucket is not None:
                self._put(bucket, rule, side, candidate)

    def _put(
        self, bucket: dict[_Place, list[Candidate]], rule: Rule, side: Side, candidate: Candidate
    ) -> None:
        for place in self.places(rule, side, candidate.seen.view()):
            bucket.setdefault(place, []).append(candidate)


# The incident of a candidate that was removed: no incident has this key.
_GONE = 0
