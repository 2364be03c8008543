"""What is left: nodes of each partition, and links of each rail. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from django.db.models import Q

from detectors import resources
from detectors.faults import Component, Severity
from incidents.inventory import graphs, node_states
from incidents.models import Fault, Incident, Node
from incidents.topology.graph import LEAF

# Nodes that Slurm gives no work to, whoever took them out.
_OUT = ("slurm.node_down", "slurm.drained_*", "slurm.reboot_timed_out")
_BAD = (str(Severity.MAJOR), str(Severity.CRITICAL))
_OF_LINKS = (str(Component.NIC), str(Component.INTERCONNECT_SWITCH))


@dataclass(frozen=True)
class Capacity:
    """`name` of a partition or rail, how many nodes or links it has, and how many of them serve."""

    name: str
    total: int
    left: int


def is_out(fault_type: str) -> bool:
    return any(fnmatchcase(fault_type, pattern) for pattern in _OUT)


def get_partitions_by_node() -> dict[str, list[str]]:
    """`node/gn001` to its partitions, of the inventory's nodes."""
    rows = Node.objects.inventoried().values_list("name", "partitions")
    return {resources.node(name): list(partitions) for name, partitions in rows}


def get_sizes(partitions: Mapping[str, Iterable[str]]) -> dict[str, int]:
    return dict(Counter(name for names in partitions.values() for name in names))


def get_out_of_service() -> set[str]:
    """Nodes that an open incident took out, and those that take no jobs by Slurm's last look,
    whoever took them out."""
    ours = Incident.objects.out_of_service().filter(owner__startswith="node/")
    of_slurm = Fault.objects.active().filter(fault_type__startswith="slurm.")
    seen = of_slurm.values_list("owner", "fault_type")
    out = set(ours.values_list("owner", flat=True))
    out.update(owner for owner, fault_type in seen if is_out(fault_type))
    return out | node_states.get_out_of_service()


def list_of_partitions() -> list[Capacity]:
    known, out = get_partitions_by_node(), get_out_of_service()
    totals = get_sizes(known)
    lost = Counter[str]()
    for node, names in known.items():
        if node in out:
            lost.update(names)
    rows = []
    for name, total in sorted(totals.items()):
        rows.append(Capacity(name, total, total - lost[name]))
    return rows


def list_of_rails() -> list[Capacity]:
    """Links of nodes to the leafs of each rail, without those with a grave fault at either end or
    on their leaf."""
    graph = graphs.get_current()
    is_at_switch_or_nic = Q(resource__startswith="switch/") | Q(resource__contains="/nic/")
    is_of_link = Q(component__in=_OF_LINKS) & is_at_switch_or_nic
    rows = Fault.objects.active().filter(severity__in=_BAD).filter(is_of_link)
    bad = set(rows.values_list("resource", flat=True))
    links: dict[int, list[str]] = defaultdict(list)
    for place in graph.topology.switches:
        if place.role == LEAF and place.rail is not None:
            links[place.rail] += graph.get_children(resources.switch(place.name))
    found = []
    for rail, nics in sorted(links.items()):
        usable = 0
        for nic in nics:
            peer = graph.find_peer(nic) or ""
            usable += bad.isdisjoint((nic, peer, resources.owner(peer)))
        found.append(Capacity(str(rail), len(nics), usable))
    return found
