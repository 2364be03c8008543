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

_HEAD = (
    "# Of Slurm's nodes. Racks, NICs, switches and cables are not known to Slurm:"
    " docs/inventory.md."
)


def build_topology(states: Mapping[str, NodeState]) -> Topology:
    """What Slurm tells of each node, and nothing that it does not: the rest of a known node stays
    as it is."""
    known = dict(Node.objects.values_list("name", "address"))
    own = _get_own_addresses(states)
    places = tuple(_build_node_place(state, known, own) for state in states.values())
    return Topology(nodes=places)


def _get_own_addresses(states: Mapping[str, NodeState]) -> dict[str, str]:
    """By name, of those whose NodeAddr is not just their name and not shared: several slurmd may
    run on one machine."""
    count = Counter(state.address for state in states.values())
    addresses = {}
    for state in states.values():
        is_own = count[state.address] == 1 and state.address.lower() != state.name.lower()
        if state.address and is_own:
            addresses[resources.short_host(state.name)] = state.address
    return addresses


def _build_node_place(
    state: NodeState, known: Mapping[str, str], own: Mapping[str, str]
) -> NodePlace:
    name = resources.short_host(state.name)
    fields = {"partitions", "gpu_count"}
    address = "" if known.get(name) else own.get(name, "")
    if address:
        fields.add("address")
    if name not in known:
        fields.add("role")
    return NodePlace(
        name=name,
        address=address,
        partitions=state.partitions,
        gpu_count=state.gpus or None,
        given=frozenset(fields),
    )


def list_unknown_to_slurm(states: Mapping[str, NodeState]) -> list[str]:
    """Nodes of the inventory that take jobs by their partitions, and that Slurm does not have."""
    names = {resources.short_host(name) for name in states}
    rows = Node.objects.inventoried().order_by("name")
    return [node.name for node in rows if node.partitions and node.name not in names]


def format_toml(states: Mapping[str, NodeState], *, cluster_name: str = "") -> str:
    """An inventory file to go on from: nodes alike in everything but their name stand in one
    row."""
    own = _get_own_addresses(states)
    names_by_row: dict[tuple[tuple[str, ...], int, bool], list[str]] = defaultdict(list)
    for state in states.values():
        name = resources.short_host(state.name)
        names_by_row[state.partitions, state.gpus, name in own].append(name)
    lines = [_HEAD]
    if cluster_name:
        lines += ["", "[site]", f"cluster_name = {_quote(cluster_name)}"]
    for (partitions, gpus, has_address), names in names_by_row.items():
        host_list = fold(names)
        lines += ["", "[[nodes]]", f"names = {_quote(host_list)}"]
        if partitions:
            lines.append(f"partitions = [{', '.join(map(_quote, partitions))}]")
        if gpus:
            lines.append(f"gpu_count = {gpus}")
        if has_address:
            addresses = ",".join(own[name] for name in expand(host_list))
            lines.append(f"addresses = {_quote(addresses)}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A basic TOML string; names hold neither control characters nor line ends."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
