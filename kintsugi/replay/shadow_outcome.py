"""Two ways in which the same faults fall into incidents, and how they differ. Pure: no database, no
clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

_NAMED = 4
# The rule of a fault that opened its incident, and how the sentence of a root that gave way begins.
_OWN = "root"
_TOOK_OVER = "was the root until"


Groups = Mapping[int, set[int]]
"""Incidents of one outcome by their number, each with its faults."""


@dataclass(frozen=True)
class Placed:
    """Where one fault is: its incident (None: in none), whether it is the root there, and by which
    rule and why."""

    incident: int | None
    is_root: bool = False
    rule: str = ""
    because: str = ""


@dataclass(frozen=True)
class ShadowOutcome:
    """Each fault of the period by its number in the site's database. `titles`: incidents by this
    outcome's numbers."""

    placed: Mapping[int, Placed]
    titles: Mapping[int, str] = field(default_factory=dict)

    def get_groups(self) -> dict[int, set[int]]:
        faults_of: dict[int, set[int]] = defaultdict(set)
        for fault, placed in self.placed.items():
            if placed.incident is not None:
                faults_of[placed.incident].add(fault)
        return dict(faults_of)

    def get_root(self, faults: set[int]) -> int:
        """Of an incident's faults, the root where it is of the period, else the first."""
        for fault in sorted(faults):
            if self.placed[fault].is_root:
                return fault
        return min(faults)


class DifferenceKind(StrEnum):
    ONE = "one"
    APART = "apart"
    OTHERWISE = "otherwise"
    OTHER_ROOT = "other_root"
    NEW = "new"
    NONE = "none"


_SENTENCES = {
    DifferenceKind.ONE: "{names} would be one: {after}",
    DifferenceKind.APART: "{names} would be {count} incidents: {after}",
    DifferenceKind.OTHERWISE: "{names} would be put together otherwise: {after}",
    DifferenceKind.OTHER_ROOT: "{names} would have another root: {after}",
    DifferenceKind.NEW: "a new incident: {after}",
    DifferenceKind.NONE: "{names} would not have been opened",
}


@dataclass(frozen=True)
class WouldBe:
    """An incident as the changed rules would have it."""

    title: str
    faults: int
    rules: tuple[str, ...]
    because: tuple[str, ...]


@dataclass(frozen=True)
class OutcomeDifference:
    """`incidents` are the site's own numbers, of those that it has; `titles` are those of the
    incidents before."""

    kind: DifferenceKind
    incidents: tuple[int, ...]
    titles: tuple[str, ...]
    would_be: tuple[WouldBe, ...]

    @property
    def text(self) -> str:
        numbers = [f"#{number}" for number in self.incidents]
        names = _format_list(numbers or self.titles)
        after = "; ".join(_format_would_be(incident) for incident in self.would_be)
        sentence = _SENTENCES[self.kind]
        return sentence.format(names=names, count=len(self.would_be), after=after)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value, "text": self.text}


def compute_differences(
    before: ShadowOutcome, after: ShadowOutcome, recorded: ShadowOutcome
) -> list[OutcomeDifference]:
    """What would be one, apart, or of another root; the site's incident numbers come from
    `recorded`."""
    groups_before, groups_after = before.get_groups(), after.get_groups()
    found = []
    for incidents_before, incidents_after in _list_connected_incidents(groups_before, groups_after):
        connected_before = {incident: groups_before[incident] for incident in incidents_before}
        connected_after = {incident: groups_after[incident] for incident in incidents_after}
        outcomes = (before, after, recorded)
        difference = _find_difference(connected_before, connected_after, outcomes)
        if difference is not None:
            found.append(difference)
    return found


def _list_connected_incidents(
    groups_before: Groups, groups_after: Groups
) -> list[tuple[set[int], set[int]]]:
    """Incidents of both outcomes that share faults, directly or through others."""
    before_of = _map_faults_to_incidents(groups_before)
    after_of = _map_faults_to_incidents(groups_after)
    unvisited = dict.fromkeys([*before_of, *after_of])
    components = []
    while unvisited:
        incidents_before: set[int] = set()
        incidents_after: set[int] = set()
        queue = [next(iter(unvisited))]
        while queue:
            fault = queue.pop()
            if fault not in unvisited:
                continue
            del unvisited[fault]
            queue += _visit_incident_of(fault, before_of, groups_before, incidents_before)
            queue += _visit_incident_of(fault, after_of, groups_after, incidents_after)
        components.append((incidents_before, incidents_after))
    return components


def _map_faults_to_incidents(groups: Groups) -> dict[int, int]:
    incident_of = {}
    for incident, faults in groups.items():
        incident_of.update(dict.fromkeys(faults, incident))
    return incident_of


def _visit_incident_of(
    fault: int, incident_of: Mapping[int, int], groups: Groups, visited: set[int]
) -> set[int]:
    """The faults of its incident, which is then visited; none where it was before."""
    incident = incident_of.get(fault)
    if incident is None or incident in visited:
        return set()
    visited.add(incident)
    return groups[incident]


def _find_difference(
    groups_before: Groups,
    groups_after: Groups,
    outcomes: tuple[ShadowOutcome, ShadowOutcome, ShadowOutcome],
) -> OutcomeDifference | None:
    before, after, recorded = outcomes
    roots = {before.get_root(faults) for faults in groups_before.values()}
    kind = _find_kind(groups_before, groups_after, roots, after)
    if kind is None:
        return None
    places = [recorded.placed[root] for root in roots if root in recorded.placed]
    numbers = {place.incident for place in places if place.incident is not None}
    titles = [before.titles.get(incident, "") for incident in sorted(groups_before)]
    would_be = []
    for incident, faults in sorted(groups_after.items()):
        title = after.titles.get(incident, "")
        would_be.append(_build_would_be(title, faults, after, roots))
    return OutcomeDifference(kind, tuple(sorted(numbers)), tuple(titles), tuple(would_be))


def _find_kind(
    groups_before: Groups, groups_after: Groups, roots: set[int], after: ShadowOutcome
) -> DifferenceKind | None:
    if len(groups_before) == 1 and len(groups_after) == 1:
        (faults,) = groups_after.values()
        has_same_root = after.get_root(faults) in roots
        return None if has_same_root else DifferenceKind.OTHER_ROOT
    if not groups_before or not groups_after:
        return DifferenceKind.NEW if groups_after else DifferenceKind.NONE
    if len(groups_after) == 1:
        return DifferenceKind.ONE
    return DifferenceKind.APART if len(groups_before) == 1 else DifferenceKind.OTHERWISE


def _build_would_be(
    title: str, faults: set[int], after: ShadowOutcome, old_roots: set[int]
) -> WouldBe:
    """With the rules that put the former roots here. What came later and took the root says why in
    its own sentence."""
    root = after.placed[after.get_root(faults)]
    old_root_places = [after.placed[fault] for fault in sorted(faults & old_roots)]
    former = [place for place in old_root_places if not place.is_root]
    rules = dict.fromkeys(place.rule for place in (*former, root) if place.rule != _OWN)
    explained = [place for place in former if not place.because.startswith(_TOOK_OVER)]
    if explained:
        joined = [place for place in (*explained, root) if place.rule != _OWN]
        because = dict.fromkeys(place.because for place in joined)
    else:
        because = {root.because: None}
    return WouldBe(title, len(faults), tuple(rules), tuple(because))


def _format_would_be(incident: WouldBe) -> str:
    faults = f"{incident.faults} fault{'' if incident.faults == 1 else 's'}"
    rules = f" by {_format_list(incident.rules)}" if incident.rules else ""
    reasons = "; ".join(sentence for sentence in incident.because[:2] if sentence)
    why = f": {reasons}" if reasons else ""
    return f"{incident.title} ({faults}{rules}{why})"


def _format_list(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more
