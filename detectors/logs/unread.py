"""Lines that nobody reads: of a program that matters, saying that something failed, and taken by no
signature. Kept as templates, for people.

A template is the line's message with what varies masked, so that all lines of one form have one.
Pure but for the matchers. Nothing that is said here raises a fault.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Optional

from detectors import resources
from detectors.logs import journal_json
from detectors.logs import unread_words as words
from detectors.logs.header import Header, LineRepeat, parse_header
from detectors.logs.matcher import compile_patterns
from detectors.logs.signatures import LONGEST_LINE, Matcher, excerpt_of

VARIES = "<*>"
# What RFC 5424 (6.2.1) calls emergency, alert, critical and error.
WORST_SEVERITIES = 3
_WARNING, _NOTICE, _KERN = 4, 5, 0
# A template is shown in one row of a table; the longest format string of mlx5_core and nvidia.ko is
# shorter.
_LONGEST_TEMPLATE = 300
# Tokens of two templates that are alike for them to be one. Zhu et al., "Tools and Benchmarks for
# Automated Log Parsing" (ICSE-SEIP 2019): .5 with Drain for the logs of two clusters (BGL, HPC).
_SIMILARITY = 0.5

_IS_PROGRAM, _IS_GENERAL_PROGRAM = map(
    words.compile_names, (words.PROGRAMS, words.GENERAL_PROGRAMS)
)
_SEVERITY_NUMBERS = "|".join(
    str(8 * facility + severity)
    for facility in range(24)
    for severity in range(WORST_SEVERITIES + 1)
)
_ERROR_MARK = re.compile("|".join(words.ERROR_MARKS))
_CALM_MARK = re.compile("|".join(words.CALM_MARKS))
_DEBUG_MARK = re.compile(words.DEBUG_MARK)
_WORSE_MARK = re.compile(words.WORSE_MARK)
_IS_SELF_GRADING = words.compile_names(words.SELF_GRADING)
# A mark stands behind the program's name and stamp at most, which Slurm and Pacemaker repeat.
_MARK_WITHIN = 80
# What SONiC's programs print is graded by them; what their supervisor repeats of them is not.
_OF_CONTAINER = re.compile(r"[\w-]{1,40}#(?!supervisord)")
# What NCCL (src/debug.cc) and UCX (src/ucs/debug/log.c) print into a job's output.
_OF_LIBRARY = re.compile(r"\b(?:(?P<nccl>NCCL) WARN|(?P<ucx>UCX)  (?:ERROR|FATAL|WARN)) ")
# A daemon of Ceph in its own file: the thread and the level (src/log/Log.cc); in the cluster's:
# who, from where, its number (src/common/LogEntry.cc).
_OF_CEPH = re.compile(
    r"[0-9a-f]{12,16} {1,3}-?\d{1,2} |(?:mon|osd|mds|mgr|client)\.\S{1,60} \S{1,60} \d{1,20} : "
)
# Network operating systems: severity 0 to 3 in the mnemonic (Cisco, Arista, Dell; Huawei, H3C).
_MNEMONIC = re.compile(
    r"(?:%(?:%\d\d)?|^#?(?=\w{3,40}/))(?P<facility>[A-Z][A-Z0-9_]*)(?:(?:-[A-Z0-9_]+)*-|/)"
    r"(?P<severity>[0-7])[-/][A-Za-z]"
)
# Network systems that grade an event in a form of their own, whatever program stands before it: the
# number and severity of HPE's AOS-CX, the component of Extreme's EXOS, the message number of
# Brocade's RASlog, the daemon and level of NVIDIA's Onyx, the number and severity of NVIDIA's UFM.
_EVENT = re.compile(
    r"Event\|\d{1,5}\|LOG_[A-Z]{3,7}\|"
    r"|(?:\d\d/\d\d/\d{4} [\d:.]{8,12} )?<(?:Crit|Erro|Warn|Noti|Info|Summ):[\w.-]{2,60}>"
    r"|(?:\d{4}/\d\d/\d\d-[\d:]{8,12}(?: \([\w:+-]{1,10}\))?, )?\[[A-Z][A-Z0-9]{1,5}-\d{4}\], ?\d"
    r"|(?:TID \d{1,20}: )?\[[\w-]{2,20}\.(?:EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG)\]: "
    r"|\[\d{1,10}\] \[\d{1,10}\] (?:CRITICAL|MAJOR|MINOR|WARNING|INFO) "
)
# Of who may log in, what users encrypt and what a licence allows, whatever went wrong with it.
# NX-OS sends its programs' lines, sshd's too, as SYSTEM_MSG.
_OF_ACCOUNTS = re.compile(
    r"^(?:AUTH|AAA|TACACS|RADIUS|SSH|LOGIN|SEC_LOGIN|DOT1X|CRYPTO|PKI|MAB|EPM|USER|LICENSE"
    r"|SMART_LIC|CALL_?HOME)"
)
_OF_ACCOUNTS_WORDS = re.compile(
    r"(?i)\b(?:\w*sshd|pam_\w+|aaad|login|password|authenticat\w+|tacacs|radius"
    r"|certificates?)\b"
)
_FAILURE_WORD = re.compile(rf"(?i)\b(?:{words.FAILURE})\b")
_COMPLAINT_WORD = re.compile(rf"(?i)\b(?:{words.FAILURE}|{words.COMPLAINT})\b")
_ORDER_WORD = re.compile(rf"(?i)\b(?:{words.ORDER})\b")
_LACKING_WORD = re.compile(rf"(?i)\b(?:{words.LACKING})\b")
_HARDWARE_WORD = re.compile(rf"(?i)\b(?:{words.HARDWARE})\b|^(?:{words.DEVICE})")
# What the kernel says of a program that ended by a signal (arch/x86/kernel/traps.c, mm/fault.c).
_ENDED_PROGRAM = re.compile(
    r"(?:traps: )?(?P<name>[\w.-]{1,15})\[\d+\]:? (?:segfault|general protection|trap |bad frame)"
)
# What systemd says of a unit that failed (src/core/service.c, unit.c).
_FAILED_UNIT = re.compile(
    r"(?P<name>[\w.-]{1,60}?)(?:@[\w.-]{0,40})?\.service: (?:(?i:main|control) process exited"
    r"|Failed with result|Unit entered failed state|Start request repeated|Start operation timed)"
)
# What begins a line in a program's place and is none: levels, and what smartd speaks of.
_NO_PROGRAM = re.compile(r"(?i)err(?:or)?|warn(?:ing)?|fatal|critical|alert|device")
# The head of a line of klog or glog below an error, as programs of clusters print it.
_GLOG_CALM = re.compile(r"[IW]\d{4} \d\d:\d\d:\d\d\.\d{3,9} +\d+ [\w./-]{1,80}:\d+\]")
# How a driver or a subsystem of the kernel begins a message: its name, a device's after it
# (pr_fmt, dev_printk, netdev_printk), TTM's and DRM's in brackets. Not so what the kernel passes on
# of programs.
_OF_SUBSYSTEM = re.compile(
    r"(?!(?:audit|init|type|udevd|dracut\S*|SELinux|AppArmor|Command line|Kernel command line|PM)\b"
    r"|page dumped|crashkernel )"
    r"(?:[a-zA-Z][\w/-]{1,23}(?: [\w.:-]{1,32}){0,2}: |\[[A-Za-z][\w-]{1,15}\] )"
)
# Said of what works, though the name of a failure stands in it.
_WELL = re.compile(
    r"(?i)\b(?:success\w*|no errors?|0 errors|errors?[:=] ?0|without errors?|enabled|initialized"
    r"|recovered|cleared|restored|(?:link|port|interface) (?:is |becomes )?(?:up|ready))\b"
)
# A count of failures that is none.
_ZERO = re.compile(r"[\w-]{1,40} ?[=:] ?0(?:x0{1,16})?(?![\w.])")
_SURELY_FAILED = re.compile(
    r"(?i)\b(?:fail\w*|can ?not|can't|unable|could not|unsuccessful\w*|errors? (?!reporting)"
    r"|not (?:success\w*|enabled|initiali[sz]ed|recovered|cleared|restored))\b"
)
# By these a block of lines is told from one that needs no closer look.
_PREFILTER = (
    rb"(?i)\b(?:" + words.FAILURE.encode() + rb")\b",
    rb"(?i)\b(?:" + words.COMPLAINT.encode() + rb")\b",
    b"^<(?:" + _SEVERITY_NUMBERS.encode() + b")>",
    rb"%[A-Z][A-Z0-9_-]{0,60}-[0-3](?:-[A-Z]|: )",
    rb"(?:\.|<)(?:emerg|alert|crit|err)>|\b(?:EMERG|ALERT|CRIT|ERR|ERROR)\b",
    *(mark.encode() for mark in words.ERROR_MARKS_ANYWHERE),
)
# Each bounded gap multiplies what a pattern may try.
_MOST_GAPS, _GAP = 3, ".{1,80}"
_MASKS = (
    # What stands in quotes or angle brackets is a name or a value.
    re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"|<[^<>]{1,80}>"),
    # Paths, addresses of every kind, identifiers: parts of letters and digits with a digit in one.
    # Behind what is masked already no path begins: in `0/1` neither.
    re.compile(r"(?<![\w/>])/[\w.+@:-]+(?:/[\w.+@:-]*)*"),
    re.compile(r"\b[0-9a-fA-F]{1,8}(?:[:.-][0-9a-fA-F]{1,12}){2,31}(?::\d+)?(?![\w])"),
    re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{6,}\b"),
    # Numbers, but for those in a driver's name, such as mlx5_core.
    re.compile(r"(?:(?<!\w)[+-])?\d+(?:[.,]\d+)*(?!\d|_[a-z])"),
)
_REPEATED = re.compile(rf"(?:{re.escape(VARIES)}[\s,;:/|.-]*)+{re.escape(VARIES)}")


@dataclass(frozen=True)
class UnreadLine:
    """What one line, or several of one template on one machine, say.

    `severity` is syslog's 0 to 7, None where no line names one; `first_at` and `last_at` are UTC.
    """

    host: str
    program: str
    template: str
    severity: Optional[int]
    first_at: datetime
    last_at: datetime
    count: int
    sample: str

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.host, self.program, self.template

    def add(self, later: UnreadLine) -> UnreadLine:
        """Both together; the sample stays."""
        known = [severity for severity in (self.severity, later.severity) if severity is not None]
        severity = min(known, default=None)
        first_at = min(self.first_at, later.first_at)
        last_at = max(self.last_at, later.last_at)
        count = self.count + later.count
        return replace(self, severity=severity, first_at=first_at, last_at=last_at, count=count)


class UnreadReader:
    """Finds unread lines beside a matcher, whose word comes first. One per thread."""

    def __init__(self, matcher: Matcher, *, engine: str = "") -> None:
        self._matcher = matcher
        lines = compile_patterns(list(enumerate(_PREFILTER)), engine=engine)
        self.find_lines = lines.find_lines
        self.is_candidate = lines.has_match

    def read(
        self,
        line: bytes,
        *,
        default_host: str,
        observed_at: datetime,
        zone: tzinfo,
        is_own_line: bool = False,
    ) -> Optional[UnreadLine]:
        """What an unread line says; None for one that is read, harmless or of no interest.
        Arguments as of `Matcher.facts`."""
        line = journal_json.format_plain(line)[:LONGEST_LINE]
        if not self.is_candidate(line):
            return None
        header = parse_header(line, observed_at=observed_at, zone=zone)
        if not is_of_interest(header) or self._matcher.is_read(line, header):
            return None
        named = default_host if is_own_line or not header.host else header.host
        host = resources.short_host(resources.printable(named))
        template = make_template(header.body)
        said_at = header.occurred_at
        return UnreadLine(
            host=host,
            program=program_of(header),
            template=template,
            severity=header.severity,
            first_at=said_at,
            last_at=said_at,
            count=header.repeats,
            sample=excerpt_of(line),
        )


def program_of(header: Header) -> str:
    """`orchagent` for `swss#orchagent`, `%PSU` for a network system's mnemonic; `kernel` for the
    kernel's ring, which names none, and for lines whose program wrote no name."""
    mnemonic = _find_mnemonic(header)
    if mnemonic is not None:
        return f"%{mnemonic['facility'][:79]}"
    if not header.program and _OF_CEPH.match(header.body) is not None:
        return "ceph"
    library = _OF_LIBRARY.search(header.body[:200])
    if library is not None:
        return library["nccl"] or library["ucx"]
    name = header.program.rpartition("#")[2].rpartition("/")[2]
    if _NO_PROGRAM.fullmatch(name) is not None:
        return "kernel"
    return resources.printable(name.partition("(")[0])[:80] or "kernel"


def _find_mnemonic(header: Header) -> Optional[re.Match[str]]:
    return _MNEMONIC.search(header.body[:200])


def is_of_interest(header: Header) -> bool:
    """Whether a line says that hardware, fabric, storage or Slurm failed."""
    if header.repeat is LineRepeat.LAST or _is_well(header.body):
        return False
    if _DEBUG_MARK.match(header.body) is not None:
        return False
    mnemonic = _find_mnemonic(header)
    if mnemonic is not None:
        is_of_accounts = _OF_ACCOUNTS.match(mnemonic["facility"]) is not None
        if is_of_accounts or _OF_ACCOUNTS_WORDS.search(header.body):
            return False
        severity = int(mnemonic["severity"])
        is_said = severity <= _NOTICE and _names_failed_part(header.body.replace("_", " "))
        return is_said or (severity <= WORST_SEVERITIES and not _is_in_order(header.body))
    if _is_of_nobody(header):
        return False
    program = program_of(header).lower()
    is_event = _EVENT.match(header.body) is not None
    if is_event and _OF_ACCOUNTS_WORDS.search(header.body):
        return False
    if is_event or _IS_PROGRAM.match(program):
        return _is_bad(header) or _complains(header, program)
    if not _IS_GENERAL_PROGRAM.match(program):
        return False
    ended = _ENDED_PROGRAM.match(header.body)
    if ended is not None:
        return _IS_PROGRAM.match(ended["name"].lower()) is not None
    body = _less_what_is_lacking(header)
    is_bad = _is_bad(header) or _names_failed_part(body)
    is_of_subsystem = program == "kernel" and _says_subsystem_failed(body)
    return is_bad or is_of_subsystem or _is_failed_unit(header.body)


def _says_subsystem_failed(body: str) -> bool:
    """Whether the kernel itself says that one of its drivers or subsystems failed, known or not."""
    is_of_subsystem = _OF_SUBSYSTEM.match(body) is not None
    return is_of_subsystem and _FAILURE_WORD.search(_ZERO.sub("", body)) is not None


def _is_failed_unit(body: str) -> bool:
    """Whether systemd says that a program that matters failed."""
    found = _FAILED_UNIT.match(body)
    return found is not None and _IS_PROGRAM.match(found["name"].lower()) is not None


def _is_in_order(body: str) -> bool:
    """Whether the words of a message, its mnemonic's too, say that all is well, and none that it is
    not."""
    text = body.replace("_", " ")
    return _ORDER_WORD.search(text) is not None and _COMPLAINT_WORD.search(text) is None


def _is_of_nobody(header: Header) -> bool:
    """A line without a program that is not the kernel's, and by its own grade no error."""
    if not header.program and _GLOG_CALM.match(header.body) is not None:
        return True
    is_of_kernel = bool(header.program) or header.facility in (None, _KERN)
    return not is_of_kernel and _is_calm(header)


def _is_bad(header: Header) -> bool:
    """By its severity, or by the mark that its program puts before an error."""
    is_severe = header.severity is not None and header.severity <= WORST_SEVERITIES
    return is_severe or _ERROR_MARK.match(header.body) is not None


def _is_calm(header: Header) -> bool:
    return header.severity is not None and header.severity >= _NOTICE


def _complains(header: Header, program: str) -> bool:
    """In words that weigh as much as the program itself gives to the line."""
    if _is_graded_calm(header, program):
        return _names_failed_part(_less_what_is_lacking(header))
    return _says_failure(header)


def _is_graded_calm(header: Header, program: str) -> bool:
    """Whether the program itself says that the line tells of no error. The severity of syslog alone
    does not: the journal gives the same one to all that a service prints."""
    start = header.body[:_MARK_WITHIN]
    if _CALM_MARK.match(start) is not None:
        return True
    if _OF_CONTAINER.match(header.program) is not None:
        return _is_calm(header)
    return _IS_SELF_GRADING.match(program) is not None and _WORSE_MARK.search(start) is None


def _says_failure(header: Header) -> bool:
    """In the words of a program that matters. Of one that is calm itself, a complaint is none."""
    words_of = _FAILURE_WORD if _is_calm(header) else _COMPLAINT_WORD
    return words_of.search(_ZERO.sub("", header.body)) is not None


def _names_failed_part(body: str) -> bool:
    body = _ZERO.sub("", body)
    return _FAILURE_WORD.search(body) is not None and _HARDWARE_WORD.search(body) is not None


def _less_what_is_lacking(header: Header) -> str:
    """The message without what it only says is not there, where it is not graded a warning."""
    if header.severity is not None and header.severity <= _WARNING:
        return header.body
    return _LACKING_WORD.sub(" ", header.body)


def _is_well(body: str) -> bool:
    return _WELL.search(body) is not None and _SURELY_FAILED.search(body) is None


def make_template(body: str) -> str:
    """The message with all that varies masked."""
    text = resources.printable(body)[:_LONGEST_TEMPLATE]
    for mask in _MASKS:
        text = mask.sub(VARIES, text)
    return _REPEATED.sub(VARIES, " ".join(text.split()))


def make_pattern(template: str) -> str:
    """A pattern for lines of this form, from where the message begins until the third thing that
    varies: for a person to correct."""
    words = template.split(VARIES)
    gaps = words[1 : _MOST_GAPS + 1]
    pattern = re.escape(words[0]) + "".join(_GAP + re.escape(word) for word in gaps)
    return pattern.replace("\\ ", " ").replace("\\-", "-").rstrip()


def key_of(program: str, template: str) -> str:
    """By which people name a template: 12 characters."""
    return hashlib.sha256(f"{program}\0{template}".encode()).hexdigest()[:12]


def merge(template: str, other: str) -> Optional[str]:
    """The template of both, where they are of one form: as many words, the same first one, and at
    least half of all alike (Drain: He et al., ICWS 2017). None where they are not."""
    words, others = template.split(), other.split()
    if len(words) != len(others) or words[:1] != others[:1] or words[0] == VARIES:
        return None
    alike = sum(word == same != VARIES for word, same in zip(words, others))
    if alike < _SIMILARITY * len(words):
        return None
    pairs = zip(words, others)
    return " ".join(word if word == same else VARIES for word, same in pairs)


class UnreadLines:
    """What was found since somebody last took it: bounded, what does not fit is counted."""

    def __init__(self, most: int = 200) -> None:
        self._most = most
        self._found: dict[tuple[str, str, str], UnreadLine] = {}
        self.left_out = 0

    def add(self, line: UnreadLine) -> None:
        known = self._found.get(line.identity)
        if known is not None:
            self._found[line.identity] = known.add(line)
        elif len(self._found) < self._most:
            self._found[line.identity] = line
        else:
            self.left_out += line.count

    def take(self) -> list[UnreadLine]:
        found, self._found = list(self._found.values()), {}
        return found
