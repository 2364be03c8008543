"""Machines that only spoke to us get a row of their own: full incidents, never acted upon."""

from __future__ import annotations

from detectors import resources
from incidents.db import upsert
from incidents.inventory import aliases
from incidents.models import Node, Switch

_LONGEST_NAME = 64


def add_provisional(names: aliases.Names, owners: set[str]) -> None:
    """Gives those of these owners (`node/gn042`) that no inventory knows a row, and puts it into
    `names`."""
    unknown = [owner.partition("/") for owner in sorted(owners) if _is_unknown(names, owner)]
    nodes = [name for kind, _, name in unknown if kind == "node"]
    switches = [name for kind, _, name in unknown if kind == "switch"]
    if nodes:
        fresh = [Node(name=name, is_provisional=True, role="unknown") for name in nodes]
        upsert.insert(fresh, ignore_conflicts=True)
        names.nodes.update({node.name: node for node in Node.objects.filter(name__in=nodes)})
    if switches:
        rows = [Switch(name=name, is_provisional=True, role="unknown") for name in switches]
        upsert.insert(rows, ignore_conflicts=True)
        names.switches.update(
            {switch.name: switch for switch in Switch.objects.filter(name__in=switches)}
        )


def _is_unknown(names: aliases.Names, owner: str) -> bool:
    name = owner.partition("/")[2]
    if name == resources.UNKNOWN_HOST or len(name) > _LONGEST_NAME:
        return False
    return names.find_node(owner) is None and names.find_switch(owner) is None
