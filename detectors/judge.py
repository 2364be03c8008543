"""From the observations of one round to fault events: hysteresis, debounce, counters by their rise. Pure.

What it must remember between two rounds is a `Memory`, which travels as JSON. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Optional

from detectors.catalog import Catalog
from detectors.classify import cleared, to_event, worst
from detectors.detector import Detector, Sample
from detectors.faults import EventKind, FaultEvent, Observation
from detectors.rules import COUNTERS, Opinion, Rule, When

# More rises than these within one rule's period are summed into the oldest.
_MOST_RISES = 64
# A part that was taken out is forgotten; one that comes back later starts from a new baseline.
_FORGOTTEN_AFTER = timedelta(days=7)


@dataclass(frozen=True)
class Streak:
    """How long one rule has been of one opinion: so many polls, since when."""

    opinion: str
    polls: int
    since: datetime


@dataclass(frozen=True)
class Memory:
    """Of one detector on one target: kept samples, each rule's streak, each counter's rises in its period."""

    samples: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    streaks: Mapping[tuple[str, str, str], Streak] = field(default_factory=dict)
    rises: Mapping[tuple[str, str, str], tuple[tuple[datetime, float], ...]] = field(default_factory=dict)


class Judged(NamedTuple):
    events: list[FaultEvent]
    memory: Memory


class Opined(NamedTuple):
    """One rule's opinion of one observation, debounced."""

    rule: Rule
    opinion: Opinion


@dataclass
class _Round:
    """One pass over the observations of one round."""

    before: Memory
    catalog: Catalog
    booted_at: Optional[datetime]
    streaks: dict[tuple[str, str, str], Streak] = field(default_factory=dict)
    rises: dict[tuple[str, str, str], tuple[tuple[datetime, float], ...]] = field(default_factory=dict)

    def opinions(self, seen: Observation) -> dict[str, list[Opined]]:
        """By fault type, so that the rows of one type are weighed together."""
        found: dict[str, list[Opined]] = {}
        for rule in self.catalog.rules.get(seen.metric, ()):
            opinion = rule.opinion(seen.value, seen.attributes, self._risen(rule, seen))
            if opinion is Opinion.FAULTY and self._is_too_soon(rule, seen.observed_at):
                opinion = Opinion.NONE
            found.setdefault(rule.type, []).append(Opined(rule, self._debounced(rule, seen, opinion)))
        return found

    def _is_too_soon(self, rule: Rule, at: datetime) -> bool:
        return self.booted_at is not None and at < self.booted_at + rule.grace

    def _debounced(self, rule: Rule, seen: Observation, opinion: Opinion) -> Opinion:
        key = _key(rule, seen)
        last = self.before.streaks.get(key)
        if last is not None and last.opinion == opinion.value:
            streak = replace(last, polls=last.polls + 1)
        else:
            streak = Streak(opinion.value, 1, seen.observed_at)
        needed = rule.polls if opinion is Opinion.FAULTY else rule.clear_polls
        hold = rule.hold if opinion is Opinion.FAULTY else timedelta(0)
        if needed > 1 or hold:
            self.streaks[key] = streak
        is_enough = streak.polls >= needed and seen.observed_at - streak.since >= hold
        return opinion if is_enough else Opinion.NONE

    def _risen(self, rule: Rule, seen: Observation) -> Optional[float]:
        """By how much the counter grew over the rule's period, or a second; None at first sight."""
        if rule.when not in COUNTERS:
            return None
        last = self.before.samples.get((seen.resource, seen.metric))
        if last is None or not _is_number(seen.value) or not _is_number(last.value):
            return None
        grown = float(seen.value - last.value) if seen.value >= last.value else 0.0  # it was reset: a new baseline
        passed_s = (seen.observed_at - last.at).total_seconds()
        if rule.when is When.FASTER:
            return grown / passed_s if passed_s > 0 else None
        if not rule.within:
            return grown
        key = _key(rule, seen)
        recent = [(at, n) for at, n in self.before.rises.get(key, ()) if at > seen.observed_at - rule.within]
        if grown:
            recent.append((seen.observed_at, grown))
        if len(recent) > _MOST_RISES:
            recent = [(recent[1][0], recent[0][1] + recent[1][1]), *recent[2:]]
        self.rises[key] = tuple(recent)
        return sum(n for _, n in recent)


def judge(
    observations: Sequence[Observation],
    before: Memory,
    *,
    active: Container[str],
    catalog: Catalog,
    booted_at: Optional[datetime] = None,
    keeps: frozenset[str] = frozenset(),
) -> Judged:
    """What the round means, and what to remember of it.

    `active` holds the fingerprints of the faults that stand. A fault that stands is raised again by a faulty value, so
    that its last-seen time moves; one that does not stand is not cleared again. `keeps` names further metrics whose
    values the detector compares with its next round. What was not observed this time keeps its last sample.
    """
    this = _Round(before, catalog, booted_at)
    events: list[FaultEvent] = []
    for seen in observations:
        for fault_type, opined in this.opinions(seen).items():
            event = _event(seen, fault_type, opined, active, catalog)
            if event is not None:
                events.append(event)
    return Judged(events, _remember(observations, before, this, keeps))


def judge_round(
    detector: Detector,
    observations: Sequence[Observation],
    before: Memory,
    *,
    active: Container[str],
    catalog: Catalog,
    booted_at: Optional[datetime] = None,
) -> Judged:
    """`judge` of what the detector parsed together with what it finds by comparing with its last round."""
    whole = [*observations, *detector.compare(observations, before.samples)]
    return judge(whole, before, active=active, catalog=catalog, booted_at=booted_at, keeps=detector.keeps)


def _event(
    seen: Observation, fault_type: str, opined: Sequence[Opined], active: Container[str], catalog: Catalog
) -> Optional[FaultEvent]:
    faulty = [each.rule for each in opined if each.opinion is Opinion.FAULTY]
    if faulty:
        return to_event(seen, worst(faulty, catalog), EventKind.RAISED, catalog)
    if any(each.opinion is Opinion.NONE for each in opined):
        return None
    return cleared(seen, opined[0].rule, active, catalog)


def _key(rule: Rule, seen: Observation) -> tuple[str, str, str]:
    return (seen.resource, seen.metric, rule.key)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _remember(observations: Sequence[Observation], before: Memory, this: _Round, keeps: frozenset[str]) -> Memory:
    counters = {metric for metric, rules in this.catalog.rules.items() if any(r.when in COUNTERS for r in rules)}
    samples = dict(before.samples)
    for seen in observations:
        if seen.metric in keeps or (seen.metric in counters and _is_number(seen.value)):
            samples[(seen.resource, seen.metric)] = Sample(seen.value, seen.observed_at)
    latest = max((seen.observed_at for seen in observations), default=None)
    if latest is not None:
        samples = {key: sample for key, sample in samples.items() if sample.at > latest - _FORGOTTEN_AFTER}
    return Memory(samples, this.streaks, {key: rises for key, rises in {**before.rises, **this.rises}.items() if rises})


def to_json(memory: Memory) -> dict[str, Any]:
    """JSON-ready; times as seconds since the epoch, which are short and exact to the microsecond."""
    return {
        "samples": [[*key, sample.value, sample.at.timestamp()] for key, sample in memory.samples.items()],
        "streaks": [[*key, s.opinion, s.polls, s.since.timestamp()] for key, s in memory.streaks.items()],
        "rises": [[*key, [[at.timestamp(), n] for at, n in rises]] for key, rises in memory.rises.items()],
    }


def from_json(values: Mapping[str, Any], zone: Any) -> Memory:
    """Inverse of `to_json`; `zone` of the times. Raises ValueError, KeyError or TypeError on anything else."""

    def moment(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, tz=zone)

    return Memory(
        {(r, m): Sample(value, moment(at)) for r, m, value, at in values["samples"]},
        {(r, m, w): Streak(opinion, polls, moment(at)) for r, m, w, opinion, polls, at in values["streaks"]},
        {(r, m, w): tuple((moment(at), n) for at, n in rises) for r, m, w, rises in values["rises"]},
    )
