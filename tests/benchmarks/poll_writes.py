"""What polling costs the database: `python -m tests.benchmarks.poll_writes [other tree] [nodes ...]`.

Claim, lease, memory and results of N nodes and all node detectors, each at its own pace, against a
private PostgreSQL with fsync; a virtual clock, no SSH. What detectors remember is what they remember
of the simulated cluster's answers. Twice: answers that stay the same, as of captures, and those of
busy nodes, where every poll of the detectors that count traffic, light and log lines changes its
memory. Bytes of write-ahead log by `pg_current_wal_lsn`; the whole pages that PostgreSQL writes after
a checkpoint (`pg_walinspect`) come each five minutes in a day, its default, however short the run.

Then every node posts once what its own check saw, the detectors that look every minute.

The same is done with the code of another tree, an earlier version, where one is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from tests.services.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
SIZES = (1_000, 10_000)
TICK, MINUTE = timedelta(seconds=5), timedelta(minutes=1)
CHECKPOINTS_A_DAY = 24 * 60 // 5
MINUTES = 2
# Counters of bytes and pauses, the place in the log, the light of modules.
BUSY = ("rail", "nic", "node_log", "transceiver")
_AIMS = "aims at 10,000: 10 GB a day, claim 50 ms, plan 5 s"


def main() -> int:
    trees = [ROOT, *(Path(word) for word in sys.argv[1:] if not word.isdigit())]
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or list(SIZES)
    _say(_AIMS)
    for size in sizes:
        for tree in trees:
            _say(f"{size:6,} nodes, {'this tree' if tree == ROOT else tree}")
            server = Postgres(is_durable=True).start()
            try:
                with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
                    _run_child(tree, server.url, scratch, size)
            finally:
                server.remove()
    return 0


def _run_child(tree: Path, url: str, scratch: str, size: int) -> None:
    settings = {
        "DATABASE_URL": url,
        "KINTSUGI_DATA_DIR": scratch,
        "DJANGO_SETTINGS_MODULE": "kintsugi.settings",
        "PYTHONPATH": str(tree),
    }
    argv = [sys.executable, __file__, "child", str(size)]
    subprocess.run(argv, cwd=tree, env=os.environ | settings, check=True)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# In a process of its own, with the code of either tree
# ---------------------------------------------------------------------------


def _play(size: int) -> None:
    import django  # noqa: PLC0415  the settings name the server

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    for statement in ("checkpoint_timeout = '1h'", "max_wal_size = '64GB'"):
        _query(f"ALTER SYSTEM SET {statement}")
    _query("SELECT pg_reload_conf()")
    _query("CREATE EXTENSION pg_walinspect")
    schedule = _Schedule(size)
    _say(f"    plan {schedule.plan():.1f} s for {size * len(schedule.paces):,} polls")
    schedule.remember()
    for name, busy in (("the same answers", ()), ("busy nodes", BUSY)):
        schedule.let_pass(name, busy)
    schedule.post()


class _Schedule:
    """One process that claims and answers all polls at once."""

    def __init__(self, size: int) -> None:
        from detectors import registry  # noqa: PLC0415
        from incidents.polling.polling import PollPace  # noqa: PLC0415

        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.names = frozenset(f"n{number:05}" for number in range(size))
        node_detectors = [d for d in registry.DETECTORS if d.kind.value == "node"]
        self.paces = [PollPace(d.name, "node", d.every, self.names) for d in node_detectors]
        self.every = {pace.detector: pace.every for pace in self.paces}
        self.memories = dict(_remember_answers(node_detectors))
        self.number = 0

    def plan(self) -> float:
        from incidents.polling import polling  # noqa: PLC0415

        return _time(lambda: polling.plan(self.paces, self.now))

    def remember(self) -> None:
        """Every target was looked at once."""
        from incidents import models  # noqa: PLC0415
        from incidents.models import Poll  # noqa: PLC0415

        for pace in self.paces:
            packed = self._pack(pace.detector)
            if not hasattr(models, "PollChunk"):
                Poll.objects.filter(detector=pace.detector).update(memory=packed)
                continue
            rows = []
            for name in sorted(self.names):
                key = {"detector": pace.detector, "kind": "node", "target": name}
                rows.append(Poll(**key, memory=packed, polled_at=self.now))
            Poll.objects.bulk_create(rows, batch_size=2_000)

    def _pack(self, detector: str) -> bytes:
        from incidents.polling import polling  # noqa: PLC0415

        memory = _at(self.memories[detector], self.now)
        arguments = (memory,) if polling.pack.__code__.co_argcount == 1 else (memory, self.now)
        return polling.pack(*arguments)

    def let_pass(self, name: str, busy: tuple[str, ...]) -> None:
        """Some minutes, with a checkpoint before them."""
        from incidents.polling import polling  # noqa: PLC0415

        _query("VACUUM ANALYZE")
        _query("CHECKPOINT")
        began, claims, count = _lsn(), [], 0
        wall, cpu = time.perf_counter(), time.process_time()
        minutes = MINUTES if hasattr(polling, "end") or len(self.names) < 5_000 else 1
        for _ in range(round(minutes * MINUTE / TICK)):
            self.now += TICK
            started = time.perf_counter()
            chunks = polling.claim(self.paces, self.now, tick=TICK)
            claims.append(time.perf_counter() - started)
            count += sum(self._answer(chunk, chunk.detector in busy) for chunk in chunks)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        records, pages, a_day = _written_since(began, minutes)
        claims.sort()
        worst = claims[max(0, round(len(claims) * 0.99) - 1)]
        _say(
            f"    {name}: {count / minutes:,.0f} polls a minute; {records / 1e6:.2f} MB of WAL a minute"
            f" and {pages / 1e6:.1f} MB of pages a checkpoint, {a_day / 1e9:.1f} GB a day; claim p50 {median(claims) * 1e3:.0f},"
            f" p99 {worst * 1e3:.0f} ms; {wall / minutes:.1f} s and {cpu / minutes:.1f} s of own CPU"
            f" for a minute of polls ({minutes} min)"
        )

    def post(self) -> None:
        """A minute's posts of all nodes, which say nothing new. The second minute is measured."""
        quick = sorted(name for name, every in self.every.items() if every <= MINUTE)
        for _ in range(2):
            self.now += MINUTE
            _query("CHECKPOINT")
            began = _lsn()
            for node in sorted(self.names):
                self._post(node, quick)
        records, pages, a_day = _written_since(began, 1)
        _say(
            f"    posts of {len(quick)} detectors a node and minute: {records / 1e6:.2f} MB of WAL a"
            f" minute and {pages / 1e6:.1f} MB of pages a checkpoint, {a_day / 1e9:.1f} GB a day"
        )

    def _post(self, node: str, detectors: list[str]) -> None:
        from django.db import transaction  # noqa: PLC0415

        from incidents.polling import polling  # noqa: PLC0415

        with transaction.atomic():
            if hasattr(polling, "end"):
                polling.begin_out_of_turn(node)
                states = polling.get_states_out_of_turn(node, detectors)
            else:
                states = polling.kept_of(node, "node", detectors, self.now)
            for state in states.values():
                state.memory, state.seen_at = (
                    _at(self.memories[state.detector], self.now),
                    self.now,
                )
            if hasattr(polling, "end"):
                polling.is_overtaken_out_of_turn(node, states.values())
                polling.finish_out_of_turn(node, list(states.values()), self.every, self.now)
                return
            for state in states.values():
                polling.finish([state], self.every[state.detector], self.now, lease=None)

    def _answer(self, claimed: Any, is_busy: bool) -> int:
        from django.db import transaction  # noqa: PLC0415

        from incidents.polling import polling  # noqa: PLC0415

        chunk = polling.begin(claimed, self.now)
        every = self.every[chunk.detector]
        states = polling.get_poll_states(chunk, chunk.targets)
        self.number += 1
        template = self.memories[chunk.detector]
        memory = _at(template, self.now, add=self.number if is_busy else 0)
        for state in states.values():
            state.memory, state.seen_at = memory, self.now
        held: dict[str, Any] = {"lease": chunk.lease}
        with transaction.atomic():
            if hasattr(polling, "end"):
                polling.is_overtaken(chunk, states.values(), every, self.now)
                held = {"chunk": chunk}
            else:
                polling.versions(chunk, chunk.targets)
            polling.finish(list(states.values()), every, self.now, **held)
        if hasattr(polling, "end"):
            polling.end(chunk, every, self.now)
        return len(states)


def _remember_answers(detectors: Any) -> Iterator[tuple[str, Any]]:
    """By detector, what it remembers of one node of the simulated cluster."""
    from detectors.catalog import catalog  # noqa: PLC0415
    from detectors.detector import Target, Transports  # noqa: PLC0415
    from detectors.evaluation import judge  # noqa: PLC0415
    from detectors.polling import observe_one  # noqa: PLC0415
    from fixtures.cluster.world import SimulatedShell, SimulatedWorld  # noqa: PLC0415

    shell = SimulatedShell(SimulatedWorld.sakuraone())
    rows = catalog.load()
    for detector in detectors:
        memory = judge.Memory()
        for minute in range(3):
            at = datetime(2025, 12, 31, tzinfo=UTC) + minute * MINUTE
            seen = observe_one(Target("gn001", "gn001"), detector, Transports(shell), at)
            seen += detector.compare(seen, memory.samples)
            judged = judge.judge(seen, memory, active=(), catalog=rows, keeps=detector.keeps)
            memory = judged.memory
        yield detector.name, memory


def _at(memory: Any, now: datetime, add: int = 0) -> Any:
    """The same memory of a look at `now`; numbers in it are `add` higher."""
    samples: Mapping[Any, Any] = {
        key: replace(sample, at=now, value=_higher(sample.value, add))
        for key, sample in memory.samples.items()
    }
    return replace(memory, samples=samples, looked_at=now)


def _higher(value: Any, add: int) -> Any:
    if not add:
        return value
    return f"{value}-{add}" if isinstance(value, str) else _add(value, add)


def _add(value: Any, add: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value + add


def _time(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _query(statement: str) -> Any:
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone() if cursor.description else None


def _lsn() -> str:
    return str(_query("SELECT pg_current_wal_flush_lsn()")[0])


def _written_since(began: str, minutes: float) -> tuple[float, int, float]:
    """Bytes of records a minute, of whole pages after a checkpoint, and of both a day."""
    ended = _lsn()
    row = _query(f"SELECT sum(fpi_size) FROM pg_get_wal_stats('{began}', '{ended}')")
    pages = int(row[0] or 0)
    records = (_bytes_between(began, ended) - pages) / minutes
    return records, pages, records * 24 * 60 + pages * CHECKPOINTS_A_DAY


def _bytes_between(began: str, ended: str) -> int:
    return int(_query(f"SELECT '{ended}'::pg_lsn - '{began}'::pg_lsn")[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        _play(int(sys.argv[2]))
        sys.exit()
    sys.exit(main())
