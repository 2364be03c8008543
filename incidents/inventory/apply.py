"""Brings the inventory's tables up to what files, or machines, say. The only writer of them besides
the ledger.

Never deletes by itself: what has disappeared from the files is told, and a person decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from django.db import models, transaction

from detectors import resources
from incidents.db import upsert
from incidents.inventory import graphs, part_history
from incidents.inventory.part_history import Sighting
from incidents.inventory.plan import Difference, Plan, format_value
from incidents.models import (
    Alias,
    Cable,
    Expectation,
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
from incidents.topology.topology import NicPlace, NodePlace, SwitchPlace, Topology
from incidents.vocabulary.part_kinds import Part

_NODE_FIELDS = (
    "address",
    "ssh_port",
    "bmc_address",
    "role",
    "pod",
    "rack",
    "partitions",
    "gpu_count",
)
_SWITCH_FIELDS = (
    "role",
    "address",
    "pod",
    "rail",
    "rack",
    "ssh_port",
    "snmp_port",
    "snmp_engine_id",
)
_NIC_FIELDS = ("role", "also", "rail", "speed_gbps", "mtu", "address")
_PORT_FIELDS = ("speed_gbps", "mtu", "fec", "is_autonegotiated", "is_admin_up")

_Ends = tuple[str, str]


@dataclass
class _Wanted:
    """What one table should hold. `learnt` fields are left as they are where the files say nothing
    of them."""

    kind: str
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)
    learnt: frozenset[str] = frozenset()


def apply(topology: Topology, now: datetime, *, is_dry_run: bool = False) -> Difference:
    """Brings the database up to the inventory; applying it again changes nothing.

    A provisional machine that the inventory names becomes a known one. `is_dry_run` only tells.
    Raises InventoryError when a value does not fit into its column.
    """
    # Without a lock: reading 10,000 nodes takes seconds in which no fault could be placed.
    plan = _plan(topology, now)
    plan.check()
    sightings = _list_sightings(topology)
    is_in_place = plan.difference.is_empty and part_history.is_settled(sightings, now)
    if is_dry_run or is_in_place:
        return plan.difference
    with transaction.atomic():
        # Before the rows of machines, as everywhere; what was written since is read again.
        upsert.lock_placement()
        plan = _plan(topology, now)
        plan.write()
        part_history.settle(sightings, now, why="the inventory says so")
        if not plan.difference.is_empty:
            graphs.mark_changed()
    graphs.forget()
    return plan.difference


def _plan(topology: Topology, now: datetime) -> Plan:
    """Compares the inventory with the database. Reads only."""
    plan = Plan()
    nodes = _plan_nodes(topology, now, plan)
    switches = _plan_switches(topology, now, plan)
    _plan_node_parts(topology, nodes, plan)
    modules = _plan_modules(topology, switches, plan)
    _plan_cables(topology, plan)
    _plan_ports(topology, switches, modules, plan)
    _plan_places(topology, plan)
    _plan_aliases(topology, plan)
    return plan


def _plan_nodes(topology: Topology, now: datetime, plan: Plan) -> dict[str, Node]:
    known = {node.name: node for node in Node.objects.all()}
    fresh = [_make_node(place, now) for place in topology.nodes if place.name not in known]
    plan.add("node", fresh)
    for place in topology.nodes:
        node = known.get(place.name)
        if node is not None:
            _plan_machine(node, _get_node_values(place), f"node {place.name}", now, plan)
    if any(place.given is None for place in topology.nodes):
        listed = {place.name for place in topology.nodes}
        gone = [node for node in known.values() if _is_gone(node, listed)]
        plan.difference.gone += [f"node {node.name}" for node in gone]
    return {**known, **{node.name: node for node in fresh}}


def _make_node(place: NodePlace, now: datetime) -> Node:
    values = {name: _get_stored_form(getattr(place, name)) for name in _NODE_FIELDS}
    return Node(
        name=place.name,
        in_service_since=now,
        is_provisional=False,
        serial=place.serial,
        **values,
    )


def _get_node_values(place: NodePlace) -> dict[str, Any]:
    """What the inventory says of a known node."""
    if place.given is None:
        kept = _get_kept_node_fields(place)
        names = [name for name in _NODE_FIELDS if name not in kept]
    else:
        names = [name for name in _NODE_FIELDS if name in place.given]
    values = {name: _get_stored_form(getattr(place, name)) for name in names}
    if place.serial:
        values["serial"] = place.serial
    return values


def _get_kept_node_fields(place: NodePlace) -> set[str]:
    """The fields that stay as they are because the files say nothing of them, and another source
    may have."""
    kept = set()
    if place.gpu_count is None:  # Slurm may have said it
        kept.add("gpu_count")
    if not place.address:  # so may a file of addresses
        kept |= {"address", "ssh_port"}
    if not place.bmc_address:  # and may one of controllers
        kept.add("bmc_address")
    return kept


def _plan_switches(topology: Topology, now: datetime, plan: Plan) -> dict[str, Switch]:
    known = {switch.name: switch for switch in Switch.objects.all()}
    fresh = []
    for place in topology.switches:
        if place.name not in known:
            values = _get_switch_values(place)
            switch = Switch(name=place.name, in_service_since=now, is_provisional=False, **values)
            fresh.append(switch)
    plan.add("switch", fresh)
    for place in topology.switches:
        row = known.get(place.name)
        if row is not None:
            _plan_machine(row, _get_switch_values(place), f"switch {place.name}", now, plan)
    listed = {place.name for place in topology.switches}
    if listed:
        gone = [switch for switch in known.values() if _is_gone(switch, listed)]
        plan.difference.gone += [f"switch {switch.name}" for switch in gone]
    return {**known, **{switch.name: switch for switch in fresh}}


def _get_switch_values(place: SwitchPlace) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(place, name) for name in _SWITCH_FIELDS}
    if place.serial:
        values["serial"] = place.serial
    return values


def _plan_machine(
    row: Node | Switch, values: dict[str, Any], title: str, now: datetime, plan: Plan
) -> None:
    """A machine that only spoke to us so far is in service from now on."""
    if row.is_provisional:
        values = {**values, "is_provisional": False, "in_service_since": now}
    plan.update(row, values, title)


def _is_gone(row: Node | Switch, listed: set[str]) -> bool:
    return row.name not in listed and not row.is_provisional


def _get_stored_form(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _plan_table(known: dict[Any, Any], wanted: _Wanted, make: Any, plan: Plan) -> list[Any]:
    """Adds and updates rows by key. `make(key, values)` makes an unsaved row; returns those that
    are added."""
    fresh = []
    for key, values in wanted.rows.items():
        row = known.get(key)
        if row is None:
            fresh.append(make(key, values))
            continue
        given = {}
        for name, value in values.items():
            if name not in wanted.learnt or value not in ("", None):
                given[name] = value
        plan.update(row, given, f"{wanted.kind} {row}")
    plan.add(wanted.kind, fresh)
    return fresh


def _plan_node_parts(topology: Topology, nodes: dict[str, Node], plan: Plan) -> None:
    """GPUs, NVSwitches and NICs. What a poll may have learnt stays where the files leave it out."""
    gpus = _Wanted("node", learnt=frozenset({"uuid", "serial"}))
    nvswitches = _Wanted("node", learnt=frozenset({"uuid", "serial"}))
    nics = _Wanted("node", learnt=frozenset({"pci_address", "netdev", "mac", "serial", "firmware"}))
    for node in topology.nodes:
        for gpu in node.gpus:
            values = {"pci_address": gpu.pci, "uuid": gpu.uuid, "serial": gpu.serial}
            gpus.rows[(node.name, gpu.index)] = values
        for nvswitch in node.nvswitches:
            values = {"uuid": nvswitch.uuid, "serial": nvswitch.serial}
            nvswitches.rows[(node.name, nvswitch.pci)] = values
        for nic in node.nics:
            nics.rows[(node.name, nic.device)] = _get_nic_values(nic, is_observed=node.is_observed)
    kinds = (
        (gpus, Gpu, "index", "gpus"),
        (nvswitches, NvSwitch, "pci_address", "nvswitches"),
        (nics, Nic, "device", "nics"),
    )
    for wanted, table, key, field_name in kinds:
        rows = table.objects.select_related("node")
        known = {(row.node.name, getattr(row, key)): row for row in rows}
        _plan_table(known, wanted, _get_part_maker(table, key, nodes), plan)
        # A row without any part of the kind says nothing of them: the machines are asked.
        listing = {place.name for place in topology.nodes if _has_list(place, field_name)}
        for (node_name, name), row in known.items():
            if node_name in listing and (node_name, name) not in wanted.rows:
                plan.difference.gone.append(f"{wanted.kind} {row}")


def _get_nic_values(nic: NicPlace, *, is_observed: bool) -> dict[str, Any]:
    """A machine that we looked at tells what a NIC is, not what it is for."""
    names = ["netdev", "mac", "serial", "firmware"]
    if not is_observed:
        names += _NIC_FIELDS
    return {"pci_address": nic.pci, **{name: getattr(nic, name) for name in names}}


def _has_list(place: NodePlace, field_name: str) -> bool:
    """Whether the inventory says which parts of a kind the node has, be it none."""
    if getattr(place, field_name):
        return True
    return place.given is not None and field_name in place.given


def _get_part_maker(table: Any, key: str, machines: Mapping[str, models.Model]) -> Any:
    owner = "switch" if table in (Module, Port) else "node"
    return lambda at, values: table(**{owner: machines[at[0]], key: at[1]}, **values)


def _plan_modules(
    topology: Topology, switches: dict[str, Switch], plan: Plan
) -> dict[tuple[str, str], Module]:
    """Returns all modules, by switch and name."""
    wanted = _Wanted("switch", learnt=frozenset({"serial"}))
    for module in topology.modules:
        values = {"kind": module.kind, "lanes": module.lanes, "serial": module.serial}
        wanted.rows[(module.switch, module.name)] = values
    known = {(row.switch.name, row.name): row for row in Module.objects.select_related("switch")}
    fresh = _plan_table(known, wanted, _get_part_maker(Module, "name", switches), plan)
    if wanted.rows:
        for place, row in known.items():
            if place not in wanted.rows:
                plan.difference.gone.append(f"switch {row}")
    return {**known, **{(row.switch.name, row.name): row for row in fresh}}


def _plan_cables(topology: Topology, plan: Plan) -> None:
    """Adds the cables that are new, and replaces those that were moved or run at another speed."""
    known = {(cable.a, cable.b): cable for cable in Cable.objects.all()}
    speeds = _get_cable_speeds(topology, known)
    unlisted = [cable for ends, cable in known.items() if ends not in speeds]
    used_ends = set(chain.from_iterable(speeds))
    moved = [cable for cable in unlisted if cable.a in used_ends or cable.b in used_ends]
    listed = [known[ends] for ends in speeds if ends in known]
    outdated = [cable for cable in listed if _is_outdated(cable, speeds[cable.a, cable.b])]

    new_ends = sorted(set(speeds) - set(known))
    plan.add("cable", [Cable(a=a, b=b, speed_gbps=speeds[a, b]) for a, b in new_ends])
    difference = plan.difference
    difference.changed += [f"cable {cable} was moved" for cable in moved]
    writes = plan.get_writes(Cable)
    writes.deleted += [*moved, *outdated]
    for cable in outdated:
        replacement = Cable(a=cable.a, b=cable.b, speed_gbps=speeds[cable.a, cable.b])
        writes.fresh.append(replacement)
        old = format_value(cable.speed_gbps)
        new = format_value(replacement.speed_gbps)
        difference.changed.append(f"cable {cable}: {old} -> {new} Gb/s")
    # A machine that we looked at may be deaf on one port: only files tell that a cable is gone.
    is_observed = any(node.is_observed for node in topology.nodes)
    if speeds and not is_observed:
        difference.gone += [f"cable {cable}" for cable in unlisted if cable not in moved]


def _get_cable_speeds(topology: Topology, known: Mapping[_Ends, Cable]) -> dict[_Ends, int | None]:
    """The speed of each listed cable, by its two ends: in the order of the row that we have."""
    speeds = {}
    for cable in topology.cables:
        ends = (cable.a, cable.b)
        reverse = (cable.b, cable.a)
        speeds[reverse if reverse in known else ends] = cable.speed_gbps
    return speeds


def _is_outdated(cable: Cable, speed_gbps: int | None) -> bool:
    return speed_gbps is not None and cable.speed_gbps != speed_gbps


def _plan_ports(
    topology: Topology,
    switches: dict[str, Switch],
    modules: Mapping[tuple[str, str], Module],
    plan: Plan,
) -> None:
    """Ports of cables, of modules, and those that are declared; a declared speed goes before the
    cable's."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cable in topology.cables:
        for end in (cable.a, cable.b):
            switch, is_port, name = end.removeprefix("switch/").partition("/port/")
            if end.startswith("switch/") and is_port:
                rows[(switch, name)] = {}
                if cable.speed_gbps is not None:
                    rows[(switch, name)]["speed_gbps"] = cable.speed_gbps
    for module in topology.modules:
        lanes = module.lanes // len(module.ports)
        row = modules[(module.switch, module.name)]
        for number, name in enumerate(module.ports):
            values = rows.setdefault((module.switch, name), {})
            values.update(module=row, first_lane=number * lanes, lanes=lanes)
    for port in topology.ports:
        declared = {name: getattr(port, name) for name in _PORT_FIELDS}
        given = {name: value for name, value in declared.items() if value not in (None, "")}
        rows.setdefault((port.switch, port.name), {}).update(given)
    known = {}
    for known_port in Port.objects.select_related("switch", "module"):
        known[(known_port.switch.name, known_port.name)] = known_port
    _plan_table(known, _Wanted("port", rows), _get_part_maker(Port, "name", switches), plan)


def _plan_places(topology: Topology, plan: Plan) -> None:
    """Racks, feeds, storage paths and what is declared of roles."""
    _plan_table_of_places("feed", PowerFeed, ("name",), topology.feeds, plan)
    _plan_table_of_places("rack", Rack, ("name",), topology.racks, plan)
    _plan_table_of_places("mount", StoragePath, ("mount",), topology.storage, plan)
    _plan_table_of_places("expectation", Expectation, ("kind", "role"), topology.roles, plan)


def _plan_table_of_places(
    kind: str, table: Any, key: tuple[str, ...], places: Sequence[Any], plan: Plan
) -> None:
    """A table with a column for each field of its places; `key` names the columns that tell them
    apart."""
    wanted = _Wanted(kind)
    for place in places:
        values = {name: _get_plain_value(value) for name, value in vars(place).items()}
        identity = tuple(values.pop(name) for name in key)
        wanted.rows[identity] = values
    known = {}
    for row in table.objects.all():
        known[tuple(getattr(row, name) for name in key)] = row
    _plan_table(known, wanted, _get_place_maker(table, key), plan)
    if places:
        gone = [row for identity, row in known.items() if identity not in wanted.rows]
        plan.difference.gone += [f"{kind} {row}" for row in gone]


def _get_place_maker(table: Any, key: tuple[str, ...]) -> Any:
    return lambda at, values: table(**dict(zip(key, at, strict=True)), **values)


def _get_plain_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else _get_stored_form(value)


def _plan_aliases(topology: Topology, plan: Plan) -> None:
    known = {alias.name: alias for alias in Alias.objects.all()}
    fresh = []
    for name, path in topology.aliases.items():
        row = known.get(name)
        if row is None:
            fresh.append(Alias(name=name, resource=path))
        elif row.resource != path:
            plan.difference.changed.append(f"alias {name}: {row.resource} -> {path}")
            row.resource = path
            plan.get_writes(Alias).updated.append((row, ("resource",)))
    plan.add("alias", fresh)


def _list_sightings(topology: Topology) -> list[Sighting]:
    """The parts whose serials the files give."""
    sightings: list[Sighting] = []
    for node in topology.nodes:
        sightings += _list_node_sightings(node)
    for switch in topology.switches:
        resource = resources.switch(switch.name)
        sightings.append(Sighting(Part.SWITCH, resource, switch.serial))
    for module in topology.modules:
        resource = resources.module(module.switch, module.name)
        sightings.append(Sighting(Part.TRANSCEIVER, resource, module.serial))
    return [sighting for sighting in sightings if sighting.identity]


def _list_node_sightings(node: NodePlace) -> Iterator[Sighting]:
    yield Sighting(Part.NODE, resources.node(node.name), node.serial)
    for gpu in node.gpus:
        resource = resources.gpu(node.name, gpu.pci)
        yield Sighting(Part.GPU, resource, gpu.serial, gpu.uuid)
    for nvswitch in node.nvswitches:
        resource = resources.nvswitch(node.name, nvswitch.pci)
        yield Sighting(Part.NVSWITCH, resource, nvswitch.serial, nvswitch.uuid)
    for nic in node.nics:
        resource = resources.nic(node.name, nic.device)
        yield Sighting(Part.NIC, resource, nic.serial, nic.mac, nic.firmware)
