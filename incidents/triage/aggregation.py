"""What many faults together show and no single one says: a switch, a rack, a file system, a job.
Writes nothing itself.

Called inside ingest's transaction, so that a cause is concluded before anything is started for its
effects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.faults import ClearRule, EventKind, FaultEvent, fingerprint
from detectors.provenance import BELIEVED
from incidents.correlation import symptom_counts
from incidents.correlation.aggregation_rules import AggregationRule, Counts
from incidents.correlation.conclusions import CONCLUDED_BY, make_conclusion
from incidents.correlation.pause_frames import SOURCE
from incidents.correlation.relations import Surroundings
from incidents.correlation.symptom_counts import Symptom, SymptomCount
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.jobs import jobs
from incidents.models import Fault
from incidents.state import active_symptoms, site_rules
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase
from incidents.state.holds import Suspicion, hold_repairs
from incidents.text.wording import format_duration
from incidents.triage import job_intervals, pause_storms
from incidents.triage.normalisation import Item
from incidents.vocabulary.relations import Relation

# Our choice: a job's errors come within seconds of each other, and Slurm lists a job for minutes
# after its end.
AROUND_JOBS = timedelta(minutes=2)
_SHOWN = 3
# Our choice: beside one transaction so many others at most bring symptoms of one place at the same
# moment, and less than half of what is needed is on its way at any time.
_OTHERS = 3
_ENOUGH_SEEN = 0.5
_DUE = Prepared(
    lambda: Fault.objects.filter(is_active=True).filter(
        Q(fault_type__among=Given("concluded"), clears=str(ClearRule.BY_POLL))
        | Q(held_until__lte=Given("now"), fault_type__among=Given("patient"))
    )
)
_ACTIVE = Prepared(
    lambda: Fault.objects.filter(fingerprint=Given("fingerprint"), is_active=True).values_list(
        "forger"
    )
)


@dataclass(frozen=True)
class Conclusions:
    """What a batch's faults add up to: events of causes that no single fault tells, and the places
    that are suspected, behind which repairs wait."""

    events: Sequence[FaultEvent] = ()
    suspicions: Sequence[Suspicion] = ()
    surroundings: Surroundings | None = None
    """Of the faults that were counted; None: no rule was evaluated."""


@dataclass
class Aggregation:
    """The faults that a batch brought or saw again, and what was concluded from them so far."""

    batch: TriageBatch
    came: Sequence[FaultCase]
    again: Sequence[FaultCase]
    """What was active already and was seen again."""
    surroundings: Surroundings
    explained: set[str] = field(default_factory=set)
    """Fingerprints of what a wider place explains already."""
    events: list[FaultEvent] = field(default_factory=list)
    suspicions: list[Suspicion] = field(default_factory=list)

    def evaluate(self, rule: AggregationRule) -> None:
        """Concludes what the rule's symptoms add up to at each place where one came, and suspects
        the places behind which a repair would begin."""
        symptoms_here = self._get_unexplained(rule)
        shown_at = self._get_places(rule, symptoms_here)
        repaired_behind = self._get_places_of_repairs(rule)
        places = shown_at | repaired_behind
        if not places:
            return
        until = self._get_end_of_window(rule, symptoms_here, is_repaired=bool(repaired_behind))
        loaded = self._load_symptoms(rule, places, until)
        around = self.surroundings
        symptoms = symptom_counts.group_by_place(rule, loaded, around)
        failures = symptom_counts.group_failures(rule, loaded, around)
        counts = [
            symptom_counts.count_symptoms(rule, place, symptoms, until, around, failures)
            for place in sorted(places)
        ]
        self._require_all_symptoms(rule, counts, symptoms_here)
        conclusive = [count for count in counts if count.is_conclusive and count.place in shown_at]
        for count in symptom_counts.resolve_ties(conclusive):
            self._conclude(count, symptoms)
        self.suspicions += [self._make_suspicion(count) for count in counts if count.holds]

    def _require_all_symptoms(
        self, rule: AggregationRule, counts: Sequence[SymptomCount], cases: Sequence[FaultCase]
    ) -> None:
        """A place that several pods share may have symptoms in transactions that have not ended.
        Each sees its own: where all together may be enough, they are counted one by one. Of those
        that come at the same moment, the one that brings most need not see the others for that."""
        brought = Counter(place for case in cases for place in self._get_places(rule, [case]))
        for count in counts:
            seen, needed = len(count.counted), rule.compute_needed(count.of)
            if not brought[count.place]:
                continue
            if seen >= needed * _ENOUGH_SEEN or seen + _OTHERS * brought[count.place] >= needed:
                self.batch.require_lock([resources.owner(count.place)])

    def _get_unexplained(self, rule: AggregationRule) -> list[FaultCase]:
        """What the batch brought of the rule's symptoms; where sightings count, what it saw again
        too."""
        cases = [*self.came, *self.again] if rule.counts is Counts.JOBS else self.came
        return [
            case
            for case in cases
            if rule.takes(case.row.fault_type) and case.row.fingerprint not in self.explained
        ]

    def _get_places(self, rule: AggregationRule, cases: Sequence[FaultCase]) -> set[str]:
        places: set[str] = set()
        for case in cases:
            places |= symptom_counts.get_places(rule, case.view(), self.surroundings)
        return places

    def _get_places_of_repairs(self, rule: AggregationRule) -> set[str]:
        places: set[str] = set()
        if rule.hold_at:
            for case in _get_repairs(self.came):
                places |= symptom_counts.get_places_of_machine(
                    rule, case.row.owner, self.surroundings
                )
        return places

    def _get_end_of_window(
        self, rule: AggregationRule, cases: Sequence[FaultCase], *, is_repaired: bool
    ) -> datetime:
        """The rule's window ends with the newest symptom; now, where a repair is about to begin or
        sightings count."""
        now = self.batch.now
        newest_at = max((active_symptoms.get_came_at(case.row) for case in cases), default=now)
        if is_repaired or rule.counts is Counts.JOBS:
            newest_at = max(newest_at, now)
        return newest_at + active_symptoms.SPREAD if rule.outlasted else newest_at

    def _load_symptoms(
        self, rule: AggregationRule, places: Collection[str], until: datetime
    ) -> list[Symptom]:
        since = until - rule.window
        symptoms = active_symptoms.read(
            rule, places, self.surroundings, since=since, batch=self.batch
        )
        if rule.counts is Counts.JOBS:
            seen_again = {case.row.fingerprint: case.row.last_seen_at for case in self.again}
            symptoms = job_intervals.split_by_time(rule, symptoms, seen_again, since=since)
        return symptoms

    def _conclude(self, count: SymptomCount, symptoms: Mapping[str, Sequence[Symptom]]) -> None:
        self.explained |= {symptom.fingerprint for symptom in symptoms[count.place]}
        rule = count.rule
        is_believed = count.believed >= rule.compute_needed(count.of)
        identity = fingerprint(count.place, rule.concludes)
        if self._stands(identity, is_better_known=is_believed):
            return
        evidence = _format_evidence(count, self.batch)
        event = make_conclusion(
            EventKind.RAISED,
            rule.concludes,
            count.place,
            text=evidence,
            now=self.batch.now,
            is_believed=is_believed,
        )
        event.attributes[CONCLUDED_BY] = rule.name
        self.events.append(event)

    def _stands(self, identity: str, *, is_better_known: bool) -> bool:
        """Whether the fault is active already, or was concluded in this batch. One that texts alone
        have concluded is concluded again where measurements are enough for it: what was measured
        joins no cause that a text may have made up."""
        case = self.batch.faults.get(identity)
        if case is not None and case.row.is_active:
            return case.is_believed or not is_better_known
        forgers = [forger for (forger,) in _ACTIVE.rows(fingerprint=identity)]
        if is_better_known:
            return any(forger in BELIEVED for forger in forgers)
        return bool(forgers)

    def _make_suspicion(self, count: SymptomCount) -> Suspicion:
        rule = count.rule
        place = self.batch.format_resource(count.place)
        shown = f"{len(count.counted)} of {count.of} behind {place}"
        reason = (
            f"{shown} show the same kind of fault within {format_duration(rule.window)}: {place}"
            " itself"
            " may be the cause."
        )
        machines = symptom_counts.get_machines_behind(count.place, self.surroundings)
        is_believed = count.believed >= rule.hold_at
        return Suspicion(
            machines=machines,
            until=self.batch.now + rule.hold,
            reason=reason,
            rule=rule.name,
            holds_hardware=rule.holds_hardware,
            is_believed=is_believed,
        )


def aggregate(batch: TriageBatch, items: Sequence[Item]) -> Conclusions:
    """What this batch's faults, with those that are active already, add up to."""
    raised = {item.fingerprint for item in items if item.event.event is EventKind.RAISED}
    cases = [batch.faults[identity] for identity in sorted(raised) if identity in batch.faults]
    active = [case for case in cases if case.row.is_active]
    came = [case for case in active if case.is_new or case.has_come]
    again = [case for case in active if case.is_seen_anew and case not in came]
    pausing_cards = pause_storms.conclude(batch, came)
    rules = _get_rules(came, again)
    if not rules:
        return Conclusions(pausing_cards)
    surroundings = load_surroundings(rules, came, batch)
    aggregation = Aggregation(batch, came, again, surroundings)
    for rule in rules:
        aggregation.evaluate(rule)
    events = [*pausing_cards, *aggregation.events]
    return Conclusions(events, aggregation.suspicions, surroundings)


def aggregate_conclusions(batch: TriageBatch, drawn: Conclusions) -> Conclusions:
    """What the conclusions of this batch add up to themselves: leafs to their pod, nodes to their
    rack. No conclusion is drawn twice, so this comes to an end."""
    identities = {fingerprint(event.resource, event.fault_type) for event in drawn.events}
    cases = [batch.faults[identity] for identity in sorted(identities) if identity in batch.faults]
    came = [case for case in cases if case.row.is_active and (case.is_new or case.has_come)]
    rules = _get_rules(came, ())
    if not rules:
        return Conclusions()
    surroundings = drawn.surroundings
    if surroundings is None or _asks_for_jobs(rules):
        surroundings = load_surroundings(rules, came, batch)
    aggregation = Aggregation(batch, came, (), surroundings)
    for rule in rules:
        aggregation.evaluate(rule)
    return Conclusions(aggregation.events, aggregation.suspicions, surroundings)


def _asks_for_jobs(rules: Iterable[AggregationRule]) -> bool:
    return any(rule.relation is Relation.SAME_JOB for rule in rules)


def load_surroundings(
    rules: Iterable[AggregationRule], came: Sequence[FaultCase], batch: TriageBatch
) -> Surroundings:
    """The site as wired, as the batch has it; the jobs too where a rule asks for them."""
    graph = batch.index.surroundings.graph
    if not _asks_for_jobs(rules):
        return Surroundings(graph)
    owners = {case.row.owner for case in came}
    _, machines_of = jobs.get_running_on(owners, at=batch.now, around=AROUND_JOBS)
    jobs_on: dict[str, set[str]] = defaultdict(set)
    for job, machines in machines_of.items():
        for machine in machines:
            jobs_on[machine].add(job)
    frozen = {machine: frozenset(ran) for machine, ran in jobs_on.items()}
    return Surroundings(graph, jobs=frozen, machines=machines_of)


def _get_rules(came: Sequence[FaultCase], again: Sequence[FaultCase]) -> list[AggregationRule]:
    """Those for which the batch brings a symptom, a repair to hold, or a sighting that counts; in
    order."""
    types = {case.row.fault_type for case in came}
    seen_again = {case.row.fault_type for case in again} & site_rules.get_types_counted_by_job()
    is_repair_near = bool(_get_repairs(came))
    chosen = []
    for rule in site_rules.load_counting_rules():
        is_sighted = rule.counts is Counts.JOBS and seen_again & rule.types
        if types & rule.types or is_sighted or (is_repair_near and rule.hold_at):
            chosen.append(rule)
    return chosen


def _get_repairs(came: Sequence[FaultCase]) -> list[FaultCase]:
    """Faults for which a node may be taken out now."""
    return [case for case in came if case.member is not None and case.view().calls_for_repair]


def _format_evidence(count: SymptomCount, batch: TriageBatch) -> str:
    """What was seen, for people."""
    symptoms = list(count.counted.values())
    shown = [batch.format_resource(symptom.fault.resource) for symptom in symptoms[:_SHOWN]]
    more = f" and {len(symptoms) - _SHOWN} more" if len(symptoms) > _SHOWN else ""
    total = f" of {count.of}" if count.of else ""
    seen = f"{len(symptoms)}{total} ({', '.join(shown)}{more})"
    text = f"{seen} within {format_duration(count.rule.window)}: {count.rule.because}."
    if not count.tied:
        return text
    tied = ", ".join(batch.format_resource(place) for place in count.tied)
    return f"{text} Not told apart from {tied}."


# Ends
# ---------------------------------------------------------------------------


def find_ended(now: datetime) -> list[FaultEvent]:
    """The ends of what was concluded before, and what shows only once hold-downs are over, for the
    sweep. One query while nothing is concluded and no hold-down ends."""
    rules = site_rules.load_counting_rules()
    concluded_types = {rule.concludes for rule in rules}
    outlasting: set[str] = set()
    for rule in rules:
        if rule.outlasted:
            outlasting |= rule.types
    rows: list[Fault] = _DUE.objects(
        concluded=[*concluded_types, SOURCE], patient=outlasting, now=now
    )
    if not rows:
        return []
    batch = TriageBatch(fault_catalog.load(), now)
    ended = []
    for row in rows:
        if row.fault_type in concluded_types and not _is_still_shown(row, rules, batch):
            ended.append(_make_end(row, batch))
    outlasted = [row for row in rows if row.held_until is not None and row.fault_type in outlasting]
    stilled = pause_storms.find_ended([row for row in rows if row.fault_type == SOURCE], now)
    return [*ended, *stilled, *_aggregate_outlasted(batch, outlasted)]


def _is_still_shown(row: Fault, rules: Sequence[AggregationRule], batch: TriageBatch) -> bool:
    """Half of what made it active keeps it so, or what else the rule says."""
    surroundings = Surroundings(graphs.get_current())
    for rule in rules:
        if rule.concludes != row.fault_type:
            continue
        if not symptom_counts.is_at(rule, row.resource, surroundings):
            continue
        symptoms = active_symptoms.read_standing(rule, row.resource, surroundings, batch=batch)
        left = symptom_counts.count_affected(rule, row.resource, symptoms, surroundings)
        total = symptom_counts.count_expected(rule, row.resource, surroundings)
        fewest = rule.compute_needed(total) * rule.clears_below
        if left >= max(1.0, fewest):
            return True
    return False


def _make_end(row: Fault, batch: TriageBatch) -> FaultEvent:
    text = f"most of what hangs on {batch.format_resource(row.resource)} is well again"
    return make_conclusion(
        EventKind.CLEARED, row.fault_type, row.resource, text=text, now=batch.now
    )


def _aggregate_outlasted(batch: TriageBatch, rows: Sequence[Fault]) -> list[FaultEvent]:
    """Faults whose hold-down is about to end count before they get a place of their own."""
    if not rows:
        return []
    came = [batch.build_case(row) for row in rows]
    aggregation = Aggregation(batch, came, (), Surroundings(graphs.get_current()))
    for rule in site_rules.load_counting_rules():
        if rule.outlasted:
            aggregation.evaluate(rule)
    hold_repairs(batch, aggregation.suspicions)
    return aggregation.events
