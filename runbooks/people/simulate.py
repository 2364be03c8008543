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
from runbooks.fleet.fleet import ShownFleet
from runbooks.guards import table as guards
from runbooks.guards.table import GuardVerdict
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
        shown = fleet.read_fleet(world.slurm)
        state = shown.nodes.get(name)
        if state is None:
            raise CannotSimulate(
                f"Slurm knows no node {name}. Compare the inventory with `sinfo -N`."
            )
        jobs = tuple(f"{job.job_id} of {job.user}" for job in world.slurm.jobs(name))
    except (SlurmError, SlurmRefusal) as error:
        raise CannotSimulate(f"Slurm cannot be asked: {error}") from error
    chosen, because, is_for = _chosen(book, node, fault_type, now)
    return Simulation(
        runbook=book.name,
        version=book.version,
        mode=str(fleet.mode_of(book.name)),
        node=name,
        state="+".join([state.base, *sorted(state.flags)]),
        jobs=jobs,
        faults=_standing(name),
        in_the_way=_in_the_way(state),
        fault_type=fault_type,
        is_for=is_for,
        chosen=chosen,
        because=because,
        steps=tuple(
            _would(planned, book, node, shown, fault_type, now=now, world=world)
            for planned in book.steps
        ),
    )


def _chosen(
    book: Runbook, node: Node, fault_type: str, now: datetime
) -> tuple[str, str, bool | None]:
    row = catalog.load().get(fault_type) if fault_type else None
    if row is None:
        return "", "", None
    trouble = Trouble(row.id, Action(row.action), Component(row.component), Severity(row.severity))
    there = Fault.objects.active().of_node(node.name).filter(fault_type=fault_type).first()
    part = there.resource if there is not None else resources.node(node.name)
    where = FaultPlace(resource=part, is_node=True, is_provisional=False)
    books = library.load()
    past = Past(outcome_history.tried_on(node, fault_type, books, now))
    found = choose(trouble, where, books.values(), modes=start.modes(), past=past, now=now)
    if isinstance(found, Chosen):
        return found.book.name, found.reason, book.fits(trouble)
    return "", found.reason, book.fits(trouble)


def _would(
    planned: Planned,
    book: Runbook,
    node: Node,
    shown: ShownFleet,
    fault_type: str,
    *,
    now: datetime,
    world: World,
) -> StepWould:
    act = planned.step.act
    says: tuple[GuardSays, ...] = ()
    if act is not None:
        seen = fleet.for_node(
            node, book.name, shown, fault_type=fault_type, policy=world.policy, now=now
        )
        says = tuple(
            _says(one)
            for one in guards.explain(guard_check.request(act, node.name, fault_type), seen, now)
        )
    would = planned.step.plan.format(node=node.name)
    return StepWould(planned.step.name, would, dict(planned.given), planned.needs_approval, says)


def _says(one: GuardVerdict) -> GuardSays:
    refused = one.refused
    if refused is None:
        return GuardSays(one.guard.name, allows=True, reason="", ask_again_at="")
    again = refused.ask_again_at.isoformat() if refused.ask_again_at is not None else ""
    return GuardSays(one.guard.name, allows=False, reason=refused.reason, ask_again_at=again)


def _standing(name: str) -> tuple[str, ...]:
    rows = Fault.objects.active().of_node(name).order_by("raised_at", "pk")
    return tuple(f"{row.fault_type} on {row.resource}" for row in rows)


def _in_the_way(state: NodeState) -> str:
    """A person's drain, which a run would wait for."""
    if ownership.owner(state, _NO_INCIDENT) is not Owner.PERSON:
        return ""
    who = state.reason_set_by or "someone"
    return (
        f'{who} has taken {state.name} out: "{state.reason}". A run would leave it alone while that'
        " stands."
    )
