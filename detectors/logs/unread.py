"""Lines that nobody reads: of a program that matters, saying that something failed, and taken by no
signature. Kept as templates, for people.

A template is the line's message with what varies masked, so that all lines of one form have one.
Pure but for the matchers. Nothing that is said here raises a fault.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from fnmatch import translate
from typing import Optional

from detectors import resources
from detectors.logs.header import Header, LineRepeat, parse_header
from detectors.logs.matcher import compile_patterns
from detectors.logs.signatures import LONGEST_LINE, Matcher, excerpt_of

VARIES = "<*>"
# What RFC 5424 (6.2.1) calls emergency, alert, critical and error.
WORST_SEVERITIES = 3
# A template is shown in one row of a table; the longest format string of mlx5_core and nvidia.ko is
# shorter.
_LONGEST_TEMPLATE = 300
# Tokens of two templates that are alike for them to be one. Zhu et al., "Tools and Benchmarks for
# Automated Log Parsing" (ICSE-SEIP 2019): .5 with Drain for the logs of two clusters (BGL, HPC).
_SIMILARITY = 0.5

# Programs that serve hardware, fabric, storage or Slurm: their failures are worth a person's look,
# whatever the words. By the names with which their makers ship them.
_PROGRAMS = (
    # NVIDIA's driver packages, DCGM, NVLink's and InfiniBand's managers.
    *("nv-*", "nvidia-*", "nvlsm", "fabricmanager", "dcgm*", "opensm", "ibacm", "srp_daemon"),
    # Slurm and its authentication.
    *("slurmctld", "slurmd", "slurmdbd", "slurmstepd", "slurmrestd", "sackd", "munged"),
    # Containers of jobs, and who looks up their users.
    *("enroot*", "apptainer*", "singularity*", "sssd*", "nslcd"),
    # Pairs of servers that take over from each other.
    *("corosync", "pacemaker*", "pcmk*", "crmd", "stonith-ng"),
    # Storage: device-mapper, iSCSI, MD, SMART, ZFS, NFS, Spectrum Scale, BeeGFS.
    *("multipathd", "iscsid", "iscsiadm", "iscsistart", "mdadm", "smartd", "dmeventd", "zed"),
    *("rpc.*", "mount.*", "mmfs*", "beegfs-*", "lnet*", "lustre*", "weka*"),
    # A machine's own health: BMC, machine checks, sensors, clocks.
    *("ipmievd", "ipmiseld", "mcelog", "rasdaemon", "thermald", "chronyd", "ntpd", "ptp4l"),
    "phc2sys",
    # SONiC's containers and their programs (sonic-buildimage, dockers/), FRRouting.
    *("orchagent", "syncd", "xcvrd", "thermalctld", "psud", "pcied", "sensord", "ledd", "chassisd"),
    *("*syncd", "*mgrd", "teamd*", "bgpd", "zebra", "bfdd", "staticd", "lldpd", "supervisord"),
    *("healthd", "system-health", "pmon", "ycabled", "stormond", "sensormond", "bgpcfgd"),
    # Cumulus Linux, Junos, EOS: the processes that drive ports, power and routes.
    *("switchd", "smond", "ledmgrd", "pwmd", "clagd", "portwd", "rpd", "alarmd", "craftd", "dcd"),
    *("l2ald", "l2cpd", "lacpd", "pfed", "fpc*", "tfeb*", "ebra", "phyethtool", "thermostat"),
    *("chassisd", "mgd", "bfdd", "iccpd", "mclagsyncd", "linkmgrd"),
    *("powermanager", "fru", "strata*", "sand*"),
)
# Programs in whose lines a part of the machine must be named as well: they speak of everything.
_GENERAL_PROGRAMS = ("kernel", "systemd", "systemd-networkd", "networkmanager", "ifup*", "udevd*")
_HARDWARE = (
    r"gpu|nvlink|nvswitch|nvrm|nvidia\w*|pcie?|pcieport|aer|mlx\w*|bnxt\w*|irdma|ice|i40e|ixgbe"
    r"|roce|rdma|infiniband|hca|nic|link|port|lane|phy|serdes|transceiver|module|optics?|[qo]?sfp\w*"
    r"|laser|fec|fans?|psu|power|voltage|temperature|thermal|sensor|memory|dimm\w*|ecc|edac|mce"
    r"|machine check|cpu|cache|dram|hbm|firmware|fw|bios|bmc|ipmi|nvme\w*|disk|drive|scsi|ata\w*"
    r"|raid|md\d+|sd[a-z]|block|i2c|eeprom|dma\w*|iommu|interrupt|irq|watchdog|clocksource|tsc"
    r"|lustre\w*|lnet\w*|nfs\w*|xfs|ext4(?:-fs)?|btrfs|filesystem|i/o|switch|asic|pfc|bgp|bfd|lacp"
    r"|bond\w*|vxlan|hardware|chassis|netdev|eth\w*|ens\w+|enp\w+|ib\w*"
    r"|iscsi|connection\d+|session\d+|multipath|device-mapper|dm-\d+|jbd2|zfs|ceph|beegfs|weka\w*"
    r"|gpfs|mmfs\w*|igb|igc|tg3|cxgb\d|e1000e?|bnx2x?|be2net|qed\w?|ionic|ena|efa|hfi1|rcu|megasas"
)
_FAILURE = (
    r"err|errors?|fail\w*|faults?|faulty|fatal|timeouts?|time-?out|timed out|lost|loss|dead|down"
    r"|unreachable|hung|hang|stuck|stall\w*|unresponsive|not respon\w+|no response|corrupt\w*"
    r"|critical|degraded|missing|abort\w*|refus\w+|unable|cannot|could not|couldn't|can't|invalid"
    r"|mismatch\w*|overheat\w*|over-?(?:temp|heat|current|volt|run|flow)\w*|exceed\w*|panic"
    r"|offline|uncorrect\w*|unrecover\w*|poison\w*|parity|bad|broken|not ready|throttl\w*"
    r"|alarms?|threshold|unexpected\w*|crash\w*|violat\w+|flap\w*|unstable|lockup"
    r"|not supported|unhealthy|hangs|starved|giv(?:es?|ing) up|gave up|evict\w*|expell\w*|differs"
    r"|misconfigur\w*|not enabled"
)
_SEVERITY_NUMBERS = "|".join(
    str(8 * facility + severity)
    for facility in range(24)
    for severity in range(WORST_SEVERITIES + 1)
)
# Who says that something went wrong in a word before the message: Slurm (log.c), FRRouting and
# most daemons.
_ERROR_WORD = re.compile(r"(?i)^(?:\[[^\]]*\]\s*)?(?:error|fatal|critical|err|crit)\b\s*:")
# Network operating systems: severity 0 to 3 in the mnemonic (Cisco, Arista, Dell).
_MNEMONIC = re.compile(r"%(?P<facility>[A-Z][A-Z0-9_]*)(?:-[A-Z0-9_]+)*-(?P<severity>[0-7])-[A-Z]")
# Of who may log in and what users encrypt, whatever went wrong with it. NX-OS sends its programs'
# lines, sshd's too, as SYSTEM_MSG.
_OF_ACCOUNTS = re.compile(
    r"^(?:AUTH|AAA|TACACS|RADIUS|SSH|LOGIN|SEC_LOGIN|DOT1X|CRYPTO|PKI|MAB|EPM|USER)"
)
_OF_ACCOUNTS_WORDS = re.compile(r"(?i)\b(?:\w*sshd|pam_\w+|aaad|login|password|authenticat\w+)\b")
_FAILURE_WORD = re.compile(rf"(?i)\b(?:{_FAILURE})\b")
_HARDWARE_WORD = re.compile(rf"(?i)\b(?:{_HARDWARE})\b")
# Said of what works, though the name of a failure stands in it.
_WELL = re.compile(
    r"(?i)\b(?:success\w*|no errors?|0 errors|errors?[:=] ?0|without errors?|enabled|initialized"
    r"|recovered|cleared|restored|(?:link|port|interface) (?:is |becomes )?(?:up|ready))\b"
)
_SURELY_FAILED = re.compile(r"(?i)\b(?:fail\w*|cannot|unable|could not|not recovered)\b")
# By these a block of lines is told from one that needs no closer look.
_PREFILTER = (
    rb"(?i)\b(?:" + _FAILURE.encode() + rb")\b",
    b"^<(?:" + _SEVERITY_NUMBERS.encode() + b")>",
    rb"%[A-Z][A-Z0-9_-]{0,60}-[0-3]-[A-Z]",
    rb"(?:\.|<)(?:emerg|alert|crit|err)>|\b(?:EMERG|ALERT|CRIT|ERR|ERROR)\b",
)
# Each bounded gap multiplies what a pattern may try.
_MOST_GAPS, _GAP = 3, ".{1,80}"
_MASKS = (
    # What stands in quotes or angle brackets is a name or a value.
    re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"|<[^<>]{1,80}>"),
    # Paths, addresses of every kind, identifiers: parts of letters and digits with a digit in one.
    re.compile(r"(?<![\w/])/[\w.+@:-]+(?:/[\w.+@:-]*)*"),
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
        return replace(
            self,
            severity=min(known, default=None),
            first_at=min(self.first_at, later.first_at),
            last_at=max(self.last_at, later.last_at),
            count=self.count + later.count,
        )


class UnreadReader:
    """Finds unread lines beside a matcher, whose word comes first. One per thread."""

    def __init__(self, matcher: Matcher, *, engine: str = "") -> None:
        self._matcher = matcher
        lines = compile_patterns(list(enumerate(_PREFILTER)), engine=engine)
        self.may_hold = lines.occurs
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
        if not self.is_candidate(line):
            return None
        line = line[:LONGEST_LINE]
        header = parse_header(line, observed_at=observed_at, zone=zone)
        if not is_of_interest(header) or self._matcher.is_read(line, header):
            return None
        named = default_host if is_own_line or not header.host else header.host
        return UnreadLine(
            host=resources.short_host(resources.printable(named)),
            program=program_of(header),
            template=make_template(header.body),
            severity=header.severity,
            first_at=header.occurred_at,
            last_at=header.occurred_at,
            count=header.repeats,
            sample=excerpt_of(line),
        )


def _compile_names(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, names)))


_IS_PROGRAM = _compile_names(_PROGRAMS)
_IS_GENERAL_PROGRAM = _compile_names(_GENERAL_PROGRAMS)


def program_of(header: Header) -> str:
    """`orchagent` for `swss#orchagent`, `%PSU` for a network system's mnemonic; `kernel` for the
    kernel's ring, which names none."""
    mnemonic = _find_mnemonic(header)
    if mnemonic is not None:
        return f"%{mnemonic['facility'][:79]}"
    name = header.program.rpartition("#")[2].rpartition("/")[2]
    return resources.printable(name.partition("(")[0])[:80] or "kernel"


def _find_mnemonic(header: Header) -> Optional[re.Match[str]]:
    return _MNEMONIC.search(header.body[:200])


def is_of_interest(header: Header) -> bool:
    """Whether a line says that hardware, fabric, storage or Slurm failed."""
    if header.repeat is LineRepeat.LAST or _is_well(header.body):
        return False
    mnemonic = _find_mnemonic(header)
    if mnemonic is not None:
        is_of_accounts = _OF_ACCOUNTS.match(mnemonic["facility"]) is not None
        if is_of_accounts or _OF_ACCOUNTS_WORDS.search(header.body):
            return False
        return int(mnemonic["severity"]) <= WORST_SEVERITIES or _names_failed_part(header.body)
    program = program_of(header).lower()
    if not _IS_PROGRAM.match(program):
        is_general = _IS_GENERAL_PROGRAM.match(program) is not None
        return is_general and (_is_bad(header) or _names_failed_part(header.body))
    return _is_bad(header) or _FAILURE_WORD.search(header.body) is not None


def _is_bad(header: Header) -> bool:
    """By its severity, or by the word with which its program begins an error."""
    is_severe = header.severity is not None and header.severity <= WORST_SEVERITIES
    return is_severe or _ERROR_WORD.match(header.body) is not None


def _names_failed_part(body: str) -> bool:
    return _FAILURE_WORD.search(body) is not None and _HARDWARE_WORD.search(body) is not None


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
