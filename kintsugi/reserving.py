"""Asks Slurm for its maintenance reservations now and then, and lets windows follow them. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors import resources
from detectors.slurm_reservations import Reservation
from incidents import services as incidents
from incidents.following import RESERVATIONS, Followed
from runbooks.slurm import Slurm, SlurmError

_log = logging.getLogger(__name__)
# As often as Slurm's nodes are polled. Each process keeps its own time; following twice changes nothing.
_EVERY = timedelta(minutes=1)


@dataclass
class Reserving:
    """When this process has asked last."""

    last: datetime | None = None

    def due(self, now: datetime, slurm: Slurm) -> bool:
        """Whether Slurm was asked and answered. One that does not answer ends no window: each has its end."""
        if self.last is not None and now < self.last + _EVERY:
            return False
        self.last = now
        try:
            told = slurm.reservations()
        except SlurmError as error:
            _log.info("Slurm's reservations could not be read: %s", error)
            return False
        incidents.follow(followed(told), now, of=RESERVATIONS)
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
