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
from incidents.faults.fault_views import BLIND_DETECTOR, SILENT_DETECTOR
from incidents.models import Evidence, Fault, Poll

# Two periods of polls after the first: by then every machine on which it is silent has said so.
GATHERED = timedelta(minutes=2)
_SHOWN = 5


@dataclass
class Silent:
    """One detector's silence: the machines, and since when the first of them."""

    machines: list[str] = field(default_factory=list)
    since: datetime | None = None
    a_fault: int = 0


def evaluate_blindness(now: datetime) -> list[FaultEvent]:
    """The beginnings and ends of blindness. One query while every detector answers."""
    silent: dict[str, Silent] = {}
    blind: set[str] = set()
    faults = (
        Fault.objects.active()
        .filter(fault_type__in=(SILENT_DETECTOR, BLIND_DETECTOR))
        .values_list("pk", "fault_type", "qualifier", "owner", "observed_at")
    )
    for pk, kind, detector, owner, at in faults:
        if kind == BLIND_DETECTOR:
            blind.add(detector)
            continue
        one = silent.setdefault(detector, Silent(a_fault=pk))
        one.machines.append(resources.host_of(owner) or owner)
        one.since = at if one.since is None else min(one.since, at)
    begun = [
        _event(EventKind.RAISED, detector, _said(detector, one), now)
        for detector, one in sorted(silent.items())
        if detector not in blind and one.since is not None and one.since <= now - GATHERED
    ]
    if begun and overload.suspends(now):
        begun = []
    ended = [
        _event(EventKind.CLEARED, detector, "it answers everywhere", now)
        for detector in sorted(blind - set(silent))
    ]
    return [*begun, *ended]


def _said(detector: str, silent: Silent) -> str:
    of = max(Poll.objects.filter(detector=detector).count(), len(silent.machines))
    last = Evidence.objects.filter(fault_id=silent.a_fault).order_by("-occurred_at", "-pk").first()
    return (
        f"Detector {detector} gives no usable answer on {len(silent.machines)} of {of} machines"
        f" ({_some(sorted(silent.machines))}). One of them said:"
        f" {last.excerpt if last else 'nothing'}. Until it answers, what it watches there is"
        " unknown."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _event(kind: EventKind, detector: str, text: str, now: datetime) -> FaultEvent:
    return make_conclusion(
        kind, BLIND_DETECTOR, f"site/{detector}", text=text, now=now, qualifier=detector
    )
