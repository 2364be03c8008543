"""Name the nodes that a transceiver carries, and wait until none of them runs a job: pulling it
takes down them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import ClassVar

from incidents.inventory import neighbours
from runbooks.slurm import running_jobs
from runbooks.step import Base, Context, Done, Result, Wait, format_iso, get_backoff, get_fact_time

_LONGEST = timedelta(minutes=5)
_AFTER_SILENCE = timedelta(minutes=1)
_NAMED = 5


class WaitForNeighbours(Base):
    """Drains nobody: a link that is bad is no reason to take two nodes away. People may, and are
    told of whom."""

    name: ClassVar[str] = "wait_for_neighbours"
    plan: ClassVar[str] = (
        "name the nodes on the same transceiver, and wait until none of them runs a job"
    )
    needs_hold: ClassVar[bool] = False
    needs_node: ClassVar[bool] = False

    def run(self, ctx: Context) -> Result:
        carried = neighbours.get_carried_with(ctx.resource)
        module = carried.module or f"the transceiver of {ctx.resource}"
        if not carried.nodes:
            return Done(f"{module} carries no node of the inventory: nobody's job hangs on it.")
        since = get_fact_time(ctx, "neighbours_from") or ctx.now
        ctx.facts["neighbours_from"] = format_iso(since)
        names = ", ".join(carried.nodes)
        running = running_jobs.get_running_jobs(carried.nodes, ctx.world.slurm)
        if running is None:
            text = f"{module} carries {names}; Slurm cannot be asked for their jobs."
            return Wait(text, _AFTER_SILENCE)
        jobs = _format_jobs(running)
        if not jobs:
            text = f"{module} carries {names}, and none of them runs a job: it can be pulled now."
            return Done(text)
        hang = f"Pull nothing yet: {names} hang on {module}."
        return Wait(
            f"{module} carries {names}. It is not to be pulled while a job runs there ({jobs}).",
            get_backoff(since, ctx.now, longest=_LONGEST),
            ask=f"{hang} Drain them if it cannot wait for their jobs' ends.",
            is_told=True,
        )


def _format_jobs(running: Mapping[str, Collection[str]]) -> str:
    """Some jobs of each node that runs any; empty where none does."""
    busy = {node: sorted(jobs)[:_NAMED] for node, jobs in sorted(running.items()) if jobs}
    return "; ".join(f"{node}: {', '.join(jobs)}" for node, jobs in busy.items())
