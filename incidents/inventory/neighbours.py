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


def carried_with(resource: str) -> Carried:
    """Of a NIC, a switch's port or a module: what one hand at its switch's end takes down."""
    near = resource if resource.startswith("switch/") else graphs.current().peer(resource) or ""
    module = _module(near)
    ports = (
        [port.resource for port in module.ports.select_related("switch")]
        if module is not None
        else [near]
    )
    ends = [end for port in ports if port and (end := graphs.current().peer(port))] or [resource]
    nodes = sorted({end.split("/")[1] for end in {*ends, resource} if end.startswith("node/")})
    return Carried(
        module.resource if module is not None else "", tuple(sorted(set(ends))), tuple(nodes)
    )


def _module(near: str) -> Module | None:
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
