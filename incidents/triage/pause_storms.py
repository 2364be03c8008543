"""Cards that pause the network, concluded from the ports that stand still. Reads only.

`incidents.correlation.pause_frames` follows their trails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from incidents.correlation.conclusions import CONCLUDED_BY, make_conclusion
from incidents.correlation.pause_frames import CARD_STORM, SOURCE, STORM, find_sources
from incidents.inventory import graphs
from incidents.models import Fault
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase
from incidents.topology.graph import ALL_NODES

RULE = "pause"
_SHOWN = 3


def conclude(batch: TriageBatch, came: Iterable[FaultCase]) -> list[FaultEvent]:
    """The cards at the ends of the trails of what stands still now, unless they are known. No query
    without a storm."""
    if not any(case.row.fault_type == STORM for case in came):
        return []
    batch.require_lock([ALL_NODES])  # the card may stand in any pod
    rows = Fault.objects.active().filter(fault_type__in=(STORM, CARD_STORM, SOURCE))
    active = set(rows.values_list("fault_type", "resource"))
    for case in batch.faults.values():
        fault = (case.row.fault_type, case.row.resource)
        if case.row.is_active:
            active.add(fault)
        else:
            active.discard(fault)
    paused = {resource for fault_type, resource in active if fault_type == STORM}
    events = []
    for card, ports in sorted(find_sources(paused, graphs.get_current()).items()):
        is_known = (SOURCE, card) in active or (CARD_STORM, card) in active
        if not is_known:
            text = _format_evidence(batch, card, ports)
            events.append(_make_event(EventKind.RAISED, card, text, batch.now))
    return events


def find_ended(rows: Collection[Fault], now: datetime) -> list[FaultEvent]:
    """The ends of these conclusions: no port stands still any more because of the card."""
    if not rows:
        return []
    still = Fault.objects.active().filter(fault_type=STORM).values_list("resource", flat=True)
    found = find_sources(set(still), graphs.get_current())
    text = "no port stands still because of it any more"
    return [
        _make_event(EventKind.CLEARED, row.resource, text, now)
        for row in rows
        if row.resource not in found
    ]


def _format_evidence(batch: TriageBatch, card: str, ports: Collection[str]) -> str:
    shown = ", ".join(batch.format_resource(port) for port in sorted(ports)[:_SHOWN])
    more = f" and {len(ports) - _SHOWN} more" if len(ports) > _SHOWN else ""
    return (
        f"{shown}{more} stand still under pause frames; followed upstream over the cables they come"
        f" from {batch.format_resource(card)}, which nothing pauses."
    )


def _make_event(kind: EventKind, card: str, text: str, now: datetime) -> FaultEvent:
    event = make_conclusion(kind, SOURCE, card, text=text, now=now)
    event.attributes[CONCLUDED_BY] = RULE
    return event
