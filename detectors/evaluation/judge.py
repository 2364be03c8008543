"""From the observations of one round to fault events: hysteresis, debounce, counters by their rise.
Pure.

What it must remember between two rounds is a `Memory`, which travels as JSON. Python 3.9, standard
library alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Optional

from detectors.catalog.catalog import Catalog
from detectors.catalog.rules import COUNTERS, Opinion, ThresholdRule, When
from detectors.detector import Detector, Sample
from detectors.evaluation.classify import build_event, find_cleared, get_worst
from detectors.faults import EventKind, FaultEvent, Observation, fingerprint

# Measured: fewer samples than these are as short with their names beside each value, packed.
_LEAST_IN_COLUMNS = 32
# More rises than these within one rule's period are summed into the oldest.
_MOST_RISES = 64
# What `detectors.polling.observe_one` says of the look itself.
_ANSWERS = ("target.reachable", "detector.answered")
# A part that was taken out is forgotten; one that comes back later starts from a new baseline.
_FORGOTTEN_AFTER = timedelta(days=7)
# Resource, metric and, where a rule keeps something of its own, the rule's key.
_SampleKey = tuple[str, str]
_RuleKey = tuple[str, str, str]
_Rises = tuple[tuple[datetime, float], ...]


@dataclass(frozen=True)
class Streak:
    """How long one rule has been of one opinion: so many polls, since when, and when was looked
    last before that."""

    opinion: str
    polls: int
    since: datetime
    before: Optional[datetime] = None


@dataclass(frozen=True)
class Memory:
    """Of one detector on one target: kept samples, each rule's streak, each counter's rises in its
    period, and when it last saw all that it looks for: what it could not see then was not well."""

    samples: Mapping[_SampleKey, Sample] = field(default_factory=dict)
    streaks: Mapping[_RuleKey, Streak] = field(default_factory=dict)
    rises: Mapping[_RuleKey, _Rises] = field(default_factory=dict)
    looked_at: Optional[datetime] = None


class Judged(NamedTuple):
    events: list[FaultEvent]
    memory: Memory


class Opined(NamedTuple):
    """One rule's opinion of one observation, debounced."""

    rule: ThresholdRule
    opinion: Opinion


@dataclass
class _Round:
    """One pass over the observations of one round."""

    before: Memory
    catalog: Catalog
    booted_at: Optional[datetime]
    streaks: dict[_RuleKey, Streak] = field(default_factory=dict)
    rises: dict[_RuleKey, _Rises] = field(default_factory=dict)

    def get_opinions(self, seen: Observation) -> dict[str, list[Opined]]:
        """By fault type, so that the rows of one type are weighed together."""
        by_type: dict[str, list[Opined]] = {}
        for rule in self.catalog.rules.get(seen.metric, ()):
            opinion = rule.opinion(seen.value, seen.attributes, self._get_increase(rule, seen))
            if opinion is Opinion.FAULTY and self._is_too_soon(rule, seen.observed_at):
                opinion = Opinion.NONE
            opined = Opined(rule, self._apply_debounce(rule, seen, opinion))
            by_type.setdefault(rule.type, []).append(opined)
        return by_type

    def _is_too_soon(self, rule: ThresholdRule, at: datetime) -> bool:
        return self.booted_at is not None and at < self.booted_at + rule.grace

    def _apply_debounce(self, rule: ThresholdRule, seen: Observation, opinion: Opinion) -> Opinion:
        key = _get_key(rule, seen)
        last = self.before.streaks.get(key)
        needed = rule.polls if opinion is Opinion.FAULTY else rule.clear_polls
        if last is not None and last.opinion == opinion.value:
            # No further than it is asked for: a memory that says nothing new is not written.
            streak = replace(last, polls=min(last.polls + 1, max(last.polls, needed)))
        else:
            streak = Streak(opinion.value, 1, seen.observed_at, self.before.looked_at)
        hold = rule.hold if opinion is Opinion.FAULTY else timedelta(0)
        if needed > 1 or hold:
            self.streaks[key] = streak
        is_enough = streak.polls >= needed and seen.observed_at - streak.since >= hold
        return opinion if is_enough else Opinion.NONE

    def get_last_good_time(
        self, rules: Sequence[ThresholdRule], seen: Observation
    ) -> Optional[datetime]:
        """When none of these rules, all of which find it faulty now, did yet; None: not known."""
        looks = []
        for rule in rules:
            streak = self.streaks.get(_get_key(rule, seen))
            looked_at = self.before.looked_at if streak is None else streak.before
            if looked_at is None or self._is_too_soon(rule, looked_at):
                return None  # a look in the grace of a boot says nothing
            looks.append(looked_at)
        return min(looks, default=None)

    def _get_increase(self, rule: ThresholdRule, seen: Observation) -> Optional[float]:
        """By how much the counter grew over the rule's period, or a second; None at first sight."""
        if rule.when not in COUNTERS:
            return None
        last = self.before.samples.get((seen.resource, seen.metric))
        if last is None or not _is_number(seen.value) or not _is_number(last.value):
            return None
        # A smaller value was reset: a new baseline.
        growth = float(seen.value - last.value) if seen.value >= last.value else 0.0
        passed_s = (seen.observed_at - last.at).total_seconds()
        if rule.when is When.FASTER:
            return growth / passed_s if passed_s > 0 else None
        if not rule.within:
            return growth
        return self._add_rise(_get_key(rule, seen), seen.observed_at, growth, rule.within)

    def _add_rise(self, key: _RuleKey, at: datetime, growth: float, within: timedelta) -> float:
        """The sum of the rises within the period, this one included."""
        start = at - within
        rises = [rise for rise in self.before.rises.get(key, ()) if rise[0] > start]
        if growth:
            rises.append((at, growth))
        if len(rises) > _MOST_RISES:
            (_, oldest), (second_at, second), *others = rises
            rises = [(second_at, oldest + second), *others]
        self.rises[key] = tuple(rises)
        return sum(amount for _, amount in rises)


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

    `active` holds the fingerprints of the faults that stand. A fault that stands is raised again by
    a faulty value, so that its last-seen time moves; one that does not stand is not cleared again.
    `keeps` names further metrics whose values the detector compares with its next round. What was
    not observed this time keeps its last sample.
    """
    polling_round = _Round(before, catalog, booted_at)
    events: list[FaultEvent] = []
    for seen in observations:
        for opinions in polling_round.get_opinions(seen).values():
            event = _make_event(seen, opinions, active, polling_round)
            if event is not None:
                events.append(event)
    return Judged(events, _remember(observations, polling_round, keeps))


def judge_round(
    detector: Detector,
    observations: Sequence[Observation],
    before: Memory,
    *,
    active: Container[str],
    catalog: Catalog,
    booted_at: Optional[datetime] = None,
) -> Judged:
    """`judge` of what the detector parsed together with what it finds by comparing with its last
    round."""
    whole = [*observations, *detector.compare(observations, before.samples)]
    return judge(
        whole, before, active=active, catalog=catalog, booted_at=booted_at, keeps=detector.keeps
    )


def _make_event(
    seen: Observation,
    opinions: Sequence[Opined],
    active: Container[str],
    polling_round: _Round,
) -> Optional[FaultEvent]:
    catalog = polling_round.catalog
    faulty = [rule for rule, opinion in opinions if opinion is Opinion.FAULTY]
    if faulty:
        event = build_event(seen, get_worst(faulty, catalog), EventKind.RAISED, catalog)
        good_at = polling_round.get_last_good_time(faulty, seen)
        if good_at is None:
            return event
        if fingerprint(event.resource, event.fault_type, event.qualifier) in active:
            return event
        attributes = {**event.attributes, "last_known_good_at": good_at.isoformat()}
        return replace(event, attributes=attributes)
    if any(opinion is Opinion.NONE for _, opinion in opinions):
        return None
    return find_cleared(seen, opinions[0].rule, active, catalog)


def _get_key(rule: ThresholdRule, seen: Observation) -> _RuleKey:
    return (seen.resource, seen.metric, rule.key)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _remember(
    observations: Sequence[Observation], polling_round: _Round, keeps: frozenset[str]
) -> Memory:
    before = polling_round.before
    counters = _list_counters(polling_round.catalog)
    samples = dict(before.samples)
    for seen in observations:
        if seen.metric in keeps or (seen.metric in counters and _is_number(seen.value)):
            samples[(seen.resource, seen.metric)] = Sample(seen.value, seen.observed_at)
    all_rises = {**before.rises, **polling_round.rises}
    rises = {key: recent for key, recent in all_rises.items() if recent}
    latest = max((seen.observed_at for seen in observations), default=None)
    if latest is None:
        return Memory(samples, polling_round.streaks, rises, before.looked_at)
    oldest = latest - _FORGOTTEN_AFTER
    kept = {key: sample for key, sample in samples.items() if sample.at > oldest}
    looked_at = latest if _is_whole(observations) else before.looked_at
    return Memory(kept, polling_round.streaks, rises, looked_at)


def _list_counters(catalog: Catalog) -> frozenset[str]:
    """The metrics that a rule judges by their rise."""
    all_rules = (rule for rules in catalog.rules.values() for rule in rules)
    return frozenset(rule.metric for rule in all_rules if rule.when in COUNTERS)


def _is_whole(observations: Sequence[Observation]) -> bool:
    """Whether the target answered and the detector could read all of it."""
    return not any(seen.metric in _ANSWERS and seen.value is False for seen in observations)


# In the place of a time: that of the last look.
_LAST_LOOK = "last"


def to_json(memory: Memory, looked_at: Optional[datetime] = None) -> dict[str, Any]:
    """JSON-ready; times as seconds since the epoch, which are short and exact to the
    microsecond. Many samples are written in columns.

    `looked_at`: when the last look was, where the caller keeps that itself. What was seen then is
    marked and its time not written, so that a look that saw nothing new changes nothing.
    """

    def seconds(at: Optional[datetime]) -> Any:
        if at is None:
            return None
        return _LAST_LOOK if at == looked_at else at.timestamp()

    streaks = [[*key, *_format_streak(streak)] for key, streak in memory.streaks.items()]
    rises = [[*key, _format_rises(recent)] for key, recent in memory.rises.items()]
    last_good = seconds(memory.looked_at)
    others = {"streaks": streaks, "rises": rises, "looked_at": last_good}
    if len(memory.samples) < _LEAST_IN_COLUMNS:
        samples = [[*key, one.value, seconds(one.at)] for key, one in memory.samples.items()]
        return {"samples": samples, **others}
    resources = sorted({resource for resource, _ in memory.samples})
    columns = _format_columns(memory.samples, resources, seconds)
    # A version that knows no columns looks at the samples: to it nothing was seen yet.
    return {"samples": [], "resources": resources, "columns": columns, **others}


def _format_columns(
    samples: Mapping[_SampleKey, Sample],
    resources: Sequence[str],
    seconds: Callable[[Optional[datetime]], Any],
) -> list[list[Any]]:
    """Each metric once, with when it was seen, the resources that it was seen of by their numbers,
    and a value of each: a node of eleven NICs with 29 counters each is a quarter as long as with
    both names beside every value. None: of all resources, in their order. The order in which
    samples were kept leaves no trace."""
    numbers = {resource: number for number, resource in enumerate(resources)}
    found: dict[tuple[str, Any], list[tuple[int, Any]]] = {}
    for (resource, metric), sample in samples.items():
        key = metric, seconds(sample.at)
        found.setdefault(key, []).append((numbers[resource], sample.value))
    columns = []
    for metric, at in sorted(found, key=_get_order):
        values = dict(found[metric, at])
        known = sorted(values)
        is_of_all = len(known) == len(resources)
        column = [values[number] for number in known]
        columns.append([metric, at, None if is_of_all else known, column])
    return columns


def _get_order(key: tuple[str, Any]) -> tuple[str, str]:
    metric, at = key
    return metric, str(at)


def _format_streak(streak: Streak) -> list[Any]:
    since = streak.since.timestamp()
    return [streak.opinion, streak.polls, since, _get_timestamp(streak.before)]


def _format_rises(rises: _Rises) -> list[list[float]]:
    return [[at.timestamp(), amount] for at, amount in rises]


def _get_timestamp(at: Optional[datetime]) -> Optional[float]:
    return at.timestamp() if at else None


def from_json(values: Mapping[str, Any], zone: Any, looked_at: Optional[datetime] = None) -> Memory:
    """Inverse of `to_json`; `zone` of the times. Raises ValueError, KeyError or TypeError on
    anything else.

    What an earlier version wrote says nothing of the last looks.
    """

    def moment(seconds: Any) -> datetime:
        if seconds != _LAST_LOOK:
            return datetime.fromtimestamp(seconds, tz=zone)
        if looked_at is None:
            raise ValueError("when the last look was is not known")
        return looked_at

    def moment_or_none(seconds: Any) -> Optional[datetime]:
        return None if seconds is None else moment(seconds)

    samples: dict[_SampleKey, Sample] = {}
    for resource, metric, value, at in values["samples"]:
        samples[resource, metric] = Sample(value, moment(at))
    resources = dict(enumerate(values.get("resources", ())))
    for metric, at, numbers, column in values.get("columns", ()):
        seen_at = moment(at)
        known = list(resources) if numbers is None else numbers
        if len(known) != len(column):
            raise ValueError(f"{metric} has another number of values than of resources")
        for number, value in zip(known, column):
            samples[resources[number], metric] = Sample(value, seen_at)
    streaks: dict[_RuleKey, Streak] = {}
    for resource, metric, rule, opinion, polls, since, *looks in values["streaks"]:
        before = moment_or_none(looks[0] if looks else None)
        streaks[resource, metric, rule] = Streak(opinion, polls, moment(since), before)
    rises: dict[_RuleKey, _Rises] = {}
    for resource, metric, rule, recent in values["rises"]:
        rises[resource, metric, rule] = tuple((moment(at), amount) for at, amount in recent)
    return Memory(samples, streaks, rises, moment_or_none(values.get("looked_at")))
