"""Once a run has given its node back and ended: whether slurmctld has kept that. What it has
forgotten is done again.

A slurmctld that dies within seconds of a resume comes back without it: the node stands drained with
our reason, and no run is there to see it. So each run that gave its node back looks once more, when
that has been kept or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from incidents.maintenance import active_windows
from incidents.reserve import lemons
from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import audit, result, start
from runbooks.engine.result import RunTurn
from runbooks.errors import WorldError, WorldRefusal
from runbooks.fleet import fleet
from runbooks.lease import lease
from runbooks.models import Run, StepRun
from runbooks.node import drains, return_to_service
from runbooks.node.return_to_service import GIVEN_BACK_AT
from runbooks.slurm import node_states
from runbooks.step import Context, Failed, Wait, format_iso
from runbooks.steps.resume import Resume

_LOOK_AGAIN = timedelta(seconds=30)
_LOOK_AGAIN_SOON = timedelta(seconds=5)
# A Slurm that forgets it so often has not died once in a bad moment: a person looks. Our choice.
_MOST = 3
_TIMES = "resumed_again"


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
