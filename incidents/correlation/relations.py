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
from incidents.topology.graph import ALL_NODES, ALL_SWITCHES, LEAF, MANAGEMENT, NOTHING, SPINE
from incidents.vocabulary.relations import Relation, Side

__all__ = ["Relation", "Side", "Surroundings", "get_keys", "get_owners"]


def get_keys(
    relation: Relation, side: Side, fault: FaultView, around: Surroundings
) -> frozenset[str]:
    """Where the fault can meet others by this relation; empty: nowhere. Two faults meet where their
    keys do."""
    return _PLACES[relation][side](fault, around)


def get_owners(
    relation: Relation, side: Side, fault: FaultView, around: Surroundings
) -> frozenset[str]:
    """The machines on which faults of the OTHER side may be found: what must be read from the
    database.

    `side` is the fault's own. Machines, and places of which faults are told as a whole
    (`rack/r01`).
    """
    return _FOUND[relation][side](fault, around)


def _get_same_sides(place: places.Keys) -> Mapping[Side, places.Keys]:
    return {Side.CAUSE: place, Side.EFFECT: place}


def _get_sides(cause: places.Keys, effect: places.Keys) -> Mapping[Side, places.Keys]:
    return {Side.CAUSE: cause, Side.EFFECT: effect}


_PLACES: Mapping[Relation, Mapping[Side, places.Keys]] = {
    Relation.SAME_PART: _get_same_sides(places.get_part),
    Relation.SAME_GPU: _get_same_sides(places.get_gpu),
    Relation.UNNAMED_GPU: _get_sides(places.get_node_of_gpu, places.get_node_of_unnamed_gpu),
    Relation.SAME_MACHINE: _get_same_sides(places.get_machine),
    Relation.NVSWITCH_FABRIC: _get_same_sides(places.get_fabric),
    Relation.CABLE: _get_same_sides(places.get_cable),
    Relation.MODULE: _get_same_sides(places.get_modules),
    Relation.SHARED_MACHINE: _get_same_sides(places.get_link_ends),
    Relation.PORT_OF_SWITCH: _get_sides(places.get_whole_switch, places.get_switches_of_link),
    Relation.NEIGHBOUR_OF_SWITCH: _get_sides(
        places.get_whole_switch, places.get_neighbouring_switches
    ),
    Relation.LEAF_OF_RAIL: _get_sides(places.build_role_keys(LEAF), places.get_leafs),
    Relation.SPINE_OF_LEAFS: _get_sides(places.build_role_keys(SPINE), places.get_spines),
    Relation.STORAGE_PATH: _get_sides(places.get_storage_cause, places.get_storage_effect),
    Relation.RACK: _get_same_sides(places.get_racks),
    Relation.POWER_FEED: _get_sides(places.get_feed_cause, places.get_feeds),
    Relation.COOLING: _get_same_sides(
        places.get_racks
    ),  # the inventory knows of no cooling but the rack's
    Relation.POD: _get_sides(places.get_pod_cause, places.get_pods),
    Relation.ALL_OF_SITE: _get_sides(places.get_site, places.get_site_of_node),
    Relation.SWITCHES_OF_SITE: _get_sides(places.get_switches_cause, places.get_switches_effect),
    Relation.MANAGEMENT_SWITCH: _get_sides(
        places.build_role_keys(MANAGEMENT), places.get_management_switches
    ),
    Relation.MANAGEMENT_NETWORK: _get_sides(
        places.get_management_cause, places.get_management_effect
    ),
    Relation.PAUSE_PATH: _get_sides(places.get_pause_cause, places.get_pause_effect),
    Relation.SAME_JOB: _get_same_sides(places.get_jobs),
    Relation.SAME_MAINTENANCE: _get_same_sides(places.get_windows),
}


# Where the other side is found
# ---------------------------------------------------------------------------


def _get_same_machine(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return places.keep_known(fault.owner)


def _get_places_at_modules(fault: FaultView, around: Surroundings) -> frozenset[str]:
    modules = places.get_modules(fault, around)
    return _get_owners(modules).union(*map(around.graph.get_machines_behind, modules))


def _get_near_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Both ends, and what is cabled to either."""
    ends = places.get_link_ends(fault, around)
    return ends.union(*(around.graph.get_neighbours(end) for end in ends))


def _make_machine_keys(place: places.Keys) -> places.Keys:
    """The machines that the keys are or belong to."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        return _get_owners(place(fault, around))

    return found


def _get_owners(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(resources.owner(path) for path in paths)


def _make_keys_beside(place: places.Keys) -> places.Keys:
    """The switches that are meant, and everything cabled to them."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        switches = place(fault, around)
        return switches.union(*(around.graph.get_neighbours(switch) for switch in switches))

    return found


def _make_keys_below(place: places.Keys) -> places.Keys:
    """The places that are meant, and every machine that hangs on them."""

    def found(fault: FaultView, around: Surroundings) -> frozenset[str]:
        paths = place(fault, around)
        return _get_owners(paths).union(*map(around.graph.get_machines_behind, paths))

    return found


def _add_far_ends(found: places.Keys) -> places.Keys:
    """Also the switches that these machines are cabled to: their ports tell of the machines."""

    def with_far_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
        near = found(fault, around)
        return near.union(*(around.graph.get_switches(machine) for machine in near))

    return with_far_ends


def _get_below_leaf(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Also where faults of the jobs on its nodes are told."""
    near = _make_keys_beside(places.build_role_keys(LEAF))(fault, around)
    return near | _get_owners(job for machine in near for job in around.jobs.get(machine, NOTHING))


def _get_below_storage(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Its clients; the file systems as wholes, where a switch is meant."""
    causes = places.get_storage_cause(fault, around)
    clients = _make_keys_below(places.get_storage_cause)(fault, around)
    return clients.union(*map(around.graph.get_file_systems_over, causes))


def _get_above_client(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Its storage switches, its file systems, and their servers."""
    near = places.get_storage_effect(fault, around)
    return near.union(*map(around.graph.get_servers, near))


def _get_pausing_fabric(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The fabric of the NIC or port: pause spreads over it, and comes from any host of it."""
    near = places.get_link_ends(fault, around)
    for _ in range(3):  # host, leaf, spine, leaf
        near = near.union(*(around.graph.get_switches(machine) for machine in near))
    hosts = (
        around.graph.get_neighbours(machine)
        for machine in near
        if around.graph.get_role(machine) == LEAF
    )
    return near.union(*hosts)


def _get_on_feed(fault: FaultView, around: Surroundings) -> frozenset[str]:
    feeds = places.get_feed_cause(fault, around)
    return _make_keys_below(places.get_feed_cause)(fault, around).union(
        *(around.graph.get_racks_on(feed) for feed in feeds)
    )


def _get_below_pod(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The pod, its leafs, and everything cabled to them."""
    pods = places.get_pod_cause(fault, around)
    leafs = NOTHING.union(*map(around.graph.get_children, pods))
    return pods.union(leafs, *map(around.graph.get_neighbours, leafs))


def _get_all_machines(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Everything: asked once, when the cause itself is told."""
    graph = around.graph
    if not places.get_site(fault, around) | places.get_management_cause(fault, around):
        return NOTHING
    switches = frozenset(resources.switch(place.name) for place in graph.topology.switches)
    return graph.get_children(ALL_NODES) | switches


def _get_above_machine(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where what concerns all machines is told."""
    is_of_site = bool(places.get_site_of_node(fault, around))
    return frozenset({ALL_NODES, ALL_SWITCHES}) if is_of_site else NOTHING


def _get_below_switches(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The switches that are meant, and their pods."""
    below = _make_keys_below(places.get_switches_cause)(fault, around)
    pods = {around.graph.get_pod(switch) for switch in below}
    return below | frozenset(resources.pod(name) for name in pods if name)


def _get_above_switch(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where what concerns all switches of its sort is told, or all machines."""
    kinds = places.get_switches_effect(fault, around)
    return kinds | {ALL_NODES} if kinds else NOTHING


def _get_of_jobs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    jobs = places.get_jobs(fault, around)
    machines = [around.machines.get(job, NOTHING) for job in jobs]
    return _get_owners(jobs).union(_get_same_machine(fault, around), *machines)


def _get_in_windows(fault: FaultView, around: Surroundings) -> frozenset[str]:
    fault_windows = places.get_windows(fault, around)
    return frozenset(
        machine
        for machine, windows in around.windows.items()
        if not fault_windows.isdisjoint(windows)
    )


_FOUND: Mapping[Relation, Mapping[Side, places.Keys]] = {
    Relation.SAME_PART: _get_same_sides(_get_same_machine),
    Relation.SAME_GPU: _get_same_sides(_get_same_machine),
    Relation.UNNAMED_GPU: _get_same_sides(_get_same_machine),
    Relation.SAME_MACHINE: _get_same_sides(_get_same_machine),
    Relation.NVSWITCH_FABRIC: _get_same_sides(_get_same_machine),
    Relation.CABLE: _get_same_sides(places.get_link_ends),
    Relation.MODULE: _get_same_sides(_get_places_at_modules),
    Relation.SHARED_MACHINE: _get_same_sides(_get_near_ends),
    Relation.PORT_OF_SWITCH: _get_sides(
        _make_keys_beside(places.get_whole_switch), _make_machine_keys(places.get_switches_of_link)
    ),
    Relation.NEIGHBOUR_OF_SWITCH: _get_sides(
        _make_keys_beside(places.get_whole_switch),
        _make_machine_keys(places.get_neighbouring_switches),
    ),
    Relation.LEAF_OF_RAIL: _get_sides(_get_below_leaf, _make_machine_keys(places.get_leafs)),
    Relation.SPINE_OF_LEAFS: _get_sides(
        _make_keys_beside(places.build_role_keys(SPINE)), _make_machine_keys(places.get_spines)
    ),
    Relation.STORAGE_PATH: _get_sides(_get_below_storage, _get_above_client),
    Relation.RACK: _get_sides(
        _add_far_ends(_make_keys_below(places.get_racks)), _make_keys_below(places.get_racks)
    ),
    Relation.POWER_FEED: _get_sides(
        _add_far_ends(_get_on_feed), _make_machine_keys(places.get_feeds)
    ),
    Relation.COOLING: _get_sides(
        _add_far_ends(_make_keys_below(places.get_racks)), _make_keys_below(places.get_racks)
    ),
    Relation.POD: _get_sides(_get_below_pod, _make_machine_keys(places.get_pods)),
    Relation.ALL_OF_SITE: _get_sides(_get_all_machines, _get_above_machine),
    Relation.SWITCHES_OF_SITE: _get_sides(_get_below_switches, _get_above_switch),
    Relation.MANAGEMENT_SWITCH: _get_sides(
        _make_keys_below(places.build_role_keys(MANAGEMENT)),
        _make_machine_keys(places.get_management_switches),
    ),
    Relation.MANAGEMENT_NETWORK: _get_sides(
        _get_all_machines, _make_machine_keys(places.get_management_effect)
    ),
    Relation.PAUSE_PATH: _get_same_sides(_get_pausing_fabric),
    Relation.SAME_JOB: _get_same_sides(_get_of_jobs),
    Relation.SAME_MAINTENANCE: _get_same_sides(_get_in_windows),
}
