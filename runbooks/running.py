"""One turn of a run: at most one step, then commit. Killing the worker at any line loses nothing.

1. Lease the run.  2. Look whether its incident still calls for it.  3. Look at the node: is the step done already,
is the drain still ours?  4. Ask the guards.  5. Store the attempt.  6. Act.  7. Store the result, and go on.
An attempt without a result is one of unknown outcome: step 3 looks before anything is done again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from detectors import resources
from incidents import inventory
from incidents.lifecycle import State
from incidents.models import Fault, Incident
from runbooks import ending, fleet, guards, leasing, library, ownership, starting, withdrawing
from runbooks.ending import Turn
from runbooks.guards import Allowed, Refused, Request
from runbooks.leasing import LateWorker
from runbooks.models import FleetLock, Mode, Run, StepRun
from runbooks.ownership import Dropped, TakenOver
from runbooks.slurm import NodeState, SlurmError, SlurmRefusal
from runbooks.step import Context, Done, Failed, StandingFault, Step, Wait, World
from runbooks.steps.drain import Drain
from runbooks.steps.reboot import Reboot

_log = logging.getLogger(__name__)
_AFTER_TROUBLE = timedelta(seconds=30)
# The points between which a worker may be killed; tests raise there.
Point = Callable[[str], None]


def _pass(point: str) -> None:
    """Nothing happens between two lines."""


def advance(run_id: int, *, now: datetime, world: World, at: Point = _pass) -> None:
    """At most one step of the run, then commit. Safe to call twice, late, or by several workers at once."""
    run = leasing.take(run_id, now)
    if run is None:
        return
    at("leased")
    try:
        _attended(run, now=now, world=world, at=at)
    except LateWorker as late:
        _log.warning("%s was taken over or ended by someone else while a step was under way", late)


def _attended(run: Run, *, now: datetime, world: World, at: Point) -> None:
    """A turn whose troubles are kept: nothing that goes wrong in a step is lost or repeated blindly."""
    try:
        _turn(run, now=now, world=world, at=at)
    except LateWorker:
        raise
    except SlurmRefusal as refusal:
        ask = f"Look at {run.node.name} and finish the repair by hand."
        ending.fail(Turn(run, _step(run), now), Failed(f"Slurm cannot do it: {refusal}", ask))
    except SlurmError as error:
        _look_again(run, str(error), now)
    except Exception as error:  # noqa: BLE001 - one of the four named places: around one advance
        _log.exception("run %s: the step broke", run.pk)
        _look_again(run, f"The step broke: {type(error).__name__}: {error}", now)


def _turn(run: Run, *, now: datetime, world: World, at: Point) -> None:
    step = _step(run)
    has_rebooted = run.steps.filter(name=Reboot.name).exists()
    verdict = withdrawing.consider(
        State(run.incident.state), is_called_for=starting.is_called_for(run), has_rebooted=has_rebooted
    )
    if isinstance(verdict, withdrawing.Withdraw):
        _withdraw(run, verdict, now=now, world=world)
        return
    if run.mode == Mode.SHADOW:
        _shadow(run, now=now, world=world)
        return
    # Guards need the whole fleet, other steps only their node.
    nodes = world.slurm.nodes(() if step.act else (run.node.name,))
    if run.node.name not in nodes:
        raise SlurmRefusal(f"{run.node.name}: Slurm knows no such node.")
    turn = Turn(run, step, now)
    ctx = _context(run, nodes[run.node.name], turn.attempted_at, now=now, world=world)
    if _settled_by_looking(turn, ctx):
        return
    if step.act is not None and _is_refused(turn, nodes, world=world):
        return
    at("allowed")
    if turn.attempted_at is not None and now < turn.attempted_at + step.settles_in:
        since = f"{turn.attempted_at:%H:%M:%S %Z}"
        ending.note(turn, f"Whether the attempt of {since} took is not known yet.", again_in=timedelta(seconds=5))
        return
    ending.attempt(turn)
    at("attempted")
    result = step.run(ctx)
    at("acted")
    ending.store(turn, result, is_last=_is_last(run, step))
    at("stored")


def _settled_by_looking(turn: Turn, ctx: Context) -> bool:
    """Whether the turn ends without an act: done already, blocked, or the node is no longer ours."""
    step, run = turn.step, turn.run
    assert step is not None  # noqa: S101 - only `advance` itself makes a turn without one
    done = step.is_done(ctx)
    if done is not None:
        ending.store(turn, done, is_last=_is_last(run, step), outcome=StepRun.Outcome.ALREADY_DONE)
        return True
    if step.needs_hold:
        hold = ownership.hold(ctx.state, run.incident_id)
        if isinstance(hold, Dropped):
            ctx.world.slurm.drain(run.node.name, run.facts["reason"])
            ending.note(turn, f"{hold.text}; Kintsugi drained it again at once.", again_in=timedelta(0))
            return True
        if isinstance(hold, TakenOver):
            ending.take_over(turn, hold)
            return True
    blocked = step.blocked(ctx)
    if isinstance(blocked, Failed):
        ending.fail(turn, blocked)
    elif isinstance(blocked, Wait):
        ending.wait(turn, blocked)
    return blocked is not None


def _step(run: Run) -> Step:
    return library.load()[run.runbook].steps[run.step]


def _is_last(run: Run, step: Step) -> bool:
    return library.load()[run.runbook].steps[-1] is step


def _is_refused(turn: Turn, nodes: dict[str, NodeState], *, world: World) -> bool:
    """Asks the guards; a drain that is allowed is claimed in the same transaction, so that the cap holds."""
    verdict = _claim(turn, nodes, world=world)
    if isinstance(verdict, Allowed):
        return False
    if verdict.ask_again_at is None:
        ask = f"Examine {turn.run.node.name}: power-cycle it or call the vendor. It is drained."
        ending.fail(turn, Failed(f"{verdict.reason}. {turn.run.node.name} stays drained.", ask))
    else:
        ending.refuse(turn, verdict)
    return True


def _claim(turn: Turn, nodes: dict[str, NodeState], *, world: World) -> Allowed | Refused:
    run, step, now = turn.run, turn.step, turn.now
    assert step is not None  # noqa: S101
    assert step.act is not None  # noqa: S101
    request = Request(act=step.act, node=run.node.name, fault_type=run.fault_type)
    if step.act is not guards.Act.DRAIN:
        state = fleet.read(run, nodes, stop_file=world.policy.stop_file, now=now)
        return guards.check(request, state, now)
    FleetLock.objects.get_or_create(name="fleet")
    with transaction.atomic():
        # SQLite's transactions are immediate: there the whole database is the lock.
        FleetLock.objects.select_for_update().get(name="fleet")
        state = fleet.read(run, nodes, stop_file=world.policy.stop_file, now=now)
        verdict = guards.check(request, state, now)
        if isinstance(verdict, Allowed):
            leasing.keep(run, claimed_at=now)
    return verdict


def _context(run: Run, state: NodeState, attempted_at: datetime | None, *, now: datetime, world: World) -> Context:
    target = inventory.target(run.node.name)
    if target is None:
        raise SlurmRefusal(f"{run.node.name} is not in the inventory")
    standing = Fault.objects.filter(owner=resources.node(run.node.name), is_active=True)
    return Context(
        run_id=run.pk,
        incident_id=run.incident_id,
        fault_type=run.fault_type,
        resource=run.facts.get("resource", run.incident.root_resource),
        node=run.node.name,
        target=target,
        state=state,
        facts=run.facts,
        world=world,
        now=now,
        attempted_at=attempted_at,
        known_boot_id=run.node.boot_id,
        may_adopt=_may_adopt(state),
        # The device's clock may be behind: a fault that we first saw after a boot was raised after it.
        standing=[
            StandingFault(fault.fault_type, fault.resource, max(fault.last_seen_at, fault.observed_at))
            for fault in standing
        ],
    )


def _may_adopt(state: NodeState) -> bool:
    """A drain left by another incident is ours to take over unless that incident still waits for a person."""
    other = ownership.incident_of(state)
    incident = Incident.objects.filter(pk=other).first() if other is not None else None
    return incident is None or not incident.is_open or not starting.is_over(incident)


def _withdraw(run: Run, verdict: withdrawing.Withdraw, *, now: datetime, world: World) -> None:
    """Hands back what this run drained and never rebooted; what was rebooted and not verified stays drained."""
    node = run.node.name
    has_drained = run.steps.filter(name=Drain.name).exists()
    is_ours = has_drained and isinstance(
        ownership.hold(world.slurm.nodes((node,))[node], run.incident_id), ownership.Held
    )
    other = starting.calling_for(run.node).exclude(pk=run.incident_id).first()
    if is_ours and other is not None:
        text = f"{node} stays drained for incident #{other.pk}."
    elif is_ours and verdict.hands_back and not run.steps.filter(name=Reboot.name).exists():
        world.slurm.resume(node)
        text = f"{node} is handed back: it takes jobs again."
    elif is_ours:
        text = f"{node} stays drained; resume it when it is well: scontrol update NodeName={node} State=RESUME"
    else:
        text = f"Nothing was left to undo on {node}."
    ending.withdraw(Turn(run, None, now), Done(f"Run {run.pk} is withdrawn, because {verdict.reason}. {text}"))


def _shadow(run: Run, *, now: datetime, world: World) -> None:
    ending.shadow(run, library.load()[run.runbook].steps, remark=_objection(run, now=now, world=world), now=now)


def _objection(run: Run, *, now: datetime, world: World) -> str:
    """What would stand against the run right now, as a sentence of its own; empty when nothing would."""
    try:
        nodes = world.slurm.nodes()
    except SlurmError as error:
        return f" Slurm cannot be looked at: {error}"
    if run.node.name not in nodes:
        return f" Slurm knows no node {run.node.name}."
    state = replace(fleet.read(run, nodes, stop_file=world.policy.stop_file, now=now), mode=Mode.ARMED)
    verdict = guards.check(Request(guards.Act.DRAIN, run.node.name, run.fault_type), state, now)
    return f" The guards would refuse that now: {verdict.reason}." if isinstance(verdict, Refused) else ""


def _look_again(run: Run, text: str, now: datetime) -> None:
    """Trouble on the way: an attempt keeps its unknown outcome, and the next turn looks first."""
    try:
        ending.note(Turn(run, None, now), f"{text} Kintsugi looks again.", again_in=_AFTER_TROUBLE)
    except LateWorker:
        _log.warning("run %s ended while a step was in trouble: %s", run.pk, text)
