"""What a step may see of its run, its node and its incident, from the rows and from Slurm."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from detectors.detector import Target
from detectors.faults import Action
from incidents.inventory import services
from incidents.maintenance import active_windows
from incidents.models import Fault, Incident
from runbooks.engine import start
from runbooks.models import Run
from runbooks.node import drains
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Written
from runbooks.slurm.protocol import NodeState, SlurmRefusal
from runbooks.step import Context, StandingFault, World


def build(
    run: Run, state: NodeState, attempted_at: datetime | None, *, now: datetime, world: World
) -> Context:
    if run.node is None or run.node.is_provisional:
        raise SlurmRefusal(f"{run.place} is not in the inventory")
    standing = Fault.objects.active().of_node(run.place)
    return Context(
        run_id=run.pk,
        incident_id=run.incident_id,
        fault_type=run.fault_type,
        resource=run.facts.get("resource", run.incident.root_resource),
        node=run.place,
        find_target=partial(_target, run.place),
        state=state,
        facts=run.facts,
        world=world,
        now=now,
        attempted_at=attempted_at,
        known_boot_id=run.node.boot_id,
        may_adopt=partial(_may_adopt, state),
        find_written=partial(_written, run),
        # The device's clock may be behind: a fault that we first saw after a boot was raised after
        # it.
        find_standing=lambda: [
            StandingFault(
                fault.fault_type,
                fault.resource,
                max(fault.last_seen_at, fault.observed_at),
                Action(fault.action),
            )
            for fault in standing
        ],
        find_members=partial(_members, run),
        find_maintenance=lambda: active_windows.maintained(now).get(run.place, ""),
    )


def _members(run: Run) -> list[StandingFault]:
    """The incident's own that stand on the run's node: its root first, then what calls for most,
    the oldest first."""
    rows = Fault.objects.active().of_node(run.place).filter(membership__incident=run.incident_id)
    root = run.incident.root_fault_id
    ordered = sorted(
        rows, key=lambda row: (row.pk != root, -Action(row.action).rank, row.raised_at, row.pk)
    )
    return [
        StandingFault(
            row.fault_type, row.resource, max(row.last_seen_at, row.observed_at), Action(row.action)
        )
        for row in ordered
    ]


def _target(node: str) -> Target:
    found = services.target(node)
    if found is None:
        raise SlurmRefusal(f"{node} is not in the inventory")
    return found


def _may_adopt(state: NodeState) -> bool:
    """A drain left by another incident is ours to take over unless that incident still waits for a
    person."""
    other = ownership.incident_of(state)
    incident = Incident.objects.filter(pk=other).first() if other is not None else None
    return incident is None or not incident.is_open or not start.is_over(incident)


def _written(run: Run, incident_id: int) -> list[Written]:
    """The reasons that runs of that incident wrote onto nodes."""
    rows = (
        Run.objects.filter(incident=incident_id).exclude(pk=run.pk).values_list("facts", flat=True)
    )
    return [one for facts in rows for one in drains.known_to(facts)]
