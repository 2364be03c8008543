"""The short way of ingest: a batch that only repeats faults that stand needs no placement, and no
lock for it.

Most batches of a storm are of this sort. Anything else raises `NotOnlyRepeats`, and nothing was
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from detectors.faults import Action, ClearRule, EventKind, Severity, VerdictKind
from detectors.provenance import Forger, to_wire
from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.faults import clocks, dedup
from incidents.inventory.aliases import Names
from incidents.models import Fault
from incidents.state import site_rules
from incidents.state.cases import LONGEST_EXCERPT
from incidents.triage import last_repair
from incidents.triage.deduplication import use_keys
from incidents.triage.normalisation import Item, redate
from incidents.vocabulary.changes import Change, ChangeKind

_COLUMNS = (
    "pk",
    "fingerprint",
    "severity",
    "action",
    "clears",
    "raised_at",
    "last_seen_at",
    "observed_at",
    "lag_s",
    "excerpts",
    "clock",
    "forger",
    "membership__incident_id",
    "membership__incident__has_platform_signal",
)
_STEADY = Prepared(
    lambda: (
        Fault.objects.filter(
            Q(is_flapping=False)
            | (Q(clears_at__isnull=True) & ~Q(clears=str(ClearRule.AFTER_QUIET))),
            fingerprint__among=Given("fingerprints"),
            is_active=True,
        )
        .order_by("fingerprint")
        .select_for_update(of=("self",))
        .values_list(*_COLUMNS)
    )
)


class NotOnlyRepeats(Exception):
    """The batch may raise, clear or escalate a fault: it takes the long way."""


@dataclass
class _RepeatCount:
    """One active fault and what the batch adds to it."""

    fault: int
    standing: dedup.Standing
    excerpts_before: int
    incident: int | None
    lag: timedelta
    observed_at: datetime
    forger: str
    count: int = 0
    provenance: dict[str, Any] | None = None
    last_seen_at: datetime | None = None
    clears_at: datetime | None = None
    excerpts: list[tuple[str, datetime, str]] = field(default_factory=list)

    def in_order(self, item: Item) -> Item:
        """By our clock when the device dates this as far behind as it dated the fault itself, at
        another time."""
        is_apart = item.event.observed_at - self.observed_at >= 2 * clocks.TOLERANCE
        if not (item.dated.may_be_late and is_apart and clocks.is_usual(item.event, self.lag)):
            return item
        return redate(item, clocks.get_date(item.event, is_live=True))

    def add(self, item: Item) -> None:
        event = item.event
        self.count += event.count
        self.provenance = to_wire(event.provenance)
        if self.last_seen_at is None or event.occurred_at > self.last_seen_at:
            self.last_seen_at = event.occurred_at
        if item.quiet is not None:
            until = event.observed_at + item.quiet
            self.clears_at = until if self.clears_at is None else max(self.clears_at, until)
        if event.excerpt:
            self.excerpts.append(
                (event.source[:64], event.occurred_at, event.excerpt[:LONGEST_EXCERPT])
            )

    def get_row(self) -> upsert.Repeat:
        last_seen_at = self.last_seen_at or self.standing.last_seen_at
        return upsert.Repeat(
            self.fault,
            self.count,
            last_seen_at,
            self.clears_at,
            len(self.excerpts),
            self.provenance,
        )

    def is_better_known_by(self, item: Item) -> bool:
        """Whether fewer could have forged this than what has told of the fault so far."""
        now = item.event.provenance.forger
        return not self.forger or now.rank > Forger(self.forger).rank


def may_repeat(items: Sequence[Item]) -> bool:
    """Whether these may be repeats and nothing else, as far as they tell themselves."""
    return all(item.event.event is EventKind.RAISED for item in items)


def count_repeats(items: Sequence[Item], names: Names, *, now: datetime) -> list[Change]:
    """Counts a batch of repeats inside the caller's savepoint. Raises NotOnlyRepeats.

    Locks are taken in one order everywhere: placement, faults by fingerprint, ids of events.
    """
    if _may_be_stale(items, now):
        raise NotOnlyRepeats
    repeats = _lock_repeats(sorted({item.fingerprint for item in items}))
    if any(item.fingerprint not in repeats for item in items):
        raise NotOnlyRepeats
    fresh = upsert.remember(sorted({key for item in items for key in item.keys}), now)
    counted: Counter[tuple[VerdictKind, str, str]] = Counter()
    for item in items:
        repeat = repeats[item.fingerprint]
        item = repeat.in_order(item)
        node = names.find_node(item.owner)
        booted_at = node.boot_seen_at if node else None
        if booted_at is not None and item.event.occurred_at < booted_at:
            raise NotOnlyRepeats
        known = dedup.Known(repeat.standing, use_keys(item, fresh), booted_at)
        verdict = dedup.decide(item.event, known, now=now)
        if verdict.kind is VerdictKind.ESCALATED:
            raise NotOnlyRepeats
        counted[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
        if verdict.kind is VerdictKind.REPEAT:
            if _counts_by_itself(item, repeat) or repeat.is_better_known_by(item):
                raise NotOnlyRepeats
            repeat.add(item)
    _write([repeat for repeat in repeats.values() if repeat.count])
    changes = []
    for (kind, fingerprint, reason), count in counted.items():
        repeat = repeats[fingerprint]
        change = ChangeKind.REPEATED if kind is VerdictKind.REPEAT else ChangeKind.IGNORED
        changes.append(Change(repeat.incident, repeat.fault, change, f"{count} x {reason}"))
    return changes


def _counts_by_itself(item: Item, repeat: _RepeatCount) -> bool:
    """Whether counting rules take this sighting for one more, as of another job."""
    is_apart = item.event.occurred_at - repeat.standing.last_seen_at >= dedup.APART
    return is_apart and item.event.fault_type in site_rules.get_types_counted_by_job()


def _may_be_stale(items: Sequence[Item], now: datetime) -> bool:
    """Old lines may be older than a repair; those that come at once are not asked about."""
    oldest = min((item.event.occurred_at for item in items), default=now)
    return oldest < now - clocks.TOLERANCE and last_repair.may_be_older(oldest)


def _lock_repeats(fingerprints: Sequence[str]) -> dict[str, _RepeatCount]:
    """The active faults, locked. Left out, as their events mean more: one that flaps and has ended,
    or has its end set by time, and what people alone have told so far."""
    repeats = {}
    for row in _STEADY.rows(fingerprints=fingerprints):
        (
            pk,
            fingerprint,
            severity,
            action,
            clears,
            raised_at,
            last_seen_at,
            observed_at,
            lag_s,
            excerpts,
            *incident_row,
        ) = row
        clock, forger, incident, has_platform_signal = incident_row
        if clock == str(clocks.Whose.PERSON) or has_platform_signal is False:
            continue
        standing = dedup.Standing(
            True, Severity(severity), Action(action), ClearRule(clears), raised_at, last_seen_at
        )
        repeats[fingerprint] = _RepeatCount(
            pk, standing, excerpts, incident, timedelta(seconds=lag_s), observed_at, forger
        )
    return repeats


def _write(repeats: Sequence[_RepeatCount]) -> None:
    upsert.add_repeats([repeat.get_row() for repeat in repeats])
    excerpts = []
    for repeat in repeats:
        for index, slot in upsert.choose_slots(repeat.excerpts_before, len(repeat.excerpts)):
            excerpts.append(upsert.Excerpt(repeat.fault, slot, *repeat.excerpts[index]))
    upsert.put_excerpts(excerpts)
