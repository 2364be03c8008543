"""Wait until no job is left on the drained node. No limit: a job that still computes is worth more than a repair."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks.step import Base, Context, Done, Result, Wait, patience, remembered

_LONGEST = timedelta(minutes=1)
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
        again_in = patience(remembered(ctx, "drained_at"), ctx.now, longest=_LONGEST)
        return Wait(f"{count} still on {ctx.node} ({names}). Kintsugi waits for the end.", again_in, is_told=True)
