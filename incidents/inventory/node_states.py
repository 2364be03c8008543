"""The one picture of Slurm's nodes: what the last look saw, and what each node was in before. The
only writer of `NodeInterval` and `FleetLook`.

One process at a time looks (`kintsugi.periodic.node_watch`). A Slurm that does not answer changes
nothing: the picture stays, and says since when it is old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache

from django.db import transaction
from django.db.models import Count, F, QuerySet, Value
from django.db.models.functions import Coalesce

from detectors import resources
from detectors.slurm import node_changes
from detectors.slurm.node_changes import Changes, SeenState
from detectors.slurm.output import NodeState
from incidents.db.prepared import Prepared
from incidents.models import FleetLook, JobNode, NodeInterval

_CLUSTER = "slurm"
_TOOK_MS = Prepared(lambda: FleetLook.objects.filter(cluster=_CLUSTER).values_list("took_ms")[:1])
_LONGEST, _LONGEST_USER = 255, 64
# SQLite takes 32,766 parameters per statement; a row has fourteen.
_BATCH = 1_000
# Our choice: three of the looks that are made while nothing is under way.
STALE = timedelta(minutes=3)
# Of a node whose slurmd does not answer (sinfo(1), NODE STATE CODES).
_SILENT = frozenset({"DOWN", "NOT_RESPONDING"})
# What a row has of `SeenState`.
_SEEN = (
    *("state", "is_serving", "holder", "reason", "reason_set_by", "reason_set_at"),
    *("resume_after", "boot_time", "slurmd_started_at", "gpus"),
)
_COLUMNS = ("pk", "node", *_SEEN)


@dataclass(frozen=True)
class Freshness:
    """How old the picture is. `answered_at` is None before the first answer, `silent_since` while
    Slurm answers."""

    answered_at: datetime | None
    silent_since: datetime | None
    complaint: str

    def is_stale(self, now: datetime) -> bool:
        return self.answered_at is None or now - self.answered_at > STALE


def record_look(
    nodes: Mapping[str, NodeState], asked_at: datetime, *, took: timedelta, slurm_user: str
) -> Changes:
    """What a whole answer to a question of that time changes, in one transaction; a fleet that
    shows what it showed before costs one UPDATE.

    An answer to an older question than the picture's is dropped: its process was held up. One
    without any node is no answer: call `record_silence`.
    """
    seen = node_changes.observe_all(nodes, slurm_user)
    digest = node_changes.make_digest(seen)
    took_ms = round(took / timedelta(milliseconds=1))
    values = {
        "asked_at": asked_at,
        "answered_at": asked_at,
        "silent_since": None,
        "complaint": "",
        "took_ms": took_ms,
        "nodes": len(nodes),
        "digest": digest,
        "slurm_user": slurm_user[:_LONGEST_USER],
    }
    of_cluster = FleetLook.objects.filter(cluster=_CLUSTER)
    unchanged = of_cluster.filter(digest=digest, answered_at__lt=asked_at)
    if unchanged.update(**values):
        return Changes({}, frozenset(), {})
    with transaction.atomic():
        start = {"cluster": _CLUSTER, "asked_at": asked_at}
        FleetLook.objects.bulk_create([FleetLook(**start)], ignore_conflicts=True)
        look = of_cluster.select_for_update().get()
        if look.answered_at is not None and look.answered_at >= asked_at:
            return Changes({}, frozenset(), {})
        known = dict(_read_current())
        before = {name: row for name, (_, row) in known.items()}
        changes = node_changes.compare(before, seen)
        keys = {name: pk for name, (pk, _) in known.items()}
        _end([keys[name] for name in changes.ended], asked_at, seen_at=look.answered_at)
        _begin(changes.began, asked_at)
        _update_words({keys[name]: row for name, row in changes.reworded.items()}, asked_at)
        of_cluster.update(**values)
    return changes


def record_silence(asked_at: datetime, complaint: str) -> None:
    """Slurm did not answer: nothing else is known, so nothing else is written."""
    start = FleetLook(cluster=_CLUSTER, asked_at=asked_at)
    FleetLook.objects.bulk_create([start], ignore_conflicts=True)
    text = complaint.replace("\0", "")[:_LONGEST]
    silent_since = Coalesce(F("silent_since"), Value(asked_at))
    looks = FleetLook.objects.filter(cluster=_CLUSTER, asked_at__lte=asked_at)
    looks.update(asked_at=asked_at, complaint=text, silent_since=silent_since)


def record_slurm_user(user: str) -> None:
    """As slurmctld's settings say; whose a reason is depends on it from the next look on."""
    FleetLook.objects.filter(cluster=_CLUSTER).update(slurm_user=user[:_LONGEST_USER])


def get_slurm_user() -> str:
    """Empty before the first answer."""
    users = FleetLook.objects.filter(cluster=_CLUSTER).values_list("slurm_user", flat=True)
    return users.first() or ""


def forget_look() -> None:
    """The rows were changed beside a look (a rename): the next one compares each of them."""
    FleetLook.objects.filter(cluster=_CLUSTER).update(digest="")


def get_freshness() -> Freshness:
    columns = ("answered_at", "silent_since", "complaint")
    row = FleetLook.objects.filter(cluster=_CLUSTER).values_list(*columns).first()
    return Freshness(*row) if row is not None else Freshness(None, None, "")


def get_look_duration() -> timedelta:
    """How long Slurm took to answer the last look; none before the first."""
    took_ms = next(iter(_TOOK_MS.values()), 0)
    return timedelta(milliseconds=took_ms)


def get_out_of_service() -> set[str]:
    """Paths of the nodes that take no jobs of users, whoever keeps them."""
    names = NodeInterval.objects.current().filter(is_serving=False).values_list("node", flat=True)
    return {resources.node(name) for name in names}


def find_answering(names: Collection[str], *, after: datetime) -> set[str] | None:
    """Which of these nodes Slurm hears; None where the last answered look is older."""
    answered_at = get_freshness().answered_at
    if answered_at is None or answered_at <= after:
        return None
    rows = NodeInterval.objects.current().filter(node__in=list(names)).values_list("node", "state")
    return {name for name, state in rows if _SILENT.isdisjoint(state.split("+"))}


def get_current(names: Collection[str] | None = None) -> dict[str, NodeInterval]:
    """What each node is in, by name; all nodes where none are named."""
    rows = NodeInterval.objects.current()
    if names is not None:
        rows = rows.filter(node__in=list(names))
    return {row.node: row for row in rows}


def get_history(node: str) -> QuerySet[NodeInterval]:
    """The latest first."""
    return NodeInterval.objects.filter(node=node)


def get_serving_since(node: str, *, after: datetime) -> datetime | None:
    """Since when Slurm was seen to give this node jobs without a break until now, if that began
    after the given time; None: it does not, or that began before."""
    since = None
    for interval in get_history(node).filter(since__gt=after):
        if not interval.is_serving:
            break
        since = interval.since
    return since


def is_seen_serving(node: str, *, after: datetime) -> bool:
    """Whether the last look, where it began after that, shows Slurm giving this node jobs."""
    looked_at = get_freshness().answered_at
    if looked_at is None or looked_at <= after:
        return False
    return NodeInterval.objects.current().filter(node=node, is_serving=True).exists()


def load_states() -> dict[str, NodeState]:
    """The picture as Slurm's values, without what it does not hold: partitions and addresses."""
    return {row.node: _build_state(row) for row in NodeInterval.objects.current()}


def load_out_by_reason(prefix: str) -> list[NodeState]:
    """Of the nodes that take no jobs those whose reason begins so, as `load_states`."""
    return [_build_state(row) for row in _prepare_out(prefix).objects()]


@lru_cache(maxsize=8)
def _prepare_out(prefix: str) -> Prepared:
    out = NodeInterval.objects.current().filter(is_serving=False, reason__startswith=prefix)
    return Prepared(lambda: out)


def _build_state(row: NodeInterval) -> NodeState:
    base, *flags = row.state.split("+")
    state = NodeState(
        row.node,
        base,
        frozenset(flags),
        reason=row.reason,
        reason_set_by=row.reason_set_by,
        reason_changed_at=row.reason_set_at,
        boot_time=row.boot_time,
        partitions=(),
    )
    return replace(
        state,
        gpus=row.gpus,
        slurmd_started_at=row.slurmd_started_at,
        resume_after=row.resume_after,
    )


def _read_current() -> Iterator[tuple[str, tuple[int, SeenState]]]:
    rows = NodeInterval.objects.current().order_by().values_list(*_COLUMNS)
    for pk, name, state, is_serving, holder, *rest in rows.iterator(chunk_size=_BATCH):
        condition = node_changes.get_condition(state, is_serving=is_serving)
        yield name, (pk, SeenState(state, condition, is_serving, holder, *rest))


def _end(keys: Sequence[int], at: datetime, *, seen_at: datetime | None) -> None:
    """`seen_at`: the last look that was answered before."""
    for begin in range(0, len(keys), _BATCH):
        rows = NodeInterval.objects.current().filter(pk__in=keys[begin : begin + _BATCH])
        rows.update(until=at, seen_at=seen_at or at)


def _begin(states: Mapping[str, SeenState], at: datetime) -> None:
    if not states:
        return
    jobs = _count_jobs(states.keys())
    rows = []
    for name, seen in states.items():
        columns = {field: getattr(seen, field) for field in _SEEN}
        row = NodeInterval(node=name, jobs=jobs.get(name, 0), since=at, seen_at=at, **columns)
        rows.append(row)
    NodeInterval.objects.bulk_create(rows, batch_size=_BATCH)


def _count_jobs(names: Collection[str]) -> dict[str, int]:
    """How many jobs work on each, by the last list of jobs."""
    counts: dict[str, int] = {}
    chosen = sorted(names)
    for begin in range(0, len(chosen), _BATCH):
        rows = JobNode.objects.filter(node__in=chosen[begin : begin + _BATCH], ended_at=None)
        counts |= dict(rows.values("node").annotate(jobs=Count("pk")).values_list("node", "jobs"))
    return counts


def _update_words(rows: Mapping[int, SeenState], at: datetime) -> None:
    """Nodes that show the same words are written by one statement: there are few different ones."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for pk, seen in rows.items():
        groups[seen.state, seen.holder].append(pk)
    for (state, holder), keys in groups.items():
        values = {"state": state, "holder": holder, "seen_at": at}
        for begin in range(0, len(keys), _BATCH):
            NodeInterval.objects.filter(pk__in=keys[begin : begin + _BATCH]).update(**values)
