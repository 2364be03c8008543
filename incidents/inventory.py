"""The inventory in the database: takes in what the files say, and answers where a node is reached.

Never deletes by itself: what has disappeared from the files is told, and a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction

from detectors import resources
from detectors.detector import Target
from detectors.expected import Expected
from incidents import cabling, inventory_file
from incidents.inventory_file import InventoryError
from incidents.models import Alias, Cable, Gpu, Node, Port, Switch
from incidents.topology import NodePlace, SwitchPlace, Topology

_NODE_FIELDS = ("address", "ssh_port", "role", "pod", "rack", "partitions")
_SWITCH_FIELDS = ("role", "address", "pod", "rail")


@dataclass
class Difference:
    """What an import does: one line each. `gone` stands in the database but not in the files; it stays."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def load(*paths: Path) -> Topology:
    """The files' inventory. Raises InventoryError naming every problem of every file."""
    return inventory_file.load(*paths)


def apply(topology: Topology, now: datetime, *, is_dry_run: bool = False) -> Difference:
    """Brings the database up to the inventory; applying it again changes nothing.

    A provisional machine that the inventory names becomes a known one. `is_dry_run` only tells.
    """
    difference = Difference()
    with transaction.atomic():
        nodes = _apply_nodes(topology, now, difference)
        _apply_gpus(topology, nodes, difference)
        switches = _apply_switches(topology, now, difference)
        _apply_cables(topology, switches, difference)
        _apply_aliases(topology, difference)
        if is_dry_run:
            transaction.set_rollback(True)
    cabling.forget()
    return difference


def target(node: str) -> Target | None:
    """Where the node answers SSH and what should be in it; None for one that the inventory does not hold."""
    row = Node.objects.filter(name=node, is_provisional=False).first()
    if row is None:
        return None
    gpus = tuple((str(gpu.index), gpu.pci_address) for gpu in row.gpus.order_by("index"))
    return Target(
        name=row.name,
        address=row.address or row.name,
        port=row.ssh_port,
        user=settings.KINTSUGI["KINTSUGI_SSH_USER"],
        expected=Expected(role=row.role, gpus=gpus),
    )


def pollable() -> list[str]:
    """The nodes of the inventory, in order."""
    return list(Node.objects.filter(is_provisional=False).order_by("name").values_list("name", flat=True))


def _apply_nodes(topology: Topology, now: datetime, difference: Difference) -> dict[str, Node]:
    known = {node.name: node for node in Node.objects.all()}
    fresh = [
        Node(
            name=place.name,
            in_service_since=now,
            is_provisional=False,
            **{name: _stored(getattr(place, name)) for name in _NODE_FIELDS},
        )
        for place in topology.nodes
        if place.name not in known
    ]
    Node.objects.bulk_create(fresh)
    difference.added += [f"node {node.name}" for node in fresh]
    for place in topology.nodes:
        if place.name in known:
            _update_node(known[place.name], place, now, difference)
    if any(place.given is None for place in topology.nodes):
        named = {place.name for place in topology.nodes}
        difference.gone += [f"node {name}" for name, node in known.items() if _is_gone(node, name, named)]
    return {**known, **{node.name: node for node in fresh}}


def _update_node(row: Node, place: NodePlace, now: datetime, difference: Difference) -> None:
    names = [name for name in _NODE_FIELDS if place.given is None or name in place.given]
    _update(row, {name: _stored(getattr(place, name)) for name in names}, f"node {row.name}", now, difference)


def _update(row: Node | Switch, values: dict[str, object], title: str, now: datetime, difference: Difference) -> None:
    """Writes what differs. A machine that only spoke to us so far is in service from now on."""
    if row.is_provisional:
        values = {**values, "is_provisional": False, "in_service_since": now}
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if not changed:
        return
    words = ", ".join(f"{name} {getattr(row, name)!r} -> {value!r}" for name, value in changed.items())
    difference.changed.append(f"{title}: {words}")
    for name, value in changed.items():
        setattr(row, name, value)
    row.save(update_fields=list(changed))


def _is_gone(row: Node | Switch, name: str, named: set[str]) -> bool:
    return name not in named and not row.is_provisional


def _stored(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _apply_gpus(topology: Topology, nodes: dict[str, Node], difference: Difference) -> None:
    known: dict[tuple[str, int], Gpu] = {
        (gpu.node.name, gpu.index): gpu for gpu in Gpu.objects.select_related("node").all()
    }
    fresh = []
    for place in topology.nodes:
        if place.given is not None and "gpus" not in place.given:
            continue
        for gpu in place.gpus:
            row = known.pop((place.name, gpu.index), None)
            values = {"pci_address": gpu.pci, "uuid": gpu.uuid, "serial": gpu.serial}
            if row is None:
                fresh.append(Gpu(node=nodes[place.name], index=gpu.index, **values))
            else:
                _update_gpu(row, values, difference)
        for (name, index), row in list(known.items()):
            if name == place.name:
                difference.gone.append(f"node {name} GPU {index} ({row.pci_address})")
    Gpu.objects.bulk_create(fresh)
    difference.added += [f"node {gpu.node.name} GPU {gpu.index} ({gpu.pci_address})" for gpu in fresh]


def _update_gpu(row: Gpu, values: dict[str, str], difference: Difference) -> None:
    """A name that the file leaves out stays: a poll may have learnt it."""
    changed = {name: value for name, value in values.items() if value and getattr(row, name) != value}
    if changed:
        words = ", ".join(f"{name} {getattr(row, name) or 'unknown'} -> {value}" for name, value in changed.items())
        difference.changed.append(f"node {row.node.name} GPU {row.index}: {words}")
        Gpu.objects.filter(pk=row.pk).update(**changed)


def _apply_switches(topology: Topology, now: datetime, difference: Difference) -> dict[str, Switch]:
    known = {switch.name: switch for switch in Switch.objects.all()}
    fresh = [
        Switch(
            name=place.name,
            in_service_since=now,
            is_provisional=False,
            **{name: getattr(place, name) for name in _SWITCH_FIELDS},
        )
        for place in topology.switches
        if place.name not in known
    ]
    Switch.objects.bulk_create(fresh)
    difference.added += [f"switch {switch.name}" for switch in fresh]
    for place in topology.switches:
        if place.name in known:
            _update(known[place.name], _switch_values(place), f"switch {place.name}", now, difference)
    named = {place.name for place in topology.switches}
    if named:
        difference.gone += [f"switch {name}" for name, row in known.items() if _is_gone(row, name, named)]
    return {**known, **{switch.name: switch for switch in fresh}}


def _switch_values(place: SwitchPlace) -> dict[str, object]:
    return {name: getattr(place, name) for name in _SWITCH_FIELDS}


def _apply_cables(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
    """A cable that was moved replaces the one that its ends had."""
    known = {(cable.a, cable.b): cable for cable in Cable.objects.all()}
    wanted = {(cable.a, cable.b) for cable in topology.cables}
    ends = {end for pair in wanted for end in pair}
    moved = [cable for pair, cable in known.items() if pair not in wanted and ends & set(pair)]
    Cable.objects.filter(pk__in=[cable.pk for cable in moved]).delete()
    difference.changed += [f"cable {cable} was moved" for cable in moved]
    fresh = [Cable(a=a, b=b) for a, b in sorted(wanted - set(known))]
    Cable.objects.bulk_create(fresh)
    difference.added += [f"cable {cable}" for cable in fresh]
    if wanted:
        lost = [cable for pair, cable in known.items() if pair not in wanted and cable not in moved]
        difference.gone += [f"cable {cable}" for cable in lost]
    _apply_ports(topology, switches, difference)


def _apply_ports(topology: Topology, switches: dict[str, Switch], difference: Difference) -> None:
    speeds = {
        end: cable.speed_gbps for cable in topology.cables for end in (cable.a, cable.b) if end.startswith("switch/")
    }
    known = {resources.port(port.switch.name, port.name): port for port in Port.objects.select_related("switch")}
    fresh = []
    for end, speed in speeds.items():
        switch, _, name = end.removeprefix("switch/").partition("/port/")
        if end not in known:
            fresh.append(Port(switch=switches[switch], name=name, speed_gbps=speed))
        elif known[end].speed_gbps != speed:
            difference.changed.append(f"port {end}: {known[end].speed_gbps} -> {speed} Gb/s")
            Port.objects.filter(pk=known[end].pk).update(speed_gbps=speed)
    Port.objects.bulk_create(fresh)
    difference.added += [f"port {port}" for port in fresh]


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


__all__ = ["Difference", "InventoryError", "apply", "load", "pollable", "target"]
