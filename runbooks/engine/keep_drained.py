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

from detectors.slurm import drain_reasons
from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import audit
from runbooks.lease import lease
from runbooks.models import Run
from runbooks.node import drains, overwritten
from runbooks.slurm.ownership import Dropped, Owner, TakenOver
from runbooks.step import Context
from runbooks.steps.drain import Drain

# slurmctld looks for what is past ResumeTimeout every half minute (measured 28 s).
_LOOK_AGAIN = timedelta(seconds=30)
# The fact of an ended run: the words of the person whose drain its node is, as last seen.
_PERSONS_WORDS = "left_to_words"
# Slurm keeps 255 characters of a reason in its accounts.
_LONGEST_WORDS = 220


def get_next_check_at(facts: Mapping[str, Any], now: datetime) -> datetime | None:
    """When an ended run looks whether its node is drained; None where no boot of it is awaited."""
    is_awaited = "reboot_at" in facts and "booted_at" not in facts
    return now + _LOOK_AGAIN if is_awaited else None


def check_drain(run: Run, ctx: Context) -> None:
    """One look, and at most one drain. A person's resume ends it, and so does another run on the
    node; a person's drain does once no boot that we asked for is left to come."""
    hold = drains.evaluate_hold(ctx)
    # One that waits for the node as a person left it holds nothing yet.
    holding = Run.objects.unfinished().filter(node=run.node, claimed_at__isnull=False)
    is_others = holding.exists()
    if isinstance(hold, TakenOver) and not is_others:
        _leave_to_person(run, ctx)
        return
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
    """The reboot that the run had asked for is not to hit them, nor to cost them their drain. Under
    a drain of theirs it stands, and is cancelled when they take that drain away."""
    if _is_persons_drain_dropped(run, ctx):
        _restore_persons_drain(run, ctx)
        return
    if ctx.state.is_draining and drains.get_owner(ctx) is Owner.PERSON:
        run.facts[_PERSONS_WORDS] = drain_reasons.strip_appended(ctx.state.reason)
    left = drains.withdraw_own_reboot(ctx)
    is_theirs = ctx.state.is_draining or ctx.state.is_failing
    is_to_come = drains.is_own_reboot_awaited(ctx.facts) and ctx.state.is_rebooting
    with transaction.atomic():
        if left:
            transitions.record(run.incident_id, kind="run_note", text=left, now=ctx.now)
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN if is_theirs and is_to_come else None)


def _is_persons_drain_dropped(run: Run, ctx: Context) -> bool:
    """Whether Slurm has taken a person's drain away, since the boot that we had asked for has not
    come."""
    says_so = drain_reasons.list_causes(ctx.state.reason)[-1:] == ["reboot_timed_out"]
    is_given_up = ctx.state.base == "DOWN" and says_so
    is_theirs = drain_reasons.strip_appended(ctx.state.reason) == run.facts.get(_PERSONS_WORDS)
    return is_given_up and is_theirs and not ctx.state.is_draining and not ctx.state.is_failing


def _restore_persons_drain(run: Run, ctx: Context) -> None:
    words = run.facts[_PERSONS_WORDS]
    text = (
        f'Slurm took the drain of {ctx.node} with "{words}" away, since the boot that Kintsugi had'
        " asked for has not come. It is put back."
    )
    audit.record_run(run, Drain.name, audit.Phase.BEGUN, text, now=ctx.now)
    reason = f"{words[:_LONGEST_WORDS]} (put back by Kintsugi)"
    after = ctx.world.slurm_writer.drain(ctx.node, reason, as_seen=ctx.state)
    overwritten.note_drain(run.facts, ctx.state, after, ctx.now)
    is_unchecked = overwritten.is_unchecked(run.facts)
    with transaction.atomic():
        audit.record_run(run, Drain.name, audit.Phase.DONE, text, now=ctx.now)
        transitions.record(run.incident_id, kind="run_note", text=text, now=ctx.now)
        lease.release(run, wake_at=ctx.now + overwritten.LOOK_AGAIN if is_unchecked else None)


def _drain_again(run: Run, dropped: Dropped, ctx: Context) -> None:
    """Killed in the middle, the next look finds the node dropped or drained: either is right."""
    text = f"{dropped.text}, and has waited for its boot in vain. Kintsugi drained it again."
    audit.record_run(run, Drain.name, audit.Phase.BEGUN, text, now=ctx.now)
    drains.drain_node(ctx, run.facts["reason"])
    with transaction.atomic():
        audit.record_run(run, Drain.name, audit.Phase.DONE, text, now=ctx.now)
        transitions.record(run.incident_id, kind="run_note", text=text, now=ctx.now)
        lease.release(run, wake_at=ctx.now + _LOOK_AGAIN)
