"""Counting rules as data: how many effects that meet at one place conclude what they have in
common, and what waits.

Rows are the `[[gather]]` tables of `correlation/gather.toml` and of a site's own folder. Pure apart
from reading them; `incidents.triage.aggregation` counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from detectors import toml_text
from detectors.catalog import catalog as fault_catalog
from detectors.catalog import rows
from detectors.catalog.catalog import Catalog
from incidents.correlation.rules import CorrelationError
from incidents.vocabulary.relations import Relation

_FILE = Path(__file__).parent / "gather.toml"
_NEEDED = (
    "name",
    "effect",
    "relation",
    "at",
    "counts",
    "fewest",
    "window",
    "concludes",
    "because",
    "source",
)
_OPTIONAL = (
    *("but_not", "share", "quiet", "far_end_failed", "outlasted", "also_ended", "ties"),
    *("hold", "hold_at", "holds_hardware", "clears_below", "enabled"),
)

_SHAPES: Mapping[str, rows.Shape] = {
    "name": rows.TEXT,
    "effect": rows.TEXTS,
    "window": rows.TEXT,
    "concludes": rows.TEXT,
    "because": rows.TEXT,
    "source": rows.TEXT,
    "but_not": rows.TEXTS,
    "quiet": rows.FLAG,
    "far_end_failed": rows.TEXTS,
    "outlasted": rows.FLAG,
    "also_ended": rows.FLAG,
    "hold": rows.TEXT,
    "hold_at": rows.COUNT,
    "holds_hardware": rows.FLAG,
    "enabled": rows.FLAG,
}


class AggregationError(CorrelationError):
    """The rules cannot be used. The message has one line per problem: file, line, rule, what was
    expected."""


class Place(StrEnum):
    """What effects can have in common."""

    LEAF = "leaf"
    SPINE = "spine"
    STORAGE_SWITCH = "storage_switch"
    MODULE = "module"
    FILE_SYSTEM = "file_system"
    RACK = "rack"
    FEED = "feed"
    POD = "pod"
    SPINES = "spines"
    STORAGE_SWITCHES = "storage_switches"
    SWITCHES = "switches"
    SITE = "site"
    NODE = "node"
    JOB = "job"
    GPU = "gpu"


class Counts(StrEnum):
    """What is counted once, however many effects it shows."""

    CHILDREN = "children"
    MACHINES = "machines"
    SPINES = "spines"
    LEAFS = "leafs"
    JOBS = "jobs"


class Ties(StrEnum):
    """What is concluded where two places explain the same effects equally well."""

    NEITHER = "neither"
    FIRST = "first"


@dataclass(frozen=True)
class AggregationRule:
    """One row. `share` is of all that hang on the place. `quiet`: most places beside it show less
    than half as much. `far_end_failed` are fault types that show that a machine failed by itself:
    nothing is concluded where every machine at the far ends shows one elsewhere.

    From `hold_at` effects on, repairs behind the place wait for `hold`; `holds_hardware` False lets
    those go on whose root is a node's own hardware. `outlasted` counts no fault whose hold-down
    runs. `also_ended` counts what is over. A conclusion ends when fewer than `clears_below` of what
    made it still stand.
    """

    name: str
    effect: tuple[str, ...]
    relation: Relation
    at: Place
    counts: Counts
    fewest: int
    window: timedelta
    concludes: str
    because: str
    source: str
    but_not: tuple[str, ...] = ()
    share: float = 0.0
    quiet: bool = False
    far_end_failed: tuple[str, ...] = ()
    outlasted: bool = False
    also_ended: bool = False
    ties: Ties = Ties.FIRST
    hold: timedelta = timedelta(0)
    hold_at: int = 0
    holds_hardware: bool = True
    clears_below: float = 0.5

    def compute_needed(self, of: int) -> int:
        """How many of so many conclude."""
        return max(self.fewest, math.ceil(of * self.share))

    def takes(self, fault_type: str) -> bool:
        return fault_type in self.types

    @cached_property
    def types(self) -> frozenset[str]:
        """The fault types of the catalogue that are effects."""
        effects = _get_types_of(self.effect)
        return frozenset(name for name in effects if not _is_one_of(name, self.but_not))

    @cached_property
    def failure_types(self) -> frozenset[str]:
        """The fault types of the catalogue that show that a machine failed by itself."""
        return _get_types_of(self.far_end_failed)


@lru_cache(maxsize=4)
def get_types_by_time(*extra_folders: Path) -> frozenset[str]:
    """The types of which each sighting counts, and not only the fault: those of rules that count
    jobs."""
    return frozenset().union(
        *(rule.types for rule in load(*extra_folders) if rule.counts is Counts.JOBS)
    )


def _get_types_of(patterns: Sequence[str]) -> frozenset[str]:
    known = [row.id for row in fault_catalog.load()]
    return frozenset(name for name in known if _is_one_of(name, patterns))


def _is_one_of(fault_type: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(fault_type, pattern) for pattern in patterns)


@lru_cache(maxsize=4)
def load(*extra_folders: Path) -> tuple[AggregationRule, ...]:
    """The rules that ship with Kintsugi with those of a site, in order: the wider place first.
    Raises GatherError.

    A site's row of one of our names takes that row's place, its others come before ours; `enabled =
    false` ends one.
    """
    files = [[_FILE], *(sorted(folder.glob("*.toml")) for folder in extra_folders)]
    return read(*map(_read_texts, files))


def _read_texts(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Each file's name and text. Raises GatherError."""
    return [(path.name, _get_text(path)) for path in paths]


def _get_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AggregationError(f"{path.name}: cannot be read: {error}") from error


def read(
    *folders: Sequence[tuple[str, str]], catalog: Catalog | None = None
) -> tuple[AggregationRule, ...]:
    """The rules of the files (name, text) of each folder. Raises GatherError naming every
    problem."""
    known = catalog or fault_catalog.load()
    problems: list[str] = []
    chosen: list[_Row] = []
    for files in folders:
        own: dict[str, _Row] = {}
        for row in [row for file, text in files for row in _list_rows(file, text, problems)]:
            if row.name in own:
                problems.append(
                    f"{row.where}: {row.name}: name: a second rule of this name, at"
                    f" {own[row.name].where}"
                )
            own[row.name or row.where] = row
        chosen = [own.pop(row.name, row) for row in chosen]
        chosen = [*own.values(), *chosen]
    rules: list[AggregationRule] = []
    for row in chosen:
        rule, reasons = (None, []) if row.is_off else _parse_rule(row.values, known)
        problems += [f"{row.where}: {row.name or 'row'}: {reason}" for reason in sorted(reasons)]
        rules += [rule] if rule is not None else []
    if problems:
        raise AggregationError("\n".join(problems))
    return tuple(rules)


@dataclass(frozen=True)
class _Row:
    where: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.values.get("name", ""))

    @property
    def is_off(self) -> bool:
        return self.values.get("enabled", True) is False and bool(self.name)


def _list_rows(file: str, text: str, problems: list[str]) -> Iterator[_Row]:
    """Each `[[gather]]` with its file and line (1-based): tomllib keeps no lines. Other tables are
    not read here."""
    try:
        found = toml_text.parse(text)
    except ValueError as error:
        problems.append(f"{file}: cannot be read: {error}")
        return
    numbers = [
        number for number, line in enumerate(text.splitlines(), 1) if line.strip() == "[[gather]]"
    ]
    if not rows.are_rows(found.get("gather", [])):
        problems.append(f"{file}: gather is written as rows: [[gather]]")
        return
    for index, row in enumerate(found.get("gather", [])):
        yield _Row(f"{file}:{numbers[index] if index < len(numbers) else '?'}", row)


def _parse_rule(
    row: Mapping[str, Any], catalog: Catalog
) -> tuple[AggregationRule | None, list[str]]:
    reasons = [f"{key}: unknown" for key in sorted(set(row) - {*_NEEDED, *_OPTIONAL})]
    reasons += [f"{key}: missing" for key in _NEEDED if not row.get(key)]
    reasons += rows.list_wrong_shapes(row, _SHAPES)
    if reasons:
        return None, reasons
    values: dict[str, Any] = dict(row)
    for key, enum in (("relation", Relation), ("at", Place), ("counts", Counts), ("ties", Ties)):
        if key in row:
            values[key] = rows.member(enum, key, row[key], reasons)
    for key in ("window", "hold"):
        if key in row:
            values[key] = rows.duration(key, row[key], reasons)
    for key in ("effect", "but_not", "far_end_failed"):
        values[key] = _parse_patterns(key, row.get(key, ()), catalog, reasons)
    rows.count("fewest", row["fewest"], reasons)
    for key in ("share", "clears_below"):
        if not 0 <= rows.number(key, row.get(key, 0), reasons) <= 1:
            reasons.append(f"{key}: {row[key]} is no share from 0 to 1")
    if row["concludes"] not in catalog:
        reasons.append(f"concludes: {row['concludes']} is no fault type of the catalogue")
    values.pop("enabled", None)
    if bool(row.get("hold")) != bool(row.get("hold_at")):
        reasons.append("hold and hold_at: each needs the other")
    return (None, reasons) if reasons else (AggregationRule(**values), [])


def _parse_patterns(key: str, given: Any, catalog: Catalog, reasons: list[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(str(each) for each in given)
    for pattern in patterns:
        if pattern not in catalog and not any(fnmatchcase(row.id, pattern) for row in catalog):
            reasons.append(f"{key}: {pattern} matches no fault type of the catalogue")
    return patterns
