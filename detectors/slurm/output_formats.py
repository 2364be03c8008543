"""Nodes in the other forms that Slurm prints: `sinfo --json`, slurmrestd's nodes, and sinfo's
tables. Pure.

Total on any text: a row that cannot be read is counted, never guessed. Python 3.9, standard library
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Optional

from detectors.slurm import output
from detectors.slurm.output import NodeState, parse_state

# What sinfo prints in one word, long and short (sinfo(1), NODE STATE CODES), as base and flags.
_WORDS: dict[str, tuple[str, frozenset[str]]] = {
    word: (base, frozenset(flags.split()))
    for words, base, flags in (
        ("IDLE", "IDLE", ""),
        ("ALLOCATED ALLOC", "ALLOCATED", ""),
        ("MIXED MIX", "MIXED", ""),
        ("COMPLETING COMP", "ALLOCATED", "COMPLETING"),
        ("DRAINED DRAIN", "IDLE", "DRAIN"),
        ("DRAINING DRNG", "ALLOCATED", "DRAIN"),
        ("DOWN", "DOWN", ""),
        ("ERROR", "ERROR", ""),
        ("FAIL", "IDLE", "FAIL"),
        ("FAILING FAILG", "ALLOCATED", "FAIL"),
        ("MAINT MAINTENANCE", "IDLE", "MAINTENANCE"),
        ("REBOOT REBOOT_ISSUED BOOT", "IDLE", "REBOOT_ISSUED"),
        ("REBOOT_REQUESTED", "IDLE", "REBOOT_REQUESTED"),
        ("RESERVED RESV", "IDLE", "RESERVED"),
        ("PLANNED PLND", "IDLE", "PLANNED"),
        ("FUTURE FUTR", "FUTURE", ""),
        ("UNKNOWN UNK", "UNKNOWN", ""),
        ("INVAL", "IDLE", "INVALID_REG"),
        ("BLOCKED BLOCK", "IDLE", "BLOCKED"),
        ("NPC PERFCTRS", "IDLE", "PERFCTRS"),
        ("POWERED_DOWN POW_DN", "IDLE", "POWERED_DOWN"),
        ("POWERING_DOWN", "IDLE", "POWERING_DOWN"),
        ("POWERING_UP POW_UP", "IDLE", "POWERING_UP"),
        ("POWER_DOWN", "IDLE", "POWER_DOWN"),
    )
    for word in words.split()
}
_NAMES = ("HOSTNAMES", "NODELIST", "NODE", "NODES_NAME")
_LAST = "REASON"
_NO_REASON = frozenset({"", "none", "(null)", "n/a"})
_MOST_NODES = 100_000
_PADDING = " " * 16
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Listed:
    """The nodes by name, how many rows or blocks could not be read, and what Slurm complained of,
    for people."""

    nodes: dict[str, NodeState]
    unread: int = 0
    complaint: str = ""


def parse_nodes(text: str) -> Listed:
    """Whatever form it is: `scontrol show node`, JSON, or a table of sinfo."""
    if "NodeName=" in text:
        found = output.parse_nodes(text)
        blocks = re.findall(r"(?m)^NodeName=", text)
        return Listed(found, max(0, len(blocks) - len(found)))
    start = text.find("{")
    if start >= 0 and '"' in text[start : start + 80]:
        return _parse_json(text[start:])
    return _parse_table(text)


def parse_word(text: str) -> Optional[tuple[str, frozenset[str]]]:
    """`drained*`, `mix-`, `idle+drain` as base and flags; None for what is no state."""
    word, flags = parse_state(text)
    if word not in _WORDS:
        return None
    base, implied_flags = _WORDS[word]
    return base, implied_flags | flags


def _parse_json(text: str) -> Listed:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return Listed({}, 1, "the JSON cannot be read")
    if not isinstance(whole, dict):
        return Listed({}, 1, "the JSON is no object")
    rows = _list(whole.get("nodes"))
    found = [_parse_node(row) for row in rows if isinstance(row, dict)]
    nodes = {node.name: node for node in found if node is not None}
    unread = len(rows) - len(nodes)
    return Listed(nodes, unread, _format_errors(whole.get("errors")))


def _format_errors(errors: Any) -> str:
    """22.05: {error, errno}; later {description, error, source}."""
    texts = []
    for row in _list(errors):
        if isinstance(row, dict):
            text = row.get("description") or row.get("error") or "an error"
            texts.append(str(text))
    return "; ".join(texts)[:200]


def _list(value: Any) -> list[Any]:
    """Empty for what is no list."""
    return value if isinstance(value, list) else []


def _parse_node(row: dict[str, Any]) -> Optional[NodeState]:
    """None for a row without a name or a state."""
    name = row.get("name")
    words = _get_state_words(row)
    if not isinstance(name, str) or not name or not words:
        return None
    base, flags = parse_state("+".join(words))
    reason = str(row.get("reason") or "")
    user = str(row.get("reason_set_by_user") or "")
    changed_at = _parse_moment(row.get("reason_changed_at"))
    boot_time = _parse_moment(row.get("boot_time"))
    partitions = [word for word in row.get("partitions") or () if isinstance(word, str)]
    return NodeState(
        name=name,
        base=base,
        flags=flags,
        reason=reason,
        reason_set_by=user,
        reason_changed_at=changed_at,
        boot_time=boot_time,
        partitions=tuple(partitions),
    )


def _get_state_words(row: dict[str, Any]) -> list[str]:
    """`state` is a string beside `state_flags` in 22.05, one list later."""
    state = row.get("state")
    words = [state] if isinstance(state, str) else _list(state)
    flags = _list(row.get("state_flags"))
    return [str(word) for word in [*words, *flags] if word]


def _parse_moment(value: Any) -> Optional[datetime]:
    """Seconds, or {set, infinite, number} from 23.02 on; zero is no time."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**33:
        return None
    return datetime.fromtimestamp(value, tz=timezone.utc)


def _parse_table(text: str) -> Listed:
    """With a header, blanks or `|` between columns, the reason last if it is there; or without one,
    `|` between."""
    nodes: dict[str, NodeState] = {}
    unread, header = 0, None
    for line in text.splitlines():
        cells = _split_cells(line)
        if "STATE" in cells and any(name in cells for name in _NAMES):
            header = cells
            continue
        if not cells or (header is None and not _is_row(line)):
            continue  # a date or a prompt before the table, or a table of something else
        for node in _parse_row(line, header):
            if len(nodes) >= _MOST_NODES:
                return Listed(nodes, unread + 1)
            if node is None:
                unread += 1
                continue
            known = nodes.get(node.name)
            if known is None or known.reason == "":
                nodes[node.name] = node
    return Listed(nodes, unread)


def _split_cells(line: str, most: int = -1) -> list[str]:
    """At `|` where there is one, else at blanks, of which `most` cut."""
    if "|" in line:
        return [cell.strip() for cell in line.split("|")]
    return line.split(None, most)


def _parse_row(line: str, header: Optional[list[str]]) -> Iterator[Optional[NodeState]]:
    """The nodes of one row (a host list where sinfo was not asked for single nodes); None for an
    unreadable one."""
    if header is None:
        values = _parse_short(line)
    else:
        cells = _split_cells(line, len(header) - 1)
        is_fitting = abs(len(cells) - len(header)) <= 1
        values = dict(zip(header, cells)) if is_fitting else {}
    names = [values[key] for key in _NAMES if values.get(key)]
    state = parse_word(values.get("STATE", ""))
    hosts = list(output.iterate_hosts(names[0])) if names and state else []
    if state is None or not hosts or not all(map(_HOST.fullmatch, hosts[:4])):
        yield None
        return
    base, flags = state
    last = values.get(_LAST, "")
    reason = "" if last.lower() in _NO_REASON else last
    user = values.get("USER", "").partition("(")[0].replace("Unknown", "")
    for host in hosts:
        yield NodeState(
            name=host,
            base=base,
            flags=flags,
            reason=reason,
            reason_set_by=user,
            reason_changed_at=None,
            boot_time=None,
            partitions=(),
        )


def _is_row(line: str) -> bool:
    """Of a table without header: our own short form, or columns that sinfo padded to a width."""
    cells = line.split("|", 2)
    if len(cells) != 3:
        return False
    return parse_word(cells[1]) is not None or cells[0].endswith(_PADDING)


def _parse_short(line: str) -> dict[str, str]:
    """`%N|%T|%u|%E`, as `slurm_queries` asks for, the reason being all that is left; or any row
    with a state in it."""
    name, *cells = [cell.strip() for cell in line.split("|")]
    if len(cells) >= 3 and parse_word(cells[0]):
        reason = line.split("|", 3)[3].strip()
        return {"NODELIST": name, "STATE": cells[0], "USER": cells[1], _LAST: reason}
    states = [cell for cell in cells if parse_word(cell)]
    return {"NODELIST": name, "STATE": states[0] if states else ""}
