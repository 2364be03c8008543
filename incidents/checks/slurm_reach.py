"""Which of the silent nodes Slurm hears, asked apart from the sweep that needs the answer. The only
writer of `SlurmReach`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from detectors import resources
from incidents.faults.fault_views import SILENT_TARGET
from incidents.models import Fault, SlurmReach

_CLUSTER = "slurm"
# Fewer silent machines are a coincidence (incidents.checks.management_network,
# incidents.checks.overload).
FEWEST = 3
# A Slurm that hangs answers after its time limit, and is asked again at once.
_FRESH = timedelta(minutes=2)


def ask(now: datetime, ask_slurm: Callable[[Sequence[str]], Collection[str] | None]) -> None:
    """Keeps what Slurm answers about the nodes that are silent; few are not worth a question."""
    silent = Fault.objects.active().filter(fault_type=SILENT_TARGET)
    owners = set(silent.values_list("owner", flat=True))
    if len(owners) < FEWEST:
        return
    hosts = {resources.host_of(owner) for owner in owners}
    heard = ask_slurm(sorted(host for host in hosts if host is not None))
    answer = {"is_answering": heard is not None, "heard": sorted(heard or ()), "asked_at": now}
    SlurmReach.objects.update_or_create(cluster=_CLUSTER, defaults=answer)


def list_heard(names: Sequence[str], now: datetime) -> Collection[str] | None:
    """Which of these nodes Slurm hears: none while nothing fresh is known, None when Slurm could
    not be asked."""
    answer = SlurmReach.objects.filter(cluster=_CLUSTER, asked_at__gt=now - _FRESH).first()
    if answer is None:
        return ()
    return set(names) & set(answer.heard) if answer.is_answering else None
