"""A person's leave for one step of one run: asked for with the state that it is about, refused when
that has moved.

An approval is for one step, expires, and is used once. A run in mode `approval` asks before its
first act, and before a later one that disrupts where the state has changed or a shift has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import F, QuerySet

from incidents.db.prepared import Given, Prepared
from incidents.inventory import node_states
from incidents.state import transitions
from incidents.text.wording import format_duration
from runbooks.engine import approval_snapshot, start
from runbooks.engine.approval_snapshot import ApprovalSnapshot
from runbooks.engine.result import RunTurn
from runbooks.errors import WorldError
from runbooks.fleet import armings, fleet
from runbooks.guards.verdicts import Act, Bounds
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import Approval, Mode, Run, RunState
from runbooks.plan.escalation_levels import STEPS_THAT_REPAIR
from runbooks.plan.runbook import Planned
from runbooks.slurm.protocol import NodeState
from runbooks.step import Context, Step, StepEffect

_LONGEST = 255
_NOT_KNOWN = "not known"
_USED = "used"
_NEEDLESS = "not needed any more"
COUNT_POSTPONED = "count_postponed"
"""The fact of a run that drained its node though a person decides on so many: they are asked before
the repair."""
_BY_MODE = "The runbook's mode is approval"
_ANEW = "The runbook's mode is approval, and a person is asked anew"
# As what nobody answers is asked again (our choice).
_SHIFT = timedelta(hours=8)


@dataclass(frozen=True)
class Permission:
    """Go on. `approval` is the leave that is used, None where none is needed."""

    approval: Approval | None = None


@dataclass(frozen=True)
class Pending:
    """A person is asked; the run waits."""

    why: str


@dataclass(frozen=True)
class Outdated:
    """There was leave, and it does not hold any more: `what` says why. A person is asked anew."""

    what: str


Outcome = Permission | Pending | Outdated


def check_permission(
    turn: RunTurn, planned: Planned, ctx: Context, nodes: Mapping[str, NodeState]
) -> Outcome:
    """Before the guards are asked. What is to be asked of a person is asked here, with the state as
    it is now."""
    run, now = turn.run, turn.now
    if planned.step.act is None and not planned.needs_approval:
        return Permission()
    if turn.attempted_at is not None and _has_used_leave(run):
        return Permission()  # what was begun by leave is brought to its end by it
    approval: Approval | None = next(iter(_NOT_ENDED.objects(run=run.pk, index=run.step)), None)
    bounds = ctx.world.policy.bounds
    why = _get_rule_reason(run, planned, now)
    why = why or _get_count_reason(run, planned, bounds, turn.find_held_nodes, ctx=ctx)
    snapshot = None
    if approval is None and not why and _is_looked_at_anew(turn, planned.step):
        snapshot = _build_snapshot(run, planned.step, ctx, nodes)
        why = _get_reason_to_ask_anew(run, planned.step, snapshot, now)
    if approval is None and not why:
        return Permission()
    snapshot = snapshot or _build_snapshot(run, planned.step, ctx, nodes)
    if approval is None:
        _request_approval(turn, planned.step, why, snapshot=snapshot)
        return Pending(why)
    lost = _get_expiry_reason(approval, snapshot, act=planned.step.act, now=now)
    if not lost and approval.given_at is not None:
        return Permission(approval)
    with transaction.atomic():
        _end_approval(approval, lost or "looked at again", now)
        _request_approval(turn, planned.step, approval.why, snapshot=snapshot, lost=lost)
    return Outdated(lost) if lost else Pending(approval.why)


_NOT_ENDED = Prepared(
    lambda: Approval.objects.filter(run=Given("run"), index=Given("index"), ended_at=None).order_by(
        "pk"
    )[:1]
)


def _has_used_leave(run: Run) -> bool:
    return run.approvals.filter(index=run.step, ended_why=_USED).exists()


def asks_person(turn: RunTurn, planned: Planned, ctx: Context) -> bool:
    """Whether a person is to be asked before this step, as far as can be told now."""
    run, bounds = turn.run, ctx.world.policy.bounds
    if _get_rule_reason(run, planned, turn.now):
        return True
    return bool(_get_count_reason(run, planned, bounds, turn.find_held_nodes, ctx=ctx))


def is_for_count_alone(turn: RunTurn, planned: Planned, ctx: Context) -> bool:
    """Whether a person will be asked now, and only since so many nodes are in repair already."""
    run = turn.run
    if planned.step.act is None or turn.attempted_at is not None:
        return False
    bounds, find_held = ctx.world.policy.bounds, turn.find_held_nodes
    if not _get_count_reason(run, planned, bounds, find_held):
        return False
    if _get_rule_reason(run, planned, turn.now):
        return False
    is_new = not run.approvals.filter(index=run.step, ended_at=None).exists()
    return is_new and bool(_get_count_reason(run, planned, bounds, find_held, ctx=ctx))


def _get_asked() -> QuerySet[Approval]:
    awaited = Approval.objects.filter(run__state=RunState.AWAITING_APPROVAL, index=F("run__step"))
    return awaited.filter(ended_at=None, given_at=None)


_ASKED = Prepared(lambda: _get_asked().values_list("pk")[:1])


def withdraw_needless(now: datetime, *, bounds: Bounds) -> None:
    """Takes back questions that nobody has to answer any more, since fewer nodes are in repair, or
    people have put the node back in service: the run goes on by itself, and sees to that. Oldest
    first, and no more than may go out now.
    """
    if not _ASKED.values():
        return
    freed = 0
    for approval in _get_asked().select_related("run__incident", "run__node").order_by("run_id"):
        run = approval.run
        if _is_resumed(approval):
            text = f"Run {run.pk} asks for no leave any more: {run.place} takes jobs again."
            _withdraw_approval(approval, text, now)
            continue
        try:
            planned = library.load_plan(run.plan)[run.step]
        except library.LibraryError:  # said when a person lets it go on
            continue
        is_anew = approval.why.startswith(_ANEW) and _is_in_approval_mode(run, now)
        if is_anew or _get_rule_reason(run, planned, now):
            continue
        find_held = partial(fleet.get_held_nodes, run, now)
        if _get_count_reason(run, planned, bounds, find_held, and_more=freed):
            continue
        text = f"Run {run.pk} needs no leave any more: few enough nodes are in repair by now."
        if _withdraw_approval(approval, text, now):
            freed += 1


def _is_resumed(approval: Approval) -> bool:
    """Whether a look at Slurm's nodes that began after the question shows the node in service that
    the run has drained. Between two looks it may have been drained and resumed."""
    run = approval.run
    if run.node is None or "drained_at" not in run.facts:
        return False
    return node_states.is_seen_serving(run.node.name, after=approval.asked_at)


def _withdraw_approval(approval: Approval, text: str, now: datetime) -> bool:
    """Whether the run goes on; not where somebody has decided on it meanwhile."""
    run = approval.run
    waiting = Run.objects.filter(pk=run.pk, state=RunState.AWAITING_APPROVAL, fence=run.fence)
    with transaction.atomic():
        if not waiting.update(state=RunState.RUNNING, wake_at=now, waiting_for=""):
            return False
        _end_approval(approval, _NEEDLESS, now)
        transitions.record(run.incident_id, kind="run_note", text=text, now=now, needs_human="")
    return True


def use_permission(permission: Permission, now: datetime) -> None:
    """In the moment of the attempt."""
    if permission.approval is not None:
        _end_approval(permission.approval, _USED, now)


def get_open_approval(run: Run) -> Approval | None:
    """What a person is asked now."""
    return run.approvals.filter(index=run.step, ended_at=None, given_at=None).first()


def get_fingerprint(run: Run) -> str:
    """Names what is asked now, with the state that it shows; empty where nothing is asked."""
    approval = get_open_approval(run)
    if approval is None:
        return ""
    return approval_snapshot.get_fingerprint(approval.pk, approval.shown)


def is_for_the_whole_run(approval: Approval) -> bool:
    """Asked before a run's first act, since its mode wants that: what is approved is all that the
    run does."""
    return approval.why == _BY_MODE


def grant(run: Run, *, actor: str, now: datetime, holds: timedelta) -> None:
    """In the transaction that lets the run go on."""
    values = {"given_by": actor[:150], "given_at": now, "expires_at": now + holds}
    run.approvals.filter(index=run.step, ended_at=None, given_at=None).update(**values)


def _get_rule_reason(run: Run, planned: Planned, now: datetime) -> str:
    """Why a person is asked before this step, however much is in repair; empty: nobody needs to
    be."""
    if planned.needs_approval:
        return f"A person approves each {planned.step.name.replace('_', ' ')}"
    return _BY_MODE if not run.approved_by and _is_in_approval_mode(run, now) else ""


def _is_in_approval_mode(run: Run, now: datetime) -> bool:
    """Whether it began in mode approval, or its node is in it now."""
    used = run.facts.get(armings.USED)
    mode = fleet.decide_mode(run.runbook, run.node, now, used=used).mode
    return Mode.APPROVAL in (run.mode, mode)


def _is_looked_at_anew(turn: RunTurn, step: Step) -> bool:
    """Whether the leave for the whole run may be too old for this step. What has been begun is
    brought to its end."""
    if step.effect is not StepEffect.DISRUPTIVE or turn.attempted_at is not None:
        return False
    return bool(turn.run.approved_by) and _is_in_approval_mode(turn.run, turn.now)


def _get_reason_to_ask_anew(run: Run, step: Step, snapshot: ApprovalSnapshot, now: datetime) -> str:
    """Why a person is asked once more before this step; empty: the last leave that was used still
    holds."""
    last = run.approvals.filter(ended_why=_USED, given_at__isnull=False).order_by("-pk").first()
    if last is None or last.given_at is None:
        return ""
    if now >= last.given_at + _SHIFT:
        age = format_duration(now - last.given_at)
        return f"{_ANEW}, since the leave of {last.given_by} is {age} old, and a shift has passed"
    before = approval_snapshot.parse_snapshot(last.shown)
    changes = approval_snapshot.list_changes_beside(before, snapshot, step.act)
    if not changes:
        return ""
    return f"{_ANEW}: since {last.given_by} gave leave, {'; '.join(changes)}"


def _get_count_reason(
    run: Run,
    planned: Planned,
    bounds: Bounds,
    find_held: Callable[[], Collection[str]],
    *,
    ctx: Context | None = None,
    and_more: int = 0,
) -> str:
    """Why a person is asked before the run takes its node out; `find_held` gives the nodes that our
    other runs hold, and `and_more` others are about to. Empty: as above.

    A node that is seen to be of no use is drained at once, and the question comes before the first
    act that repairs it.
    """
    is_postponed = COUNT_POSTPONED in run.facts and planned.step.name in STEPS_THAT_REPAIR
    if run.claimed_at is not None and not is_postponed:
        return ""
    limits = (bounds.approval_above, library.get_limits(run.runbook).approval_above)
    most = min(limit for limit in limits if limit is not None)
    many = len(find_held()) + and_more + 1
    if many <= most:
        return ""
    if planned.step.act is Act.DRAIN and ctx is not None and ctx.unusable:
        run.facts[COUNT_POSTPONED] = True
        return ""
    return f"It would be node {many} in repair at once, and above {most} a person decides"


def _build_snapshot(
    run: Run, step: Step, ctx: Context, nodes: Mapping[str, NodeState]
) -> ApprovalSnapshot:
    service = approval_snapshot.format_service(ctx.state)
    jobs = sorted(f"{job.job_id} of {job.user}" for job in ctx.world.slurm.list_jobs(ctx.node))
    faults = _list_faults_to_repair(ctx)
    nodes_out = _count_others_out(run, ctx, nodes)
    power = _read_power(ctx) if step.act is Act.POWER_CYCLE else ""
    return ApprovalSnapshot(
        node=ctx.node,
        service=service,
        reason=ctx.state.reason,
        jobs=tuple(jobs),
        faults=faults,
        power=power,
        nodes_out=nodes_out,
    )


def _list_faults_to_repair(ctx: Context) -> tuple[str, ...]:
    """The faults of the node that call for a repair: others come and go."""
    types = fleet.get_active_repairs(ctx.node)
    return tuple(sorted({str(fault) for fault in ctx.active_faults if fault.fault_type in types}))


def _count_others_out(run: Run, ctx: Context, nodes: Mapping[str, NodeState]) -> int:
    out = {name for name, state in nodes.items() if not state.is_serving}
    return len((out | fleet.get_held_nodes(run, ctx.now)) - {ctx.node})


def _read_power(ctx: Context) -> str:
    try:
        return str(ctx.world.power.read_state(ctx.target))
    except WorldError:
        return _NOT_KNOWN


def _get_expiry_reason(
    approval: Approval, snapshot: ApprovalSnapshot, *, act: Act | None, now: datetime
) -> str:
    """Why this leave does not hold any more; of a question that nobody has answered, nothing is
    lost."""
    if approval.given_at is None:
        return ""
    if approval.expires_at is not None and approval.expires_at <= now:
        return f"the leave of {approval.given_by} has expired"
    before = approval_snapshot.parse_snapshot(approval.shown)
    changes = approval_snapshot.list_changes(before, snapshot, act)
    return f"since {approval.given_by} gave leave, {'; '.join(changes)}" if changes else ""


def _request_approval(
    turn: RunTurn, step: Step, why: str, *, snapshot: ApprovalSnapshot, lost: str = ""
) -> None:
    run, now = turn.run, turn.now
    with transaction.atomic():
        rows = Run.objects.select_for_update().filter(pk=run.pk)
        state = rows.values_list("state", flat=True).first()
        if state != RunState.RUNNING:  # a person paused it while this was looked at
            lease.release(run, wake_at=None)
            return
        shown = snapshot.as_row()
        Approval.objects.create(
            run=run, index=run.step, asked_at=now, why=why[:_LONGEST], shown=shown
        )
        is_whole = why == _BY_MODE
        plan = start.format_plan(run) if is_whole else step.plan.format(node=run.place)
        title = f"{_get_title(run)}, on {run.place}" if is_whole else plan
        before = f"Not done, because {lost}. " if lost else ""
        text = f"{before}Run {run.pk} waits for approval: Kintsugi would {plan}. {why}."
        ask = f"Approve or abort run {run.pk}: {title}."
        transitions.record(
            run.incident_id, kind="approval_asked", text=text, now=now, needs_human=ask
        )
        waiting = f"{before}{why}."
        lease.release(run, wake_at=None, state=RunState.AWAITING_APPROVAL, waiting_for=waiting)


def _get_title(run: Run) -> str:
    book = library.load().get(run.runbook)
    return book.title.lower() if book is not None else run.runbook


def _end_approval(approval: Approval, why: str, now: datetime) -> None:
    Approval.objects.filter(pk=approval.pk, ended_at=None).update(
        ended_at=now, ended_why=why[:_LONGEST]
    )
