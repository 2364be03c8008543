"""Confirm the fault on the node itself. A log line that came over the network never reboots anything alone.

1. The detectors that the fault type names see it there, on the same resource or on the whole node; or
2. for a type that no detector can see: the node's own kernel log, this boot's, holds it; or
3. the node answers neither us nor Slurm.
Otherwise a person is asked, and it is looked at again: the node stays drained meanwhile.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from detectors import catalog
from detectors.faults import Action, FaultEvent
from runbooks import looking
from runbooks.looking import Look
from runbooks.step import Base, Context, Done, Result, Wait, patience, remembered, told

_LONGEST = timedelta(minutes=5)


class ConfirmOnNode(Base):
    """Stores the boot id too: after this step the node may lose it."""

    name: ClassVar[str] = "confirm_on_node"
    plan: ClassVar[str] = "confirm the fault on {node} itself"

    def run(self, ctx: Context) -> Result:
        seen = looking.look(ctx, only=looking.those_that_confirm(ctx.fault_type))
        if not seen.is_reachable:
            return _unreachable(ctx, seen)
        boot = looking.boot(ctx)
        ctx.facts["boot_id_before"] = boot.boot_id if boot is not None else ctx.known_boot_id
        row = catalog.load().get(ctx.fault_type)
        if row is not None and row.confirmed_by:
            event = next((event for event in seen.raised if _confirms(event, ctx)), None)
            if event is not None:
                return _confirmed(ctx, f"{event.fault_type} on {event.resource} ({event.excerpt})")
            return _unconfirmed(ctx, f"its {' and '.join(row.confirmed_by)} check finds nothing wrong")
        fact = looking.in_kernel_log(ctx)
        if fact is not None:
            return _confirmed(ctx, f'its own kernel log says "{fact.excerpt}"')
        return _unconfirmed(ctx, "its own kernel log does not hold it")


def _confirms(event: FaultEvent, ctx: Context) -> bool:
    """A fault of the same part that calls for as much; one of the whole node counts for each of its parts."""
    return looking.is_of_part(event.resource, ctx) and event.action.at_least(Action.RESET_GPU)


def _confirmed(ctx: Context, how: str) -> Done:
    ctx.facts["confirmed_at"] = told(ctx.now)
    return Done(f"Confirmed on {ctx.node}: {how}.")


def _unconfirmed(ctx: Context, why: str) -> Wait:
    return Wait(
        f"{ctx.fault_type} is not confirmed on {ctx.node}: {why}. It stays drained and is not rebooted.",
        patience(remembered(ctx, "drained_at"), ctx.now, longest=_LONGEST),
        ask=f"Look at {ctx.node}. If nothing is wrong with it, mark the incident a false alarm: Kintsugi then hands"
        " the node back.",
        is_told=True,
    )


def _unreachable(ctx: Context, seen: Look) -> Result:
    if "NOT_RESPONDING" in ctx.state.flags or ctx.state.base == "DOWN":
        ctx.facts["boot_id_before"] = ctx.known_boot_id
        return _confirmed(ctx, f"it answers neither Kintsugi ({seen.complaint}) nor Slurm ({ctx.state.base})")
    return _unconfirmed(ctx, f"Kintsugi cannot reach it ({seen.complaint}), while Slurm can")
