"""The inventory: what should be there, where it is reached, and which part is in which slot.

One door for the rest of Kintsugi; the work is done in the `inventory_*` files, `ledger` and `cabling`.
"""

from __future__ import annotations

from pathlib import Path

from incidents import inventory_file
from incidents.inventory_apply import Difference, apply
from incidents.inventory_file import InventoryError
from incidents.inventory_targets import pollable, target, targets
from incidents.ledger import learn
from incidents.topology import Topology

__all__ = ["Difference", "InventoryError", "apply", "learn", "load", "pollable", "target", "targets"]


def load(*paths: Path) -> Topology:
    """The files' inventory. Raises InventoryError naming every problem of every file."""
    return inventory_file.load(*paths)
