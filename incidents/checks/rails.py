"""Rails that are slow on several nodes of several jobs: then it is the leaf, not how a job is laid
out. Reads only.

One slow rail is an observation (`nic.rail.slow`). Where at least three nodes of at least two jobs
agree on a leaf, each of their rails has the fault `nic.rail.degraded`, with the sentence that names
the leaf.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from detectors import resources
from detectors.catalog.catalog import Catalog
from detectors.detector import TargetKind
from detectors.evaluation import classify
from detectors.faults import FaultEvent, Observation
from detectors.node import rail
from incidents.checks.cables import JobsOf
from incidents.inventory import graphs
from incidents.models import Fault
from incidents.polling import polling

SLOW, DEGRADED = "nic.rail.slow", "nic.rail.degraded"
# Nodes are polled each in their own moment of a minute, and a rail has to be slow for five minutes.
_FRESH = timedelta(minutes=10)


def evaluate_rails(now: datetime, catalog: Catalog, *, jobs: JobsOf) -> list[FaultEvent]:
    """The beginnings and ends of these faults. One query while too few rails are slow. Nothing
    without Slurm's word."""
    slow, active = _load_faults()
    slow_nodes = {resources.host_of(resource) for resource in slow}
    if not active and len(slow_nodes) < rail.NODES_THAT_AGREE:
        return []
    hosts = {resources.host_of(resource) for resource in (*slow, *active)}
    ratios = _load_ratios([host for host in hosts if host is not None], now)
    candidates = _list_shared_places([ratios[resource] for resource in slow if resource in ratios])
    running: Mapping[str, frozenset[str]] | None = {}
    if candidates:
        running = jobs(sorted(_get_nodes(candidates)))
    if running is None:
        return []
    degraded = _list_degraded(_find_slow_rails(candidates, running), now)
    raised = {observation.resource for observation in degraded}
    recovered = [
        _make_recovery(resource, now)
        for resource in sorted(active)
        if resource in ratios and resource not in raised
    ]
    fingerprints = set(active.values())
    events: list[FaultEvent] = []
    for observation in (*degraded, *recovered):
        events += classify.classify(observation, fingerprints, catalog)
    return [event for event in events if event.fault_type == DEGRADED]


def _load_faults() -> tuple[list[str], dict[str, str]]:
    """Rails that have been slow for long enough, and the fingerprints of those that are degraded
    by agreement."""
    slow, active = [], {}
    rows = (
        Fault.objects.active()
        .filter(fault_type__in=(SLOW, DEGRADED))
        .values_list("fault_type", "resource", "qualifier", "fingerprint")
    )
    for fault_type, resource, qualifier, fingerprint in rows:
        if fault_type == SLOW:
            slow.append(resource)
        elif qualifier == rail.SEVERAL_NODES:
            active[resource] = fingerprint
    return slow, active


def _load_ratios(nodes: Collection[str], now: datetime) -> dict[str, Observation]:
    """What each rail of these nodes carries against its node's median, as long as the node is
    busy."""
    ratios = {}
    for resource, metric, sample in polling.iterate_samples(
        ("rail",), TargetKind.NODE.value, nodes
    ):
        if metric == "rail.ratio" and sample.at > now - _FRESH:
            ratios[resource] = Observation(resource, metric, sample.value, sample.at)
    return ratios


def _list_shared_places(slow: Sequence[Observation]) -> list[Observation]:
    """The slow rails of each place (a leaf, or a device name) where enough nodes have one."""
    places: dict[str, list[Observation]] = {}
    for observation in slow:
        _, _, device = observation.resource.rpartition("/")
        place = _find_leaf(observation.resource) or device
        places.setdefault(place, []).append(observation)
    shared: list[Observation] = []
    for observations in places.values():
        if len(_get_nodes(observations)) >= rail.NODES_THAT_AGREE:
            shared += observations
    return shared


def _find_slow_rails(
    observations: Sequence[Observation], running: Mapping[str, frozenset[str]]
) -> Iterator[rail.SlowRail]:
    for observation in observations:
        jobs = running.get(_get_node(observation), frozenset())
        slow_rail = rail.find_slow_rail(
            observation, place=_find_leaf(observation.resource), jobs=jobs
        )
        if slow_rail is not None:
            yield slow_rail


def _list_degraded(slow_rails: Iterable[rail.SlowRail], now: datetime) -> list[Observation]:
    """All that is observed of the rails on which the nodes and jobs agree."""
    observations = list(rail.evaluate_slow_rails(list(slow_rails), now))
    degraded = {observation.resource for observation in observations if observation.value != 1.0}
    return [observation for observation in observations if observation.resource in degraded]


def _make_recovery(resource: str, now: datetime) -> Observation:
    details = {
        "text": "it is no longer slow on several nodes in several jobs",
        "qualifier": rail.SEVERAL_NODES,
    }
    return Observation(resource, "rail.ratio_explained", 1.0, now, details)


def _get_nodes(observations: Iterable[Observation]) -> set[str]:
    return {_get_node(observation) for observation in observations}


def _get_node(observation: Observation) -> str:
    return observation.resource.split("/")[1]


def _find_leaf(resource: str) -> str | None:
    """The switch at the far end of this rail's cable."""
    peer = graphs.get_current().find_peer(resource) or ""
    return peer.split("/")[1] if peer.startswith("switch/") else None
