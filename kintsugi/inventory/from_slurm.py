"""Slurm's nodes as an inventory: names, partitions, how many GPUs. Asks nothing itself, decides
nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from detectors import resources
from detectors.slurm.output import NodeState
from incidents.models import Node
from incidents.topology.topology import NodePlace, Topology, expand
from kintsugi.inventory.host_lists import fold


def topology(states: Mapping[str, NodeState]) -> Topology:
    """What Slurm tells of each node, and nothing that it does not: the rest of a known node stays
    as it is."""
    known, own = dict(Node.objects.values_list("name", "address")), _own_addresses(states)
    return Topology(nodes=tuple(_place(state, known, own) for state in states.values()))


def _own_addresses(states: Mapping[str, NodeState]) -> dict[str, str]:
    """By name, of those whose NodeAddr is not just their name and not shared: several slurmd may
    run on one machine."""
    count = Counter(state.address for state in states.values())
    return {
        resources.short_host(state.name): state.address
        for state in states.values()
        if state.address
        and count[state.address] == 1
        and state.address.lower() != state.name.lower()
    }


def _place(state: NodeState, known: Mapping[str, str], own: Mapping[str, str]) -> NodePlace:
    name = resources.short_host(state.name)
    given = {"partitions", "gpu_count"}
    address = own.get(name, "")
    if address and not known.get(name):
        given.add("address")
    if name not in known:
        given.add("role")
    return NodePlace(
        name=name,
        address=address if "address" in given else "",
        partitions=state.partitions,
        gpu_count=state.gpus or None,
        given=frozenset(given),
    )


def unknown_to_slurm(states: Mapping[str, NodeState]) -> list[str]:
    """Nodes of the inventory that take jobs by their partitions, and that Slurm does not have."""
    names = {resources.short_host(name) for name in states}
    rows = Node.objects.inventoried().order_by("name")
    return [node.name for node in rows if node.partitions and node.name not in names]


def as_toml(states: Mapping[str, NodeState], *, cluster_name: str = "") -> str:
    """An inventory file to go on from: nodes alike in everything but their name stand in one
    row."""
    alike: dict[tuple[tuple[str, ...], int, bool], list[NodeState]] = defaultdict(list)
    own = _own_addresses(states)
    for state in states.values():
        alike[(state.partitions, state.gpus, resources.short_host(state.name) in own)].append(state)
    lines = [
        (
            "# Of Slurm's nodes. Racks, NICs, switches and cables are not known to Slurm:"
            " docs/inventory.md."
        )
    ]
    if cluster_name:
        lines += ["", "[site]", f"cluster_name = {_quoted(cluster_name)}"]
    for (partitions, gpus, has_address), members in alike.items():
        names = sorted(resources.short_host(state.name) for state in members)
        lines += ["", "[[nodes]]", f"names = {_quoted(fold(names))}"]
        lines += [f"partitions = [{', '.join(map(_quoted, partitions))}]"] if partitions else []
        lines += [f"gpu_count = {gpus}"] if gpus else []
        if has_address:
            lines.append(
                f"addresses = {_quoted(','.join(own[name] for name in expand(fold(names))))}"
            )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic TOML string; names hold neither control characters nor line ends."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
