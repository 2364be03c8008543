"""Rails that are slow on several nodes of several jobs: then it is the leaf, not how a job is laid
out. Reads only.

One slow rail is an observation (`nic.rail.slow`). Where at least three nodes of at least two jobs
agree on a leaf, each of their rails has the fault `nic.rail.degraded`, with the sentence that names
the leaf.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    slow, standing = _faults()
    if not standing and len({resources.host_of(each) for each in slow}) < rail.NODES_THAT_AGREE:
        return []
    ratios = _ratios(
        {host for each in (*slow, *standing) if (host := resources.host_of(each))}, now
    )
    at_places = _by_place([ratios[each] for each in slow if each in ratios])
    asked = [
        seen
        for those in at_places.values()
        if len({seen.resource.split("/")[1] for seen in those}) >= rail.NODES_THAT_AGREE
        for seen in those
    ]
    running = jobs(sorted({seen.resource.split("/")[1] for seen in asked})) if asked else {}
    if running is None:
        return []
    told = list(rail.evaluate_slow_rails(list(_slow_rails(asked, running)), now))
    raised = {seen.resource for seen in told if seen.value != 1.0}
    told = [seen for seen in told if seen.resource in raised]
    told += [
        _ended(each, now) for each in sorted(standing) if each not in raised and each in ratios
    ]
    events = [
        event for seen in told for event in classify.classify(seen, set(standing.values()), catalog)
    ]
    return [event for event in events if event.fault_type == DEGRADED]


def _faults() -> tuple[list[str], dict[str, str]]:
    """Rails that have been slow for long enough, and the fingerprints of those whose fault stands
    by agreement."""
    slow, standing = [], {}
    rows = (
        Fault.objects.active()
        .filter(fault_type__in=(SLOW, DEGRADED))
        .values_list("fault_type", "resource", "qualifier", "fingerprint")
    )
    for fault_type, resource, qualifier, fingerprint in rows:
        if fault_type == SLOW:
            slow.append(resource)
        elif qualifier == rail.SEVERAL_NODES:
            standing[resource] = fingerprint
    return slow, standing


def _ratios(nodes: Collection[str], now: datetime) -> dict[str, Observation]:
    """What each rail of these nodes carries against its node's median, as long as the node is
    busy."""
    return {
        resource: Observation(resource, metric, sample.value, sample.at)
        for resource, metric, sample in polling.samples(("rail",), TargetKind.NODE.value, nodes)
        if metric == "rail.ratio" and sample.at > now - _FRESH
    }


def _by_place(seen: Sequence[Observation]) -> Mapping[str, list[Observation]]:
    places: dict[str, list[Observation]] = {}
    for each in seen:
        places.setdefault(_leaf(each.resource) or each.resource.rpartition("/")[2], []).append(each)
    return places


def _slow_rails(
    seen: Sequence[Observation], running: Mapping[str, frozenset[str]]
) -> Iterator[rail.SlowRail]:
    for each in seen:
        node = each.resource.split("/")[1]
        found = rail.slow_rail(
            each, place=_leaf(each.resource), jobs=running.get(node, frozenset())
        )
        if found is not None:
            yield found


def _leaf(resource: str) -> str | None:
    far = graphs.current().peer(resource) or ""
    return far.split("/")[1] if far.startswith("switch/") else None


def _ended(resource: str, now: datetime) -> Observation:
    said = {
        "text": "it is no longer slow on several nodes in several jobs",
        "qualifier": rail.SEVERAL_NODES,
    }
    return Observation(resource, "rail.ratio_explained", 1.0, now, said)
