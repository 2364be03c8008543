"""Leave for a node's own check to stop a job's start, which makes Slurm drain the node: counted,
capped, stoppable.

Asks the same guards as a run's drain, and the mode of the runbook that the fault calls for. Touches
no node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from detectors.catalog import catalog
from detectors.faults import Action, Component, Severity
from incidents.models import Incident, Node
from incidents.state import transitions
from runbooks.engine import start
from runbooks.fleet import armings, fleet, guard_check
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table
from runbooks.guards.table import Act, GuardRefused
from runbooks.library import library
from runbooks.models import FleetLock, JobStop, Mode
from runbooks.plan.choose import Chosen, FaultPlace, Past, choose
from runbooks.plan.runbook import Trouble
from runbooks.slurm.protocol import SlurmError, SlurmRefusal
from runbooks.step import World

# Long enough for Slurm to drain the node after its Prolog failed, and for us to see it.
LEASE = timedelta(minutes=10)


@dataclass(frozen=True)
class Leave:
    """Whether the job may be stopped; `reason` is for people."""

    is_granted: bool
    reason: str


def may_stop_job(name: str, fault_types: Sequence[str], *, now: datetime, world: World) -> Leave:
    """One answer for one node; what is granted counts against the cap until its lease ends."""
    node = Node.objects.inventoried().filter(name=name).first()
    if node is None:
        return Leave(
            False,
            f"{name} is not in the inventory, and what is not in the inventory is never acted upon",
        )
    chosen = _find_runbook(node, fault_types, now)
    if chosen is None:
        return Leave(
            False, f"none of {', '.join(fault_types) or 'no faults'} is a fault that stops a job"
        )
    fault_type, runbook = chosen
    try:
        snapshot = fleet.read_snapshot(world.slurm)
    except (SlurmError, SlurmRefusal) as error:
        return Leave(False, f"Slurm could not be asked how many nodes are out: {error}")
    leave = _claim_node(node, fault_type, runbook, snapshot=snapshot, now=now, world=world)
    _record(node, leave, now)
    return leave


def _find_runbook(node: Node, fault_types: Sequence[str], now: datetime) -> tuple[str, str] | None:
    """The gravest fault that calls for a runbook, and the runbook."""
    rows = catalog.load()
    known = [rows[name] for name in fault_types if name in rows]
    place = FaultPlace(resource="", is_node=True, is_provisional=False)
    books = [book for book in library.load().values() if book.needs_node]
    modes = start.get_modes(fleet.load_modes(library.load(), now), node)
    for row in sorted(known, key=lambda row: -Severity(row.severity).rank):
        action, component = Action(row.action), Component(row.component)
        trouble = Trouble(row.id, action, component, Severity(row.severity), fitness=row.fitness)
        chosen = choose(trouble, place, books, modes=modes, past=Past(), now=now)
        if isinstance(chosen, Chosen):
            return row.id, chosen.book.name
    return None


def _claim_node(
    node: Node,
    fault_type: str,
    runbook: str,
    *,
    snapshot: FleetSnapshot,
    now: datetime,
    world: World,
) -> Leave:
    mode = fleet.decide_mode(runbook, node, now).mode
    if mode is not Mode.ARMED:
        return Leave(
            False,
            f"runbook {runbook} is not armed but {mode}: the fault is recorded, the job starts",
        )
    FleetLock.objects.get_or_create(name="fleet")
    with transaction.atomic():
        FleetLock.objects.select_for_update().get(name="fleet")
        state = fleet.load_fleet_for_node(
            node,
            runbook,
            snapshot,
            fault_type=fault_type,
            limits=library.get_limits(runbook),
            policy=world.policy,
            now=now,
        )
        verdict = table.check(
            guard_check.build_request(Act.DRAIN, node.name, fault_type), state, now
        )
        if isinstance(verdict, GuardRefused):
            return Leave(False, verdict.reason)
        if state.arming is not None and not armings.count_run(state.arming, now):
            return Leave(False, f"arming {state.arming} has ended meanwhile")
        JobStop.objects.create(
            node=node, fault_type=fault_type, granted_at=now, expires_at=now + LEASE
        )
    return Leave(True, f"{fault_type} on {node.name}")


def _record(node: Node, leave: Leave, now: datetime) -> None:
    """On the node's open incident, where it has one: people see who stopped the job, or why nobody
    did."""
    latest = Incident.objects.filter(node=node, closed_at=None).order_by("-pk").first()
    if latest is not None:
        may = "may" if leave.is_granted else "may not"
        text = f"The check on {node.name} {may} stop the job that starts there: {leave.reason}."
        transitions.record(latest.pk, kind="run_note", text=text, actor="kintsugi", now=now)
