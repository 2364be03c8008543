"""Ingest: fault events become faults and incidents, one transaction per batch. The only writer of
new faults.

`_ingest_events` shows the phases in order. An event that breaks its batch is found by halving and
put aside with its error; the rest commits.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import OperationalError, transaction

from detectors.catalog import catalog as fault_catalog
from detectors.faults import EventKind, FaultEvent, event_id
from incidents.correlation.conclusions import OWN
from incidents.db import upsert
from incidents.inventory import aliases
from incidents.maintenance import silences
from incidents.models import Fault
from incidents.state.holds import hold_repairs
from incidents.state.persistence import persist
from incidents.state.settle import settle_touched
from incidents.triage import quarantine as quarantined
from incidents.triage.aggregation import aggregate, aggregate_conclusions
from incidents.triage.clock_check import check_clocks
from incidents.triage.correlate import (
    correlate,
    correlate_conclusions,
    load_batch,
    lock_batch,
    summarise,
)
from incidents.triage.deduplication import deduplicate
from incidents.triage.normalisation import clean, normalise
from incidents.triage.repeats import NotOnlyRepeats, count_repeats, may_repeat
from incidents.vocabulary.changes import KINTSUGI, Change, ChangeKind

QUARANTINED = "kintsugi.event_quarantined"
OURSELVES = "kintsugi/ingest"
# Our choice: few batches are found to reach further twice, and each try costs as much as the last.
_MOST_NARROW_TRIES = 2


def ingest(events: Sequence[FaultEvent], *, now: datetime, by_pod: bool = False) -> list[Change]:
    """Counts events and gives each new fault its place. Safe to call again with the same events.

    `by_pod`: other batches may be placed at the same time in pods that these events do not reach.
    Only for a transaction that takes the lock of all pods neither before nor after. Raises
    OperationalError when the database is at fault, and then nothing was counted.
    """
    with transaction.atomic():
        changes = _ingest_halving(list(events), now, by_pod=by_pod)
        changes += _raise_quarantine_fault(changes, now)
    return changes


def _ingest_by_pod(
    events: Sequence[FaultEvent], now: datetime, *, may_be_short: bool
) -> list[Change]:
    """Begins with the pods of these events, takes those in that what they reach proves to be, and
    in the end all."""
    reached: frozenset[str] = frozenset()
    for _ in range(_MOST_NARROW_TRIES):
        try:
            return _ingest_events(
                events, now, may_be_short=may_be_short, by_pod=True, reached=reached
            )
        except upsert.WiderLockNeeded as beyond:
            reached |= beyond.machines
    return _ingest_events(events, now, may_be_short=may_be_short, by_pod=False)


def _ingest_events(
    events: Sequence[FaultEvent],
    now: datetime,
    *,
    may_be_short: bool,
    by_pod: bool,
    reached: Collection[str] = (),
) -> list[Change]:
    """The phases in order. Each takes values and gives values; the batch holds the faults and
    incidents that they read and change, and is written once.

    A batch that only repeats active faults is counted after the first phase, and needs no lock.
    Raises WiderLockNeeded where `by_pod` proves too narrow, and then nothing was counted.
    """
    catalog = fault_catalog.load()
    names = aliases.load({event.resource for event in events})
    items = normalise(events, catalog, names)
    if may_be_short and may_repeat(items):
        with contextlib.suppress(NotOnlyRepeats), transaction.atomic():
            return count_repeats(items, names, now=now)
    with transaction.atomic():
        locked = lock_batch(items, catalog, now, by_pod=by_pod, reached=reached)
        items, ignored = deduplicate(items)
        if not items:
            return ignored
        items = check_clocks(items, names, catalog, now)
        batch, new_keys = load_batch(items, names, catalog, now, locked)
        repeated = correlate(batch, items, names, new_keys)
        conclusions = aggregate(batch, items)
        hold_repairs(batch, conclusions.suspicions)
        while conclusions.events:
            repeated += correlate_conclusions(batch, conclusions.events, names)
            conclusions = aggregate_conclusions(batch, conclusions)
            hold_repairs(batch, conclusions.suspicions)
        silences.apply(batch)
        persist(batch)
        settled = settle_touched(batch)
        return ignored + batch.changes + settled + summarise(batch, repeated)


def _raise_quarantine_fault(changes: Sequence[Change], now: datetime) -> list[Change]:
    """What was put aside is a fault of its own, so that a person hears of it as of any other."""
    errors = [change.text for change in changes if change.kind is ChangeKind.QUARANTINED]
    if not errors:
        return []
    identity = event_id(QUARANTINED, secrets.token_hex(16))
    quarantined = fault_catalog.load()[QUARANTINED]
    alarm = quarantined.create_event(
        identity,
        EventKind.RAISED,
        OURSELVES,
        source=KINTSUGI,
        at=now,
        count=len(errors),
        excerpt=clean(errors[0]),
        provenance=OWN,
    )
    return _ingest_halving([alarm], now, is_whole=False)


def _ingest_halving(
    events: list[FaultEvent], now: datetime, *, is_whole: bool = True, by_pod: bool = False
) -> list[Change]:
    if not events:
        return []
    try:
        if by_pod:
            return _ingest_by_pod(events, now, may_be_short=is_whole)
        return _ingest_events(events, now, may_be_short=is_whole, by_pod=False)
    except OperationalError:
        raise  # the database, not the event
    except Exception as error:  # noqa: BLE001  one ingest batch: halve it, put the culprit aside
        # Nothing is locked now. The halves share a transaction, so the first lock is taken for all
        # of them.
        upsert.lock_placement()
        if len(events) == 1:
            return [quarantined.put_event_aside(events[0], error, now)]
        middle = len(events) // 2
        return _ingest_halving(events[:middle], now, is_whole=False) + _ingest_halving(
            events[middle:], now, is_whole=False
        )


def quarantine(broken: Sequence[tuple[Mapping[str, Any], str]], *, now: datetime) -> list[Change]:
    """Puts records aside that are no events at all, each with what is wrong with it."""
    with transaction.atomic():
        changes = [quarantined.put_record_aside(wire, error, now) for wire, error in broken]
        return changes + _raise_quarantine_fault(changes, now)


def get_active_fingerprints(owner: str) -> set[str]:
    """What stands on one machine (`node/gn042`), for detectors to judge against."""
    return set(
        Fault.objects.filter(owner=owner, is_active=True).values_list("fingerprint", flat=True)
    )
