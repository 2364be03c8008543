"""Wait until no job is left on the drained node. No limit: a job that still computes is worth more than a repair."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks.step import Base, Context, Done, Result, Wait

_LOOK_AGAIN = timedelta(seconds=30)
_NAMED = 3


class WaitForJobs(Base):
    name: ClassVar[str] = "wait_for_jobs"
    plan: ClassVar[str] = "wait until its jobs have ended"

    def run(self, ctx: Context) -> Result:
        jobs = ctx.world.slurm.jobs(ctx.node)
        if not jobs and ctx.state.is_drained:
            return Done(f"No job is left on {ctx.node}.")
        if not jobs:
            return Wait(f"{ctx.node} is finishing its last job.", timedelta(seconds=2))
        names = ", ".join(f"{job.job_id} of {job.user}" for job in jobs[:_NAMED]) + (" ..." if jobs[_NAMED:] else "")
        count = "1 job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
        return Wait(f"{count} still on {ctx.node} ({names}). Kintsugi waits for the end.", _LOOK_AGAIN, is_told=True)
