"""Counts the effects that meet at one place, against all that hang on it and against the places
beside it. Pure.

`incidents.correlation.gather_rules` says what is counted, `incidents.triage.gathering` reads it and
draws the conclusions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from detectors import resources
from incidents.correlation import relations
from incidents.correlation.gather_rules import Counts, GatherRule, Place, Ties
from incidents.correlation.relations import Surroundings
from incidents.faults.fault_views import FaultView
from incidents.topology.graph import ALL_NODES, LEAF, NOTHING, SPINE, STORAGE
from incidents.vocabulary.relations import Side


@dataclass(frozen=True)
class Effect:
    """A fault as rules count it. `root_type` and `root_place` are of its incident's root, empty
    while it has none; `spell` is what rules count that count jobs."""

    mark: str
    """Its fingerprint."""
    fault: FaultView
    at: datetime
    is_held: bool = False
    root_type: str = ""
    root_place: str = ""
    spell: str = ""


@dataclass(frozen=True)
class Tally:
    """How much of what hangs on a place shows effects, and which effect of each came first."""

    rule: GatherRule
    place: str
    counted: Mapping[str, Effect]
    of: int
    is_quiet_beside: bool = True
    tied: tuple[str, ...] = field(default=())
    """Other places that would explain the same."""

    @property
    def share(self) -> float:
        return len(self.counted) / self.of if self.of else 0.0

    @property
    def is_conclusive(self) -> bool:
        return len(self.counted) >= self.rule.needed(self.of) and self.is_quiet_beside

    @property
    def holds(self) -> bool:
        return bool(self.rule.hold_at) and len(self.counted) >= self.rule.hold_at


_IS_AT: Mapping[Place, Callable[[str, Surroundings], bool]] = {
    Place.LEAF: lambda place, around: around.graph.role(place) == LEAF,
    Place.SPINE: lambda place, around: around.graph.role(place) == SPINE,
    Place.STORAGE_SWITCH: lambda place, around: around.graph.role(place) == STORAGE,
    Place.MODULE: lambda place, around: len(around.graph.ports_of(place)) > 1,
    Place.FILE_SYSTEM: lambda place, around: place.startswith("storage/"),
    Place.RACK: lambda place, around: place.startswith("rack/"),
    Place.FEED: lambda place, around: place.startswith("feed/"),
    Place.SITE: lambda place, around: place == ALL_NODES,
    Place.NODE: lambda place, around: place.startswith("node/") and place.count("/") == 1,
    Place.JOB: lambda place, around: "/job/" in place,
    Place.GPU: lambda place, around: "/gpu/" in place,
}
# Of places that hold one another.
_WIDTHS = {"rack": 1, "feed": 2, "site": 3}
_OF_MACHINE: Mapping[Place, Callable[[str, Surroundings], frozenset[str]]] = {
    Place.LEAF: lambda machine, around: around.graph.switches_of(machine, LEAF),
    Place.STORAGE_SWITCH: lambda machine, around: around.graph.storage_switches_of(machine),
    Place.FILE_SYSTEM: lambda machine, around: around.graph.file_systems_of(machine),
    Place.RACK: lambda machine, around: frozenset(filter(None, [around.graph.rack_of(machine)])),
    Place.FEED: lambda machine, around: around.graph.feeds_of(machine),
    Place.JOB: lambda machine, around: around.jobs.get(machine, NOTHING),
}


def places_of(rule: GatherRule, fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where the fault is counted by this rule."""
    met = relations.keys(rule.relation, Side.EFFECT, fault, around)
    return frozenset(place for place in met if _IS_AT[rule.at](place, around))


def places_of_machine(rule: GatherRule, machine: str, around: Surroundings) -> frozenset[str]:
    """The places behind which a repair of this machine waits."""
    asked = _OF_MACHINE.get(rule.at)
    return asked(machine, around) if asked is not None else NOTHING


def is_at(rule: GatherRule, place: str, around: Surroundings) -> bool:
    """Whether this is a place of the rule's kind."""
    return _IS_AT[rule.at](place, around)


def machines_behind(place: str, around: Surroundings) -> frozenset[str]:
    """The machines that hang on it; those of a job are the ones it runs on."""
    if "/job/" in place:
        return around.machines.get(place, NOTHING)
    return (
        around.graph.machines_behind(place)
        if "/gpu/" not in place
        else frozenset({resources.owner(place)})
    )


def by_place(
    rule: GatherRule, effects: Iterable[Effect], around: Surroundings
) -> dict[str, list[Effect]]:
    """The effects of this rule, the earliest first, at each place where they count."""
    found: dict[str, list[Effect]] = defaultdict(list)
    for effect in sorted(effects, key=lambda effect: effect.at):
        if rule.takes(effect.fault.fault_type):
            for place in places_of(rule, effect.fault, around):
                found[place].append(effect)
    return found


def tally(
    rule: GatherRule,
    place: str,
    effects: Mapping[str, Sequence[Effect]],
    newest: datetime,
    around: Surroundings,
) -> Tally:
    """What the effects up to `newest`, by place, say of this one."""
    here = _counted(rule, place, effects, newest, around)
    one = Tally(rule, place, here, size(rule, place, around))
    return replace(one, is_quiet_beside=_is_quiet(one, effects, newest, around))


def count_affected(
    rule: GatherRule, place: str, effects: Iterable[Effect], around: Surroundings
) -> int:
    """How much of the place still shows effects, whenever they came and whatever explains them."""
    here = by_place(rule, effects, around).get(place, ())
    return len({one for effect in here if (one := _unit(rule, place, effect, around)) is not None})


def untied(tallies: Sequence[Tally]) -> list[Tally]:
    """Conclusive ones; of those that explain the same, the first by name, or none."""
    by_effects: dict[frozenset[str], list[Tally]] = {}
    for one in tallies:
        seen = frozenset(effect.fault.resource for effect in one.counted.values())
        by_effects.setdefault(seen, []).append(one)
    chosen = []
    for group in by_effects.values():
        first, *others = sorted(group, key=lambda one: one.place)
        if not others or first.rule.ties is Ties.FIRST:
            tied = tuple(other.place for other in others)
            chosen.append(replace(first, tied=tied))
    return chosen


def _counted(
    rule: GatherRule,
    place: str,
    effects: Mapping[str, Sequence[Effect]],
    newest: datetime,
    around: Surroundings,
) -> dict[str, Effect]:
    found: dict[str, Effect] = {}
    for effect in effects.get(place, ()):
        is_in_time = newest - rule.window <= effect.at <= newest
        if (
            is_in_time
            and not _is_explained(rule, place, effect)
            and not (rule.outlasted and effect.is_held)
        ):
            unit = _unit(rule, place, effect, around)
            if unit is not None:
                found.setdefault(unit, effect)
    return found


def _is_explained(rule: GatherRule, place: str, effect: Effect) -> bool:
    """It belongs to an incident whose root is something else than such an effect, or the same in a
    wider place."""
    if effect.root_type == rule.concludes:
        return _width(effect.root_place) > _width(place)
    return effect.root_type != "" and not rule.takes(effect.root_type)


def _width(place: str) -> int:
    return _WIDTHS.get(place.partition("/")[0], 0)


def _unit(rule: GatherRule, place: str, effect: Effect, around: Surroundings) -> str | None:
    """What the effect counts as at this place; None: nothing."""
    if rule.counts is Counts.JOBS:
        return effect.spell or None
    if rule.counts is Counts.CHILDREN:
        return around.graph.child_of(place, effect.fault.resource)
    behind = machines_behind(place, around)
    ends = (effect.fault.owner, resources.owner(around.graph.peer(effect.fault.resource) or ""))
    return next((machine for machine in ends if machine in behind), None)


def size(rule: GatherRule, place: str, around: Surroundings) -> int:
    """How many there are to be counted."""
    if rule.counts is Counts.JOBS:
        return 0
    return len(
        around.graph.children(place)
        if rule.counts is Counts.CHILDREN
        else machines_behind(place, around)
    )


def _is_quiet(
    here: Tally, effects: Mapping[str, Sequence[Effect]], newest: datetime, around: Surroundings
) -> bool:
    """Whether at least half of the places beside it show less than half of what this one does."""
    beside = around.graph.siblings(here.place) if here.rule.quiet else NOTHING
    quiet = 0
    for sibling in beside:
        of = size(here.rule, sibling, around)
        there = len(_counted(here.rule, sibling, effects, newest, around)) / of if of else 0.0
        quiet += there * 2 < here.share
    return quiet * 2 >= len(beside)
