"""Fault events per second committed to a private PostgreSQL with fsync on: `python -m
tests.benchmarks.ingest`.

Each figure is one process and one connection, batches of 500 as the receiver spools them. The other
tools' numbers are context only: they were measured on two cores of another machine, through their
own HTTP APIs.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.services.postgres import Postgres

if TYPE_CHECKING:
    from detectors.faults import FaultEvent

BATCH = 500
NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
# Events per second that open or join an alert, from the same source as LIBRARIES.md's picks.
OTHERS = {"Argus": 51, "Alerta": 151}
_ids = itertools.count(1)


def main() -> int:
    server = Postgres(is_durable=True).start()
    scratch = tempfile.TemporaryDirectory(prefix="kintsugi-bench-")
    try:
        os.environ.update(
            DATABASE_URL=server.url,
            KINTSUGI_DATA_DIR=scratch.name,
            DJANGO_SETTINGS_MODULE="kintsugi.settings",
        )
        _prepare()
        _report("onto 1,000 active faults", _onto_active(20_000), aim=10_000)
        _report("100,000 duplicates folded by the receiver", _folded(100_000), aim=10_000)
        _report("100,000 duplicates, one by one", _duplicates(100_000), aim=10_000)
        _report("each opens an incident", _opening(5_000), aim=1_000)
    finally:
        server.remove()
        scratch.cleanup()
    return 0


def _prepare() -> None:
    import django  # noqa: PLC0415  the settings name the server, which has to run first

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)


def _report(what: str, rate: float, *, aim: int) -> None:
    others = ", ".join(f"{rate / theirs:,.0f} x {name}" for name, theirs in OTHERS.items())
    sys.stdout.write(f"{what}: {rate:,.0f} events/s (aim {aim:,}; {others})\n")
    sys.stdout.flush()


def _event(resource: str, *, at: datetime = NOW, count: int = 1, line: int = 0) -> FaultEvent:
    from detectors.faults import Action, Component, EventKind, FaultEvent, Severity  # noqa: PLC0415

    return FaultEvent(
        event_id=f"{next(_ids):032x}",
        fault_type="gpu.xid.79",
        event=EventKind.RAISED,
        resource=resource,
        source="syslog",
        occurred_at=at,
        observed_at=at,
        severity=Severity.CRITICAL,
        action=Action.REBOOT,
        component=Component.GPU,
        source_key=f"{resource}|boot|{line}|Xid 79",
        count=count,
        code=79,
        excerpt="kernel: NVRM: Xid (PCI:0000:19:00): 79, pid=1234, GPU has fallen off the bus.",
    )


def _ingested(batches: Sequence[Sequence[FaultEvent]]) -> float:
    """Seconds to commit these batches, one after the other."""
    from incidents import services  # noqa: PLC0415

    started = time.perf_counter()
    for batch in batches:
        services.ingest(batch, now=NOW)
    return time.perf_counter() - started


def _in_batches(events: Sequence[FaultEvent]) -> Iterator[Sequence[FaultEvent]]:
    for start in range(0, len(events), BATCH):
        yield events[start : start + BATCH]


def _resource(number: int, prefix: str = "gn") -> str:
    return f"node/{prefix}{number // 8:05}/gpu/0000:{number % 8:02x}:00.0"


def _onto_active(total: int) -> float:
    first = [_event(_resource(number)) for number in range(1_000)]
    _ingested(list(_in_batches(first)))
    events = [_event(_resource(number * 7919 % 1_000), line=number + 1) for number in range(total)]
    return total / _ingested(list(_in_batches(events)))


def _folded(total: int) -> float:
    """The receiver folds 100 lines into one event."""
    events = [_event(_resource(0), count=100, line=-number - 1) for number in range(total // 100)]
    return total / _ingested(list(_in_batches(events)))


def _duplicates(total: int) -> float:
    events = [_event(_resource(1), line=-number - 1) for number in range(total)]
    return total / _ingested(list(_in_batches(events)))


def _opening(total: int) -> float:
    events = [
        _event(f"node/new{number:05}/gpu/0000:19:00.0", at=NOW + timedelta(hours=1))
        for number in range(total)
    ]
    return total / _ingested(list(_in_batches(events)))


if __name__ == "__main__":
    sys.exit(main())
