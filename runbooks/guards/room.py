"""Guards on room: how many nodes may be out of a partition and of a pod, and how many jobs need.
Pure.

They hold what takes capacity from jobs. A node that is seen to serve no job is drained whatever
they say: that takes nothing from any.

Every node that takes no jobs counts, whoever took it out, a maintenance and power saving included;
so does every node that an unfinished run of ours has been let take out, whether or not Slurm shows
it yet.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import product

from runbooks.guards.verdicts import (
    DEFAULT_BOUNDS,
    Act,
    Bounds,
    Fleet,
    GuardRefused,
    Refusal,
    Request,
    format_node_names,
)
from runbooks.slurm import demands
from runbooks.slurm.demands import Demand

_ASK_AGAIN = timedelta(minutes=1)
# A job that Slurm expects to start later finds the node back. Our choice: a shift of eight hours,
# longer than any repair that needs no part.
STARTS_SOON = timedelta(hours=8)
_TAKES = (Act.DRAIN, Act.SWAP_SPARE)
# A share such as 0.05 is not exact as a float: 0.07 * 100 is a hair above 7, and 0.29 * 100 a hair
# below 29.
_HAIR = 1e-9


def compute_cap(partition_size: int, bounds: Bounds = DEFAULT_BOUNDS) -> int:
    """How many nodes of a partition may be out at once; one of the smallest partition."""
    return min(bounds.cap_nodes, max(1, int(partition_size * bounds.cap_share + _HAIR)))


def compute_pod_cap(pod_size: int, bounds: Bounds) -> int:
    """How many nodes of a pod may be out at once; one of the smallest pod."""
    return max(1, int(pod_size * (1 - bounds.pod_floor) + _HAIR))


def check_partitions(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """A node in two partitions is counted in both."""
    if not _takes_node_out(request, fleet):
        return None
    state = fleet.nodes.get(request.node)
    for partition in state.partitions if state else ():
        members = {name for name, node in fleet.nodes.items() if partition in node.partitions}
        limit = compute_cap(len(members), fleet.bounds)
        taken = _get_taken_nodes(request, fleet, members)
        ahead = _get_nodes_ahead(request, fleet, members) - taken
        if len(taken) + len(ahead) >= limit:
            out = f"{len(taken)} of {len(members)} nodes of partition {partition} are out"
            drain = f"{_format_ahead(ahead)}draining {request.node} would pass it"
            reason = f"{out} ({format_node_names(taken)}), and the cap is {limit}: {drain}"
            return GuardRefused(Refusal.CAP, reason, now + _ASK_AGAIN)
    return None


def check_pod(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """A pod keeps most of its nodes, whatever partitions they are in."""
    name = fleet.pods.get(request.node, "")
    if not name or not _takes_node_out(request, fleet):
        return None
    members = {node for node, pod_name in fleet.pods.items() if pod_name == name}
    members.intersection_update(fleet.nodes)
    limit = compute_pod_cap(len(members), fleet.bounds)
    taken = _get_taken_nodes(request, fleet, members)
    ahead = _get_nodes_ahead(request, fleet, members) - taken
    if len(taken) + len(ahead) < limit:
        return None
    out = f"{len(taken)} of {len(members)} nodes of pod {name} are out ({format_node_names(taken)})"
    in_service = f"{len(members) - limit} in service"
    drain = f"{_format_ahead(ahead)}draining {request.node} would pass that"
    reason = f"{out}, and it keeps {in_service}: {drain}"
    return GuardRefused(Refusal.POD_FLOOR, reason, now + _ASK_AGAIN)


def check_jobs(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """The largest job that may start soon could start, and the largest that runs could start anew.

    Taking a node that serves nothing, or from a job that cannot be served anyway, takes nothing
    away.
    """
    if not _takes_node_out(request, fleet) or request.is_unusable or fleet.is_out(request.node):
        return None
    own = set(fleet.nodes[request.node].partitions)
    soon = (demand for demand in fleet.demands if _starts_soon(demand, now))
    affected = (demand for demand in soon if own.intersection(demand.partitions))
    # Whether a node whose run has just ended is out or not: neither may leave a job too few.
    claims = (fleet.claimed, fleet.claimed - fleet.just_ended)
    for demand, claimed in product(demands.get_largest(affected), claims):
        serving = _get_serving_nodes(fleet, demand, claimed) | {request.node}
        if len(serving) - 1 < demand.nodes <= len(serving):
            names = ", ".join(demand.partitions)
            in_service = f"{len(serving)} nodes of {names} are in service"
            reason = (
                f"{in_service}, and {demand} needs {demand.nodes}: draining {request.node} would"
                " leave too few"
            )
            return GuardRefused(Refusal.JOB_FLOOR, reason, now + _ASK_AGAIN)
    return None


def _starts_soon(demand: Demand, now: datetime) -> bool:
    """Also where Slurm has not said when: its backfill looks at the first jobs of the queue
    alone."""
    return demand.starts_at is None or demand.starts_at <= now + STARTS_SOON


def _get_serving_nodes(fleet: Fleet, demand: Demand, claimed: frozenset[str]) -> set[str]:
    """In service, not about to go out, and in a partition that may serve the job."""
    usable = set(demand.partitions)
    in_service = {name for name, node in fleet.nodes.items() if node.is_serving}
    free = in_service - claimed
    return {name for name in free if usable.intersection(fleet.nodes[name].partitions)}


def _takes_node_out(request: Request, fleet: Fleet) -> bool:
    """Takes a node out, or acts for the first time on one that was out already."""
    if is_drain_of_unusable(request, fleet):
        return False
    return request.act in _TAKES or not fleet.is_claimed


def is_drain_of_unusable(request: Request, fleet: Fleet) -> bool:
    """Whether the node serves no job as it is, by what a witness has seen on it."""
    return request.act is Act.DRAIN and bool(fleet.unusable)


def _get_taken_nodes(request: Request, fleet: Fleet, members: Collection[str]) -> set[str]:
    """Of these, what is out beside the node; of a node that is out already, only what our runs do
    at once. A lesser run that only waits for its jobs' end holds no place."""
    claimed = fleet.claimed.intersection(members) - {request.node}
    out = {name for name in members if not fleet.nodes[name].is_serving} | claimed
    taken = set(claimed) if request.node in out else out
    return {name for name in taken if not _is_yielding(name, fleet)}


def _is_yielding(name: str, fleet: Fleet) -> bool:
    state = fleet.nodes[name]
    return name in fleet.yielding and state.is_draining and not state.is_drained


def _get_nodes_ahead(request: Request, fleet: Fleet, members: Collection[str]) -> set[str]:
    """Of these, the nodes for which a place is kept."""
    return set(fleet.ahead.intersection(members)) - {request.node}


def _format_ahead(ahead: Collection[str]) -> str:
    if not ahead:
        return ""
    verb = "goes" if len(ahead) == 1 else "go"
    return f"{format_node_names(ahead)} {verb} first, with a graver fault, and "
