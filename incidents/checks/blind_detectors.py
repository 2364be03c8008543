"""Detectors that give no usable answer: one fault for each detector, on however many machines.
Reads only.

A missing sudo line or an exporter that is not deployed silences one detector on a thousand nodes;
that is one cause and one message. What is silent where stands in the single faults, which open no
incident of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detectors import resources
from detectors.faults import EventKind, FaultEvent
from incidents.checks import overload
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Prepared
from incidents.faults.fault_views import BLIND_DETECTOR, SILENT_DETECTOR
from incidents.models import Evidence, Fault
from incidents.polling import polling

# Two periods of polls after the first: by then every machine on which it is silent has said so.
GATHERED = timedelta(minutes=2)
_SHOWN = 5
_STANDING = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(fault_type__in=(SILENT_DETECTOR, BLIND_DETECTOR))
        .values_list("pk", "fault_type", "qualifier", "owner", "observed_at")
    )
)


@dataclass
class Silent:
    """One detector's silence: the machines, and since when the first of them."""

    machines: list[str] = field(default_factory=list)
    since: datetime | None = None
    fault_id: int = 0

    def add(self, owner: str, at: datetime) -> None:
        self.machines.append(resources.host_of(owner) or owner)
        self.since = at if self.since is None else min(self.since, at)

    def is_gathered(self, now: datetime) -> bool:
        return self.since is not None and self.since <= now - GATHERED


def evaluate_blindness(now: datetime) -> list[FaultEvent]:
    """The beginnings and ends of blindness. One query while every detector answers."""
    silent: dict[str, Silent] = {}
    blind: set[str] = set()
    for pk, fault_type, detector, owner, at in _STANDING.rows():
        if fault_type == BLIND_DETECTOR:
            blind.add(detector)
        else:
            silent.setdefault(detector, Silent(fault_id=pk)).add(owner, at)
    raised = []
    for detector, silence in sorted(silent.items()):
        if detector not in blind and silence.is_gathered(now):
            text = _format_silence(detector, silence)
            raised.append(_make_event(EventKind.RAISED, detector, text, now))
    if raised and overload.is_suspending(now):
        raised = []
    cleared = [
        _make_event(EventKind.CLEARED, detector, "it answers everywhere", now)
        for detector in sorted(blind - set(silent))
    ]
    return [*raised, *cleared]


def _format_silence(detector: str, silent: Silent) -> str:
    count = len(silent.machines)
    total = max(polling.count_targets(detector), count)
    evidence = Evidence.objects.filter(fault_id=silent.fault_id)
    last = evidence.order_by("-occurred_at", "-pk").first()
    answer = last.excerpt if last else "nothing"
    machines = _format_names(sorted(silent.machines))
    return (
        f"Detector {detector} gives no usable answer on {count} of {total} machines ({machines})."
        f" One of them said: {answer}. Until it answers, what it watches there is unknown."
    )


def _format_names(names: Sequence[str]) -> str:
    ellipsis = " ..." if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + ellipsis


def _make_event(kind: EventKind, detector: str, text: str, now: datetime) -> FaultEvent:
    return make_conclusion(
        kind, BLIND_DETECTOR, f"site/{detector}", text=text, now=now, qualifier=detector
    )
