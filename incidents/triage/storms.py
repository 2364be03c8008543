"""Cards that pause the network, concluded from the ports that stand still. Reads only.

`incidents.correlation.pause_frames` follows their trails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from incidents.correlation.conclusions import make_conclusion as conclusion
from incidents.correlation.pause_frames import CARD_STORM, SOURCE, STORM, sources
from incidents.inventory import graphs
from incidents.models import Fault
from incidents.state.board import Board
from incidents.state.cases import FaultCase

RULE = "pause"
_SHOWN = 3


def conclude(board: Board, came: Iterable[FaultCase]) -> list[FaultEvent]:
    """The cards at the ends of the trails of what stands still now, unless they are known. No query
    without a storm."""
    if not any(case.row.fault_type == STORM for case in came):
        return []
    rows = Fault.objects.active().filter(fault_type__in=(STORM, CARD_STORM, SOURCE))
    standing = {
        (fault_type, resource)
        for fault_type, resource in rows.values_list("fault_type", "resource")
    }
    for case in board.faults.values():
        mark = (case.row.fault_type, case.row.resource)
        standing = standing | {mark} if case.row.is_active else standing - {mark}
    found = sources({resource for kind, resource in standing if kind == STORM}, graphs.current())
    return [
        _event(EventKind.RAISED, card, _said(board, card, ports), board.now)
        for card, ports in sorted(found.items())
        if not {(SOURCE, card), (CARD_STORM, card)} & standing
    ]


def ended(rows: Collection[Fault], now: datetime) -> list[FaultEvent]:
    """The ends of these conclusions: no port stands still any more because of the card."""
    if not rows:
        return []
    still = Fault.objects.active().filter(fault_type=STORM).values_list("resource", flat=True)
    found = sources(set(still), graphs.current())
    text = "no port stands still because of it any more"
    return [
        _event(EventKind.CLEARED, row.resource, text, now)
        for row in rows
        if row.resource not in found
    ]


def _said(board: Board, card: str, ports: Collection[str]) -> str:
    named = ", ".join(board.format_resource(port) for port in sorted(ports)[:_SHOWN])
    more = f" and {len(ports) - _SHOWN} more" if len(ports) > _SHOWN else ""
    return (
        f"{named}{more} stand still under pause frames; followed upstream over the cables they come"
        f" from {board.format_resource(card)}, which nothing pauses."
    )


def _event(kind: EventKind, card: str, text: str, now: datetime) -> FaultEvent:
    event = conclusion(kind, SOURCE, card, text=text, now=now)
    event.attributes["rule"] = RULE
    return event
