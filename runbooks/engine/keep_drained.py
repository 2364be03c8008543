"""Once a run has ended without its node's boot: the drain is kept until Slurm waits for that boot
no longer.

Slurm cancels no reboot that it has sent, and past ResumeTimeout it drops the drain of a node that
has not come back (measured in 22.05): with no run left, nobody would see that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import audit
from runbooks.lease import lease
from runbooks.models import Run
from runbooks.node import drains
from runbooks.slurm.ownership import Dropped, TakenOver
from runbooks.step import Context
from runbooks.steps.drain import Drain

# slurmctld looks for what is past ResumeTimeout every half minute (measured 28 s).
_LOOK_AGAIN = timedelta(seconds=30)


def get_next_check_at(facts: Mapping[str, Any], now: datetime) -> datetime | None:
    """When an ended run looks whether its node is drained; None where no boot of it is awaited."""
    is_awaited = "reboot_at" in facts and "booted_at" not in facts
    return now + _LOOK_AGAIN if is_awaited else None


def check_drain(run: Run, ctx: Context) -> None:
    """One look, and at most one drain. A person's resume ends it, and so does another run on the
    node; a person's drain once no reboot of ours is left to come."""
    hold = drains.evaluate_hold(ctx)
    if isinstance(hold, TakenOver):
        _leave_to_person(run, ctx)
        return
    is_others = Run.objects.unfinished().filter(node=run.node).exists()
    if is_others or State(run.incident.state) in CLOSED:
        # Whoever takes the drain away does not ask for the reboot.
        is_queued = "REBOOT_REQUESTED" in ctx.state.flags
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN if is_queued else None)
        return
    if isinstance(hold, Dropped):
        _drain_again(run, hold, ctx)
        return
    lease.release(run, wake_at=ctx.now + _LOOK_AGAIN if ctx.state.is_rebooting else None)


def _leave_to_person(run: Run, ctx: Context) -> None:
    """The reboot that the run had asked for is not to hit them. Under a drain of theirs it stands,
    and is cancelled when they take that drain away."""
    left = drains.withdraw_own_reboot(ctx)
    is_left_standing = drains.is_own_reboot_queued(ctx) and (
        ctx.state.is_draining or ctx.state.is_failing
    )
    with transaction.atomic():
        if left:
            transitions.record(run.incident_id, kind="run_note", text=left, now=ctx.now)
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN if is_left_standing else None)


def _drain_again(run: Run, dropped: Dropped, ctx: Context) -> None:
    """Killed in the middle, the next look finds the node dropped or drained: either is right."""
    text = f"{dropped.text}, and has waited for its boot in vain. Kintsugi drained it again."
    audit.record_run(run, Drain.name, audit.Phase.BEGUN, text, now=ctx.now)
    drains.drain_node(ctx, run.facts["reason"])
    with transaction.atomic():
        audit.record_run(run, Drain.name, audit.Phase.DONE, text, now=ctx.now)
        transitions.record(run.incident_id, kind="run_note", text=text, now=ctx.now)
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN)
