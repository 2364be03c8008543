"""Name the nodes that a transceiver carries, and wait until none of them runs a job: pulling it
takes down them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.slurm.reservations import Reservation
from incidents.inventory import neighbours
from runbooks.slurm import running_jobs
from runbooks.slurm.protocol import SlurmError, SlurmJob, SlurmRefusal
from runbooks.step import Base, Context, Done, Result, Wait, format_iso, get_backoff, get_fact_time

_LONGEST = timedelta(minutes=5)
_AFTER_SILENCE = timedelta(minutes=1)
_NAMED = 5
_FREE_AT = "neighbours_free_at"
"""The fact of a run: when all of them are free, as a person was told."""


class WaitForNeighbours(Base):
    """Drains and reserves nobody: a link that is bad is no reason to take two nodes away, and hands
    have to be there then. People may, and are told of whom, and from when on."""

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
        running = running_jobs.list_running(carried.nodes, ctx.world.slurm)
        if running is None:
            text = f"{module} carries {names}; Slurm cannot be asked for their jobs."
            return Wait(text, _AFTER_SILENCE)
        jobs = _format_jobs(running)
        if not jobs:
            text = f"{module} carries {names}, and none of them runs a job: it can be pulled now."
            return Done(text)
        text = f"{module} carries {names}. It is not to be pulled while a job runs there ({jobs})."
        advice = _format_advice(ctx, carried.nodes, running)
        ask = f"Pull nothing yet: {names} hang on {module}. {advice}"
        again_in = get_backoff(since, ctx.now, longest=_LONGEST)
        return Wait(text, again_in, ask=ask, is_told=True)


def _format_jobs(running: Mapping[str, Sequence[SlurmJob]]) -> str:
    """Some jobs of each node that runs any; empty where none does."""
    busy = []
    for name, jobs in sorted(running.items()):
        ids = sorted(running_jobs.get_job_ids(jobs))[:_NAMED]
        if ids:
            busy.append(f"{name}: {', '.join(ids)}")
    return "; ".join(busy)


def _format_advice(
    ctx: Context, nodes: Sequence[str], running: Mapping[str, Sequence[SlurmJob]]
) -> str:
    """How all of them come to be free at once. Jobs that follow one another would see to it that
    they never are."""
    reservation = _find_reservation(ctx, nodes)
    if reservation is not None:
        since = f"{reservation.starts_at:%Y-%m-%d %H:%M %Z}"
        return f"They are reserved for it from {since} on ({reservation.name})."
    free_at = _get_free_time(ctx, running)
    if free_at is None:
        return "Drain them if it cannot wait for their jobs' ends."
    return (
        f"At {free_at:%Y-%m-%d %H:%M %Z} the last job there has reached its limit. No other begins"
        f" that would run past it, once you have reserved them for two hours:"
        f" TZ=UTC scontrol create reservation ReservationName=incident-{ctx.incident_id}"
        f" StartTime={free_at:%Y-%m-%dT%H:%M:%S} Duration=120 Nodes={','.join(nodes)} Users=root"
        " Flags=MAINT,IGNORE_JOBS. Kintsugi takes that for a maintenance."
    )


def _find_reservation(ctx: Context, nodes: Sequence[str]) -> Reservation | None:
    """The next maintenance that holds them all."""
    try:
        found = ctx.world.slurm.list_reservations()
    except (SlurmError, SlurmRefusal):
        return None
    planned = [
        reservation
        for reservation in found
        if reservation.is_maintenance and set(nodes) <= set(reservation.nodes)
    ]
    return min(planned, key=lambda reservation: reservation.starts_at, default=None)


def _get_free_time(ctx: Context, running: Mapping[str, Sequence[SlurmJob]]) -> datetime | None:
    """As it was when first looked: a person is not asked anew with each job that begins. None where
    a job has no limit."""
    kept = get_fact_time(ctx, _FREE_AT)
    if kept is not None and kept > ctx.now:
        return kept
    jobs = [job for found in running.values() for job in found]
    free_at = running_jobs.find_last_end(jobs)
    if free_at is None or free_at <= ctx.now:
        return None
    ctx.facts[_FREE_AT] = format_iso(free_at)
    return free_at
