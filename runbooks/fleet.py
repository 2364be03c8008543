"""What the guards are told: Slurm's nodes, our own claims on them, past reboots, stop switch and mode. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import Q, QuerySet

from incidents import services as incidents
from incidents.models import Node
from runbooks import guards
from runbooks.guards import Fleet, PastReboot
from runbooks.models import JobStop, Mode, Run, RunbookMode, StepRun, StopSwitch
from runbooks.slurm import NodeState, Slurm, SlurmError, SlurmRefusal
from runbooks.steps.reboot import Reboot

# Slurm was read before the claims: a run that ended in between may have left its node out.
_JUST_ENDED = timedelta(minutes=2)
# Of the states of jobs, those in which a node works or ends its work: https://slurm.schedmd.com/squeue.html.
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SIGNALING", "SUSPENDED"})


def read(run: Run, nodes: Mapping[str, NodeState], *, stop_file: Path, now: datetime) -> Fleet:
    """The fleet as this run's guards must see it."""
    return Fleet(
        nodes=nodes,
        claimed=_claimed(run, now),
        reboots=_reboots(run, now),
        stopped=stopped(stop_file),
        mode=mode_of(run.runbook),
        maintained=incidents.maintained(now),
        held_until=run.incident.held_until,
        held_reason=run.incident.held_reason,
    )


def for_node(node: Node, runbook: str, nodes: Mapping[str, NodeState], *, stop_file: Path, now: datetime) -> Fleet:
    """The fleet as the guards must see it for a node on which no run of ours acts."""
    claimed = _claims(Run.objects.exclude(node=node), now) | _job_stops(now)
    return Fleet(
        nodes=nodes,
        claimed=claimed,
        stopped=stopped(stop_file),
        mode=mode_of(runbook),
        maintained=incidents.maintained(now),
    )


def heard(names: Sequence[str], slurm: Slurm) -> set[str] | None:
    """Which of these nodes answer Slurm; None when Slurm itself cannot be asked."""
    try:
        states = slurm.nodes()
    except (SlurmError, SlurmRefusal):
        return None
    silent = {name for name, state in states.items() if state.base == "DOWN" or "NOT_RESPONDING" in state.flags}
    return {name for name in names if name in states} - silent


def jobs_on(names: Collection[str], slurm: Slurm) -> dict[str, frozenset[str]] | None:
    """The jobs that run on each of these nodes; None when Slurm cannot be asked."""
    try:
        return {name: frozenset(job.job_id for job in slurm.jobs(name) if job.state in _RUNS) for name in names}
    except (SlurmError, SlurmRefusal):
        return None


def mode_of(runbook: str) -> Mode:
    """No row: shadow."""
    row = RunbookMode.objects.filter(runbook=runbook).first()
    return Mode(row.mode) if row is not None else Mode.SHADOW


def stopped(stop_file: Path) -> str:
    """Who stopped everything, and why; empty when nobody did."""
    row = StopSwitch.objects.filter(released_at=None).order_by("engaged_at").first()
    if row is not None:
        return f"{row.engaged_by} at {row.engaged_at:%Y-%m-%d %H:%M %Z}: {row.reason}"
    return f"the file {stop_file} exists" if stop_file.exists() else ""


def _claimed(run: Run, now: datetime) -> frozenset[str]:
    return _claims(Run.objects.exclude(pk=run.pk), now) | _job_stops(now)


def _claims(runs: QuerySet[Run], now: datetime) -> frozenset[str]:
    unended = Q(finished_at=None) | Q(finished_at__gte=now - _JUST_ENDED)
    return frozenset(runs.filter(unended, claimed_at__isnull=False).values_list("node__name", flat=True))


def _job_stops(now: datetime) -> frozenset[str]:
    """Nodes whose own check was given leave to stop a job: Slurm is about to drain them."""
    return frozenset(JobStop.objects.filter(expires_at__gt=now).values_list("node__name", flat=True))


def _reboots(run: Run, now: datetime) -> tuple[PastReboot, ...]:
    """Attempts count, whatever their outcome: an act of unknown outcome may have been done."""
    attempts = StepRun.objects.filter(
        run__node=run.node,
        name=Reboot.name,
        outcome__in=(StepRun.Outcome.ATTEMPTED, StepRun.Outcome.DONE, StepRun.Outcome.ALREADY_DONE),
        started_at__gte=now - guards.REBOOT_INTERVAL,
    ).exclude(run=run)
    rows = attempts.values_list("run__node__name", "run__fault_type", "started_at")
    return tuple(PastReboot(node=node, fault_type=fault_type, at=at) for node, fault_type, at in rows)
