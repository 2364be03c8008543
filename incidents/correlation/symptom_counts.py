"""Counts the effects that meet at one place, against all that hang on it and against the places
beside it. Pure.

`incidents.correlation.aggregation_rules` says what is counted, `incidents.triage.aggregation` reads
it and draws the conclusions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from detectors import resources
from incidents.correlation import relations
from incidents.correlation.aggregation_rules import AggregationRule, Counts, Place, Ties
from incidents.correlation.relations import Surroundings
from incidents.faults.fault_views import FaultView
from incidents.topology.graph import (
    ALL_NODES,
    ALL_SPINES,
    ALL_STORAGE_SWITCHES,
    ALL_SWITCHES,
    LEAF,
    NOTHING,
    SPINE,
    STORAGE,
)
from incidents.vocabulary.relations import Side


@dataclass(frozen=True)
class Symptom:
    """A fault as rules count it. `root_type` and `root_place` are of its incident's root, empty
    while it has none; `jobs` is what rules count that count jobs."""

    fingerprint: str
    """Its fingerprint."""
    fault: FaultView
    at: datetime
    is_held: bool = False
    root_type: str = ""
    root_place: str = ""
    jobs: str = ""


@dataclass(frozen=True)
class SymptomCount:
    """How much of what hangs on a place shows effects, and which effect of each came first."""

    rule: AggregationRule
    place: str
    counted: Mapping[str, Symptom]
    of: int
    is_quiet_beside: bool = True
    has_sound_far_end: bool = True
    """Not every machine at the far ends failed by itself."""
    tied: tuple[str, ...] = field(default=())
    """Other places that would explain the same."""

    @property
    def share(self) -> float:
        return len(self.counted) / self.of if self.of else 0.0

    @property
    def is_conclusive(self) -> bool:
        is_enough = len(self.counted) >= self.rule.compute_needed(self.of)
        return is_enough and self.is_quiet_beside and self.has_sound_far_end

    @property
    def holds(self) -> bool:
        return bool(self.rule.hold_at) and len(self.counted) >= self.rule.hold_at

    @property
    def believed(self) -> int:
        """How many of them no user of their machine can have written."""
        return sum(symptom.fault.is_believed for symptom in self.counted.values())


_IS_AT: Mapping[Place, Callable[[str, Surroundings], bool]] = {
    Place.LEAF: lambda place, around: around.graph.get_role(place) == LEAF,
    Place.SPINE: lambda place, around: around.graph.get_role(place) == SPINE,
    Place.STORAGE_SWITCH: lambda place, around: around.graph.get_role(place) == STORAGE,
    Place.MODULE: lambda place, around: len(around.graph.get_ports(place)) > 1,
    Place.FILE_SYSTEM: lambda place, around: place.startswith("storage/"),
    Place.RACK: lambda place, around: place.startswith("rack/"),
    Place.FEED: lambda place, around: place.startswith("feed/"),
    Place.POD: lambda place, around: place.startswith("pod/"),
    Place.SPINES: lambda place, around: place == ALL_SPINES,
    Place.STORAGE_SWITCHES: lambda place, around: place == ALL_STORAGE_SWITCHES,
    Place.SWITCHES: lambda place, around: place == ALL_SWITCHES,
    Place.SITE: lambda place, around: place == ALL_NODES,
    Place.NODE: lambda place, around: place.startswith("node/") and place.count("/") == 1,
    Place.JOB: lambda place, around: "/job/" in place,
    Place.GPU: lambda place, around: "/gpu/" in place,
}
# Of places that hold one another.
_WIDTHS = {"rack": 1, "feed": 2, "site": 3}
_OF_MACHINE: Mapping[Place, Callable[[str, Surroundings], frozenset[str]]] = {
    Place.LEAF: lambda machine, around: around.graph.get_switches(machine, LEAF),
    Place.STORAGE_SWITCH: lambda machine, around: around.graph.get_storage_switches(machine),
    Place.FILE_SYSTEM: lambda machine, around: around.graph.get_file_systems(machine),
    Place.RACK: lambda machine, around: frozenset(filter(None, [around.graph.find_rack(machine)])),
    Place.FEED: lambda machine, around: around.graph.get_feeds(machine),
    Place.JOB: lambda machine, around: around.jobs.get(machine, NOTHING),
}


def get_places(rule: AggregationRule, fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where the fault is counted by this rule."""
    meeting_places = relations.get_keys(rule.relation, Side.EFFECT, fault, around)
    return frozenset(place for place in meeting_places if _IS_AT[rule.at](place, around))


def get_places_of_machine(
    rule: AggregationRule, machine: str, around: Surroundings
) -> frozenset[str]:
    """The places behind which a repair of this machine waits."""
    asked = _OF_MACHINE.get(rule.at)
    return asked(machine, around) if asked is not None else NOTHING


def is_at(rule: AggregationRule, place: str, around: Surroundings) -> bool:
    """Whether this is a place of the rule's kind."""
    return _IS_AT[rule.at](place, around)


def get_machines_behind(place: str, around: Surroundings) -> frozenset[str]:
    """The machines that hang on it; those of a job are the ones it runs on."""
    if "/job/" in place:
        return around.machines.get(place, NOTHING)
    return (
        around.graph.get_machines_behind(place)
        if "/gpu/" not in place
        else frozenset({resources.owner(place)})
    )


def get_telling_machines(rule: AggregationRule, place: str, around: Surroundings) -> frozenset[str]:
    """The machines whose faults are counted at the place, itself left out."""
    if rule.counts is Counts.SPINES:
        return around.graph.get_switches(place, SPINE)
    return get_machines_behind(place, around)


def group_by_place(
    rule: AggregationRule, symptoms: Iterable[Symptom], around: Surroundings
) -> dict[str, list[Symptom]]:
    """The effects of this rule, the earliest first, at each place where they count."""
    found: dict[str, list[Symptom]] = defaultdict(list)
    for symptom in sorted(symptoms, key=lambda symptom: symptom.at):
        if rule.takes(symptom.fault.fault_type):
            for place in get_places(rule, symptom.fault, around):
                found[place].append(symptom)
    return found


def group_failures(
    rule: AggregationRule, symptoms: Iterable[Symptom], around: Surroundings
) -> dict[str, list[Symptom]]:
    """What shows that a machine failed by itself, by machine; that of a link by those at both of
    its ends."""
    found: dict[str, list[Symptom]] = defaultdict(list)
    for symptom in symptoms:
        if symptom.fault.fault_type in rule.failure_types:
            for machine in around.graph.ends(symptom.fault.resource):
                found[machine].append(symptom)
    return found


def count_symptoms(
    rule: AggregationRule,
    place: str,
    symptoms: Mapping[str, Sequence[Symptom]],
    newest: datetime,
    around: Surroundings,
    failures: Mapping[str, Sequence[Symptom]] = MappingProxyType({}),
) -> SymptomCount:
    """What the effects up to `newest`, by place, say of this one. `failures` are by machine."""
    here = _count(rule, place, symptoms, newest, around)
    count = SymptomCount(rule, place, here, count_expected(rule, place, around))
    return replace(
        count,
        is_quiet_beside=_is_quiet(count, symptoms, newest, around),
        has_sound_far_end=_has_sound_far_end(count, failures, newest, around),
    )


def count_affected(
    rule: AggregationRule, place: str, symptoms: Iterable[Symptom], around: Surroundings
) -> int:
    """How much of the place still shows effects, whenever they came and whatever explains them."""
    here = group_by_place(rule, symptoms, around).get(place, ())
    units = {_get_unit(rule, place, symptom, around) for symptom in here}
    return len(units - {None})


def resolve_ties(counts: Sequence[SymptomCount]) -> list[SymptomCount]:
    """Conclusive ones; of those that explain the same, the first by name, or none."""
    by_symptoms: dict[frozenset[str], list[SymptomCount]] = {}
    for count in counts:
        seen = frozenset(symptom.fault.resource for symptom in count.counted.values())
        by_symptoms.setdefault(seen, []).append(count)
    chosen = []
    for group in by_symptoms.values():
        first, *others = sorted(group, key=lambda count: count.place)
        if not others or first.rule.ties is Ties.FIRST:
            tied = tuple(other.place for other in others)
            chosen.append(replace(first, tied=tied))
    return chosen


def _count(
    rule: AggregationRule,
    place: str,
    symptoms: Mapping[str, Sequence[Symptom]],
    newest: datetime,
    around: Surroundings,
) -> dict[str, Symptom]:
    found: dict[str, Symptom] = {}
    for symptom in symptoms.get(place, ()):
        is_in_time = newest - rule.window <= symptom.at <= newest
        is_held = rule.outlasted and symptom.is_held
        if is_in_time and not is_held and not _is_explained(rule, place, symptom):
            unit = _get_unit(rule, place, symptom, around)
            if unit is not None and _says_more(symptom, found.get(unit)):
                found[unit] = symptom
    return found


def _says_more(symptom: Symptom, earlier: Symptom | None) -> bool:
    """The first of a unit stands for it, unless that is a text alone and this one is believed."""
    if earlier is None:
        return True
    return symptom.fault.is_believed and not earlier.fault.is_believed


def _is_explained(rule: AggregationRule, place: str, symptom: Symptom) -> bool:
    """It belongs to an incident whose root is something else than such an symptom, or the same in a
    wider place."""
    if symptom.root_type == rule.concludes:
        return _get_width(symptom.root_place) > _get_width(place)
    return symptom.root_type != "" and not rule.takes(symptom.root_type)


def _get_width(place: str) -> int:
    return _WIDTHS.get(place.partition("/")[0], 0)


def _get_unit(
    rule: AggregationRule, place: str, symptom: Symptom, around: Surroundings
) -> str | None:
    """What the symptom counts as at this place; None: nothing."""
    if rule.counts is Counts.JOBS:
        return symptom.jobs or None
    if rule.counts is Counts.CHILDREN:
        return around.graph.find_child(place, symptom.fault.resource)
    if rule.counts is Counts.SPINES:
        owner = symptom.fault.owner
        return owner if owner in around.graph.get_switches(place, SPINE) else None
    behind = get_machines_behind(place, around)
    if rule.counts is Counts.LEAFS:
        return symptom.fault.owner if symptom.fault.owner in behind else None
    far_end = around.graph.find_peer(symptom.fault.resource) or ""
    ends = (symptom.fault.owner, resources.owner(far_end))
    return next((machine for machine in ends if machine in behind), None)


def count_expected(rule: AggregationRule, place: str, around: Surroundings) -> int:
    """How many there are to be counted."""
    if rule.counts is Counts.JOBS:
        return 0
    if rule.counts is Counts.CHILDREN:
        return len(around.graph.get_children(place))
    if rule.counts is Counts.SPINES:
        return len(around.graph.get_switches(place, SPINE))
    return len(get_machines_behind(place, around))


def _is_quiet(
    here: SymptomCount,
    symptoms: Mapping[str, Sequence[Symptom]],
    newest: datetime,
    around: Surroundings,
) -> bool:
    """Whether at least half of the places beside it show less than half of what this one does."""
    beside = around.graph.get_siblings(here.place) if here.rule.quiet else NOTHING
    quiet = 0
    for sibling in beside:
        total = count_expected(here.rule, sibling, around)
        shown = len(_count(here.rule, sibling, symptoms, newest, around))
        share = shown / total if total else 0.0
        quiet += share * 2 < here.share
    return quiet * 2 >= len(beside)


def _has_sound_far_end(
    here: SymptomCount,
    failures: Mapping[str, Sequence[Symptom]],
    newest: datetime,
    around: Surroundings,
) -> bool:
    """Whether a machine that is counted at the place shows no failure of its own elsewhere."""
    if not here.rule.far_end_failed:
        return True
    own = around.graph.get_children(here.place)
    for child in here.counted:
        machine = resources.owner(around.graph.find_peer(child) or "")
        if not any(
            _is_failure_elsewhere(here.rule, symptom, own, newest, around)
            for symptom in failures.get(machine, ())
        ):
            return True
    return not here.counted


def _is_failure_elsewhere(
    rule: AggregationRule,
    symptom: Symptom,
    own: frozenset[str],
    newest: datetime,
    around: Surroundings,
) -> bool:
    """Not of a link of the place itself, and not explained by what is no such failure, as a switch
    behind which the machine is. Slurm and polls tell of a machine later than switches do."""
    resource = symptom.fault.resource
    if resource in own or around.graph.find_peer(resource) in own:
        return False
    is_in_time = symptom.at >= newest - rule.window
    is_held = rule.outlasted and symptom.is_held
    is_explained = symptom.root_type != "" and symptom.root_type not in rule.failure_types
    return is_in_time and not is_held and not is_explained
