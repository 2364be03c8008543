"""What people do to nodes, as Slurm shows it, for the ledger of the shadow. Decides nothing."""

from __future__ import annotations

import logging
from datetime import datetime

from runbooks.shadow import shadow_log
from runbooks.slurm import ownership
from runbooks.slurm.protocol import SlurmError
from runbooks.step import World

_log = logging.getLogger(__name__)


def record_acts(now: datetime, world: World) -> int:
    """How many acts of people were new. A Slurm that does not answer is looked at again."""
    try:
        nodes = world.slurm.nodes()
        slurm_user = ownership.parse_slurm_user(world.slurm.config())
        new = shadow_log.record_external_acts(nodes, now, slurm_user=slurm_user)
    except SlurmError as error:
        _log.info("Slurm's nodes could not be read: %s", error)
        new = 0
    shadow_log.settle(now, window=world.policy.shadow_window)
    return new
