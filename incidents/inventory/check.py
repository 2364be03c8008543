"""What is wrong with the inventory: with itself, with what Slurm counts, with what LLDP hears.
Reads only.

Each finding says what, where, and what to do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detectors import resources
from incidents.models import (
    Cable,
    Gpu,
    Module,
    Nic,
    Node,
    NvSwitch,
    Port,
    PowerFeed,
    Rack,
    StoragePath,
    Switch,
)
from incidents.vocabulary.part_kinds import NicRole

# Parts whose serial stands in the inventory's own rows.
_WITH_SERIAL: tuple[tuple[str, Any, str], ...] = (
    ("node", Node, ""),
    ("switch", Switch, ""),
    ("GPU", Gpu, "node"),
    ("NVSwitch", NvSwitch, "node"),
    ("NIC", Nic, "node"),
    ("module", Module, "switch"),
)


@dataclass(frozen=True)
class InventoryFinding:
    """One thing that a person should look at."""

    what: str
    where: str
    todo: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.todo}"


@dataclass(frozen=True)
class Heard:
    """What LLDP heard at one end: the far end as a resource path, of a node perhaps the machine
    alone.

    Empty where it is none of the inventory's.
    """

    own: str
    far: str
    words: str


def list_findings(
    *, gpus_by_slurm: Mapping[str, int] | None = None, heard: Sequence[Heard] | None = None
) -> list[InventoryFinding]:
    """All of them, in order of place. None: Slurm, or LLDP, was not asked."""
    found = [
        *_find_shared_addresses(),
        *_find_shared_controllers(),
        *_find_shared_names(),
        *_find_shared_serials(),
    ]
    found += _find_missing_gpus()
    found += _find_unlike_their_peers()
    found += _find_cables_to_nowhere()
    found += _find_nics_without_rail()
    found += _find_rails_without_leaf()
    found += _check_places()
    if gpus_by_slurm is not None:
        found += _compare_slurm(gpus_by_slurm)
    if heard is not None:
        found += _compare_lldp(heard)
    return sorted(found, key=lambda finding: (finding.where, finding.what))


def _list_machines() -> list[Node | Switch]:
    return [
        *Node.objects.inventoried(),
        *Switch.objects.inventoried(),
    ]


def _find_shared_addresses() -> Iterator[InventoryFinding]:
    """Of machines by address and port, of NICs by address."""
    by_address: dict[tuple[str, int], list[str]] = defaultdict(list)
    for machine in _list_machines():
        if isinstance(machine, Node) or machine.snmp_port == 161:
            port = machine.ssh_port
        else:
            port = machine.snmp_port
        by_address[(machine.address, port)].append(machine.resource)
    for nic in Nic.objects.exclude(address="").select_related("node"):
        owners = by_address[(nic.address, 22)]
        if nic.resource not in owners and nic.node.resource not in owners:
            owners.append(nic.resource)
    for (address, _), owners in by_address.items():
        if address and len(owners) > 1:
            yield InventoryFinding(
                f"{address} is the address of {' and '.join(owners)}",
                owners[0],
                "Give each its own in the inventory file and import it; `ip address` on both shows"
                " which is right.",
            )


def _find_shared_controllers() -> Iterator[InventoryFinding]:
    """Nodes of one service are told apart by their serials; without them another node may lose its
    power."""
    by_controller: dict[str, list[Node]] = defaultdict(list)
    for node in Node.objects.inventoried().exclude(bmc_address="").order_by("name"):
        by_controller[node.bmc_address].append(node)
    for address, nodes in by_controller.items():
        if len(nodes) > 1 and not all(node.serial for node in nodes):
            names = " and ".join(node.name for node in nodes)
            yield InventoryFinding(
                f"{address} is the management controller of {names}",
                nodes[0].resource,
                "Give each its own `bmc` in the inventory file, or, where one service speaks for"
                " all, each its serial.",
            )


def _find_shared_names() -> Iterator[InventoryFinding]:
    """A node and a switch of one name cannot be told apart by their log lines."""
    count = Counter(machine.name for machine in _list_machines())
    for name, times in count.items():
        if times > 1:
            yield InventoryFinding(
                f"{name} is a node and a switch",
                f"node/{name}",
                "Rename one of them in the inventory file.",
            )


def _find_shared_serials() -> Iterator[InventoryFinding]:
    for kind, table, machine in _WITH_SERIAL:
        rows = table.objects.exclude(serial="")
        by_serial: dict[str, list[str]] = defaultdict(list)
        for row in rows.select_related(machine) if machine else rows:
            by_serial[row.serial].append(row.resource)
        for serial, slots in by_serial.items():
            if len(slots) > 1:
                places = ", ".join(slots)
                yield InventoryFinding(
                    f"{kind} serial {serial} stands in {len(slots)} places: {places}",
                    slots[0],
                    "`kintsugi inventory discover` asks the machines where the part is now.",
                )


def _find_missing_gpus() -> Iterator[InventoryFinding]:
    known = Counter(Gpu.objects.values_list("node__name", flat=True))
    for node in Node.objects.inventoried().filter(gpu_count__isnull=False):
        count = known[node.name]
        if count != node.gpu_count and (count or node.gpu_count):
            yield InventoryFinding(
                f"the places of {count} GPUs are known, {node.gpu_count} are declared",
                node.resource,
                f"`kintsugi inventory discover --node {node.name}` asks the node; then look at"
                " what the driver lists.",
            )


def _find_unlike_their_peers() -> Iterator[InventoryFinding]:
    """A node with fewer GPUs than most nodes of its role and partitions have."""
    known = Counter(Gpu.objects.values_list("node__name", flat=True))
    groups: dict[tuple[str, tuple[str, ...]], list[Node]] = defaultdict(list)
    for node in Node.objects.inventoried():
        group = (node.role, tuple(node.partitions))
        groups[group].append(node)
    for (role, _), nodes in groups.items():
        counts = Counter(known[node.name] for node in nodes)
        usual, times = counts.most_common(1)[0]
        if times <= len(nodes) / 2:
            continue
        peers = f"{times} of {len(nodes)} {role} nodes alike have {usual}"
        for node in nodes:
            count = known[node.name]
            if 0 < count < usual and node.gpu_count is None:
                yield InventoryFinding(
                    f"{count} GPUs are known, {peers}",
                    node.resource,
                    f"`kintsugi inventory discover --node {node.name}` asks the node; give"
                    " gpu_count if it is right.",
                )


def _find_cables_to_nowhere() -> Iterator[InventoryFinding]:
    machines = {machine.resource for machine in _list_machines()}
    parts = {nic.resource for nic in Nic.objects.select_related("node")}
    parts |= {port.resource for port in Port.objects.select_related("switch")}
    with_nics = {resources.owner(part) for part in parts}
    for cable in Cable.objects.order_by("a"):
        for end, far in ((cable.a, cable.b), (cable.b, cable.a)):
            owner = resources.owner(end)
            if not owner.startswith("storage/") and owner not in machines:
                yield InventoryFinding(
                    f"a cable ends there, from {far}, and there is no such machine", end, _AS_FILES
                )
            elif owner in with_nics and end not in parts and end.count("/") == 3:
                yield InventoryFinding(
                    f"a cable ends there, from {far}, and there is no such port", end, _AS_FILES
                )


_AS_FILES = "Correct the [[cables]] row, or add the machine or port, and import the file."


def _find_nics_without_rail() -> Iterator[InventoryFinding]:
    """NICs of the fabric whose rail neither the file nor the cable's switch tells."""
    rails = dict(Switch.objects.values_list("name", "rail"))
    far_ends = _get_far_ends()
    for nic in Nic.objects.filter(role=NicRole.FABRIC, rail__isnull=True).select_related("node"):
        peer = far_ends.get(nic.resource, "")
        if not peer:
            yield InventoryFinding(
                "a NIC of the fabric has neither cable nor rail", nic.resource, _RAIL
            )
            continue
        machine = peer.split("/")[1]
        if rails.get(machine) is None:
            yield InventoryFinding(
                f"a NIC of the fabric has no rail, nor has {machine}", nic.resource, _RAIL
            )


def _get_far_ends() -> dict[str, str]:
    """The other end of each cable's end."""
    far_ends = {}
    for cable in Cable.objects.all():
        far_ends[cable.a] = cable.b
        far_ends[cable.b] = cable.a
    return far_ends


_RAIL = "Give `rail` in the node's or the switch's row, or the cable, and import the file."


def _find_rails_without_leaf() -> Iterator[InventoryFinding]:
    """A rail that nodes of a pod are on, while no leaf of that pod serves it."""
    served = set(Switch.objects.filter(role="leaf", rail__isnull=False).values_list("pod", "rail"))
    used = Nic.objects.filter(rail__isnull=False, node__is_provisional=False).order_by()
    for pod, rail in sorted(set(used.values_list("node__pod", "rail")) - served):
        yield InventoryFinding(
            f"rail {rail} of {pod or 'the site'} has no leaf",
            f"pod/{pod or '-'}",
            "Give the leaf that serves it `rail` (or `rails`) and the same pod in [[switches]], and"
            " import the file.",
        )


def _check_places() -> Iterator[InventoryFinding]:
    feeds = set(PowerFeed.objects.values_list("name", flat=True))
    switches = set(Switch.objects.values_list("name", flat=True))
    racks = {rack.name: rack for rack in Rack.objects.all()}
    for rack in racks.values():
        for feed in set(rack.feeds) - feeds:
            yield InventoryFinding(
                f"power feed {feed} is not known", f"rack/{rack.name}", "Add it to [[feeds]]."
            )
        if rack.management_switch and rack.management_switch not in switches:
            yield InventoryFinding(
                f"management switch {rack.management_switch} is not known",
                f"rack/{rack.name}",
                "Add it to [[switches]].",
            )
    for machine in _list_machines() if racks else ():
        if machine.rack and machine.rack not in racks:
            yield InventoryFinding(
                f"rack {machine.rack} is not known", machine.resource, "Add it to [[racks]]."
            )
    for path in StoragePath.objects.all():
        for name in set(path.switches) - switches:
            yield InventoryFinding(
                f"storage switch {name} is not known",
                f"storage{path.mount}",
                "Add it to [[switches]].",
            )


def _compare_slurm(gpus: Mapping[str, int]) -> Iterator[InventoryFinding]:
    known = Counter(Gpu.objects.values_list("node__name", flat=True))
    nodes = {node.name: node for node in Node.objects.inventoried()}
    for name in sorted(set(gpus) - set(nodes)):
        yield InventoryFinding(
            "Slurm has this node, the inventory does not",
            f"node/{name}",
            "`kintsugi inventory from-slurm`.",
        )
    for name, node in sorted(nodes.items()):
        if name not in gpus and node.partitions:
            yield InventoryFinding(
                "the inventory has it in partitions, and Slurm has no such node",
                node.resource,
                "Delete it in the console when it is gone, or add it to slurm.conf.",
            )
        ours = known[name] or node.gpu_count or 0
        if name in gpus and gpus[name] and ours != gpus[name]:
            yield InventoryFinding(
                f"Slurm's GRES counts {gpus[name]} GPUs, the inventory {ours}",
                node.resource,
                f"`kintsugi inventory discover --node {name}` shows what the driver lists.",
            )


def _compare_lldp(heard: Sequence[Heard]) -> Iterator[InventoryFinding]:
    """Neighbours against cables. A cable is told once, by the end that stands first."""
    far_ends = _get_far_ends()
    reported: set[frozenset[str]] = set()
    yield from _find_strangers(heard)
    for neighbour in heard:
        expected = far_ends.get(neighbour.own, "")
        pair = frozenset((neighbour.own, neighbour.far))
        is_machine = neighbour.far.count("/") == 1
        expected_far = resources.owner(expected) if is_machine else expected
        if not neighbour.far or neighbour.far == expected_far or pair in reported:
            continue
        reported.add(pair)
        if expected:
            yield InventoryFinding(
                f"the cable goes to {neighbour.far}, the inventory says {expected}",
                neighbour.own,
                "Move the cable, or `kintsugi inventory discover` takes it as it is.",
            )
        else:
            yield InventoryFinding(
                f"a cable goes to {neighbour.far}, the inventory has none",
                neighbour.own,
                "`kintsugi inventory discover` takes it into the inventory.",
            )


def _find_strangers(heard: Sequence[Heard]) -> Iterator[InventoryFinding]:
    """Machines that only LLDP knows, once each."""
    by_machine: dict[str, list[Heard]] = defaultdict(list)
    for neighbour in heard:
        if not neighbour.far:
            machine_name = neighbour.words.split(" ", 1)[0]
            by_machine[machine_name].append(neighbour)
    for machine, ports in by_machine.items():
        others = f", nor is that of {len(ports) - 1} ports more" if len(ports) > 1 else ""
        yield InventoryFinding(
            f"its neighbour {ports[0].words} is not in the inventory{others}",
            ports[0].own,
            f"Add {machine} to [[switches]] or [[nodes]], or look at the cable.",
        )
