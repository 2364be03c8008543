"""A site in memory for the tests of runs: inventory, incident, Slurm, nodes, and a clock that tests
turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from detectors import registry, resources
from detectors.catalog.catalog import load
from detectors.detector import Output, Target, Unreachable
from detectors.expected import Expected
from detectors.faults import Action, EventKind, FaultEvent, event_id
from detectors.provenance import Forger, Provenance, Transport
from fixtures.cluster.gpu import Presence
from fixtures.cluster.world import SimulatedNode, SimulatedShell, SimulatedWorld
from fixtures.memory_power import MemoryPower
from fixtures.memory_slurm import MemorySlurm
from incidents import services as incidents
from incidents.models import Fault, Gpu, Incident, Node
from runbooks import services
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY, Policy
from runbooks.library import library
from runbooks.models import Mode, Run, RunbookMode
from runbooks.step import Context, World, format_iso

CLUSTER = "kintsugi-test"
EPOCH = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
BOOT = timedelta(seconds=40)
# What a fault is told by where a test does not say: only the node's root could have forged it.
KERNEL_RECORD = Provenance("gn001", Transport.SSH, program="kernel", forger=Forger.ROOT)


def a_policy(**changes: Any) -> Policy:
    policy = Policy(
        cluster_name=CLUSTER,
        boot_time=timedelta(minutes=3),
        verify_command=("dcgmi", "diag", "-r", "2"),
        verify_timeout=timedelta(minutes=20),
        requeue_dead_jobs=False,
        stop_file=Path("/nonexistent/stop"),
    )
    return replace(policy, **changes)


class Unplugged(SimulatedShell):
    """SSH that some nodes do not answer."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.silent: set[str] = set()

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if target.name in self.silent:
            raise Unreachable(f"{target.name}: no route to host")
        return super().run(target, argv, timeout)


class Site:
    """Twenty nodes of one partition, repaired by reboots and by people. Slurm and the nodes boot
    alike."""

    def __init__(
        self,
        *,
        nodes: int = 20,
        mode: Mode = Mode.ARMED,
        slurm: Mapping[str, str] | None = None,
        partitions: Mapping[str, Sequence[str]] | None = None,
        boot_takes: timedelta = BOOT,
        **policy: Any,
    ) -> None:
        self.now = EPOCH
        self.names = [f"gn{number:03d}" for number in range(1, nodes + 1)]
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731
        self.nodes = SimulatedWorld(
            [SimulatedNode(n, clock=clock, boot_takes=boot_takes) for n in self.names],
            clock=clock,
        )
        self.slurm = MemorySlurm(
            {name: (partitions or {}).get(name, ["gpu"]) for name in self.names},
            cluster_name=CLUSTER,
            now=clock,
            on_reboot=self._power_goes,
            boot_takes=boot_takes,
            settings=slurm,
        )
        self.shell = Unplugged(self.nodes)
        self.power = MemoryPower(self.names, now=clock, on_change=self._switched)
        self.world = World(
            slurm=self.slurm,
            writer=self.slurm,
            shell=self.shell,
            detectors=registry.DETECTORS,
            policy=a_policy(**policy),
            power=self.power,
        )
        self._add_nodes(self.nodes.nodes.values())
        self._create_modes({DRAIN_REBOOT_VERIFY: mode, DRAIN_AND_ASK: mode})

    def add_node(self, name: str) -> None:
        """To the inventory."""
        self._add_nodes([SimulatedNode(name, clock=lambda: self.now)])

    def _add_nodes(self, simulated: Iterable[SimulatedNode]) -> None:
        """In two statements: a site is made for each of many tests."""
        by_name = {node.name: node for node in simulated}
        rows = Node.objects.bulk_create(
            Node(name=name, address=name, pod="pod-a", partitions=["gpu"]) for name in by_name
        )
        Gpu.objects.bulk_create(
            Gpu(node=row, index=gpu.index, pci_address=gpu.pci, uuid=gpu.uuid)
            for row in rows
            for gpu in by_name[row.name].gpus
        )

    def _create_modes(self, modes: Mapping[str, Mode]) -> None:
        """Every other runbook is off. Another site in this database may have left its own."""
        RunbookMode.objects.bulk_create(
            [
                RunbookMode(
                    runbook=runbook,
                    mode=modes.get(runbook, Mode.OFF),
                    set_by="test",
                    set_at=self.now,
                )
                for runbook in library.load()
            ],
            update_conflicts=True,
            unique_fields=["runbook"],
            update_fields=["mode", "set_by", "set_at"],
        )

    def _power_goes(self, node: str) -> None:
        self.nodes.reboot(node)

    def _switched(self, node: str, is_on: bool, at: datetime) -> None:
        """Slurm does not see it before SlurmdTimeout."""
        one = self.nodes.nodes[node]
        one.power_on(at) if is_on else one.power_off(at)

    def set_mode(self, mode: Mode, runbook: str = DRAIN_REBOOT_VERIFY) -> None:
        values = {"mode": mode, "set_by": "test", "set_at": self.now, "stepped_back_at": None}
        RunbookMode.objects.update_or_create(runbook=runbook, defaults=values)

    def gpu(self, node: str, index: int = 0) -> str:
        return resources.gpu(node, self.nodes.nodes[node].gpus[index].pci)

    def raise_fault(
        self,
        node: str = "gn001",
        *,
        fault_type: str = "gpu.xid.79",
        resource: str = "",
        action: Action | None = None,
        source: str = "test",
        told_by: Provenance = KERNEL_RECORD,
    ) -> Incident:
        """A kernel record of the node came, which we read ourselves, or what `told_by` says: the
        fault stands in the database, whatever the node is really like."""
        row = load()[fault_type]
        where = resource or self.gpu(node)
        event = FaultEvent(
            event_id=event_id(fault_type, where, self.now),
            fault_type=fault_type,
            event=EventKind.RAISED,
            resource=where,
            source=source,
            occurred_at=self.now,
            observed_at=self.now,
            severity=row.severity,
            action=action or row.action,
            component=row.component,
            code=row.code,
            excerpt=f"{fault_type} on {where}",
            provenance=told_by,
        )
        incidents.ingest([event], now=self.now)
        return Incident.objects.filter(members__fault__resource=where).latest("pk")

    def lose_gpu(self, node: str = "gn001", *, is_dead: bool = False) -> Incident:
        """A GPU really falls off the bus, and its line comes."""
        self.nodes.inject("gpu_dead" if is_dead else "gpu_lost", f"{node}/gpu/0")
        return self.raise_fault(node)

    def stall_gpu(self, node: str = "gn001") -> Incident:
        """A GPU really goes, and all that is told is an uncorrectable error of it: that leaves the
        node degraded, so that jobs may still use it."""
        self.nodes.inject("gpu_lost", f"{node}/gpu/0")
        return self.raise_fault(node, fault_type="gpu.ecc.uncorrectable")

    def poll(self, node: str = "gn001") -> None:
        """A poll of the node's GPUs: those that do not answer are lost, and those that answer are
        so no longer."""
        for gpu in self.nodes.nodes[node].gpus:
            place = resources.gpu(node, gpu.pci)
            is_there = gpu.presence is Presence.PRESENT
            if (
                is_there
                and not Fault.objects.filter(
                    resource=place, fault_type="gpu.lost", is_active=True
                ).exists()
            ):
                continue
            kind = EventKind.CLEARED if is_there else EventKind.RAISED
            row = load()["gpu.lost"]
            event = FaultEvent(
                event_id=event_id("poll", place, self.now, kind),
                fault_type=row.id,
                event=kind,
                resource=place,
                source="poll",
                occurred_at=self.now,
                observed_at=self.now,
                severity=row.severity,
                action=row.action,
                component=row.component,
                excerpt=f"gpu.present = {is_there}",
                provenance=KERNEL_RECORD,
            )
            incidents.ingest([event], now=self.now)

    def start(self) -> list[int]:
        return services.start_due(None, now=self.now, world=self.world)

    def advance(self, run: Run, times: int = 1) -> Run:
        for _ in range(times):
            services.advance(run.pk, now=self.now, world=self.world)
        run.refresh_from_db()
        return run

    def play(
        self,
        run: Run,
        *,
        until: Callable[[Run], bool] = lambda run: False,
        limit: timedelta = timedelta(minutes=10),
    ) -> Run:
        """Turns the clock to each time the run wants to be woken, until it ends, `until` holds, or
        time is over."""
        ends_at = self.now + limit
        run.refresh_from_db()
        while (
            run.finished_at is None
            and not until(run)
            and run.wake_at is not None
            and run.wake_at <= ends_at
        ):
            self.now = max(self.now, run.wake_at)
            services.advance(run.pk, now=self.now, world=self.world)
            run.refresh_from_db()
        return run

    def run_of(self, incident: Incident) -> Run:
        return Run.objects.get(incident=incident)

    def begin(self, incident: Incident) -> Run:
        self.start()
        return self.run_of(incident)

    def story(self, incident: Incident) -> list[str]:
        return list(incident.timeline.values_list("text", flat=True))


def a_context(site: Site, **changes: object) -> Context:
    """gn001, drained by incident 7 for a lost GPU 0."""
    if not site.slurm.read_nodes(("gn001",))["gn001"].is_draining:
        site.slurm.drain("gn001", "kintsugi:7 gpu.xid.79: GPU has fallen off the bus")
    expected = tuple((str(gpu.index), gpu.pci) for gpu in site.nodes.nodes["gn001"].gpus)
    context = Context(
        run_id=1,
        incident_id=7,
        fault_type="gpu.xid.79",
        resource=site.gpu("gn001"),
        node="gn001",
        find_target=lambda: Target("gn001", "gn001", expected=Expected(gpus=expected)),
        state=site.slurm.read_nodes(("gn001",))["gn001"],
        facts={"drained_at": format_iso(EPOCH), "booted_at": format_iso(site.now)},
        world=site.world,
        now=site.now,
        key="1-2-step",
    )
    return replace(context, **changes)  # type: ignore[arg-type]
