"""A drained node lent to one job of ours: reserved, let in, and drained again before its
reservation goes.

Slurm gives a drained node no job, in a reservation neither, so the drain has to go for as long as
ours runs. At each moment the node is drained or reserved for us alone, whoever dies: the
reservation has no end of its own, since a drain has none. The fact `lent` is stored before the
drain goes; a node that is not drained while it stands was resumed by us.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.slurm.reservations import Reservation
from runbooks.node import drains
from runbooks.slurm import node_states
from runbooks.slurm.ownership import Held, Owner, TakenOver
from runbooks.slurm.protocol import SlurmError, SlurmJob, SlurmRefusal, format_own_name
from runbooks.step import Context, Wait, format_iso

_UNFINISHED = "unfinished"
# As a spare is kept free: Slurm wants a duration, and a year is its own word for none.
_FOR_GOOD = timedelta(days=365)
# Not MAINT: Slurm then refuses one that overlaps another reservation (seen in 22.05), and people go
# on hearing of the node's faults.
_FLAGS = ("IGNORE_JOBS",)
# slurmctld keeps its state every 5 s at most (see holding.py): what it may forget is not built
# upon.
_IS_KEPT = timedelta(seconds=30)
# A request that scontrol was killed over is done when a hanging slurmctld wakes, and scontrol has
# 30 s (docs/reference/steps.md).
_SETTLES = timedelta(seconds=60)
# Nobody else guards the node meanwhile. Our choice.
LOOK = timedelta(seconds=15)
_SOON = timedelta(seconds=2)
_MOST_TRIES = 3
_OTHERS = (Owner.PERSON, Owner.CHECK)


def get_obstacle(ctx: Context, *, lasts: timedelta) -> str:
    """Why the drained node cannot be lent now; empty: it can."""
    is_silent = ctx.state.base == "DOWN" or node_states.is_silent(ctx.state)
    if is_silent or node_states.format_power_saving(ctx.state):
        return f"{ctx.node} is down, silent or switched off, and Slurm runs no job there"
    reservation = _find_foreign_reservation(ctx, until=lasts + _SETTLES)
    if reservation is None:
        return ""
    holds = f"the reservation {reservation.name} holds {ctx.node}"
    return f"{holds}, and jobs of its users could start there"


def reserve_node(ctx: Context) -> Wait | str:
    """The first act; or why Slurm gives no reservation."""
    try:
        ctx.world.slurm_writer.reserve(ctx.key, (ctx.node,), duration=_FOR_GOOD, flags=_FLAGS)
    except SlurmError as error:
        tries = ctx.facts["reserving"] = ctx.facts.get("reserving", 0) + 1
        if isinstance(error, SlurmRefusal) or tries >= _MOST_TRIES:
            ctx.facts.pop("reserving")
            return f"Slurm gives no reservation: {error}"
        return Wait(f"{ctx.node} is not reserved yet: {error}", _IS_KEPT, is_told=True)
    ctx.facts.pop("reserving", None)
    return adopt(ctx)


def adopt(ctx: Context) -> Wait:
    """The reservation stands, also one of a worker that died over it."""
    ctx.facts[drains.LENT] = {"reserved_at": format_iso(ctx.now)}
    ctx.facts[_UNFINISHED] = f"Its reservation still stands: {_format_delete_command(ctx)}"
    name = format_own_name(ctx.key)
    reserved = f"{ctx.node} is reserved for a job of ours ({name})"
    text = f"{reserved}, and drained until Slurm has kept that."
    return Wait(text, _IS_KEPT, is_told=True, is_report=True)


def is_reserved(ctx: Context) -> bool:
    """Whether our reservation holds the node now."""
    name = format_own_name(ctx.key)
    own = [found for found in ctx.world.slurm.list_reservations() if found.name == name]
    return any(_is_holding(ctx, reservation) for reservation in own)


def admit_job(ctx: Context) -> Wait | str:
    """One act towards the job's start, or why the node is taken back at once."""
    lent = ctx.facts[drains.LENT]
    found = drains.evaluate_hold(ctx)
    if "lending_at" not in lent and not isinstance(found, Held):
        lent["is_taken"] = isinstance(found, TakenOver)
        return found.text
    trouble = _get_trouble(ctx)
    if trouble:
        return trouble
    if ctx.now < datetime.fromisoformat(lent["reserved_at"]) + _IS_KEPT:
        return Wait(f"{ctx.node} is drained, and reserved until Slurm has kept that.", _SOON)
    if "lending_at" not in lent:
        lent["lending_at"] = format_iso(ctx.now)
        text = (
            f"{ctx.node} is not drained: only its reservation keeps users' jobs off. Drain it"
            " before you end that:"
        )
        ctx.facts[_UNFINISHED] = f"{text} {_format_delete_command(ctx)}"
        return Wait(f"{ctx.node} is about to be let in for a job of ours.", timedelta(0))
    if isinstance(found, Held):
        drains.resume_node(ctx)
        if not is_reserved(ctx):
            return f"the reservation of {ctx.node} has ended"
    lent["let_in_at"] = format_iso(ctx.now)
    return Wait(
        f"{ctx.node} takes our job alone, in the reservation {format_own_name(ctx.key)}.",
        _SOON,
        is_told=True,
        is_report=True,
    )


def get_end_reason(ctx: Context) -> str:
    """Why the lent node is taken back before its time; empty: all is as it should be."""
    whose = drains.get_owner(ctx)
    if (
        ctx.state.is_draining and whose is Owner.THIS_INCIDENT
    ):  # a worker died after it had drained it again
        return _get_trouble(ctx) or "its end was not noted"
    if ctx.state.is_draining or whose in _OTHERS:
        return (
            f"{ctx.node} was taken out by {ctx.state.reason_set_by or 'Slurm'}:"
            f' "{ctx.state.reason}"'
        )
    return _get_trouble(ctx)


def take_back(ctx: Context) -> Wait | None:
    """Drained first, then the job ended, then the reservation: one act a turn; None once all is
    done.

    A person's drain is left as it is, and so is a node that a person resumed before it was lent.
    """
    lent = ctx.facts[drains.LENT]
    whose = drains.get_owner(ctx)
    lent["is_taken"] = lent.get("is_taken", False) or whose in _OTHERS
    if not lent["is_taken"] and not (ctx.state.is_draining and whose is Owner.THIS_INCIDENT):
        drains.drain_node(ctx, ctx.facts["reason"])
        ctx.facts["held_at"] = lent["out_at"] = format_iso(ctx.now)
        return Wait(f"{ctx.node} is drained again.", timedelta(0), is_told=True, is_report=True)
    out_at = datetime.fromisoformat(lent.setdefault("out_at", format_iso(ctx.now)))
    job = ctx.world.slurm.find_job(ctx.key)
    if job is not None and not job.has_ended:
        return _end_job(ctx, job, out_at)
    if ctx.now < out_at + _SETTLES:
        return Wait(
            f"{ctx.node} stays reserved until Slurm has kept that it is drained.",
            out_at + _SETTLES - ctx.now,
        )
    ctx.world.slurm_writer.unreserve(ctx.key)
    lent["closed_at"] = format_iso(ctx.now)
    ctx.facts.pop(_UNFINISHED, None)
    return None


def _end_job(ctx: Context, job: SlurmJob, out_at: datetime) -> Wait:
    if not job.is_completing:
        ctx.world.slurm_writer.cancel(job.job_id)
    text = f"Our job {job.job_id} on {ctx.node} is ending."
    if ctx.now - out_at <= node_states.get_unkillable_delay(ctx.world.slurm.read_config()):
        return Wait(text, _SOON)
    ask = (
        f"End what is left of job {job.job_id} on {ctx.node}, as a power cycle does: its"
        " reservation stands as long."
    )
    return Wait(text, LOOK, ask=ask, is_told=True)


def _get_trouble(ctx: Context) -> str:
    if ctx.state.base == "DOWN":
        return f"{ctx.node} is down"
    if ctx.maintenance:
        return ctx.maintenance
    if not is_reserved(ctx):
        return f"the reservation of {ctx.node} has ended"
    reservation = _find_foreign_reservation(ctx, until=_SETTLES)
    return f"the reservation {reservation.name} holds {ctx.node} too" if reservation else ""


def _find_foreign_reservation(ctx: Context, *, until: timedelta) -> Reservation | None:
    """Somebody else's reservation that holds the node by then."""
    name = format_own_name(ctx.key)
    for reservation in ctx.world.slurm.list_reservations():
        is_soon = reservation.starts_at <= ctx.now + until and reservation.ends_at > ctx.now
        if is_soon and ctx.node in reservation.nodes and reservation.name != name:
            return reservation
    return None


def _is_holding(ctx: Context, reservation: Reservation) -> bool:
    is_current = reservation.starts_at <= ctx.now + _SETTLES and ctx.now < reservation.ends_at
    return ctx.node in reservation.nodes and is_current


def _format_delete_command(ctx: Context) -> str:
    return f"scontrol delete ReservationName={format_own_name(ctx.key)}"
