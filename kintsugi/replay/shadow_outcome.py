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

    def groups(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for fault, placed in self.placed.items():
            if placed.incident is not None:
                found[placed.incident].add(fault)
        return dict(found)

    def root_of(self, incident: int, faults: set[int]) -> int:
        """The root where it is among the faults of the period, else the first of them."""
        return next((fault for fault in sorted(faults) if self.placed[fault].is_root), min(faults))


class DifferenceKind(StrEnum):
    ONE = "one"
    APART = "apart"
    OTHERWISE = "otherwise"
    OTHER_ROOT = "other_root"
    NEW = "new"
    NONE = "none"


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
        names = _listed([f"#{number}" for number in self.incidents] or list(self.titles))
        after = "; ".join(_told(one) for one in self.would_be)
        return {
            DifferenceKind.ONE: f"{names} would be one: {after}",
            DifferenceKind.APART: f"{names} would be {len(self.would_be)} incidents: {after}",
            DifferenceKind.OTHERWISE: f"{names} would be put together otherwise: {after}",
            DifferenceKind.OTHER_ROOT: f"{names} would have another root: {after}",
            DifferenceKind.NEW: f"a new incident: {after}",
            DifferenceKind.NONE: f"{names} would not have been opened",
        }[self.kind]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value, "text": self.text}


def differences(
    before: ShadowOutcome, after: ShadowOutcome, recorded: ShadowOutcome
) -> list[OutcomeDifference]:
    """What would be one, apart, or of another root; the site's incident numbers come from
    `recorded`."""
    was, would = before.groups(), after.groups()
    found = [
        _difference(
            {one: was[one] for one in olds},
            {one: would[one] for one in news},
            (before, after, recorded),
        )
        for olds, news in _touching(was, would)
    ]
    return [one for one in found if one is not None]


def _touching(
    was: Mapping[int, set[int]], would: Mapping[int, set[int]]
) -> list[tuple[set[int], set[int]]]:
    """Incidents of both outcomes that share faults, directly or through others."""
    old_of = {fault: one for one, faults in was.items() for fault in faults}
    new_of = {fault: one for one, faults in would.items() for fault in faults}
    left, pieces = dict.fromkeys([*old_of, *new_of]), []
    while left:
        olds: set[int] = set()
        news: set[int] = set()
        waiting = [next(iter(left))]
        while waiting:
            fault = waiting.pop()
            if fault not in left:
                continue
            del left[fault]
            if fault in old_of and old_of[fault] not in olds:
                olds.add(old_of[fault])
                waiting.extend(was[old_of[fault]])
            if fault in new_of and new_of[fault] not in news:
                news.add(new_of[fault])
                waiting.extend(would[new_of[fault]])
        pieces.append((olds, news))
    return pieces


def _difference(
    was: Mapping[int, set[int]],
    would: Mapping[int, set[int]],
    outcomes: tuple[ShadowOutcome, ShadowOutcome, ShadowOutcome],
) -> OutcomeDifference | None:
    before, after, recorded = outcomes
    roots = {one: before.root_of(one, faults) for one, faults in was.items()}
    kind = _kind(was, would, roots, after)
    if kind is None:
        return None
    numbers = {recorded.placed[root].incident for root in roots.values() if root in recorded.placed}
    return OutcomeDifference(
        kind,
        tuple(sorted(number for number in numbers if number is not None)),
        tuple(before.titles.get(one, "") for one in sorted(was)),
        tuple(_would_be(one, would[one], after, set(roots.values())) for one in sorted(would)),
    )


def _kind(
    was: Mapping[int, set[int]],
    would: Mapping[int, set[int]],
    roots: Mapping[int, int],
    after: ShadowOutcome,
) -> DifferenceKind | None:
    if len(was) == 1 and len(would) == 1:
        (new,), (root,) = would, roots.values()
        return None if after.root_of(new, would[new]) == root else DifferenceKind.OTHER_ROOT
    if not was or not would:
        return DifferenceKind.NEW if would else DifferenceKind.NONE
    if len(would) == 1:
        return DifferenceKind.ONE
    return DifferenceKind.APART if len(was) == 1 else DifferenceKind.OTHERWISE


def _would_be(one: int, faults: set[int], after: ShadowOutcome, old_roots: set[int]) -> WouldBe:
    """With the rules that put the former roots here. What came later and took the root says why in
    its own sentence."""
    root = after.placed[after.root_of(one, faults)]
    former = [
        after.placed[fault]
        for fault in sorted(faults & old_roots)
        if not after.placed[fault].is_root
    ]
    told = [*(placed for placed in former if not placed.because.startswith(_TOOK_OVER)), root]
    rules = dict.fromkeys(placed.rule for placed in (*former, root) if placed.rule != _OWN)
    because = dict.fromkeys(
        placed.because for placed in told if placed.rule != _OWN or len(told) == 1
    )
    return WouldBe(after.titles.get(one, ""), len(faults), tuple(rules), tuple(because))


def _told(one: WouldBe) -> str:
    faults = f"{one.faults} fault{'' if one.faults == 1 else 's'}"
    rules = _listed(one.rules)
    why = "; ".join(sentence for sentence in one.because[:2] if sentence)
    by = f" by {rules}" if rules else ""
    return f"{one.title} ({faults}{by}{f': {why}' if why else ''})"


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more
