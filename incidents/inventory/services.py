"""The inventory: what should be there, where it is reached, and which part is in which slot.

What the rest of Kintsugi calls; the work is done in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from detectors.faults import Observation
from incidents.inventory import part_history, peers
from incidents.inventory.apply import apply
from incidents.inventory.part_history import PartEntry
from incidents.inventory.plan import Difference
from incidents.inventory.targets import get_target, list_pollable, list_targets
from incidents.topology import inventory_file
from incidents.topology.inventory_file import InventoryError
from incidents.topology.topology import Topology

__all__ = [
    "Difference",
    "InventoryError",
    "apply",
    "get_target",
    "list_pollable",
    "list_targets",
    "load",
    "store_observations",
]


def store_observations(
    observations: Sequence[Observation], now: datetime, *, may_move_parts: bool = True
) -> list[PartEntry]:
    """Takes in what polls saw of parts and versions; returns parts that came, moved or were
    replaced, and what was not believed of parts.

    Two queries for a whole round of many machines while nothing has changed. Any observations may
    be given. `may_move_parts`: not for what a node says of itself, which is no word on another's.
    """
    peers.store_values(observations)
    return part_history.store_parts(observations, now, may_move=may_move_parts)


def load(*paths: Path) -> Topology:
    """The files' inventory. Raises InventoryError naming every problem of every file."""
    return inventory_file.load(*paths)
