"""What Slurm's accounts say of a node: who took it out, why, since when, until when. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from detectors.detector import Output
from detectors.slurm import queries
from runbooks.slurm.protocol import NodeEvent

# The reason stands last: it may hold the separator.
SHOW = (
    *("sacctmgr", "--noheader", "--parsable2", "show", "event"),
    *("start=now-1days", "format=TimeStart,TimeEnd,User,Reason"),
)
_CELLS = 4
# `bob(1000)`; users without a name are printed as the number alone.
_USER = re.compile(r"(?P<name>[^()]*)(?:\(\d+\))?")


def parse_events(text: str) -> list[NodeEvent]:
    """The output of SHOW run with TZ=UTC, the oldest first. What it cannot read it leaves out."""
    rows = (line.split("|", _CELLS - 1) for line in text.splitlines())
    found = [_parse_event(row) for row in rows if len(row) == _CELLS]
    return sorted((event for event in found if event is not None), key=lambda row: row.began_at)


def has_no_accounts(output: Output) -> bool:
    """sacctmgr of 22.05.8 without slurmdbd: `You are not running a supported accounting_storage
    plugin`."""
    printed = output.stderr + output.stdout
    return queries.has_no_accounts(output) or b"supported accounting_storage plugin" in printed


def _parse_event(row: list[str]) -> NodeEvent | None:
    began_at, ended_at, user, reason = row
    start = _parse_time(began_at)
    if start is None:
        return None
    found = _USER.match(user)
    return NodeEvent(reason, found["name"] if found else "", start, _parse_time(ended_at))


def _parse_time(text: str) -> datetime | None:
    """`Unknown` where it has none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
