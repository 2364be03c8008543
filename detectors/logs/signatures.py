"""From one raw log line to the facts it states: match on bytes first, header and groups only on
hits.

Never remembers a line: what needs several lines belongs to ingest. Total on any bytes. Not
thread-safe (the matcher).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import cached_property

from detectors import resources
from detectors.catalog import decode
from detectors.catalog.catalog import (
    Begins,
    Catalog,
    FaultType,
    Harmless,
    ResourceKind,
    Signature,
)
from detectors.catalog.line_patterns import LineMatch, LinePattern, compile_pattern, read_groups
from detectors.faults import Action, Component, EventKind, FaultEvent, Severity
from detectors.logs import journal_json
from detectors.logs.header import Header, parse_header, source_key
from detectors.logs.matcher import compile_patterns
from detectors.provenance import KERNEL_FACILITY, UNKNOWN, Provenance, of_line

# How a line says that its alarm is over, whatever began it. Cisco's and Arista's system message
# guides: the mnemonic of the end has that of the alarm in front of it, or the sentence ends in
# "cleared" (NX-OS, IF_XCVR_WARNING) or in "returned to normal". What a call returned is none of
# these.
_OVER = re.compile(
    rb"(?i)%[\w-]*-\d-\w*_(?:clear(?:ed)?|recovered|restored)\b"
    rb"|\b(?:alarm|warning|threshold|violation|condition) (?:is |was |has been )?cleared\b"
    rb"|\b(?:returned|back) (?:to|within) (?:its |the"
    rb" )?(?:normal|nominal|range|limits?|thresholds?)\b"
    rb"|\bpower (?:has )?returned\b"
)
# A GPU and an NVSwitch end their faults by a reset or a restart, not by a line.
_ENDS_BY_NO_LINE = frozenset({ResourceKind.GPU, ResourceKind.NVSWITCH})
# A person reads the excerpt; the longest known line of a fault is a Lustre request of about 400
# characters.
_EXCERPT = 1000
# Of a line this is read. A record of the kernel holds 1 KiB (printk.c, PRINTKRB_RECORD_MAX), and
# RFC 5424 asks receivers for 2 KiB. More of it would take `re` too long.
LONGEST_LINE = 8 * 1024
# What loggers and switches write before each message: SONiC ":- " (swss-common, logger.h), Arista
# a sequence number, NX-OS the virtual device (system messages reference, "VDC"), Junos its facility
# and severity where they are asked for (`explicit-priority`).
_LEAD = re.compile(
    rb"^[:\-\s]{0,8}(?:\d{1,10}: )?(?:%\$ VDC-\d{1,3} %\$ {1,4}|%[A-Z]{2,12}-[0-7]: )?"
)
# What the kernel says of a process begins with its name, of 15 characters at most, which is its
# user's choice: it is no driver's word (arch/x86/mm/fault.c, arch/x86/kernel/traps.c,
# kernel/signal.c, mm/oom_kill.c, mm/page_alloc.c).
_OF_PROCESS = re.compile(
    rb"(?:traps: |warn_alloc: )?.{1,15}?"
    rb"(?: ?\[\d+\]| ?\(\d+\)|/\d+| invoked oom-killer|: page allocation)"
)
_REPLACED = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True)
class Fact:
    """One fault type raised or cleared on one resource, as one line said it. `occurred_at` is UTC.

    `program`, `facility` and `priority` (syslog's severity) are the line's. `is_of_driver`: what
    was matched stands where the message begins. `decided_by` is the catalogue's file and line.
    """

    fault_type: str
    event: EventKind
    resource: str
    host: str
    occurred_at: datetime
    severity: Severity
    action: Action
    component: Component
    code: int | None
    qualifier: str
    source_key: str
    count: int
    excerpt: str
    meaning: str
    attributes: dict[str, str] = field(default_factory=dict)
    program: str = ""
    facility: int | None = None
    priority: int | None = None
    is_of_driver: bool = False
    decided_by: str = ""

    def provenance(self, sender: Provenance) -> Provenance:
        """Of the line, which this sender brought. Who names himself the kernel in another facility
        is none, but for a switch's, whose server of syslog gives it one of its own."""
        is_of_switch = self.resource.startswith("switch/")
        is_kernels_facility = self.facility in (None, KERNEL_FACILITY) or is_of_switch
        return of_line(
            sender,
            program=self.program,
            facility=self.facility,
            severity=self.priority,
            is_of_driver=self.is_of_driver and is_kernels_facility,
        )


def excerpt_of(line: bytes) -> str:
    """A line as a fact shows it: text that a database takes, bounded."""
    return _text(line.strip(b"\0\r\n "))[:_EXCERPT]


def to_event(
    fact: Fact,
    *,
    event_id: str,
    observed_at: datetime,
    source: str,
    sender: Provenance = UNKNOWN,
) -> FaultEvent:
    """The fact as the event that travels to the database. `source` names the receiver or the path,
    `sender` who brought the line."""
    return FaultEvent(
        event_id=event_id,
        fault_type=fact.fault_type,
        event=fact.event,
        resource=fact.resource,
        source=source,
        occurred_at=fact.occurred_at,
        observed_at=observed_at,
        severity=fact.severity,
        action=fact.action,
        component=fact.component,
        qualifier=fact.qualifier,
        source_key=fact.source_key,
        count=fact.count,
        code=fact.code,
        excerpt=fact.excerpt,
        attributes=dict(fact.attributes),
        provenance=fact.provenance(sender),
    )


@dataclass(frozen=True)
class _Lines:
    """The lines of a signature. A pattern is compiled when the engine first finds its line: most
    are never met, and RE2 takes a fifth of a second for all of them, at each start."""

    signature: Signature

    @cached_property
    def pattern(self) -> LinePattern:
        return compile_pattern(self.signature.pattern, is_of_site=self.signature.is_of_site)

    @cached_property
    def unless(self) -> LinePattern | None:
        if not self.signature.unless:
            return None
        return compile_pattern(self.signature.unless, is_of_site=self.signature.is_of_site)


@dataclass(frozen=True)
class _HarmlessLines:
    row: Harmless

    @cached_property
    def pattern(self) -> LinePattern:
        return compile_pattern(self.row.pattern, is_of_site=self.row.is_of_site)


class Matcher:
    """The catalogue's signatures, compiled once. One per thread. The catalogue's reader has refused
    what does not compile."""

    def __init__(self, catalog: Catalog, *, engine: str = "") -> None:
        self._catalog = catalog
        self._signatures = [_Lines(signature) for signature in catalog.signatures]
        # Signatures that are looked for in one way share one pattern of the engine.
        by_scan: dict[bytes, list[int]] = {}
        for number, item in enumerate(self._signatures):
            scan = (item.signature.scan or item.signature.pattern).encode()
            by_scan.setdefault(scan, []).append(number)
        self._of_scan = list(by_scan.values())
        lines = compile_patterns(list(enumerate(by_scan)), engine=engine)
        self._match_scans = lines.match
        # Bound once: nearly every line of a log ends in one of these.
        self._has_match = lines.has_match
        self._find_lines = lines.find_lines
        self._harmless = [_HarmlessLines(row) for row in catalog.harmless]
        self._match_harmless = compile_patterns(
            [(number, row.pattern.encode()) for number, row in enumerate(catalog.harmless)],
            engine=engine,
        ).match

    def find_lines(self, block: bytes) -> list[bytes]:
        """The lines of a block (LF between them) that may deserve a closer look, and some more; one
        scan for the whole block."""
        found = self._find_lines(block)
        entries = journal_json.find_in_block(block)
        if not entries:
            return found
        wanted = {*found, *entries}
        return [line for line in block.split(b"\n") if line in wanted]

    def is_hit(self, line: bytes) -> bool:
        """Whether the line deserves a closer look. The hot path: nearly every line ends here."""
        return self._has_match(journal_json.format_plain(line)[:LONGEST_LINE])

    def facts(
        self,
        line: bytes,
        *,
        default_host: str,
        observed_at: datetime,
        zone: tzinfo,
        year: int | None = None,
        is_own_line: bool = False,
    ) -> list[Fact]:
        """What the line states; empty for a benign one.

        `default_host` is the sender, for lines that name no host; `zone` and `year` are those of
        stamps that name none. `is_own_line`: `default_host` is where the line was read, whatever
        host it names. The first signature that fits speaks for the line.
        """
        line = journal_json.format_plain(line)[:LONGEST_LINE]
        numbers = self._match(line)
        if not numbers:
            return []
        header = parse_header(line, observed_at=observed_at, zone=zone, year=year)
        body = _body_of(header)
        if self.find_harmless(line, header) is not None:
            return []
        for number in numbers:
            item = self._signatures[number]
            if not item.signature.is_of(header.program, header.facility):
                continue
            found, is_of_driver = _find(item, line, body)
            if found is None or (item.unless is not None and item.unless.search(line)):
                continue
            groups = {name: _text(value) for name, value in read_groups(found).items()}
            named = groups.pop("host", "") or header.host
            whose = default_host if is_own_line or not named else named
            host = resources.short_host(resources.printable(whose))
            event = _event(item.signature, line)
            is_of_driver = is_of_driver and _OF_PROCESS.match(body) is None
            hit = _Hit(item.signature, groups, host, header, excerpt_of(line), event, is_of_driver)
            return [self._fact(hit, name) for name in item.signature.types]
        return []

    def _match(self, line: bytes) -> list[int]:
        """The signatures that this line may fit, in the order in which they are tried."""
        scans = self._match_scans(line)
        return sorted(number for scan in scans for number in self._of_scan[scan])

    def find_harmless(self, line: bytes, header: Header) -> Harmless | None:
        """The row that says that this line means nothing, where its message begins so."""
        numbers = self._match_harmless(line)
        if not numbers:
            return None
        body = _body_of(header)
        for number in numbers:
            item = self._harmless[number]
            if item.row.is_of(header.program, header.facility) and item.pattern.match(body):
                return item.row
        return None

    def is_read(self, line: bytes, header: Header) -> bool:
        """Whether the catalogue has a word on this line: that it states a fault, or that it does
        not (`unless`, a harmless row)."""
        body = _body_of(header)
        for number in self._match(line):
            item = self._signatures[number]
            is_its_program = item.signature.is_of(header.program, header.facility)
            if is_its_program and _find(item, line, body)[0] is not None:
                return True
        return self.find_harmless(line, header) is not None

    def _fact(self, hit: _Hit, name: str) -> Fact:
        groups = hit.groups
        code = int(groups["code"]) if "code" in groups else None
        decoded = self._decoded(name, code, groups.get("text", ""))
        row = decoded.fault_type
        named = [groups[part] for part in hit.signature.qualifier if part in groups]
        attributes = {
            key: value for key, value in groups.items() if key not in ("code", "text") and value
        }
        attributes.update(decoded.attributes)
        return Fact(
            fault_type=row.id,
            event=hit.event,
            resource=_RESOURCE[hit.signature.on](hit.host, groups),
            host=hit.host,
            occurred_at=hit.header.occurred_at,
            severity=row.severity,
            action=row.action,
            component=row.component,
            code=code if code is not None else row.code,
            qualifier=decoded.qualifier or " ".join(named),
            source_key=source_key(hit.host, hit.header),
            count=hit.header.repeats,
            excerpt=hit.excerpt,
            meaning=row.meaning,
            attributes=attributes,
            program=hit.header.program,
            facility=hit.header.facility,
            priority=hit.header.severity,
            is_of_driver=hit.is_of_driver,
            decided_by=hit.signature.where,
        )

    def _decoded(self, name: str, code: int | None, text: str) -> decode.Decoded:
        if code is None or "{code}" not in name:
            return decode.Decoded(self._catalog[name])
        row: FaultType = self._catalog[name.replace("{code}", str(code))]
        if row.family == "sxid":
            sxid = self._catalog.sxid(code, decode.is_fatal(text))
            return decode.Decoded(sxid, decode.link(text))
        return decode.xid(row, text)


@dataclass(frozen=True)
class _Hit:
    """What every fact of one line shares."""

    signature: Signature
    groups: dict[str, str]
    host: str
    header: Header
    excerpt: str
    event: EventKind
    is_of_driver: bool


def _body_of(header: Header) -> bytes:
    return _LEAD.sub(b"", header.body.encode(), count=1)


def _find(item: _Lines, line: bytes, body: bytes) -> tuple[LineMatch | None, bool]:
    """The signature where it may stand, and whether the message begins with it: what somebody
    quotes in a message is not said by it."""
    found = item.pattern.match(body)
    if found is not None or item.signature.begins is Begins.MESSAGE:
        return found, True
    return _search_until(item.pattern, line, _begin_of_message(line, body)), False


def _search_until(pattern: LinePattern, line: bytes, last_start: int) -> LineMatch | None:
    """The first match that starts there at the latest. `re` is not let search what comes after it:
    a long line in which nothing fits takes it 50 ms a pattern, RE2 a fraction of one."""
    if isinstance(pattern, re.Pattern):
        tries = (pattern.match(line, start) for start in range(last_start + 1))
        return next((found for found in tries if found is not None), None)
    found = pattern.search(line)
    return found if found is not None and found.start() <= last_start else None


def _begin_of_message(line: bytes, body: bytes) -> int:
    """Where the message stands in the line; bytes that are no text differ in the two."""
    words = body.partition(_REPLACED)[0][:64]
    return max(line.find(words), 0) if words else 0


def _event(signature: Signature, line: bytes) -> EventKind:
    """An alarm that says it is over ends its fault and never begins one."""
    may_end = signature.event is EventKind.RAISED and signature.on not in _ENDS_BY_NO_LINE
    return EventKind.CLEARED if may_end and _OVER.search(line) else signature.event


def _text(value: bytes) -> str:
    return resources.printable(value.decode("utf-8", "replace"))


def _nic(host: str, groups: dict[str, str]) -> str:
    """By PCI address where the line has one: interface names change, and ingest knows the device by
    its address."""
    address = resources.pci_address(groups.get("pci", ""))
    return resources.nic(host, address or groups.get("interface") or resources.UNKNOWN_HOST)


_RESOURCE: dict[ResourceKind, Callable[[str, dict[str, str]], str]] = {
    ResourceKind.GPU: lambda host, groups: resources.gpu(
        host, groups.get("pci") or resources.UNKNOWN_HOST
    ),
    ResourceKind.NVSWITCH: lambda host, groups: resources.nvswitch(host, groups["pci"]),
    ResourceKind.PCI: lambda host, groups: resources.pci_device(host, groups["pci"]),
    ResourceKind.NIC: _nic,
    ResourceKind.NODE: lambda host, groups: resources.node(host),
    ResourceKind.SWITCH: lambda host, groups: resources.switch(host),
    ResourceKind.PORT: lambda host, groups: resources.port(host, groups["port"].replace(" ", "")),
    ResourceKind.STORAGE: lambda host, groups: (
        f"{resources.node(host)}/storage/{groups['device']}"
        if groups.get("device")
        else resources.node(host)
    ),
}
