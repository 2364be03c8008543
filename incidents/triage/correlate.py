"""Correlates: each event of a batch changes its fault, and each fault that is new or back gets its
place among the incidents. Writes nothing itself.

What an event means for its fault is decided by `incidents.faults.dedup`, where a fault belongs by
`incidents.correlation.engine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from detectors.catalog.catalog import Catalog
from detectors.faults import Action, EventKind, FaultEvent, Severity, Verdict, VerdictKind
from incidents.correlation.conclusions import CONCLUDED_BY
from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.faults import dedup, flapping
from incidents.inventory import aliases
from incidents.inventory.provisional import add_provisional
from incidents.models import Decision, Fault
from incidents.state import placement
from incidents.state.batch import LockedPods, TriageBatch, build_fault
from incidents.state.cases import FaultCase, TimelineNote
from incidents.state.neighbourhood import (
    load_last_faults,
    load_neighbourhood,
    lock_neighbourhood,
)
from incidents.triage import recurrence
from incidents.triage.deduplication import EarlyClears, use_keys
from incidents.triage.normalisation import Item, choose_component, normalise
from incidents.vocabulary.changes import Change, ChangeKind

# How often, by verdict, fingerprint and reason: what changed nothing but a count.
Repeated = Counter[tuple[VerdictKind, str, str]]
_ACTIVE = Prepared(
    lambda: (
        Fault.objects.filter(fingerprint__among=Given("fingerprints"), is_active=True)
        .order_by("fingerprint")
        .select_for_update()
    )
)


def lock_batch(
    items: Sequence[Item],
    catalog: Catalog,
    now: datetime,
    *,
    by_pod: bool,
    reached: Collection[str] = (),
) -> LockedPods | None:
    """The pods in which no other batch is placed until this one is written; None: all. Those of the
    machines `reached` are among them."""
    places = _get_places(items)
    return lock_neighbourhood(places, catalog, now, by_pod=by_pod, reached=reached)


def load_batch(
    items: Sequence[Item],
    names: aliases.Names,
    catalog: Catalog,
    now: datetime,
    locked: LockedPods | None = None,
) -> tuple[TriageBatch, set[str]]:
    """What correlating these items needs, and which of their keys are new. Locks the active fault
    of each fingerprint, in one order, before it stores the keys.

    `locked`: where nobody else places faults.
    """
    batch = TriageBatch(catalog, now, locked=locked)
    _load_active_faults(batch, sorted({item.fingerprint for item in items}))
    keys = sorted({key for item in items for key in item.keys})
    new_keys = upsert.remember(keys, now)
    _load_neighbourhood(batch, items, names)
    return batch, new_keys


def correlate(
    batch: TriageBatch, items: Sequence[Item], names: aliases.Names, new_keys: set[str]
) -> Repeated:
    """Gives each item's fault its place; returns what changed no more than a count."""
    repeated: Repeated = Counter()
    early_clears = EarlyClears.load(items)
    new_items = [item for item in items if _may_be_new(batch, item, new_keys)]
    placement.load_likely(batch, (_create_fault(batch, item, names) for item in new_items))
    for item in items:
        standing, seen = _get_standing(batch, item), use_keys(item, new_keys)
        known = dedup.Known(
            standing=standing,
            seen=seen,
            booted_at=item.booted_at,
            repaired_at=item.repaired_at,
            repair=item.repair,
            ended_at=early_clears.get_end(item),
            limits=item.limits,
        )
        was_active = _is_active(batch, item)
        _apply(batch, item, known, names, repeated)
        if not was_active and not known.seen:
            early_clears.add(item)
    early_clears.save()
    return repeated


def correlate_conclusions(
    batch: TriageBatch, events: Sequence[FaultEvent], names: aliases.Names
) -> Repeated:
    """The same for what the batch's faults add up to, with the decision that says why."""
    repeated: Repeated = Counter()
    if not events:
        return repeated
    items = normalise(events, batch.catalog, names)
    batch.require_lock(item.owner for item in items)
    unread = {item.fingerprint for item in items} - batch.faults.keys()
    _take_members(batch, unread)
    _load_active_faults(batch, sorted(unread - batch.faults.keys()))
    _load_neighbourhood(batch, items, names)
    for item in items:
        known = dedup.Known(standing=_get_standing(batch, item), limits=item.limits)
        _apply(batch, item, known, names, repeated)
        _decide_conclusion(batch, item)
    return repeated


def summarise(batch: TriageBatch, repeated: Repeated) -> list[Change]:
    """Repeats and what was ignored: one change per fault and reason, however many events."""
    changes = []
    for (kind, fingerprint, reason), count in repeated.items():
        case = batch.faults.get(fingerprint)
        incident = case.member.row.pk if case is not None and case.member is not None else None
        change = ChangeKind.REPEATED if kind is VerdictKind.REPEAT else ChangeKind.IGNORED
        fault = case.row.pk if case is not None else None
        changes.append(Change(incident, fault, change, f"{count} x {reason}"))
    return changes


# Reading
# ---------------------------------------------------------------------------


def _load_active_faults(batch: TriageBatch, fingerprints: Sequence[str]) -> None:
    for row in _ACTIVE.objects(fingerprints=fingerprints):
        batch.faults[row.fingerprint] = batch.build_case(row)


def _take_members(batch: TriageBatch, fingerprints: Collection[str]) -> None:
    """Those of the batch's incidents are in the batch already: a second copy would be of none."""
    for incident in batch.incidents.values():
        for member in incident.members:
            if member.row.is_active and member.row.fingerprint in fingerprints:
                batch.faults[member.row.fingerprint] = member


def _load_neighbourhood(batch: TriageBatch, items: Sequence[Item], names: aliases.Names) -> None:
    """Ended faults, the machines, and the incidents near."""
    missing = sorted({item.fingerprint for item in items} - set(batch.faults))
    for row in load_last_faults(missing):
        batch.faults[row.fingerprint] = batch.build_case(row)
    add_provisional(names, {item.owner for item in items})
    batch.nodes = {f"node/{name}": node for name, node in names.nodes.items()}
    load_neighbourhood(batch, _get_places(items))


def _get_places(items: Sequence[Item]) -> set[tuple[str, str]]:
    return {(item.event.fault_type, item.resource) for item in items}


def _get_standing(batch: TriageBatch, item: Item) -> dedup.Standing | None:
    case = batch.faults.get(item.fingerprint)
    return case.get_standing() if case is not None else None


def _may_be_new(batch: TriageBatch, item: Item, new_keys: set[str]) -> bool:
    is_raised = item.event.event is EventKind.RAISED
    return is_raised and new_keys.issuperset(item.keys) and not _is_active(batch, item)


def _is_active(batch: TriageBatch, item: Item) -> bool:
    case = batch.faults.get(item.fingerprint)
    return case is not None and case.row.is_active


# What an event does to its fault
# ---------------------------------------------------------------------------


def _apply(
    batch: TriageBatch,
    item: Item,
    known: dedup.Known,
    names: aliases.Names,
    repeated: Repeated,
) -> None:
    case = batch.faults.get(item.fingerprint)
    verdict = dedup.decide(item.event, known, now=batch.now)
    if verdict.kind in (VerdictKind.IGNORED, VerdictKind.STALE):
        repeated[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif item.event.event is EventKind.CLEARED and case is not None:
        _clear(batch, case, item, verdict)
    elif verdict.kind is VerdictKind.REPEAT and case is not None:
        _count(batch, case, item)
        repeated[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif verdict.kind is VerdictKind.ESCALATED and case is not None:
        _raise_severity(batch, case, item, verdict)
    elif case is not None and case.row.is_active:
        _count_return(batch, case, item)
    elif case is not None and recurrence.is_same(case, item):
        _reactivate(batch, case, item, verdict)
    else:
        _raise(batch, case, item, verdict, names)


def _clear(batch: TriageBatch, case: FaultCase, item: Item, verdict: Verdict) -> None:
    if verdict.kind is not VerdictKind.FLAPPING:
        placement.clear_fault(batch, case, item.event.occurred_at, verdict.reason)
        return
    case.changed(item.event.occurred_at, item.limits)
    steady_at = flapping.get_end(flapping.read(case.row.changes_at), item.limits)
    case.row.clears_at = max(steady_at, batch.now)


def _count(batch: TriageBatch, case: FaultCase, item: Item) -> None:
    if case.count(item.event, item.quiet):
        placement.correlate_again(batch, case)


def _raise_severity(batch: TriageBatch, case: FaultCase, item: Item, verdict: Verdict) -> None:
    row, event = case.row, item.event
    if case.is_believed and not event.provenance.forger.is_believed:
        case.count(event, item.quiet)
        return
    row.severity = str(max(Severity(row.severity), event.severity, key=lambda word: word.rank))
    row.action = str(max(Action(row.action), event.action, key=lambda word: word.rank))
    case.is_changed = True
    _count(batch, case, item)
    if case.member is not None:
        case.member.raise_to(case)
        text = f"{batch.format_fault(row)}: {verdict.reason}."
        case.member.entries.append(TimelineNote("escalated", text, event.occurred_at))
    batch.note(ChangeKind.ESCALATED, case, case.member, verdict.reason)


def _reactivate(batch: TriageBatch, case: FaultCase, item: Item, verdict: Verdict) -> None:
    """The same row counts on while its incident is open, or its end is recent."""
    is_flapping = verdict.kind is VerdictKind.FLAPPING
    case.come_back(item.event.occurred_at, item.limits, is_flapping=is_flapping)
    case.count(item.event, item.quiet)
    if case.member is None:
        case.row.held_until = _get_held_until(case, item)
        placement.assign_again(batch, case)
    else:
        if case.member.is_watched:
            case.row.held_until = _get_held_until(case, item)
        case.member.is_unsettled = True
        batch.note(ChangeKind.RETURNED, case, case.member, verdict.reason)
    recurrence.note_flapping(batch, case, verdict)


def _count_return(batch: TriageBatch, case: FaultCase, item: Item) -> None:
    """A fault that flaps is one fault while it does: its device says that it is back."""
    case.changed(item.event.occurred_at, item.limits)
    _count(batch, case, item)


def _get_held_until(case: FaultCase, item: Item) -> datetime | None:
    """What flaps is not held down, or it would never be told; what boots and planned work bring
    waits all the same."""
    return item.waits_until if case.row.is_flapping else item.held_until


def _raise(
    batch: TriageBatch,
    ended: FaultCase | None,
    item: Item,
    verdict: Verdict,
    names: aliases.Names,
) -> None:
    """A new fault. `ended`: the one that had its fingerprint before."""
    is_of_incident = ended is not None and ended.member is not None
    follows = None if is_of_incident else recurrence.get_earlier_incident(ended)
    fault = _create_fault(batch, item, names)
    fault.row.changes_at = ended.row.changes_at if ended is not None else []
    fault.changed(item.event.occurred_at, item.limits)
    fault.count(item.event, item.quiet)
    batch.faults[item.fingerprint] = fault
    if ended is not None:
        batch.replaced.append(ended)
    if verdict.kind is VerdictKind.FLAPPING:
        fault.row.is_flapping, fault.row.held_until = True, item.waits_until
    placement.assign(batch, fault, follows=follows)
    recurrence.note_flapping(batch, fault, verdict)


def _create_fault(batch: TriageBatch, item: Item, names: aliases.Names) -> FaultCase:
    """The event's fields in a new row: the one place where they go there."""
    event, kind = item.event, item.kind
    row = build_fault(
        kind, fingerprint=item.fingerprint, resource=item.resource, qualifier=event.qualifier
    )
    graph = batch.index.surroundings.graph
    row.component = str(choose_component(kind.id, item.resource, event.component, names, graph))
    row.severity, row.action = str(event.severity), str(event.action)
    row.code = event.code if event.code is not None else kind.code
    row.raised_at, row.last_seen_at = item.dated.at, event.occurred_at
    row.clock, row.lag_s = str(item.dated.whose), item.dated.lag.total_seconds()
    row.observed_at, row.recorded_at = event.observed_at, batch.now
    row.held_until = item.held_until
    last_good_at = event.attributes.get("last_known_good_at", "")
    row.last_known_good_at = datetime.fromisoformat(last_good_at) if last_good_at else None
    return FaultCase(
        row, opens_incident=kind.opens_incident, is_sympathetic=kind.is_sympathetic, is_new=True
    )


def _decide_conclusion(batch: TriageBatch, item: Item) -> None:
    """Why it was concluded, beside the fault that it became."""
    fault = batch.faults.get(item.fingerprint)
    rule = item.event.attributes.get(CONCLUDED_BY)
    if fault is not None and rule is not None:
        text = item.event.excerpt
        batch.decide(Decision.Kind.CONCLUDED, fault, fault.member, text, rule=rule)
