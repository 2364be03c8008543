"""The inventory as a graph, kept in memory until the inventory changes. Reads only, but for the
count of changes."""

from __future__ import annotations

from collections import defaultdict

from django.db.models import F

from incidents.db.prepared import Prepared
from incidents.models import (
    Cable,
    InventoryRevision,
    Module,
    Node,
    Port,
    PowerFeed,
    Rack,
    StoragePath,
    Switch,
)
from incidents.topology.graph import Graph
from incidents.topology.topology import (
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


def get_current() -> Graph:
    """One small query while nothing has changed, whichever process changes it."""
    number = next((number for (number,) in _NUMBER.rows()), 0)
    known = _kept.get(number)
    if known is None:
        known = Graph(_read())
        _kept.clear()
        _kept[number] = known
    return known


def mark_changed() -> None:
    """Called in the transaction that changes the inventory: every process reads it again after the
    commit."""
    InventoryRevision.objects.get_or_create(name=_NAME)
    InventoryRevision.objects.filter(name=_NAME).update(number=F("number") + 1)


def forget() -> None:
    """What this process keeps is of another database, or of a change that was taken back."""
    _kept.clear()


def _read() -> Topology:
    return Topology(
        nodes=_load_nodes(),
        switches=_load_switches(),
        cables=_load_cables(),
        modules=_load_modules(),
        racks=_load_racks(),
        feeds=_load_feeds(),
        storage=_load_storage_paths(),
    )


def _load_nodes() -> tuple[NodePlace, ...]:
    known = Node.objects.filter(is_provisional=False)
    return tuple(NodePlace(**row) for row in known.values("name", "role", "pod", "rack"))


def _load_switches() -> tuple[SwitchPlace, ...]:
    known = Switch.objects.filter(is_provisional=False)
    rows = known.values("name", "role", "pod", "rail", "rack")
    return tuple(SwitchPlace(**row) for row in rows)


def _load_cables() -> tuple[CablePlace, ...]:
    return tuple(CablePlace(*row) for row in Cable.objects.values_list("a", "b", "speed_gbps"))


def _load_feeds() -> tuple[FeedPlace, ...]:
    return tuple(FeedPlace(name) for name in PowerFeed.objects.values_list("name", flat=True))


def _load_racks() -> tuple[RackPlace, ...]:
    rows = Rack.objects.values_list("name", "pod", "feeds", "management_switch")
    racks = []
    for name, pod, feeds, switch in rows:
        racks.append(RackPlace(name, pod, tuple(feeds), switch))
    return tuple(racks)


def _load_storage_paths() -> tuple[StoragePlace, ...]:
    rows = StoragePath.objects.order_by("mount").values_list(
        "mount", "source", "servers", "switches", "nics", "roles"
    )
    paths = []
    for mount, source, *lists in rows:
        servers, switches, nics, roles = map(tuple, lists)
        paths.append(StoragePlace(mount, source, servers, switches, nics, roles))
    return tuple(paths)


def _load_modules() -> tuple[ModulePlace, ...]:
    """Without the kind and serial, which say nothing of where a port is."""
    ports: dict[int, list[str]] = defaultdict(list)
    rows = Port.objects.filter(module__isnull=False).order_by("first_lane", "pk")
    for module, port in rows.values_list("module_id", "name"):
        ports[module or 0].append(port)
    modules = []
    for pk, switch, name in Module.objects.values_list("pk", "switch__name", "name"):
        modules.append(ModulePlace(switch, name, tuple(ports[pk])))
    return tuple(modules)
