"""A fault that comes again: whether it is the same one, and what is told when it flaps. Writes
nothing itself."""

from __future__ import annotations

from typing import Any

from detectors.faults import Verdict, VerdictKind
from incidents.correlation import engine
from incidents.state.batch import TriageBatch, get_quiet_period
from incidents.state.cases import FaultCase, TimelineNote, blocks
from incidents.triage.normalisation import Item
from incidents.vocabulary.changes import KINTSUGI


def is_same(case: FaultCase, item: Item) -> bool:
    """While its incident is open, or its end is recent, it is the same fault: the same row counts
    on."""
    if _is_other_trouble(case):
        return False
    return case.member is not None or case.is_new or _is_recent(case, item)


def note_flapping(batch: TriageBatch, case: FaultCase, verdict: Verdict) -> None:
    """Once, when it begins: what it does from now on is told when it is over."""
    if verdict.kind is VerdictKind.FLAPPING and case.member is not None:
        text = (
            f"{batch.format_fault(case.row)}: {verdict.reason}. Its changes are counted, and told"
            " again when it is steady."
        )
        case.member.entries.append(TimelineNote("flapping", text, batch.now))


def get_earlier_incident(case: FaultCase | None) -> Any:
    membership = getattr(case.row, "membership", None) if case is not None else None
    if membership is None:
        return None
    return membership.incident.duplicate_of or membership.incident


def _is_other_trouble(case: FaultCase) -> bool:
    """A symptom of an incident that is watched after its repair, come again: that incident says no
    longer why."""
    incident = case.member
    if incident is None or not incident.is_watched or not blocks(case, incident.root.row.pk):
        return False
    if case.row.membership.placed_by != KINTSUGI:
        return False  # a person's word, not a rule's
    return not engine.is_back(case.view(), incident.view())


def _is_recent(case: FaultCase, item: Item) -> bool:
    """An end within the quiet period, of a fault that never had an incident."""
    if getattr(case.row, "membership", None) is not None or case.row.cleared_at is None:
        return False
    return item.event.occurred_at - case.row.cleared_at <= get_quiet_period()
