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
from detectors.faults import Action, Component, Recovery, Severity
from runbooks.plan.escalation_levels import RUNGS
from runbooks.plan.limits import Limits
from runbooks.plan.plan_rules import against
from runbooks.plan.runbook import Planned, Purpose, Runbook

LARGEST = 64 * 1024
# A runbook needs five; what is nested more deeply is no runbook.
_DEEPEST = 12
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
# What people call the whole site where they name a runbook, as in `manage.py mode site shadow`.
SITE_WORD = "site"
_LONGEST_TITLE, _LONGEST_MEANING, _MOST_STEPS = 80, 2000, 40
_KEYS = ("name", "version", "title", "meaning", "for", "rung", "steps", "limits")
_NEEDED = ("name", "version", "title", "meaning", "steps")
_PURPOSE_KEYS = ("faults", "but_not", "severities", "actions", "components", "lemons")
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

    def wrong(self, line: int, what: str) -> None:
        self.problems.append((line, what))

    def complaint(self) -> str:
        return "\n".join(f"{self.file}:{line}: {what}" for line, what in sorted(self.problems))

    def mapping(
        self, node: yaml.Node, what: str, known: Sequence[str] | None = None
    ) -> dict[str, _Entry]:
        """Its entries by key; a key twice or one that is not known is a problem."""
        found: dict[str, _Entry] = {}
        if not isinstance(node, yaml.MappingNode):
            self.wrong(line_of(node), f"{what} is {format_node(node)}; expected keys with values")
            return found
        for key, value in node.value:
            name, line = (
                (key.value if isinstance(key, yaml.ScalarNode) else format_node(key)),
                line_of(key),
            )
            if name in found:
                self.wrong(
                    line,
                    f"{what}: {name} stands twice, first on line {found[name].line}; expected once",
                )
            elif known is not None and name not in known:
                self.wrong(line, f"{what}: no key {name}; expected one of {', '.join(known)}")
            else:
                found[name] = _Entry(line, value)
        return found

    def plain(self, node: yaml.Node) -> Any:
        """The value as Python has it: texts, numbers, yes and no, lists, mappings of texts."""
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {
                name: self.plain(entry.node)
                for name, entry in self.mapping(node, "the value").items()
            }
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind not in ("int", "float", "bool", "null"):
            return node.value  # a text; a date stays the text that it is
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):
            self.wrong(
                line_of(node),
                f"{format_node(node)} is no number that can be read; expected a smaller one",
            )
            return None

    def text(self, entry: _Entry, what: str, longest: int) -> str:
        value = self.plain(entry.node)
        if not isinstance(value, str) or not value.strip() or len(value) > longest:
            given = format_node(entry.node)
            expected = f"a text of at most {longest} characters"
            self.wrong(entry.line, f"{what} is {given}; expected {expected}")
            return ""
        return " ".join(value.split())

    def count(self, entry: _Entry, what: str) -> int:
        value = self.plain(entry.node)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1_000_000:
            self.wrong(
                entry.line, f"{what} is {format_node(entry.node)}; expected a whole number from 1"
            )
            return 1
        return value

    def flag(self, entry: _Entry, what: str) -> bool:
        value = self.plain(entry.node)
        if not isinstance(value, bool):
            self.wrong(entry.line, f"{what} is {format_node(entry.node)}; expected yes or no")
        return value is True

    def duration(self, entry: _Entry, what: str) -> timedelta | None:
        reasons: list[str] = []
        found = rows.duration(what, self.plain(entry.node), reasons)
        if reasons or not found:
            expected = "expected a number and s, m, h or d, such as 90s or 24h"
            self.wrong(entry.line, f"{what} is {format_node(entry.node)}; {expected}")
            return None
        return found

    def words(self, entry: _Entry, what: str) -> list[tuple[int, str]]:
        """A word or a list of words, each with its line."""
        nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else [entry.node]
        values = [(line_of(node), self.plain(node)) for node in nodes]
        if not values or not all(isinstance(value, str) for _, value in values):
            self.wrong(
                entry.line,
                f"{what} is {format_node(entry.node)}; expected a word or a list of words",
            )
            return []
        return values

    def members(self, enum: type[_Word], entry: _Entry, what: str) -> frozenset[_Word]:
        known = {str(member.value): member for member in enum}
        found = self.words(entry, what)
        for line, word in found:
            if word not in known:
                self.wrong(line, f"{what}: no {word}; expected one of {', '.join(known)}")
        return frozenset(known[word] for _, word in found if word in known)

    def globs(self, entry: _Entry, what: str) -> tuple[str, ...]:
        found = self.words(entry, what)
        for line, glob in found:
            if glob not in self.catalog and not any(
                fnmatchcase(row.id, glob) for row in self.catalog
            ):
                self.wrong(
                    line,
                    f"{what}: {glob} fits no fault type; expected one of the catalogue, or a"
                    " pattern",
                )
        return tuple(glob for _, glob in found)


def read(
    path: Path, catalog: Catalog, plan_step: PlanStep, *, is_sites_own: bool = False
) -> Runbook:
    """One file as a runbook. Raises LibraryError with a line for each problem."""
    reader = Reader(path.name, catalog, plan_step)
    raw, root = _composed(path, reader)
    book = None
    if root is not None:
        book = _runbook(reader, root, path, raw, is_sites_own=is_sites_own)
    if book is None or reader.problems:
        raise LibraryError(reader.complaint())
    return book


def _composed(path: Path, reader: Reader) -> tuple[bytes, yaml.Node | None]:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reader.wrong(1, f"it cannot be read ({error}); expected a file of text in UTF-8")
        return b"", None
    if len(raw) > LARGEST:
        reader.wrong(1, f"it is larger than {LARGEST // 1024} KiB; expected a runbook")
        return raw, None
    try:
        if not _is_harmless(text, reader):
            return raw, None
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        reader.wrong(mark.line + 1 if mark else 1, f"it is no YAML: {problem}")
        return raw, None
    if root is None:
        reader.wrong(1, f"it is empty; expected the keys {', '.join(_NEEDED)}")
    return raw, root


def _is_harmless(text: str, reader: Reader) -> bool:
    """Whether nothing in it could grow, run or hide: looked at event by event, before anything is
    built."""
    depth, documents = 0, 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = (event.start_mark.line if event.start_mark is not None else 0) + 1
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            reader.wrong(
                line,
                "an anchor or alias of YAML (& or *); expected the value itself, or the text in"
                " quotes",
            )
        if tag:
            reader.wrong(line, f"a tag of YAML ({tag}); expected a plain value")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent))
        depth -= isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent))
        if depth > _DEEPEST:
            reader.wrong(line, f"nested more than {_DEEPEST} deep; expected a runbook")
            return False
        if documents > 1:
            reader.wrong(line, "a second document; expected one runbook to a file")
            return False
    return not reader.problems


def _runbook(
    reader: Reader, root: yaml.Node, path: Path, raw: bytes, *, is_sites_own: bool
) -> Runbook | None:
    entries = reader.mapping(root, "the runbook", _KEYS)
    missing = [key for key in _NEEDED if key not in entries]
    if missing:
        reader.wrong(
            1, f"the runbook has no {', no '.join(missing)}; expected the keys {', '.join(_NEEDED)}"
        )
    name = reader.text(entries["name"], "name", _LONGEST_TITLE) if "name" in entries else ""
    if name and (not _NAME.fullmatch(name) or name != path.stem):
        reader.wrong(
            entries["name"].line, f"name is {name}; expected {path.stem}, as the file is called"
        )
    elif name == SITE_WORD:
        reader.wrong(
            entries["name"].line, f"name is {name}, the word for all runbooks; expected another"
        )
    number = reader.count(entries["version"], "version") if "version" in entries else 1
    purposes = _purposes(reader, entries["for"]) if "for" in entries else ()
    rung = _rung(reader, entries["rung"]) if "rung" in entries else None
    steps = _steps(reader, entries["steps"]) if "steps" in entries else ()
    if steps and not reader.problems:
        for problem in against(steps, rung):
            reader.wrong(entries["steps"].line, problem)
    return Runbook(
        name=path.stem,
        version=f"{number} ({hashlib.sha256(raw).hexdigest()[:8]})",
        title=reader.text(entries["title"], "title", _LONGEST_TITLE) if "title" in entries else "",
        meaning=(
            reader.text(entries["meaning"], "meaning", _LONGEST_MEANING)
            if "meaning" in entries
            else ""
        ),
        steps=steps,
        purposes=purposes,
        rung=rung,
        limits=_limits(reader, entries["limits"]) if "limits" in entries else Limits(),
        number=number,
        origin=str(path),
        is_sites_own=is_sites_own,
    )


def _rung(reader: Reader, entry: _Entry) -> Recovery | None:
    word = reader.plain(entry.node)
    found = next((rung for rung in RUNGS if str(rung) == word), None)
    if found is None:
        reader.wrong(
            entry.line,
            f"rung is {format_node(entry.node)}; expected one of {', '.join(map(str, RUNGS))}",
        )
    return found


def _purposes(reader: Reader, entry: _Entry) -> tuple[Purpose, ...]:
    if not isinstance(entry.node, yaml.SequenceNode) or not entry.node.value:
        reader.wrong(
            entry.line,
            f"for is {format_node(entry.node)}; expected a list of what it is for, with faults or"
            " actions",
        )
        return ()
    return tuple(_purpose(reader, node) for node in entry.node.value)


def _purpose(reader: Reader, node: yaml.Node) -> Purpose:
    entries = reader.mapping(node, "for", _PURPOSE_KEYS)
    if isinstance(node, yaml.MappingNode) and not {"faults", "actions"} & set(entries):
        reader.wrong(
            line_of(node),
            "for: an entry without faults and without actions; expected at least one of them",
        )
    words: Mapping[str, tuple[type[Enum], str]] = {
        "actions": (Action, "actions"),
        "components": (Component, "components"),
        "severities": (Severity, "severities"),
    }
    sets: dict[str, Any] = {
        key: reader.members(enum, entries[key], f"for: {key}")
        for key, (enum, _) in words.items()
        if key in entries
    }
    if "lemons" in entries:
        sets["lemons"] = reader.flag(entries["lemons"], "for: lemons")
    for key in ("faults", "but_not"):
        if key in entries:
            sets[key] = reader.globs(entries[key], f"for: {key}")
    return Purpose(**sets)


def _limits(reader: Reader, entry: _Entry) -> Limits:
    entries = reader.mapping(entry.node, "limits", _LIMIT_KEYS)
    values: dict[str, Any] = {
        key: reader.count(entries[key], f"limits: {key}")
        for key in ("per_hour", "approval_above")
        if key in entries
    }
    if "window" in entries:
        values["window"] = reader.duration(entries["window"], "limits: window")
    return Limits(**values)


def _steps(reader: Reader, entry: _Entry) -> tuple[Planned, ...]:
    nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else []
    if not 0 < len(nodes) <= _MOST_STEPS:
        reader.wrong(
            entry.line,
            f"steps is {format_node(entry.node)}; expected a list of 1 to {_MOST_STEPS} steps",
        )
        return ()
    found = [_step(reader, node) for node in nodes]
    return tuple(planned for planned in found if planned is not None)


def _step(reader: Reader, node: yaml.Node) -> Planned | None:
    """`drain`, or `reset_gpu: {which: all, approval: yes}`."""
    given: dict[str, Any] = {}
    name, line = format_node(node), line_of(node)
    if isinstance(node, yaml.MappingNode):
        if len(node.value) != 1:
            reader.wrong(
                line,
                "a step with more than one name; expected a name, or a name with its parameters",
            )
            return None
        ((name, entry),) = reader.mapping(node, "steps").items()
        given = {
            key: reader.plain(each.node) for key, each in reader.mapping(entry.node, name).items()
        }
    elif isinstance(node, yaml.ScalarNode):
        name = node.value
    approval = given.pop(_APPROVAL, False)
    if not isinstance(approval, bool):
        reader.wrong(line, f"{name}: approval is {approval!r}; expected yes or no")
    try:
        return reader.plan_step(name, given, needs_approval=approval is True)
    except LibraryError as error:
        reader.wrong(line, str(error))
        return None


def line_of(node: yaml.Node) -> int:
    """1-based."""
    return int(node.start_mark.line) + 1


def format_node(node: yaml.Node) -> str:
    """The value in a few words, as a problem names it."""
    if isinstance(node, yaml.ScalarNode):
        return (
            repr(node.value if len(node.value) <= 40 else f"{node.value[:40]}...")
            if node.value
            else "empty"
        )
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
