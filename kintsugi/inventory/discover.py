"""Asks machines for their parts and neighbours, many at once, and makes an inventory of it. Writes
nothing.

A machine that does not answer is told and the others go on. The looks run in threads and never
touch the database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from detectors.detector import DetectorError, Target, Transports
from detectors.switch import tables
from incidents.inventory.check import Heard
from incidents.topology import discovery
from incidents.topology.discovery import DiscoveredMachine, Neighbour
from incidents.topology.topology import CablePlace, NicPlace, Topology

# Connections at a time: enough to hide the seconds that nvidia-smi takes, few enough for a
# controller's network.
_AT_ONCE = 16

Answer = DiscoveredMachine | Mapping[str, Neighbour]
"""A node's parts and neighbours, or a switch's neighbours by port."""


@dataclass
class Discovered:
    """What came back. `failed` has one line per machine that did not answer, or per look that came
    to nothing.

    `silent` names the machines that did not answer at all.
    """

    nodes: dict[str, DiscoveredMachine] = field(default_factory=dict)
    switches: dict[str, Mapping[str, Neighbour]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wiring:
    """Cables that LLDP tells. `doubts`: neighbours that the inventory does not have, ends that
    contradict."""

    cables: tuple[CablePlace, ...]
    doubts: tuple[str, ...]


def inspect_machines(
    nodes: Sequence[Target],
    switches: Sequence[Target],
    via: Transports,
    *,
    report: Callable[[str], None],
) -> Discovered:
    """Each machine once. `report` takes a line of progress for each."""
    found = Discovered()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="discover") as pool:
        pending: dict[Future[Answer], Target] = {}
        pending |= {pool.submit(_inspect_node, target, via): target for target in nodes}
        pending |= {pool.submit(_inspect_switch, target, via): target for target in switches}
        for number, future in enumerate(as_completed(pending), 1):
            target = pending[future]
            try:
                result = _add_answer(found, target, future.result())
            except DetectorError as error:
                reason = str(error).removeprefix(f"{target.name}: ")
                found.failed.append(f"{target.name}: {reason}")
                found.silent.append(target.name)
                result = f"no answer: {reason}"
            report(f"[{number}/{len(pending)}] {target.name}: {result}")
    found.failed.sort()
    return found


def _inspect_node(target: Target, via: Transports) -> Answer:
    outputs = via.shell.run_all(target, "discover", discovery.build_commands())
    further = discovery.build_further_commands(outputs)
    if further:
        more_outputs = via.shell.run_all(target, "discover", further)
        outputs = {**outputs, **more_outputs}
    return discovery.parse_node(target, outputs)


def _inspect_switch(target: Target, via: Transports) -> Answer:
    columns = (*tables.NEIGHBOURS, *tables.NAMES)
    return discovery.parse_switch_neighbours(target, via.snmp.walk(target, columns))


def _add_answer(found: Discovered, target: Target, answer: Answer) -> str:
    """What it said, in a few words."""
    if not isinstance(answer, DiscoveredMachine):
        found.switches[target.name] = answer
        return f"{len(answer)} neighbours"
    found.nodes[target.name] = answer
    found.failed += [f"{target.name}: {reason}" for reason in answer.failed]
    gpus, nics, neighbours = answer.place.gpus, answer.place.nics, answer.neighbours
    counts = f"{len(gpus)} GPUs, {len(nics)} NICs, {len(neighbours)} neighbours"
    if not answer.failed:
        return counts
    missing = [reason.split(":")[0] for reason in answer.failed]
    return f"{counts}; without {', '.join(missing)}"


def build_topology(
    found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]
) -> tuple[Topology, tuple[str, ...]]:
    """The inventory that was found, and what of its cables is in doubt. The inventory's machines
    name their ports."""
    cabling = compute_wiring(found, nodes, switches)
    places = tuple(answer.place for _, answer in sorted(found.nodes.items()))
    return Topology(nodes=places, cables=cabling.cables), cabling.doubts


def compute_wiring(
    found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]
) -> Wiring:
    """Both ends of a cable may tell of it; where they differ, neither is believed."""
    ports, nics = _get_port_names(switches), _get_nics_by_node(found, nodes)
    ends: dict[str, str] = {}
    strangers: dict[str, list[str]] = defaultdict(list)
    cables, doubts = [], []
    for own, neighbour in _iterate_neighbours(found):
        far = discovery.find_far_end(neighbour, switches=ports, nodes=nics)
        if not far:
            if neighbour.machine not in nics:
                strangers[neighbour.machine].append(own)
            continue
        if ends.get(own, far) != far or ends.get(far, own) != own:
            known_end = ends.get(own) or ends.get(far)
            doubts.append(
                f"{own}: hears {far}, while {known_end} is told for one of them: look at both ends"
            )
            continue
        if own not in ends:
            cables.append(_make_cable(own, far))
        ends |= {own: far, far: own}
    return Wiring(tuple(cables), (*doubts, *_format_strangers(strangers)))


def _format_strangers(strangers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Machines that only LLDP knows, once each."""
    for name, ports in sorted(strangers.items()):
        others = f" and {len(ports) - 1} ports more" if len(ports) > 1 else ""
        yield f"{name}, heard by {ports[0]}{others}: it is not in the inventory"


def _get_port_names(switches: Sequence[Target]) -> dict[str, list[str]]:
    names = {}
    for target in switches:
        names[target.name] = [port.name for port in target.expected.ports]
    return names


def _get_nics_by_node(
    found: Discovered, nodes: Sequence[Target]
) -> dict[str, tuple[NicPlace, ...]]:
    """Those of nodes that were not asked are known by their targets."""
    nics = {}
    for target in nodes:
        expected = target.expected.nics
        nics[target.name] = tuple(NicPlace(nic.device, nic.pci, nic.netdev) for nic in expected)
    nics.update({name: answer.place.nics for name, answer in found.nodes.items()})
    return nics


def _iterate_neighbours(found: Discovered) -> Iterator[tuple[str, Neighbour]]:
    """(own end as a resource path, neighbour), nodes first."""
    for name, answer in sorted(found.nodes.items()):
        by_netdev = {nic.netdev: nic for nic in answer.place.nics if nic.netdev}
        for netdev, neighbour in sorted(answer.neighbours.items()):
            nic = by_netdev.get(netdev)
            if nic is not None:
                yield f"node/{name}/nic/{nic.device}", neighbour
    for name, neighbours in sorted(found.switches.items()):
        for port, neighbour in sorted(neighbours.items()):
            yield f"switch/{name}/port/{port}", neighbour


def list_neighbours(
    found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]
) -> list[Heard]:
    """What LLDP told, for comparing with the inventory."""
    ports, nics = _get_port_names(switches), _get_nics_by_node(found, nodes)
    ends = []
    for own, neighbour in _iterate_neighbours(found):
        far = discovery.find_far_end(neighbour, switches=ports, nodes=nics)
        if not far and neighbour.machine in nics:
            far = f"node/{neighbour.machine}"
        port = f"port {neighbour.ports[0]}" if neighbour.ports else "no port told"
        ends.append(Heard(own, far, f"{neighbour.machine} ({port})"))
    return ends


def _make_cable(own: str, far: str) -> CablePlace:
    """A node's end stands first, as in files; between switches the order of names."""
    if own.startswith("node/"):
        return CablePlace(own, far)
    are_alike = own.split("/")[0] == far.split("/")[0]
    return CablePlace(own, far) if are_alike and own < far else CablePlace(far, own)
