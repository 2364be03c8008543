"""How two faults can be related by where they are: each relation gives keys, and two faults meet
where keys meet. Pure.

A relation never says which fault is the cause: rules do (`incidents.correlation.rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from detectors import resources
from incidents.correlation import places
from incidents.correlation.places import Surroundings
from incidents.faults.fault_views import FaultView
from incidents.topology.graph import ALL_NODES, LEAF, MANAGEMENT, NOTHING, SPINE
from incidents.vocabulary.relations import Relation, Side

__all__ = ["Relation", "Side", "Surroundings", "keys", "owners"]


def keys(relation: Relation, side: Side, fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where the fault can meet others by this relation; empty: nowhere. Two faults meet where their
    keys do."""
    return _PLACES[relation][side](fault, around)


def owners(
    relation: Relation, side: Side, fault: FaultView, around: Surroundings
) -> frozenset[str]:
    """The machines on which faults of the OTHER side may be found: what must be read from the
    database.

    `side` is the fault's own. Machines, and places of which faults are told as a whole
    (`rack/r01`).
    """
    return _FOUND[relation][side](fault, around)


def _alike(place: places.Keys) -> Mapping[Side, places.Keys]:
    return {Side.CAUSE: place, Side.EFFECT: place}


def _sides(cause: places.Keys, effect: places.Keys) -> Mapping[Side, places.Keys]:
    return {Side.CAUSE: cause, Side.EFFECT: effect}


_PLACES: Mapping[Relation, Mapping[Side, places.Keys]] = {
    Relation.SAME_PART: _alike(places.part),
    Relation.SAME_GPU: _alike(places.gpu),
    Relation.UNNAMED_GPU: _sides(places.node_of_gpu, places.node_of_unnamed_gpu),
    Relation.SAME_MACHINE: _alike(places.machine),
    Relation.NVSWITCH_FABRIC: _alike(places.fabric),
    Relation.CABLE: _alike(places.cable),
    Relation.MODULE: _alike(places.module),
    Relation.SHARED_MACHINE: _alike(places.link_ends),
    Relation.PORT_OF_SWITCH: _sides(places.whole_switch, places.switches_of_link),
    Relation.NEIGHBOUR_OF_SWITCH: _sides(places.whole_switch, places.neighbouring_switches),
    Relation.LEAF_OF_RAIL: _sides(places.of_role(LEAF), places.leafs),
    Relation.SPINE_OF_LEAFS: _sides(places.of_role(SPINE), places.spines),
    Relation.STORAGE_PATH: _sides(places.storage_cause, places.storage_effect),
    Relation.RACK: _alike(places.rack),
    Relation.POWER_FEED: _sides(places.feed_cause, places.feeds),
    Relation.COOLING: _alike(places.rack),  # the inventory knows of no cooling but the rack's
    Relation.POD: _sides(places.pod_cause, places.pods),
    Relation.ALL_OF_SITE: _sides(places.site, places.on_site),
    Relation.MANAGEMENT_SWITCH: _sides(places.of_role(MANAGEMENT), places.management_switches),
    Relation.MANAGEMENT_NETWORK: _sides(places.management_cause, places.management_effect),
    Relation.PAUSE_PATH: _sides(places.pause_cause, places.pause_effect),
    Relation.SAME_JOB: _alike(places.jobs),
    Relation.SAME_MAINTENANCE: _alike(places.windows),
}


# Where the other side is found
# ---------------------------------------------------------------------------


def _same_machine(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return places.some(fault.owner)


def _at_modules(fault: FaultView, around: Surroundings) -> frozenset[str]:
    modules = places.module(fault, around)
    return _owners(modules).union(*map(around.graph.machines_behind, modules))


def _near_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Both ends, and what is cabled to either."""
    ends = places.link_ends(fault, around)
    return ends.union(*(around.graph.neighbours(end) for end in ends))


def _where(place: places.Keys) -> places.Keys:
    """The machines that the keys are or belong to."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        return _owners(place(fault, around))

    return found


def _owners(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(resources.owner(path) for path in paths)


def _beside(place: places.Keys) -> places.Keys:
    """The switches that are meant, and everything cabled to them."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        switches = place(fault, around)
        return switches.union(*(around.graph.neighbours(switch) for switch in switches))

    return found


def _below(place: places.Keys) -> places.Keys:
    """The places that are meant, and every machine that hangs on them."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        paths = place(fault, around)
        return _owners(paths).union(*map(around.graph.machines_behind, paths))

    return found


def _with_far_ends(found: places.Keys) -> places.Keys:
    """Also the switches that these machines are cabled to: their ports tell of the machines."""

    def with_far_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
        near = found(fault, around)
        return near.union(*(around.graph.switches_of(machine) for machine in near))

    return with_far_ends


def _below_leaf(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Also where faults of the jobs on its nodes are told."""
    near = _beside(places.of_role(LEAF))(fault, around)
    return near | _owners(job for machine in near for job in around.jobs.get(machine, NOTHING))


def _below_storage(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Its clients; the file systems as wholes, where a switch is meant."""
    causes = places.storage_cause(fault, around)
    clients = _below(places.storage_cause)(fault, around)
    return clients.union(*map(around.graph.file_systems_over, causes))


def _above_client(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Its storage switches, its file systems, and their servers."""
    near = places.storage_effect(fault, around)
    return near.union(*map(around.graph.servers_of, near))


def _pausing(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The fabric of the NIC or port: pause spreads over it, and comes from any host of it."""
    near = places.link_ends(fault, around)
    for _ in range(3):  # host, leaf, spine, leaf
        near = near.union(*(around.graph.switches_of(machine) for machine in near))
    hosts = (
        around.graph.neighbours(machine) for machine in near if around.graph.role(machine) == LEAF
    )
    return near.union(*hosts)


def _on_feed(fault: FaultView, around: Surroundings) -> frozenset[str]:
    feeds = places.feed_cause(fault, around)
    return _below(places.feed_cause)(fault, around).union(
        *(around.graph.racks_on(feed) for feed in feeds)
    )


def _below_pod(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The pod, its leafs, and everything cabled to them."""
    pods = places.pod_cause(fault, around)
    leafs = NOTHING.union(*map(around.graph.children, pods))
    return pods.union(leafs, *map(around.graph.neighbours, leafs))


def _all_machines(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Everything: asked once, when the cause itself is told."""
    graph = around.graph
    if not places.site(fault, around) | places.management_cause(fault, around):
        return NOTHING
    switches = frozenset(resources.switch(place.name) for place in graph.topology.switches)
    return graph.children(ALL_NODES) | switches


def _of_jobs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    jobs = places.jobs(fault, around)
    machines = [around.machines.get(job, NOTHING) for job in jobs]
    return _owners(jobs).union(_same_machine(fault, around), *machines)


def _in_windows(fault: FaultView, around: Surroundings) -> frozenset[str]:
    fault_windows = places.windows(fault, around)
    return frozenset(
        machine
        for machine, windows in around.windows.items()
        if not fault_windows.isdisjoint(windows)
    )


_FOUND: Mapping[Relation, Mapping[Side, places.Keys]] = {
    Relation.SAME_PART: _alike(_same_machine),
    Relation.SAME_GPU: _alike(_same_machine),
    Relation.UNNAMED_GPU: _alike(_same_machine),
    Relation.SAME_MACHINE: _alike(_same_machine),
    Relation.NVSWITCH_FABRIC: _alike(_same_machine),
    Relation.CABLE: _alike(places.link_ends),
    Relation.MODULE: _alike(_at_modules),
    Relation.SHARED_MACHINE: _alike(_near_ends),
    Relation.PORT_OF_SWITCH: _sides(_beside(places.whole_switch), _where(places.switches_of_link)),
    Relation.NEIGHBOUR_OF_SWITCH: _sides(
        _beside(places.whole_switch), _where(places.neighbouring_switches)
    ),
    Relation.LEAF_OF_RAIL: _sides(_below_leaf, _where(places.leafs)),
    Relation.SPINE_OF_LEAFS: _sides(_beside(places.of_role(SPINE)), _where(places.spines)),
    Relation.STORAGE_PATH: _sides(_below_storage, _above_client),
    Relation.RACK: _sides(_with_far_ends(_below(places.rack)), _below(places.rack)),
    Relation.POWER_FEED: _sides(_with_far_ends(_on_feed), _where(places.feeds)),
    Relation.COOLING: _sides(_with_far_ends(_below(places.rack)), _below(places.rack)),
    Relation.POD: _sides(_below_pod, _where(places.pods)),
    Relation.ALL_OF_SITE: _sides(_all_machines, _where(places.on_site)),
    Relation.MANAGEMENT_SWITCH: _sides(
        _below(places.of_role(MANAGEMENT)), _where(places.management_switches)
    ),
    Relation.MANAGEMENT_NETWORK: _sides(_all_machines, _where(places.management_effect)),
    Relation.PAUSE_PATH: _alike(_pausing),
    Relation.SAME_JOB: _alike(_of_jobs),
    Relation.SAME_MAINTENANCE: _alike(_in_windows),
}
