"""How a spare enters and leaves service in Slurm: by its partitions, or by the reservation that
keeps it free.

Each is safe to repeat, and the state of the spare says how far it got.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from incidents.models import Spare
from incidents.reserve import spares
from runbooks.slurm.protocol import SlurmReader, SlurmWriter

# A spare is kept free until it is needed: our choice of "for good", since Slurm wants a duration.
_KEPT = timedelta(days=365)
# Not MAINT: that is planned work on a machine, whose faults people are not told of.
_FLAGS = ("IGNORE_JOBS",)


def is_in(spare: Spare, slurm: SlurmReader) -> bool:
    """Whether Slurm gives it jobs of the partitions that it stands in for."""
    partitions = slurm.read_nodes((spare.node.name,))[spare.node.name].partitions
    is_kept = bool(spare.reservation) and _is_reserved(spare, slurm)
    return bool(set(partitions) & set(spare.partitions)) and not is_kept


def bring_in(spare: Spare, slurm: SlurmWriter, now: datetime) -> None:
    """Into its partitions, or out of its reservation. Raises SlurmError."""
    if spare.reservation:
        slurm.unreserve(spare.reservation)
    else:
        name = spare.node.name
        present = slurm.read_nodes((name,))[name].partitions
        slurm.set_partitions(name, sorted({*present, *spare.partitions}))
    spares.serves(spare, now)


def keep_free(spare: Spare, slurm: SlurmWriter, now: datetime) -> None:
    """Out of its partitions, or into its reservation: jobs that run there end in peace. Raises
    SlurmError."""
    name = spare.node.name
    if spare.reservation:
        slurm.reserve(spare.reservation, [name], duration=_KEPT, flags=_FLAGS)
    else:
        present = slurm.read_nodes((name,))[name].partitions
        slurm.set_partitions(name, sorted(set(present) - set(spare.partitions)))
    spares.is_back(spare, now)


def _is_reserved(spare: Spare, slurm: SlurmReader) -> bool:
    suffix = f"_{spare.reservation}"
    on_node = [found for found in slurm.list_reservations() if spare.node.name in found.nodes]
    return any(reservation.name.endswith(suffix) for reservation in on_node)
