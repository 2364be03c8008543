"""Repairs that wait: while a wider cause is suspected, nothing behind it is drained or rebooted.
Starts nothing.

Changes incidents of a batch; the batch writes them, and the guards ask before each step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import Action
from incidents.faults.fault_views import FOLLOWS_HARDWARE
from incidents.models import Decision, Incident
from incidents.state.batch import TriageBatch
from incidents.state.cases import IncidentCase, TimelineNote
from incidents.state.neighbourhood import load_incidents
from incidents.text.wording import format_clock
from incidents.vocabulary.lifecycle import State

# Our choice: what is suspected is found, or not, within this time; a node that is broken by itself
# waits no longer.
LONGEST = timedelta(minutes=10)
_REPAIRS = [str(action) for action in Action if action.at_least(Action.RESET_GPU)]
_MAY_WAIT = [state.value for state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)]
_LONGEST_REASON = 255


@dataclass(frozen=True)
class Suspicion:
    """A place that may be the cause of what the machines behind it show: their repairs wait.

    `holds_hardware` False: those whose root is a node's own hardware go on. `rule` says which rule
    of aggregation suspects it, `reason` why, for people.
    """

    machines: Collection[str]
    until: datetime
    reason: str
    rule: str
    holds_hardware: bool = True
    is_believed: bool = True
    """Whether it rests on more than texts: those hold no repair of what was measured."""


def hold_repairs(batch: TriageBatch, suspicions: Iterable[Suspicion]) -> None:
    """Lets the repairs behind suspected places wait. Told once, not at each extension."""
    for suspicion in suspicions:
        _hold_behind(batch, suspicion)


def _hold_behind(batch: TriageBatch, suspicion: Suspicion) -> None:
    young = Incident.objects.filter(opened_at__gt=batch.now - LONGEST)  # an older one waits no more
    rows = young.filter(
        owner__in=suspicion.machines,
        state__in=_MAY_WAIT,
        action__in=_REPAIRS,
        node__isnull=False,
    )
    # What waits elsewhere for long enough is left alone: it would take the lock of all pods.
    enough = batch.now + (suspicion.until - batch.now) / 2
    wanted = []
    for pk, owner, held_until in rows.values_list("pk", "owner", "held_until"):
        is_held = held_until is not None and held_until >= enough
        if batch.has_locked(owner) or not is_held:
            wanted.append(pk)
    load_incidents(batch, wanted)
    for case in list(batch.incidents.values()):
        if case.row.owner in suspicion.machines and _waits(case, suspicion):
            _hold(batch, case, suspicion)


def _waits(case: IncidentCase, suspicion: Suspicion) -> bool:
    row, holds_hardware = case.row, suspicion.holds_hardware
    if not suspicion.is_believed and any(one.is_believed_repair for one in case.members):
        return False
    calls = row.action in _REPAIRS and row.state in _MAY_WAIT and row.owner.startswith("node/")
    root = case.root.view()
    return calls and (holds_hardware or not root.is_hardware or root.is_one_of(FOLLOWS_HARDWARE))


def _hold(batch: TriageBatch, case: IncidentCase, suspicion: Suspicion) -> None:
    row = case.row
    until = min(suspicion.until, row.opened_at + LONGEST)
    if until <= batch.now:
        return
    was_held = row.held_until is not None and row.held_until > batch.now
    if was_held and row.held_until is not None and row.held_until >= until:
        return
    row.held_until, row.held_reason = until, suspicion.reason[:_LONGEST_REASON]
    case.is_changed = True
    if was_held:
        return
    text = f"No repair before {format_clock(until)}: {suspicion.reason}"
    case.entries.append(TimelineNote("repair_held", text, batch.now))
    batch.decide(Decision.Kind.HELD, case.root, case, text, rule=suspicion.rule, until=until)
