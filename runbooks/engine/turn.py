"""One turn of a run: at most one step, then commit. Killing the worker at any line loses nothing.

1. Lease the run.  2. Look whether its incident still calls for it.  3. Look at the node: is the
step done already, is the drain still ours?  4. Ask the guards.  5. Store the attempt.  6. Act.  7.
Store what the node has shown and the result, and go on. An attempt without a result is one of
unknown outcome: step 3 looks before anything is done again. Where a person's leave is needed, it is
asked for before the guards are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache, partial

from django.db import Error, transaction

from detectors.detector import Target
from incidents.db import own_errors
from incidents.vendor import cases
from incidents.vocabulary.lifecycle import State
from runbooks.engine import (
    aftercare,
    approvals,
    audit,
    contexts,
    keep_drained,
    persons_resume,
    refutations,
    shadow_looks,
    start,
    watch_only,
    withdraw,
    witness_check,
)
from runbooks.engine import result as ending
from runbooks.engine.result import RunTurn
from runbooks.errors import WorldError, WorldRefusal
from runbooks.fleet import breaker, fleet, guard_check
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table
from runbooks.guards.table import Act, Allowed, GuardRefused, Refusal
from runbooks.guards.verdicts import ROOM
from runbooks.lease import heartbeat, lease, withdrawal_reasons
from runbooks.lease.lease import LateWorker
from runbooks.library import library
from runbooks.library.library import Planned
from runbooks.models import Mode, Run, RunState, StepRun
from runbooks.node import drains, holding, idle_moment, looking, overwritten
from runbooks.node.diagnostics import PROVED_AT
from runbooks.node.return_to_service import GIVEN_BACK_AT
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Dropped, Held, TakenOver
from runbooks.slurm.protocol import NodeChanged, SlurmRefusal
from runbooks.step import (
    Context,
    Failed,
    Refuted,
    Step,
    StepEffect,
    Wait,
    World,
    format_iso,
    get_fact_time,
)
from runbooks.steps.burn_in import BurnIn
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.diagnose import Diagnose
from runbooks.steps.drain import Drain
from runbooks.steps.resume import Resume
from runbooks.steps.verify import Verify

_log = logging.getLogger(__name__)
_AFTER_TROUBLE = timedelta(seconds=30)
# Somebody was quicker, and has said what they had to say.
_AFTER_A_CHANGE = timedelta(seconds=1)
_AFTER_LOST_STATE = timedelta(minutes=1)
_WHILE_IT_BOOTS = timedelta(seconds=10)
# As guards are asked again.
_WHILE_STOPPED = timedelta(minutes=1)
# What they saw of a node counts no more once people have worked on it.
_LOOKS = (ConfirmOnNode.name, Verify.name, Diagnose.name, BurnIn.name)
_PAST_SLURM = (Act.POWER_CYCLE, Act.RESET_GPU, Act.RESTART_UNITS)
# The points between which a worker may be killed; tests raise there.
Point = Callable[[str], None]


def _ignore_point(point: str) -> None:
    """Nothing happens between two lines."""


def advance(run_id: int, *, now: datetime, world: World, at: Point = _ignore_point) -> None:
    """At most one step of the run, then commit. Safe to call twice, late, or by several workers at
    once."""
    run = lease.acquire(run_id, now)
    if run is None:
        return
    world = world.with_check(partial(lease.check, run))
    try:
        with heartbeat.keep_alive(run):
            at("leased")
            _take_turn_safely(run, now=now, world=world, at=at)
            _record_witness(run, now)
    except LateWorker as late:
        _log.warning("%s was taken over or ended by someone else while a step was under way", late)
        withdraw.store_late_turn(run, now)


def _record_witness(run: Run, now: datetime) -> None:
    """Of a turn that has ended without the act. What the database refuses the next turn makes up
    for, and says."""
    try:
        witness_check.record_witness(run, now)
    except Error as error:
        _log.info("what the node of run %s shows is not recorded yet: %s", run.pk, error)


def _take_turn_safely(run: Run, *, now: datetime, world: World, at: Point) -> None:
    """A turn whose troubles are kept: nothing that goes wrong in a step is lost or repeated
    blindly."""
    try:
        _take_turn(run, now=now, world=world, at=at)
    except LateWorker:
        raise
    except library.LibraryError as error:
        ask = f"Abort run {run.pk}, look at {run.place} and finish the repair by hand."
        ending.fail(
            RunTurn(run, None, now),
            Failed(f"Its plan cannot be followed by this version: {error}", ask),
        )
    except WorldRefusal as refusal:
        ask = f"Look at {run.place} and finish the repair by hand."
        ending.fail(
            RunTurn(run, _get_planned(run).step, now), Failed(f"It cannot be done: {refusal}", ask)
        )
    except WorldError as error:
        _retry_later(run, str(error), now)
    except Exception as error:  # noqa: BLE001 - one of the four named places: around one advance
        _log.exception("run %s: the step broke", run.pk)
        _retry_later(run, f"The step was broken off: {own_errors.describe(error)}.", now)


def _take_turn(run: Run, *, now: datetime, world: World, at: Point) -> None:
    witness_check.record_witness(run, now)
    if run.state == RunState.SHADOWED:
        shadow_looks.look_again(run, now=now, world=world)
        return
    if run.finished_at is not None:
        _check_ended_run(run, now=now, world=world, at=at)
        return
    if run.state == RunState.PAUSED:
        _check_paused_run(run, now=now, world=world)
        return
    if run.node is None:
        steps, is_called_for = library.load_plan(run.plan), start.is_called_for(run)
        watch_only.advance_watch(run, steps, is_called_for=is_called_for, now=now, world=world)
        return
    planned = _get_planned(run)
    step = planned.step
    is_called_for = start.is_called_for(run)
    verdict = withdrawal_reasons.evaluate(
        State(run.incident.state),
        is_called_for=is_called_for,
        has_rebooted=not is_called_for and withdraw.has_tried(run),
        waits_for_part=_waits_for_part(run),
    )
    turn = RunTurn(run, step, now)
    must_finish = step.finishes and turn.attempted_at is not None
    if isinstance(verdict, withdrawal_reasons.Withdraw) and not must_finish:
        withdraw.withdraw(run, verdict, now=now, world=world)
        return
    if run.mode == Mode.SHADOW:
        shadow_looks.write_down(run, now=now, world=world)
        return
    early = witness_check.EarlyLook()
    find_target = cache(partial(contexts.load_target, run.place))
    snapshot = _read_snapshot(turn, world, partial(_look_early, turn, world, find_target, early))
    if run.place not in snapshot.nodes:
        raise SlurmRefusal(f"{run.place}: Slurm knows no such node.")
    build_context = partial(contexts.build_context, find_target=find_target, now=now, world=world)
    ctx = build_context(run, snapshot.nodes[run.place], turn.attempted_at)
    ctx.params, ctx.key = planned.params, turn.key
    if step.act is not Act.DRAIN:  # such a step looks itself at what became of its attempt
        drains.note_unkept_drain(ctx)
    if ending.restore_persons_drain(turn, ctx) or _gives_way(turn, ctx):
        return
    if witness_check.is_denied(turn, ctx, world=world, early=early):
        return
    if refutations.ends_turn(turn, ctx, world=world) or _is_settled(turn, ctx):
        return
    if isinstance(verdict, withdrawal_reasons.Withdraw):
        withdraw.withdraw(run, verdict, now=now, world=world)
        return
    snapshot = _complete_snapshot(turn, snapshot, ctx)
    if _waits_for_idle_moment(turn, planned, snapshot, ctx):
        return
    if _waits_for_room(turn, planned, snapshot, ctx):
        return
    permission = approvals.check_permission(turn, planned, ctx, snapshot.nodes)
    if not isinstance(permission, approvals.Permission):
        return
    if step.act is not None and _is_refused(turn, step.act, snapshot, ctx):
        return
    if step.touches_node and (_is_maintained(turn, ctx) or _is_being_rebooted(turn, ctx)):
        return
    if isinstance(step, Resume) and _is_kept_out(turn, ctx):
        return
    if _return_to_inspection(turn, ctx):
        return
    _act(turn, ctx, permission, at=at)


def _read_snapshot(turn: RunTurn, world: World, look: Callable[[], None]) -> FleetSnapshot:
    """Of the node; where it is about to be taken of the whole fleet, with what jobs need where that
    counts, and meanwhile its own look is taken."""
    act = _get_planned(turn.run).step.act
    if act is not None and _takes_node(turn):
        with_demands = guard_check.weighs_demands(act, turn.run)
        return fleet.read_snapshot(world.slurm, look, with_demands=with_demands)
    return FleetSnapshot(world.slurm.read_nodes((turn.run.place,)))


def _complete_snapshot(turn: RunTurn, snapshot: FleetSnapshot, ctx: Context) -> FleetSnapshot:
    """Guards need the whole fleet. It is read once nothing else has ended the turn: most turns
    wait. What jobs need is read here where it counts for the fault that the run is for by now."""
    act = _get_planned(turn.run).step.act
    if act is None:
        return snapshot
    if not _takes_node(turn):
        return FleetSnapshot({**ctx.world.slurm.read_nodes(), turn.run.place: ctx.state})
    if snapshot.demands is None and guard_check.weighs_demands(act, turn.run):
        return FleetSnapshot(snapshot.nodes, tuple(ctx.world.slurm.list_demands()))
    return snapshot


def _takes_node(turn: RunTurn) -> bool:
    act = _get_planned(turn.run).step.act
    return act is Act.DRAIN or (act is not None and turn.run.claimed_at is None)


def _look_early(
    turn: RunTurn, world: World, find_target: Callable[[], Target], early: witness_check.EarlyLook
) -> None:
    run = turn.run
    if run.node is None or run.node.is_provisional:
        return
    without_state = partial(contexts.build_context_without_state, now=turn.now, world=world)
    early.ask(run, without_state(run, find_target))


def _gives_way(turn: RunTurn, ctx: Context) -> bool:
    """Whether a repair that waits for an idle moment has left its node to a graver incident: one
    run is under way on a node."""
    run = turn.run
    if run.claimed_at is not None or not idle_moment.is_overtaken(ctx):
        return False
    incident = start.find_graver_incident(run)
    if incident is None:
        return False
    reason = f"incident #{incident.pk}, which is graver, calls for its node"
    verdict = withdrawal_reasons.Withdraw(reason, hands_back=True)
    withdraw.withdraw(run, verdict, now=turn.now, world=ctx.world)
    return True


def _act(turn: RunTurn, ctx: Context, permission: approvals.Permission, *, at: Point) -> None:
    """Stores the attempt, acts, and stores the result. Nothing is done to a node that has changed a
    moment ago."""
    run, step, now = turn.run, _get_planned(turn.run).step, turn.now
    at("allowed")
    if turn.attempted_at is not None and now < turn.attempted_at + step.settles_in:
        attempt = f"the attempt of {turn.attempted_at:%H:%M:%S %Z}"
        text = f"Whether {attempt} took is not known yet."
        ending.store_note(turn, text, again_in=timedelta(seconds=5))
        return
    if acts_on_node(step) and _is_refused_by_node(turn, ctx):
        return
    if step.act is Act.DRAIN:
        overwritten.note_seen(run.facts, ctx.state, now)
    with transaction.atomic():
        approvals.use_permission(permission, now)
        ending.store_attempt(turn)
    at("attempted")
    before = dict(run.facts)
    try:
        if _acts_past_slurm(step):
            ctx.world.check_unchanged(ctx.node, ctx.state)
        result = step.run(ctx)
    except NodeChanged as changed:
        run.facts.clear()
        run.facts.update(before)
        ending.end_attempt(turn, f"{changed} Kintsugi looks again.", again_in=_AFTER_A_CHANGE)
        return
    at("acted")
    witness_check.record_witness(run, now)
    if isinstance(result, Refuted):
        refutations.give_back(turn, result, world=ctx.world)
        at("stored")
        return
    ending.store_result(turn, result, is_last=_is_last(run))
    at("stored")


def acts_on_node(step: Step) -> bool:
    """Whether the node's root is asked before it. A swap is of another node, and asks that one
    itself."""
    return step.touches_node or step.act not in (None, Act.SWAP_SPARE)


def _acts_past_slurm(step: Step) -> bool:
    """Whether it reaches the node by its management controller or over SSH. What acts by Slurm's
    programs looks by them at the node directly before."""
    return step.act in _PAST_SLURM or (step.touches_node and not isinstance(step, Resume))


def _is_refused_by_node(turn: RunTurn, ctx: Context) -> bool:
    """The node's own root has the last word. Of a node that cannot be asked the step's own rules
    hold: it was looked at by them a moment ago."""
    refusal = looking.read_refusal(ctx.world.shell, ctx.target)
    if not isinstance(refusal, looking.NodeRefusal):
        return False
    node, run = ctx.node, turn.run
    step = _get_planned(run).step
    does_not = f"Kintsugi does not {step.plan.format(node=node)}"
    text = f"The root of {node} refuses: {refusal.reason}. {does_not}, and does nothing more there."
    if isinstance(drains.evaluate_hold(ctx), Held):
        text = f"{text} It stays drained."
    ask = (
        f"Repair {node} by hand. Or have its root remove {looking.NEVER_FILE} and begin anew:"
        f" kintsugi runbook start {run.runbook} {run.incident_id}."
    )
    ending.fail(turn, Failed(text, ask))
    return True


def _check_ended_run(run: Run, *, now: datetime, world: World, at: Point) -> None:
    """An ended run that has given its node back: whether Slurm has kept that. One whose node a
    person put back: whether polls see the fault there. One that has left it for another incident:
    whether that one needs it. Any other: whether Slurm keeps the drain."""
    try:
        state = world.slurm.read_nodes((run.place,))[run.place]
        ctx = contexts.build_context(run, state, None, now=now, world=world)
        turn = RunTurn(run, None, now)
        if withdraw.conclude_late_act(run, ctx):
            return
        drains.note_unkept_drain(ctx)
        if overwritten.is_unchecked(run.facts) and _is_only_checked(turn, ctx):
            return
        if drains.RESUMED_AT in run.facts:
            persons_resume.check_fault(run, ctx)
        elif GIVEN_BACK_AT in run.facts:
            aftercare.check_return(RunTurn(run, Resume(), now), ctx, at=at)
        elif drains.LEFT_FOR in run.facts:
            aftercare.check_left_node(run, ctx)
        else:
            keep_drained.check_drain(run, ctx)
    except WorldError as error:
        aftercare.postpone(run, error, now)


def _check_paused_run(run: Run, *, now: datetime, world: World) -> None:
    if run.node is None:
        lease.release_paused(run, wake_at=None)
        return
    state = world.slurm.read_nodes((run.place,))[run.place]
    withdraw.check_paused_run(run, contexts.build_context(run, state, None, now=now, world=world))


def _is_only_checked(turn: RunTurn, ctx: Context) -> bool:
    """Whether the look ends with what the accounts say of the run's last act: nothing else is
    due."""
    if ending.restore_persons_drain(turn, ctx):
        return True
    due_at = ending.get_next_check_at(turn.run, turn.now)
    if due_at is not None and due_at <= turn.now:
        return False
    lease.release(turn.run, wake_at=due_at)
    return True


def _is_settled(turn: RunTurn, ctx: Context) -> bool:
    """Whether the turn ends here: done already, under way, blocked, or the node is no longer
    ours."""
    step, run = turn.step, turn.run
    assert step is not None  # noqa: S101 - only `advance` itself makes a turn without one
    done = step.find_done(ctx)
    if done is not None:
        holding.note_shown_drain(ctx)
        outcome = StepRun.Outcome.ALREADY_DONE
        ending.store_result(turn, done, is_last=_is_last(run), outcome=outcome)
        return True
    if _must_be_held(step, run):
        hold = holding.get_hold(ctx)
        if isinstance(hold, Dropped):
            _drain_again(turn, hold, ctx)
            return True
        is_resumed = isinstance(hold, TakenOver) and hold.is_resumed
        if is_resumed and _is_forgotten_by_slurm(turn, ctx):
            return True
        if not is_resumed:
            run.facts.pop(holding.LOST_AT, None)
        if isinstance(hold, TakenOver):
            left = drains.withdraw_own_reboot(ctx)
            ctx.world.slurm_writer.remove_comment(ctx.node)
            ending.take_over(turn, hold, left=left)
            return True
    begun = step.carry_on(ctx) if turn.attempted_at is not None else None
    result = begun if begun is not None else step.find_obstacle(ctx)
    if result is not None:
        ending.store_result(turn, result, is_last=_is_last(run))
    return result is not None


def _must_be_held(step: Step, run: Run) -> bool:
    """Whether the node must still be drained by us: while it is only watched, or a spare is put in
    its place, where the run has drained it and not given it back."""
    is_ours = "drained_at" in run.facts and GIVEN_BACK_AT not in run.facts
    return step.needs_hold or (is_ours and step.act in (None, Act.SWAP_SPARE))


def _is_forgotten_by_slurm(turn: RunTurn, ctx: Context) -> bool:
    """Whether slurmctld may have lost its state. Then one person is asked, once for all runs: the
    breaker trips, and who closes it has the nodes drained again."""
    facts = turn.run.facts
    began_at = holding.find_lost_state(ctx, get_fact_time(ctx, lease.SAID_AT))
    if began_at is None:
        return False
    text = (
        f"slurmctld began anew at {began_at:%Y-%m-%d %H:%M:%S %Z} and shows no drain of Kintsugi's"
        " on any node: it may have lost its state"
    )
    if holding.LOST_AT not in facts:
        facts[holding.LOST_AT] = format_iso(began_at)
        breaker.trip(f"{text}. Closing this has runs drain their nodes again", turn.now)
    elif breaker.get_open_breaker() is None:
        del facts[holding.LOST_AT]
        _drain_again(turn, Dropped(text), ctx)
        return True
    again_at = turn.now + _AFTER_LOST_STATE
    aborts = f"Abort run {turn.run.pk} first where {ctx.node} is to stay in service"
    ending.refuse(turn, GuardRefused(Refusal.BREAKER, f"{text}. {aborts}", again_at))
    return True


def _drain_again(turn: RunTurn, dropped: Dropped, ctx: Context) -> None:
    text = f"{dropped.text}: drained again."
    audit.record_run(turn.run, "drain", audit.Phase.BEGUN, text, now=turn.now)
    drains.drain_node(ctx, turn.run.facts["reason"])
    turn.run.facts["held_at"] = format_iso(turn.now)
    note = f"{dropped.text}; Kintsugi drained it again at once."
    ending.store_note(turn, note, again_in=timedelta(0))


def _get_planned(run: Run) -> Planned:
    return library.load_plan(run.plan)[run.step]


def _is_last(run: Run) -> bool:
    return run.step == len(run.plan) - 1


def _waits_for_part(run: Run) -> bool:
    """Whether the vendor was called for this run, too: it has still to wait for the part, and there
    is a case."""
    if "await_part" not in [row["step"] for row in run.plan[run.step :]]:
        return False
    return lease.VENDOR_CASE in run.facts or cases.get_active_case(run.incident_id) is not None


def _is_refused(turn: RunTurn, act: Act, snapshot: FleetSnapshot, ctx: Context) -> bool:
    """Asks the guards."""
    world = ctx.world
    ask = partial(guard_check.claim_node, turn.run, act, snapshot)
    verdict = ask(policy=world.policy, now=turn.now)
    if _is_short_of_room(verdict, act) and ctx.unusable:
        verdict = ask(policy=world.policy, now=turn.now, unusable=ctx.unusable)
    if isinstance(verdict, Allowed):
        return False
    _refuse(turn, verdict, ctx)
    return True


def _is_short_of_room(verdict: Allowed | GuardRefused, act: Act) -> bool:
    """Whether only a limit on number holds the drain: none holds a node that is of no use."""
    return act is Act.DRAIN and isinstance(verdict, GuardRefused) and verdict.kind in ROOM


def _is_maintained(turn: RunTurn, ctx: Context) -> bool:
    """Of all guards a step that proves a node or gives it back asks this one: hands may be in the
    machine."""
    refused = table.refuse_for_maintenance(ctx.maintenance, turn.now)
    if refused is not None:
        ending.refuse(turn, refused, maintenance=ctx.maintenance)
    return refused is not None


def _is_kept_out(turn: RunTurn, ctx: Context) -> bool:
    """Somebody has stopped everything, and has nothing given back."""
    reason = fleet.get_return_stop_reason(ctx.world.policy.stop_file)
    if reason:
        text = f"The stop switch is engaged, and nothing is given back: {reason}"
        refused = GuardRefused(Refusal.STOPPED, text, turn.now + _WHILE_STOPPED)
        ending.refuse(turn, refused)
    return bool(reason)


def _is_being_rebooted(turn: RunTurn, ctx: Context) -> bool:
    """Ours has ended before such a step: this one is somebody's, who wants it. A resume would
    cancel it (22.05)."""
    if not ctx.state.is_rebooting or _shows_our_old_reboot(ctx):
        return False
    ctx.facts[ending.LOOK_ANEW] = f"{ctx.node} was rebooted by someone else"
    text = (
        f"Someone has asked Slurm to reboot {ctx.node}: Kintsugi leaves it to them until it is"
        " back."
    )
    ending.wait(turn, Wait(text, _WHILE_IT_BOOTS, is_told=True))
    return True


def _shows_our_old_reboot(ctx: Context) -> bool:
    """A slurmctld that restarted from an older state shows our reboot as issued though the node has
    booted since.

    Whoever reboots the node anew has Slurm append to its reason again, after the boot that we have
    seen.
    """
    booted_at, issued_at = get_fact_time(ctx, "booted_at"), ctx.state.reason_changed_at
    if "reboot_at" not in ctx.facts or booted_at is None or issued_at is None:
        return False
    is_issued = "REBOOT_ISSUED" in ctx.state.flags and ownership.ends_with_reboot_issued(ctx.state)
    return is_issued and issued_at <= booted_at


def _return_to_inspection(turn: RunTurn, ctx: Context) -> bool:
    """Somebody has worked on the node, or booted it, since it was looked at."""
    run = turn.run
    proved_at, booted_at = get_fact_time(ctx, PROVED_AT), ctx.state.boot_time
    if proved_at is not None and booted_at is not None and booted_at > proved_at:
        run.facts.setdefault(ending.LOOK_ANEW, f"{ctx.node} has booted since it was verified")
    index = _find_last_inspection(run) if ending.LOOK_ANEW in run.facts else None
    if index is None:
        return False
    is_begun = any(fact.startswith(f"{turn.key}:") for fact in run.facts)
    if index == run.step and not is_begun:
        del run.facts[ending.LOOK_ANEW]
        return False
    run.facts.pop(PROVED_AT, None)
    since = get_fact_time(ctx, "booted_at")
    if since is not None and booted_at is not None and booted_at > since:
        run.facts["booted_at"] = format_iso(booted_at)
        run.facts.pop("boot_id_after", None)
    ending.return_to_inspection(turn, index=index)
    return True


def _find_last_inspection(run: Run) -> int | None:
    """The step that the node was last looked at by, before or at this one, with no act since."""
    for index in range(run.step, -1, -1):
        step = library.load_plan(run.plan)[index].step
        if step.name in _LOOKS:
            return index
        if index < run.step and step.effect is not StepEffect.READ_ONLY:
            return None
    return None


def _waits_for_idle_moment(
    turn: RunTurn, planned: Planned, snapshot: FleetSnapshot, ctx: Context
) -> bool:
    """A minor repair takes its node out when that costs little. Until then the node may be
    reserved, where the drain would be allowed now."""
    if planned.step.name != Drain.name or turn.attempted_at is not None:
        return False
    moment = idle_moment.find_moment(ctx)
    if moment is None:
        return False
    is_due = moment.ends_at is not None and idle_moment.is_reservation_due(ctx)
    if is_due and _may_drain(turn, planned, snapshot, ctx):
        if _is_refused_by_node(turn, ctx):
            return True
        _reserve_node(turn, ctx, moment)
    ending.store_result(turn, idle_moment.build_wait(ctx, moment), is_last=False)
    return True


def _reserve_node(turn: RunTurn, ctx: Context, moment: idle_moment.IdleMoment) -> None:
    assert moment.ends_at is not None  # noqa: S101 - without an end nothing is reserved
    attempt = idle_moment.reserve_node(ctx, moment.ends_at)
    phase = audit.Phase.DONE if attempt.is_done else audit.Phase.FAILED
    audit.record_run(turn.run, "reserve", phase, attempt.text, now=turn.now, key=turn.key)


def _may_drain(turn: RunTurn, planned: Planned, snapshot: FleetSnapshot, ctx: Context) -> bool:
    """Whether neither a person nor a guard would stand in the way now. Takes nothing."""
    if approvals.asks_person(turn, planned, ctx):
        return False
    policy = ctx.world.policy
    verdict = guard_check.check_guards(turn.run, Act.DRAIN, snapshot, policy=policy, now=turn.now)
    return isinstance(verdict, Allowed)


def _waits_for_room(turn: RunTurn, planned: Planned, snapshot: FleetSnapshot, ctx: Context) -> bool:
    """Nobody is asked whether one node more may go out while the guards would not let it."""
    act, world = planned.step.act, ctx.world
    if act is None or not approvals.is_for_count_alone(turn, planned, ctx):
        return False
    ask = partial(guard_check.check_guards, turn.run, act, snapshot)
    verdict = ask(policy=world.policy, now=turn.now)
    if _is_short_of_room(verdict, act) and ctx.unusable:
        verdict = ask(policy=world.policy, now=turn.now, unusable=ctx.unusable)
    if isinstance(verdict, Allowed):
        return False
    _refuse(turn, verdict, ctx)
    return True


def _refuse(turn: RunTurn, verdict: GuardRefused, ctx: Context) -> None:
    if verdict.ask_again_at is None:
        ask = f"Examine {turn.run.place}: power-cycle it or call the vendor. It is drained."
        ending.fail(turn, Failed(f"{verdict.reason}. {turn.run.place} stays drained.", ask))
    else:
        ending.refuse(turn, verdict, maintenance=ctx.maintenance)


def _retry_later(run: Run, text: str, now: datetime) -> None:
    """Trouble on the way: an attempt keeps its unknown outcome, and the next turn looks first."""
    try:
        ending.store_note(
            RunTurn(run, None, now), f"{text} Kintsugi looks again.", again_in=_AFTER_TROUBLE
        )
    except LateWorker:
        _log.warning("run %s ended while a step was in trouble: %s", run.pk, text)
