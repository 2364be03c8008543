"""Reservations as `scontrol show reservation` prints them. Pure; what cannot be read is left out,
never guessed.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Optional

from detectors.slurm import output

SHOW = ("scontrol", "--all", "show", "reservation")

# scontrol(1), `create reservation`, Flags: "Maintenance mode, receives special accounting
# treatment".
_MAINTENANCE = "MAINT"
_NONE = frozenset({"", "(null)"})


@dataclass(frozen=True)
class Reservation:
    """`nodes` are spelled out. Times are UTC; an unlimited one ends a year on, as Slurm itself
    writes it."""

    name: str
    nodes: tuple[str, ...]
    flags: frozenset[str]
    starts_at: datetime
    ends_at: datetime

    @property
    def is_maintenance(self) -> bool:
        return _MAINTENANCE in self.flags


def parse_reservations(text: str) -> list[Reservation]:
    """Output of `SHOW`, run with TZ=UTC and SLURM_TIME_FORMAT=standard."""
    found = (_parse_reservation(block) for block in re.split(r"(?m)^ReservationName=", text)[1:])
    return [reservation for reservation in found if reservation is not None]


def _parse_reservation(block: str) -> Optional[Reservation]:
    name = block.partition(" StartTime=")[0].strip()
    starts_at, ends_at = (
        _parse_time(_get_word(block, "StartTime")),
        _parse_time(_get_word(block, "EndTime")),
    )
    if not name or "\n" in name or starts_at is None or ends_at is None:
        return None
    hosts = _get_word(block, "Nodes")
    nodes = () if hosts in _NONE else tuple(output.iterate_hosts(hosts))
    flags = frozenset(flag for flag in _get_word(block, "Flags").split(",") if flag not in _NONE)
    return Reservation(name=name, nodes=nodes, flags=flags, starts_at=starts_at, ends_at=ends_at)


def _get_word(block: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", block)
    return found[1] if found else ""


def _parse_time(text: str) -> Optional[datetime]:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
