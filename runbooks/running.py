"""One turn of a run: at most one step, then commit. Killing the worker at any line loses nothing.

1. Lease the run.  2. Look whether its incident still calls for it.  3. Look at the node: is the step done already,
is the drain still ours?  4. Ask the guards.  5. Store the attempt.  6. Act.  7. Store the result, and go on.
An attempt without a result is one of unknown outcome: step 3 looks before anything is done again. Where a person's
leave is needed, it is asked for before the guards are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction

from detectors import resources
from detectors.detector import Target
from incidents import inventory, vendor_cases
from incidents.lifecycle import State
from incidents.models import Fault, Incident
from incidents.prepared import Given, Prepared
from runbooks import (
    afterwards,
    approvals,
    asking,
    audit,
    beside,
    ending,
    fleet,
    guards,
    heartbeat,
    holding,
    keeping_drained,
    leasing,
    library,
    ownership,
    starting,
    withdrawing,
)
from runbooks.ending import Turn
from runbooks.fleet import Shown
from runbooks.giving_back import GIVEN_BACK_AT
from runbooks.guards import Act, Allowed, Refused
from runbooks.leasing import LateWorker
from runbooks.library import Planned
from runbooks.models import Mode, Run, StepRun
from runbooks.ownership import Dropped, TakenOver
from runbooks.rungs import STEPS_THAT_TOUCH
from runbooks.slurm import NodeState, SlurmError, SlurmRefusal
from runbooks.step import Context, Done, Failed, StandingFault, Step, World, told
from runbooks.steps.adopt_drain import AdoptDrain
from runbooks.steps.drain import Drain
from runbooks.steps.resume import Resume
from runbooks.world_errors import WorldError, WorldRefusal

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
    try:
        with heartbeat.beating(run):
            at("leased")
            _attended(run, now=now, world=world, at=at)
    except LateWorker as late:
        _log.warning("%s was taken over or ended by someone else while a step was under way", late)


def _attended(run: Run, *, now: datetime, world: World, at: Point) -> None:
    """A turn whose troubles are kept: nothing that goes wrong in a step is lost or repeated blindly."""
    try:
        _turn(run, now=now, world=world, at=at)
    except LateWorker:
        raise
    except library.LibraryError as error:
        ask = f"Abort run {run.pk}, look at {run.place} and finish the repair by hand."
        ending.fail(Turn(run, None, now), Failed(f"Its plan cannot be followed by this version: {error}", ask))
    except WorldRefusal as refusal:
        ask = f"Look at {run.place} and finish the repair by hand."
        ending.fail(Turn(run, _planned(run).step, now), Failed(f"It cannot be done: {refusal}", ask))
    except WorldError as error:
        _look_again(run, str(error), now)
    except Exception as error:  # noqa: BLE001 - one of the four named places: around one advance
        _log.exception("run %s: the step broke", run.pk)
        _look_again(run, f"The step broke: {type(error).__name__}: {error}", now)


def _turn(run: Run, *, now: datetime, world: World, at: Point) -> None:
    if run.finished_at is not None:
        _look_after(run, now=now, world=world, at=at)
        return
    if run.node is None:
        is_called_for = starting.is_called_for(run)
        beside.turn(run, library.planned(run.plan), is_called_for=is_called_for, now=now, world=world)
        return
    planned = _planned(run)
    step = planned.step
    verdict = withdrawing.consider(
        State(run.incident.state),
        is_called_for=starting.is_called_for(run),
        has_rebooted=_has_tried(run),
        waits_for_part=_waits_for_part(run),
    )
    turn = Turn(run, step, now)
    if isinstance(verdict, withdrawing.Withdraw) and not (step.finishes and turn.attempted_at):
        _withdraw(run, verdict, now=now, world=world)
        return
    if run.mode == Mode.SHADOW:
        _shadow(run, now=now, world=world)
        return
    # Guards need the whole fleet, other steps only their node.
    nodes = world.slurm.nodes(() if step.act else (run.place,))
    if run.place not in nodes:
        raise SlurmRefusal(f"{run.place}: Slurm knows no such node.")
    ctx = replace(
        _context(run, nodes[run.place], turn.attempted_at, now=now, world=world),
        params=planned.params,
        key=turn.key,
    )
    if _settled_by_looking(turn, ctx):
        return
    if isinstance(verdict, withdrawing.Withdraw):
        _withdraw(run, verdict, now=now, world=world)
        return
    if approvals.is_for_number_alone(turn, planned, ctx) and _waits_for_room(turn, step, nodes, world=world):
        return
    leave = approvals.check(turn, planned, ctx, nodes)
    if not isinstance(leave, approvals.Given):
        return
    if step.act is not None and _is_refused(turn, step.act, nodes, world=world):
        return
    at("allowed")
    if turn.attempted_at is not None and now < turn.attempted_at + step.settles_in:
        since = f"{turn.attempted_at:%H:%M:%S %Z}"
        ending.note(turn, f"Whether the attempt of {since} took is not known yet.", again_in=timedelta(seconds=5))
        return
    with transaction.atomic():
        approvals.used(leave, now)
        ending.attempt(turn)
    at("attempted")
    result = step.run(ctx)
    at("acted")
    ending.store(turn, result, is_last=_is_last(run))
    at("stored")


def _look_after(run: Run, *, now: datetime, world: World, at: Point) -> None:
    """An ended run that has given its node back: whether Slurm has kept that. Any other: whether it keeps the drain."""
    try:
        state = world.slurm.nodes((run.place,))[run.place]
        ctx = _context(run, state, None, now=now, world=world)
        if GIVEN_BACK_AT in run.facts:
            afterwards.turn(Turn(run, Resume(), now), ctx, at=at)
        else:
            keeping_drained.turn(run, ctx)
    except WorldError as error:
        afterwards.put_off(run, error, now)


def _settled_by_looking(turn: Turn, ctx: Context) -> bool:
    """Whether the turn ends here: done already, under way, blocked, or the node is no longer ours."""
    step, run = turn.step, turn.run
    assert step is not None  # noqa: S101 - only `advance` itself makes a turn without one
    done = step.is_done(ctx)
    if done is not None:
        ending.store(turn, done, is_last=_is_last(run), outcome=StepRun.Outcome.ALREADY_DONE)
        return True
    if step.needs_hold:
        hold = holding.look(ctx)
        if isinstance(hold, Dropped):
            audit.of_run(run, "drain", audit.Phase.BEGUN, f"{hold.text}: drained again.", now=turn.now)
            ctx.world.slurm.drain(run.place, run.facts["reason"])
            run.facts["held_at"] = told(turn.now)
            ending.note(turn, f"{hold.text}; Kintsugi drained it again at once.", again_in=timedelta(0))
            return True
        if isinstance(hold, TakenOver):
            ending.take_over(turn, hold)
            return True
    begun = step.carry_on(ctx) if turn.attempted_at is not None else None
    result = begun if begun is not None else step.blocked(ctx)
    if result is not None:
        ending.store(turn, result, is_last=_is_last(run))
    return result is not None


def _planned(run: Run) -> Planned:
    return library.planned(run.plan)[run.step]


def _is_last(run: Run) -> bool:
    return run.step == len(run.plan) - 1


_TOUCHED = Prepared(lambda: StepRun.objects.filter(run=Given("run"), name__in=STEPS_THAT_TOUCH).values_list("pk")[:1])


def _has_tried(run: Run) -> bool:
    """Whether it has begun to reset, reboot or power-cycle: what it touched is verified before it takes jobs."""
    return bool(_TOUCHED.rows(run=run.pk))


def _waits_for_part(run: Run) -> bool:
    """Whether the vendor was called for this run, too: it has still to wait for the part, and there is a case."""
    if "await_part" not in [row["step"] for row in run.plan[run.step :]]:
        return False
    return leasing.VENDOR_CASE in run.facts or vendor_cases.standing(run.incident_id) is not None


def _is_refused(turn: Turn, act: Act, nodes: dict[str, NodeState], *, world: World) -> bool:
    """Asks the guards; what jobs need is looked at where the node is about to be taken."""
    takes = act is Act.DRAIN or turn.run.claimed_at is None
    shown = Shown(nodes, tuple(world.slurm.demands()) if takes else ())
    verdict = asking.ask(turn.run, act, shown, policy=world.policy, now=turn.now)
    if isinstance(verdict, Allowed):
        return False
    _refuse(turn, verdict)
    return True


def _waits_for_room(turn: Turn, step: Step, nodes: dict[str, NodeState], *, world: World) -> bool:
    """Nobody is asked whether one node more may go out while the guards would not let it."""
    assert step.act is not None  # noqa: S101 - a step that takes no node out is asked about for other reasons
    shown = Shown(nodes, tuple(world.slurm.demands()))
    verdict = asking.look(turn.run, step.act, shown, policy=world.policy, now=turn.now)
    if isinstance(verdict, Allowed):
        return False
    _refuse(turn, verdict)
    return True


def _refuse(turn: Turn, verdict: Refused) -> None:
    if verdict.ask_again_at is None:
        ask = f"Examine {turn.run.place}: power-cycle it or call the vendor. It is drained."
        ending.fail(turn, Failed(f"{verdict.reason}. {turn.run.place} stays drained.", ask))
    else:
        ending.refuse(turn, verdict)


def _context(run: Run, state: NodeState, attempted_at: datetime | None, *, now: datetime, world: World) -> Context:
    if run.node is None or run.node.is_provisional:
        raise SlurmRefusal(f"{run.place} is not in the inventory")
    standing = Fault.objects.filter(owner=resources.node(run.place), is_active=True)
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
        # The device's clock may be behind: a fault that we first saw after a boot was raised after it.
        find_standing=lambda: [
            StandingFault(fault.fault_type, fault.resource, max(fault.last_seen_at, fault.observed_at))
            for fault in standing
        ],
    )


def _target(node: str) -> Target:
    found = inventory.target(node)
    if found is None:
        raise SlurmRefusal(f"{node} is not in the inventory")
    return found


def _may_adopt(state: NodeState) -> bool:
    """A drain left by another incident is ours to take over unless that incident still waits for a person."""
    other = ownership.incident_of(state)
    incident = Incident.objects.filter(pk=other).first() if other is not None else None
    return incident is None or not incident.is_open or not starting.is_over(incident)


def _withdraw(run: Run, verdict: withdrawing.Withdraw, *, now: datetime, world: World) -> None:
    """Hands back what this run drained and never rebooted; what was rebooted and not verified stays drained."""
    node = run.place
    has_drained = run.steps.filter(name__in=(Drain.name, AdoptDrain.name)).exists()
    is_ours = has_drained and isinstance(
        ownership.hold(world.slurm.nodes((node,))[node], run.incident_id), ownership.Held
    )
    other = starting.calling_for(run).exclude(pk=run.incident_id).first()
    if is_ours and other is not None:
        text = f"{node} stays drained for incident #{other.pk}."
    elif is_ours and verdict.hands_back and not _has_tried(run) and run.facts.get("adopted_reason"):
        audit.of_run(run, "drain", audit.Phase.BEGUN, f"Left as Slurm had it, because {verdict.reason}.", now=now)
        world.slurm.drain(node, run.facts["adopted_reason"])
        text = f"{node} is left as Slurm had left it, drained: {run.facts['adopted_reason']}."
    elif is_ours and verdict.hands_back and not _has_tried(run):
        audit.of_run(run, "resume", audit.Phase.BEGUN, f"Handed back, because {verdict.reason}.", now=now)
        run.facts[GIVEN_BACK_AT] = told(now)
        world.slurm.resume(node)
        text = f"{node} is handed back: it takes jobs again."
    elif is_ours:
        text = f"{node} stays drained; resume it when it is well: scontrol update NodeName={node} State=RESUME"
    else:
        text = f"Nothing was left to undo on {node}."
    ending.withdraw(Turn(run, None, now), Done(f"Run {run.pk} is withdrawn, because {verdict.reason}. {text}"))


def _shadow(run: Run, *, now: datetime, world: World) -> None:
    steps = [planned.step for planned in library.planned(run.plan)]
    remark = _objection(run, now=now, world=world)
    ending.shadow(run, steps, remark=remark, window=world.policy.shadow_window, now=now)


def _objection(run: Run, *, now: datetime, world: World) -> str:
    """What would stand against the run right now, as a sentence of its own; empty when nothing would."""
    try:
        shown = fleet.look(world.slurm)
    except SlurmError as error:
        return f" Slurm cannot be looked at: {error}"
    if run.place not in shown.nodes:
        return f" Slurm knows no node {run.place}."
    state = replace(fleet.read(run, shown, policy=world.policy, now=now), mode=Mode.ARMED)
    verdict = guards.check(asking.request(Act.DRAIN, run.place, run.fault_type), state, now)
    return f" The guards would refuse that now: {verdict.reason}." if isinstance(verdict, Refused) else ""


def _look_again(run: Run, text: str, now: datetime) -> None:
    """Trouble on the way: an attempt keeps its unknown outcome, and the next turn looks first."""
    try:
        ending.note(Turn(run, None, now), f"{text} Kintsugi looks again.", again_in=_AFTER_TROUBLE)
    except LateWorker:
        _log.warning("run %s ended while a step was in trouble: %s", run.pk, text)
