"""What else goes down when a transceiver is pulled: the other ends on the same module. Reads
only."""

from __future__ import annotations

from dataclasses import dataclass

from detectors import resources
from incidents.inventory import graphs
from incidents.models import Module, Port


@dataclass(frozen=True)
class Carried:
    """`module` as its resource path, empty where the inventory does not know it; `ends` are the far
    ends of its ports.

    `nodes` are the names of the nodes among them, in order.
    """

    module: str
    ends: tuple[str, ...]
    nodes: tuple[str, ...]


def get_carried_with(resource: str) -> Carried:
    """Of a NIC, a switch's port or a module: what one hand at its switch's end takes down."""
    graph = graphs.get_current()
    near = resource
    if not resource.startswith("switch/"):
        near = graph.find_peer(resource) or ""
    module = _get_module(near)
    module_path = ""
    ports = [near]
    if module is not None:
        module_path = module.resource
        ports = [port.resource for port in module.ports.select_related("switch")]
    far_ends = (graph.find_peer(port) for port in ports if port)
    ends = {end for end in far_ends if end} or {resource}
    nodes = {end.split("/")[1] for end in {*ends, resource} if end.startswith("node/")}
    return Carried(module_path, tuple(sorted(ends)), tuple(sorted(nodes)))


def _get_module(near: str) -> Module | None:
    parts = near.split("/", 3)
    if len(parts) < 4:
        return None
    _, switch, kind, name = parts
    if near == resources.module(switch, name):
        return (
            Module.objects.filter(switch__name=switch, name=name).select_related("switch").first()
        )
    port = (
        Port.objects.filter(switch__name=switch, name=name).select_related("module__switch").first()
    )
    return port.module if port is not None and kind == "port" else None
