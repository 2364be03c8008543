"""How fast faults find their incidents, and what two dead switches cost: `python -m
tests.benchmarks.correlation`.

Each case is a process of its own with a database of its own: SQLite as it runs in production, and a
private PostgreSQL with fsync on. One connection; batches of 500 as the receiver spools them, half
of them repeats, a quarter new faults, a quarter ends. The dead switches are played through the
whole pipeline with every runbook armed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
django.setup()

from django.apps import apps  # noqa: E402  after the settings
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from detectors.catalog import catalog  # noqa: E402
from detectors.faults import EventKind, FaultEvent  # noqa: E402
from fixtures.cluster.node import GPU_PCI, RAIL_NICS  # noqa: E402
from fixtures.replay import reader, replay  # noqa: E402
from fixtures.replay.scenario import Scenario  # noqa: E402
from fixtures.stream.site import Site  # noqa: E402
from incidents import services  # noqa: E402
from incidents.inventory import services as inventory  # noqa: E402
from incidents.models import Decision, Fault, Incident  # noqa: E402
from kintsugi.replay import database  # noqa: E402
from runbooks.models import Run, RunState  # noqa: E402
from tests.services.postgres import Postgres  # noqa: E402

BATCH = 500
BATCHES = 60
STARTS_AT = datetime(2026, 2, 2, 6, 0, tzinfo=UTC)
STORM_NODES = 1_000
# What stands on a large site, by where: faults of GPUs mostly, then of NICs, and of nodes as
# wholes.
GPU_TYPES = (
    "gpu.xid.79",
    "gpu.ecc.row_remap_pending",
    "gpu.ecc.uncorrectable",
    "gpu.xid.119",
    "gpu.xid.31",
)
NIC_TYPES = ("nic.transceiver.rx_power_low", "nic.link.errors", "nic.link.down")
NODE_TYPES = ("node.fan.failed", "storage.lustre.error", "node.service.down")
_ids = itertools.count(1)


@dataclass(frozen=True)
class Load:
    """One case. `standing` faults on the first `busy` nodes, of which all events are; one on each
    other node."""

    nodes: int
    busy: int
    standing: int
    batch: int = BATCH


@dataclass(frozen=True)
class Measured:
    """Of all batches; `statements` are those of the middle one. Times are of the wall clock."""

    events_s: float
    p50_ms: float
    p99_ms: float
    statements: int
    sweep_ms: float
    faults: int
    incidents: int


def main() -> int:
    if sys.argv[1:2] == ["load"]:
        _answer(_loaded(Load(*map(int, sys.argv[2:6]))).__dict__)
        return 0
    if sys.argv[1:2] == ["storm"]:
        _answer(_storm(sys.argv[2]))
        return 0
    _say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in ("sqlite", "postgresql"):
        _report(name, "1,000 nodes, 10,000 open faults", _apart(name, Load(1_000, 1_000, 10_000)))
        _report(name, "the same, batches of 50", _apart(name, Load(1_000, 1_000, 10_000, 50)))
        _growth(
            name, [(nodes, _apart(name, Load(nodes, 100, 1_000))) for nodes in (100, 1_000, 10_000)]
        )
    for which in ("leaf", "spine"):
        told = ", ".join(f"{word} {value}" for word, value in _child("storm", which).items())
        _say(f"a {which}'s death under {STORM_NODES:,} nodes of 8 GPUs: {told}")
    return 0


# Throughput
# ---------------------------------------------------------------------------


def _apart(name: str, load: Load) -> Measured:
    """In a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
        arguments = ("load", *map(str, (load.nodes, load.busy, load.standing, load.batch)))
        if name == "sqlite":
            return Measured(**_child(*arguments, KINTSUGI_DATA_DIR=scratch, DATABASE_URL=""))
        server = Postgres(is_durable=True).start()
        try:
            return Measured(
                **_child(*arguments, KINTSUGI_DATA_DIR=scratch, DATABASE_URL=server.url)
            )
        finally:
            server.remove()


def _report(name: str, what: str, told: Measured) -> None:
    _say(
        f"{name}, {what}: {told.events_s:,.0f} events/s, a batch {told.p50_ms:,.0f} ms (p50), {told.p99_ms:,.0f} ms"
        f" (p99), {told.statements} statements; a sweep {told.sweep_ms:,.0f} ms; {told.incidents:,} incidents open,"
        f" {told.faults:,} faults"
    )


def _growth(name: str, cases: Sequence[tuple[int, Measured]]) -> None:
    """The same 100 nodes speak. The slope says by how many milliseconds a batch takes longer for
    1,000 nodes more."""
    for nodes, told in cases:
        _report(name, f"{nodes:,} nodes, batches of 100 of them", told)
    (few, first), (many, last) = cases[0], cases[-1]
    slope = (last.p50_ms - first.p50_ms) / (many - few) * 1_000
    ratio = last.p50_ms / first.p50_ms
    _say(
        f"{name}, slope: {slope:+.2f} ms per batch and 1,000 nodes; {many // few} times the nodes take {ratio:.2f} x"
    )


def _loaded(load: Load) -> Measured:
    call_command("migrate", verbosity=0)
    site = Site(load.nodes)
    _import(site)
    stream = Stream(site, load)
    for batch in stream.first():
        services.ingest(batch, now=stream.now)
        stream.now += timedelta(minutes=5)
    stream.now += timedelta(hours=1)
    services.sweep(now=stream.now)
    took, statements = [], []
    for _ in range(BATCHES):
        batch = stream.next()
        counted = Counted()
        began = time.perf_counter()
        with connection.execute_wrapper(counted):
            services.ingest(batch, now=stream.now)
        took.append(time.perf_counter() - began)
        statements.append(counted.number)
        services.sweep(now=stream.now)
    began = time.perf_counter()
    services.sweep(now=stream.now)
    swept = time.perf_counter() - began
    ordered = sorted(took)
    return Measured(
        events_s=load.batch * BATCHES / sum(took),
        p50_ms=1_000 * ordered[BATCHES // 2],
        p99_ms=1_000 * ordered[-1 - BATCHES // 100],
        statements=sorted(statements)[BATCHES // 2],
        sweep_ms=1_000 * swept,
        faults=Fault.objects.filter(is_active=True).count(),
        incidents=Incident.objects.exclude(
            state__in=("resolved", "duplicate", "monitoring")
        ).count(),
    )


class Counted:
    """Counts the statements of a connection."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        self.number += 1
        return execute(sql, params, many, context)


class Stream:
    """Faults that stand, and those that will: what ended longest ago comes back first."""

    def __init__(self, site: Site, load: Load) -> None:
        self._load, self._random = load, random.Random(7)
        places = list(_places(site, load.busy))
        self._random.shuffle(places)
        self._waiting = deque(places)
        self._quiet = [(GPU_TYPES[0], place.gpu(0)) for place in site.places[load.busy :]]
        self._standing: list[tuple[str, str]] = []
        self.now = STARTS_AT

    def first(self) -> Iterator[list[FaultEvent]]:
        """What stands already, in batches."""
        for start in range(0, len(self._quiet), BATCH):
            yield [self._event(*place) for place in self._quiet[start : start + BATCH]]
        while len(self._standing) < self._load.standing:
            many = min(BATCH, self._load.standing - len(self._standing))
            yield [self._raised() for _ in range(many)]

    def next(self) -> list[FaultEvent]:
        """Ten seconds later: repeats, new faults and ends, in no order."""
        self.now += timedelta(seconds=10)
        quarter = self._load.batch // 4
        events = [self._event(*self._random.choice(self._standing)) for _ in range(2 * quarter)]
        events += [self._ended() for _ in range(quarter)]
        events += [self._raised() for _ in range(quarter)]
        self._random.shuffle(events)
        return events

    def _raised(self) -> FaultEvent:
        place = self._waiting.popleft()
        self._standing.append(place)
        return self._event(*place)

    def _ended(self) -> FaultEvent:
        index = self._random.randrange(len(self._standing))
        self._standing[index], self._standing[-1] = self._standing[-1], self._standing[index]
        place = self._standing.pop()
        self._waiting.append(place)
        return self._event(*place, kind=EventKind.CLEARED)

    def _event(self, fault_type: str, path: str, kind: EventKind = EventKind.RAISED) -> FaultEvent:
        row = catalog.load()[fault_type]
        number = next(_ids)
        return FaultEvent(
            event_id=f"{number:032x}",
            fault_type=fault_type,
            event=kind,
            resource=path,
            source="syslog",
            occurred_at=self.now,
            observed_at=self.now,
            severity=row.severity,
            action=row.action,
            component=row.component,
            source_key=f"{path}|boot|{number}|{fault_type}",
            code=row.code,
            excerpt=f"kernel: {fault_type} on {path}",
        )


def _places(site: Site, busy: int) -> Iterator[tuple[str, str]]:
    """Fault type and resource: on each of these nodes five types of each GPU, one of some NICs,
    three of the node."""
    for number, place in enumerate(site.places[:busy]):
        for index in range(len(GPU_PCI)):
            yield from ((fault_type, place.gpu(index)) for fault_type in GPU_TYPES)
        for rail in range(len(RAIL_NICS)):
            if (number + rail) % 3 == 0:
                yield NIC_TYPES[(number + rail) // 3 % len(NIC_TYPES)], place.nic(rail)
        yield from ((fault_type, place.resource) for fault_type in NODE_TYPES)


def _import(site: Site) -> None:
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        file = Path(folder, "inventory.toml")
        file.write_text("\n".join(site.inventory()))
        inventory.apply(inventory.load(file), STARTS_AT)


# Dead switches
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Signal:
    """One fault raised or ended, `after` the switch died."""

    after: timedelta
    fault_type: str
    resource: str
    is_raised: bool = True


def leaf_dies(site: Site) -> tuple[str, list[Signal]]:
    """Its hosts lose one rail within seconds, spines their neighbour; a poll finds it silent a
    minute later."""
    leaf, second = site.leafs[2], timedelta(seconds=1)
    hosts = site.in_pod(leaf.pod)
    signals = [
        Signal(second * (slot % 7), "nic.link.down", host.nic(leaf.rail))
        for slot, host in enumerate(hosts)
    ]
    signals += [Signal(second * 9, "nic.tx_timeout", host.nic(leaf.rail)) for host in hosts[::5]]
    signals += [
        Signal(second * 3, "switch.port.down", f"switch/{spine}/port/{port}")
        for _, spine, port in site.uplinks(leaf)
    ]
    spines = sorted({spine for _, spine, _ in site.uplinks(leaf)})
    signals += [Signal(second * 20, "switch.bgp.down", f"switch/{spine}", True) for spine in spines]
    return leaf.resource, [*signals, Signal(second * 70, "target.unreachable", leaf.resource)]


def spine_dies(site: Site) -> tuple[str, list[Signal]]:
    """Each leaf of its block loses four uplinks and a neighbour; no host loses a link."""
    spine, second = site.spines[1], timedelta(seconds=1)
    signals = []
    for number, leaf in enumerate(site.leafs_of(1)):
        ports = [near for near, far, _ in site.uplinks(leaf) if far == spine]
        signals += [
            Signal(second * (number % 5), "switch.port.down", f"{leaf.resource}/port/{port}")
            for port in ports
        ]
        signals.append(Signal(second * 20, "switch.bgp.down", leaf.resource))
    return f"switch/{spine}", [
        *signals,
        Signal(second * 70, "target.unreachable", f"switch/{spine}"),
    ]


DEATHS = {"leaf": leaf_dies, "spine": spine_dies}


def _storm(which: str) -> dict[str, object]:
    site = Site(STORM_NODES)
    switch, signals = DEATHS[which](site)
    signals += [
        replace(one, after=one.after + timedelta(minutes=20), is_raised=False) for one in signals
    ]
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder,
        database.use_temporary_database(),
    ):
        script = replace(_script(Path(folder), signals), topology=Path(folder, "topology.toml"))
        script.topology.write_text("\n".join(site.inventory()))
        quiet = replace(script, steps=(), ends_at=STARTS_AT + timedelta(seconds=1))
        before = _played(quiet)
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder,
        database.use_temporary_database(),
    ):
        script = replace(_script(Path(folder), signals), topology=Path(folder, "topology.toml"))
        script.topology.write_text("\n".join(site.inventory()))
        began = time.process_time()
        after = _played(script)
        took = time.process_time() - began
        rooted = Decision.objects.filter(
            kind__in=(Decision.Kind.OPENED, Decision.Kind.REROOTED),
            fault__resource=switch,
            incident__root_resource=switch,
        )
        found_at = rooted.order_by("pk").values_list("recorded_at", flat=True).first()
        return {
            "signals": len(signals),
            "incidents": Incident.objects.exclude(state="duplicate").count(),
            "merged into it": Incident.objects.filter(state="duplicate").count(),
            "repairs started": Run.objects.count(),
            "repairs withdrawn": Run.objects.filter(state=RunState.WITHDRAWN).count(),
            "right root after": f"{(found_at - STARTS_AT).total_seconds():.0f} s"
            if found_at
            else "never",
            "rows written": after.rows - before.rows,
            "peak memory": f"{after.peak_mib} MiB ({before.peak_mib} MiB with the site alone)",
            "CPU": f"{took:.1f} s",
        }


@dataclass(frozen=True)
class _Left:
    rows: int
    peak_mib: int


def _played(script: object) -> _Left:
    replay.scenario(script)  # type: ignore[arg-type]
    models = [
        model for model in apps.get_models() if model._meta.app_label in ("incidents", "runbooks")
    ]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return _Left(sum(model.objects.count() for model in models), peak_mib)  # type: ignore[attr-defined]


def _script(folder: Path, signals: Sequence[Signal]) -> Scenario:
    steps = [
        f"[[step]]\nat = {(STARTS_AT + signal.after).isoformat()}\n"
        f'{"raises" if signal.is_raised else "clears"} = "{signal.fault_type}"\non = "{signal.resource}"\n'
        for signal in sorted(signals, key=lambda signal: signal.after)
    ]
    head = f'[scenario]\nname = "a switch dies"\nstarts_at = {STARTS_AT.isoformat()}\n'
    head += f'ends_at = {(STARTS_AT + timedelta(hours=1)).isoformat()}\n[world]\nmode = "armed"\n'
    (folder / "scenario.toml").write_text(head + "".join(steps))
    return reader.read(folder)


# Processes
# ---------------------------------------------------------------------------


def _child(*arguments: str, **environment: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.benchmarks.correlation", *arguments]
    told = subprocess.run(
        command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    answer: dict[str, object] = json.loads(told.splitlines()[-1])
    return answer


def _answer(told: dict[str, object]) -> None:
    _say(json.dumps(told))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
