"""What came of a replay: the shape of `--json`, and the tables that people read."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from detectors.faults import Role
from incidents.models import Fault, Incident, IncidentFault
from incidents.vocabulary.lifecycle import State
from runbooks.models import Run

_FAULTS_SHOWN = 6
_INCIDENT_FIELDS = ("id", "component", "fault_type", "severity", "root_resource", "state")
_RUN_FIELDS = ("mode", "state", "outcome")
NOT_TRUE = frozenset({State.FALSE_POSITIVE.value, State.DUPLICATE.value})


@contextmanager
def log_only_errors() -> Iterator[None]:
    """What the pipeline logs of a replay is told in its tables; an error still shows."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


@dataclass(frozen=True)
class Played:
    """`incidents` are rows as `--json` prints them; `deeds` counts what was done to nodes in
    Slurm."""

    lines: int
    events: int
    faults: int
    incidents: list[dict[str, Any]]
    deeds: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "events": self.events,
            "faults": self.faults,
            "incidents": self.incidents,
        }

    @property
    def true_incidents(self) -> list[dict[str, Any]]:
        """Those that no engineer marked as false alarm or duplicate."""
        return [row for row in self.incidents if row["state"] not in NOT_TRUE]


def collect(*, lines: int, events: int, deeds: dict[str, int]) -> Played:
    """Reads the database that the replay wrote."""
    # The root first, then its symptoms in the order in which they joined.
    incidents = Incident.objects.order_by("opened_at", "id")
    rows = [
        _build_incident_row(incident)
        for incident in incidents.prefetch_related("members__fault", "runs")
    ]
    return Played(lines, events, Fault.objects.count(), rows, deeds)


def merge(plays: Sequence[Played]) -> Played:
    """Several plays as one: counts are summed, and the ids of a later play's incidents follow those
    of the earlier."""
    lines = events = faults = 0
    rows: list[dict[str, Any]] = []
    deeds: Counter[str] = Counter()
    for played in plays:
        lines += played.lines
        events += played.events
        faults += played.faults
        last_id = max((row["id"] for row in rows), default=0)
        rows += [{**row, "id": row["id"] + last_id} for row in played.incidents]
        deeds.update(played.deeds)
    return Played(lines, events, faults, rows, dict(deeds))


def _build_incident_row(incident: Incident) -> dict[str, Any]:
    members = sorted(incident.members.all(), key=lambda member: member.role != Role.ROOT)
    runs = incident.runs.order_by("id").select_related("node")
    row = {name: getattr(incident, name) for name in _INCIDENT_FIELDS}
    row["opened_at"] = _format_iso(incident.opened_at)
    row["restored_at"] = _format_iso(incident.restored_at)
    row["recovery"] = incident.recovery
    row["channels"] = incident.channels
    row["faults"] = [_build_fault_row(member) for member in members]
    row["runs"] = [_run_row(run, incident) for run in runs]
    return row


def _build_fault_row(member: IncidentFault) -> dict[str, Any]:
    return {
        "resource": member.fault.resource,
        "fault_type": member.fault.fault_type,
        "role": member.role,
        "rule": member.rule,
        "reason": member.reason,
    }


def _run_row(run: Run, incident: Incident) -> dict[str, Any]:
    machine = f"node/{run.node.name}" if run.node is not None else incident.owner
    row = {"id": run.pk, "runbook": run.runbook, "node": machine}
    row |= {name: getattr(run, name) for name in _RUN_FIELDS}
    row["started_at"] = _format_iso(run.started_at)
    row["finished_at"] = _format_iso(run.finished_at)
    return row


def _format_iso(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


def format_text(played: Played) -> Iterator[str]:
    """One block per incident, then the true ones by class and month."""
    for row in played.incidents:
        yield from _format_block(row)
    true_incidents = played.true_incidents
    yield (
        f"{played.lines} lines, {played.events} events, {played.faults} faults,"
        f" {len(played.incidents)} incidents, of which {len(true_incidents)} are neither"
        " false alarm nor duplicate."
    )
    yield from _format_months(true_incidents)
    recoveries = Counter(row["recovery"] for row in true_incidents)
    yield from _format_counts("Recovery", recoveries)
    yield from _format_counts("In Slurm", played.deeds)


def _format_block(row: dict[str, Any]) -> Iterator[str]:
    opened = _format_minute(row["opened_at"])
    root = f"{row['fault_type']} on {row['root_resource']}"
    yield f"#{row['id']} {opened}  {row['component']}  {root}"
    restored = (
        f", service restored {_format_minute(row['restored_at'])}" if row["restored_at"] else ""
    )
    channels = " and ".join(row["channels"]) or "nobody"
    facts = f"{row['severity']}, {row['state']}, recovery {row['recovery']}"
    yield f"    {facts}, told by {channels}{restored}"
    for fault in row["faults"][:_FAULTS_SHOWN]:
        name = f"{fault['fault_type']} on {fault['resource']}"
        yield f"    {fault['role']:<8}{name}: {fault['reason']}"
    more = len(row["faults"]) - _FAULTS_SHOWN
    if more > 0:
        yield f"    ... and {more} more"
    for run in row["runs"]:
        outcome = f"{run['state']} ({run['mode']}) {run['outcome']}"
        yield f"    run {run['id']} of {run['runbook']} on {run['node']}: {outcome}"


def _format_minute(time: str | None) -> str:
    return time[:16].replace("T", " ") if time else "-"


def _format_months(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table: incidents by class, a column per month."""
    by_class: dict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for row in rows:
        month = row["opened_at"][:7]
        by_class[row["component"]][month] += 1
        total[month] += 1
    months = sorted(total)
    yield _format_cells("", [*months, "all"])
    for component in sorted(by_class):
        counts = by_class[component]
        yield _format_cells(component, [*(counts[month] for month in months), counts.total()])
    yield _format_cells("all", [*(total[month] for month in months), total.total()])


def _format_cells(title: str, cells: Sequence[str | int]) -> str:
    return f"{title:<22}" + "".join(f"{cell:>9}" for cell in cells)


def _format_counts(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if counts:
        texts = [f"{name} {count}" for name, count in sorted(counts.items())]
        yield f"{title}: {', '.join(texts)}"
