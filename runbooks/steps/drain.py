"""Drain the node, so that no new job starts there. A person's drain is left alone, and waited
for."""

from __future__ import annotations

from typing import ClassVar

from runbooks.guards.table import Act
from runbooks.step import Base, Context, Done, Failed, Result, StepEffect, Wait
from runbooks.steps import adopt_drain


class Drain(Base):
    """A drain that Slurm itself wrote is taken over, as `adopt_drain` does it."""

    name: ClassVar[str] = "drain"
    plan: ClassVar[str] = "drain {node}"
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN
    needs_hold: ClassVar[bool] = False

    def is_done(self, ctx: Context) -> Done | None:
        return adopt_drain.drained_by_us(ctx)

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        return adopt_drain.somebody_elses(ctx)

    def run(self, ctx: Context) -> Result:
        return adopt_drain.drain(ctx)
