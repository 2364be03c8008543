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
class Difference:
    """What an import does: one line each. `gone` stands in the database but not in the files; it
    stays."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed)


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
    """
    difference = Difference()
    with transaction.atomic():
        # Before the rows of machines, as everywhere.
        upsert.lock_placement()
        nodes = _apply_nodes(topology, now, difference)
        switches = _apply_switches(topology, now, difference)
        _apply_node_parts(topology, nodes, difference)
        _apply_modules(topology, switches, difference)
        _apply_cables(topology, difference)
        _apply_ports(topology, switches, difference)
        _apply_places(topology, difference)
        _apply_aliases(topology, difference)
        part_history.settle(_list_sightings(topology), now, why="the inventory says so")
        if difference.added or difference.changed:
            graphs.mark_changed()
        if is_dry_run:
            transaction.set_rollback(True)
    graphs.forget()
    return difference


def _apply_nodes(topology: Topology, now: datetime, difference: Difference) -> dict[str, Node]:
    known = {node.name: node for node in Node.objects.all()}
    fresh = [_make_node(place, now) for place in topology.nodes if place.name not in known]
    Node.objects.bulk_create(fresh)
    difference.added += [f"node {node.name}" for node in fresh]
    for place in topology.nodes:
        node = known.get(place.name)
        if node is not None:
            _update_machine(node, _get_node_values(place), f"node {place.name}", now, difference)
    if any(place.given is None for place in topology.nodes):
        listed = {place.name for place in topology.nodes}
        gone = [node for node in known.values() if _is_gone(node, listed)]
        difference.gone += [f"node {node.name}" for node in gone]
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


def _apply_switches(topology: Topology, now: datetime, difference: Difference) -> dict[str, Switch]:
    known = {switch.name: switch for switch in Switch.objects.all()}
    fresh = []
    for place in topology.switches:
        if place.name not in known:
            values = _get_switch_values(place)
            switch = Switch(name=place.name, in_service_since=now, is_provisional=False, **values)
            fresh.append(switch)
    Switch.objects.bulk_create(fresh)
    difference.added += [f"switch {switch.name}" for switch in fresh]
    for place in topology.switches:
        row = known.get(place.name)
        if row is not None:
            _update_machine(row, _get_switch_values(place), f"switch {place.name}", now, difference)
    listed = {place.name for place in topology.switches}
    if listed:
        gone = [switch for switch in known.values() if _is_gone(switch, listed)]
        difference.gone += [f"switch {switch.name}" for switch in gone]
    return {**known, **{switch.name: switch for switch in fresh}}


def _get_switch_values(place: SwitchPlace) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(place, name) for name in _SWITCH_FIELDS}
    if place.serial:
        values["serial"] = place.serial
    return values


def _update_machine(
    row: Node | Switch, values: dict[str, Any], title: str, now: datetime, difference: Difference
) -> None:
    """Writes what differs. A machine that only spoke to us so far is in service from now on."""
    if row.is_provisional:
        values = {**values, "is_provisional": False, "in_service_since": now}
    _update(row, values, title, difference)


def _update(
    row: models.Model, values: Mapping[str, Any], title: str, difference: Difference
) -> None:
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if not changed:
        return
    steps = []
    for name, value in changed.items():
        old = _format_value(getattr(row, name))
        steps.append(f"{name} {old} -> {_format_value(value)}")
        setattr(row, name, value)
    difference.changed.append(f"{title}: {', '.join(steps)}")
    row.save(update_fields=list(changed))


def _format_value(value: object) -> str:
    return "unknown" if value is None else repr(value)


def _is_gone(row: Node | Switch, listed: set[str]) -> bool:
    return row.name not in listed and not row.is_provisional


def _get_stored_form(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _add_and_update(
    known: dict[Any, Any], wanted: _Wanted, make: Any, difference: Difference
) -> list[Any]:
    """Adds and updates rows by key. `make(key, values)` makes an unsaved row; returns those that
    were added."""
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
        _update(row, given, f"{wanted.kind} {row}", difference)
    if fresh:
        type(fresh[0]).objects.bulk_create(fresh)
    difference.added += [f"{wanted.kind} {row}" for row in fresh]
    return fresh


def _apply_node_parts(topology: Topology, nodes: dict[str, Node], difference: Difference) -> None:
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
        _add_and_update(known, wanted, _get_part_maker(table, key, nodes), difference)
        # A row without any part of the kind says nothing of them: the machines are asked.
        listing = {place.name for place in topology.nodes if _has_list(place, field_name)}
        for (node_name, name), row in known.items():
            if node_name in listing and (node_name, name) not in wanted.rows:
                difference.gone.append(f"{wanted.kind} {row}")


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


def _apply_modules(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
    wanted = _Wanted("switch", learnt=frozenset({"serial"}))
    for module in topology.modules:
        values = {"kind": module.kind, "lanes": module.lanes, "serial": module.serial}
        wanted.rows[(module.switch, module.name)] = values
    known = {(row.switch.name, row.name): row for row in Module.objects.select_related("switch")}
    _add_and_update(known, wanted, _get_part_maker(Module, "name", switches), difference)
    if not wanted.rows:
        return
    for place, row in known.items():
        if place not in wanted.rows:
            difference.gone.append(f"switch {row}")


def _apply_cables(topology: Topology, difference: Difference) -> None:
    """Adds the cables that are new, and replaces those that were moved or run at another speed."""
    known = {(cable.a, cable.b): cable for cable in Cable.objects.all()}
    speeds = _get_cable_speeds(topology, known)
    unlisted = [cable for ends, cable in known.items() if ends not in speeds]
    used_ends = set(chain.from_iterable(speeds))
    moved = [cable for cable in unlisted if cable.a in used_ends or cable.b in used_ends]
    listed = [known[ends] for ends in speeds if ends in known]
    outdated = [cable for cable in listed if _is_outdated(cable, speeds[cable.a, cable.b])]

    new_ends = sorted(set(speeds) - set(known))
    fresh = [Cable(a=a, b=b, speed_gbps=speeds[a, b]) for a, b in new_ends]
    replacements = []
    for cable in outdated:
        speed = speeds[cable.a, cable.b]
        replacements.append(Cable(a=cable.a, b=cable.b, speed_gbps=speed))
    replaced = [cable.pk for cable in [*moved, *outdated]]
    Cable.objects.filter(pk__in=replaced).delete()
    Cable.objects.bulk_create([*fresh, *replacements])

    difference.added += [f"cable {cable}" for cable in fresh]
    difference.changed += [f"cable {cable} was moved" for cable in moved]
    for cable, replacement in zip(outdated, replacements, strict=True):
        old = _format_value(cable.speed_gbps)
        new = _format_value(replacement.speed_gbps)
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


def _apply_ports(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
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
    modules = {(row.switch.name, row.name): row for row in Module.objects.select_related("switch")}
    for module in topology.modules:
        lanes = module.lanes // len(module.ports)
        module_id = modules[(module.switch, module.name)].pk
        for number, name in enumerate(module.ports):
            values = rows.setdefault((module.switch, name), {})
            values.update(module_id=module_id, first_lane=number * lanes, lanes=lanes)
    for port in topology.ports:
        declared = {name: getattr(port, name) for name in _PORT_FIELDS}
        given = {name: value for name, value in declared.items() if value not in (None, "")}
        rows.setdefault((port.switch, port.name), {}).update(given)
    known = {(row.switch.name, row.name): row for row in Port.objects.select_related("switch")}
    _add_and_update(
        known, _Wanted("port", rows), _get_part_maker(Port, "name", switches), difference
    )


def _apply_places(topology: Topology, difference: Difference) -> None:
    """Racks, feeds, storage paths and what is declared of roles."""
    _apply_table("feed", PowerFeed, ("name",), topology.feeds, difference)
    _apply_table("rack", Rack, ("name",), topology.racks, difference)
    _apply_table("mount", StoragePath, ("mount",), topology.storage, difference)
    _apply_table("expectation", Expectation, ("kind", "role"), topology.roles, difference)


def _apply_table(
    kind: str, table: Any, key: tuple[str, ...], places: Sequence[Any], difference: Difference
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
    _add_and_update(known, wanted, _get_place_maker(table, key), difference)
    if places:
        gone = [row for identity, row in known.items() if identity not in wanted.rows]
        difference.gone += [f"{kind} {row}" for row in gone]


def _get_place_maker(table: Any, key: tuple[str, ...]) -> Any:
    return lambda at, values: table(**dict(zip(key, at, strict=True)), **values)


def _get_plain_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else _get_stored_form(value)


def _apply_aliases(topology: Topology, difference: Difference) -> None:
    known = {alias.name: alias for alias in Alias.objects.all()}
    fresh = []
    for name, path in topology.aliases.items():
        if name not in known:
            fresh.append(Alias(name=name, resource=path))
    Alias.objects.bulk_create(fresh)
    difference.added += [f"alias {alias}" for alias in fresh]
    for name, path in topology.aliases.items():
        row = known.get(name)
        if row is not None and row.resource != path:
            difference.changed.append(f"alias {name}: {row.resource} -> {path}")
            Alias.objects.filter(pk=row.pk).update(resource=path)


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
