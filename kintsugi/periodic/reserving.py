"""Asks Slurm for its maintenance reservations, and lets windows follow them. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from detectors import resources
from detectors.slurm.reservations import Reservation
from incidents import services as incidents
from incidents.maintenance.slurm_windows import RESERVATIONS, Followed
from runbooks.slurm.protocol import SlurmError, SlurmReader

_log = logging.getLogger(__name__)


def follow_reservations(now: datetime, slurm: SlurmReader) -> bool:
    """Whether Slurm was asked and answered. One that does not answer ends no window: each has its
    end."""
    try:
        reservations = slurm.list_reservations()
    except SlurmError as error:
        _log.info("Slurm's reservations could not be read: %s", error)
        return False
    incidents.follow(get_windows(reservations), now, source=RESERVATIONS)
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
