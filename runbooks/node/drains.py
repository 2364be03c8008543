"""The drain that a run writes onto its node, and whose the node is now: what Slurm showed after our
drain is ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from detectors.catalog import catalog
from detectors.slurm import drain_reasons
from runbooks.node import exclusions, overwritten
from runbooks.slurm import node_states, ownership
from runbooks.slurm.ownership import WRITTEN, Dropped, Held, Owner, TakenOver, Written
from runbooks.slurm.protocol import NodeState
from runbooks.step import Context, format_iso, get_fact_time

# The fact of a run: its drained node is lent to one job of ours (node_loan.py).
LENT = "lent"
OF_A_DRAIN = (WRITTEN, "reason")
"""The facts of a run by which a drain is its own."""
# The fact of a run: when it saw that a person had put the node back in service.
RESUMED_AT = "persons_resumed_at"
# The fact of a run: the reboot that it waits for was asked for by somebody else.
REBOOTED_BY_ANOTHER = "rebooted_by_another"
# The fact of a run: whether its drain stood just after it had asked for a reboot.
ASKED_UNDER_DRAIN = "reboot_asked_under_drain"
# The fact of a run: it has taken its request for a reboot back, and Slurm has taken that.
REBOOT_CANCELLED = "reboot_cancelled"
# The fact of a run: for which incident it has left its node drained, and whether the node goes back
# into service where that one needs it no more.
LEFT_FOR = "left_for"
# The fact of a run: the request for a reboot of which it has seen that Slurm waits for no boot any
# more. One that Slurm shows from then on is somebody else's.
AWAITED_NO_MORE = "reboot_awaited_no_more"
# Slurm prints when a reason was set in whole seconds.
_WHOLE = timedelta(seconds=1)
# The fact of a run: the person's reason under which it has said that its own reboot still stands.
_TOLD_UNDER = "reboot_stands_under"


def is_lent(facts: Mapping[str, Any]) -> bool:
    """Whether the node may be without its drain by our own hand: the step that lent it looks after
    it."""
    return LENT in facts and "closed_at" not in facts[LENT]


def evaluate_hold(ctx: Context) -> Held | Dropped | TakenOver:
    """As the node alone shows it. Slurm is asked how it is only where it may itself have let go of
    the node."""
    whose = get_owner(ctx)
    found = ownership.evaluate_hold(ctx.state, whose)
    if not isinstance(found, Dropped):
        return found
    drops = node_states.drops_drains(ctx.world.slurm.read_config())
    return ownership.evaluate_hold(ctx.state, whose, drops_drains=drops)


def get_owner(ctx: Context) -> Owner:
    """Whose the node is. What other runs have written is only read where this run has not written
    what stands there. A person's drain stays theirs when Slurm has put a reason of its own in the
    place of theirs."""
    known = [*ownership.load_written(ctx.facts), *_get_attempted_reasons(ctx)]
    slurm_user = get_slurm_user(ctx)
    whose = ownership.get_owner(ctx.state, ctx.incident_id, known, slurm_user=slurm_user)
    if whose in (Owner.SLURM, Owner.CHECK) and find_hidden_reason(ctx):
        return Owner.PERSON
    named = ownership.parse_incident(ctx.state.reason)
    if whose is not Owner.PERSON or named is None:
        return whose
    return ownership.get_owner(ctx.state, ctx.incident_id, [*known, *ctx.find_written(named)])


def find_hidden_reason(ctx: Context) -> str:
    """Why a person had taken the node out, where Slurm or a check has written over that; else
    empty. A check's own drain counted as a person's until a row of the site explained it."""
    persons = ctx.find_persons_reason()
    is_checks = persons == ctx.state.reason and ownership.find_check(ctx.state) is not None
    return "" if is_checks else persons


def get_slurm_user(ctx: Context) -> str:
    """Slurm is asked only where what it writes itself stands there under a name that is not one of
    the usual."""
    state = ctx.state
    is_usual = ownership.is_by_slurm(state) or not drain_reasons.is_slurms_text(state.reason)
    return (
        ownership.SLURM_USER
        if is_usual
        else ownership.parse_slurm_user(ctx.world.slurm.read_config())
    )


def drain_node(ctx: Context, reason: str) -> None:
    """Drains the node as this turn saw it, and keeps what Slurm then shows: that alone is our
    drain."""
    after = ctx.world.slurm_writer.drain(ctx.node, reason, as_seen=ctx.state)
    store_written(ctx.facts, after)
    overwritten.note_drain(ctx.facts, ctx.state, after, ctx.now)


def note_unkept_drain(ctx: Context) -> None:
    """A worker may have died once it had written our reason anew, and before it kept that: then the
    accounts are read for what a person said in that moment."""
    state, changed_at = ctx.state, ctx.state.reason_changed_at
    if not state.is_drained or changed_at is None or overwritten.is_unchecked(ctx.facts):
        return
    rows = [row for row in ownership.load_written(ctx.facts) if row.reason == state.reason]
    times = [row.at for row in rows if row.at is not None and row.stands_in(state)]
    if not times or changed_at < max(times) + _WHOLE:
        return
    overwritten.note_drain(ctx.facts, None, state, ctx.now)
    store_written(ctx.facts, state)


def resume_node(ctx: Context) -> None:
    """Gives the node back as this turn saw it."""
    overwritten.note_resume(ctx.facts, ctx.now)
    ctx.world.slurm_writer.resume(ctx.node, as_seen=ctx.state)
    exclusions.admit_requeued_jobs(ctx)


def store_written(facts: dict[str, Any], state: NodeState) -> None:
    """The state was read back after our drain."""
    written = ownership.get_written(state)
    at = format_iso(written.at) if written.at is not None else ""
    row = {"reason": written.reason, "by": written.by, "at": at}
    others = [old for old in facts.get(WRITTEN, ()) if old["reason"] != written.reason]
    facts[WRITTEN] = [*others, row]
    facts["reason"] = written.reason


def format_reason(ctx: Context) -> str:
    """What the run's drain writes onto the node."""
    return _format_reason(ctx, ctx.find_tag())


def _format_reason(ctx: Context, tag: str) -> str:
    row = catalog.load().get(ctx.fault_type)
    text = row.title if row is not None else "drained by Kintsugi"
    return ownership.format_reason(ctx.incident_id, ctx.fault_type, text, tag=tag)


def format_lemon_reason(ctx: Context) -> str:
    return _format_lemon_reason(ctx, ctx.find_tag())


def _format_lemon_reason(ctx: Context, tag: str) -> str:
    text = "set aside, a person decides"
    return ownership.format_reason(ctx.incident_id, "lemon", text, tag=tag)


def _get_attempted_reasons(ctx: Context) -> list[Written]:
    """A worker may have died right after it had written one of these; one of the version before
    wrote them without a tag."""
    if ctx.attempted_at is None:
        return []
    tags = (ctx.find_tag(), "")
    texts = [form(ctx, tag) for tag in tags for form in (_format_reason, _format_lemon_reason)]
    return [Written(text) for text in texts]


def is_resumed_since_attempt(ctx: Context) -> bool:
    """Whether the node serves, and this run's drain, of which a worker died, had come: the accounts
    say so, or its reason stands there still (a resume keeps it from 23.11 to 25.11, where no
    accounts are kept). Raises SlurmError."""
    attempted = _get_attempted_reasons(ctx)
    if not attempted or ctx.state.is_out:
        return False
    if any(written.stands_in(ctx.state) for written in attempted):
        return True
    events = ctx.world.slurm.list_node_events(ctx.node) or []
    reasons = {written.reason for written in attempted}
    return any(event.reason in reasons for event in events)


def is_own_reboot_awaited(facts: Mapping[str, Any]) -> bool:
    """Whether the run has asked for a reboot whose boot it has not seen. One that a person asked
    for is theirs to cancel, also where the run waits for it."""
    asked_at = facts.get("reboot_at")
    if asked_at is None or "booted_at" in facts or facts.get(AWAITED_NO_MORE) == asked_at:
        return False
    return REBOOTED_BY_ANOTHER not in facts and REBOOT_CANCELLED not in facts


def is_own_reboot_queued(ctx: Context) -> bool:
    """Whether Slurm has still to send the reboot that this run has asked for. One that is queued
    may be somebody else's: the node has booted since, their request has brought a reason, or it
    came after a crash, of which Slurm's own reason stands there before and after it."""
    is_queued = is_own_reboot_awaited(ctx.facts) and "REBOOT_REQUESTED" in ctx.state.flags
    asked_at = get_fact_time(ctx, "reboot_at")
    if not is_queued or (asked_at is not None and node_states.has_booted(ctx.state, asked_at)):
        return False
    if ctx.state.is_draining or ctx.state.is_failing:
        return True
    return ctx.state.base != "DOWN" and not _is_asked_with_reason(ctx)


def _is_asked_with_reason(ctx: Context) -> bool:
    """Whether a node in service shows a reason that another request for a reboot has brought. Slurm
    writes one where none stands: our own request has none, where it came while our drain stood."""
    reason = ctx.state.reason
    # Slurm may have put its own in the place of ours.
    is_left = _is_own_reason_left(ctx) or drain_reasons.find_cause(reason) not in (None, "reboot")
    if not reason or is_left or reason == ctx.facts.get(_TOLD_UNDER):
        return False
    return bool(ctx.facts.get(ASKED_UNDER_DRAIN))


def _is_own_reason_left(ctx: Context) -> bool:
    """On a node that is in service: a resume keeps it from 23.11 to 25.11, where no accounts are
    kept."""
    written = ownership.load_written(ctx.facts)
    return any(ctx.state.reason.startswith(row.reason) for row in written)


def withdraw_own_reboot(ctx: Context) -> str:
    """A reboot that this run has asked for is not left to hit whoever has taken the node over. What
    became of it, in words; empty where nothing is to be said, or was said under that drain."""
    if not is_own_reboot_awaited(ctx.facts) or "REBOOT_REQUESTED" not in ctx.state.flags:
        return ""
    if not is_own_reboot_queued(ctx):
        return _format_left_reboot(ctx)
    if ctx.state.is_draining or ctx.state.is_failing:
        if ctx.facts.get(_TOLD_UNDER) == ctx.state.reason:
            return ""
        ctx.facts[_TOLD_UNDER] = ctx.state.reason
        return _format_standing_reboot(ctx)
    ctx.world.slurm_writer.withdraw_reboot(ctx.node, as_seen=ctx.state)
    ctx.facts[REBOOT_CANCELLED] = True
    cancelled = (
        "The reboot that Kintsugi had asked for, and that Slurm had not sent, is cancelled:"
        f" {ctx.node} runs on."
    )
    if not _is_own_reason_left(ctx):
        return cancelled
    # A resume takes ours back, and a request after it shows as ours does after State=UNDRAIN: the
    # same flags, reason, setter and times (measured in 24.11).
    return (
        f"{cancelled} Whoever has asked for one since they put it back into service, which Slurm"
        f" does not tell from Kintsugi's, asks again: scontrol reboot {ctx.node}"
    )


def _format_left_reboot(ctx: Context) -> str:
    asked_at = get_fact_time(ctx, "reboot_at")
    has_booted = asked_at is not None and node_states.has_booted(ctx.state, asked_at)
    if has_booted or ctx.state.base != "DOWN":
        return f"Somebody has asked Slurm to reboot {ctx.node} since: that is left to them."
    return (
        f"Slurm is still to reboot {ctx.node}, which has gone down in service. Whether Kintsugi had"
        " asked for that or somebody has since, Slurm does not tell: it is left. To cancel it:"
        f" scontrol cancel_reboot {ctx.node}"
    )


def _format_standing_reboot(ctx: Context) -> str:
    """Under a drain of whom it stands: a person's, who can cancel it, or another run's of ours."""
    stands = (
        f"The reboot that Kintsugi had asked for still stands: Slurm sends it once {ctx.node} is"
        " empty. It is not cancelled, since that would take"
    )
    if get_owner(ctx) is Owner.OTHER_INCIDENT:
        other = ownership.parse_incident(ctx.state.reason)
        return f"{stands} the drain for incident #{other} away with it."
    return (
        f"{stands} your drain or your words away. To do so and keep the node out: scontrol"
        f" cancel_reboot {ctx.node}; scontrol update NodeName={ctx.node} State=DRAIN Reason=..."
    )


def note_persons_resume(facts: dict[str, Any], now: datetime) -> None:
    """Keeps that a person put the node back in service, as `runbooks.engine.persons_resume` reads
    it."""
    facts[RESUMED_AT] = format_iso(now)
