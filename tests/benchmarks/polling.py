"""What polling costs: `python -m tests.benchmarks.polling [cluster|ssh|scale ...]`.

1. One process polls 100 and 300 nodes with all node detectors over SSH (paramiko) and 24 and 72
   switches of 64 ports over SNMP (pysnmp, and the fast decoder), for three minutes of its schedule, into
   a private PostgreSQL: its CPU share, per node too, and memory. The simulated cluster is a process
   of its own, with an address and a host key for each machine.
2. Commands a second over a kept connection to a real sshd, beside `ssh` with ControlMaster in the
  same run.
3. CPU per node and minute for 100, 1,000 and 10,000 nodes, the detectors gpu and host, answers from
  memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.ports import wait_until
from tests.services.postgres import Postgres
from tests.services.sshd import Sshd

if TYPE_CHECKING:
    from detectors.detector import Command, Output, Target, Transports

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 3
# Nodes and switches, in the model site's proportion.
CLUSTERS = ((100, 24), (300, 72))
SIZES = (100, 1_000, 10_000)
SCALED = ("gpu", "host")
COMMANDS = 150
TICK, MINUTE = timedelta(seconds=5), timedelta(minutes=1)


def main() -> int:
    wanted = sys.argv[1:] or ["ssh", "scale", "cluster"]
    server = Postgres(is_durable=True).start()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
        try:
            os.environ.update(
                DATABASE_URL=server.url,
                KINTSUGI_DATA_DIR=scratch,
                DJANGO_SETTINGS_MODULE="kintsugi.settings",
            )
            _prepare()
            for name in wanted:
                {"cluster": _cluster, "ssh": _ssh, "scale": _scale}[name](Path(scratch))
        finally:
            server.remove()
    return 0


def _prepare() -> None:
    import django  # noqa: PLC0415  the settings name the server, which has to run first

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _Rings:
    """Keeps what was rung, for this process to answer."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None: ...

    def notify(self, notification_id: int, at: datetime | None = None) -> None: ...

    def poll(self, chunk: Any) -> None:
        self.chunks.append(chunk)


class _Poller:
    """A pipeline on a clock of its own: a minute of the schedule takes as long as its work."""

    def __init__(self, via: Transports, detectors: Sequence[Any]) -> None:
        from detectors.catalog import catalog  # noqa: PLC0415
        from kintsugi.clients import wiring  # noqa: PLC0415
        from kintsugi.periodic.polling import Watch  # noqa: PLC0415
        from kintsugi.pipeline import Pipeline  # noqa: PLC0415

        self.now = datetime.now(UTC)
        self.rings = _Rings()
        self.polls = 0
        watch = Watch(via, tuple(detectors))
        self.pipeline = Pipeline(
            wiring.build_world(),
            wiring.build_notifier(),
            self.rings,
            lambda: self.now,
            catalog.load(),
            watch,
        )

    def minute(self) -> tuple[float, float]:
        """CPU seconds of this process, all threads, and seconds by the wall."""
        cpu, begun = time.process_time(), time.monotonic()
        for _ in range(round(MINUTE / TICK)):
            self.now += TICK
            self.pipeline.poll_due(TICK)
            while self.rings.chunks:
                chunk = self.rings.chunks.pop(0)
                self.polls += len(chunk.targets)
                self.pipeline.poll(chunk)
        return time.process_time() - cpu, time.monotonic() - begun


# 1. The cluster
# ---------------------------------------------------------------------------


def _cluster(scratch: Path) -> None:
    costs: dict[str, list[float]] = {}
    for nodes, switches in CLUSTERS:
        directory = scratch / str(nodes)
        directory.mkdir()
        argv = [sys.executable, "-m", "tests.benchmarks.polling", "serve", str(directory)]
        cluster = subprocess.Popen([*argv, str(nodes), str(switches)], cwd=ROOT)
        try:
            wait_until(
                lambda state=directory / "state": state.exists(),
                within_s=120,
                what="the simulated cluster",
            )
            for decoder, cost in _poll_cluster(directory).items():
                costs.setdefault(decoder, []).append(cost)
        finally:
            cluster.terminate()
            cluster.wait(20)
    for decoder, (smallest, *larger) in costs.items():
        ratios = ", ".join(f"{cost / smallest:.2f}" for cost in larger)
        _say(f"per node, {decoder}: {ratios} times that of the smallest (aim 1.1)")


def _poll_cluster(directory: Path) -> dict[str, float]:
    """Milliseconds of CPU per node and minute, by what decodes SNMP."""
    from detectors.detector import Transports  # noqa: PLC0415
    from detectors.transports import snmp_fast  # noqa: PLC0415
    from detectors.transports.ssh import SshShell  # noqa: PLC0415
    from fixtures.cluster.snmp_agent import credentials  # noqa: PLC0415

    state = json.loads((directory / "state").read_text())
    _inventory(state)
    key, known_hosts = Path(state["key"]), Path(state["known_hosts"])
    shell = SshShell(user="kintsugi", key_file=key, known_hosts=known_hosts)
    costs = {}
    try:
        for decoder in ("pysnmp", "gufo"):
            access = snmp_fast.choose(
                lambda target: credentials(state["switches"][target.name]),
                is_fast=decoder == "gufo",
            )
            costs[decoder] = _report(Transports(shell, access), decoder, state)
            access.close()
    finally:
        shell.close()
    return costs


def _report(via: Transports, decoder: str, state: dict[str, Any]) -> float:
    from detectors import registry  # noqa: PLC0415
    from detectors.detector import TargetKind  # noqa: PLC0415
    from incidents.models import Poll, PollChunk  # noqa: PLC0415

    for model in (Poll, PollChunk):  # the poller before has turned its clock ahead
        model.objects.all().delete()
    wanted = [d for d in registry.DETECTORS if d.kind is not TargetKind.SITE]
    poller = _Poller(via, wanted)
    poller.minute()  # connects
    before = poller.polls
    minutes = [poller.minute() for _ in range(MINUTES)]
    cpu, wall = (sum(column) / MINUTES for column in zip(*minutes, strict=True))
    polls = (poller.polls - before) / MINUTES
    nodes, switches = len(state["nodes"]), len(state["switches"])
    cost = cpu / nodes * 1000
    _say(
        f"{nodes} nodes, {switches} switches, {len(wanted)} detectors, SNMP by {decoder}:"
        f" {polls:.0f} polls a minute, {cpu:.2f} s of CPU, {cpu / 60:.1%} of one core"
        f" (aim under 25 % for 100), {cost:.0f} ms a node; {wall:.1f} s by the wall,"
        f" {_memory_mb():.0f} MB at most"
    )
    return cost


def _inventory(state: dict[str, Any]) -> None:
    from incidents.models import Gpu, Node, Switch  # noqa: PLC0415

    for model in (Gpu, Node, Switch):
        model.objects.all().delete()
    Node.objects.bulk_create(
        Node(name=name, address=address, ssh_port=port, pod="pod-a")
        for name, (address, port, _) in state["nodes"].items()
    )
    rows = {row.name: row for row in Node.objects.all()}
    Gpu.objects.bulk_create(
        Gpu(node=rows[name], index=index, pci_address=pci, uuid=uuid)
        for name, (_, _, gpus) in state["nodes"].items()
        for index, pci, uuid in gpus
    )
    Switch.objects.bulk_create(
        Switch(name=name, address="127.0.0.1", role="leaf") for name in state["switches"]
    )


def _serve(directory: Path, nodes: int, switches: int) -> None:
    """The child: SSH of the nodes, SNMP of the switches, until it is ended."""
    from fixtures.cluster.node import SimulatedNode  # noqa: PLC0415
    from fixtures.cluster.snmp_agent import SnmpAgents  # noqa: PLC0415
    from fixtures.cluster.ssh_server import SshServer  # noqa: PLC0415
    from fixtures.cluster.switch import SimulatedSwitch  # noqa: PLC0415
    from fixtures.cluster.world import SimulatedWorld  # noqa: PLC0415

    ports = [f"Ethernet{4 * number}" for number in range(64)]
    names = [f"gn{number:03}" for number in range(1, nodes + 1)]
    hosts = [SimulatedNode(name, clock=lambda: datetime.now(UTC)) for name in names]
    leafs = [
        SimulatedSwitch(f"leaf-{number:02}", "leaf", ports=ports)
        for number in range(1, switches + 1)
    ]
    ssh = SshServer(hosts)
    key, known_hosts = ssh.write_access(directory)
    ssh.start()
    leaf_names = [leaf.name for leaf in leafs]
    agents = SnmpAgents(SimulatedWorld(hosts, leafs), leaf_names).start()
    gpus = {host.name: [(gpu.index, gpu.pci, gpu.uuid) for gpu in host.gpus] for host in hosts}
    state = {
        "nodes": {
            name: [place.address, place.port, gpus[name]] for name, place in ssh.endpoints.items()
        },
        "switches": {name: agents.ports[name] for name in leaf_names},
        "key": str(key),
        "known_hosts": str(known_hosts),
    }
    (directory / "new").write_text(json.dumps(state))
    (directory / "new").rename(directory / "state")
    while True:
        time.sleep(3600)


# 2. One connection
# ---------------------------------------------------------------------------


def _ssh(scratch: Path) -> None:
    from detectors.detector import Target  # noqa: PLC0415
    from detectors.transports.ssh import SshShell  # noqa: PLC0415

    server = Sshd().start()
    target = Target("here", "127.0.0.1", server.port, server.user)
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    options = {
        "IdentityFile": server.key_file,
        "UserKnownHostsFile": server.known_hosts,
        "ControlMaster": "auto",
        "ControlPath": scratch / "control",
        "ControlPersist": "60",
    }
    place = [
        *(f"-o{name}={value}" for name, value in options.items()),
        "-p",
        str(server.port),
        "127.0.0.1",
    ]
    argv = ["ssh", "-F", "none", "-l", server.user, *place]
    command = [*argv, "timeout", "5", "true"]
    try:
        ours = _rate(lambda: shell.run(target, ("true",), timedelta(seconds=5)))
        theirs = _rate(lambda: subprocess.run(command, check=True, capture_output=True))
        _say(
            f"commands on a kept connection: {ours:.0f} a second; ssh with ControlMaster {theirs:.0f};"
            f" {ours / theirs:.1f} times"
        )
        subprocess.run([argv[0], "-O", "exit", *argv[1:]], check=False, capture_output=True)
    finally:
        shell.close()
        server.remove()


def _rate(act: Callable[[], object]) -> float:
    act()  # connects
    begun = time.monotonic()
    for _ in range(COMMANDS):
        act()
    return COMMANDS / (time.monotonic() - begun)


# 3. Sizes
# ---------------------------------------------------------------------------


class _OneAnswer:
    """One node's answers for every node: what the simulation costs is paid once."""

    def __init__(self) -> None:
        from detectors.detector import Target  # noqa: PLC0415
        from fixtures.cluster.world import SimulatedShell, SimulatedWorld  # noqa: PLC0415

        self._shell = SimulatedShell(SimulatedWorld.sakuraone())
        self._node = Target("gn001", "gn001")
        self._kept: dict[tuple[str, int], dict[str, Output]] = {}

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._shell.run(self._node, argv, timeout)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        key = (name, len(commands))
        if key not in self._kept:
            self._kept[key] = self._shell.run_all(self._node, name, commands)
        return self._kept[key]


def _scale(scratch: Path) -> None:
    from detectors import registry  # noqa: PLC0415
    from detectors.detector import Transports  # noqa: PLC0415
    from incidents.models import Node, Poll, PollChunk  # noqa: PLC0415

    costs: list[float] = []
    for size in SIZES:
        Poll.objects.all().delete()
        PollChunk.objects.all().delete()
        Node.objects.all().delete()
        Node.objects.bulk_create(
            [Node(name=f"n{number:05}") for number in range(size)], batch_size=1000
        )
        poller = _Poller(Transports(_OneAnswer()), [registry.get_by_name(name) for name in SCALED])
        poller.minute()
        cpu, _ = poller.minute()
        costs.append(cpu / size * 1000)
        _say(
            f"{size:6,} nodes: {costs[-1]:.2f} ms of CPU per node and minute ({', '.join(SCALED)})"
        )
    _say(
        f"the largest cost is {max(costs) / min(costs) - 1:.0%} above the smallest (aim within 20 %)"
    )
    Node.objects.all().delete()


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.exit(main())
