"""How long the numbers of a million incidents take: `python -m tests.benchmarks.reliability [PURE
[ROWS]]`.

First from arrays in memory (PURE incidents), then from ROWS rows of a SQLite file made for the
purpose.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from incidents.reliability.summary import (
    COMPONENTS,
    RECOVERIES,
    UNIT_ORDER,
    ExposureUnit,
    Incidents,
    ServiceHistory,
    StudyPeriod,
    compute_all_figures,
)

_EPOCH_H = datetime(2025, 1, 1, tzinfo=UTC).timestamp() / 3600
_YEAR_H = 8766.0


def columns(count: int) -> Incidents:
    random = np.random.default_rng(7)
    onset = _EPOCH_H + random.uniform(0, _YEAR_H, count)
    return Incidents(
        component=random.integers(0, len(COMPONENTS), count).astype(np.int8),
        is_failure=random.random(count) > 0.1,
        left_out=np.full(count, -1, dtype=np.int8),
        is_quiet=np.zeros(count, dtype=bool),
        owner=random.integers(0, 10_000, count),
        owner_unit=np.full(count, UNIT_ORDER.index(ExposureUnit.NODE), dtype=np.int8),
        recovery=random.integers(0, len(RECOVERIES), count).astype(np.int8),
        onset=onset,
        last_good=onset - random.exponential(0.01, count),
        opened=onset + random.exponential(0.01, count),
        acknowledged=np.where(random.random(count) < 0.6, onset + 0.2, np.nan),
        out=onset + 0.01,
        restored=np.where(
            random.random(count) < 0.99, onset + random.lognormal(0.5, 1.5, count), np.nan
        ),
    )


def timed(what: str, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    sys.stdout.write(f"{what}: {time.perf_counter() - began:.2f} s\n")
    sys.stdout.flush()


def pure(count: int) -> None:
    incidents = columns(count)
    fleet = ServiceHistory(
        {unit: np.full(10_000, _EPOCH_H) for unit in ExposureUnit}, np.full(80_000, _EPOCH_H)
    )
    window = StudyPeriod(_EPOCH_H, _EPOCH_H + _YEAR_H, ZoneInfo("Asia/Tokyo"))
    timed(
        f"{count:,} incidents in memory, eleven rows of figures",
        lambda: compute_all_figures(incidents, fleet, window),
    )


def from_rows(count: int) -> None:
    from django.core.management import call_command  # noqa: PLC0415  the settings name the file, made first

    from incidents.models import Incident  # noqa: PLC0415
    from incidents.statistics import statistics  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    start, minute = datetime(2025, 1, 1, tzinfo=UTC), timedelta(minutes=1)
    for first in range(0, count, 20_000):
        times = [
            start + (number % 500_000) * minute
            for number in range(first, min(first + 20_000, count))
        ]
        Incident.objects.bulk_create(
            Incident(
                title="Benchmark",
                component="gpu",
                fault_type="gpu.xid.79",
                severity="critical",
                action="reboot",
                root_resource="node/gn001",
                owner=f"node/gn{index % 1000:04}",
                onset_at=at,
                opened_at=at + minute,
                restored_at=at + 30 * minute,
                recorded_at=at,
                updated_at=at,
            )
            for index, at in enumerate(times)
        )
    timed(
        f"{count:,} incidents in SQLite, summary",
        lambda: statistics.compute_summary(start, start + timedelta(days=365)),
    )


def main() -> int:
    sizes = [int(text) for text in sys.argv[1:]] + [1_000_000, 200_000][len(sys.argv) - 1 :]
    pure(sizes[0])
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
        os.environ.update(KINTSUGI_DATA_DIR=scratch, DJANGO_SETTINGS_MODULE="kintsugi.settings")
        import django  # noqa: PLC0415

        django.setup()
        from_rows(sizes[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
