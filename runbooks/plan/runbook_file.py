"""Reads one runbook's YAML file. Reports every problem with its line and what was expected; never
guesses.

Anchors, aliases, tags, a second document, deep nesting and large files are refused before anything
is built of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import yaml

from detectors.catalog import rows
from detectors.catalog.catalog import Catalog
from detectors.faults import Action, Component, Fitness, Recovery, Severity
from runbooks.plan.escalation_levels import RUNGS
from runbooks.plan.limits import Limits
from runbooks.plan.plan_rules import find_order_problems
from runbooks.plan.runbook import Planned, Purpose, Runbook

LARGEST = 64 * 1024
# A runbook needs five; what is nested more deeply is no runbook.
_DEEPEST = 12
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
# What people call the whole site where they name a runbook, as in `kintsugi mode set site shadow`.
SITE_WORD = "site"
_LONGEST_TITLE, _LONGEST_MEANING, _MOST_STEPS = 80, 2000, 40
_KEYS = ("name", "version", "title", "meaning", "for", "rung", "steps", "limits")
_NEEDED = ("name", "version", "title", "meaning", "steps")
_PURPOSE_ENUMS: Mapping[str, type[Enum]] = {
    "actions": Action,
    "components": Component,
    "severities": Severity,
    "fitness": Fitness,
}
_PURPOSE_KEYS = ("faults", "but_not", "severities", "fitness", "actions", "components", "lemons")
_LIMIT_KEYS = ("per_hour", "approval_above", "window")
_APPROVAL = "approval"
_Word = TypeVar("_Word", bound=Enum)
PlanStep = Callable[..., Planned]


class LibraryError(Exception):
    """A runbook that cannot be. One line per problem: file, line, what is wrong and what was
    expected."""


@dataclass(frozen=True)
class _Entry:
    """A key's value and the line on which the key stands."""

    line: int
    node: yaml.Node


@dataclass
class Reader:
    """One pass over one file: collects problems, never stops at the first."""

    file: str
    catalog: Catalog
    plan_step: PlanStep
    problems: list[tuple[int, str]] = field(default_factory=list)

    def add_problem(self, line: int, what: str) -> None:
        self.problems.append((line, what))

    def format_problems(self) -> str:
        return "\n".join(f"{self.file}:{line}: {what}" for line, what in sorted(self.problems))

    def read_mapping(
        self, node: yaml.Node, what: str, known: Sequence[str] | None = None
    ) -> dict[str, _Entry]:
        """Its entries by key; a key twice or one that is not known is a problem."""
        found: dict[str, _Entry] = {}
        if not isinstance(node, yaml.MappingNode):
            self.add_problem(
                get_line(node), f"{what} is {format_node(node)}; expected keys with values"
            )
            return found
        for key, value in node.value:
            line = get_line(key)
            name = key.value if isinstance(key, yaml.ScalarNode) else format_node(key)
            if name in found:
                first = f"first on line {found[name].line}"
                self.add_problem(line, f"{what}: {name} stands twice, {first}; expected once")
            elif known is not None and name not in known:
                self.add_problem(line, f"{what}: no key {name}; expected one of {', '.join(known)}")
            else:
                found[name] = _Entry(line, value)
        return found

    def read_value(self, node: yaml.Node) -> Any:
        """The value as Python has it: texts, numbers, yes and no, lists, mappings of texts."""
        if isinstance(node, yaml.SequenceNode):
            return [self.read_value(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            entries = self.read_mapping(node, "the value")
            return {name: self.read_value(entry.node) for name, entry in entries.items()}
        return self._read_scalar(node)

    def _read_scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind not in ("int", "float", "bool", "null"):
            return node.value  # a text; a date stays the text that it is
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):
            problem = f"{format_node(node)} is no number that can be read"
            self.add_problem(get_line(node), f"{problem}; expected a smaller one")
            return None

    def read_text(self, entry: _Entry, what: str, longest: int) -> str:
        value = self.read_value(entry.node)
        if not isinstance(value, str) or not value.strip() or len(value) > longest:
            given = format_node(entry.node)
            expected = f"a text of at most {longest} characters"
            self.add_problem(entry.line, f"{what} is {given}; expected {expected}")
            return ""
        return " ".join(value.split())

    def read_count(self, entry: _Entry, what: str) -> int:
        value = self.read_value(entry.node)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 0 < value < 1_000_000:
            given = format_node(entry.node)
            self.add_problem(entry.line, f"{what} is {given}; expected a whole number from 1")
            return 1
        return int(value)

    def read_flag(self, entry: _Entry, what: str) -> bool:
        value = self.read_value(entry.node)
        if not isinstance(value, bool):
            self.add_problem(entry.line, f"{what} is {format_node(entry.node)}; expected yes or no")
        return value is True

    def read_duration(self, entry: _Entry, what: str) -> timedelta | None:
        reasons: list[str] = []
        found = rows.duration(what, self.read_value(entry.node), reasons)
        if reasons or not found:
            expected = "expected a number and s, m, h or d, such as 90s or 24h"
            self.add_problem(entry.line, f"{what} is {format_node(entry.node)}; {expected}")
            return None
        return found

    def read_words(self, entry: _Entry, what: str) -> list[tuple[int, str]]:
        """A word or a list of words, each with its line."""
        nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else [entry.node]
        values = [(get_line(node), self.read_value(node)) for node in nodes]
        if not values or not all(isinstance(value, str) for _, value in values):
            given = format_node(entry.node)
            self.add_problem(entry.line, f"{what} is {given}; expected a word or a list of words")
            return []
        return values

    def read_members(self, enum: type[_Word], entry: _Entry, what: str) -> frozenset[_Word]:
        known = {str(member.value): member for member in enum}
        found = self.read_words(entry, what)
        for line, word in found:
            if word not in known:
                self.add_problem(line, f"{what}: no {word}; expected one of {', '.join(known)}")
        return frozenset(known[word] for _, word in found if word in known)

    def read_globs(self, entry: _Entry, what: str) -> tuple[str, ...]:
        found = self.read_words(entry, what)
        for line, glob in found:
            is_pattern = any(fnmatchcase(row.id, glob) for row in self.catalog)
            if glob not in self.catalog and not is_pattern:
                expected = "expected one of the catalogue, or a pattern"
                self.add_problem(line, f"{what}: {glob} fits no fault type; {expected}")
        return tuple(glob for _, glob in found)


def read_runbook(
    path: Path, catalog: Catalog, plan_step: PlanStep, *, is_sites_own: bool = False
) -> Runbook:
    """One file as a runbook. Raises LibraryError with a line for each problem."""
    reader = Reader(path.name, catalog, plan_step)
    raw, root = _compose(path, reader)
    book = None
    if root is not None:
        book = _parse_runbook(reader, root, path, raw, is_sites_own=is_sites_own)
    if book is None or reader.problems:
        raise LibraryError(reader.format_problems())
    return book


def _compose(path: Path, reader: Reader) -> tuple[bytes, yaml.Node | None]:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reader.add_problem(1, f"it cannot be read ({error}); expected a file of text in UTF-8")
        return b"", None
    if len(raw) > LARGEST:
        reader.add_problem(1, f"it is larger than {LARGEST // 1024} KiB; expected a runbook")
        return raw, None
    try:
        if not _is_harmless(text, reader):
            return raw, None
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        reader.add_problem(mark.line + 1 if mark else 1, f"it is no YAML: {problem}")
        return raw, None
    if root is None:
        reader.add_problem(1, f"it is empty; expected the keys {', '.join(_NEEDED)}")
    return raw, root


def _is_harmless(text: str, reader: Reader) -> bool:
    """Whether nothing in it could grow, run or hide: looked at event by event, before anything is
    built."""
    depth, documents = 0, 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = (event.start_mark.line if event.start_mark is not None else 0) + 1
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            expected = "expected the value itself, or the text in quotes"
            reader.add_problem(line, f"an anchor or alias of YAML (& or *); {expected}")
        if tag:
            reader.add_problem(line, f"a tag of YAML ({tag}); expected a plain value")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent))
        depth -= isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent))
        if depth > _DEEPEST:
            reader.add_problem(line, f"nested more than {_DEEPEST} deep; expected a runbook")
            return False
        if documents > 1:
            reader.add_problem(line, "a second document; expected one runbook to a file")
            return False
    return not reader.problems


def _parse_runbook(
    reader: Reader, root: yaml.Node, path: Path, raw: bytes, *, is_sites_own: bool
) -> Runbook | None:
    entries = reader.read_mapping(root, "the runbook", _KEYS)
    missing = [key for key in _NEEDED if key not in entries]
    if missing:
        no = ", no ".join(missing)
        expected = ", ".join(_NEEDED)
        reader.add_problem(1, f"the runbook has no {no}; expected the keys {expected}")
    if "name" in entries:
        _check_name(reader, entries["name"], path)
    number = reader.read_count(entries["version"], "version") if "version" in entries else 1
    purposes = _parse_purposes(reader, entries["for"]) if "for" in entries else ()
    rung = _parse_rung(reader, entries["rung"]) if "rung" in entries else None
    steps = _parse_steps(reader, entries["steps"]) if "steps" in entries else ()
    if steps and not reader.problems:
        for problem in find_order_problems(steps, rung):
            reader.add_problem(entries["steps"].line, problem)
    title = meaning = ""
    if "title" in entries:
        title = reader.read_text(entries["title"], "title", _LONGEST_TITLE)
    if "meaning" in entries:
        meaning = reader.read_text(entries["meaning"], "meaning", _LONGEST_MEANING)
    limits = _parse_limits(reader, entries["limits"]) if "limits" in entries else Limits()
    version = f"{number} ({hashlib.sha256(raw).hexdigest()[:8]})"
    origin = str(path)
    return Runbook(
        name=path.stem,
        version=version,
        title=title,
        meaning=meaning,
        steps=steps,
        purposes=purposes,
        rung=rung,
        limits=limits,
        number=number,
        origin=origin,
        is_sites_own=is_sites_own,
    )


def _check_name(reader: Reader, entry: _Entry, path: Path) -> None:
    name = reader.read_text(entry, "name", _LONGEST_TITLE)
    if name and (not _NAME.fullmatch(name) or name != path.stem):
        reader.add_problem(
            entry.line, f"name is {name}; expected {path.stem}, as the file is called"
        )
    elif name == SITE_WORD:
        reader.add_problem(
            entry.line, f"name is {name}, the word for all runbooks; expected another"
        )


def _parse_rung(reader: Reader, entry: _Entry) -> Recovery | None:
    word = reader.read_value(entry.node)
    found = next((rung for rung in RUNGS if str(rung) == word), None)
    if found is None:
        expected = ", ".join(RUNGS)
        reader.add_problem(
            entry.line, f"rung is {format_node(entry.node)}; expected one of {expected}"
        )
    return found


def _parse_purposes(reader: Reader, entry: _Entry) -> tuple[Purpose, ...]:
    if not isinstance(entry.node, yaml.SequenceNode) or not entry.node.value:
        expected = "expected a list of what it is for, with faults or actions"
        reader.add_problem(entry.line, f"for is {format_node(entry.node)}; {expected}")
        return ()
    return tuple(_parse_purpose(reader, node) for node in entry.node.value)


def _parse_purpose(reader: Reader, node: yaml.Node) -> Purpose:
    entries = reader.read_mapping(node, "for", _PURPOSE_KEYS)
    if isinstance(node, yaml.MappingNode) and not {"faults", "actions"} & set(entries):
        problem = "for: an entry without faults and without actions"
        reader.add_problem(get_line(node), f"{problem}; expected at least one of them")
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        what = f"for: {key}"
        if key in _PURPOSE_ENUMS:
            values[key] = reader.read_members(_PURPOSE_ENUMS[key], entry, what)
        elif key == "lemons":
            values[key] = reader.read_flag(entry, what)
        else:
            values[key] = reader.read_globs(entry, what)
    return Purpose(**values)


def _parse_limits(reader: Reader, entry: _Entry) -> Limits:
    entries = reader.read_mapping(entry.node, "limits", _LIMIT_KEYS)
    values: dict[str, Any] = {}
    for key, limit in entries.items():
        read = reader.read_duration if key == "window" else reader.read_count
        values[key] = read(limit, f"limits: {key}")
    return Limits(**values)


def _parse_steps(reader: Reader, entry: _Entry) -> tuple[Planned, ...]:
    nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else []
    if not 0 < len(nodes) <= _MOST_STEPS:
        expected = f"expected a list of 1 to {_MOST_STEPS} steps"
        reader.add_problem(entry.line, f"steps is {format_node(entry.node)}; {expected}")
        return ()
    found = [_parse_step(reader, node) for node in nodes]
    return tuple(planned for planned in found if planned is not None)


def _parse_step(reader: Reader, node: yaml.Node) -> Planned | None:
    """`drain`, or `reset_gpu: {which: all, approval: yes}`."""
    given: dict[str, Any] = {}
    name, line = format_node(node), get_line(node)
    if isinstance(node, yaml.MappingNode):
        if len(node.value) != 1:
            expected = "expected a name, or a name with its parameters"
            reader.add_problem(line, f"a step with more than one name; {expected}")
            return None
        ((name, entry),) = reader.read_mapping(node, "steps").items()
        params = reader.read_mapping(entry.node, name)
        given = {key: reader.read_value(param.node) for key, param in params.items()}
    elif isinstance(node, yaml.ScalarNode):
        name = node.value
    approval = given.pop(_APPROVAL, False)
    if not isinstance(approval, bool):
        reader.add_problem(line, f"{name}: approval is {approval!r}; expected yes or no")
    try:
        return reader.plan_step(name, given, needs_approval=approval is True)
    except LibraryError as error:
        reader.add_problem(line, str(error))
        return None


def get_line(node: yaml.Node) -> int:
    """1-based."""
    return int(node.start_mark.line) + 1


def format_node(node: yaml.Node) -> str:
    """The value in a few words, as a problem names it."""
    if isinstance(node, yaml.ScalarNode):
        if not node.value:
            return "empty"
        return repr(node.value if len(node.value) <= 40 else f"{node.value[:40]}...")
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
