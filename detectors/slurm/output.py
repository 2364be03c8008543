"""What Slurm's programs print, as values. Pure; total on any text: what it cannot read it leaves
out.

`scontrol show node` is read rather than `sinfo --json`: it exists in every version, costs half (11
ms against 22 for 100 nodes) and the JSON changed its form between 22.05 and 23.11. One field a line
is relied upon, never a separator inside a line: a drain's reason may hold `|`, `=` and quotes.
Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Optional

# The suffixes of a state in Slurm's short forms (sinfo(1), NODE STATE CODES), as the flags that
# later forms print.
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "$": "MAINTENANCE",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "-": "PLANNED",
}
# Names that changed over the versions.
_SAME_FLAG = {"MAINT": "MAINTENANCE", "REBOOT": "REBOOT_REQUESTED", "NO_RESPOND": "NOT_RESPONDING"}
# slurm.h of 22.05 to 26.05, node_states and NODE_STATE_*: jobs of users do not start there.
_NOT_SERVING = frozenset(
    {
        *("MAINTENANCE", "POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWER_UP", "POWERING_UP"),
        *("INVALID_REG", "BLOCKED", "REBOOT_ISSUED"),
    }
)
_NOT_THERE = frozenset({"UNKNOWN", "FUTURE"})
_REASON_STAMP = re.compile(
    r"^(?P<reason>.*?)(?: \[(?P<user>[^\s\[\]@]*)@(?P<at>[0-9T:-]+)\])?$", re.DOTALL
)
# src/slurmctld/node_mgr.c of 22.05 (`count too low`) and from 23.02 on: what registered, and what
# slurm.conf has.
_FEWER_GPUS = re.compile(r"gres/gpu\S{0,64} count [a-z ]{1,64}\((\d{1,4}) < \d{1,4}\)")
_SLICE = re.compile(r"\dg\.\d+gb")
# No host list of a cluster is longer; one that says so is garbage.
_BETWEEN = re.compile(r"\s*\d[\w+]*(\x1f[0-9a-f]{16})")
_MOST_HOSTS = 65_536
_LONGEST_NUMBER = 12
MOST_PLACES = 1_000_000


@dataclass(frozen=True)
class NodeState:
    """One node as Slurm shows it. `base` is IDLE, ALLOCATED, MIXED, DOWN ...; `flags` hold DRAIN,
    REBOOT_ISSUED, REBOOT_REQUESTED, NOT_RESPONDING, COMPLETING ... in Slurm's own words, upper
    case. Times are UTC.
    """

    name: str
    base: str
    flags: frozenset[str]
    reason: str
    reason_set_by: str
    reason_changed_at: Optional[datetime]
    boot_time: Optional[datetime]
    partitions: tuple[str, ...]
    gpus: int = 0
    """As its GRES counts them; 0 where Slurm does not say."""
    address: str = ""
    """NodeAddr: a name or an address."""
    slurmd_started_at: Optional[datetime] = None
    resume_after: Optional[datetime] = None
    """When Slurm takes it back by itself, as whoever took it out has asked (from 23.02 on)."""
    comment: str = ""
    """Of people, and of programs of theirs."""

    @property
    def gpus_registered(self) -> int:
        """As many as its slurmd has shown: fewer than `gpus` where Slurm's reason says so."""
        fewer = _FEWER_GPUS.search(self.reason) if self.is_out else None
        return int(fewer[1]) if fewer else self.gpus

    @property
    def is_draining(self) -> bool:
        """DRAIN is set, whether or not jobs are left."""
        return "DRAIN" in self.flags

    @property
    def is_drained(self) -> bool:
        """DRAIN is set and no job is left on the node."""
        return self.is_draining and self.base in {"IDLE", "DOWN"} and "COMPLETING" not in self.flags

    @property
    def is_rebooting(self) -> bool:
        return bool(self.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED"})

    @property
    def is_failing(self) -> bool:
        """Set to FAIL, which only people do; FAILING while jobs are left."""
        return bool({self.base, *self.flags} & {"FAIL", "FAILING"})

    @property
    def is_out(self) -> bool:
        """Takes no new jobs, whoever decided so."""
        is_away = self.base in {"DOWN", "ERROR"} or "NOT_RESPONDING" in self.flags
        return self.is_draining or self.is_failing or is_away

    @property
    def is_serving(self) -> bool:
        """Takes jobs of users: not out, and neither kept for a maintenance nor away for whatever
        Slurm itself has to say of it. PLANNED keeps it for one larger job: that is serving."""
        is_there = self.base not in _NOT_THERE
        return is_there and not self.is_out and not self.flags & _NOT_SERVING


@dataclass(frozen=True)
class QueuedJob:
    """`gpus_per_node` is 0 where Slurm does not say."""

    job_id: str
    user: str
    name: str
    state: str
    nodes: tuple[str, ...]
    gpus_per_node: int = 0


def parse_nodes(text: str) -> dict[str, NodeState]:
    """`scontrol show node` run with TZ=UTC, by node name."""
    found = (
        _parse_node(block)
        for block in re.split(r"(?m)^(?=NodeName=)", text)
        if block.startswith("NodeName=")
    )
    return {node.name: node for node in found if node.base}


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: `Key = value` lines; a value Slurm prints as (null) is empty."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {
        key.strip(): "" if value.strip() == "(null)" else value.strip() for key, _, value in pairs
    }


def parse_partitions(text: str) -> dict[str, tuple[str, ...]]:
    """`scontrol show partition`: the nodes of each."""
    found: dict[str, tuple[str, ...]] = {}
    for block in re.split(r"(?m)^(?=PartitionName=)", text):
        if not block.startswith("PartitionName="):
            continue
        lines = [line.strip() for line in block.splitlines()]
        nodes = _get_word(lines, "Nodes")
        found[_get_word(lines, "PartitionName")] = (
            () if nodes == "(null)" else tuple(iterate_hosts(nodes))
        )
    return found


def parse_jobs(text: str) -> list[QueuedJob]:
    """What `slurm_queries.running_jobs` prints, or `squeue --noheader --format=%A|%T|%u|%N|%b|%j`.

    Jobs past MOST_PLACES names of nodes are left out: no cluster has so many places for them.
    """
    found: list[QueuedJob] = []
    places = 0
    for row in iterate_rows_of(text, 6):
        nodes = tuple(iterate_hosts(row[3]))
        places += len(nodes)
        if places > MOST_PLACES:
            break
        gpus = count_gpus(row[4])
        found.append(QueuedJob(row[0].strip(), row[2], row[5], row[1], nodes, gpus))
    return found


def iterate_rows(text: str, between: str, columns: int) -> Iterator[list[str]]:
    """Rows in which each cell ends with `between`, the last one too. All but the first may hold
    line feeds.

    A user writes what they like into a job's name and comment (22.05 prints line feeds in both as
    they are), also whole rows of other people's jobs. So `between` is one that nobody can guess:
    `secret_between`.
    """
    cells = text.split(between)
    for at in range(0, len(cells) - columns, columns):
        first = cells[at].rpartition("\n")[2]
        yield [cell.strip() for cell in (first, *cells[at + 1 : at + columns])]


def create_separator() -> str:
    """What parts the cells of one answer."""
    return f"\x1f{secrets.token_hex(8)}"


def iterate_rows_of(text: str, columns: int) -> Iterator[list[str]]:
    """Rows by the separator that follows the first cell, a number of Slurm's own: nobody else can
    have written it.

    Where there is none, lines whose cells `|` parts, the last one holding whatever is left: kept
    outputs are so.
    """
    found = _BETWEEN.match(text)
    if found:
        yield from iterate_rows(text, found[1], columns)
        return
    for line in text.splitlines() if "\x1f" not in text else ():
        cells = line.split("|", columns - 1)
        if len(cells) == columns:
            yield cells


def count_gpus(text: str) -> int:
    """What a job asks for on each node: `gres:gpu:h100:8`, `gres/gpu:8` or `N/A`."""
    found = re.search(r"\bgpu(?::[A-Za-z][\w.-]*)?[:=](\d{1,6})", text)
    return int(found[1]) if found else 0


def iterate_hosts(text: str) -> Iterator[str]:
    """Slurm's host list, `gn[001-003,007],mt001`, name by name; a name may go on behind its
    brackets."""
    return islice(_expand(text), _MOST_HOSTS)


def _expand(text: str) -> Iterator[str]:
    for part in _split_at_commas(text):
        prefix, bracket, rest = part.partition("[")
        ranges, closing, suffix = rest.partition("]")
        if not bracket:
            yield part
        elif closing and "[" not in suffix:
            for number in _expand_ranges(ranges):
                yield f"{prefix}{number}{suffix}"


def _split_at_commas(text: str) -> Iterator[str]:
    """What stands between commas that are in no brackets."""
    begun, is_inside = 0, False
    for at, sign in enumerate(text):
        if sign in "[]":
            is_inside = sign == "["
        elif sign == "," and not is_inside:
            if at > begun:
                yield text[begun:at]
            begun = at + 1
    if begun < len(text):
        yield text[begun:]


def _expand_ranges(ranges: str) -> Iterator[str]:
    for span in ranges.split(","):
        first, _, last = span.partition("-")
        last = last or first
        is_range = (
            first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= _LONGEST_NUMBER
        )
        if is_range and int(last) - int(first) < _MOST_HOSTS:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """`IDLE+DRAIN+REBOOT_ISSUED`, `DOWN*` or `drained*` as base and flags."""
    base, *flags = text.strip().upper().split("+")
    found = {_SAME_FLAG.get(flag, flag) for flag in flags if flag}
    while base and base[-1] in _SUFFIXES:
        found.add(_SUFFIXES[base[-1]])
        base = base[:-1]
    return base, frozenset(found)


def _parse_node(block: str) -> NodeState:
    lines = [line.strip() for line in block.splitlines()]
    base, flags = parse_state(_get_word(lines, "State"))
    reason, user, changed_at = _parse_reason(lines)
    boot_time = _parse_time(_get_word(lines, "BootTime"))
    slurmd_started_at = _parse_time(_get_word_behind(lines, "BootTime", "SlurmdStartTime"))
    resume_after = _parse_time(_get_word_behind(lines, "LastBusyTime", "ResumeAfterTime"))
    gpus = _count_gres_gpus(_get_word(lines, "Gres"))
    partitions = tuple(filter(None, _get_word(lines, "Partitions").split(",")))
    name, address = _get_word(lines, "NodeName"), _get_word(lines, "NodeAddr")
    comment = _get_line(lines, "Comment")
    return NodeState(
        name=name,
        base=base,
        flags=flags,
        reason=reason,
        reason_set_by=user,
        reason_changed_at=changed_at,
        boot_time=boot_time,
        partitions=partitions,
        gpus=gpus,
        address=address,
        slurmd_started_at=slurmd_started_at,
        resume_after=resume_after,
        comment=comment,
    )


def _count_gres_gpus(text: str) -> int:
    """`gpu:h100:8(S:0-1)`, several types added up. Slices (`gpu:h100_1g.10gb:56`) tell no number of
    GPUs."""
    if _SLICE.search(text):
        return 0
    return sum(
        int(count) for count in re.findall(r"(?:^|,)gpu(?::[A-Za-z][\w.-]{0,60})?:(\d{1,4})", text)
    )


def _get_word(lines: list[str], key: str) -> str:
    """The value that follows `key=` at a line's beginning, up to the next blank."""
    for line in lines:
        if line.startswith(f"{key}="):
            return line[len(key) + 1 :].split(" ", 1)[0]
    return ""


def _get_line(lines: list[str], key: str) -> str:
    """The whole of what follows `key=` at a line's beginning."""
    begun = f"{key}="
    found = (line[len(begun) :] for line in lines if line.startswith(begun))
    return next(found, "")


def _get_word_behind(lines: list[str], first: str, key: str) -> str:
    """The value of a key that stands behind the first one of its line: such a line Slurm alone
    writes."""
    for line in lines:
        if line.startswith(f"{first}="):
            return line.partition(f" {key}=")[2].split(" ", 1)[0]
    return ""


def _parse_reason(lines: list[str]) -> tuple[str, str, Optional[datetime]]:
    for line in lines:
        if line.startswith("Reason=") and (
            found := _REASON_STAMP.match(line.removeprefix("Reason="))
        ):
            return found["reason"], found["user"] or "", _parse_time(found["at"] or "")
    return "", "", None


def _parse_time(text: str) -> Optional[datetime]:
    """`None`, `Unknown` and Slurm's zero are no time."""
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return at if at.year > 1970 else None
