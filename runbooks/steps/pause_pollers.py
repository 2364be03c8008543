"""Have Kintsugi's own looks leave the node's GPUs alone: a look of ours would fail a reset and
disturb a test.

The pause ends with the verification, with the run, or by itself after `longest`, whichever comes
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from incidents.polling import poll_pauses
from runbooks.step import Base, Context, Done, Parameter, Result, Wait

# Those that call nvidia-smi, and the one that reads DCGM's exporter, which a reset stops.
DETECTORS = ("gpu", "nvlink", "dcgm")
_LOOK_AGAIN = timedelta(seconds=2)


def get_holder(run_id: int) -> str:
    """What the run's pauses are held by; they end with it."""
    return f"run {run_id}"


class PausePollers(Base):
    name: ClassVar[str] = "pause_pollers"
    plan: ClassVar[str] = "leave its GPUs alone with our own looks"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        # Our choice: as long as a reset may take, with some room. A step that tests for longer asks
        # for more itself.
        "longest": Parameter.duration(default=timedelta(minutes=15)),
    }

    def run(self, ctx: Context) -> Result:
        until = ctx.now + ctx.params["longest"]
        holder = get_holder(ctx.run_id)
        why = f"{holder} of incident #{ctx.incident_id} resets or tests its GPUs"
        poll_pauses.pause(ctx.node, DETECTORS, holder=holder, why=why, until=until, now=ctx.now)
        if not poll_pauses.is_quiet(ctx.node, DETECTORS, ctx.now):
            return Wait(f"A look of ours at the GPUs of {ctx.node} is under way.", _LOOK_AGAIN)
        latest = f"{until:%H:%M:%S %Z} at the latest ({', '.join(DETECTORS)})"
        text = f"Kintsugi leaves the GPUs of {ctx.node} alone until {latest}."
        return Done(text, is_told=False)
