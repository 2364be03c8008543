"""Whether a person's drain was written over by ours, or undone by our resume, in the moment between
our last look and the act; and their words put back.

Slurm has no update that holds only while nothing has changed: between the look and `scontrol
update` lies the start of one program, or longer where slurmctld hangs. Where slurmdbd keeps
accounts, they say afterwards what stood there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from detectors.slurm import drain_reasons
from runbooks.slurm import ownership
from runbooks.slurm.ownership import WRITTEN, Written
from runbooks.slurm.protocol import NodeEvent, NodeState, SlurmError
from runbooks.step import Context, format_iso

# The fact of a run: its last drain or resume, until the accounts were read for it.
_UNCHECKED = "unchecked_act"
# The fact of a run: the node as it was seen before a drain whose outcome is not known.
_SEEN = "seen_before_drain"
_DRAIN, _RESUME = "drain", "resume"
# slurmctld hands its events on at once where slurmdbd answers (measured: below 0.3 s). Our choice.
_AWAITED_FOR = timedelta(seconds=15)
# Of a resume it hands two on, and slurmdbd writes each in two statements: the first looks may show
# the half of it.
_SETTLES_IN = timedelta(seconds=3)
LOOK_AGAIN = timedelta(seconds=1)
# Slurm keeps 255 characters of it in the accounts.
_LONGEST = 240
# What the accounts say began before our look, and the look did not show, was over by then. The two
# machines' clocks may differ: our choice, more than those of machines that run NTP.
_CLOCKS_APART = timedelta(seconds=10)


@dataclass(frozen=True)
class Overwritten:
    """What a person had written. `reason` is empty where it was lost: both came in one second."""

    reason: str
    by: str
    at: datetime


@dataclass(frozen=True)
class NotRecorded:
    """The accounts do not hold our own act yet."""


def note_seen(facts: dict[str, Any], seen: NodeState, now: datetime) -> None:
    """Before a drain: the worker may die in it, and another has to tell what stood there."""
    facts[_SEEN] = _build_seen(seen, now)


def _build_seen(seen: NodeState, now: datetime) -> dict[str, str]:
    """`serving_at`: when the node was seen to be in service, empty where it was out."""
    serving_at = "" if seen.is_out else format_iso(now)
    changed_at = _format_second(seen.reason_changed_at)
    return {"reason": seen.reason, "at": changed_at, "serving_at": serving_at}


def note_drain(
    facts: dict[str, Any], seen: NodeState | None, after: NodeState, now: datetime
) -> None:
    """After a drain; `seen` is the node before it, None for what `note_seen` kept, `after` as it
    was read back. Of a node with jobs the accounts hold nothing."""
    facts.pop(_UNCHECKED, None)
    kept = facts.pop(_SEEN, {})
    before = _build_seen(seen, now) if seen is not None else kept
    if not after.is_drained or after.reason_changed_at is None:
        return
    reason = drain_reasons.strip_appended(after.reason)
    # What Slurm has appended since has changed the time.
    is_appended = reason != after.reason
    began_at = after.reason_changed_at if not is_appended else None
    set_by = after.reason_set_by if not is_appended else ""
    seen_reason = before.get("reason", "")
    seen_at = before.get("at", "")
    serving_at = before.get("serving_at", "")
    facts[_UNCHECKED] = {
        "act": _DRAIN,
        "seen": seen_reason,
        "seen_at": seen_at,
        "serving_at": serving_at,
        "reason": reason,
        "by": set_by,
        "began_at": _format_second(began_at),
        "noted_at": format_iso(now),
    }


def _format_second(at: datetime | None) -> str:
    return format_iso(at.replace(microsecond=0)) if at is not None else ""


def note_resume(facts: dict[str, Any], now: datetime) -> None:
    """Before or after a resume of what this run had drained."""
    facts[_UNCHECKED] = {
        "act": _RESUME,
        "reason": facts.get("reason", ""),
        "noted_at": format_iso(now),
    }


def is_unchecked(facts: Mapping[str, Any]) -> bool:
    return _UNCHECKED in facts


def find_overwritten(ctx: Context) -> Overwritten | NotRecorded | None:
    """Reads the accounts for the run's last drain or resume, if that was not done yet. NotRecorded
    for some seconds at most: then it is taken for not to be had."""
    act = ctx.facts.get(_UNCHECKED)
    if act is None:
        return None
    events: Sequence[NodeEvent] | None = None
    try:
        events = ctx.world.slurm.list_node_events(ctx.node)
    except SlurmError:
        found: Overwritten | NotRecorded | None = NotRecorded()
    else:
        found = _compare(ctx, act, events) if events is not None else None
    waited = ctx.now - datetime.fromisoformat(act["noted_at"])
    is_over = waited > _AWAITED_FOR
    if found is None and events is not None and act["act"] == _RESUME and waited < _SETTLES_IN:
        return NotRecorded()
    if isinstance(found, NotRecorded) and not is_over:
        return found
    if not isinstance(found, Overwritten):
        del ctx.facts[_UNCHECKED]
        return None
    return found


def put_back(ctx: Context, found: Overwritten) -> str:
    """Writes the person's words onto the node again, where ours still stand in their place; what
    was done, as a sentence.

    Raises SlurmError, and the words are still to be put back then. The accounts are read for this
    drain too: somebody may have spoken in its moment.
    """
    act = ctx.facts[_UNCHECKED]
    who, at = found.by or "someone", f"{found.at:%Y-%m-%d %H:%M:%S %Z}"
    words = f'with "{found.reason}"' if found.reason else "with words that are lost"
    drained = f"{who} had drained {ctx.node} at {at} {words}"
    is_drain = act["act"] == _DRAIN
    ours = f"Kintsugi {'drained' if is_drain else 'resumed'} it in the same moment"
    if not _stands(act, ctx.state):
        del ctx.facts[_UNCHECKED]
        return f"{drained}, and {ours}: somebody has changed it since, and it is left as it is"
    note = f" (by {who}, {at}; put back by Kintsugi)"
    reason = found.reason or f"drained in the same second as by Kintsugi, ask {who}"
    after = ctx.world.slurm_writer.drain(
        ctx.node, f"{reason[: _LONGEST - len(note)]}{note}", as_seen=ctx.state
    )
    note_drain(ctx.facts, ctx.state, after, ctx.now)
    if _UNCHECKED in ctx.facts:
        restored = {"reason": found.reason, "by": found.by, "at": _format_second(found.at)}
        ctx.facts[_UNCHECKED]["restored"] = restored
    return f"{drained}, and {ours}: their drain and their words are put back"


def _stands(act: Mapping[str, str], state: NodeState) -> bool:
    """The node is as our act had left it, or has crashed since. Just after a resume it may not
    respond for a moment. A reboot that somebody asks for in service says nothing of the drain, and
    goes on under it."""
    if act["act"] == _RESUME:
        is_by_slurm = not state.reason or drain_reasons.is_slurms_text(state.reason)
        is_set_down = state.base == "DOWN" and not is_by_slurm
        return not (state.is_draining or state.is_failing or is_set_down)
    return state.is_draining and Written(act["reason"], act["by"]).stands_in(state)


def _compare(
    ctx: Context, act: Mapping[str, Any], events: Sequence[NodeEvent]
) -> Overwritten | NotRecorded | None:
    if act["act"] == _RESUME:
        found = _find_before_resume(act["reason"], events)
    else:
        found = _find_before_drain(act, events)
    if isinstance(found, Overwritten) and _is_ours(ctx, found):
        return None
    return found


def _is_ours(ctx: Context, found: Overwritten) -> bool:
    """Another run of ours drained the node or gave it back within that second, or Slurm had taken
    back what this one had drained."""
    incident = ownership.parse_incident(found.reason)
    if incident is None:
        return False
    own = [Written(row["reason"]) for row in ctx.facts.get(WRITTEN, ())]
    written = [*own, *ctx.find_written(incident)]
    return any(row.is_continued_by(found.reason) for row in written)


def _find_before_drain(
    act: Mapping[str, Any], events: Sequence[NodeEvent]
) -> Overwritten | NotRecorded | None:
    """What stood there until our reason came, other than what had been seen before. In one second
    there is one row, with their name and our reason."""
    ours = [event for event in events if event.reason == act["reason"]]
    if not ours:
        return NotRecorded()
    own = ours[-1]
    if act["began_at"] not in ("", format_iso(own.began_at)):
        return None
    restored = act.get("restored", {})
    is_restored = [own.by, format_iso(own.began_at)] == [restored.get("by"), restored.get("at")]
    is_by_another = own.by not in ("", act["by"]) and act["by"] != "" and not is_restored
    if is_by_another and act["seen_at"] != act["began_at"]:
        return Overwritten("", own.by, own.began_at)
    before = [event for event in events if event.ended_at == own.began_at and event is not own]
    serving_at = act.get("serving_at", "")
    if serving_at:
        began_after = datetime.fromisoformat(serving_at) - _CLOCKS_APART
        before = [event for event in before if event.began_at > began_after]
    # The accounts hold the reason as it was set, without what Slurm has appended since.
    seen = drain_reasons.strip_appended(act["seen"])
    unseen = [event for event in before if drain_reasons.strip_appended(event.reason) != seen]
    not_ours = [event for event in unseen if event.reason != restored.get("reason")]
    persons = [event for event in not_ours if not drain_reasons.is_slurms_text(event.reason)]
    return _build(persons[-1]) if persons else None


def _find_before_resume(
    reason: str, events: Sequence[NodeEvent]
) -> Overwritten | NotRecorded | None:
    """What came in the place of our reason, or of what Slurm had put in its place, and went with
    our resume."""
    if not events or events[-1].ended_at is None:
        return NotRecorded()
    last = events[-1]
    if last.reason.startswith(reason) or drain_reasons.is_slurms_text(last.reason):
        return None
    next_began_at = last.began_at
    for event in reversed(events[:-1]):
        is_followed = event.ended_at == next_began_at
        if is_followed and event.reason.startswith(reason):
            return _build(last)
        if not is_followed or not drain_reasons.is_slurms_text(event.reason):
            return None
        next_began_at = event.began_at
    return None


def _build(event: NodeEvent) -> Overwritten:
    return Overwritten(event.reason, event.by, event.began_at)
