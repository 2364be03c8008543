"""The rules of correlation as data: which fault can be the cause of which, where they must meet,
and for how long.

Rows live in `correlation/*.toml`; a site may add a folder. Never decides about a fault:
`incidents.correlation.engine` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from detectors.faults import Action, Component
from incidents.faults.fault_views import FaultView
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Relation, Side


class CorrelationError(Exception):
    """The rules cannot be used. The message has one line per problem: file, line number, key, what
    was expected."""


class ResourceKind(StrEnum):
    """What a resource path names: a whole machine, a part of one, or something that many machines
    share."""

    NODE = "node"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"
    PCI = "pci"
    DISK = "disk"
    SWITCH = "switch"
    PORT = "port"
    MODULE = "module"
    STORAGE = "storage"
    SITE = "site"
    JOB = "job"
    RACK = "rack"
    FEED = "feed"
    POD = "pod"
    OTHER = "other"


class Lasts(StrEnum):
    """How long after the cause an effect may come."""

    WINDOW = "window"
    WHILE_ACTIVE = "while_active"
    WHILE_OPEN = "while_open"


class CauseOrder(StrEnum):
    """Which of the two must have happened first; both clocks may say so."""

    EITHER = "either"
    CAUSE_FIRST = "cause_first"
    EFFECT_FIRST = "effect_first"


class Root(StrEnum):
    """Who is root. `cause` explains; with `first` and `stronger` both sides are evidence of one
    thing (peers)."""

    CAUSE = "cause"
    STRONGER = "stronger"
    FIRST = "first"


_PARTS = {
    "node": {
        "": ResourceKind.NODE,
        "gpu": ResourceKind.GPU,
        "nvswitch": ResourceKind.NVSWITCH,
        "nic": ResourceKind.NIC,
        "pci": ResourceKind.PCI,
    }
    | {"storage": ResourceKind.DISK},
    "switch": {"": ResourceKind.SWITCH, "port": ResourceKind.PORT, "module": ResourceKind.MODULE},
    "storage": {"": ResourceKind.STORAGE},
    "site": {
        "": ResourceKind.SITE,
        "job": ResourceKind.JOB,
        "rack": ResourceKind.RACK,
        "feed": ResourceKind.FEED,
    },
    "rack": {"": ResourceKind.RACK},
    "feed": {"": ResourceKind.FEED},
    "pod": {"": ResourceKind.POD},
}


@lru_cache(maxsize=16384)
def get_kind(resource: str) -> ResourceKind:
    """`switch/leaf-01/port/Ethernet0` is a port; a path of no known shape is `other`."""
    parts = resource.split("/", 3)
    return _PARTS.get(parts[0], {}).get(parts[2] if len(parts) > 2 else "", ResourceKind.OTHER)


@dataclass(frozen=True)
class FaultClass:
    """A set of faults: by type, less some types, by kind of resource, by component, and by what
    FaultView says.

    An empty set of kinds or components, and None for a flag, ask nothing.
    """

    name: str
    types: tuple[str, ...] = ("*",)
    but_not: tuple[str, ...] = ()
    on: frozenset[ResourceKind] = frozenset()
    components: frozenset[Component] = frozenset()
    flags: tuple[tuple[str, bool], ...] = ()

    def holds_type(self, fault_type: str) -> bool:
        if any(fnmatchcase(fault_type, pattern) for pattern in self.but_not):
            return False
        return any(fnmatchcase(fault_type, pattern) for pattern in self.types)

    def holds_place(self, fault: FaultView) -> bool:
        """Whether a fault of one of these types belongs, by where it is and what it is."""
        if self.on and get_kind(fault.resource) not in self.on:
            return False
        if self.components and fault.component not in self.components:
            return False
        return all(getattr(fault, flag) is wanted for flag, wanted in self.flags)


@dataclass(frozen=True)
class Rule:
    """One row. `because` ends the sentence for an effect that joins, `explains` the one for a cause
    that comes later.

    `window` None is the site's join window. `states`, `reported_only` and `one_machine` are asked
    of the incident; `by_root` asks that the cause is its root.
    """

    name: str
    cause: tuple[FaultClass, ...]
    effect: tuple[FaultClass, ...]
    relations: tuple[Relation, ...]
    because: str
    source: str
    explains: str = ""
    window: timedelta | None = None
    lasts: Lasts = Lasts.WINDOW
    direction: CauseOrder = CauseOrder.EITHER
    root: Root = Root.CAUSE
    states: frozenset[State] = frozenset()
    by_root: bool = False
    reported_only: bool = False
    one_machine: bool = False
    where: str = ""

    @property
    def is_of_peers(self) -> bool:
        """Whether its sides are evidence of one thing, so that neither explains the other."""
        return self.root is not Root.CAUSE

    @property
    def is_symmetric(self) -> bool:
        return self.is_of_peers and self.cause == self.effect

    def get_side(self, side: Side) -> tuple[FaultClass, ...]:
        return self.cause if side is Side.CAUSE else self.effect


_Part = tuple[Rule, Side, tuple[FaultClass, ...]]
_Traits = tuple[str, ResourceKind, Component, Action, bool, bool]


def _get_traits(fault: FaultView) -> _Traits:
    """All that a class of faults can ask of one: two faults alike in these are in the same
    classes. Each flag of `FaultClass` follows from them."""
    return (
        fault.fault_type,
        get_kind(fault.resource),
        fault.component,
        fault.action,
        fault.opens_incident,
        fault.is_sympathetic,
    )


@dataclass(frozen=True)
class RuleSet:
    """The rules in the order in which they are tried, and the classes that rows name with `@`."""

    rules: tuple[Rule, ...] = ()
    classes: Mapping[str, FaultClass] = field(default_factory=dict)
    _by_type: dict[str, dict[tuple[str, Side], _Part]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _by_traits: dict[_Traits, Sequence[tuple[Rule, Side]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def get_sides(self, fault: FaultView) -> Sequence[tuple[Rule, Side]]:
        """The rules that this fault can take part in, from the top, each with its side, effects
        before causes. Kept: many faults are alike in all that classes ask."""
        traits = _get_traits(fault)
        known = self._by_traits.get(traits)
        if known is not None:
            return known
        found = []
        for rule, side, classes in self._get_parts(fault.fault_type).values():
            if any(fault_class.holds_place(fault) for fault_class in classes):
                found.append((rule, side))
        self._by_traits[traits] = found
        return found

    def iterate_sides_of_type(self, fault_type: str) -> Iterator[tuple[Rule, Side]]:
        """The same by the type alone: where the fault is, and what else it is, may still speak
        against a rule."""
        for rule, side, _ in self._get_parts(fault_type).values():
            yield rule, side

    def is_on(self, rule: Rule, side: Side, fault: FaultView) -> bool:
        classes = self.get_classes(rule, side, fault.fault_type)
        return any(fault_class.holds_place(fault) for fault_class in classes)

    def get_classes(self, rule: Rule, side: Side, fault_type: str) -> tuple[FaultClass, ...]:
        """What this side of the rule asks of faults of this type besides it; nothing: none of them
        is on that side."""
        part = self._get_parts(fault_type).get((rule.name, side))
        return part[2] if part is not None else ()

    def _get_parts(self, fault_type: str) -> dict[tuple[str, Side], _Part]:
        """By the type alone, kept: patterns are matched once per type, not once per fault."""
        known = self._by_type.get(fault_type)
        if known is not None:
            return known
        parts: dict[tuple[str, Side], _Part] = {}
        for rule in self.rules:
            for side in (Side.EFFECT, Side.CAUSE):
                classes = tuple(row for row in rule.get_side(side) if row.holds_type(fault_type))
                if classes:
                    parts[rule.name, side] = (rule, side, classes)
        self._by_type[fault_type] = parts
        return parts
