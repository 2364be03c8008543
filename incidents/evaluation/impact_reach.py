"""Where a fault can touch jobs: on its own machine, on the nodes whose rail it cuts, or one job by
its name. Pure.

What only silences a monitor, what details another line, and what takes a part of the bandwidth
touches no job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

from detectors import resources
from detectors.faults import Component, Severity
from incidents.evaluation.impact_rules import FaultSpan
from incidents.topology.graph import LEAF, Graph

# Types that say nothing of what a job needs: the eyes of Kintsugi, clocks, and second lines.
_HARMLESS = (
    *(
        "detector.*",
        "kintsugi.*",
        "target.*",
        "clock.*",
        "node.clock_*",
        "network.management_*",
        "*.detail",
    ),
    "slurm.drained_*",
)


@dataclass(frozen=True)
class FaultAt:
    """A fault of an incident, as much of it as its reach needs."""

    fault_type: str
    resource: str
    component: Component
    severity: Severity
    raised_at: datetime
    cleared_at: datetime | None = None


@dataclass
class ImpactReach:
    """The faults that can touch the jobs of each machine (`node/gn001`), and those of single jobs
    by their path."""

    machines: dict[str, list[FaultSpan]] = field(default_factory=dict)
    jobs: dict[str, list[FaultSpan]] = field(default_factory=dict)

    @property
    def hosts(self) -> set[str]:
        return {
            host for machine in self.machines if (host := resources.host_of(machine)) is not None
        }


def compute_reach(faults: Iterable[FaultAt], graph: Graph) -> ImpactReach:
    reached = ImpactReach()
    for fault in faults:
        if any(fnmatchcase(fault.fault_type, pattern) for pattern in _HARMLESS):
            continue
        span = FaultSpan(
            began_at=fault.raised_at,
            ended_at=fault.cleared_at,
            is_disabling=fault.severity is Severity.CRITICAL,
            is_between_nodes=_is_between_nodes(fault, graph),
        )
        if "/job/" in fault.resource:
            reached.jobs.setdefault(fault.resource, []).append(span)
        for machine in _list_machines(fault, graph):
            reached.machines.setdefault(machine, []).append(span)
    return reached


def _is_between_nodes(fault: FaultAt, graph: Graph) -> bool:
    """A leaf's, or that of a NIC which is cabled to a leaf: a storage NIC serves a job on one node
    too."""
    return _find_leaf(fault, graph) is not None


def _find_leaf(fault: FaultAt, graph: Graph) -> str | None:
    ends = (fault.resource, graph.find_peer(fault.resource) or "")
    if fault.resource.startswith("node/") and fault.component is not Component.NIC:
        return None
    return next((leaf for leaf in map(resources.owner, ends) if graph.get_role(leaf) == LEAF), None)


def _list_machines(fault: FaultAt, graph: Graph) -> Iterator[str]:
    """Its node; for a leaf, and a port or module of one, the nodes at the other end.

    Not for a spine (a share of the capacity), a storage switch (its other path goes on) or a
    management switch: nodes that suffer from these show faults of their own, which are symptoms in
    the same incident.
    """
    machine = resources.owner(fault.resource)
    if resources.host_of(fault.resource) is not None:
        yield machine
    elif graph.get_role(machine) == LEAF:
        for other in _get_machines_behind(fault.resource, machine, graph):
            if other.startswith("node/"):
                yield other


def _get_machines_behind(resource: str, leaf: str, graph: Graph) -> frozenset[str]:
    if resource == leaf or "/module/" in resource:
        return graph.get_machines_behind(resource)
    peer = graph.find_peer(resource)
    return frozenset({resources.owner(peer)}) if peer is not None else frozenset()
