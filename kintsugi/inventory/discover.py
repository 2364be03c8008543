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
    told: Callable[[str], None],
) -> Discovered:
    """Each machine once. `told` takes a line of progress for each."""
    found = Discovered()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="discover") as pool:
        asked: dict[Future[DiscoveredMachine | Mapping[str, Neighbour]], Target] = {}
        asked |= {pool.submit(_node, target, via): target for target in nodes}
        asked |= {pool.submit(_switch, target, via): target for target in switches}
        for number, future in enumerate(as_completed(asked), 1):
            target = asked[future]
            try:
                answer = future.result()
            except DetectorError as error:
                text = str(error).removeprefix(f"{target.name}: ")
                found.failed.append(f"{target.name}: {text}")
                found.silent.append(target.name)
                words = f"no answer: {text}"
            else:
                words = _take(found, target, answer)
            told(f"[{number}/{len(asked)}] {target.name}: {words}")
    found.failed.sort()
    return found


def _node(target: Target, via: Transports) -> DiscoveredMachine | Mapping[str, Neighbour]:
    outputs = via.shell.run_all(target, "discover", discovery.commands())
    further = discovery.further_commands(outputs)
    if further:
        outputs = {**outputs, **via.shell.run_all(target, "discover", further)}
    return discovery.node(target, outputs)


def _switch(target: Target, via: Transports) -> DiscoveredMachine | Mapping[str, Neighbour]:
    columns = (*tables.NEIGHBOURS, *tables.NAMES)
    return discovery.switch_neighbours(target, via.snmp.walk(target, columns))


def _take(
    found: Discovered, target: Target, answer: DiscoveredMachine | Mapping[str, Neighbour]
) -> str:
    if not isinstance(answer, DiscoveredMachine):
        found.switches[target.name] = answer
        return f"{len(answer)} neighbours"
    found.nodes[target.name] = answer
    found.failed += [f"{target.name}: {reason}" for reason in answer.failed]
    place = answer.place
    counts = (
        f"{len(place.gpus)} GPUs",
        f"{len(place.nics)} NICs",
        f"{len(answer.neighbours)} neighbours",
    )
    return ", ".join(counts) + (
        f"; without {', '.join(r.split(':')[0] for r in answer.failed)}" if answer.failed else ""
    )


def topology(
    found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]
) -> tuple[Topology, tuple[str, ...]]:
    """The inventory that was found, and what of its cables is in doubt. The inventory's machines
    name their ports."""
    wired = wiring(found, nodes, switches)
    places = tuple(answer.place for _, answer in sorted(found.nodes.items()))
    return Topology(nodes=places, cables=wired.cables), wired.doubts


def wiring(found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]) -> Wiring:
    """Both ends of a cable may tell of it; where they differ, neither is believed."""
    ports = {target.name: [port.name for port in target.expected.ports] for target in switches}
    nics = _nics(found, nodes)
    ends: dict[str, str] = {}
    strangers: dict[str, list[str]] = defaultdict(list)
    cables, doubts = [], []
    for own, neighbour in _heard(found):
        far = discovery.far_end(neighbour, switches=ports, nodes=nics)
        if not far:
            if neighbour.machine not in nics:
                strangers[neighbour.machine].append(own)
            continue
        if ends.get(own, far) != far or ends.get(far, own) != own:
            other = ends.get(own) or ends.get(far)
            doubts.append(
                f"{own}: hears {far}, while {other} is told for one of them: look at both ends"
            )
            continue
        if own not in ends:
            cables.append(_cable(own, far))
        ends |= {own: far, far: own}
    return Wiring(tuple(cables), (*doubts, *_unknown(strangers)))


def _unknown(strangers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Machines that only LLDP knows, once each."""
    for name, ports in sorted(strangers.items()):
        others = f" and {len(ports) - 1} ports more" if len(ports) > 1 else ""
        yield f"{name}, heard by {ports[0]}{others}: it is not in the inventory"


def _nics(found: Discovered, nodes: Sequence[Target]) -> dict[str, tuple[NicPlace, ...]]:
    """By node; those that were not asked are known by their targets."""
    known = {
        t.name: tuple(NicPlace(n.device, n.pci, n.netdev) for n in t.expected.nics) for t in nodes
    }
    return {**known, **{name: answer.place.nics for name, answer in found.nodes.items()}}


def _heard(found: Discovered) -> Iterator[tuple[str, Neighbour]]:
    """(own end as a resource path, neighbour), nodes first."""
    for name, answer in sorted(found.nodes.items()):
        by_netdev = {nic.netdev: nic for nic in answer.place.nics if nic.netdev}
        for netdev, neighbour in sorted(answer.neighbours.items()):
            nic = by_netdev.get(netdev)
            if nic is not None:
                yield _end_of(name, nic), neighbour
    for name, neighbours in sorted(found.switches.items()):
        for port, neighbour in sorted(neighbours.items()):
            yield f"switch/{name}/port/{port}", neighbour


def heard(found: Discovered, nodes: Sequence[Target], switches: Sequence[Target]) -> list[Heard]:
    """What LLDP told, for comparing with the inventory."""
    ports = {target.name: [port.name for port in target.expected.ports] for target in switches}
    nics = _nics(found, nodes)
    ends = []
    for own, neighbour in _heard(found):
        far = discovery.far_end(neighbour, switches=ports, nodes=nics)
        if not far and neighbour.machine in nics:
            far = f"node/{neighbour.machine}"
        ends.append(Heard(own, far, f"{neighbour.machine} ({_named(neighbour)})"))
    return ends


def _end_of(node: str, nic: NicPlace) -> str:
    return f"node/{node}/nic/{nic.device}"


def _cable(own: str, far: str) -> CablePlace:
    """A node's end stands first, as in files; between switches the order of names."""
    a, b = (
        (own, far)
        if own.startswith("node/") or (own.split("/")[0] == far.split("/")[0] and own < far)
        else (far, own)
    )
    return CablePlace(a, b)


def _named(neighbour: Neighbour) -> str:
    return f"port {neighbour.ports[0]}" if neighbour.ports else "no port told"
