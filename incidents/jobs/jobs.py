"""What is known of jobs: which ran where and when, and how each ended. The only writer of `Job` and
`JobNode`.

A job that Slurm no longer lists and whose end nobody saw is kept as of unknown end, never as one
that went well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet

from detectors import resources
from detectors.slurm.job_records import RUNNING, JobRecord
from incidents.db.prepared import Given, Prepared
from incidents.faults import dedup
from incidents.models import Job, JobNode

__all__ = [
    "RUNNING",
    "UNKNOWN_END",
    "JobRecord",
    "forget",
    "get_path",
    "get_running_on",
    "store_jobs",
]

# No word of Slurm: it was listed as running, then not at all, and no account tells its end.
UNKNOWN_END = "UNKNOWN"
_REQUEUED = "REQUEUED"
# An event counts for seven days (incidents.faults.dedup), and may touch jobs of its time; a day
# more for what comes late.
KEPT = dedup.KEPT + timedelta(days=1)
# SQLite takes 32,766 parameters per statement, PostgreSQL 65,535.
_CHUNK = 5_000
_MOST_FORGOTTEN = 5_000
_COLUMNS = [
    "name",
    "user",
    "partition",
    "state",
    "node_count",
    "gpus",
    "ended_at",
    "checkpoint_at",
    "seen_at",
]


def _prepare_alive() -> QuerySet[JobNode, Any]:
    """Two ranges of one index, where an OR of both would read each node's past."""
    begun = JobNode.objects.filter(
        node__among=Given("hosts"), job__started_at__lte=Given("until")
    ).values_list("job_id", "job__cluster", "job__job_id")
    running, ended = begun.filter(ended_at=None), begun.filter(ended_at__gte=Given("since"))
    return running.order_by().union(ended.order_by(), all=True)


_ALIVE = Prepared(_prepare_alive)
_SPELLS = Prepared(
    lambda: (
        JobNode.objects.filter(node__among=Given("hosts"), job__started_at__lte=Given("until"))
        .filter(Q(ended_at=None) | Q(ended_at__gte=Given("since")))
        .order_by("job_id")
        .values_list("node", "job_id", "job__cluster", "job__job_id", "job__started_at", "ended_at")
    )
)
_PLACES = Prepared(
    lambda: JobNode.objects.filter(job_id__among=Given("jobs")).values_list("job_id", "node")
)

_Key = tuple[str, str, datetime]
_Item = TypeVar("_Item")


def get_path(cluster: str, job_id: str) -> str:
    """The job as a resource: `site/slurm/job/4711`."""
    return resources.job(cluster, job_id)


def store_jobs(records: Iterable[JobRecord], now: datetime, *, whole_of: str = "") -> int:
    """Remembers these starts of jobs; how many were new or changed. Safe to call again, and in any
    order.

    An end that is known is never taken back by an older list. `whole_of` names a cluster of which
    the records hold all jobs that run: what ran there before and is not among them has ended.
    """
    latest = _choose_latest(records)
    with transaction.atomic():
        known = _load_known(latest.values())
        new = []
        seen = []
        for key, record in latest.items():
            if key in known:
                seen.append((known[key], record))
            else:
                new.append(_make_row(record, now))
        wider = []
        for row, record in seen:
            if len(record.nodes) > row.node_count:
                wider.append((row, record))
        changed = [row for row, record in seen if _take(row, record, now)]
        Job.objects.bulk_create(new)
        Job.objects.bulk_update(changed, _COLUMNS, batch_size=500)
        of_new = [(row, latest[_get_key(row)]) for row in new]
        _put_nodes([*of_new, *wider])
        running = [row.pk for row, record in seen if record.ended_at is None]
        _update_seen(running, now)
        seen_rows = [row for row, _ in seen]
        gone = _end_earlier_starts(known.values(), [*new, *seen_rows])
        if whole_of:
            gone += _end_vanished(whole_of, latest, now)
        _end(gone)
        _end_places([*changed, *gone])
    return len(new) + len(changed) + len(gone)


def get_running_on(
    owners: Collection[str], *, at: datetime, around: timedelta
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """The jobs that ran on these machines within `around` of `at`, and all machines of each of
    those jobs.

    Jobs are resource paths. A query per 5,000 machines, and one per 5,000 jobs.
    """
    hosts = _get_hosts(owners)
    alive = _get_alive(hosts, since=at - around, until=at + around)
    paths = {}
    for pk, (cluster, job_id) in alive.items():
        paths[pk] = get_path(cluster, job_id)
    wanted = {resources.node(host) for host in hosts}
    jobs_by_machine: dict[str, set[str]] = defaultdict(set)
    machines_by_job: dict[str, set[str]] = defaultdict(set)
    for pk, node in list_places(paths):
        job = paths[pk]
        machine = resources.node(node)
        machines_by_job[job].add(machine)
        if machine in wanted:
            jobs_by_machine[machine].add(job)
    return _freeze_values(jobs_by_machine), _freeze_values(machines_by_job)


def _get_hosts(owners: Iterable[str]) -> set[str]:
    """The names of those that are nodes."""
    hosts = (resources.host_of(owner) for owner in owners)
    return {host for host in hosts if host is not None}


def _freeze_values(groups: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(values) for key, values in groups.items()}


@dataclass(frozen=True)
class JobInterval:
    """A job on one machine, from when to when; `ended_at` None: it runs. `machines` are all of the
    job's."""

    job: str
    started_at: datetime
    ended_at: datetime | None
    machines: frozenset[str]

    def was_near(self, at: datetime, around: timedelta) -> bool:
        if self.started_at > at + around:
            return False
        return self.ended_at is None or self.ended_at >= at - around


def get_intervals_on(
    owners: Collection[str], *, since: datetime, until: datetime
) -> dict[str, list[JobInterval]]:
    """By machine, the jobs that ran there in this time. Two queries per 5,000 machines or jobs."""
    hosts = sorted(_get_hosts(owners))
    rows: list[Any] = []
    for part in _split_into_chunks(hosts):
        rows += _SPELLS.rows(hosts=part, since=since, until=until)
    machines: dict[int, set[str]] = defaultdict(set)
    for pk, node in list_places({row[1] for row in rows}):
        machines[pk].add(resources.node(node))
    found: dict[str, list[JobInterval]] = defaultdict(list)
    for node, pk, cluster, job_id, started_at, ended_at in rows:
        job_path = get_path(cluster, job_id)
        interval = JobInterval(job_path, started_at, ended_at, frozenset(machines[pk]))
        found[resources.node(node)].append(interval)
    return found


def list_alive_on(hosts: Collection[str], *, since: datetime, until: datetime) -> list[Job]:
    """Jobs that started before `until` and had not ended before `since` on any of these hosts
    (short names)."""
    found = sorted(_get_alive(hosts, since=since, until=until))
    return [row for part in _split_into_chunks(found) for row in Job.objects.filter(pk__in=part)]


def _get_alive(
    hosts: Collection[str], *, since: datetime, until: datetime
) -> dict[int, tuple[str, str]]:
    """Cluster and id by primary key."""
    found: dict[int, tuple[str, str]] = {}
    for part in _split_into_chunks(sorted(hosts)):
        for pk, cluster, job_id in _ALIVE.rows(hosts=part, until=until, since=since):
            found[pk] = (cluster, job_id)
    return found


def list_places(jobs: Collection[int]) -> Iterator[tuple[int, str]]:
    """Primary keys of jobs with each of their nodes."""
    for part in _split_into_chunks(sorted(jobs)):
        yield from _PLACES.rows(jobs=part)


def forget(now: datetime) -> int:
    """Jobs that ended longer ago than any event may speak of, in portions; those that an incident
    touched stay."""
    old = Job.objects.filter(ended_at__lt=now - KEPT, incidents__isnull=True)
    keys = list(old.order_by("ended_at").values_list("pk", flat=True)[:_MOST_FORGOTTEN])
    if keys:
        with transaction.atomic():
            Job.objects.filter(pk__in=keys).delete()
    return len(keys)


def _choose_latest(records: Iterable[JobRecord]) -> dict[_Key, JobRecord]:
    """One record per start; where two speak of the same, the one that knows its end, else the later
    in the list."""
    latest: dict[_Key, JobRecord] = {}
    for record in records:
        key = (record.cluster, record.job_id, record.started_at)
        if key not in latest or record.ended_at is not None or latest[key].ended_at is None:
            latest[key] = record
    return latest


def _load_known(records: Collection[JobRecord]) -> dict[_Key, Job]:
    """All starts of these jobs that are kept, locked in one order: a requeued job has several."""
    ids: dict[str, set[str]] = defaultdict(set)
    for record in records:
        ids[record.cluster].add(record.job_id)
    rows: list[Job] = []
    for cluster, jobs in sorted(ids.items()):
        for part in _split_into_chunks(sorted(jobs)):
            rows += (
                Job.objects.filter(cluster=cluster, job_id__in=part)
                .order_by("pk")
                .select_for_update()
            )
    return {_get_key(row): row for row in rows}


def _get_key(row: Job) -> _Key:
    return row.cluster, row.job_id, row.started_at


def _make_row(record: JobRecord, now: datetime) -> Job:
    row = Job(cluster=record.cluster, job_id=record.job_id, started_at=record.started_at)
    _take(row, record, now)
    return row


def _take(row: Job, record: JobRecord, now: datetime) -> bool:
    """Whether the record says something new. An end of unknown kind gives way to one that Slurm
    names."""
    if record.ended_at is None and row.ended_at is not None and row.state != UNKNOWN_END:
        return False
    checkpoints = [at for at in (row.checkpoint_at, record.checkpoint_at) if at is not None]
    # A job that went on without a lost node had it.
    node_count = max(row.node_count, len(record.nodes))
    ended_at = None
    if record.ended_at is not None:
        ended_at = max(record.ended_at, record.started_at)
    values = {
        "state": record.state,
        "node_count": node_count,
        "gpus": max(row.gpus, record.gpus),
        "ended_at": ended_at,
        "checkpoint_at": max(checkpoints, default=None),
    }
    for name in ("name", "user", "partition"):
        values[name] = getattr(record, name) or getattr(row, name)
    has_changed = any(getattr(row, name) != value for name, value in values.items())
    if has_changed:
        for name, value in values.items():
            setattr(row, name, value)
        row.seen_at = now
    return has_changed


def _put_nodes(told: Sequence[tuple[Job, JobRecord]]) -> None:
    """The nodes of new starts, and those that a known one gained."""
    rows = []
    for row, record in told:
        nodes = [resources.short_host(name)[:64] for name in record.nodes]
        for node in dict.fromkeys(nodes):
            rows.append(JobNode(job_id=row.pk, node=node, ended_at=row.ended_at))
    JobNode.objects.bulk_create(rows, batch_size=_CHUNK, ignore_conflicts=True)


def _update_seen(running: Sequence[int], now: datetime) -> None:
    for part in _split_into_chunks(sorted(running)):
        Job.objects.filter(pk__in=part).update(seen_at=now)


def _end_earlier_starts(known: Iterable[Job], told: Iterable[Job]) -> list[Job]:
    """Earlier starts, still without an end, of jobs that have started again: requeued when they
    were last seen."""
    newest: dict[tuple[str, str], datetime] = {}
    for row in told:
        job = row.cluster, row.job_id
        newest[job] = max(row.started_at, newest.get(job, row.started_at))
    old = []
    for row in known:
        newest_start = newest.get((row.cluster, row.job_id), row.started_at)
        if row.ended_at is None and row.started_at < newest_start:
            row.state = _REQUEUED
            old.append(row)
    return old


def _end_vanished(cluster: str, latest: Mapping[_Key, JobRecord], now: datetime) -> list[Job]:
    """Jobs that ran when last seen and that this whole list does not hold."""
    rows = (
        Job.objects.filter(cluster=cluster, ended_at=None, seen_at__lt=now)
        .order_by("pk")
        .select_for_update()
    )
    gone = [row for row in rows if _get_key(row) not in latest]
    for row in gone:
        row.state = UNKNOWN_END
    return gone


def _end(gone: Sequence[Job]) -> None:
    """They ended between the last look that showed them and the next: the first is what is
    known."""
    for row in gone:
        row.ended_at = max(row.seen_at, row.started_at)
    Job.objects.bulk_update(gone, ["state", "ended_at"], batch_size=500)


def _end_places(rows: Iterable[Job]) -> None:
    """The places of a job carry its end, so that a node's jobs of a time are found by one index."""
    ends: dict[datetime | None, list[int]] = defaultdict(list)
    for row in rows:
        ends[row.ended_at].append(row.pk)
    for ended_at, keys in ends.items():
        for part in _split_into_chunks(sorted(keys)):
            JobNode.objects.filter(job_id__in=part).update(ended_at=ended_at)


def _split_into_chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
