"""The candidates of correlation: the open incidents and unassigned faults of a transaction, by
fault type and machine. Pure.

A new fault looks at the machines that a relation reaches and never at every other fault; the index
decides nothing (`incidents.correlation.engine` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from incidents.correlation import relations
from incidents.correlation.relations import Surroundings
from incidents.correlation.rules import FaultClass, Rule, RuleSet
from incidents.faults.fault_views import FaultView, IncidentView, Seen
from incidents.vocabulary.relations import Relation, Side

_OTHER = {Side.CAUSE: Side.EFFECT, Side.EFFECT: Side.CAUSE}
_Place = tuple[Relation, Side, FaultView]
_Classes = Mapping[str, tuple[FaultClass, ...]]


class Group(Protocol):
    """An open incident, or the view of one."""

    def view(self) -> IncidentView: ...


@dataclass(eq=False)
class Candidate:
    """One fault, and the key of its incident; None while it has none."""

    seen: Seen
    incident: int | None
    number: int = 0
    """In the order in which faults were entered."""


@dataclass(eq=False)
class CandidateIndex:
    """Incidents by key, and every fault that belongs to one or is unassigned. What is entered later
    is met later."""

    rules: RuleSet
    surroundings: Surroundings = field(default_factory=Surroundings)
    incidents: dict[int, Group] = field(default_factory=dict)
    _candidates: dict[int, Candidate] = field(default_factory=dict)
    _by_type: dict[str, dict[str, list[Candidate]]] = field(default_factory=dict)
    """By fault type and machine."""
    _entered: int = 0
    _roots: dict[int, Candidate] = field(default_factory=dict)
    _classes: dict[tuple[str, Side], _Classes] = field(default_factory=dict)
    _keys: dict[_Place, frozenset[str]] = field(default_factory=dict)
    _owners: dict[_Place, frozenset[str]] = field(default_factory=dict)

    def set_surroundings(self, surroundings: Surroundings) -> None:
        """What relations look at from now on; it holds what it held before, and more."""
        before = self.surroundings
        jobs = {**before.jobs, **surroundings.jobs}
        machines = {**before.machines, **surroundings.machines}
        windows = {**before.windows, **surroundings.windows}
        self.surroundings = Surroundings(surroundings.graph, jobs, machines, windows)
        self._keys.clear()
        self._owners.clear()

    def enter(self, key: int, group: Group, *, root: Seen, members: Iterable[Seen]) -> None:
        """An incident with its faults, of which `root` is one. Entered again, it and its faults
        take the place of what stood for them."""
        self.incidents[key] = group
        for seen in members:
            self.assign(seen, key)
        self._roots[key] = self.assign(root, key)

    def assign(self, seen: Seen, incident: int | None) -> Candidate:
        """Gives the fault to an incident, or moves it to another one. None: to none."""
        candidate = self._candidates.get(seen.key)
        if candidate is None:
            self._entered += 1
            candidate = Candidate(seen, incident, self._entered)
            self._candidates[seen.key] = candidate
            self._get_list(seen).append(candidate)
        candidate.seen = seen
        candidate.incident = incident
        return candidate

    def leave(self, seen: Seen) -> None:
        """The fault is about to be placed anew."""
        candidate = self._candidates.pop(seen.key, None)
        if candidate is not None:
            self._get_list(seen).remove(candidate)

    def replace_root(self, incident: int, root: Seen) -> None:
        """`root` is, or becomes, a member of the incident and its root."""
        self._roots[incident] = self.assign(root, incident)

    def merge(self, gone: int, into: int) -> None:
        """Every fault of one incident belongs to the other; its root is a member from now on."""
        self.incidents.pop(gone, None)
        self._roots.pop(gone, None)
        for candidate in self._candidates.values():
            if candidate.incident == gone:
                candidate.incident = into

    def get_root(self, incident: int) -> Seen:
        return self._roots[incident].seen

    def is_root(self, candidate: Candidate) -> bool:
        return candidate.incident is not None and self._roots.get(candidate.incident) is candidate

    def find_matches(
        self, rule: Rule, side: Side, fault: FaultView, *, unassigned: bool = False
    ) -> list[Candidate]:
        """Those whom a fault on this side of the rule meets, each once: every member that may be
        its cause, the roots that may be its effects or its peers; or, instead, the unassigned
        faults."""
        other = _OTHER[side]
        if not self._get_classes(rule, other):
            return []
        is_any_member = other is Side.CAUSE and not rule.is_of_peers and not rule.by_root
        found: dict[int, Candidate] = {}
        for relation in rule.relations:
            keys = self.get_keys(relation, side, fault)
            if not keys:
                continue
            owners = self.get_owners(relation, side, fault)
            for candidate, classes in self._find_on(rule, other, owners):
                if candidate.number in found:
                    continue
                if unassigned:
                    counts = candidate.incident is None
                else:
                    counts = candidate.incident is not None and (
                        is_any_member or self.is_root(candidate)
                    )
                if not counts:
                    continue
                view = candidate.seen.view()
                if view is fault or keys.isdisjoint(self.get_keys(relation, other, view)):
                    continue
                if any(fault_class.holds_place(view) for fault_class in classes):
                    found[candidate.number] = candidate
        return sorted(found.values(), key=attrgetter("number"))

    def get_keys(self, relation: Relation, side: Side, fault: FaultView) -> frozenset[str]:
        asked = (relation, side, fault)
        known = self._keys.get(asked)
        if known is None:
            known = self._keys[asked] = relations.get_keys(relation, side, fault, self.surroundings)
        return known

    def get_owners(self, relation: Relation, side: Side, fault: FaultView) -> frozenset[str]:
        """The machines on which the relation finds faults of the other side."""
        asked = (relation, side, fault)
        known = self._owners.get(asked)
        if known is None:
            known = relations.get_owners(relation, side, fault, self.surroundings)
            self._owners[asked] = known
        return known

    def _find_on(
        self, rule: Rule, side: Side, owners: frozenset[str]
    ) -> Iterator[tuple[Candidate, tuple[FaultClass, ...]]]:
        """The candidates on these machines whose type is on this side of the rule."""
        for fault_type, classes in self._get_classes(rule, side).items():
            by_owner = self._by_type[fault_type]
            near = by_owner.keys() & owners if len(by_owner) < len(owners) else owners
            for owner in near:
                for candidate in by_owner.get(owner, ()):
                    yield candidate, classes

    def _get_classes(self, rule: Rule, side: Side) -> _Classes:
        """The types of candidates that this side of the rule speaks of: it speaks of few."""
        known = self._classes.get((rule.name, side))
        if known is None:
            classes = {
                fault_type: self.rules.get_classes(rule, side, fault_type)
                for fault_type in self._by_type
            }
            known = {fault_type: found for fault_type, found in classes.items() if found}
            self._classes[rule.name, side] = known
        return known

    def _get_list(self, seen: Seen) -> list[Candidate]:
        by_owner = self._by_type.get(seen.fault_type)
        if by_owner is None:
            by_owner = self._by_type[seen.fault_type] = {}
            self._classes.clear()
        return by_owner.setdefault(seen.owner, [])
