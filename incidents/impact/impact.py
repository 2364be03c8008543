"""What incidents cost: jobs, people, GPU-hours, and when each was told. The only writer of
`IncidentJob`.

Nothing is said of jobs before Slurm has listed them: not known is never none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import Component, Severity
from incidents.db import upsert
from incidents.db.prepared import Given, Moment, Prepared
from incidents.evaluation import impact_reach
from incidents.evaluation.impact_reach import FaultAt, ImpactReach
from incidents.evaluation.impact_rules import (
    AFTER_END,
    Harm,
    ImpactTally,
    JobSpan,
    Touch,
    find_lifted_severity,
    sum_known,
    touch,
)
from incidents.impact import capacity
from incidents.inventory import graphs
from incidents.jobs import job_source, jobs
from incidents.models import Incident, IncidentFault, IncidentJob, Job, Node, Notification
from incidents.state import outbox
from incidents.state.transitions import record
from incidents.vocabulary.lifecycle import CLOSED, State

KIND = "impact"
LIFTED = "severity_raised"
# An incident that closed is looked at for a while yet: its jobs end, and accounts come, after it.
_AFTERWARDS = timedelta(hours=1)
# Accounts of a job may come a day late, when slurmdbd was away; what ended before that stays as it
# was counted.
_LATE = timedelta(days=1)
_MOST_AT_ONCE = 200
_NAMED_PEOPLE, _NAMED_JOBS = 20, 3
_CLOSED = [state.value for state in CLOSED]
_COLUMNS = ["nodes", "fault_at", "outcome", "is_harmed", "gpu_hours_lost", "is_estimate"]
_INCIDENT_COLUMNS = (
    "nodes_touched",
    "impact_at",
    "jobs_touched",
    "gpu_hours_lost",
    "severity",
    "own_severity",
)
_SENT = Notification.SendState.SENT
_NOT_OWN = (State.FALSE_POSITIVE.value, State.DUPLICATE.value)


@dataclass
class _Found:
    """One incident and what was read for it."""

    row: Incident
    faults: list[IncidentFault] = field(default_factory=list)
    reach: ImpactReach = field(default_factory=ImpactReach)
    touches: dict[int, tuple[Job, Touch, int]] = field(default_factory=dict)
    """By primary key of the job: what happened to it, and on how many of its nodes."""


def is_waiting(now: datetime) -> bool:
    """Whether an open incident has never been looked at: worth a look at once."""
    return bool(_UNSEEN.values(closed_since=now - _AFTERWARDS, opened_since=now - _LATE))


def assess(now: datetime) -> list[int]:
    """Counts the jobs of incidents anew, those longest not counted first; which of them changed."""
    source = job_source.get_source()
    if source is None or source.answered_at is None:
        return []
    changed = []
    found = _read(now)
    _find_jobs(found, now)
    shares = _Shares()
    with transaction.atomic():
        upsert.lock_placement()  # no batch raises a severity between our look and our write
        rows = Incident.objects.select_related("root_fault").in_bulk(
            [each.row.pk for each in found]
        )
        for each in found:
            each.row = rows[each.row.pk]
            if _write(each, shares, now):
                changed.append(each.row.pk)
        _note_told([each.row.pk for each in found])
        outbox.show(changed, now=now)
    return changed


def get_due(now: datetime) -> QuerySet[Incident]:
    rows = _get_counted(now - _AFTERWARDS).select_related("root_fault")
    return rows.order_by(F("impact_at").asc(nulls_first=True), "pk")


def _get_counted(closed_since: Moment) -> QuerySet[Incident]:
    lately = Q(closed_at__gte=closed_since) & ~Q(state__in=_NOT_OWN)
    return Incident.objects.filter(~Q(state__in=_CLOSED) | lately, root_fault__isnull=False)


_UNSEEN = Prepared(
    lambda: (
        _get_counted(Given("closed_since"))
        .filter(impact_at=None, opened_at__gte=Given("opened_since"))
        .values_list("pk")[:1]
    )
)


def mark_told(incident: int, *, actor: str, now: datetime) -> int:
    """A person says that the owners of all jobs that were lost have been told; how many rows that
    was news for."""
    with transaction.atomic():
        rows = IncidentJob.objects.filter(incident=incident, is_harmed=True, owner_told_at=None)
        people = sorted(set(rows.values_list("job__user", flat=True)))
        count = rows.update(owner_told_at=now)
        if count:
            jobs_text = "1 job" if count == 1 else f"{count} jobs"
            text = f"Told the owners of {jobs_text}: {', '.join(people)}."
            record(incident, kind="owner_told", text=text, actor=actor, now=now)
    return count


def get_tally(incident: Incident, rows: Iterable[IncidentJob] | None = None) -> ImpactTally | None:
    """The line for people; None while jobs are not known."""
    if incident.impact_at is None:
        return None
    if rows is None:
        rows = incident.jobs.select_related("job")
    touched = list(rows)
    harmed = [row for row in touched if row.is_harmed]
    people = {row.job.user for row in harmed or touched}
    is_estimate = any(row.is_estimate or row.gpu_hours_lost is None for row in harmed)
    is_over = all(row.job.ended_at is not None for row in harmed)
    hours = sum_known(row.gpu_hours_lost for row in harmed)
    return ImpactTally(
        jobs=len(touched),
        harmed=len(harmed),
        people=len(people),
        nodes=incident.nodes_touched,
        hours=hours,
        is_estimate=is_estimate,
        is_over=is_over,
    )


# Reading
# ---------------------------------------------------------------------------


def _read(now: datetime) -> list[_Found]:
    found = {row.pk: _Found(row) for row in get_due(now)[:_MOST_AT_ONCE]}
    links = IncidentFault.objects.filter(
        Q(incident__in=found) | Q(incident__duplicate_of__in=found)
    )
    for link in links.select_related("fault", "incident").order_by("pk"):
        owner = link.incident_id if link.incident_id in found else link.incident.duplicate_of_id
        if owner is not None:
            found[owner].faults.append(link)
    graph = graphs.get_current()
    for incident in found.values():
        faults = [_make_fault_at(link) for link in incident.faults]
        incident.reach = impact_reach.compute_reach(faults, graph)
    return list(found.values())


def _make_fault_at(link: IncidentFault) -> FaultAt:
    row = link.fault
    ended_at = None if row.is_active else row.cleared_at or row.last_seen_at
    component = Component(row.component)
    severity = Severity(row.severity)
    return FaultAt(row.fault_type, row.resource, component, severity, row.raised_at, ended_at)


def _get_begin(found: _Found) -> datetime:
    row = found.row
    earliest = row.onset_at - AFTER_END
    if row.impact_at is None:
        return earliest
    return max(earliest, row.impact_at - _LATE)


def _find_jobs(found: Sequence[_Found], now: datetime) -> None:
    """Which jobs each incident's faults met. The jobs of all of them are read together."""
    if not found:
        return
    hosts = set().union(*(each.reach.hosts for each in found))
    since = min(map(_get_begin, found))
    alive = {row.pk: row for row in jobs.list_alive_on(hosts, since=since, until=now)}
    named = set().union(*(each.reach.jobs for each in found))
    alive.update({row.pk: row for row in _get_by_path(named)})
    machines_by_job: dict[int, list[str]] = defaultdict(list)
    jobs_by_machine: dict[str, list[int]] = defaultdict(list)
    for pk, node in jobs.list_places(alive):
        machine = resources.node(node)
        machines_by_job[pk].append(machine)
        jobs_by_machine[machine].append(pk)
    gpus = _count_gpus_per_node(hosts)
    paths = {pk: jobs.get_path(job.cluster, job.job_id) for pk, job in alive.items()}
    for each in found:
        reach = each.reach
        met = {pk for pk, path in paths.items() if path in reach.jobs}
        for machine in reach.machines:
            met.update(jobs_by_machine[machine])
        for pk in met:
            job = alive[pk]
            machines = machines_by_job[pk]
            spans = set(reach.jobs.get(paths[pk], ()))
            for machine in machines:
                spans.update(reach.machines.get(machine, ()))
            happened = touch(_make_span(job, machines, gpus), spans, now)
            if happened is not None:
                node_count = sum(machine in reach.machines for machine in machines)
                each.touches[pk] = (job, happened, node_count)


def _get_by_path(paths: Iterable[str]) -> list[Job]:
    ids = [path.rpartition("/")[2] for path in paths]
    return list(Job.objects.filter(job_id__in=ids)) if ids else []


def _count_gpus_per_node(hosts: Iterable[str]) -> dict[str, int]:
    rows = Node.objects.filter(name__in=list(hosts)).annotate(parts=Count("gpus"))
    gpus = {}
    for name, count, parts in rows.values_list("name", "gpu_count", "parts"):
        gpus[resources.node(name)] = count or parts
    return gpus


def _make_span(job: Job, machines: Sequence[str], gpus: Mapping[str, int]) -> JobSpan:
    """A job on several nodes whose GPUs nobody counted is taken to have them whole: so are nearly
    all of them."""
    there = sum(gpus.get(machine, 0) for machine in machines)
    is_whole = len(machines) > 1
    if job.gpus and there:
        is_whole = job.gpus >= there
    nodes = max(job.node_count, len(machines))
    return JobSpan(
        started_at=job.started_at,
        ended_at=job.ended_at,
        state=job.state,
        nodes=nodes,
        gpus=job.gpus,
        checkpoint_at=job.checkpoint_at,
        is_whole=is_whole,
    )


# Writing
# ---------------------------------------------------------------------------


def _write(found: _Found, shares: _Shares, now: datetime) -> bool:
    """The jobs of one incident, its sums, what is told of them, and its severity. True when people
    see a change."""
    incident = found.row
    before = (
        incident.jobs_touched,
        incident.nodes_touched,
        incident.gpu_hours_lost,
        incident.severity,
    )
    known = {row.job_id: row for row in incident.jobs.select_related("job")}
    unnamed = _put_rows(found, known, now)
    rows = list(incident.jobs.select_related("job"))
    incident.nodes_touched = len(found.reach.machines)
    incident.impact_at, incident.jobs_touched = now, len(rows)
    counted = get_tally(incident, rows)
    incident.gpu_hours_lost = counted.hours if counted is not None else None
    was = incident.severity
    because = _raise_severity(found, rows, shares)
    values = {name: getattr(incident, name) for name in _INCIDENT_COLUMNS}
    Incident.objects.filter(pk=incident.pk).update(**values)
    if unnamed and counted is not None:
        text = f"{_format_owners(unnamed)}. In all: {counted.format_words()}."
        record(incident.pk, kind=KIND, text=text, now=now)
    if incident.severity != was:
        text = f"Severity is now {incident.severity}, before {was}: {because}."
        record(incident.pk, kind=LIFTED, text=text, now=now)
    return before != (
        incident.jobs_touched,
        incident.nodes_touched,
        incident.gpu_hours_lost,
        incident.severity,
    )


def _put_rows(found: _Found, known: Mapping[int, IncidentJob], now: datetime) -> list[IncidentJob]:
    """New and changed rows are written, those that no fault meets any more are not kept. The newly
    lost, unnamed."""
    written: list[IncidentJob] = []
    unnamed: list[IncidentJob] = []
    named = {row.job.user for row in known.values() if row.is_harmed}
    for pk, (job, happened, nodes) in found.touches.items():
        before = known.get(pk)
        values = {
            "nodes": nodes or 1,
            "fault_at": happened.fault_at,
            "outcome": happened.outcome,
            "is_harmed": happened.is_harmed,
            "gpu_hours_lost": happened.gpu_hours,
            "is_estimate": happened.is_estimate,
        }
        row = IncidentJob(incident=found.row, job=job, recorded_at=now, **values)
        if before is None or _is_different(before, values):
            written.append(row)
        if row.is_harmed and job.user not in named:
            unnamed.append(row)
    # an upsert costs a tenth of an update row by row, and the placement lock is held
    IncidentJob.objects.bulk_create(
        written,
        batch_size=1000,
        update_conflicts=True,
        unique_fields=["incident", "job"],
        update_fields=_COLUMNS,
    )
    since = _get_begin(found)
    untouched = [row for pk, row in known.items() if pk not in found.touches]
    gone = []
    for row in untouched:
        is_in_time = row.job.ended_at is None or row.job.ended_at >= since
        if is_in_time and row.owner_told_at is None:
            gone.append(row.pk)
    IncidentJob.objects.filter(pk__in=gone).delete()
    return unnamed


def _is_different(row: IncidentJob, values: Mapping[str, Any]) -> bool:
    return any(getattr(row, name) != value for name, value in values.items())


def _format_owners(rows: Sequence[IncidentJob]) -> str:
    """`Jobs lost or hanging: alice (4711 NODE_FAIL, 16 nodes), bob (4712 hangs, 4 nodes)`: largest
    first."""
    by_user: dict[str, list[IncidentJob]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row.job.node_count, row.job.job_id)):
        by_user[row.job.user or "unknown"].append(row)
    owners = []
    for user, user_rows in list(by_user.items())[:_NAMED_PEOPLE]:
        jobs = _format_jobs(user_rows)
        owners.append(f"{user} ({jobs})")
    names = ", ".join(owners)
    unnamed = len(by_user) - _NAMED_PEOPLE
    if unnamed > 0:
        return f"Jobs lost or hanging: {names} and those of {unnamed} more people"
    return f"Jobs lost or hanging: {names}"


def _format_jobs(rows: Sequence[IncidentJob]) -> str:
    jobs = []
    for row in rows[:_NAMED_JOBS]:
        job = row.job
        outcome = row.outcome or "hangs"
        jobs.append(f"{job.job_id} {outcome}, {_format_node_count(job.node_count)}")
    if len(rows) > _NAMED_JOBS:
        jobs.append(f"{len(rows) - _NAMED_JOBS} more")
    return "; ".join(jobs)


def _format_node_count(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def is_named(user: str, text: str) -> bool:
    """Whether a message names this owner, in the words of `_format_owners`."""
    return f" {user or 'unknown'} (" in text


class _Shares:
    """The inventory's partitions, read once for all incidents of one look, and only when one needs
    them."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] | None = None
        self._partitions: dict[str, list[str]] = {}

    def compute_largest_share(self, out: set[str]) -> float:
        """Of the partitions of these nodes, the largest share that they are; one node alone is no
        share."""
        if len(out) < 2:
            return 0.0
        if self._sizes is None:
            self._partitions = capacity.get_partitions_by_node()
            self._sizes = capacity.get_sizes(self._partitions)
        counts: dict[str, int] = defaultdict(int)
        for node in out:
            for name in self._partitions.get(node, ()):
                counts[name] += 1
        shares = [count / self._sizes[name] for name, count in counts.items()]
        return max(shares, default=0.0)


def _raise_severity(found: _Found, rows: Sequence[IncidentJob], shares: _Shares) -> str:
    """Sets own severity, and the incident's where its harm calls for more; why it does. Never
    lowers."""
    incident = found.row
    own = _get_own_severity(found)
    incident.own_severity = str(own)
    harmed = [row for row in rows if row.is_harmed]
    people = {row.job.user for row in harmed}
    largest_nodes = max((row.job.node_count for row in harmed), default=0)
    out_share = shares.compute_largest_share(_find_nodes_out(found))
    harm = Harm(
        jobs=len(harmed), people=len(people), largest_nodes=largest_nodes, out_share=out_share
    )
    highest = max(own, Severity(incident.severity), key=lambda severity: severity.rank)
    raised = find_lifted_severity(highest, harm)
    if raised is None:
        return ""
    severity, rule = raised
    incident.severity = str(severity)
    return f"{rule.because} (rule {rule.name})"


def _get_own_severity(found: _Found) -> Severity:
    """The highest of its faults, as `incidents.state.cases` takes it: echoes and what opens nothing
    do not count."""
    known = catalog.load()
    counted = []
    if found.row.root_fault is not None:
        counted.append(Severity(found.row.root_fault.severity))
    for link in found.faults:
        kind = known.get(link.fault.fault_type)
        if kind is None or (kind.opens_incident and not kind.is_sympathetic):
            counted.append(Severity(link.fault.severity))
    return max(counted, key=lambda severity: severity.rank, default=Severity.INDETERMINATE)


def _find_nodes_out(found: _Found) -> set[str]:
    """Nodes that this incident took out: its own while it is out, and those that Slurm shows as
    down in it."""
    row = found.row
    out = set()
    if row.out_of_service_at is not None and row.restored_at is None:
        out.add(row.owner)
    for link in found.faults:
        if link.fault.is_active and capacity.is_out(link.fault.fault_type):
            out.add(link.fault.owner)
    return {machine for machine in out if machine.startswith("node/")}


def _note_told(incidents: Sequence[int]) -> None:
    """An owner is told when the first message that names them has been sent."""
    sent = Notification.objects.filter(
        incident__in=incidents, reason=KIND, state=_SENT, sent_at__isnull=False
    )
    messages: dict[int, list[tuple[str, datetime]]] = defaultdict(list)
    for incident, text, at in sent.order_by("-sent_at").values_list(
        "incident_id", "entry__text", "sent_at"
    ):
        if at is not None:
            messages[incident].append((text or "", at))
    untold = IncidentJob.objects.filter(incident__in=messages, is_harmed=True, owner_told_at=None)
    named: list[IncidentJob] = []
    for row in untold.select_related("job"):
        for text, at in messages[row.incident_id]:
            if is_named(row.job.user, text):
                row.owner_told_at = at
        named += [row] if row.owner_told_at is not None else []
    IncidentJob.objects.bulk_update(named, ["owner_told_at"], batch_size=500)
