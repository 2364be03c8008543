"""When errors that programs cause came to a GPU, and under which jobs: what those rules count that
count jobs.

Reads only. A fault that stands is seen again under one job after the other: each sighting counts,
not the fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import Q

from incidents.correlation.gather_rules import GatherRule
from incidents.correlation.tallies import Effect
from incidents.db.prepared import Given, Prepared
from incidents.faults.clocks import Whose
from incidents.faults.dedup import APART
from incidents.jobs import jobs
from incidents.models import Evidence, Fault

_Sighting = tuple[str, datetime]
_SEEN = Prepared(
    lambda: (
        Evidence.objects.filter(
            Q(fault__cleared_at=None) | Q(fault__cleared_at__gte=Given("since")),
            fault__fingerprint__among=Given("marks"),
            fault__clock=str(Whose.DEVICE),
            occurred_at__gte=Given("since"),
        )
        .order_by()
        .values_list("fault__fingerprint", "occurred_at")
    )
)
_RAISED = Prepared(
    lambda: Fault.objects.filter(
        owner__among=Given("owners"),
        fault_type__among=Given("types"),
        observed_at__range=(Given("since"), Given("until")),
    ).values_list("owner", "resource", "observed_at")
)
_TOLD = Prepared(
    lambda: (
        Evidence.objects.filter(
            fault__owner__among=Given("owners"),
            fault__fault_type__among=Given("types"),
            occurred_at__range=(Given("since"), Given("until")),
        )
        .order_by()
        .values_list("fault__owner", "fault__resource", "occurred_at")
    )
)


def split_by_time(
    rule: GatherRule,
    effects: Sequence[Effect],
    again: Mapping[str, datetime],
    *,
    since: datetime,
) -> list[Effect]:
    """One effect for each time, with the jobs that ran there then, or its own moment where none is
    known; what other GPUs of these jobs showed too is a program's, and left out. `again`: what this
    batch saw again, by fingerprint. `since`: the rule counts nothing older.
    """
    seen: dict[str, set[datetime]] = defaultdict(set)
    first: dict[str, Effect] = {}
    for effect in effects:
        seen[effect.mark].add(effect.at)
        first.setdefault(effect.mark, effect)
    for mark, at in [*_evidence(seen, since - APART), *again.items()]:
        if mark in seen:
            seen[mark].add(at)
    each = [replace(first[mark], at=at) for mark, times in seen.items() for at in _apart(times)]
    if not each:
        return []
    owners = {effect.fault.owner for effect in each}
    begins_at = min(effect.at for effect in each) - APART
    ends_at = max(effect.at for effect in each) + APART
    ran = jobs.spells_on(owners, since=begins_at, until=ends_at)
    machines = owners.union(*(spell.machines for spells in ran.values() for spell in spells))
    shown = _shown(rule, machines, begins_at, ends_at)
    spelled = (_spelled(effect, ran.get(effect.fault.owner, ()), shown) for effect in each)
    return [effect for effect in spelled if effect is not None]


def _evidence(marks: Iterable[str], since: datetime) -> Iterator[tuple[str, datetime]]:
    """Of the first five and the last five sightings of each those since then; not where the
    device's dates count for nothing."""
    yield from _SEEN.rows(marks=list(marks), since=since)


def _apart(times: Iterable[datetime]) -> Iterator[datetime]:
    """The first of those that come within moments of each other."""
    last: datetime | None = None
    for at in sorted(times):
        if last is None or at - last >= APART:
            last = at
            yield at


def _shown(
    rule: GatherRule, owners: Iterable[str], since: datetime, until: datetime
) -> Mapping[str, list[_Sighting]]:
    """By machine, where and when anything that the rule counts was seen in this time."""
    given = {"owners": list(owners), "types": rule.types, "since": since, "until": until}
    shown: dict[str, list[_Sighting]] = defaultdict(list)
    for owner, resource, at in (*_RAISED.rows(**given), *_TOLD.rows(**given)):
        shown[owner].append((resource, at))
    return shown


def _spelled(
    effect: Effect, ran: Iterable[jobs.Spell], shown: Mapping[str, Sequence[_Sighting]]
) -> Effect | None:
    near = [spell for spell in ran if spell.was_near(effect.at, APART)]
    machines = {effect.fault.owner}.union(*(spell.machines for spell in near))
    if any(
        resource != effect.fault.resource and abs(at - effect.at) <= APART
        for machine in machines
        for resource, at in shown.get(machine, ())
    ):
        return None
    return replace(
        effect,
        spell=" ".join(sorted({spell.job for spell in near})) or f"at {effect.at.isoformat()}",
    )
