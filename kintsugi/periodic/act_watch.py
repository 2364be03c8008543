"""What people do to nodes, as Slurm shows it, for the ledger of the shadow. Decides nothing."""

from __future__ import annotations

import logging
from datetime import datetime

from runbooks.shadow import shadow_log
from runbooks.slurm.protocol import SlurmError
from runbooks.step import World

_log = logging.getLogger(__name__)


def record_acts(now: datetime, world: World) -> int:
    """How many acts of people were new. A Slurm that does not answer is looked at again."""
    try:
        new = shadow_log.record_external_acts(world.slurm.nodes(), now)
    except SlurmError as error:
        _log.info("Slurm's nodes could not be read: %s", error)
        new = 0
    shadow_log.settle(now, window=world.policy.shadow_window)
    return new
