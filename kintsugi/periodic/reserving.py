"""Asks Slurm for its reservations: windows follow those of a maintenance, and one of ours that
nobody needs any more is taken away."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import datetime

from detectors import resources
from detectors.slurm.reservations import Reservation
from incidents import services as incidents
from incidents.maintenance.slurm_windows import RESERVATIONS, Followed
from runbooks.engine import audit
from runbooks.models import Run
from runbooks.slurm.protocol import SlurmError, format_own_name
from runbooks.step import World
from runbooks.steps.drain import Drain

_log = logging.getLogger(__name__)
# Of a minor repair that waits for an idle moment of its node: run, step, and what that does.
_KEY = re.compile(rf"(\d{{1,18}})-(\d{{1,4}})-{Drain.name}")


def follow_reservations(now: datetime, world: World) -> bool:
    """Whether Slurm was asked and answered. One that does not answer ends no window: each has its
    end."""
    try:
        reservations = world.slurm.list_reservations()
    except SlurmError as error:
        _log.info("Slurm's reservations could not be read: %s", error)
        return False
    incidents.follow(get_windows(reservations), now, source=RESERVATIONS)
    remove_needless(reservations, now, world)
    return True


def get_windows(reservations: Iterable[Reservation]) -> list[Followed]:
    """Those in maintenance mode, as windows. A reservation for jobs is no planned work."""
    return [_make_window(reservation) for reservation in reservations if reservation.is_maintenance]


def _make_window(reservation: Reservation) -> Followed:
    machines = frozenset(resources.node(name) for name in reservation.nodes)
    return Followed(
        origin=f"{RESERVATIONS}:{reservation.name}",
        machines=machines,
        reason=f"Slurm reservation {reservation.name}",
        starts_at=reservation.starts_at,
        ends_at=reservation.ends_at,
    )


def remove_needless(reservations: Iterable[Reservation], now: datetime, world: World) -> int:
    """Takes away those of minor repairs that wait for no idle moment any more, since their node is
    drained or their run is over; how many.

    One that cannot be taken away is tried again with the next call. One of a run that this database
    does not know is left: it ends by itself, an hour after it begins.
    """
    if world.writer is None:
        return 0
    removed = 0
    for reservation in reservations:
        key = reservation.name.removeprefix(format_own_name(""))
        found = _KEY.fullmatch(key)
        if found is None or key == reservation.name:
            continue
        run = Run.objects.select_related("incident", "node").filter(pk=int(found[1])).first()
        if run is not None and not _is_waiting(run, step=int(found[2])):
            removed += _remove(run, key, now, world)
    return removed


def _is_waiting(run: Run, *, step: int) -> bool:
    """Until the drain is stored: before that a job could begin."""
    return run.finished_at is None and run.step == step


def _remove(run: Run, key: str, now: datetime, world: World) -> bool:
    name = format_own_name(key)
    try:
        world.slurm_writer.unreserve(key)
    except SlurmError as error:
        _log.info("the reservation %s could not be taken away: %s", name, error)
        return False
    text = f"The reservation {name} is taken away: nothing waits for an idle moment of {run.place}."
    audit.record_run(run, "unreserve", audit.Phase.DONE, text, now=now, key=key)
    return True
