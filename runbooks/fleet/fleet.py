"""What the guards are told: Slurm's nodes, our own claims on them, what was done before, what
stands in the way.

Reads only. What Slurm must be asked comes from the caller, who asks before any lock is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db.models import Q

from detectors import resources
from detectors.faults import Action
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.maintenance import active_windows
from incidents.models import Fault, Node
from incidents.people import wider_incidents
from incidents.reserve import decommissions
from runbooks.fleet import breaker
from runbooks.guards import history, table
from runbooks.guards.policy import Policy
from runbooks.guards.table import Act, Fleet, PastReboot, WiderCause
from runbooks.library import library
from runbooks.models import JobStop, Mode, Run, RunbookMode, StepRun, StopSwitch
from runbooks.plan.limits import NO_LIMITS, Limits
from runbooks.slurm.demands import Demand
from runbooks.slurm.protocol import NodeState, SlurmError, SlurmReader, SlurmRefusal

SITE = "*"
"""The name under which the site's own mode is kept: no runbook goes further."""
# Slurm was read before the claims: a run that ended in between may have left its node out.
_JUST_ENDED = timedelta(minutes=2)
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]
_RESTARTS = {"reboot": Act.REBOOT, "cold_cycle": Act.POWER_CYCLE}
_MODES = tuple(Mode)


@dataclass(frozen=True)
class ShownFleet:
    """What Slurm shows, looked at once for one round of guards."""

    nodes: Mapping[str, NodeState]
    demands: tuple[Demand, ...] = ()


def read_fleet(slurm: SlurmReader) -> ShownFleet:
    """All nodes, and what jobs need. Raises SlurmError."""
    return ShownFleet(slurm.nodes(), tuple(slurm.demands()))


def read(run: Run, shown: ShownFleet, *, policy: Policy, now: datetime) -> Fleet:
    """The fleet as this run's guards must see it."""
    others = Q(node=run.node) & ~Q(pk=run.pk)
    return Fleet(
        **_of_site(run.runbook, shown, policy=policy, now=now),
        **_of_fault(run.fault_type, ~Q(pk=run.pk), now),
        **_of_node(run.place, run.fault_type, part_of(run), now),
        held_until=run.incident.held_until,
        held_reason=run.incident.held_reason,
        claimed=_claims(~Q(pk=run.pk), now),
        is_claimed=run.claimed_at is not None,
        reboots=_reboots(others, now),
    )


def for_node(
    node: Node, runbook: str, shown: ShownFleet, *, fault_type: str, policy: Policy, now: datetime
) -> Fleet:
    """The fleet as the guards must see it for a node on which no run of ours acts."""
    return Fleet(
        **_of_site(runbook, shown, policy=policy, now=now),
        **_of_fault(fault_type, Q(), now),
        **_of_node(node.name, fault_type, resources.node(node.name), now),
        claimed=_claims(~Q(node=node), now),
        is_claimed=False,
        reboots=_reboots(Q(node=node), now),
    )


def heard(names: Sequence[str], slurm: SlurmReader) -> set[str] | None:
    """Which of these nodes answer Slurm; None when Slurm itself cannot be asked."""
    try:
        states = slurm.nodes()
    except (SlurmError, SlurmRefusal):
        return None
    silent = {
        name
        for name, state in states.items()
        if state.base == "DOWN" or "NOT_RESPONDING" in state.flags
    }
    return {name for name in names if name in states} - silent


def mode_of(runbook: str) -> Mode:
    """Its own mode (no row: shadow), and no further than the site's, where that is set."""
    return modes_of((runbook,))[runbook]


_MODES_OF = Prepared(
    lambda: RunbookMode.objects.filter(runbook__among=Given("runbooks")).values_list(
        "runbook", "mode"
    )
)


def modes_of(runbooks: Collection[str]) -> dict[str, Mode]:
    """Of each, as `mode_of`."""
    rows = dict(_MODES_OF.rows(runbooks=(*runbooks, SITE)))
    site = Mode(rows.get(SITE, Mode.ARMED))
    return {name: lower(Mode(rows.get(name, Mode.SHADOW)), site) for name in runbooks}


def lower(one: Mode, other: Mode) -> Mode:
    """The one that lets less happen."""
    return min(one, other, key=_MODES.index)


def mode_of_site() -> Mode | None:
    """None where nobody has set one: each runbook's own counts."""
    row = RunbookMode.objects.filter(runbook=SITE).first()
    return Mode(row.mode) if row is not None else None


def stopped(stop_file: Path) -> str:
    """Who stopped everything, and why; empty when nobody did."""
    row = StopSwitch.objects.filter(released_at=None).order_by("engaged_at").first()
    if row is not None:
        return f"{row.engaged_by} at {row.engaged_at:%Y-%m-%d %H:%M %Z}: {row.reason}"
    return f"the file {stop_file} exists" if stop_file.exists() else ""


def limits_of(runbook: str) -> Limits:
    """As its file says now: limits hold for the present, not for the time when a run started."""
    return getattr(library.load().get(runbook), "limits", NO_LIMITS)


def part_of(run: Run) -> str:
    """What the fault that the run is for is on."""
    part: str = run.facts.get("resource", run.incident.root_resource)
    return part


def get_held_nodes(run: Run, now: datetime) -> frozenset[str]:
    """Nodes that our other runs have been let take out."""
    return _claims(~Q(pk=run.pk), now)


def repairs_standing(node: str) -> frozenset[str]:
    """Types of the faults that stand on the node and call for a repair of it."""
    standing = Fault.objects.active().of_node(node).filter(action__in=_REPAIRS)
    return frozenset(standing.values_list("fault_type", flat=True))


def _of_site(runbook: str, shown: ShownFleet, *, policy: Policy, now: datetime) -> dict[str, Any]:
    tripped = breaker.get_open_breaker()
    return {
        "nodes": shown.nodes,
        "demands": shown.demands,
        "bounds": policy.bounds,
        "stopped": stopped(policy.stop_file),
        "mode": mode_of(runbook),
        "per_hour": limits_of(runbook).per_hour,
        "breaker": str(tripped) if tripped is not None else "",
        "turned_bad": (
            breaker.turned_bad(shown.nodes, now, bounds=policy.bounds)
            if tripped is None
            else frozenset()
        ),
        "maintained": active_windows.maintained(now),
        "decommissioned": decommissions.get_decommissions(),
        "pods": {place.name: place.pod for place in graphs.current().topology.nodes},
    }


def _of_fault(fault_type: str, others: Q, now: datetime) -> dict[str, Any]:
    """When runs and jobs' stops for this fault type began, within the hour."""
    since = now - history.HOUR
    runs = Run.objects.filter(others, fault_type=fault_type, claimed_at__gt=since).values_list(
        "claimed_at", flat=True
    )
    stops = JobStop.objects.filter(fault_type=fault_type, granted_at__gt=since).values_list(
        "granted_at", flat=True
    )
    return {"begun": (*runs, *stops)}


def _of_node(node: str, fault_type: str, part: str, now: datetime) -> dict[str, Any]:
    found = wider_incidents.wider(node, fault_type, part, now)
    causes = (
        WiderCause(f"incident #{one.incident_id}, {one.title}, is open on {one.resource}")
        for one in found
    )
    return {"causes": tuple(causes), "standing": repairs_standing(node)}


def _claims(which: Q, now: datetime) -> frozenset[str]:
    """With the nodes whose own check was given leave to stop a job: Slurm is about to drain
    them."""
    unended = Q(finished_at=None) | Q(finished_at__gte=now - _JUST_ENDED)
    taken = Run.objects.filter(which, unended, claimed_at__isnull=False).values_list(
        "node__name", flat=True
    )
    stops = JobStop.objects.filter(expires_at__gt=now).values_list("node__name", flat=True)
    return frozenset((*taken, *stops))


def _reboots(which: Q, now: datetime) -> tuple[PastReboot, ...]:
    """Attempts count, whatever their outcome: an act of unknown outcome may have been done."""
    done = (StepRun.Outcome.ATTEMPTED, StepRun.Outcome.DONE, StepRun.Outcome.ALREADY_DONE)
    runs = Run.objects.filter(which).values("pk")
    attempts = StepRun.objects.filter(
        run__in=runs,
        name__in=list(_RESTARTS),
        outcome__in=done,
        started_at__gte=now - table.SUSPECT_WITHIN,
    )
    rows = attempts.values_list("run__node__name", "run__fault_type", "started_at", "name")
    return tuple(
        PastReboot(node, fault_type, at, _RESTARTS[name]) for node, fault_type, at, name in rows
    )
