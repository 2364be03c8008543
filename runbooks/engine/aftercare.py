"""Once a run has ended: whether slurmctld has kept that its node was given back, and whether a node
that it left drained for another incident is still needed there.

A slurmctld that dies within seconds of a resume comes back without it: the node stands drained with
our reason, and no run is there to see it. So each run that gave its node back looks once more, when
that has been kept or lost. What slurmctld has forgotten is done again.

The run of the other incident takes a drain over that was left for it. Where none comes, since the
fault has gone or no runbook may act, a healthy node would stand drained and nobody would be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from incidents.maintenance import active_windows
from incidents.models import Incident
from incidents.reserve import lemons
from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import audit, keep_drained, result, start, withdraw
from runbooks.engine.result import RunTurn
from runbooks.errors import WorldError, WorldRefusal
from runbooks.fleet import fleet
from runbooks.lease import lease, withdrawal_reasons
from runbooks.models import Run, StepRun
from runbooks.node import drains, return_to_service
from runbooks.node.return_to_service import GIVEN_BACK_AT
from runbooks.slurm import node_states
from runbooks.slurm.ownership import Dropped, Held
from runbooks.step import Context, Failed, Wait, format_iso
from runbooks.steps.resume import Resume

_LOOK_AGAIN = timedelta(seconds=30)
_LOOK_AGAIN_SOON = timedelta(seconds=5)
# A Slurm that forgets it so often has not died once in a bad moment: a person looks. Our choice.
_MOST = 3
_TIMES = "resumed_again"
# A run that has begun on a node which was left for it may wait for hours, and so may a person's
# question (our choice).
_LOOK_AT_LEFT = timedelta(minutes=5)


def check_return(turn: RunTurn, ctx: Context, *, at: Callable[[str], None]) -> None:
    """One look, and at most one resume. Nothing is done to a node that anybody has touched
    since."""
    run = turn.run
    if not return_to_service.is_forgotten(ctx.state, drains.get_owner(ctx), run.facts):
        _conclude(turn, ctx)
        return
    if Run.objects.unfinished().filter(node=run.node).exists():  # it looks after the node
        lease.release(run, wake_at=None)
        return
    against = _find_objection(run, ctx)
    if against is not None:
        _leave_drained(turn, against)
        return
    waits = _find_blocker(ctx)
    if waits is not None:
        result.wait(turn, waits)
        return
    result.store_attempt(turn)
    at("attempted")
    drains.resume_node(ctx)
    at("acted")
    _store_resume(turn, StepRun.Outcome.DONE)
    at("stored")


def postpone(run: Run, error: WorldError, now: datetime) -> None:
    """A Slurm that does not answer is asked again until it does; a node that it knows no more is
    not given back."""
    lease.release(run, wake_at=None if isinstance(error, WorldRefusal) else now + _LOOK_AGAIN)


def _conclude(turn: RunTurn, ctx: Context) -> None:
    """The node was given back and that was kept, or somebody has done something else with it
    since."""
    if (
        turn.tried is not None
        and Resume().find_done(replace(ctx, attempted_at=turn.attempted_at)) is not None
    ):
        _store_resume(turn, StepRun.Outcome.ALREADY_DONE)
        return
    with transaction.atomic():
        if turn.tried is not None or turn.waiting is not None:
            turn.note_outcome(
                StepRun.Outcome.FAILED,
                f"{ctx.node} no longer stands as it did: it is left as it is.",
            )
        lease.release(turn.run, wake_at=None, waiting_for="")


def _find_objection(run: Run, ctx: Context) -> Failed | None:
    """Why the node is not given back again; `ask` is empty where somebody else looks after it."""
    node, ask = (
        ctx.node,
        f"Test {ctx.node}, and resume it: scontrol update NodeName={ctx.node} State=RESUME",
    )
    if State(run.incident.state) not in (State.MONITORING, *CLOSED):
        return Failed("its incident is open again", "")
    incident = start.get_incidents_calling(run).exclude(state=State.MONITORING).first()
    if incident is not None:
        return Failed(f"incident #{incident.pk} needs it", "")
    if node in lemons.get_quarantined():
        return Failed("it is set aside", "")
    stopped = fleet.get_return_stop_reason(ctx.world.policy.stop_file)
    if stopped:
        return Failed(f"nothing is given back, by {stopped}", ask)
    if node in active_windows.get_maintained(ctx.now):
        return Failed("people work there", ask)
    if node_states.has_booted(ctx.state, return_to_service.get_returned_at(run.facts) or ctx.now):
        return Failed("it has booted since it was verified", ask)
    if run.facts.get(_TIMES, 0) >= _MOST:
        return Failed(f"that was so {_MOST} times before", ask)
    return None


def _find_blocker(ctx: Context) -> Wait | None:
    """A slurmctld that began anew knows of no boot before the slurmd has registered (UNKNOWN, seen
    in 22.05)."""
    if ctx.state.base == "UNKNOWN":
        return Wait(f"slurmctld has not heard of {ctx.node} since it began anew.", _LOOK_AGAIN_SOON)
    if ctx.state.is_rebooting:
        ask = (
            f"Say on {ctx.node}: systemctl restart slurmd. Where that does not help: scontrol"
            " reconfigure"
        )
        text = f"{_format_forgotten(ctx.node)} It waits for a boot of {ctx.node} that is over."
        return Wait(text, _LOOK_AGAIN, ask=ask, is_told=True)
    blocked = Resume().find_obstacle(ctx)
    return blocked if isinstance(blocked, Wait) else None


def _leave_drained(turn: RunTurn, against: Failed) -> None:
    text = f"{_format_forgotten(turn.run.place)} It stays drained: {against.text}."
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.REFUSED, text)
        _record(turn, text, against.ask or None)
        lease.release(turn.run, wake_at=None, waiting_for="")


def _store_resume(turn: RunTurn, outcome: StepRun.Outcome) -> None:
    """Looked at once more after that, too."""
    run, text = turn.run, f"{_format_forgotten(turn.run.place)} Kintsugi resumed it again."
    with transaction.atomic():
        audit.record_run(run, Resume.name, audit.Phase.DONE, text, now=turn.now, key=turn.key)
        has_asked = run.facts.pop("asked", None) is not None
        run.facts[_TIMES] = run.facts.get(_TIMES, 0) + 1
        run.facts[GIVEN_BACK_AT] = format_iso(turn.attempted_at or turn.now)
        turn.note_outcome(outcome, text)
        _record(turn, text, "" if has_asked else None)
        lease.release(run, wake_at=return_to_service.get_next_check_at(run.facts), waiting_for="")


def _record(turn: RunTurn, text: str, needs_human: str | None) -> None:
    transitions.record(
        turn.run.incident_id, kind="run_note", text=text, now=turn.now, needs_human=needs_human
    )


def _format_forgotten(node: str) -> str:
    return f"slurmctld has forgotten that {node} was given back: it stood drained as before."


def check_left_node(run: Run, ctx: Context) -> None:
    """One look, and at most one resume. What anybody has done to the node since stands."""
    hold = drains.evaluate_hold(ctx)
    if not isinstance(hold, Held):
        if not isinstance(hold, Dropped):
            del run.facts[drains.LEFT_FOR]
        keep_drained.check_drain(run, ctx)
        return
    if Run.objects.unfinished().filter(node=run.node).exists():  # it takes the drain over
        lease.release(run, wake_at=ctx.now + _LOOK_AT_LEFT)
        return
    calling = list(start.get_incidents_calling(run).exclude(state=State.MONITORING))
    others = [incident for incident in calling if incident.pk != run.incident_id]
    if any(start.finds_acting_runbook(incident, ctx.now) for incident in calling):
        lease.release(run, wake_at=result.get_next_check_at(run, ctx.now))
    elif others:
        _ask_person(run, others[0], ctx.now)
    else:
        _settle(run, ctx)


def _settle(run: Run, ctx: Context) -> None:
    """Nobody needs the node any more."""
    left = run.facts.pop(drains.LEFT_FOR)
    reason = f"incident #{left['incident']} needs it no more"
    verdict = withdrawal_reasons.Withdraw(reason, hands_back=left["hands_back"])
    outcome = withdraw.settle_node(run, ctx, verdict)
    ask = outcome.ask
    if not ask and withdraw.has_tried(run):
        ask = f"Test {run.place} and resume it: scontrol update NodeName={run.place} State=RESUME"
    text = f"Run {run.pk} had left {run.place} drained, and {reason}. {outcome.text}"
    with transaction.atomic():
        transitions.record(
            run.incident_id,
            kind="run_note",
            text=text,
            now=ctx.now,
            needs_human=ask or None,
        )
        lease.release(run, wake_at=result.get_next_check_at(run, ctx.now))


def _ask_person(run: Run, incident: Incident, now: datetime) -> None:
    """Once, by the incident that needs the node: what stands there already asks for it too."""
    node, left = run.place, run.facts[drains.LEFT_FOR]
    with transaction.atomic():
        if left.get("asked") != incident.pk and not incident.needs_human:
            left_by = f"run {run.pk} left it for this incident"
            text = f"{node} stays drained: {left_by}, for which no runbook may act here now."
            ask = f"Repair {node} and resume it: scontrol update NodeName={node} State=RESUME"
            transitions.record(incident.pk, kind="run_note", text=text, now=now, needs_human=ask)
            run.facts[drains.LEFT_FOR] = {**left, "asked": incident.pk}
        lease.release(run, wake_at=now + _LOOK_AT_LEFT)
