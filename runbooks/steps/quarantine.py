"""Set the node aside as a lemon: its drain stays, says so, and nothing brings it back by itself."""

from __future__ import annotations

from typing import ClassVar

from incidents.reserve import lemons
from runbooks.guards.table import Act
from runbooks.node import drains
from runbooks.step import Base, Context, HandedOver, Result, StepEffect


class QuarantineNode(Base):
    """Safe to repeat: the same reason is written on the same node, and one quarantine stands per
    node."""

    name: ClassVar[str] = "quarantine"
    plan: ClassVar[str] = "set it aside as a lemon"
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN

    def run(self, ctx: Context) -> Result:
        found = lemons.is_lemon(ctx.node, ctx.now)
        why = found.why if found is not None else f"{ctx.fault_type} on {ctx.resource}"
        drains.drain_node(ctx, drains.format_lemon_reason(ctx))
        lemons.quarantine(ctx.node, incident_id=ctx.incident_id, reason=why, now=ctx.now)
        return HandedOver(
            f"{ctx.node} is set aside as a lemon: {why}. It stays drained, and nothing resumes it"
            " by itself.",
            ask=(
                f"Have {ctx.node} examined by the vendor, end its quarantine with what was done,"
                " then resume it."
            ),
        )
