"""Brings the inventory's tables up to what files, or machines, say. The only writer of them besides the ledger.

Never deletes by itself: what has disappeared from the files is told, and a person decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import models, transaction

from detectors import resources
from incidents import graphs, ledger
from incidents.ledger import Sighting
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
from incidents.topology import NodePlace, Part, SwitchPlace, Topology

_NODE_FIELDS = ("address", "ssh_port", "bmc_address", "role", "pod", "rack", "partitions", "gpu_count")
_SWITCH_FIELDS = ("role", "address", "pod", "rail", "rack", "ssh_port", "snmp_port", "snmp_engine_id")
_NIC_FIELDS = ("role", "also", "rail", "speed_gbps", "mtu", "address")
_PORT_FIELDS = ("speed_gbps", "mtu", "fec", "is_autonegotiated", "is_admin_up")


@dataclass
class Difference:
    """What an import does: one line each. `gone` stands in the database but not in the files; it stays."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed)


@dataclass
class _Wanted:
    """What one table should hold. `learnt` fields are left as they are where the files say nothing of them."""

    kind: str
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)
    learnt: frozenset[str] = frozenset()


def apply(topology: Topology, now: datetime, *, is_dry_run: bool = False) -> Difference:
    """Brings the database up to the inventory; applying it again changes nothing.

    A provisional machine that the inventory names becomes a known one. `is_dry_run` only tells.
    """
    difference = Difference()
    with transaction.atomic():
        nodes = _apply_nodes(topology, now, difference)
        switches = _apply_switches(topology, now, difference)
        _apply_node_parts(topology, nodes, difference)
        _apply_modules(topology, switches, difference)
        _apply_cables(topology, difference)
        _apply_ports(topology, switches, difference)
        _apply_places(topology, difference)
        _apply_aliases(topology, difference)
        ledger.settle(_sightings(topology), now, why="the inventory says so")
        if difference.added or difference.changed:
            graphs.changed()
        if is_dry_run:
            transaction.set_rollback(True)
    graphs.forget()
    return difference


def _apply_nodes(topology: Topology, now: datetime, difference: Difference) -> dict[str, Node]:
    known = {node.name: node for node in Node.objects.all()}
    fresh = [
        Node(
            name=place.name,
            in_service_since=now,
            is_provisional=False,
            serial=place.serial,
            **{name: _stored(getattr(place, name)) for name in _NODE_FIELDS},
        )
        for place in topology.nodes
        if place.name not in known
    ]
    Node.objects.bulk_create(fresh)
    difference.added += [f"node {node.name}" for node in fresh]
    for place in topology.nodes:
        if place.name in known:
            _update_machine(known[place.name], _node_values(place), f"node {place.name}", now, difference)
    if any(place.given is None for place in topology.nodes):
        named = {place.name for place in topology.nodes}
        difference.gone += [f"node {name}" for name, node in known.items() if _is_gone(node, name, named)]
    return {**known, **{node.name: node for node in fresh}}


def _node_values(place: NodePlace) -> dict[str, Any]:
    names = [name for name in _NODE_FIELDS if place.given is None or name in place.given]
    values = {name: _stored(getattr(place, name)) for name in names}
    if place.given is None and place.gpu_count is None:
        values.pop("gpu_count")  # Slurm may have said it
    if place.given is None and not place.address:  # so may a file of addresses
        values = {name: value for name, value in values.items() if name not in ("address", "ssh_port")}
    if place.given is None and not place.bmc_address:  # and may one of controllers
        values.pop("bmc_address")
    return {**values, **({"serial": place.serial} if place.serial else {})}


def _apply_switches(topology: Topology, now: datetime, difference: Difference) -> dict[str, Switch]:
    known = {switch.name: switch for switch in Switch.objects.all()}
    fresh = [
        Switch(name=place.name, in_service_since=now, is_provisional=False, **_switch_values(place))
        for place in topology.switches
        if place.name not in known
    ]
    Switch.objects.bulk_create(fresh)
    difference.added += [f"switch {switch.name}" for switch in fresh]
    for place in topology.switches:
        if place.name in known:
            _update_machine(known[place.name], _switch_values(place), f"switch {place.name}", now, difference)
    named = {place.name for place in topology.switches}
    if named:
        difference.gone += [f"switch {name}" for name, row in known.items() if _is_gone(row, name, named)]
    return {**known, **{switch.name: switch for switch in fresh}}


def _switch_values(place: SwitchPlace) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(place, name) for name in _SWITCH_FIELDS}
    return {**values, **({"serial": place.serial} if place.serial else {})}


def _update_machine(
    row: Node | Switch, values: dict[str, Any], title: str, now: datetime, difference: Difference
) -> None:
    """Writes what differs. A machine that only spoke to us so far is in service from now on."""
    if row.is_provisional:
        values = {**values, "is_provisional": False, "in_service_since": now}
    _update(row, values, title, difference)


def _update(row: models.Model, values: Mapping[str, Any], title: str, difference: Difference) -> None:
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if not changed:
        return
    words = ", ".join(f"{name} {_said(getattr(row, name))} -> {_said(value)}" for name, value in changed.items())
    difference.changed.append(f"{title}: {words}")
    for name, value in changed.items():
        setattr(row, name, value)
    row.save(update_fields=list(changed))


def _said(value: object) -> str:
    return "unknown" if value is None else repr(value)


def _is_gone(row: Node | Switch, name: str, named: set[str]) -> bool:
    return name not in named and not row.is_provisional


def _stored(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _bring(known: dict[Any, Any], wanted: _Wanted, make: Any, difference: Difference) -> list[Any]:
    """Adds and updates rows by key. `make(key, values)` makes an unsaved row; returns those that were added."""
    fresh = []
    for key, values in wanted.rows.items():
        row = known.get(key)
        if row is None:
            fresh.append(make(key, values))
            continue
        said = {name: value for name, value in values.items() if name not in wanted.learnt or value not in ("", None)}
        _update(row, said, f"{wanted.kind} {row}", difference)
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
            gpus.rows[(node.name, gpu.index)] = {"pci_address": gpu.pci, "uuid": gpu.uuid, "serial": gpu.serial}
        for item in node.nvswitches:
            nvswitches.rows[(node.name, item.pci)] = {"uuid": item.uuid, "serial": item.serial}
        for nic in node.nics:
            names = ("netdev", "mac", "serial", "firmware", *(() if node.is_observed else _NIC_FIELDS))
            values = {"pci_address": nic.pci, **{name: getattr(nic, name) for name in names}}
            nics.rows[(node.name, nic.device)] = values
    for wanted, table, key, given in (
        (gpus, Gpu, "index", "gpus"),
        (nvswitches, NvSwitch, "pci_address", "nvswitches"),
        (nics, Nic, "device", "nics"),
    ):
        known = {(row.node.name, getattr(row, key)): row for row in table.objects.select_related("node")}
        _bring(known, wanted, _part_maker(table, key, nodes), difference)
        # A row without any part of the kind says nothing of them: the machines are asked.
        told = {p.name for p in topology.nodes if getattr(p, given) or (p.given is not None and given in p.given)}
        lost = [row for at, row in known.items() if at[0] in told and at not in wanted.rows]
        difference.gone += [f"{wanted.kind} {row}" for row in lost]


def _part_maker(table: Any, key: str, machines: Mapping[str, models.Model]) -> Any:
    owner = "switch" if table in (Module, Port) else "node"
    return lambda at, values: table(**{owner: machines[at[0]], key: at[1]}, **values)


def _apply_modules(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
    wanted = _Wanted("switch", learnt=frozenset({"serial"}))
    for module in topology.modules:
        values = {"kind": module.kind, "lanes": module.lanes, "serial": module.serial}
        wanted.rows[(module.switch, module.name)] = values
    known = {(row.switch.name, row.name): row for row in Module.objects.select_related("switch")}
    _bring(known, wanted, _part_maker(Module, "name", switches), difference)
    if wanted.rows:
        difference.gone += [f"switch {row}" for at, row in known.items() if at not in wanted.rows]


def _apply_cables(topology: Topology, difference: Difference) -> None:
    """A cable that was moved, or whose speed is another, replaces the one that its ends had."""
    known = {(cable.a, cable.b): cable for cable in Cable.objects.all()}
    pairs = {
        (cable.b, cable.a) if (cable.b, cable.a) in known else (cable.a, cable.b): cable for cable in topology.cables
    }
    wanted = {pair: cable.speed_gbps for pair, cable in pairs.items()}
    ends = {end for pair in wanted for end in pair}
    moved = [cable for pair, cable in known.items() if pair not in wanted and ends & set(pair)]
    same = [(known[pair], speed) for pair, speed in wanted.items() if pair in known]
    other = [cable for cable, speed in same if speed is not None and cable.speed_gbps != speed]
    Cable.objects.filter(pk__in=[cable.pk for cable in [*moved, *other]]).delete()
    difference.changed += [f"cable {cable} was moved" for cable in moved]
    for cable in other:
        speed = wanted[(cable.a, cable.b)]
        difference.changed.append(f"cable {cable}: {_said(cable.speed_gbps)} -> {_said(speed)} Gb/s")
    fresh = [Cable(a=a, b=b, speed_gbps=wanted[(a, b)]) for a, b in sorted(set(wanted) - set(known))]
    anew = [Cable(a=cable.a, b=cable.b, speed_gbps=wanted[(cable.a, cable.b)]) for cable in other]
    Cable.objects.bulk_create([*fresh, *anew])
    difference.added += [f"cable {cable}" for cable in fresh]
    if wanted and not any(node.is_observed for node in topology.nodes):  # a machine may be deaf on one port
        lost = [cable for pair, cable in known.items() if pair not in wanted and cable not in moved]
        difference.gone += [f"cable {cable}" for cable in lost]


def _apply_ports(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
    """Ports of cables, of modules, and those that are declared; a declared speed goes before the cable's."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cable in topology.cables:
        for end in (cable.a, cable.b):
            switch, is_port, name = end.removeprefix("switch/").partition("/port/")
            if end.startswith("switch/") and is_port:
                rows[(switch, name)] = {} if cable.speed_gbps is None else {"speed_gbps": cable.speed_gbps}
    modules = {(row.switch.name, row.name): row for row in Module.objects.select_related("switch")}
    for module in topology.modules:
        lanes = module.lanes // len(module.ports)
        for number, name in enumerate(module.ports):
            held = {"module_id": modules[(module.switch, module.name)].pk, "first_lane": number * lanes, "lanes": lanes}
            rows[(module.switch, name)] = {**rows.get((module.switch, name), {}), **held}
    for port in topology.ports:
        said = {name: getattr(port, name) for name in _PORT_FIELDS if getattr(port, name) not in (None, "")}
        rows[(port.switch, port.name)] = {**rows.get((port.switch, port.name), {}), **said}
    known = {(row.switch.name, row.name): row for row in Port.objects.select_related("switch")}
    _bring(known, _Wanted("port", rows), _part_maker(Port, "name", switches), difference)


def _apply_places(topology: Topology, difference: Difference) -> None:
    """Racks, feeds, storage paths and what is declared of roles."""
    tables: Sequence[tuple[str, Any, tuple[str, ...], Sequence[Any]]] = (
        ("feed", PowerFeed, ("name",), topology.feeds),
        ("rack", Rack, ("name",), topology.racks),
        ("mount", StoragePath, ("mount",), topology.storage),
        ("expectation", Expectation, ("kind", "role"), topology.roles),
    )
    for kind, table, key, places in tables:
        wanted = _Wanted(kind)
        for place in places:
            values = {name: _plain(value) for name, value in vars(place).items()}
            wanted.rows[tuple(values.pop(name) for name in key)] = values
        known = {tuple(getattr(row, name) for name in key): row for row in table.objects.all()}
        _bring(known, wanted, _place_maker(table, key), difference)
        if places:
            difference.gone += [f"{kind} {row}" for at, row in known.items() if at not in wanted.rows]


def _place_maker(table: Any, key: tuple[str, ...]) -> Any:
    return lambda at, values: table(**dict(zip(key, at, strict=True)), **values)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else _stored(value)


def _apply_aliases(topology: Topology, difference: Difference) -> None:
    known = {alias.name: alias for alias in Alias.objects.all()}
    fresh = [Alias(name=name, resource=path) for name, path in topology.aliases.items() if name not in known]
    Alias.objects.bulk_create(fresh)
    difference.added += [f"alias {alias}" for alias in fresh]
    for name, path in topology.aliases.items():
        row = known.get(name)
        if row is not None and row.resource != path:
            difference.changed.append(f"alias {name}: {row.resource} -> {path}")
            Alias.objects.filter(pk=row.pk).update(resource=path)


def _sightings(topology: Topology) -> list[Sighting]:
    """The parts whose serials the files give."""
    found: list[Sighting] = []
    for node in topology.nodes:
        found.append(Sighting(Part.NODE, resources.node(node.name), node.serial))
        found += [Sighting(Part.GPU, resources.gpu(node.name, g.pci), g.serial, g.uuid) for g in node.gpus]
        found += [
            Sighting(Part.NVSWITCH, resources.nvswitch(node.name, n.pci), n.serial, n.uuid) for n in node.nvswitches
        ]
        found += [
            Sighting(Part.NIC, resources.nic(node.name, n.device), n.serial, n.mac, n.firmware) for n in node.nics
        ]
    found += [Sighting(Part.SWITCH, resources.switch(switch.name), switch.serial) for switch in topology.switches]
    found += [Sighting(Part.TRANSCEIVER, resources.module(m.switch, m.name), m.serial) for m in topology.modules]
    return [sighting for sighting in found if sighting.identity]
