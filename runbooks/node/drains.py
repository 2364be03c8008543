"""The drain that a run writes onto its node, and whose the node is now: what Slurm showed after our
drain is ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from detectors.catalog import catalog
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Dropped, Held, Owner, TakenOver, Written
from runbooks.slurm.protocol import NodeState
from runbooks.step import Context, to_iso

# The fact of a run: the reasons that it has written, as Slurm showed them afterwards.
_WRITTEN = "written"
# The fact of a run: when it saw that a person had put the node back in service.
RESUMED_AT = "persons_resumed_at"


def hold(ctx: Context) -> Held | Dropped | TakenOver:
    """As the node alone shows it."""
    return ownership.hold(ctx.state, owner(ctx))


def owner(ctx: Context) -> Owner:
    """Whose the node is. What other runs have written is only read where this run has not written
    what stands there."""
    known = [*known_to(ctx.facts), *_being_written(ctx)]
    whose = ownership.owner(ctx.state, ctx.incident_id, known)
    named = ownership.incident_of(ctx.state)
    if whose is not Owner.PERSON or named is None:
        return whose
    return ownership.owner(ctx.state, ctx.incident_id, [*known, *ctx.find_written(named)])


def drain(ctx: Context, reason: str) -> None:
    """Drains the node as this turn saw it, and keeps what Slurm then shows: that alone is our
    drain."""
    keep(ctx.facts, ctx.world.slurm_writer.drain(ctx.node, reason, as_seen=ctx.state))


def keep(facts: dict[str, Any], state: NodeState) -> None:
    """The state was read back after our drain."""
    one = ownership.written(state)
    row = {"reason": one.reason, "by": one.by, "at": to_iso(one.at) if one.at is not None else ""}
    facts[_WRITTEN] = [
        *(old for old in facts.get(_WRITTEN, ()) if old["reason"] != one.reason),
        row,
    ]
    facts["reason"] = one.reason


def known_to(facts: Mapping[str, Any]) -> list[Written]:
    """What a run has written. One of an earlier version has kept the text alone."""
    rows = facts.get(_WRITTEN) or ([{"reason": facts["reason"]}] if "reason" in facts else [])
    return [
        Written(
            row["reason"],
            row.get("by", ""),
            datetime.fromisoformat(row["at"]) if row.get("at") else None,
        )
        for row in rows
    ]


def reason(ctx: Context) -> str:
    """What the run's drain writes onto the node."""
    row = catalog.load().get(ctx.fault_type)
    return ownership.reason(
        ctx.incident_id, ctx.fault_type, row.title if row is not None else "drained by Kintsugi"
    )


def lemon_reason(ctx: Context) -> str:
    return ownership.reason(ctx.incident_id, "lemon", "set aside, a person decides")


def _being_written(ctx: Context) -> list[Written]:
    """A worker may have died right after it had written one of these."""
    return (
        [Written(reason(ctx)), Written(lemon_reason(ctx))] if ctx.attempted_at is not None else []
    )


def note_persons_resume(facts: dict[str, Any], now: datetime) -> None:
    """Keeps that a person put the node back in service, as `runbooks.engine.persons_resume` reads
    it."""
    facts[RESUMED_AT] = to_iso(now)
