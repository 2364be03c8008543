"""The way out: unfinished runs end, and every drain that is still ours is handed to people or given
back, so that nothing of Kintsugi's stands in Slurm.

1. Unfinished runs end where they are.
2. Of each drain that a run of ours wrote and that stands as it was written, what is to become of
   it is kept with the run, then done, then told: killed between two of these and begun again, it
   ends the same.
3. Handed over, the node stays drained; its reason says by whom it was left and what for, and is
   nobody's of ours any more. Given back, it takes jobs.

A person's drain is not touched, nor one that a person's words were added to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from detectors.slurm import drain_reasons
from incidents.state import transitions
from runbooks.engine import audit, contexts
from runbooks.engine.withdraw import format_polled_fault
from runbooks.models import AuditEntry, Run, StopSwitch
from runbooks.node import drains, looking, overwritten
from runbooks.people import controls, ended_runs
from runbooks.slurm import node_states, ownership
from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState, SlurmError
from runbooks.step import Context, World, format_iso

REASON = "Kintsugi leaves this site."
# The fact of a run: what is being done with its drain.
_LEAVING = "leaving"
_LEFT_NODE = "leave_node"
_HAND_OVER, _GIVE_BACK = "hand_over", "give_back"
# A worker that was at a run when it ended has finished its act by then: scontrol's own limit is
# below half a minute.
_SETTLES = timedelta(seconds=30)
_LOOK_AGAIN_S = 1.0
# Each time a worker may be quicker by a turn, which takes it half a second.
_MOST_TRIES = 5
_Clock = Callable[[], datetime]


@dataclass(frozen=True)
class HeldDrain:
    """A node that stands drained just as a run of ours wrote it. `objection`: why it is not given
    back although that was asked for; `gives_back`: what would become of it."""

    node: str
    reason: str
    since: datetime | None
    run_id: int
    incident_id: int
    gives_back: bool
    objection: str = ""


@dataclass(frozen=True)
class Left:
    """What became of one drain. `is_done`: False when somebody, or Slurm, kept it from being
    done."""

    node: str
    text: str
    is_done: bool = True


def stop_everything(*, actor: str, now: datetime) -> None:
    """Once: called again it finds its own switch."""
    if not StopSwitch.objects.filter(released_at=None, reason=REASON).exists():
        controls.stop(REASON, actor=actor, now=now)


def list_unfinished() -> list[Run]:
    return list(Run.objects.unfinished().select_related("incident", "node").order_by("pk"))


@dataclass(frozen=True)
class EndedRuns:
    """`left`: those on which workers were at each try. `settled_at`: when no worker can still be at
    one that was ended; None where none was."""

    numbers: tuple[int, ...]
    left: tuple[int, ...]
    settled_at: datetime | None


def end_runs(*, actor: str, now: datetime) -> EndedRuns:
    ended, is_leased = [], False
    for _ in range(_MOST_TRIES):
        for run in list_unfinished():
            ask = f"Look at {run.place}: this run had drained it. Resume it when it is well."
            if ended_runs.withdraw(run, act="leave", reason=REASON, ask=ask, actor=actor, now=now):
                ended.append(run.pk)
                is_leased |= run.leased_until is not None and run.leased_until > now
    left = tuple(run.pk for run in list_unfinished())
    return EndedRuns(tuple(ended), left, now + _SETTLES if is_leased else None)


def list_drains(world: World, *, give_back: frozenset[str], now: datetime) -> list[HeldDrain]:
    """Those that stand in Slurm now, by node. Raises SlurmError."""
    found = []
    for ctx in _find_held(world, now):
        is_asked_for = ctx.node in give_back
        objection = _find_objection(ctx) if is_asked_for else ""
        gives_back = is_asked_for and not objection
        held = HeldDrain(
            ctx.node,
            ctx.state.reason,
            ctx.state.reason_changed_at,
            ctx.run_id,
            ctx.incident_id,
            gives_back=gives_back,
            objection=objection,
        )
        found.append(held)
    return found


def leave_drains(
    world: World, *, give_back: frozenset[str], actor: str, clock: _Clock
) -> Iterator[Left]:
    """Each drain of ours, one after the other, those first of which an earlier call has not told
    the end."""
    for run in Run.objects.filter(facts__has_key=_LEAVING).select_related("incident", "node"):
        earlier = _tell_earlier(run, world=world, actor=actor, clock=clock)
        if earlier is not None:
            yield earlier
    for held in list_drains(world, give_back=give_back, now=clock()):
        try:
            yield _leave(held, world=world, actor=actor, clock=clock)
        except SlurmError as error:
            yield Left(held.node, f"{held.node} is left as it is: {error}", is_done=False)
    yield from _leave_reboots(world, actor=actor, clock=clock)


def _leave_reboots(world: World, *, actor: str, clock: _Clock) -> Iterator[Left]:
    """What runs that were ended here have asked Slurm for and it has not sent, on nodes that people
    have put back in service or taken over since: no run looks after it any more. Each is looked at
    once; what Slurm is asked for later is somebody else's."""
    states = world.slurm.read_nodes()
    ended = Run.objects.filter(outcome=REASON, facts__has_key="reboot_at", node__name__in=states)
    for run in ended.select_related("incident", "node").order_by("pk"):
        if not drains.is_own_reboot_awaited(run.facts):
            continue
        now, state = clock(), states[run.place]
        try:
            ctx = contexts.build_context(run, state, None, now=now, world=world)
            if state.is_draining and drains.get_owner(ctx) is Owner.THIS_INCIDENT:
                continue  # it could not be left now: the next call takes both away
            text = drains.withdraw_own_reboot(ctx)
        except SlurmError as error:
            yield Left(run.place, f"{run.place} is left as it is: {error}", is_done=False)
            continue
        run.facts[drains.AWAITED_NO_MORE] = run.facts["reboot_at"]
        if text:
            yield _tell(run, text, ask=None, actor=actor, now=now)
        else:
            Run.objects.filter(pk=run.pk, fence=run.fence).update(facts=run.facts)


def _find_held(world: World, now: datetime) -> Iterator[Context]:
    for name, state in sorted(world.slurm.read_nodes().items()):
        number = ownership.parse_incident(state.reason)
        if number is None or not state.is_draining:
            continue
        runs = Run.objects.filter(incident=number, node__name=name)
        for run in runs.select_related("incident", "node").order_by("-pk"):
            ctx = contexts.build_context(run, state, now, now=now, world=world)
            if drains.get_owner(ctx) is Owner.THIS_INCIDENT:
                yield ctx
                break


def _find_objection(ctx: Context) -> str:
    """Why the node is not given back, as the end of a sentence; empty where nothing speaks against
    it."""
    if ctx.maintenance:
        return ctx.maintenance
    if node_states.is_silent(ctx.state) or node_states.format_power_saving(ctx.state):
        return "it does not answer Slurm"
    if ctx.state.is_rebooting:
        return "it is about to be rebooted"
    ill = format_polled_fault(ctx.node)
    if ill:
        return ill
    refusal = looking.read_refusal(ctx.world.shell, ctx.target)
    return refusal.reason if isinstance(refusal, looking.NodeRefusal) else ""


def _leave(held: HeldDrain, *, world: World, actor: str, clock: _Clock) -> Left:
    run = Run.objects.select_related("incident", "node").get(pk=held.run_id)
    now = clock()
    act = _GIVE_BACK if held.gives_back else _HAND_OVER
    since = format_iso(held.since) if held.since is not None else ""
    plan = {
        "act": act,
        "reason": _format_left(held, actor),
        "was": held.reason,
        "since": since,
        "by": actor,
    }
    if not _store_plan(run, plan, now=now):
        return Left(held.node, f"{held.node}: run {run.pk} is at work there.", is_done=False)
    state = world.slurm.read_nodes((held.node,))[held.node]
    ctx = contexts.build_context(run, state, now, now=now, world=world)
    if drains.get_owner(ctx) is not Owner.THIS_INCIDENT:
        return _tell_changed(run, state, actor=actor, now=clock())
    # The run may have ended before the accounts were read for its own drain.
    restored = _put_back_person(ctx, world=world, clock=clock)
    if restored:
        return _tell_restored(run, restored, actor=actor, now=clock())
    if held.gives_back:
        drains.resume_node(ctx)
    else:
        _hand_over(ctx, plan["reason"])
    return _finish(ctx, run, plan, world=world, actor=actor, clock=clock)


def _finish(
    ctx: Context, run: Run, plan: dict[str, str], *, world: World, actor: str, clock: _Clock
) -> Left:
    restored = _put_back_person(ctx, world=world, clock=clock)
    if restored:
        return _tell_restored(run, restored, actor=actor, now=clock())
    return _tell_done(run, plan, actor=actor, now=clock())


def _tell_restored(run: Run, restored: str, *, actor: str, now: datetime) -> Left:
    ask = f"See whether {run.place} is to stay out: somebody had drained it."
    return _tell(run, restored, ask=ask, actor=actor, now=now)


def _store_plan(run: Run, plan: dict[str, str], *, now: datetime) -> bool:
    """False when a worker has the run. Nobody is rung for it any more."""
    run.facts[_LEAVING] = plan
    phase = audit.Phase.BEGUN
    words = "given back" if plan["act"] == _GIVE_BACK else f'handed over: "{plan["reason"]}"'
    with transaction.atomic():
        ended = Run.objects.filter(pk=run.pk, fence=run.fence, finished_at__isnull=False)
        if not ended.update(facts=run.facts, fence=F("fence") + 1, wake_at=None, leased_until=None):
            return False
        audit.record_run(run, "leave", phase, f"{run.place} is {words}.", now=now)
    run.fence += 1
    return True


def _format_left(held: HeldDrain, actor: str) -> str:
    """No reason of ours any more: it begins with another word, and names whom to ask."""
    _, _, text = held.reason.partition(" ")
    about = f"incident #{held.incident_id}, {drain_reasons.strip_appended(text)}"
    return f"left to people by Kintsugi ({actor}): {about}"


def _hand_over(ctx: Context, reason: str) -> None:
    """A reboot that we had asked for and that Slurm has not sent is not left to hit the node."""
    if drains.is_own_reboot_queued(ctx):
        after = ctx.world.slurm_writer.cancel_reboot(ctx.node, reason, as_seen=ctx.state)
        overwritten.note_drain(ctx.facts, ctx.state, after, ctx.now)
        return
    drains.drain_node(ctx, reason)


def _put_back_person(ctx: Context, *, world: World, clock: _Clock) -> str:
    """What a person wrote in the moment of our act is put back, as Slurm's accounts tell it, and so
    is what they wrote in the moment of that; what was put back last, empty where nobody wrote
    anything."""
    restored = ""
    while True:
        now = clock()
        seen = replace(ctx, state=world.slurm.read_nodes((ctx.node,))[ctx.node], now=now)
        found = overwritten.find_overwritten(seen)
        if found is None:
            return restored
        if isinstance(found, overwritten.Overwritten):
            restored = f"{overwritten.put_back(seen, found)}."
        else:
            time.sleep(_LOOK_AGAIN_S)


def _tell_earlier(run: Run, *, world: World, actor: str, clock: _Clock) -> Left | None:
    """Of an act that an earlier call began. None: it has not happened, and is done anew."""
    plan, now = run.facts[_LEAVING], clock()
    state = world.slurm.read_nodes((run.place,))[run.place]
    ctx = contexts.build_context(run, state, now, now=now, world=world)
    if drains.get_owner(ctx) is Owner.THIS_INCIDENT:
        return None
    is_handed_over = (
        state.is_draining and drain_reasons.strip_appended(state.reason) == plan["reason"]
    )
    is_given_back = plan["act"] == _GIVE_BACK and not state.is_out
    if not is_handed_over and not is_given_back:
        return _tell_changed(run, state, actor=actor, now=now)
    if is_given_back:
        overwritten.note_resume(run.facts, now)
    else:
        since = datetime.fromisoformat(plan["since"]) if plan["since"] else None
        before = replace(state, reason=plan["was"], reason_changed_at=since)
        overwritten.note_drain(run.facts, before, state, now)
    return _finish(ctx, run, plan, world=world, actor=actor, clock=clock)


def _tell_done(run: Run, plan: dict[str, str], *, actor: str, now: datetime) -> Left:
    node = run.place
    if plan["act"] == _GIVE_BACK:
        text = f"{node} is given back, since {plan['by']} has Kintsugi leave: it takes jobs again."
        return _tell(run, text, ask="", actor=actor, now=now)
    text = f'{node} stays drained and is handed to people: "{plan["reason"]}".'
    ask = (
        f"Look after {node}: Kintsugi has left it to you, drained. When it is well: scontrol"
        f" update NodeName={node} State=RESUME"
    )
    return _tell(run, text, ask=ask, actor=actor, now=now)


def _tell_changed(run: Run, state: NodeState, *, actor: str, now: datetime) -> Left:
    who, node = state.reason_set_by or "somebody", run.place
    text = f"{node} was changed by {who} meanwhile, and is left as it is: {state.reason}"
    if not state.is_out:
        text = f"{node} was put back in service by somebody meanwhile, and is left there."
    return _tell(run, text, ask=None, actor=actor, now=now)


def _tell(run: Run, text: str, *, ask: str | None, actor: str, now: datetime) -> Left:
    """The run holds nothing any more: what it had written is forgotten with the plan."""
    forgotten = (_LEAVING, *drains.OF_A_DRAIN)
    kept = {name: value for name, value in run.facts.items() if name not in forgotten}
    with transaction.atomic():
        Run.objects.filter(pk=run.pk, fence=run.fence).update(facts=kept, fence=F("fence") + 1)
        audit.record_run(run, "leave", audit.Phase.DONE, text, now=now)
        transitions.record(
            run.incident_id, kind="left", text=text, actor=actor, now=now, needs_human=ask
        )
    return Left(run.place, text)


# Nodes
# ---------------------------------------------------------------------------


def record_left_node(node: str, removed: Iterable[str], *, actor: str, now: datetime) -> None:
    """Our key is gone from there: a further call cannot look at it any more."""
    text = "; ".join(removed) or "nothing of ours was found that our user may remove"
    audit.record_node(actor, _LEFT_NODE, node, text, now=now)


def list_left_nodes() -> set[str]:
    """Of this leave: since its stop switch was engaged."""
    switch = StopSwitch.objects.filter(released_at=None, reason=REASON).first()
    if switch is None:
        return set()
    rows = AuditEntry.objects.filter(act=_LEFT_NODE, at__gte=switch.engaged_at)
    return set(rows.values_list("node", flat=True))
