"""What came of a replay: the shape of `--json`, and the tables that people read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from detectors.faults import Role
from incidents.models import Fault, Incident
from incidents.vocabulary.lifecycle import State

NOT_TRUE = frozenset({State.FALSE_POSITIVE.value, State.DUPLICATE.value})


@contextmanager
def only_errors_logged() -> Iterator[None]:
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
    incidents = Incident.objects.order_by("opened_at", "id").prefetch_related(
        "members__fault", "runs"
    )
    return Played(
        lines, events, Fault.objects.count(), [_row(incident) for incident in incidents], deeds
    )


def merged(plays: Sequence[Played]) -> Played:
    """Several plays as one: counts are summed, and the ids of a later play's incidents follow those
    of the earlier."""
    rows: list[dict[str, Any]] = []
    deeds: Counter[str] = Counter()
    for played in plays:
        last = max((row["id"] for row in rows), default=0)
        rows += [{**row, "id": row["id"] + last} for row in played.incidents]
        deeds.update(played.deeds)
    return Played(
        sum(played.lines for played in plays),
        sum(played.events for played in plays),
        sum(played.faults for played in plays),
        rows,
        dict(deeds),
    )


def _row(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.pk,
        "component": incident.component,
        "fault_type": incident.fault_type,
        "severity": incident.severity,
        "root_resource": incident.root_resource,
        "state": incident.state,
        "opened_at": _iso(incident.opened_at),
        "restored_at": _iso(incident.restored_at),
        "recovery": incident.recovery,
        "channels": incident.channels,
        "faults": [
            {
                "resource": member.fault.resource,
                "fault_type": member.fault.fault_type,
                "role": member.role,
                "rule": member.rule,
                "reason": member.reason,
            }
            for member in sorted(
                incident.members.all(), key=lambda member: member.role != Role.ROOT
            )
        ],
        "runs": [
            {
                "id": run.pk,
                "runbook": run.runbook,
                "node": f"node/{run.node.name}" if run.node is not None else incident.owner,
                "mode": run.mode,
                "state": run.state,
                "outcome": run.outcome,
                "started_at": _iso(run.started_at),
                "finished_at": _iso(run.finished_at),
            }
            for run in incident.runs.order_by("id").select_related("node")
        ],
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


def text(played: Played) -> Iterator[str]:
    """One block per incident, then the true ones by class and month."""
    for row in played.incidents:
        yield from _block(row)
    yield (
        f"{played.lines} lines, {played.events} events, {played.faults} faults,"
        f" {len(played.incidents)} incidents, of which {len(played.true_incidents)} are neither"
        " false alarm nor duplicate."
    )
    yield from _by_class_and_month(played.true_incidents)
    yield from _counted("Recovery", Counter(row["recovery"] for row in played.true_incidents))
    yield from _counted("In Slurm", Counter(played.deeds))


def _block(row: dict[str, Any]) -> Iterator[str]:
    when = _minute(row["opened_at"])
    yield f"#{row['id']} {when}  {row['component']}  {row['fault_type']} on {row['root_resource']}"
    restored = f", service restored {_minute(row['restored_at'])}" if row["restored_at"] else ""
    told = " and ".join(row["channels"]) or "nobody"
    yield (
        f"    {row['severity']}, {row['state']}, recovery {row['recovery']}, told by"
        f" {told}{restored}"
    )
    for fault in row["faults"][:_FAULTS_SHOWN]:
        yield (
            f"    {fault['role']:<8}{fault['fault_type']} on {fault['resource']}: {fault['reason']}"
        )
    if len(row["faults"]) > _FAULTS_SHOWN:
        yield f"    ... and {len(row['faults']) - _FAULTS_SHOWN} more"
    for run in row["runs"]:
        told = f"{run['state']} ({run['mode']}) {run['outcome']}"
        yield f"    run {run['id']} of {run['runbook']} on {run['node']}: {told}"


_FAULTS_SHOWN = 6


def _minute(at: str | None) -> str:
    return at[:16].replace("T", " ") if at else "-"


def _by_class_and_month(rows: list[dict[str, Any]]) -> Iterator[str]:
    months = sorted({row["opened_at"][:7] for row in rows})
    counts = Counter((row["component"], row["opened_at"][:7]) for row in rows)
    yield f"{'':<22}" + "".join(f"{month:>9}" for month in months) + f"{'all':>9}"
    for component in sorted({row["component"] for row in rows}):
        cells = [counts[component, month] for month in months]
        yield f"{component:<22}" + "".join(f"{cell:>9}" for cell in cells) + f"{sum(cells):>9}"
    sums = [
        sum(counts[component, month] for component in {row["component"] for row in rows})
        for month in months
    ]
    yield f"{'all':<22}" + "".join(f"{cell:>9}" for cell in sums) + f"{sum(sums):>9}"


def _counted(title: str, counts: Counter[str]) -> Iterator[str]:
    if counts:
        yield f"{title}: " + ", ".join(
            f"{name} {number}" for name, number in sorted(counts.items())
        )
