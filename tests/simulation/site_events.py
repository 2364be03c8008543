"""What Slurm itself, jobs, machines and an attacker do in a play."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent, Recovery, event_id, to_wire
from detectors.provenance import Forger, Provenance, Transport
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.facets.services import ServicesFacet
from incidents.models import Cable, Fault, Module, Port, Switch
from incidents.people.drain_requests import (
    FAULT_TYPE,
    DrainRequest,
    DrainRequestRefused,
    make_event,
)
from runbooks.models import UNFINISHED, Run

if TYPE_CHECKING:
    from tests.simulation.play import Play

LINE = Provenance("gn001", Transport.SSH, program="kernel", forger=Forger.ROOT)
FORGED = Provenance("10.9.8.7", Transport.UDP, program="kernel", forger=Forger.ANYONE)
POLL = Provenance("gn001", Transport.SSH, forger=Forger.ROOT)
CHECK = Provenance("nhc", Transport.HTTP, authenticated_as="nhc", forger=Forger.ROOT)
SERVICE, SERVICE_DOWN = "nvidia-fabricmanager", "node.service.down"
LOST, DEGRADED, LINK = "gpu.xid.79", "gpu.ecc.uncorrectable", "gpu.xid.74"
DIM = "nic.transceiver.rx_power_low"
# From 23.02 on slurmctld writes it over the reason of a drained node that registers so.
FEWER_GPUS = "gres/gpu count reported lower than configured (7 < 8)"


class Site:
    """Slurm itself, jobs and machines."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._jobs = 0
        self._crashed: set[str] = set()
        self._cut_off: set[str] = set()

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {
            "lose": self.lose_gpu,
            "lose_many": self.lose_many,
            "degrade": self.degrade_gpu,
            "degrade_many": self.degrade_many,
            "memory": self.spoil_memory,
            "link": self.break_link,
            "job": self.start_job,
            "end": self.end_job,
            "wait": self.queue_job,
            "crash": self.crash,
            "return": self.bring_back,
            "cut": self.cut_network,
            "hang": self.hang,
            "replace": self.replace_reason,
            "restart": self.restart_slurmctld,
            "redeliver": self.redeliver,
            "forge": self.forge,
            "poll": self.poll,
            "board": self.fail_board,
            "service": self.stop_service,
            "request": self.request_drain,
            "transceiver": self.dim_transceiver,
        }

    def lose_gpu(self) -> None:
        """It falls off the bus, and its line comes. What no reboot heals is drawn."""
        self._fall_ill(LOST, is_dead=self.play.dice.random() < self.play.habits.dead)

    def degrade_gpu(self) -> None:
        """It is gone, and all that is told is an error that leaves the node to jobs."""
        self._fall_ill(DEGRADED, is_dead=False)

    def degrade_many(self) -> None:
        """Two nodes within a second, each of which serves on: their runs are due together."""
        for node in self.play.dice.sample(self.play.site.names, 2):
            self._fall_ill(DEGRADED, is_dead=False, node=node)

    def spoil_memory(self) -> None:
        """Of a GPU that stays on the bus: a reset heals it."""
        self._suffer("gpu_ecc_uncorrectable", DEGRADED)

    def break_link(self) -> None:
        """Between GPUs: a reset of all of them heals it."""
        self._suffer("nvlink_error", LINK)

    def _suffer(self, injection: str, fault_type: str) -> None:
        play, node = self.play, self.play.choose_node()
        if play.is_ill(node) or not play.site.nodes.nodes[node].is_up:
            return
        play.site.nodes.inject(injection, f"{node}/gpu/0")
        play.record.sick.add(node)
        play.note("node", f"{node} has {injection}: {fault_type}")
        self.tell(fault_type, play.site.gpu(node), LINE)

    def stop_service(self, node: str = "") -> None:
        """It is down, a poll sees that, and a restart of it or of the node ends it."""
        play, node = self.play, node or self.play.choose_node()
        simulated = play.site.nodes.nodes[node]
        if SERVICE in simulated.facet(HostFacet).down or not simulated.is_up:
            return
        simulated.facet(HostFacet).down.add(SERVICE)
        simulated.facet(ServicesFacet).active.discard(SERVICE)
        play.record.sick.add(node)
        play.note("node", f"{SERVICE} of {node} is down")
        self.tell(SERVICE_DOWN, resources.node(node), POLL, source="poll")

    def get_on_transceiver(self) -> list[str]:
        """The nodes that share one."""
        return self.play.site.names[:2]

    def wire_transceiver(self) -> None:
        """One module of a leaf switch carries a NIC of each."""
        switch = Switch.objects.create(name="leaf-01", role="leaf")
        module = Module.objects.create(switch=switch, name="1")
        for number, node in enumerate(self.get_on_transceiver()):
            port = Port.objects.create(switch=switch, name=f"Ethernet{number}", module=module)
            Cable.objects.create(a=f"node/{node}/nic/mlx5_0", b=port.resource)

    def dim_transceiver(self) -> None:
        """A poll sees too little light, of which no node goes out of service; the next such act sees
        enough."""
        play = self.play
        node = play.dice.choice(self.get_on_transceiver())
        nic = f"node/{node}/nic/mlx5_0"
        is_dim = Fault.objects.active().filter(fault_type=DIM, resource=nic).exists()
        kind = EventKind.CLEARED if is_dim else EventKind.RAISED
        play.note("poll", f"sees {'enough' if is_dim else 'too little'} light at {nic}")
        self.tell(DIM, nic, POLL, source="poll", kind=kind)

    def request_drain(self) -> None:
        """A check of the site asks for a node; the next such act takes that back."""
        play, node = self.play, self.play.choose_node()
        requests = Fault.objects.active().filter(fault_type=FAULT_TYPE)
        standing = requests.of_node(node).exists()
        request = DrainRequest(node, "nhc", "" if standing else "fans", is_end=standing)
        try:
            event = make_event(request, CHECK, now=play.site.now)
        except DrainRequestRefused as refused:
            play.note("check", f"asks for {node}: {refused}")
            return
        play.note("check", f"{'ends its request' if standing else 'asks'} for {node}")
        if not standing:
            play.record.events[FAULT_TYPE, event.resource] += 1
        play.ingest([to_wire(event)])

    def lose_many(self) -> None:
        """Three nodes within a second: more than the breaker lets go."""
        play = self.play
        for node in play.dice.sample(play.site.names, 3):
            self._fall_ill(LOST, is_dead=False, node=node)

    def _fall_ill(self, fault_type: str, *, is_dead: bool, node: str = "") -> None:
        play = self.play
        node = node or play.choose_node()
        if play.is_ill(node) or not play.site.nodes.nodes[node].is_up:
            return
        needs = play.dice.choice((None, None, None, Recovery.COLD_CYCLE)) if not is_dead else None
        kind = "gpu_dead" if is_dead else "gpu_lost"
        play.site.nodes.inject(kind, f"{node}/gpu/0", needs=needs)
        play.record.sick.add(node)
        play.note("node", f"{node} loses a GPU{' for good' if is_dead else ''}: {fault_type}")
        if play.luck.random() < 0.5:  # its slurmd registers before the line comes
            self.replace_reason(node)
        self.tell(fault_type, play.site.gpu(node), LINE)
        if fault_type == LOST:
            play.record.told_critical[play.site.gpu(node)] = play.site.now

    def forge(self) -> None:
        """Anyone on the network writes what a kernel would."""
        play, node = self.play, self.play.choose_node()
        if play.is_ill(node):
            return
        play.note("attacker", f"writes {LOST} in the name of {node}")
        self.tell(LOST, play.site.gpu(node), FORGED)

    def fail_board(self) -> None:
        """A management controller no longer answers, or says yes and does nothing; the next such
        act mends it."""
        power, node = self.play.site.power, self.play.choose_node()
        if power.away or power.stuck:
            power.away.clear()
            power.stuck.clear()
            self.play.note("board", "all answer again")
            return
        how = self.play.dice.choice(("away", "stuck"))
        getattr(power, how).add(node)
        self.play.note("board", f"that of {node} is {how}")

    def poll(self) -> None:
        """A poll of all nodes that can be asked sees each lost GPU that a line has told of, and that
        it has come back."""
        play = self.play
        play.note("poll", "looks at the GPUs of all nodes")
        for node in play.site.names:
            gpu = play.site.gpu(node)
            if not play.site.nodes.nodes[node].is_up or node in play.site.shell.silent:
                continue
            is_known = gpu in play.record.told_critical
            if is_known and play.is_ill(node):
                play.record.polled_at[gpu] = play.site.now
                self.tell(LOST, gpu, POLL, source="poll")
            elif play.record.polled_at.pop(gpu, None) is not None:
                self.tell(LOST, gpu, POLL, source="poll", kind=EventKind.CLEARED)

    def tell(
        self,
        fault_type: str,
        resource: str,
        told_by: Provenance,
        *,
        source: str = "rsyslog",
        kind: EventKind = EventKind.RAISED,
    ) -> None:
        play, row = self.play, catalog.load()[fault_type]
        host = resources.host_of(resource) or ""
        event = FaultEvent(
            event_id=event_id(fault_type, resource, play.site.now, len(play.trace)),
            fault_type=fault_type,
            event=kind,
            resource=resource,
            source=source,
            occurred_at=play.site.now,
            observed_at=play.site.now,
            severity=row.severity,
            action=row.action,
            component=row.component,
            code=row.code,
            excerpt=f"{fault_type} on {host}",
            provenance=told_by,
        )
        play.last_wire = to_wire(event)
        if kind is EventKind.RAISED:
            play.record.events[fault_type, resource] += 1
        play.ingest([play.last_wire])

    def redeliver(self) -> None:
        """The last line comes once more, by the receiver that did not hear that it was taken."""
        if self.play.last_wire:
            self.play.note("receiver", "delivers the last event again")
            self.play.ingest([self.play.last_wire])

    def start_job(self, node: str = "") -> None:
        play, node = self.play, node or self.play.choose_node()
        is_taken = play.site.slurm.list_jobs(node) or play.reserve.is_free(node)
        if play.look(node).is_out or is_taken:
            return
        self._jobs += 1
        play.site.slurm.add_job(str(1000 + self._jobs), nodes=[node])
        play.note("job", f"starts on {node}")

    def end_job(self) -> None:
        play, node = self.play, self.play.choose_node()
        for job in play.site.slurm.list_jobs(node):
            play.site.slurm.finish_job(job.job_id)
            play.note("job", f"ends on {node}")

    def queue_job(self) -> None:
        """Often one that needs all that serve: the next node that goes out keeps it waiting."""
        play = self.play
        serving = len(play.reserve.get_in_partition() - play.get_out())
        needed = play.dice.randrange(len(play.site.names) + 1)
        play.record.needed = play.dice.choice((serving, needed))
        play.record.queued += 1
        play.site.slurm.add_waiting_job("17", nodes=play.record.needed, partitions=["gpu"])
        play.note("job", f"waits for {play.record.needed} nodes")

    def crash(self) -> None:
        play, node = self.play, self.play.choose_node()
        if node in play.site.shell.silent or play.look(node).is_rebooting:
            return
        self._crashed.add(node)
        play.site.shell.silent.add(node)
        play.site.slurm.switch_off(node)
        play.note("node", f"{node} crashes", node)

    def bring_back(self) -> None:
        play = self.play
        for node in sorted(self._crashed):
            self._crashed.discard(node)
            play.site.shell.silent.discard(node)
            play.site.nodes.reboot(node)
            play.site.slurm.switch_on(node)
            play.note("node", f"{node} boots", node)

    def hang(self) -> None:
        """A node that reboots does not come back."""
        node = self.play.choose_node()
        if self.play.look(node).is_rebooting:
            self._hang(node)

    def may_hang(self, node: str) -> None:
        """Its reboot was asked for."""
        if self.play.luck.random() < self.play.habits.hang:
            self._hang(node)

    def _hang(self, node: str) -> None:
        self.play.site.slurm.hung.add(node)
        self.play.note("node", f"{node} does not come back")

    def cut_network(self) -> None:
        """SSH no longer reaches a node, and Slurm does; the next such act mends it."""
        play = self.play
        if self._cut_off:
            play.site.shell.silent -= self._cut_off - self._crashed
            self._cut_off.clear()
            play.note("network", "SSH reaches all nodes again")
            return
        node = play.choose_node()
        self._cut_off.add(node)
        play.site.shell.silent.add(node)
        play.note("network", f"SSH no longer reaches {node}")

    def restart_slurmctld(self) -> None:
        """It has kept all that it was told, and says when it began. Whether a resume before that,
        which the product has not seen yet, was a person's, nothing tells where no reason is left
        (docs/runbooks.md says so)."""
        play = self.play
        play.record.restarted_at = play.site.now
        holding = Run.objects.filter(state__in=UNFINISHED).values_list("node__name", flat=True)
        for node in set(holding) & set(play.record.resumed):
            if not play.look(node).reason.startswith("kintsugi:"):
                del play.record.resumed[node]
        play.site.slurm.configure("BOOT_TIME", f"{play.site.now:%Y-%m-%dT%H:%M:%S}")
        play.note("slurmctld", "is restarted")

    def replace_reason(self, node: str = "") -> None:
        """slurmctld writes a reason of its own over that of a drained node with fewer GPUs."""
        play, node = self.play, node or self.play.choose_node()
        state, word = play.look(node), play.record.get_word(node)
        if not play.replaces_reasons or not state.is_drained or state.is_rebooting:
            return
        if node in play.record.overwritten_at:
            return
        if word is not None and word.stands_in(state):
            if not word.is_seen:
                return  # nobody can know whose it was
            word.is_hidden = True
        play.site.slurm.slurm_drain(node, FEWER_GPUS)
        play.note("slurmctld", f"writes {FEWER_GPUS!r} on {node}", node)
