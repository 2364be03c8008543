"""Looks each minute at what people do to nodes, as Slurm shows it, for the ledger of the shadow. Decides nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from runbooks import shadow
from runbooks.slurm import SlurmError
from runbooks.step import World

_log = logging.getLogger(__name__)
# As often as Slurm's nodes are polled. Each process keeps its own time; what was seen is compared with the stored look.
_EVERY = timedelta(minutes=1)


@dataclass
class ActWatch:
    """When this process has looked last."""

    last: datetime | None = None

    def due(self, now: datetime, world: World) -> int:
        """How many acts of people were new. A Slurm that does not answer is looked at again."""
        if self.last is not None and now < self.last + _EVERY:
            return 0
        self.last = now
        window = world.policy.shadow_window
        try:
            new = shadow.see(world.slurm.nodes(), now)
        except SlurmError as error:
            _log.info("Slurm's nodes could not be read: %s", error)
            new = 0
        shadow.settle(now, window=window)
        return new
