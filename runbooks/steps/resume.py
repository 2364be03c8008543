"""Give the verified node back to Slurm. Only what this run drained, and only while the reason is
still ours."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks.node import drains, overwritten
from runbooks.node.return_to_service import GIVEN_BACK_AT
from runbooks.slurm import node_states
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    NotCured,
    PassedOn,
    Result,
    StepEffect,
    Wait,
    format_iso,
)
from runbooks.steps import verify

_LOOK_AGAIN = timedelta(seconds=10)


class Resume(Base):
    name: ClassVar[str] = "resume"
    plan: ClassVar[str] = "resume it"
    touches_node: ClassVar[bool] = True
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE

    def find_done(self, ctx: Context) -> Done | None:
        """Only after an attempt of ours: without one, a node in service was resumed by someone
        else."""
        if ctx.attempted_at is not None and not ctx.state.is_draining and ctx.state.base != "DOWN":
            ctx.facts[GIVEN_BACK_AT] = format_iso(ctx.attempted_at)
            overwritten.note_resume(ctx.facts, ctx.now)
            return Done(f"{ctx.node} takes jobs again.")
        return None

    def find_obstacle(self, ctx: Context) -> Wait | Failed | NotCured | PassedOn | None:
        """What takes no jobs is not given back: its slurmd has to answer, and nothing of an old job
        may be there. Neither is what a poll or a line has shown to be ill since it was verified."""
        if ctx.facts.get("unkillable_jobs") and "COMPLETING" in ctx.state.flags:
            return Failed(
                f"{ctx.node} still holds processes of jobs that are over: it takes no jobs. It"
                " stays drained.",
                ask=(
                    f"Power-cycle {ctx.node}, and resume it: scontrol update NodeName={ctx.node}"
                    " State=RESUME"
                ),
            )
        if node_states.is_silent(ctx.state) or node_states.format_power_saving(ctx.state):
            return Wait(
                f"{ctx.node} is verified and does not answer Slurm: it is resumed when it does.",
                _LOOK_AGAIN,
                ask=f"See whether slurmd runs on {ctx.node}: systemctl status slurmd",
                is_told=True,
            )
        return verify.find_new_trouble(ctx)

    def run(self, ctx: Context) -> Result:
        ctx.facts[GIVEN_BACK_AT] = format_iso(ctx.now)
        drains.resume_node(ctx)
        return Done(f"{ctx.node} takes jobs again.")
