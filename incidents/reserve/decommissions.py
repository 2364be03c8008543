"""Machines that are being taken away for good: who said so, when and why. Alone writes
`Decommission`.

What that means for runs under way is `runbooks.people.decommission`.
"""

from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction

from incidents.db.prepared import Prepared
from incidents.models import Decommission, Incident, Node
from incidents.state.transitions import record
from incidents.vocabulary.changes import Refused

_KIND = "decommission"


def begin(node: str, *, actor: str, why: str, now: datetime) -> str | Refused:
    """From now on nothing is started on it. The sentence that its open incidents are told."""
    row = Node.objects.inventoried().filter(name=node).first()
    if row is None:
        return Refused(f"The inventory knows no node {node}.")
    if not why.strip():
        return Refused("Say why: whoever finds it idle will ask.")
    try:
        with transaction.atomic():
            reason = why.strip()[:255]
            made = Decommission.objects.create(
                node=row, reason=reason, set_by=actor[:150], set_at=now
            )
            text = f"{format_decommission(made)} Nothing is started on it from now on."
            _tell(row, text, actor=actor, now=now)
    except IntegrityError:
        return Refused(get_decommissions().get(node, f"{node} is being decommissioned already."))
    return text


def end(node: str, *, actor: str, why: str, now: datetime) -> str | Refused:
    """It stays after all. What Slurm has it as stays."""
    if not why.strip():
        return Refused("Say why it stays: the record keeps it.")
    with transaction.atomic():
        values = {"ended_at": now, "ended_by": actor[:150], "ended_why": why.strip()[:255]}
        if Decommission.objects.filter(node__name=node, ended_at=None).update(**values) != 1:
            return Refused(f"{node} is not being decommissioned.")
        text = f"{node} is no longer being decommissioned, by {actor}: {why.strip()}"
        _tell(Node.objects.get(name=node), text, actor=actor, now=now)
    return text


_STANDING = Prepared(lambda: Decommission.objects.filter(ended_at=None).values_list("pk")[:1])


def get_decommissions() -> dict[str, str]:
    """The nodes that are being decommissioned, each with a sentence that says by whom, since when
    and why."""
    if not _STANDING.rows():
        return {}
    rows = Decommission.objects.filter(ended_at=None).select_related("node")
    return {row.node.name: format_decommission(row) for row in rows}


def format_decommission(row: Decommission) -> str:
    return (
        f"{row.node.name} is being decommissioned ({row.set_by}, {row.set_at:%Y-%m-%d %H:%M %Z}:"
        f" {row.reason})."
    )


def _tell(node: Node, text: str, *, actor: str, now: datetime) -> None:
    for incident in Incident.objects.filter(node=node, closed_at=None).order_by("pk"):
        record(incident.pk, kind=_KIND, text=text, actor=actor, now=now)
