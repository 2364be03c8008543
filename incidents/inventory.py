"""The inventory: what should be there, where it is reached, and which part is in which slot.

One door for the rest of Kintsugi; the work is done in the `inventory_*` files, `ledger` and `graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from detectors.faults import Observation
from incidents import inventory_file, ledger, peers
from incidents.inventory_apply import Difference, apply
from incidents.inventory_file import InventoryError
from incidents.inventory_targets import pollable, target, targets
from incidents.ledger import Entry
from incidents.topology import Topology

__all__ = ["Difference", "InventoryError", "apply", "learn", "load", "pollable", "target", "targets"]


def learn(observations: Sequence[Observation], now: datetime) -> list[Entry]:
    """Takes in what polls saw of parts and versions; returns parts that came, moved or were replaced.

    Two queries for a whole round of many machines while nothing has changed. Any observations may be given.
    """
    peers.learn(observations)
    return ledger.learn(observations, now)


def load(*paths: Path) -> Topology:
    """The files' inventory. Raises InventoryError naming every problem of every file."""
    return inventory_file.load(*paths)
