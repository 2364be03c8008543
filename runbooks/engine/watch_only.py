"""A turn of a run that acts on no node: it watches, tells and asks, and asks Slurm for nothing but
to look.

It ends when its incident is closed: what is watched is watched through its quiet period too, and by
the vendor's side.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from detectors.detector import Target
from incidents.models import Fault
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import contexts
from runbooks.engine import result as ending
from runbooks.engine.result import RunTurn
from runbooks.library.library import Planned
from runbooks.models import Mode, Run, StepRun
from runbooks.slurm.protocol import NodeState
from runbooks.step import ActiveFault, Context, Failed, Refuted, Step, Wait, World


def advance_watch(
    run: Run, steps: tuple[Planned, ...], *, is_called_for: bool, now: datetime, world: World
) -> None:
    """At most one step; a step of such a run looks only, so that no attempt has to be stored before
    it."""
    state = State(run.incident.state)
    if state in CLOSED or not is_called_for:
        why = "the cause lies elsewhere"
        if state in CLOSED:
            why = f"its incident is {state.value.replace('_', ' ')}"
        ending.conclude(RunTurn(run, None, now), f"Run {run.pk} about {run.place} ends: {why}.")
        return
    if run.mode == Mode.SHADOW:
        _store_shadow(run, [planned.step for planned in steps], now=now)
        return
    planned = steps[run.step]
    current = RunTurn(run, planned.step, now)
    ctx = _build_context(current, planned, world=world)
    is_last = run.step == len(steps) - 1
    done = planned.step.find_done(ctx)
    if done is not None:
        ending.store_result(current, done, is_last=is_last, outcome=StepRun.Outcome.ALREADY_DONE)
        return
    blocked = planned.step.find_obstacle(ctx)
    result = blocked if isinstance(blocked, (Wait, Failed)) else planned.step.run(ctx)
    assert not isinstance(result, Refuted)  # noqa: S101 - only what is told of a node is refuted
    ending.store_result(current, result, is_last=is_last)


def _store_shadow(run: Run, steps: list[Step], *, now: datetime) -> None:
    remark = " It would only look, tell and ask: nothing of it stands in the dry-run report."
    ending.store_shadow(run, steps, remark=remark, now=now)


def _build_context(current: RunTurn, planned: Planned, *, world: World) -> Context:
    """As for a node, but for what only a node has: Slurm's state of it is unknown, and it is
    entered by nobody."""
    run = current.run
    state = NodeState(run.place, "UNKNOWN", frozenset(), "", "", None, None, ())
    find_target = partial(Target, name=run.place, address="")
    context = contexts.create_context(
        run, state, find_target=find_target, now=current.now, world=world
    )
    context.attempted_at = current.attempted_at
    context.find_active_faults = partial(_load_active, run)
    context.params = planned.params
    context.key = current.key
    return context


def _load_active(run: Run) -> list[ActiveFault]:
    """The incident's own, wherever they are."""
    rows = Fault.objects.active().filter(membership__incident=run.incident).order_by("pk")
    return [
        ActiveFault(row.fault_type, row.resource, max(row.last_seen_at, row.observed_at))
        for row in rows
    ]
