"""Reads and checks the rules of correlation. Reports every problem at once; never guesses what a
row may have meant.

Pure apart from reading folders: `correlation/` here, and those that a site adds, whose rules come
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from detectors import toml_text
from detectors.catalog import catalog as fault_catalog
from detectors.catalog import rows
from detectors.catalog.catalog import Catalog
from detectors.faults import Component
from incidents.correlation.rules import (
    CauseOrder,
    CorrelationError,
    FaultClass,
    Lasts,
    ResourceKind,
    Root,
    Rule,
    RuleSet,
)
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Relation

_DIRECTORY = Path(__file__).parent
# Read by `incidents.correlation.aggregation_rules`, from the same files.
_OTHERS = ("gather",)
_LONGEST_NAME = 64
_JOIN = "join"
_FLAGS = ("is_hardware", "is_sympathetic", "opens_incident", "calls_for_repair", "is_link")
_CLASS_KEYS = frozenset({"name", "types", "but_not", "on", "components", *_FLAGS})
_TEXTS = ("because", "source", "explains")
_RULE_FLAGS = ("by_root", "reported_only", "one_machine")
_RULE_KEYS = frozenset(
    {
        *("name", "cause", "effect", "relation", "window", "lasts", "direction", "root", "states"),
        "enabled",
        *_TEXTS,
        *_RULE_FLAGS,
    }
)
_NEEDED = ("name", "cause", "effect", "relation", "because", "source")
_SHAPES = dict.fromkeys(("name", *_TEXTS), rows.TEXT) | {"enabled": rows.FLAG}
_Word = TypeVar("_Word", bound=Enum)


@dataclass(frozen=True)
class _Row:
    where: str
    values: Mapping[str, Any]
    folder: int

    @property
    def name(self) -> str:
        return str(self.values.get("name", ""))


@dataclass
class _Reader:
    """One pass over the folders: collects rows and problems, never stops at the first."""

    catalog: Catalog
    problems: list[str] = field(default_factory=list)
    class_rows: list[_Row] = field(default_factory=list)
    rule_rows: list[_Row] = field(default_factory=list)
    classes: dict[str, FaultClass] = field(default_factory=dict)

    def read(self, path: Path, folder: int) -> None:
        try:
            text = path.read_text(encoding="utf-8")
            tables = toml_text.parse(text)
        except (OSError, ValueError) as error:
            self.problems.append(f"{path.name}: cannot be read: {error}")
            return
        for name in sorted(set(tables) - {"class", "rule", *_OTHERS}):
            self.problems.append(f"{path.name}: unknown table {name}: expected class or rule")
        for name in ("class", "rule"):
            if not rows.are_rows(tables.get(name, [])):
                self.problems.append(f"{path.name}: {name} is written as rows: [[{name}]]")
                tables[name] = []
        for where, row in _list_with_places(path.name, text, tables, "class"):
            self.class_rows.append(_Row(where, row, folder))
        for where, row in _list_with_places(path.name, text, tables, "rule"):
            self.rule_rows.append(_Row(where, row, folder))

    def build_rule_set(self) -> RuleSet:
        for row in self._merge_rows_by_name(self.class_rows, "class"):
            self._apply(row, _CLASS_KEYS, ("name",), self._add_class)
        rules: list[Rule] = []

        def add_rule(row: _Row, reasons: list[str]) -> None:
            rules.append(self._parse_rule(row, reasons))

        for row in self._merge_rows_by_name(self.rule_rows, "rule"):
            if row.values.get("enabled", True) is not False:
                self._apply(row, _RULE_KEYS, _NEEDED, add_rule)
        if self.problems:
            raise CorrelationError("\n".join(self.problems))
        return RuleSet(tuple(rules), dict(self.classes))

    def _merge_rows_by_name(self, given_rows: Sequence[_Row], what: str) -> list[_Row]:
        """One row per name: a later folder's takes the place of ours and leads; twice in one folder
        is an error."""
        kept: dict[str, _Row] = {}
        for row in given_rows:
            namesake = kept.get(row.name)
            if namesake is not None and namesake.folder == row.folder and row.name:
                self.problems.append(
                    f"{row.where}: name: a second {what} {row.name}, first at {namesake.where}"
                )
            if namesake is None or row.folder > namesake.folder:
                kept.pop(row.name, None)
                kept[row.name or row.where] = row
        return sorted(kept.values(), key=lambda row: -row.folder)

    def _apply(self, row: _Row, known: frozenset[str], needed: Sequence[str], add: Any) -> None:
        reasons = [
            f"{key}: unknown, expected one of {', '.join(sorted(known))}"
            for key in set(row.values) - known
        ]
        reasons += [f"{key}: missing" for key in needed if not row.values.get(key)]
        reasons += rows.list_wrong_shapes(row.values, _SHAPES)
        if not reasons:
            add(row, reasons)
        self.problems += [
            f"{row.where}: {row.name or 'row'}: {reason}" for reason in sorted(reasons)
        ]

    def _add_class(self, row: _Row, reasons: list[str]) -> None:
        values = row.values
        given_flags = [flag for flag in _FLAGS if flag in values]
        flags = [(flag, _parse_flag(flag, values[flag], reasons)) for flag in given_flags]
        types = self._parse_patterns("types", values.get("types", ["*"]), reasons)
        but_not = self._parse_patterns("but_not", values.get("but_not", []), reasons)
        kinds = _parse_words(ResourceKind, "on", values.get("on", []), reasons)
        components = _parse_words(Component, "components", values.get("components", []), reasons)
        self.classes[row.name] = FaultClass(
            row.name, types, but_not, kinds, components, tuple(flags)
        )

    def _parse_patterns(self, key: str, given: Any, reasons: list[str]) -> tuple[str, ...]:
        patterns = tuple(_parse_texts(key, given, reasons))
        for pattern in patterns:
            if not self._is_known(pattern):
                reasons.append(f"{key}: {pattern} matches no fault type of the catalogue")
        return patterns

    def _is_known(self, pattern: str) -> bool:
        return pattern in self.catalog or any(fnmatchcase(row.id, pattern) for row in self.catalog)

    def _parse_rule(self, row: _Row, reasons: list[str]) -> Rule:
        values = row.values
        if len(row.name) > _LONGEST_NAME:
            reasons.append(f"name: longer than {_LONGEST_NAME} characters")
        cause = self._parse_side("cause", values["cause"], reasons)
        effect = self._parse_side("effect", values["effect"], reasons)
        words = _parse_texts("relation", values["relation"], reasons)
        relations = tuple(_parse_ordered_words(Relation, "relation", words, reasons))
        texts = {key: str(values.get(key, "")) for key in _TEXTS}
        others: dict[str, Any] = texts | _read_times(values, reasons)
        others |= _read_choices(values, reasons)
        return Rule(
            name=row.name,
            cause=cause,
            effect=effect,
            relations=relations,
            where=row.where,
            **others,
        )

    def _parse_side(self, key: str, given: Any, reasons: list[str]) -> tuple[FaultClass, ...]:
        classes = []
        for term in _parse_texts(key, given, reasons):
            if not term.startswith("@"):
                classes.append(FaultClass(term, types=self._parse_patterns(key, [term], reasons)))
                continue
            known = self.classes.get(term[1:])
            if known is not None:
                classes.append(known)
            else:
                names = ", ".join(sorted(self.classes))
                reasons.append(f"{key}: {term} is no class; known are {names}")
        return tuple(classes)


def _read_times(values: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """How far apart cause and effect may be, and which of them comes first."""
    window = _parse_window(values.get("window", _JOIN), reasons)
    lasts = _parse_word(Lasts, "lasts", values, reasons, Lasts.WINDOW)
    direction = _parse_word(CauseOrder, "direction", values, reasons, CauseOrder.EITHER)
    return {"window": window, "lasts": lasts, "direction": direction}


def _read_choices(values: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """Which side is the root, and to which incidents the rule applies."""
    flags = {flag: _parse_flag(flag, values.get(flag, False), reasons) for flag in _RULE_FLAGS}
    root = _parse_word(Root, "root", values, reasons, Root.CAUSE)
    states = _parse_words(State, "states", values.get("states", []), reasons)
    return {"root": root, "states": states, **flags}


def _list_with_places(
    file: str, text: str, tables: Mapping[str, Any], name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of `[[name]]` with its file and line (1-based): tomllib keeps no lines."""
    header = f"[[{name}]]"
    lines = enumerate(text.splitlines(), 1)
    numbers = [number for number, line in lines if line.strip() == header]
    for index, row in enumerate(tables.get(name, ())):
        yield f"{file}:{numbers[index] if index < len(numbers) else '?'}", row


def _parse_texts(key: str, given: Any, reasons: list[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        reasons.append(f"{key}: expected a text or a list of texts, not {given!r}")
        return []
    return texts


def _parse_flag(key: str, given: Any, reasons: list[str]) -> bool:
    if not isinstance(given, bool):
        reasons.append(f"{key}: expected true or false, not {given!r}")
    return given is True


def _parse_ordered_words(
    enum: type[_Word], key: str, given: Sequence[str], reasons: list[str]
) -> list[_Word]:
    return [enum(word) for word in given if rows.member(enum, f"{key}:", word, reasons) is not None]


def _parse_words(enum: type[_Word], key: str, given: Any, reasons: list[str]) -> frozenset[_Word]:
    words = _parse_texts(key, given, reasons)
    return frozenset(_parse_ordered_words(enum, key, words, reasons))


def _parse_word(
    enum: type[_Word], key: str, values: Mapping[str, Any], reasons: list[str], unset: _Word
) -> _Word:
    if key not in values:
        return unset
    known = _parse_ordered_words(enum, key, [values[key]], reasons)
    return known[0] if known else unset


def _parse_window(given: Any, reasons: list[str]) -> timedelta | None:
    """None stands for the site's join window."""
    return None if given == _JOIN else rows.duration("window:", given, reasons)


def read(folders: Sequence[Path], catalog: Catalog) -> RuleSet:
    """The rules of these folders, those of the last folder first. Raises CorrelationError naming
    every problem."""
    reader = _Reader(catalog)
    for number, folder in enumerate(folders):
        paths = sorted(folder.glob("*.toml"))
        if not paths:
            reader.problems.append(f"{folder}: no folder with *.toml files")
        for path in paths:
            reader.read(path, number)
    return reader.build_rule_set()


@lru_cache(maxsize=4)
def load(*extra_folders: Path) -> RuleSet:
    """The shipped rules, and before them those of a site; read once per process. Raises
    CorrelationError."""
    return read([_DIRECTORY, *extra_folders], fault_catalog.load())
