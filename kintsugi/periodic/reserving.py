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
        reservations = slurm.reservations()
    except SlurmError as error:
        _log.info("Slurm's reservations could not be read: %s", error)
        return False
    incidents.follow(followed(reservations), now, of=RESERVATIONS)
    return True


def followed(told: Iterable[Reservation]) -> list[Followed]:
    """Those in maintenance mode, as windows. A reservation for jobs is no planned work."""
    return [
        Followed(
            origin=f"{RESERVATIONS}:{one.name}",
            machines=frozenset(resources.node(name) for name in one.nodes),
            reason=f"Slurm reservation {one.name}",
            starts_at=one.starts_at,
            ends_at=one.ends_at,
        )
        for one in told
        if one.is_maintenance
    ]
