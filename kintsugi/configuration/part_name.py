"""What a process calls itself to PostgreSQL, from its command line: `pg_stat_activity` then says
whose session waits, or holds a lock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

_PARTS = {"receive": "receiver", "waitress-serve": "web"}
_QUEUE_OPTIONS = ("-Q", "--queues")
# PostgreSQL keeps 63 bytes of an application name.
_LONGEST = 63


def get_part_name(argv: Sequence[str]) -> str:
    """`kintsugi-receiver`, `kintsugi-web`, `kintsugi-beat`, `kintsugi-worker-ingest-sweep`; of a
    command its name: `kintsugi-migrate`."""
    program = PurePath(argv[0]).name if argv else ""
    words = [word for word in argv[1:] if not word.startswith("-")]
    if program == "waitress-serve":
        part = _PARTS[program]
    elif "worker" in words:
        part = "-".join(["worker", *_parse_queues(argv)])
    elif "beat" in words:
        part = "beat"
    elif program in ("manage.py", "kintsugi") and words:
        part = _PARTS.get(words[0], words[0])
    else:
        return "kintsugi"
    return f"kintsugi-{part}"[:_LONGEST]


def _parse_queues(argv: Sequence[str]) -> list[str]:
    for option, value in zip(argv, [*argv[1:], ""], strict=True):
        name, _, joined = option.partition("=")
        if name in _QUEUE_OPTIONS:
            return sorted((joined or value).split(","))
    return []
