"""A person's leave for one step of one run: asked for with the state that it is about, refused when
that has moved.

An approval is for one step, expires, and is used once. A run in mode `approval` asks before its
first act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, QuerySet

from incidents.state import transitions
from runbooks.engine import approval_snapshot, start
from runbooks.engine.approval_snapshot import ApprovalSnapshot
from runbooks.engine.result import Turn
from runbooks.errors import WorldError
from runbooks.fleet import fleet
from runbooks.guards.verdicts import Act, Bounds
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import Approval, Mode, Run, RunState
from runbooks.plan.runbook import Planned
from runbooks.slurm.protocol import NodeState
from runbooks.step import Context, Step

_LONGEST = 255
_NOT_KNOWN = "not known"
_USED = "used"
_NEEDLESS = "not needed any more"
_BY_MODE = "The runbook's mode is approval"


@dataclass(frozen=True)
class Permission:
    """Go on. `approval` is the leave that is used, None where none is needed."""

    approval: Approval | None = None


@dataclass(frozen=True)
class Asked:
    """A person is asked; the run waits."""

    why: str


@dataclass(frozen=True)
class Moved:
    """There was leave, and it does not hold any more: `what` says why. A person is asked anew."""

    what: str


Outcome = Permission | Asked | Moved


def check(turn: Turn, planned: Planned, ctx: Context, nodes: Mapping[str, NodeState]) -> Outcome:
    """Before the guards are asked. What is to be asked of a person is asked here, with the state as
    it is now."""
    run, now = turn.run, turn.now
    if planned.step.act is None and not planned.needs_approval:
        return Permission()
    if (
        turn.attempted_at is not None
        and run.approvals.filter(index=run.step, ended_why=_USED).exists()
    ):
        return Permission()  # what was begun by leave is brought to its end by it
    standing = run.approvals.filter(index=run.step, ended_at=None).first()
    why = _always(run, planned) or _for_number(run, ctx.world.policy.bounds, now)
    if standing is None and not why:
        return Permission()
    seen = _seen(run, planned.step, ctx, nodes)
    if standing is None:
        _ask(turn, planned.step, why, seen=seen)
        return Asked(why)
    lost = _lost(standing, seen, act=planned.step.act, now=now)
    if not lost and standing.given_at is not None:
        return Permission(standing)
    with transaction.atomic():
        _end(standing, lost or "looked at again", now)
        _ask(turn, planned.step, standing.why, seen=seen, lost=lost)
    return Moved(lost) if lost else Asked(standing.why)


def is_for_number_alone(turn: Turn, planned: Planned, ctx: Context) -> bool:
    """Whether a person will be asked now, and only since so many nodes are in repair already."""
    run = turn.run
    if planned.step.act is None or _always(run, planned) or turn.attempted_at is not None:
        return False
    is_new = not run.approvals.filter(index=run.step, ended_at=None).exists()
    return is_new and bool(_for_number(run, ctx.world.policy.bounds, turn.now))


def _asked() -> QuerySet[Approval]:
    return Approval.objects.filter(
        ended_at=None, given_at=None, run__state=RunState.AWAITING_APPROVAL
    )


def withdraw_needless(now: datetime, *, bounds: Bounds) -> None:
    """Takes back questions that nobody has to answer any more, since fewer nodes are in repair: the
    run goes on by itself. Oldest first, and no more than may go out now.
    """
    asked = _asked()
    freed = 0
    for row in (
        asked.filter(index=F("run__step"))
        .select_related("run__incident", "run__node")
        .order_by("run_id")
    ):
        run = row.run
        try:
            planned = library.planned(run.plan)[run.step]
        except library.LibraryError:  # said when a person lets it go on
            continue
        if _always(run, planned) or _for_number(run, bounds, now, and_more=freed):
            continue
        with transaction.atomic():
            mine = Run.objects.filter(pk=run.pk, state=RunState.AWAITING_APPROVAL, fence=run.fence)
            if mine.update(state=RunState.RUNNING, wake_at=now, waiting_for=""):
                freed += 1
                _end(row, _NEEDLESS, now)
                text = (
                    f"Run {run.pk} needs no leave any more: few enough nodes are in repair by now."
                )
                transitions.record(
                    run.incident_id, kind="run_note", text=text, now=now, needs_human=""
                )


def used(given: Permission, now: datetime) -> None:
    """In the moment of the attempt."""
    if given.approval is not None:
        _end(given.approval, _USED, now)


def get_open_approval(run: Run) -> Approval | None:
    """What a person is asked now."""
    return run.approvals.filter(index=run.step, ended_at=None, given_at=None).first()


def mark_of(run: Run) -> str:
    """Names what is asked now, with the state that it shows; empty where nothing is asked."""
    asked = get_open_approval(run)
    return approval_snapshot.mark(asked.pk, asked.shown) if asked is not None else ""


def is_for_the_whole_run(approval: Approval) -> bool:
    """Asked before a run's first act, since its mode wants that: what is approved is all that the
    run does."""
    return approval.why == _BY_MODE


def give(run: Run, *, actor: str, now: datetime, holds: timedelta) -> None:
    """In the transaction that lets the run go on."""
    values = {"given_by": actor[:150], "given_at": now, "expires_at": now + holds}
    run.approvals.filter(index=run.step, ended_at=None, given_at=None).update(**values)


def _always(run: Run, planned: Planned) -> str:
    """Why a person is asked before this step, however much is in repair; empty: nobody needs to
    be."""
    if planned.needs_approval:
        return f"A person approves each {planned.step.name.replace('_', ' ')}"
    if Mode.APPROVAL in (run.mode, fleet.mode_of(run.runbook)) and not run.approved_by:
        return _BY_MODE
    return ""


def _for_number(run: Run, bounds: Bounds, now: datetime, *, and_more: int = 0) -> str:
    """Why a person is asked before the run takes its node out; `and_more` others are about to.
    Empty: as above."""
    if run.claimed_at is not None:
        return ""
    limits = (bounds.approval_above, fleet.limits_of(run.runbook).approval_above)
    most = min(limit for limit in limits if limit is not None)
    many = len(fleet.get_held_nodes(run, now)) + and_more + 1
    return (
        f"It would be node {many} in repair at once, and above {most} a person decides"
        if many > most
        else ""
    )


def _seen(run: Run, step: Step, ctx: Context, nodes: Mapping[str, NodeState]) -> ApprovalSnapshot:
    jobs = ctx.world.slurm.jobs(ctx.node)
    grave = fleet.repairs_standing(ctx.node)  # other faults come and go
    faults = {
        f"{fault.fault_type} on {fault.resource}"
        for fault in ctx.standing
        if fault.fault_type in grave
    }
    out = {name for name, state in nodes.items() if state.is_out} | fleet.get_held_nodes(
        run, ctx.now
    )
    return ApprovalSnapshot(
        node=ctx.node,
        service=approval_snapshot.service(ctx.state),
        reason=ctx.state.reason,
        jobs=tuple(sorted(f"{job.job_id} of {job.user}" for job in jobs)),
        faults=tuple(sorted(faults)),
        power=_power(ctx) if step.act is Act.POWER_CYCLE else "",
        nodes_out=len(out - {ctx.node}),
    )


def _power(ctx: Context) -> str:
    try:
        return str(ctx.world.power.state(ctx.target))
    except WorldError:
        return _NOT_KNOWN


def _lost(approval: Approval, seen: ApprovalSnapshot, *, act: Act | None, now: datetime) -> str:
    """Why this leave does not hold any more; of a question that nobody has answered, nothing is
    lost."""
    if approval.given_at is None:
        return ""
    if approval.expires_at is not None and approval.expires_at <= now:
        return f"the leave of {approval.given_by} has expired"
    what = approval_snapshot.moved(approval_snapshot.of_row(approval.shown), seen, act)
    return f"since {approval.given_by} gave leave, {'; '.join(what)}" if what else ""


def _ask(turn: Turn, step: Step, why: str, *, seen: ApprovalSnapshot, lost: str = "") -> None:
    run, now = turn.run, turn.now
    with transaction.atomic():
        live = (
            Run.objects.select_for_update()
            .filter(pk=run.pk)
            .values_list("state", flat=True)
            .first()
        )
        if live != RunState.RUNNING:  # a person paused it while this was looked at
            lease.give_back(run, wake_at=None)
            return
        Approval.objects.create(
            run=run, index=run.step, asked_at=now, why=why[:_LONGEST], shown=seen.as_row()
        )
        is_whole = why == _BY_MODE
        plan = start.plan(run) if is_whole else step.plan.format(node=run.place)
        title = f"{_title(run)}, on {run.place}" if is_whole else plan
        before = f"Not done, because {lost}. " if lost else ""
        text = f"{before}Run {run.pk} waits for approval: Kintsugi would {plan}. {why}."
        ask = f"Approve or abort run {run.pk}: {title}."
        transitions.record(
            run.incident_id, kind="approval_asked", text=text, now=now, needs_human=ask
        )
        waiting = f"{before}{why}."
        lease.give_back(run, wake_at=None, state=RunState.AWAITING_APPROVAL, waiting_for=waiting)


def _title(run: Run) -> str:
    book = library.load().get(run.runbook)
    return book.title.lower() if book is not None else run.runbook


def _end(approval: Approval, why: str, now: datetime) -> None:
    Approval.objects.filter(pk=approval.pk, ended_at=None).update(
        ended_at=now, ended_why=why[:_LONGEST]
    )
