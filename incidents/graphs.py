"""The inventory as a graph, kept in memory until the inventory changes. Reads only, but for the count of changes."""

from __future__ import annotations

from collections import defaultdict

from django.db.models import F

from incidents.graph import Graph
from incidents.models import Cable, InventoryRevision, Module, Node, Port, PowerFeed, Rack, StoragePath, Switch
from incidents.prepared import Prepared
from incidents.topology import (
    CablePlace,
    FeedPlace,
    ModulePlace,
    NodePlace,
    RackPlace,
    StoragePlace,
    SwitchPlace,
    Topology,
)

_NAME = "inventory"
_kept: dict[int, Graph] = {}
_NUMBER = Prepared(lambda: InventoryRevision.objects.filter(name=_NAME).values_list("number"))


def current() -> Graph:
    """One small query while nothing has changed, whichever process changes it."""
    number = next((number for (number,) in _NUMBER.rows()), 0)
    known = _kept.get(number)
    if known is None:
        known = Graph(_read())
        _kept.clear()
        _kept[number] = known
    return known


def changed() -> None:
    """Called in the transaction that changes the inventory: every process reads it again after the commit."""
    InventoryRevision.objects.get_or_create(name=_NAME)
    InventoryRevision.objects.filter(name=_NAME).update(number=F("number") + 1)


def forget() -> None:
    """What this process keeps is of another database, or of a change that was taken back."""
    _kept.clear()


def _read() -> Topology:
    nodes = Node.objects.filter(is_provisional=False).values_list("name", "role", "pod", "rack")
    switches = Switch.objects.filter(is_provisional=False).values_list("name", "role", "pod", "rail", "rack")
    racks = Rack.objects.values_list("name", "pod", "feeds", "management_switch")
    paths = StoragePath.objects.values_list("mount", "source", "servers", "switches", "nics", "roles")
    return Topology(
        nodes=tuple(NodePlace(name=name, role=role, pod=pod, rack=rack) for name, role, pod, rack in nodes),
        switches=tuple(
            SwitchPlace(name=name, role=role, pod=pod, rail=rail, rack=rack) for name, role, pod, rail, rack in switches
        ),
        cables=tuple(CablePlace(*row) for row in Cable.objects.values_list("a", "b", "speed_gbps")),
        modules=_modules(),
        racks=tuple(RackPlace(name, pod, tuple(feeds), management) for name, pod, feeds, management in racks),
        feeds=tuple(FeedPlace(name) for name in PowerFeed.objects.values_list("name", flat=True)),
        storage=tuple(StoragePlace(mount, source, *(tuple(each) for each in lists)) for mount, source, *lists in paths),
    )


def _modules() -> tuple[ModulePlace, ...]:
    """Without the kind and serial, which say nothing of where a port is."""
    ports: dict[int, list[str]] = defaultdict(list)
    rows = Port.objects.filter(module__isnull=False).order_by("first_lane", "pk")
    for module, port in rows.values_list("module_id", "name"):
        ports[module or 0].append(port)
    modules = Module.objects.values_list("pk", "switch__name", "name")
    return tuple(ModulePlace(switch, name, tuple(ports[pk])) for pk, switch, name in modules)
