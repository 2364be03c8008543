"""Orders that let a runbook go further than now, and the state that each was given in. Reads only.

What may let it go further at any later time counts, whatever else holds it back at this moment: the
site's mode and other armings may change or end. What only holds it back needs one person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from incidents.models import Node
from runbooks.fleet import armings, fleet
from runbooks.fleet.fleet import ModeTable
from runbooks.models import Arming, Mode, RunbookMode, SecondPersonRequest

Kind = SecondPersonRequest.Kind
Order = SecondPersonRequest.Order
_MODES = tuple(Mode)
_DIGITS = 16
_MAY_DIFFER = ("until", "reason")


@dataclass(frozen=True)
class ModeChange:
    """One order. `mode`: that it sets, or that of the arming that it ends. `terms` say the rest of
    it, as JSON; `what` the same for people. Two orders with one `mark` are for the same thing,
    whatever their reason and their end are."""

    order: Order
    runbook: str
    mode: Mode
    what: str
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        same = {name: value for name, value in self.terms.items() if name not in _MAY_DIFFER}
        return make_mark(self.order, self.runbook, self.mode, same)


def make_mark(*values: Any) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def read(request: SecondPersonRequest) -> ModeChange:
    """The order of the request, as it was given."""
    terms = {name: value for name, value in request.terms.items() if name != "mode"}
    mode = Mode(request.terms["mode"])
    return ModeChange(Order(request.order), request.runbook, mode, request.what, terms)


def find_kind(change: ModeChange, now: datetime) -> Kind | None:
    """None: it lets nothing go further."""
    if change.runbook == fleet.SITE:
        return _find_kind_of_site(change.mode)
    table = fleet.load_modes((change.runbook,), now)
    own = [row for row in table.armings if row.runbook == change.runbook]
    reached = _find_reached(change, table.own[change.runbook], own)
    if reached is None:
        return None
    is_new = reached is Mode.ARMED and not _acts_already(table, change.runbook, own)
    return Kind.ARMING if is_new else Kind.WIDENING


def _find_kind_of_site(mode: Mode) -> Kind | None:
    before = fleet.get_site_mode() or Mode.ARMED
    if not _is_above(mode, before):
        return None
    return Kind.ARMING if mode is Mode.ARMED else Kind.WIDENING


def _find_reached(change: ModeChange, own: Mode, standing: Sequence[Arming]) -> Mode | None:
    """The mode that the order may let the runbook go to somewhere; None: no further than now."""
    if change.order == Order.MODE:
        lent = [Mode(row.mode) for row in standing] if own is Mode.OFF else []
        reached = max((change.mode, *lent), key=_MODES.index)
        is_further = _is_above(change.mode, own) and reached is not Mode.SHADOW
        return reached if is_further else None
    if change.order == Order.ARMING:
        is_held_back = change.mode in (Mode.OFF, Mode.SHADOW) or _is_above(own, change.mode)
        return None if is_held_back else change.mode
    rest = [Mode(row.mode) for row in standing if row.pk != change.terms["arming"]]
    reached = max((own, *rest), key=_MODES.index)
    return reached if own is not Mode.OFF and _is_above(reached, change.mode) else None


def _acts_already(table: ModeTable, runbook: str, standing: Sequence[Arming]) -> bool:
    own = table.own[runbook]
    lent = [row.mode for row in standing if own is not Mode.OFF]
    return Mode.ARMED in (own, *lent)


def _is_above(mode: Mode, other: Mode) -> bool:
    return _MODES.index(mode) > _MODES.index(other)


def get_state(change: ModeChange, now: datetime) -> str:
    """Names what the order was given in: the runbook's mode and the site's, its armings, and the
    nodes that the order is for; of the site all of them. How many runs an arming has let act plays
    no part."""
    modes = RunbookMode.objects.order_by("runbook")
    standing = armings.load_in_force(now)
    if change.runbook != fleet.SITE:
        modes = modes.filter(runbook__in=(change.runbook, fleet.SITE))
        standing = [row for row in standing if row.runbook == change.runbook]
    lent = [(row.pk, row.mode, row.until, row.runs) for row in standing]
    return make_mark(list(modes.values_list("runbook", "mode")), lent, list_covered(change))


def list_covered(change: ModeChange) -> list[str]:
    """The nodes of the inventory that an arming is asked for, by name; of other orders none."""
    if change.order != Order.ARMING:
        return []
    place = Arming(**{name: change.terms[name] for name in ("scope", "place", "nodes")})
    nodes = Node.objects.inventoried()
    return sorted(node.name for node in nodes if armings.covers(place, node))
