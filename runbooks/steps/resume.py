"""Give the verified node back to Slurm. Only what this run drained, and only while the reason is still ours."""

from __future__ import annotations

from typing import ClassVar

from detectors.faults import Recovery
from runbooks.step import Base, Context, Done, Effect, Result


class Resume(Base):
    name: ClassVar[str] = "resume"
    plan: ClassVar[str] = "resume it"
    effect: ClassVar[Effect] = Effect.REVERSIBLE
    recovery: ClassVar[Recovery | None] = Recovery.NODE_RESTART

    def is_done(self, ctx: Context) -> Done | None:
        """Only after an attempt of ours: without one, a node in service was resumed by someone else."""
        if ctx.attempted_at is not None and not ctx.state.is_draining and ctx.state.base != "DOWN":
            return Done(f"{ctx.node} takes jobs again.")
        return None

    def run(self, ctx: Context) -> Result:
        ctx.world.slurm.resume(ctx.node)
        return Done(f"{ctx.node} takes jobs again.")
