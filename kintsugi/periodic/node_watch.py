"""The one look at all of Slurm's nodes, read by whoever shows or counts them. Decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from incidents.db.prepared import Prepared
from incidents.inventory import node_states
from incidents.models import Incident
from kintsugi.periodic import periods
from runbooks.fleet import fleet
from runbooks.models import Run
from runbooks.shadow import shadow_log
from runbooks.slurm import ownership
from runbooks.slurm.protocol import SlurmError
from runbooks.step import World

_log = logging.getLogger(__name__)
# Our choice: a look takes slurmctld's locks, and all looks together a tenth of its time at most.
_REST = 10
_NOTHING_SHOWN = "Slurm answered and showed no node"
_OPEN_INCIDENTS = Prepared(lambda: Incident.objects.open().values_list("pk")[:1])
_UNFINISHED_RUNS = Prepared(lambda: Run.objects.unfinished().values_list("pk")[:1])


def compute_period() -> timedelta:
    """Seconds while a run or an incident is open, else a minute; longer where Slurm takes long to
    answer."""
    is_under_way = bool(_OPEN_INCIDENTS.values() or _UNFINISHED_RUNS.values())
    if not is_under_way:
        return periods.LOOK_AT_NODES
    at_once = max(periods.LOOK_AT_NODES_AT_ONCE, _REST * node_states.get_look_duration())
    return min(at_once, periods.LOOK_AT_NODES)


def look_at_nodes(now: datetime, world: World) -> None:
    """Asks Slurm, and keeps what has changed. What people did to a node is written down
    in the same transaction: Slurm may write over a person's reason before the next look.
    """
    try:
        slurm_user = node_states.get_slurm_user() or _ask_slurm_user(world)
        began_s = time.monotonic()
        nodes = world.slurm.read_nodes()
    except SlurmError as error:
        _log.info("Slurm's nodes could not be read: %s", error)
        node_states.record_silence(now, str(error))
        return
    if not nodes:
        node_states.record_silence(now, _NOTHING_SHOWN)
        return
    took = timedelta(seconds=time.monotonic() - began_s)
    with transaction.atomic():
        changes = node_states.record_look(nodes, now, took=took, slurm_user=slurm_user)
        changed = {name: nodes[name] for name in changes.began}
        if changed:
            shadow_log.record_external_acts(changed, now, slurm_user=slurm_user)


def get_answering_nodes(names: Sequence[str], now: datetime, world: World) -> set[str] | None:
    """Which of these nodes Slurm hears, by the last look, or by a question of its own where that is
    old; None where Slurm cannot be asked."""
    answering = node_states.find_answering(names, after=now - periods.ASK_REACH)
    if answering is not None:
        return answering
    return fleet.get_answering_nodes(names, world.slurm)


def record_acts(now: datetime, world: World) -> int:
    """How many acts of people were new, of all nodes as they were last looked at: those too that
    have come into the inventory since. A Slurm that does not answer is asked again."""
    try:
        slurm_user = _ask_slurm_user(world)
    except SlurmError as error:
        _log.info("Slurm's settings could not be read: %s", error)
        return 0
    node_states.record_slurm_user(slurm_user)
    nodes = node_states.load_states()
    return shadow_log.record_external_acts(nodes, now, slurm_user=slurm_user)


def _ask_slurm_user(world: World) -> str:
    return ownership.parse_slurm_user(world.slurm.read_config())
