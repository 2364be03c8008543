"""Armings: which of those in force covers a runbook on a node, and how many runs each has let act.

The strictest of those that cover it decides. One that has expired, was ended or is used up covers
nothing; a run that has taken its node out by it is brought to its end by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import F, Q

from incidents.db.prepared import Given, Prepared
from incidents.models import Node
from incidents.text.wording import format_moment
from runbooks.models import Arming, Mode

USED = "arming"
"""The fact of a run: the number of the arming by which it took its node out."""
_MODES = tuple(Mode)
_IN_FORCE = Prepared(
    lambda: Arming.objects.filter(ended_at=None, until__gt=Given("now")).order_by("pk")
)


def load_in_force(now: datetime) -> list[Arming]:
    """Those that are used up too: what was begun by them goes on."""
    return list(_IN_FORCE.objects(now=now))


def find_deciding(
    armings: Iterable[Arming], runbook: str, node: Node | None, *, used: int | None
) -> Arming | None:
    """The strictest that covers the runbook there, of equals the first. `used`: by which the run
    that asks has taken its node out."""
    open_to_run = [arming for arming in armings if arming.pk == used or not is_used_up(arming)]
    of_runbook = [arming for arming in open_to_run if arming.runbook == runbook]
    covering = [arming for arming in of_runbook if covers(arming, node)]
    return min(covering, key=lambda arming: _MODES.index(Mode(arming.mode)), default=None)


def is_used_up(arming: Arming) -> bool:
    return arming.runs is not None and arming.used >= arming.runs


def covers(arming: Arming, node: Node | None) -> bool:
    """By where the inventory has the node now. What acts on no node is of the whole site."""
    scope = Arming.Scope(arming.scope)
    if scope is Arming.Scope.ALL:
        return True
    if node is None:
        return False
    match scope:
        case Arming.Scope.NODES:
            return node.name in arming.nodes
        case Arming.Scope.RACK:
            return node.rack == arming.place
        case Arming.Scope.PARTITION:
            return arming.place in node.partitions
        case Arming.Scope.POD:
            return node.pod == arming.place


def count_run(number: int, now: datetime) -> bool:
    """Counts one run against it, by a compare-and-swap. False: it holds no more."""
    is_left = Q(runs=None) | Q(used__lt=F("runs"))
    standing = Arming.objects.filter(is_left, pk=number, ended_at=None, until__gt=now)
    return standing.update(used=F("used") + 1) == 1


def rename_node(old: str, new: str) -> None:
    """In the transaction that renames it: what is said of the node goes on."""
    rows = Arming.objects.select_for_update().filter(scope=Arming.Scope.NODES, ended_at=None)
    for row in rows:
        if old in row.nodes:
            row.nodes = sorted({new, *row.nodes} - {old})
            row.save(update_fields=["nodes"])


def describe(arming: Arming) -> str:
    """As the end of a sentence."""
    runs = f", {arming.used} of {arming.runs} runs used" if arming.runs is not None else ""
    return (
        f"arming {arming.pk} of {arming.set_by}, {format_scope(arming)}, until"
        f" {format_moment(arming.until)}{runs}"
    )


def format_scope(arming: Arming) -> str:
    if arming.scope == Arming.Scope.ALL:
        return "all nodes"
    return f"{arming.scope} {arming.place}"
