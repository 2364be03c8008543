"""The catalogue: every type of fault as data, and the signatures by which log lines show them.

Rows live in `catalog/*.toml`. Loading checks all of them and reports every problem at once, with
file, line and reason. Never touches the world beyond these files. Python 3.9, standard library
alone; where there is no tomllib (before 3.11) the rows come compiled, by
`detectors.catalog.compiled`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from detectors import toml_text
from detectors.catalog import (
    advice,
    check_drains,
    grammar,
    line_patterns,
    phrases,
    rows,
    rules,
    shapes,
    site_catalog,
)
from detectors.catalog import grace_periods as graces
from detectors.catalog import vendor_catalogs as vendors
from detectors.catalog.check_drains import CheckDrain
from detectors.faults import (
    Action,
    ClearRule,
    Component,
    EventKind,
    EventType,
    FaultEvent,
    Fitness,
    Severity,
)
from detectors.provenance import FACILITIES, UNKNOWN, Provenance

_log = logging.getLogger(__name__)
_DIRECTORY = Path(__file__).parent
# How soon a change of the site's files is seen: nobody waits for it, and each look is a system call
# a file. Our choice.
_LOOK_EVERY_S = 5.0
DRAINED_FOR = "slurm.drained_for."
"""The metrics of the [[drain]] rows, each completed by its fault type."""
_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
# A character class or an escaped character says nothing about look-around; a back-reference is an
# escaped digit.
_GROUP = re.compile(r"(?<!\\)\(\?P<(\w+)>")
_OPAQUE = re.compile(r"\\[^1-9]|\[\^?\]?(?:\\.|[^\]\\])*\]")
_REFUSED = re.compile(r"\(\?<?[=!]|\(\?P=|\(\?\(|\\[1-9]")


class CatalogError(Exception):
    """The catalogue cannot be used. The message has one line per problem: file, line number,
    reason."""


class ResourceKind(str, Enum):
    """What a signature's named groups describe; `detectors.logs.signatures` makes the resource path
    of it."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCI = "pci"
    NIC = "nic"
    NODE = "node"
    SWITCH = "switch"
    PORT = "port"
    STORAGE = "storage"


class Begins(str, Enum):
    """Where in a line a signature stands: what comes before is no part of it, and nobody's to
    choose."""

    MESSAGE = "message"
    """With the first character of the message, behind program and printk's stamp."""
    PROGRAM = "program"
    """With the program's name, or the severity's word before it."""


ANY = "any"
OF_A_NODE = (Component.GPU, Component.NVLINK, Component.NIC, Component.NODE)
# A disk or a mount is a node's too, and settings without which no job starts.
MAY_BE_UNFIT = (*OF_A_NODE, Component.STORAGE, Component.MISCONFIGURATION)

# The groups of which a signature of each kind needs at least one.
_NEEDED_GROUPS: dict[ResourceKind, tuple[str, ...]] = {
    ResourceKind.GPU: ("pci",),
    ResourceKind.NVSWITCH: ("pci",),
    ResourceKind.PCI: ("pci",),
    ResourceKind.NIC: ("pci", "interface"),
    ResourceKind.PORT: ("port",),
}


@dataclass(frozen=True)
class FaultType:
    """One row: what a fault is called, how bad it is, what to do, and how it stops.

    `quiet` is the period of AFTER_QUIET; `hold_down` how long a raised fault waits before anything
    is done. `confirmed_by` names the detectors that can see the fault on the node itself. A
    sympathetic type is the echo of another fault or of a program's error, and never condemns
    hardware by itself. `is_fatal` is the vendor's class, None where the vendor gives none.
    `flap_start`, `flap_stop` (percent) and `flap_look` say when it flaps where that is other than
    usual. `fitness` says whether a job can be placed on the node meanwhile; a site's row that does
    not say it is degraded from major on, and moves no node. `boot_grace`, from the [[grace]] rows,
    is how long after a boot it says nothing yet.
    """

    id: str
    title: str
    component: Component
    event_type: EventType
    severity: Severity
    action: Action
    clears: ClearRule
    meaning: str
    source: str
    fitness: Fitness = Fitness.FIT
    quiet: Optional[timedelta] = None
    hold_down: timedelta = timedelta(0)
    code: Optional[int] = None
    family: str = ""
    is_sympathetic: bool = False
    is_fatal: Optional[bool] = None
    confirmed_by: tuple[str, ...] = ()
    flap_start: Optional[float] = None
    flap_stop: Optional[float] = None
    flap_look: Optional[timedelta] = None
    boot_grace: timedelta = timedelta(0)

    @property
    def opens_incident(self) -> bool:
        """A type that asks for nothing, or only for its program to be restarted, is recorded and
        joins."""
        return self.action not in (Action.NONE, Action.RESTART_APP)

    def create_event(
        self,
        identity: str,
        event: EventKind,
        resource: str,
        *,
        source: str,
        at: datetime,
        provenance: Provenance = UNKNOWN,
        qualifier: str = "",
        count: int = 1,
        excerpt: str = "",
    ) -> FaultEvent:
        """As bad as this type is, and calling for what it calls for. `identity` is its `event_id`;
        `at` both when it happened and when we saw it."""
        return FaultEvent(
            identity,
            self.id,
            event,
            resource,
            source,
            occurred_at=at,
            observed_at=at,
            severity=self.severity,
            action=self.action,
            component=self.component,
            qualifier=qualifier,
            count=count,
            excerpt=excerpt,
            provenance=provenance,
        )


@dataclass(frozen=True)
class Signature:
    """How a log line shows a fault type. The first signature in load order that fits a line speaks
    for it.

    `types` are ids, each of which the line raises or clears; `{code}` in one is completed by the
    group `code`. A line that fits `unless` too says something else. `scan` is a cheaper pattern
    that each line of the signature has as well: it is looked for first, and `pattern` only where it
    occurs. `qualifier` names groups that
    tell two faults of one type on one resource apart.

    `programs` (with `*` for any characters) and `facilities` (0 to 23) are who may write the line;
    without facilities any may. Only the kernel's lines may name no program, as in dmesg.
    `is_of_site`: a site wrote it.
    """

    types: tuple[str, ...]
    event: EventKind
    pattern: str
    on: ResourceKind
    unless: str = ""
    qualifier: tuple[str, ...] = ()
    where: str = ""
    programs: tuple[str, ...] = ()
    facilities: frozenset[int] = frozenset()
    begins: Begins = Begins.MESSAGE
    scan: str = ""
    is_of_site: bool = False

    def is_of(self, program: str, facility: Optional[int]) -> bool:
        """Whether a line of this program and facility may say it. A line that names no facility, as
        in a file, is judged by its program."""
        return is_written_by(self.programs, self.facilities, program, facility)


@dataclass(frozen=True)
class Harmless:
    """A line that looks like a failure and is none: raises nothing, whatever a signature says.

    `reason` tells people why, `source` where that is known from. The other fields as of
    `Signature`.
    """

    pattern: str
    reason: str
    source: str
    programs: tuple[str, ...]
    facilities: frozenset[int] = frozenset()
    where: str = ""
    is_of_site: bool = False

    def is_of(self, program: str, facility: Optional[int]) -> bool:
        return is_written_by(self.programs, self.facilities, program, facility)


def is_written_by(
    programs: tuple[str, ...],
    facilities: frozenset[int],
    program: str,
    facility: Optional[int],
) -> bool:
    """Whether a line of this program and facility may be one of these programs' and facilities'. A
    line that names no facility, as in a file, is judged by its program."""
    if facility is not None and facilities and facility not in facilities:
        return False
    if not program:
        return "kernel" in programs or "*" in programs
    return any(fnmatchcase(program, pattern) for pattern in programs)


@dataclass(frozen=True)
class Catalog:
    """The fault types by id, and the signatures in the order in which they are tried."""

    types: Mapping[str, FaultType]
    signatures: tuple[Signature, ...] = ()
    rules: Mapping[str, tuple[rules.ThresholdRule, ...]] = field(default_factory=dict)
    """How polled values raise and clear the types, by metric."""
    harmless: tuple[Harmless, ...] = ()
    advices: tuple[advice.Advice, ...] = ()
    drains: tuple[CheckDrain, ...] = ()
    """Those of other checks, in the order in which they are tried."""
    vendor_catalogs: tuple[vendors.VendorCatalog, ...] = ()

    def get_vendor_catalog(self, family: str) -> Optional[vendors.VendorCatalog]:
        """What the types of this family were written from; None where no row says."""
        found = (row for row in self.vendor_catalogs if row.family == family)
        return next(found, None)

    def get_advice(self, fault_type: str) -> Optional[advice.Advice]:
        """What a person does about a fault of this type; None where no row says."""
        return advice.find(self.advices, fault_type)

    def __getitem__(self, fault_type: str) -> FaultType:
        """Raises KeyError for an id that is neither a row nor of a numbered family."""
        found = self.get(fault_type)
        if found is None:
            raise KeyError(f"no fault type {fault_type} in the catalogue")
        return found

    def get(self, fault_type: str) -> Optional[FaultType]:
        """The row; for a number without a row, what an unknown Xid or SXid is; otherwise None."""
        row = self.types.get(fault_type)
        if row is not None:
            return row
        prefix, _, number = fault_type.rpartition(".")
        unknown = self.types.get(f"{prefix}.unknown")
        if unknown is None or not number.isdecimal():
            return None
        family = unknown.family.upper().replace("SXID", "SXid").replace("XID", "Xid")
        return replace(
            unknown,
            id=fault_type,
            code=int(number),
            title=f"{family} {int(number)}, not in the catalogue",
        )

    def __contains__(self, fault_type: str) -> bool:
        return self.get(fault_type) is not None

    def __iter__(self) -> Iterator[FaultType]:
        return iter(self.types.values())

    def __len__(self) -> int:
        return len(self.types)

    def xid(self, number: int) -> FaultType:
        """What NVIDIA's Xid `number` means; a number without a row is a warning that a person looks
        at."""
        return self[f"gpu.xid.{number}"]

    def sxid(self, number: int, is_fatal: Optional[bool] = None) -> FaultType:
        """What NVSwitch's SXid `number` means. `is_fatal` is the line's own word.

        Where the vendor gives no class the word decides: what it calls fatal asks for a reset at
        least, what it calls non-fatal for no more than a look where a reset was due. A class that
        the vendor gives is never lowered.
        """
        row = self[f"nvlink.sxid.{number}"]
        if is_fatal:
            least = Action.RESET_GPU if row.is_fatal is None else Action.WATCH
            action = row.action if row.action.at_least(least) else least
            return replace(row, severity=Severity.CRITICAL, action=action, is_fatal=True)
        if is_fatal is False and row.is_fatal is None and row.action.at_least(Action.RESET_GPU):
            return replace(row, severity=Severity.MINOR, action=Action.WATCH, is_fatal=False)
        return row


@dataclass
class _Reader:
    """One pass over the files: collects rows and problems, never stops at the first."""

    types: dict[str, FaultType] = field(default_factory=dict)
    signatures: list[Signature] = field(default_factory=list)
    rules: list[rules.ThresholdRule] = field(default_factory=list)
    graces: list[graces.Grace] = field(default_factory=list)
    harmless: list[Harmless] = field(default_factory=list)
    advices: list[advice.Advice] = field(default_factory=list)
    drains: list[CheckDrain] = field(default_factory=list)
    vendor_catalogs: list[vendors.VendorCatalog] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    is_of_site: bool = False

    def read(self, path: Path) -> None:
        self.is_of_site = path.parent != _DIRECTORY
        is_sites = path.parent == site_catalog.get_directory()
        name = str(path) if is_sites else path.name
        try:
            text = path.read_text(encoding="utf-8")
            found = phrases.fill(toml_text.parse(text))
        except (OSError, ValueError) as error:
            self.problems.append(f"{name}: cannot be read: {error}")
            return
        for table in sorted(set(found) - {"defaults", *_ADDERS}):
            self.problems.append(f"{name}: unknown table {table}")
        self.take(name, found, text)

    def take(self, name: str, found: Mapping[str, Any], text: str = "") -> None:
        """The rows of every table; `text` is what they were read from, for the line numbers of
        problems."""
        defaults_of_types = found.get("defaults", {})
        if not isinstance(defaults_of_types, Mapping):
            self.problems.append(f"{name}: [defaults] is no table of fields and values")
            defaults_of_types = {}
        for table in _ADDERS:
            if not rows.are_rows(found.get(table, [])):
                self.problems.append(f"{name}: {table} is written as rows: [[{table}]]")
                continue
            defaults = defaults_of_types if table == "type" else {}
            for where, row in _locate_rows(name, text, found, table):
                self._try_add(where, {**defaults, **row}, table)

    def _try_add(self, where: str, row: dict[str, Any], table: str) -> None:
        try:
            reasons = rows.list_wrong_shapes(row, shapes.BY_TABLE[table])
            if reasons:
                raise ValueError("\n".join(reasons))
            _ADDERS[table](self, where, row)
        except ValueError as error:
            name = row.get("id") or row.get("type") or row.get("types") or "row"
            reasons = str(error).splitlines()
            self.problems += [f"{where}: {name}: {reason}" for reason in reasons]

    def _add_type(self, where: str, row: dict[str, Any]) -> None:
        fault_type = _parse_fault_type(row)
        if fault_type.id in self.types:
            raise ValueError(f"duplicate id, first at {self.places[fault_type.id]}")
        self.types[fault_type.id] = fault_type
        self.places[fault_type.id] = where

    def _add_signature(self, where: str, row: dict[str, Any]) -> None:
        self.signatures.extend(_parse_signatures(where, row, is_of_site=self.is_of_site))

    def _add_grammar(self, where: str, row: dict[str, Any]) -> None:
        for signature in grammar.expand(row):
            found = _parse_signatures(where, signature, is_of_site=self.is_of_site)
            self.signatures.extend(found)

    def _add_rule(self, where: str, row: dict[str, Any]) -> None:
        rule = rules.read(where, row)
        for known in self.rules:
            if known.metric == rule.metric and known.key == rule.key:
                raise ValueError(f"duplicate rule for {rule.metric}, first at {known.where}")
        self.rules.append(rule)

    def _add_grace(self, where: str, row: dict[str, Any]) -> None:
        self.graces.append(graces.read(where, row))

    def _add_harmless(self, where: str, row: dict[str, Any]) -> None:
        self.harmless.extend(_parse_harmless(where, row, is_of_site=self.is_of_site))

    def _add_advice(self, where: str, row: dict[str, Any]) -> None:
        self.advices.append(advice.read(where, row))

    def _add_drain(self, where: str, row: dict[str, Any]) -> None:
        self.drains.append(check_drains.read(where, row))

    def _add_vendor_catalog(self, where: str, row: dict[str, Any]) -> None:
        self.vendor_catalogs.append(vendors.read(where, row))

    def check_references(self) -> None:
        for drain in self.drains:
            if drain.type not in self.types:
                self.problems.append(f"{drain.where}: {drain.type}: no such fault type")
        for grace in self.graces:
            self._add_unknown(grace.where, grace.unknown(self.types))
        for row in self.advices:
            self._add_unknown(row.where, row.unknown(self.types))
        for rule in self.rules:
            if rule.type not in self.types:
                self.problems.append(f"{rule.where}: {rule.type}: no such fault type")
        for signature in self.signatures:
            for name in signature.types:
                known = name.replace("{code}", "unknown")
                if known not in self.types:
                    self.problems.append(f"{signature.where}: {name}: no such fault type")

    def _add_unknown(self, where: str, names: Sequence[str]) -> None:
        self.problems += [f"{where}: {name}: no such fault type" for name in names]


_Adder = Callable[[_Reader, str, dict[str, Any]], None]
# By table of a file, in the order in which a file's tables are read.
_ADDERS: Mapping[str, _Adder] = {
    "type": _Reader._add_type,
    "signature": _Reader._add_signature,
    "grammar": _Reader._add_grammar,
    "rule": _Reader._add_rule,
    "grace": _Reader._add_grace,
    "harmless": _Reader._add_harmless,
    "advice": _Reader._add_advice,
    "drain": _Reader._add_drain,
    "vendor_catalog": _Reader._add_vendor_catalog,
}


def _locate_rows(
    file: str, text: str, tables: Mapping[str, Any], name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of `[[name]]` with its file and line (1-based): tomllib keeps no lines."""
    header = f"[[{name}]]"
    lines = enumerate(text.splitlines(), 1)
    numbers = (str(number) for number, line in lines if line.strip() == header)
    for row in tables.get(name, ()):
        yield f"{file}:{next(numbers, '?')}", row


def _parse_fault_type(row: Mapping[str, Any]) -> FaultType:
    """Raises ValueError with one reason per line."""
    known = {item.name for item in fields(FaultType)} - {"boot_grace"}
    reasons = rows.list_wrong_fields(row, known, _REQUIRED)
    values = {name: value for name, value in row.items() if name in known}
    _parse_values(values, reasons)
    values.setdefault("fitness", _guess_fitness(values.get("severity")))
    reasons += _list_contradictions(values)
    if reasons:
        raise ValueError("\n".join(reasons))
    return FaultType(**values)


def _guess_fitness(severity: object) -> Fitness:
    is_grave = severity in (Severity.MAJOR, Severity.CRITICAL)
    return Fitness.DEGRADED if is_grave else Fitness.FIT


def _parse_values(values: dict[str, Any], reasons: list[str]) -> None:
    """Words become members, durations and numbers; `reasons` gains what cannot."""
    for name, enum in _ENUMS.items():
        if name in values:
            values[name] = rows.member(enum, name, values[name], reasons)
    for name in ("quiet", "hold_down", "flap_look"):
        if name in values:
            values[name] = rows.duration(name, values[name], reasons)
    for name in ("flap_start", "flap_stop"):
        if name in values:
            values[name] = rows.number(name, values[name], reasons)
    values["confirmed_by"] = tuple(values.get("confirmed_by", ()))


def _list_contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    is_half_given = ("flap_start" in values) != ("flap_stop" in values)
    if is_half_given or values.get("flap_start", 1) <= values.get("flap_stop", 0):
        yield "flap_start and flap_stop come together, and flapping stops below where it starts"
    if not _ID.fullmatch(str(values.get("id", ""))):
        yield "the id is not dotted lower-case words"
    if values.get("clears") is ClearRule.AFTER_QUIET and not values.get("quiet"):
        yield "clears after_quiet, but without the period `quiet`"
    is_grave = values.get("severity") is Severity.CRITICAL
    if is_grave and values.get("component") in OF_A_NODE and values["fitness"] is Fitness.FIT:
        yield "it is critical and of a node's own part, and yet the node is said to be fit"
    if values["fitness"] is Fitness.UNFIT and values.get("component") not in MAY_BE_UNFIT:
        yield f"unfit is said of nodes, and {values.get('component')} is no part of one"


_REQUIRED = (
    "id",
    "title",
    "component",
    "event_type",
    "severity",
    "action",
    "clears",
    "meaning",
    "source",
)
_ENUMS: dict[str, type[Enum]] = {
    "component": Component,
    "event_type": EventType,
    "severity": Severity,
    "action": Action,
    "clears": ClearRule,
    "fitness": Fitness,
}


def _parse_signatures(where: str, row: Mapping[str, Any], *, is_of_site: bool) -> list[Signature]:
    """One per pattern. Raises ValueError with one reason per line."""
    required = ("type", "event", "pattern", "on", "program", "facility", "begins")
    reasons = rows.list_wrong_fields(row, {*required, "unless", "qualifier", "scan"}, required)
    begins = rows.member(Begins, "begins", row["begins"], reasons) if "begins" in row else None
    programs, facilities = _names(row.get("program", ())), _parse_facilities(row, reasons)
    if ANY in programs:
        programs = ("*",)
    event = rows.member(EventKind, "event", row["event"], reasons) if "event" in row else None
    kind = rows.member(ResourceKind, "on", row["on"], reasons) if "on" in row else None
    types = _names(row.get("type", ()))
    qualifier = _names(row.get("qualifier", ()))
    patterns = _names(row.get("pattern", ()))
    needs_code = any("{code}" in name for name in types)
    needed = _NEEDED_GROUPS.get(kind, ()) if isinstance(kind, ResourceKind) else ()
    all_groups: set[str] = set()
    get_groups = _compile_groups if is_of_site else _find_groups
    for pattern in patterns:
        groups = get_groups("pattern", pattern, reasons)
        all_groups |= groups
        if needs_code and "code" not in groups:
            reasons.append("the type has {code}, the pattern no group `code`")
        if needed and not groups.intersection(needed):
            names = " or ".join(needed)
            reasons.append(f"a signature on {row['on']} needs a group named {names}: {pattern}")
    unless = row.get("unless", "")
    get_groups("unless", unless, reasons)
    scan = row.get("scan", "")
    get_groups("scan", scan, reasons)
    for name in qualifier:
        if name not in all_groups:
            reasons.append(f"qualifier {name} is no group of a pattern")
    if is_of_site and not reasons:
        named = [("pattern", pattern) for pattern in patterns] + [("unless", unless)]
        reasons += _list_refused(named)
    if reasons or not isinstance(event, EventKind) or not isinstance(kind, ResourceKind):
        raise ValueError("\n".join(reasons))
    if not isinstance(begins, Begins):
        begins = Begins.MESSAGE
    shared = Signature(
        types,
        event,
        "",
        kind,
        unless,
        qualifier,
        where,
        programs,
        facilities,
        begins=begins,
        scan=scan,
        is_of_site=is_of_site,
    )
    return [replace(shared, pattern=pattern) for pattern in patterns]


def _parse_harmless(where: str, row: Mapping[str, Any], *, is_of_site: bool) -> list[Harmless]:
    """One per pattern. Raises ValueError with one reason per line."""
    required = ("pattern", "program", "facility", "reason", "source")
    reasons = rows.list_wrong_fields(row, set(required), required)
    facilities = _parse_facilities(row, reasons)
    programs = _names(row.get("program", ()))
    if ANY in programs:
        programs = ("*",)
    patterns = _names(row.get("pattern", ()))
    get_groups = _compile_groups if is_of_site else _find_groups
    for pattern in patterns:
        get_groups("pattern", pattern, reasons)
    if is_of_site and not reasons:
        reasons += _list_refused([("pattern", pattern) for pattern in patterns])
    if reasons:
        raise ValueError("\n".join(reasons))
    reason, source = str(row["reason"]), str(row["source"])
    shared = Harmless("", reason, source, programs, facilities, where, is_of_site)
    return [replace(shared, pattern=pattern) for pattern in patterns]


def _list_refused(patterns: Sequence[tuple[str, str]]) -> list[str]:
    """Why patterns of a site, each with its field's name, are refused."""
    reasons = (line_patterns.find_reason(name, pattern) for name, pattern in patterns if pattern)
    return [reason for reason in reasons if reason]


def _parse_facilities(row: Mapping[str, Any], reasons: list[str]) -> frozenset[int]:
    """Empty for any."""
    found = set()
    for name in _names(row.get("facility", ())):
        if name in FACILITIES:
            found.add(FACILITIES.index(name))
        elif name != ANY:
            reasons.append(f"facility {name!r} is none of {ANY}, {', '.join(FACILITIES)}")
    return frozenset(found)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)):
        return tuple(str(name) for name in value)
    return ()


def _find_groups(name: str, pattern: str, reasons: list[str]) -> frozenset[str]:
    """Named groups of a shipped pattern, by its text: to compile all of them takes a third of a
    second, and the tests do."""
    return frozenset() if _is_refused(name, pattern, reasons) else list_group_names(pattern)


def list_group_names(pattern: str) -> frozenset[str]:
    return frozenset(_GROUP.findall(pattern))


def _compile_groups(name: str, pattern: str, reasons: list[str]) -> frozenset[str]:
    """Named groups of a site's pattern."""
    if _is_refused(name, pattern, reasons):
        return frozenset()
    try:
        return frozenset(re.compile(pattern.encode()).groupindex)
    except re.error as error:
        reasons.append(f"{name} does not compile: {error}")
        return frozenset()


def _is_refused(name: str, pattern: str, reasons: list[str]) -> bool:
    """Whether it asks for what not every matcher can do: look-around, back-references."""
    if not _REFUSED.search(_OPAQUE.sub("", pattern)):
        return False
    reasons.append(
        f"{name} uses look-around or a back-reference; write a second pattern in `unless` instead"
    )
    return True


def read(paths: Sequence[Path]) -> Catalog:
    """The catalogue of these files, signatures in file and row order. Raises CatalogError naming
    every problem."""
    reader = _Reader()
    for path in paths:
        reader.read(path)
    return _build(reader)


def from_rows(found: Mapping[str, Any], name: str) -> Catalog:
    """The catalogue of rows that were read before, by table. Raises CatalogError naming every
    problem."""
    reader = _Reader()
    reader.take(name, found)
    return _build(reader)


def tables(path: Path) -> dict[str, Any]:
    """The file's tables, each pattern whole. Raises OSError and ValueError."""
    return phrases.fill(toml_text.parse(path.read_text(encoding="utf-8")))


def files() -> list[Path]:
    """Those that ship with Kintsugi, in the order in which they are read."""
    return sorted(_DIRECTORY.glob("*.toml"))


def _build(reader: _Reader) -> Catalog:
    reader.check_references()
    if reader.problems:
        raise CatalogError("\n".join(reader.problems))
    by_metric: dict[str, list[rules.ThresholdRule]] = {}
    for rule in (*reader.rules, *_make_drain_rules(reader.drains)):
        by_metric.setdefault(rule.metric, []).append(rule)
    rules_by_metric = {metric: tuple(found) for metric, found in by_metric.items()}
    types = {}
    for name, fault_type in reader.types.items():
        boot_grace = graces.longest(reader.graces, name)
        types[name] = replace(fault_type, boot_grace=boot_grace)
    signatures = tuple(reader.signatures)
    harmless = tuple(reader.harmless)
    advices = tuple(reader.advices)
    drains = tuple(reader.drains)
    vendor_catalogs = tuple(reader.vendor_catalogs)
    return Catalog(types, signatures, rules_by_metric, harmless, advices, drains, vendor_catalogs)


def _make_drain_rules(drains: Iterable[CheckDrain]) -> Iterator[rules.ThresholdRule]:
    """One for each type that a check's drain tells of."""
    by_type = {drain.type: drain for drain in drains}
    for name, drain in by_type.items():
        metric = f"{DRAINED_FOR}{name}"
        yield rules.ThresholdRule(metric, name, rules.When.TRUE, drain.source, where=drain.where)


def load() -> Catalog:
    """The catalogue that ships with Kintsugi and, where a site has a directory of its own, the
    site's rows before it.

    The shipped files are read once per process, the site's whenever they change. Raises
    CatalogError; but where a change breaks the site's files, the catalogue of before stays.
    """
    directory = site_catalog.get_directory()
    return _load_shipped() if directory is None else _site.load(directory)


def site_files(directory: Path) -> list[Path]:
    """A site's own, in the order in which they are read. Raises CatalogError where there is no
    such directory."""
    if not directory.is_dir():
        raise CatalogError(f"KINTSUGI_CATALOG_DIR: {directory} is no directory")
    return sorted(directory.glob("*.toml"))


@lru_cache(maxsize=1)
def _load_shipped() -> Catalog:
    return read(files())


class _SiteCatalog:
    """The catalogue with a site's rows, as it was when its files last could be read."""

    def __init__(self) -> None:
        self._catalog: Optional[Catalog] = None
        self._directory: Optional[Path] = None
        self._stamp: object = None
        self._looked_s = 0.0

    def load(self, directory: Path) -> Catalog:
        now = time.monotonic()
        if directory != self._directory:
            self._directory, self._catalog = directory, None
        if self._catalog is not None and now - self._looked_s < _LOOK_EVERY_S:
            return self._catalog
        self._looked_s = now
        try:
            paths = site_files(directory)
            stamp = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
            if self._catalog is None or stamp != self._stamp:
                self._stamp = stamp
                self._catalog = read([*paths, *files()])
        except (CatalogError, OSError) as error:
            if self._catalog is None:
                raise CatalogError(str(error)) from error
            _log.error("the catalogue of before stays: %s", error)
        return self._catalog


_site = _SiteCatalog()
