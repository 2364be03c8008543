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

from incidents.correlation.aggregation_rules import AggregationRule
from incidents.correlation.symptom_counts import Symptom
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
            fault__fingerprint__among=Given("fingerprints"),
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
    rule: AggregationRule,
    symptoms: Sequence[Symptom],
    seen_again: Mapping[str, datetime],
    *,
    since: datetime,
) -> list[Symptom]:
    """One symptom for each sighting of each fault, with the jobs that ran there then.

    `seen_again`: what this batch saw again, by fingerprint. `since`: the rule counts nothing older.
    A sighting without a known job counts by its own moment. One that other GPUs of its jobs showed
    at the same moment is a program's and not the GPU's, and is left out.
    """
    sightings = _list_sightings(symptoms, seen_again, since - APART)
    if not sightings:
        return []
    owners = {symptom.fault.owner for symptom in sightings}
    begins_at = min(symptom.at for symptom in sightings) - APART
    ends_at = max(symptom.at for symptom in sightings) + APART
    intervals_on = jobs.get_intervals_on(owners, since=begins_at, until=ends_at)
    machines = set(owners)
    for intervals in intervals_on.values():
        machines.update(*(interval.machines for interval in intervals))
    shown = _load_shown(rule, machines, begins_at, ends_at)
    found = []
    for symptom in sightings:
        intervals = intervals_on.get(symptom.fault.owner, [])
        near = [interval for interval in intervals if interval.was_near(symptom.at, APART)]
        if not _is_of_program(symptom, near, shown):
            found.append(replace(symptom, jobs=_format_jobs(symptom, near)))
    return found


def _list_sightings(
    symptoms: Sequence[Symptom], seen_again: Mapping[str, datetime], since: datetime
) -> list[Symptom]:
    """Each symptom at each time at which its fault was seen, those within moments of each other
    once."""
    times_of: dict[str, set[datetime]] = defaultdict(set)
    first_of: dict[str, Symptom] = {}
    for symptom in symptoms:
        times_of[symptom.fingerprint].add(symptom.at)
        first_of.setdefault(symptom.fingerprint, symptom)
    evidence = _SEEN.rows(fingerprints=list(times_of), since=since)
    for fingerprint, at in [*evidence, *seen_again.items()]:
        if fingerprint in times_of:
            times_of[fingerprint].add(at)
    sightings = []
    for fingerprint, times in times_of.items():
        symptom = first_of[fingerprint]
        sightings += [replace(symptom, at=at) for at in _list_first_of_moments(times)]
    return sightings


def _list_first_of_moments(times: Iterable[datetime]) -> Iterator[datetime]:
    """The first of those that come within moments of each other."""
    last: datetime | None = None
    for at in sorted(times):
        if last is None or at - last >= APART:
            last = at
            yield at


def _load_shown(
    rule: AggregationRule, owners: Iterable[str], since: datetime, until: datetime
) -> Mapping[str, list[_Sighting]]:
    """By machine, where and when anything that the rule counts was seen in this time."""
    given = {"owners": list(owners), "types": rule.types, "since": since, "until": until}
    shown: dict[str, list[_Sighting]] = defaultdict(list)
    for owner, resource, at in (*_RAISED.rows(**given), *_TOLD.rows(**given)):
        shown[owner].append((resource, at))
    return shown


def _is_of_program(
    symptom: Symptom,
    intervals: Sequence[jobs.JobInterval],
    shown: Mapping[str, Sequence[_Sighting]],
) -> bool:
    """Whether another part of the machines of its jobs showed the like at the same moment."""
    machines = {symptom.fault.owner}.union(*(interval.machines for interval in intervals))
    for machine in machines:
        for resource, at in shown.get(machine, ()):
            if resource != symptom.fault.resource and abs(at - symptom.at) <= APART:
                return True
    return False


def _format_jobs(symptom: Symptom, intervals: Sequence[jobs.JobInterval]) -> str:
    names = sorted({interval.job for interval in intervals})
    return " ".join(names) or f"at {symptom.at.isoformat()}"
