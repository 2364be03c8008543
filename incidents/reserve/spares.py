"""The pool of hot spares: which stands ready, which stands in for whom. Asks Slurm nothing; alone
writes `Spare`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from incidents.models import Incident, Node, Spare
from incidents.reserve import decommissions, lemons
from incidents.vocabulary.changes import Refused

_State = Spare.State


def add(
    node: str, *, partitions: Sequence[str], is_reserved: bool, now: datetime
) -> Spare | Refused:
    """A node of the inventory as a spare for nodes of these partitions. `is_reserved`: a
    reservation keeps it free."""
    row = Node.objects.inventoried().filter(name=node).first()
    if row is None:
        return Refused(f"The inventory knows no node {node}.")
    leaving = decommissions.get_decommissions().get(node)
    if leaving:
        return Refused(leaving)
    if not partitions:
        return Refused("Name the partitions whose nodes it stands in for.")
    stands_for = sorted(set(partitions))
    reservation = f"spare-{node}" if is_reserved else ""
    try:
        with transaction.atomic():
            return Spare.objects.create(
                node=row, partitions=stands_for, reservation=reservation, since_at=now
            )
    except IntegrityError:
        return Refused(f"{node} is in the pool already.")


def remove(node: str) -> Refused | None:
    """It is a spare no longer. What Slurm has it as stays."""
    gone, _ = Spare.objects.filter(node__name=node, state=_State.READY).delete()
    if not gone:
        return Refused(
            f"{node} is no spare that stands ready; one that stands in is given back first."
        )
    return None


def find_stand_in(node: str) -> Spare | None:
    """The spare that stands in for the node, or is on its way in or out."""
    return Spare.objects.select_related("node").filter(stands_for__name=node).first()


def list_ready(partitions: Collection[str]) -> list[Spare]:
    """Those that could stand in for a node of these partitions, in each of them; none that is set
    aside or leaves.

    One that is for some of them alone would leave the others short without a word.
    """
    fit = [row for row in _get_waiting() if partitions and set(partitions) <= set(row.partitions)]
    aside = lemons.get_quarantined() | set(decommissions.get_decommissions()) if fit else set()
    return [row for row in fit if row.node.name not in aside]


def list_partly_fitting(partitions: Collection[str]) -> list[Spare]:
    """Ready ones that are for some of these partitions and not for all."""
    wanted = set(partitions)
    spares = []
    for row in _get_waiting():
        offered = set(row.partitions)
        if wanted & offered and wanted - offered:
            spares.append(row)
    return spares


def _get_waiting() -> QuerySet[Spare]:
    return (
        Spare.objects.select_related("node").filter(state=_State.READY).order_by("since_at", "pk")
    )


def claim(spare: Spare, *, stands_for: str, incident_id: int, now: datetime) -> bool:
    """Takes a ready one for a node, before anything is done in Slurm. False: another was
    quicker."""
    out = Node.objects.get(name=stands_for)
    incident = Incident.objects.filter(pk=incident_id).first()
    values = {"state": _State.ENTERING, "stands_for": out, "incident": incident, "since_at": now}
    try:
        with transaction.atomic():
            return Spare.objects.filter(pk=spare.pk, state=_State.READY).update(**values) == 1
    except IntegrityError:  # another spare was taken for the node
        return False


def serves(spare: Spare, now: datetime) -> None:
    """Slurm shows it in."""
    Spare.objects.filter(pk=spare.pk, state=_State.ENTERING).update(
        state=_State.SERVING, since_at=now
    )


def begin_leaving(spare: Spare, now: datetime) -> bool:
    """Its time is over; False: it stands in no longer."""
    rows = Spare.objects.filter(pk=spare.pk, state__in=(_State.ENTERING, _State.SERVING))
    return rows.update(state=_State.LEAVING, since_at=now) == 1


def is_back(spare: Spare, now: datetime) -> None:
    """Slurm shows it out: it stands ready again."""
    values = {"state": _State.READY, "stands_for": None, "incident": None, "since_at": now}
    Spare.objects.filter(pk=spare.pk, state=_State.LEAVING).update(**values)
