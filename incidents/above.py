"""Open incidents of what a node hangs on: its switches, rack, feeds, file systems, the site, its jobs. Reads only.

Correlation has placed what it could place; this is for what no rule explains and what may be the cause all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from detectors import catalog, resources
from detectors.faults import Component, Severity
from incidents import graphs, jobs
from incidents.graph import ALL_NODES
from incidents.lifecycle import State
from incidents.models import Incident
from incidents.views import FOLLOWS_HARDWARE, MANAGEMENT, ROUTING, UNREACHABLE, is_one_of

# What waits for the vendor or is quiet again is known, and stands for weeks: it is suspected of nothing new.
_SUSPECT = [state.value for state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)]
_GRAVE = [severity.value for severity in (Severity.MAJOR, Severity.CRITICAL)]
# As where jobs are told apart by faults: Slurm lists a job for minutes after its end (incidents.gathering).
_AROUND = timedelta(minutes=2)
_IN_THE_MACHINE = frozenset({Component.GPU, Component.NVLINK, Component.NODE})


@dataclass(frozen=True)
class Above:
    """An open incident of a place, a switch or a job as a whole. `is_facility`: of power, cooling or the site."""

    incident_id: int
    title: str
    resource: str
    is_facility: bool


def wider(node: str, now: datetime) -> list[Above]:
    """Those of which this node is a part. A query of the inventory's revision, one or two of jobs, one of incidents."""
    machine, graph = resources.node(node), graphs.current()
    on, _ = jobs.running_on({machine}, at=now, around=_AROUND)
    facility = {ALL_NODES, *graph.feeds_of(machine), graph.rack_of(machine) or ALL_NODES}
    others = {
        MANAGEMENT,
        *graph.switches_of(machine),
        *graph.management_switches_of(machine),
        *graph.file_systems_of(machine),
    }
    # A job that fails on many nodes is a warning, since it harms nobody else: it is suspected all the same.
    is_above = Q(root_resource__in=facility | others, severity__in=_GRAVE) | Q(root_resource__in=on.get(machine, ()))
    found = Incident.objects.filter(is_above, state__in=_SUSPECT).order_by("pk")
    rows = found.values_list("pk", "title", "root_resource", "fault_type")
    return [
        Above(pk, title, resource, is_facility=resource in facility)
        for pk, title, resource, fault_type in rows
        if not is_one_of(fault_type, ROUTING)
    ]


def is_own_hardware(fault_type: str) -> bool:
    """Whether the type is of a part of the node itself, that no switch and no job can have broken."""
    row = catalog.load().get(fault_type)
    if row is None or row.component not in _IN_THE_MACHINE:
        return False
    return not (row.is_sympathetic or is_one_of(fault_type, (*FOLLOWS_HARDWARE, *UNREACHABLE)))
