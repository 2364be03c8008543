"""What a runbook would do on a node now: each step, what the guards say, which approvals it needs.
Looks only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import Action, Component, Severity
from incidents.models import Fault, Node
from runbooks.engine import outcome_history, start
from runbooks.fleet import fleet, guard_check
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table as guards
from runbooks.guards.table import Act, GuardVerdict
from runbooks.library import library
from runbooks.plan.choose import Chosen, FaultPlace, Past, choose
from runbooks.plan.runbook import Planned, Runbook, Trouble
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState, SlurmError, SlurmRefusal
from runbooks.step import World

# No incident has this number: it is only asked whose a drain is.
_NO_INCIDENT = 0


class CannotSimulate(Exception):
    """Why not, for people."""


@dataclass(frozen=True)
class GuardSays:
    guard: str
    allows: bool
    reason: str
    ask_again_at: str


@dataclass(frozen=True)
class StepWould:
    """`would` completes "Kintsugi would ..."; `guards` is empty for a step that they are not asked
    for."""

    step: str
    would: str
    given: dict[str, Any]
    needs_approval: bool
    guards: tuple[GuardSays, ...]


@dataclass(frozen=True)
class Simulation:
    """`chosen` names the runbook that the fault would start here now, and `because` why; empty
    without a fault."""

    runbook: str
    version: str
    mode: str
    node: str
    state: str
    jobs: tuple[str, ...]
    faults: tuple[str, ...]
    in_the_way: str
    fault_type: str
    is_for: bool | None
    chosen: str
    because: str
    steps: tuple[StepWould, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Request:
    """What is simulated, with Slurm's answer."""

    book: Runbook
    node: Node
    snapshot: FleetSnapshot
    fault_type: str
    now: datetime
    world: World


def simulate(
    runbook: str, name: str, *, fault_type: str, now: datetime, world: World
) -> Simulation:
    """Raises CannotSimulate for what is not known, and where Slurm cannot be asked."""
    book = library.load().get(runbook)
    if book is None:
        raise CannotSimulate(
            f"There is no runbook {runbook}; there are {', '.join(library.load())}."
        )
    node = Node.objects.filter(name=name).first()
    if node is None or node.is_provisional:
        raise CannotSimulate(
            f"{name} is not in the inventory, and what is not in the inventory is never acted upon."
        )
    if fault_type and catalog.load().get(fault_type) is None:
        raise CannotSimulate(f"There is no fault type {fault_type} in the catalogue.")
    try:
        snapshot = fleet.read_snapshot(world.slurm)
        state = snapshot.nodes.get(name)
        if state is None:
            raise CannotSimulate(
                f"Slurm knows no node {name}. Compare the inventory with `sinfo -N`."
            )
        jobs = tuple(f"{job.job_id} of {job.user}" for job in world.slurm.list_jobs(name))
    except (SlurmError, SlurmRefusal) as error:
        raise CannotSimulate(f"Slurm cannot be asked: {error}") from error
    chosen, because, is_for = _choose(book, node, fault_type, now)
    request = _Request(book, node, snapshot, fault_type, now, world)
    mode = str(fleet.decide_mode(book.name, node, now).mode)
    faults = _list_active_faults(name)
    steps = tuple(_simulate_step(planned, request) for planned in book.steps)
    state_text = "+".join([state.base, *sorted(state.flags)])
    in_the_way = _find_foreign_drain(state, _read_slurm_user(world))
    return Simulation(
        runbook,
        book.version,
        mode,
        name,
        state_text,
        jobs=jobs,
        faults=faults,
        in_the_way=in_the_way,
        fault_type=fault_type,
        is_for=is_for,
        chosen=chosen,
        because=because,
        steps=steps,
    )


def _choose(
    book: Runbook, node: Node, fault_type: str, now: datetime
) -> tuple[str, str, bool | None]:
    row = catalog.load().get(fault_type) if fault_type else None
    if row is None:
        return "", "", None
    trouble = Trouble(
        row.id,
        Action(row.action),
        Component(row.component),
        Severity(row.severity),
        fitness=row.fitness,
    )
    there = Fault.objects.active().of_node(node.name).filter(fault_type=fault_type).first()
    part = there.resource if there is not None else resources.node(node.name)
    place = FaultPlace(resource=part, is_node=True, is_provisional=False)
    books = library.load()
    past = Past(outcome_history.load_tried(node, fault_type, books, now))
    modes = start.get_modes(fleet.load_modes(books, now), node)
    found = choose(trouble, place, books.values(), modes=modes, past=past, now=now)
    if isinstance(found, Chosen):
        return found.book.name, found.reason, book.fits(trouble)
    return "", found.reason, book.fits(trouble)


def _simulate_step(planned: Planned, request: _Request) -> StepWould:
    step = planned.step
    would = step.plan.format(node=request.node.name)
    says: tuple[GuardSays, ...] = ()
    if step.act is not None:
        says = _ask_guards(step.act, request)
    return StepWould(step.name, would, dict(planned.given), planned.needs_approval, says)


def _ask_guards(act: Act, request: _Request) -> tuple[GuardSays, ...]:
    """Every guard's answer to this act on the node now."""
    node, fault_type, now = request.node, request.fault_type, request.now
    state = fleet.load_fleet_for_node(
        node,
        request.book.name,
        request.snapshot,
        fault_type=fault_type,
        limits=request.book.limits,
        policy=request.world.policy,
        now=now,
    )
    guard_request = guard_check.build_request(act, node.name, fault_type)
    verdicts = guards.explain(guard_request, state, now)
    return tuple(_format_verdict(verdict) for verdict in verdicts)


def _format_verdict(verdict: GuardVerdict) -> GuardSays:
    name, refused = verdict.guard.name, verdict.refused
    if refused is None:
        return GuardSays(name, allows=True, reason="", ask_again_at="")
    again_at = refused.ask_again_at.isoformat() if refused.ask_again_at is not None else ""
    return GuardSays(name, allows=False, reason=refused.reason, ask_again_at=again_at)


def _list_active_faults(name: str) -> tuple[str, ...]:
    rows = Fault.objects.active().of_node(name).order_by("raised_at", "pk")
    return tuple(f"{row.fault_type} on {row.resource}" for row in rows)


def _read_slurm_user(world: World) -> str:
    try:
        return ownership.parse_slurm_user(world.slurm.read_config())
    except SlurmError:
        return ownership.SLURM_USER


def _find_foreign_drain(state: NodeState, slurm_user: str) -> str:
    """A person's drain, which a run would wait for."""
    if ownership.get_owner(state, _NO_INCIDENT, slurm_user=slurm_user) is not Owner.PERSON:
        return ""
    who = state.reason_set_by or "someone"
    return (
        f'{who} has taken {state.name} out: "{state.reason}". A run would leave it alone while that'
        " stands."
    )
