"""Ends a run that nobody wants any more, and hands its node back where nothing speaks against it;
tells what was under way when a person ended a run, and came all the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import transaction

from detectors.faults import Action
from incidents.db.prepared import Given, Prepared
from incidents.maintenance import active_windows
from incidents.models import Fault
from incidents.polling.last_polls import get_last_polls
from incidents.state import transitions
from incidents.vocabulary.lifecycle import State
from runbooks.engine import audit, contexts, result, start
from runbooks.engine.result import RunTurn
from runbooks.fleet import fleet
from runbooks.lease import lease, withdrawal_reasons
from runbooks.library import library
from runbooks.models import Run, RunState, StepRun
from runbooks.node import drains, holding, overwritten
from runbooks.node.return_to_service import GIVEN_BACK_AT
from runbooks.plan.escalation_levels import STEPS_THAT_TOUCH
from runbooks.slurm.ownership import Held, TakenOver
from runbooks.step import Context, Done, World, format_iso
from runbooks.steps.drain import AdoptDrain, Drain
from runbooks.steps.reboot import Reboot
from runbooks.steps.resume import Resume

_TOUCHED = Prepared(
    lambda: StepRun.objects.filter(run=Given("run"), name__in=STEPS_THAT_TOUCH).values_list("pk")[
        :1
    ]
)
# What Slurm is asked for in one step: it may come when nobody waits for it any more.
_ASKED_OF_SLURM = (Drain, Reboot, Resume)
_LOOK_AGAIN = timedelta(seconds=5)
# slurmctld sends reboots in rounds (our choice: as long as an ended run waits).
_WHILE_QUEUED = timedelta(seconds=30)
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]


@dataclass(frozen=True)
class LeftNode:
    """How a run has left its node, as a sentence, and what a person is asked; empty where
    nothing."""

    text: str
    ask: str = ""


def withdraw(
    run: Run, verdict: withdrawal_reasons.Withdraw, *, now: datetime, world: World, ask: str = ""
) -> None:
    """Hands back what this run drained and never rebooted; what was rebooted and not verified stays
    drained. `ask` is what a person is asked, where the node does not ask for more."""
    node = run.place
    has_drained = run.steps.filter(name__in=(Drain.name, AdoptDrain.name)).exists()
    state = world.slurm.read_nodes((node,))[node]
    # A worker that died right after its drain has kept the attempt alone.
    step = library.load_plan(run.plan)[run.step].step
    attempted_at = RunTurn(run, step, now).attempted_at
    ctx = contexts.build_context(run, state, attempted_at, now=now, world=world)
    if isinstance(step, Drain) and attempted_at and not overwritten.is_unchecked(run.facts):
        step.find_done(ctx)  # what it had written is kept, and the accounts are read for it
    if result.restore_persons_drain(RunTurn(run, None, now), ctx):
        return
    is_ours = has_drained and isinstance(drains.evaluate_hold(ctx), Held)
    left = LeftNode(f"Nothing was left to undo on {node}.")
    if is_ours:
        left = settle_node(run, ctx, verdict)
    done = Done(f"Run {run.pk} is withdrawn, because {verdict.reason}. {left.text}")
    result.withdraw(RunTurn(run, None, now), done, ask=left.ask or ask)


def settle_node(run: Run, ctx: Context, verdict: withdrawal_reasons.Withdraw) -> LeftNode:
    """Hands the node, which the run holds, back where nothing speaks against it, or leaves it
    drained for whom it may concern."""
    node, now = run.place, ctx.now
    resume = f"scontrol update NodeName={node} State=RESUME"
    is_back = verdict.hands_back and not has_tried(run)
    # Of one whose faults have cleared nobody begins a run.
    calling = start.get_incidents_calling(run).exclude(state=State.MONITORING)
    incident = calling.exclude(pk=run.incident_id).first()
    if incident is not None:
        run.facts[drains.LEFT_FOR] = {"incident": incident.pk, "hands_back": verdict.hands_back}
        return LeftNode(f"{node} stays drained for incident #{incident.pk}.")
    ill = format_polled_fault(node)
    if ill:
        ask = f"Look at {node}: {ill}. Resume it when it is well: {resume}"
        return LeftNode(f"{node} stays drained: {ill}.", ask)
    maintenance = active_windows.get_maintained(now).get(node, "")
    if maintenance:
        return LeftNode(f"{maintenance}: it stays drained. Resume it afterwards: {resume}")
    failed_test = _find_failed_test(run)
    if failed_test is not None:
        found_ill = f"run {failed_test} found ill"
        ask = f"Look at {node}, which {found_ill}. Resume it when it is well: {resume}"
        text = f"{node} stays drained: run {failed_test} tested it and found it ill."
        return LeftNode(text, ask)
    before = run.facts.get("adopted_reason", "")
    if is_back and before:
        was = f"Left as it was before, because {verdict.reason}."
        audit.record_run(run, "drain", audit.Phase.BEGUN, was, now=now)
        drains.drain_node(ctx, before)
        return LeftNode(f"{node} is left as it was found, drained: {before}.")
    stopped = fleet.get_return_stop_reason(ctx.world.policy.stop_file)
    if stopped:
        ask = f"Resume {node} when it is well: {resume}"
        return LeftNode(f"{node} stays drained, since nothing is given back: {stopped}.", ask)
    if ctx.state.is_rebooting and not has_tried(run):
        # A resume would cancel it.
        ask = f"Resume {node} after its reboot: {resume}"
        text = f"{node} stays drained: its reboot was asked for, and not by Kintsugi."
        return LeftNode(text, ask)
    if not is_back:
        return LeftNode(f"{node} stays drained; resume it when it is well: {resume}")
    text = f"Handed back, because {verdict.reason}."
    audit.record_run(run, "resume", audit.Phase.BEGUN, text, now=now)
    drains.resume_node(ctx)
    run.facts[GIVEN_BACK_AT] = format_iso(now)
    return LeftNode(f"{node} is handed back: it takes jobs again.")


def store_late_turn(run: Run, now: datetime) -> None:
    """Keeps what a turn knows that was under way when a person ended its run, and has the run
    looked at once more. Of one that another worker has taken, nothing."""
    ended = Run.objects.filter(pk=run.pk, fence=run.fence, state=RunState.ABORTED)
    wake_at = now + overwritten.LOOK_AGAIN
    ended.update(facts=run.facts, leased_until=None, wake_at=wake_at)


def conclude_late_act(run: Run, ctx: Context) -> bool:
    """Whether the look at a run that a person has ended is over with this: what was asked of Slurm
    in that moment has come, and people are told; or it may still come."""
    planned = library.load_plan(run.plan)[run.step]
    turn = RunTurn(run, planned.step, ctx.now)
    is_asked = run.state == RunState.ABORTED and isinstance(planned.step, _ASKED_OF_SLURM)
    if not is_asked or turn.attempted_at is None:
        return False
    of_step = replace(ctx, attempted_at=turn.attempted_at, params=planned.params, key=turn.key)
    done = planned.step.find_done(of_step)
    if done is not None:
        _store_late_act(turn, done, ctx)
        return True
    may_come = ctx.now < turn.attempted_at + planned.step.settles_in
    if may_come:
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN)
        return True
    turn.note_outcome(
        StepRun.Outcome.FAILED, "It did not take: nothing of it was seen on the node."
    )
    return False


def _store_late_act(turn: RunTurn, done: Done, ctx: Context) -> None:
    run, node = turn.run, ctx.node
    run.facts.pop(GIVEN_BACK_AT, None)  # an ended run gives nothing back once more
    text = f"This was under way when run {run.pk} was ended, and has come all the same: {done.text}"
    ask = "Resolve the incident when the fault is mended."
    if ctx.state.is_draining:
        ask = f"Resume {node} when it is well, and resolve the incident."
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.ALREADY_DONE, text)
        audit.record_run(run, "run", audit.Phase.DONE, text, now=ctx.now, key=turn.key)
        transitions.record(
            run.incident_id, kind="run_note", text=text, now=ctx.now, needs_human=ask
        )
        if isinstance(turn.step, Drain):
            transitions.store_out_of_service(run.incident_id, turn.attempted_at or ctx.now)
        is_unchecked = overwritten.is_unchecked(run.facts)
        again_at = result.get_next_check_at(run, ctx.now)
        lease.release(run, wake_at=ctx.now if is_unchecked else again_at)


def check_paused_run(run: Run, ctx: Context) -> None:
    """What a paused run still owes people: their words, where its last act has written over them,
    and a node without its reboot, where they have put that back in service. Either ends the run, as
    it would have without the pause. It is looked at again while Slurm has our reboot to send."""
    planned = library.load_plan(run.plan)[run.step]
    turn = RunTurn(run, planned.step, ctx.now)
    if isinstance(planned.step, (Drain, Reboot)) and turn.attempted_at is not None:
        # A worker that died in it has kept the attempt alone: what came of it is kept now.
        of_step = replace(ctx, attempted_at=turn.attempted_at, key=turn.key)
        planned.step.find_done(replace(of_step, params=planned.params))
    else:
        drains.note_unkept_drain(ctx)
    if result.restore_persons_drain(turn, ctx):
        return
    hold, is_queued = drains.evaluate_hold(ctx), drains.is_own_reboot_queued(ctx)
    if isinstance(hold, TakenOver) and hold.is_resumed and is_queued:
        result.take_over(turn, hold, left=drains.withdraw_own_reboot(ctx))
        return
    holding.note_withdrawn_reboot(ctx)
    lease.release_paused(run, wake_at=ctx.now + _WHILE_QUEUED if is_queued else None)


def _find_failed_test(run: Run) -> int | None:
    """The run before it that ended with a node that was not well: nobody has tested it since."""
    if run.node_id is None:
        return None
    before = Run.objects.filter(incident=run.incident_id, node=run.node_id, pk__lt=run.pk)
    last = before.exclude(state=RunState.WITHDRAWN).order_by("-pk").first()
    is_ill = last is not None and last.state == RunState.NOT_CURED
    return last.pk if last is not None and is_ill else None


def format_polled_fault(node: str) -> str:
    """A fault of the node that calls for a repair and that polls show, as a sentence; empty where
    there is none."""
    active = Fault.objects.active().of_node(node).filter(action__in=_REPAIRS)
    faults = {fault.pk: fault for fault in active}
    polled_at = get_last_polls(list(faults))
    if not polled_at:
        return ""
    at, pk = max((at, pk) for pk, at in polled_at.items())
    return f"{faults[pk]} was last polled as active at {at:%Y-%m-%d %H:%M:%S %Z}"


def has_tried(run: Run) -> bool:
    """Whether it has begun to reset, reboot or power-cycle: what it touched is verified before it
    takes jobs."""
    return bool(_TOUCHED.rows(run=run.pk))
