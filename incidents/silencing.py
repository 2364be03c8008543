"""Silences, maintenance windows and shelves: what is not told for a time. The only writer of `Silence`."""

from __future__ import annotations

from datetime import datetime

from incidents.board import Board
from incidents.changes import Change


def apply(board: Board) -> None:
    """Marks incidents of this board that a window in force keeps from people, and unmarks those that outgrew it."""


def end_due(now: datetime) -> list[Change]:
    """Ends windows whose time has come, and announces what is still active behind them."""
    return []
