"""When a minor repair takes its node out: once no job runs there, or shortly before the last one
ends. Only looks.

A drain keeps every new job off for as long as the longest job on the node still runs. For a fault
that jobs can live with that costs more than the fault does, so the node goes on taking jobs until
the drain costs little. The run holds no place meanwhile: whatever is graver goes first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.catalog import catalog
from detectors.faults import Action, Fitness, Severity
from runbooks.slurm.protocol import SlurmJob
from runbooks.step import Context, Wait, format_iso, get_backoff

WANTED_NOW = "wanted_now"
"""The fact of a run: a person has begun it by hand."""
WAITS_SINCE = "idle_moment_since"
"""The fact of a run: since when it waits for one."""
# What a drain may cost a node: so long is it kept from new jobs at most. Our choice, as long as a
# repair with its tests takes anyway.
SHORTLY = timedelta(hours=1)
# Then the node is drained as for any fault. Our choice: longer than the longest jobs of most sites.
LONGEST = timedelta(days=7)
_LONGEST_LOOK = timedelta(minutes=1)


def find_wait(ctx: Context) -> Wait | None:
    """What a minor repair waits for; None where its node may be drained now."""
    if ctx.state.is_out or WANTED_NOW in ctx.facts or not _is_minor(ctx):
        return None
    jobs = [job for job in ctx.world.slurm.list_jobs(ctx.node) if not job.is_completing]
    if not jobs:
        return None
    since = datetime.fromisoformat(ctx.facts.setdefault(WAITS_SINCE, format_iso(ctx.now)))
    last = _find_last_end(jobs)
    is_short = last is not None and last - ctx.now <= SHORTLY
    if is_short or ctx.now - since >= LONGEST:
        return None
    when = f"at {last:%Y-%m-%d %H:%M %Z} at the latest" if last is not None else "without a limit"
    text = (
        f"{ctx.fault_type} is minor: {ctx.node} goes on taking jobs until none runs there or the"
        f" last one ends within the hour (now: {when}), and is drained then."
    )
    return Wait(text, get_backoff(since, ctx.now, longest=_LONGEST_LOOK), is_told=True)


def is_overtaken(ctx: Context) -> bool:
    """Whether a graver fault has come while an idle moment was waited for."""
    return WAITS_SINCE in ctx.facts and not _is_minor(ctx)


def _is_minor(ctx: Context) -> bool:
    """Nothing graver stands on the node: whatever it is of, and whoever has told it."""
    rows = catalog.load()
    names = {ctx.fault_type, *(fault.fault_type for fault in ctx.active_faults)}
    found = [rows.get(name) for name in names]
    return all(row is not None and not _is_urgent(row) for row in found)


def _is_urgent(row: catalog.FaultType) -> bool:
    if row.fitness is Fitness.UNFIT:
        return True
    calls_for_repair = row.action.at_least(Action.RESET_GPU)
    return calls_for_repair and row.severity.at_least(Severity.MAJOR)


def _find_last_end(jobs: list[SlurmJob]) -> datetime | None:
    """By their time limits; None where one has none."""
    ends = [job.ends_at for job in jobs]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None
