"""What many faults together show and no single one says: a switch, a rack, a file system, a job. Reads only.

Called inside ingest's transaction, so that a cause is concluded before anything is started for its effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from detectors.faults import FaultEvent
from incidents.board import Board
from incidents.items import Item


def concluded(board: Board, items: Sequence[Item]) -> list[FaultEvent]:
    """What this batch's faults, with those that stand already, add up to; also holds repairs behind a suspect."""
    return []


def ended(now: datetime) -> list[FaultEvent]:
    """The ends of what was concluded before, for the sweep. One query while nothing stands."""
    return []
