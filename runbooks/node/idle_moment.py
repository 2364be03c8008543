"""When a minor repair takes its node out: once no job runs there, or shortly before the last one
ends; and the reservation that lets that moment come.

A drain keeps every new job off for as long as the longest job on the node still runs. For a fault
that jobs can live with that costs more than the fault does, so the node goes on taking jobs until
the drain costs little. The run holds no place meanwhile: whatever is graver goes first.

Where jobs follow one another the moment would never come. So the node is reserved for our own user
from the last job's limit on, which keeps off none but jobs that would run past it. The reservation
is short and has its own end: a run, or a database, that is lost leaves nothing behind for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.catalog import catalog
from detectors.faults import Action, Fitness, Severity
from runbooks.slurm import running_jobs
from runbooks.slurm.protocol import SlurmError, format_own_name
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
RESERVED = "idle_reserved"
"""The fact of a run: from when on its node is reserved, until when none is asked for again, and
`error` where Slurm gives none."""
# Not MAINT: people go on hearing of the node's faults. A job whose limit is raised runs on.
_FLAGS = ("IGNORE_JOBS",)


@dataclass(frozen=True)
class IdleMoment:
    """What a minor repair waits for. `ends_at`: of the last job at the latest, by the time limits;
    None where one has none."""

    since: datetime
    ends_at: datetime | None


def find_moment(ctx: Context) -> IdleMoment | None:
    """None where the node may be drained now."""
    if ctx.state.is_out or WANTED_NOW in ctx.facts or not _is_minor(ctx):
        return None
    jobs = [job for job in ctx.world.slurm.list_jobs(ctx.node) if not job.is_completing]
    if not jobs:
        return None
    since = datetime.fromisoformat(ctx.facts.setdefault(WAITS_SINCE, format_iso(ctx.now)))
    last = running_jobs.find_last_end(jobs)
    is_short = last is not None and last - ctx.now <= SHORTLY
    if is_short or ctx.now - since >= LONGEST:
        return None
    return IdleMoment(since, last)


def build_wait(ctx: Context, moment: IdleMoment) -> Wait:
    last = moment.ends_at
    when = f"at {last:%Y-%m-%d %H:%M %Z} at the latest" if last is not None else "without a limit"
    text = (
        f"{ctx.fault_type} is minor: {ctx.node} goes on taking jobs until none runs there or the"
        f" last one ends within the hour (now: {when}), and is drained then."
    )
    again_in = get_backoff(moment.since, ctx.now, longest=_LONGEST_LOOK)
    return Wait(f"{text}{_describe_reservation(ctx)}", again_in, is_told=True)


def is_reservation_due(ctx: Context) -> bool:
    """One that a person has taken away is not made again before its time is over."""
    reserved = ctx.facts.get(RESERVED)
    return reserved is None or ctx.now >= datetime.fromisoformat(reserved["until"])


@dataclass(frozen=True)
class ReservationAttempt:
    """What became of it, for the audit log."""

    text: str
    is_done: bool


def reserve_node(ctx: Context, starts_at: datetime) -> ReservationAttempt:
    """For as long as a drain may cost its node. Why Slurm gives none is kept as well, and it is
    asked again after as long."""
    reserved = {"from": format_iso(starts_at), "until": format_iso(starts_at + SHORTLY)}
    ctx.facts[RESERVED] = reserved
    writer = ctx.world.slurm_writer
    try:
        writer.reserve(ctx.key, (ctx.node,), duration=SHORTLY, starts_at=starts_at, flags=_FLAGS)
    except SlurmError as error:
        reserved |= {"error": str(error), "until": format_iso(ctx.now + SHORTLY)}
        return ReservationAttempt(f"{ctx.node} is not reserved: {error}", is_done=False)
    name = format_own_name(ctx.key)
    text = f"{ctx.node} is reserved from {starts_at:%Y-%m-%d %H:%M %Z} for an hour ({name})."
    return ReservationAttempt(text, is_done=True)


def _describe_reservation(ctx: Context) -> str:
    """A sentence after another; empty where there is none."""
    reserved = ctx.facts.get(RESERVED)
    if reserved is None:
        return ""
    if "error" in reserved:
        return f" Jobs may follow one another until then: {reserved['error']}"
    starts_at = datetime.fromisoformat(reserved["from"])
    if ctx.now >= starts_at:
        return ""
    name, since = format_own_name(ctx.key), f"{starts_at:%Y-%m-%d %H:%M %Z}"
    return (
        f" No job begins there that could run past {since}: from then on {ctx.node} is reserved for"
        f" an hour ({name})."
    )


def is_overtaken(ctx: Context) -> bool:
    """Whether a graver fault has come while an idle moment was waited for."""
    return WAITS_SINCE in ctx.facts and not _is_minor(ctx)


def _is_minor(ctx: Context) -> bool:
    """Nothing graver stands on the node: whatever it is of, and whoever has told it."""
    if not _is_minor_type(ctx.fault_type):
        return False
    return all(_is_minor_type(fault.fault_type) for fault in ctx.active_faults)


def _is_minor_type(fault_type: str) -> bool:
    row = catalog.load().get(fault_type)
    return row is not None and not _is_urgent(row)


def _is_urgent(row: catalog.FaultType) -> bool:
    if row.fitness is Fitness.UNFIT:
        return True
    calls_for_repair = row.action.at_least(Action.RESET_GPU)
    return calls_for_repair and row.severity.at_least(Severity.MAJOR)
