"""A storm over all pods, worked off by one process and by two: `python -m tests.benchmarks.storm`.

A site of 1,000 nodes in 20 pods on which 10,000 faults are open; batches of 500 as the receiver
hands them over, half of them repeats, a quarter new faults, a quarter ends, wait in the inbox of a
private PostgreSQL with fsync on. Both cases begin with a copy of the same database. Besides events
per second by the clock, which say nothing on a busy machine: CPU of the workers, and the share of
their time in which they waited for each other's locks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from tests.services.postgres import Postgres

BATCHES = 32
FULL = "filled"
_LOOK_EVERY_S = 0.05
_WAITS = (
    "SELECT count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity"
    " WHERE datname = %s"
)


@dataclass(frozen=True)
class WorkedOff:
    """`waited` is of all workers' time together, 0 to 1."""

    events_s: float
    cpu_s: float
    waited: float


def main() -> int:
    if sys.argv[1:2] == ["fill"]:
        _fill()
        return 0
    if sys.argv[1:2] == ["work"]:
        _work(datetime.fromisoformat(sys.argv[2]))
        return 0
    server = Postgres(is_durable=True).start()
    try:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {FULL}")
            filled = _child(server, FULL, "fill").communicate()[0]
            now = str(json.loads(filled)["now"])
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
            one, two = (_measure(admin, server, now, workers) for workers in (1, 2))
    finally:
        server.remove()
    print(f"two workers: {two.events_s / one.events_s:.2f} x one (aim 1.6)", flush=True)
    return 0


def _measure(
    admin: psycopg.Connection[tuple[object, ...]], server: Postgres, now: str, workers: int
) -> WorkedOff:
    name = f"storm{workers}"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {FULL}")
    started = [_child(server, name, "work", now) for _ in range(workers)]
    for worker in started:
        assert worker.stdout is not None
        worker.stdout.readline()  # it has loaded what every worker keeps
    began = time.perf_counter()
    for worker in started:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    waiting = looks = 0
    while any(worker.poll() is None for worker in started):
        found = admin.execute(_WAITS, [name]).fetchone()
        waiting += int(str(found[0])) if found is not None else 0
        looks += 1
        time.sleep(_LOOK_EVERY_S)
    took = time.perf_counter() - began
    cpu_s = sum(float(worker.communicate()[0]) for worker in started)
    result = WorkedOff(BATCHES * 500 / took, cpu_s, waiting / looks / workers)
    print(
        f"{workers} worker(s): {result.events_s:,.0f} events/s, {cpu_s:.1f} s of their own CPU,"
        f" {100 * result.waited:.0f} % of their time waiting for locks",
        flush=True,
    )
    return result


def _child(server: Postgres, name: str, *arguments: str) -> subprocess.Popen[str]:
    url = f"{server.url.rpartition('/')[0]}/{name}"
    scratch = tempfile.mkdtemp(prefix="kintsugi-bench-")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.storm", *arguments],
        env=os.environ | {"DATABASE_URL": url, "KINTSUGI_DATA_DIR": scratch},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
    import django  # noqa: PLC0415  the environment names the database, which has to run first

    django.setup()


def _fill() -> None:
    _set_up()
    from detectors.faults import to_wire  # noqa: PLC0415
    from detectors.receivers.spool import Batch, Extent  # noqa: PLC0415
    from incidents import services  # noqa: PLC0415
    from incidents.triage import inbox  # noqa: PLC0415
    from tests.benchmarks import correlation  # noqa: PLC0415

    correlation.call_command("migrate", verbosity=0)
    site = correlation.Site(1_000)
    correlation._import(site)
    stream = correlation.Stream(site, correlation.Load(1_000, 1_000, 10_000))
    for batch in stream.first():
        services.ingest(batch, now=stream.now)
        stream.now += timedelta(minutes=5)
    stream.now += timedelta(hours=1)
    services.sweep(now=stream.now)
    batches = []
    for number in range(BATCHES):
        wires = [to_wire(event) for event in stream.next()]
        payload = json.dumps(wires).encode()
        batches.append(Batch("r1", Extent(1, number, number + 1), payload))
    inbox.put("r1", batches, None, now=stream.now)
    print(json.dumps({"now": stream.now.isoformat()}), flush=True)


def _work(now: datetime) -> None:
    """Says that it is ready, begins when told, and prints its CPU seconds."""
    _set_up()
    from detectors.catalog import catalog  # noqa: PLC0415
    from incidents.inventory import graphs  # noqa: PLC0415
    from incidents.models import InboxBatch  # noqa: PLC0415
    from incidents.triage import inbox  # noqa: PLC0415

    catalog.load()
    graphs.get_current()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.process_time()
    while InboxBatch.objects.exists():
        if inbox.ingest_waiting(now) is None:
            time.sleep(_LOOK_EVERY_S)
    print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    sys.exit(main())
