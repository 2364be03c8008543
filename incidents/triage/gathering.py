"""What many faults together show and no single one says: a switch, a rack, a file system, a job.
Writes nothing itself.

Called inside ingest's transaction, so that a cause is concluded before anything is started for its
effects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from detectors.catalog import catalog as fault_catalog
from detectors.faults import ClearRule, EventKind, FaultEvent, fingerprint
from incidents.correlation import tallies
from incidents.correlation.conclusions import make_conclusion as conclusion
from incidents.correlation.gather_rules import Counts, GatherRule
from incidents.correlation.pause_frames import SOURCE
from incidents.correlation.relations import Surroundings
from incidents.correlation.tallies import Effect, Tally
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.jobs import jobs
from incidents.models import Decision, Fault
from incidents.state import active_symptoms, holds, site_rules
from incidents.state.board import Board
from incidents.state.cases import FaultCase
from incidents.text.wording import duration
from incidents.triage import spells, storms
from incidents.triage.items import Item
from incidents.vocabulary.relations import Relation

# Our choice: a job's errors come within seconds of each other, and Slurm lists a job for minutes
# after its end.
AROUND_JOBS = timedelta(minutes=2)
_SHOWN = 3
_RULE = "rule"
_DUE = Prepared(
    lambda: Fault.objects.filter(is_active=True).filter(
        Q(fault_type__among=Given("concluded"), clears=str(ClearRule.BY_POLL))
        | Q(held_until__lte=Given("now"), fault_type__among=Given("patient"))
    )
)
_STANDS = Prepared(
    lambda: Fault.objects.filter(fingerprint=Given("mark"), is_active=True).values_list("pk")
)


@dataclass
class Gathering:
    """One look at what came: the effects of each rule, and what was concluded from them so far."""

    board: Board
    came: Sequence[FaultCase]
    again: Sequence[FaultCase]
    """What stood already and was seen again."""
    around: Surroundings
    explained: set[str] = field(default_factory=set)
    """Fingerprints of what a wider place explains already."""
    events: list[FaultEvent] = field(default_factory=list)

    def evaluate(self, rule: GatherRule) -> None:
        """Concludes what this rule's effects add up to, and holds repairs behind what is
        suspected."""
        of_times = rule.counts is Counts.JOBS
        came = [*self.came, *self.again] if of_times else self.came
        mine = [case for case in came if rule.takes(case.row.fault_type)]
        fresh = [case for case in mine if case.row.fingerprint not in self.explained]
        repairs = _repairs(self.came) if rule.hold_at else []
        places = {
            place for case in fresh for place in tallies.places_of(rule, case.view(), self.around)
        }
        behind = {
            p
            for case in repairs
            for p in tallies.places_of_machine(rule, case.row.owner, self.around)
        }
        if not places | behind:
            return
        newest = max((active_symptoms.came_at(case.row) for case in fresh), default=self.board.now)
        newest = max(newest, self.board.now) if behind or of_times else newest
        newest += active_symptoms.SPREAD if rule.outlasted else timedelta(0)
        effects = self._effects(rule, places | behind, newest)
        found = [
            tallies.tally(rule, place, effects, newest, self.around)
            for place in sorted(places | behind)
        ]
        for one in tallies.untied(
            [one for one in found if one.is_conclusive and one.place in places]
        ):
            self._conclude(one, effects)
        for one in found:
            if one.holds:
                self._hold(one)

    def _effects(
        self, rule: GatherRule, places: Collection[str], newest: datetime
    ) -> dict[str, list[Effect]]:
        since = newest - rule.window
        effects = active_symptoms.read(rule, places, self.around, since=since, board=self.board)
        if rule.counts is Counts.JOBS:
            again = {case.row.fingerprint: case.row.last_seen_at for case in self.again}
            effects = spells.split_by_time(rule, effects, again, since=since)
        return tallies.by_place(rule, effects, self.around)

    def _conclude(self, one: Tally, effects: Mapping[str, Sequence[Effect]]) -> None:
        self.explained |= {effect.mark for effect in effects[one.place]}
        mark = fingerprint(one.place, one.rule.concludes)
        if _STANDS.rows(mark=mark):
            return
        event = conclusion(
            EventKind.RAISED,
            one.rule.concludes,
            one.place,
            text=_said(one, self.board),
            now=self.board.now,
        )
        event.attributes[_RULE] = one.rule.name
        self.events.append(event)

    def _hold(self, one: Tally) -> None:
        rule, board = one.rule, self.board
        where = board.format_resource(one.place)
        reason = (
            f"{len(one.counted)} of {one.of} behind {where} show the same kind of fault within"
            f" {duration(rule.window)}: {where} itself may be the cause."
        )
        machines = tallies.machines_behind(one.place, self.around)
        until = board.now + rule.hold
        holds.hold(
            board,
            machines,
            until=until,
            reason=reason,
            rule=rule.name,
            holds_hardware=rule.holds_hardware,
        )


def conclude(board: Board, items: Sequence[Item]) -> list[FaultEvent]:
    """What this batch's faults, with those that stand already, add up to; also holds repairs behind
    a suspect."""
    marks = {item.fingerprint for item in items if item.event.event is EventKind.RAISED}
    cases = [board.faults[mark] for mark in sorted(marks) if mark in board.faults]
    came = [case for case in cases if case.row.is_active and (case.is_new or case.has_come)]
    again = [
        case for case in cases if case.row.is_active and case.is_seen_anew and case not in came
    ]
    rules = _asked(came, again)
    storms_found = storms.conclude(board, came)
    if not rules:
        return storms_found
    gathering = Gathering(board, came, again, surroundings(rules, came, board.now))
    for rule in rules:
        gathering.evaluate(rule)
    return [*storms_found, *gathering.events]


def record(board: Board, items: Sequence[Item]) -> None:
    """Why each of these conclusions was drawn, beside the fault that it became."""
    for item in items:
        case = board.faults.get(item.fingerprint)
        rule = item.event.attributes.get(_RULE)
        if case is not None and rule is not None:
            board.decisions.append(
                Decision(
                    fault=case.row,
                    incident=case.member.row if case.member is not None else None,
                    kind=Decision.Kind.CONCLUDED,
                    rule=rule,
                    text=item.event.excerpt[:500],
                    recorded_at=board.now,
                )
            )


def surroundings(
    rules: Iterable[GatherRule], came: Sequence[FaultCase], now: datetime
) -> Surroundings:
    """The site as wired; the jobs too where a rule asks for them."""
    graph = graphs.current()
    if not any(rule.relation is Relation.SAME_JOB for rule in rules):
        return Surroundings(graph)
    _, of = jobs.running_on({case.row.owner for case in came}, at=now, around=AROUND_JOBS)
    on: dict[str, set[str]] = defaultdict(set)
    for job, machines in of.items():
        for machine in machines:
            on[machine].add(job)
    return Surroundings(
        graph, jobs={machine: frozenset(ran) for machine, ran in on.items()}, machines=of
    )


def _asked(came: Sequence[FaultCase], again: Sequence[FaultCase]) -> list[GatherRule]:
    """The rules that have anything to look at, in order."""
    types = {case.row.fault_type for case in came}
    waits = bool(_repairs(came))
    rules = site_rules.counting()
    seen_anew = {case.row.fault_type for case in again} & site_rules.counted_by_job()
    asked = [rule for rule in rules if types & rule.types or (waits and rule.hold_at)]
    return [
        rule
        for rule in rules
        if rule in asked or (rule.counts is Counts.JOBS and seen_anew & rule.types)
    ]


def _repairs(came: Sequence[FaultCase]) -> list[FaultCase]:
    """Faults for which a node may be taken out now."""
    return [case for case in came if case.member is not None and case.view().calls_for_repair]


def _said(one: Tally, board: Board) -> str:
    """What was seen, for people."""
    first = list(one.counted.values())
    named = ", ".join(board.format_resource(effect.fault.resource) for effect in first[:_SHOWN])
    more = f" and {len(first) - _SHOWN} more" if len(first) > _SHOWN else ""
    of = f" of {one.of}" if one.of else ""
    tied = (
        f" Not told apart from {', '.join(board.format_resource(place) for place in one.tied)}."
        if one.tied
        else ""
    )
    return (
        f"{len(first)}{of} ({named}{more}) within {duration(one.rule.window)}:"
        f" {one.rule.because}.{tied}"
    )


# Ends
# ---------------------------------------------------------------------------


def ended(now: datetime) -> list[FaultEvent]:
    """The ends of what was concluded before, and what shows only once hold-downs are over, for the
    sweep. One query while nothing stands and no hold-down ends."""
    rules = site_rules.counting()
    concluding = {rule.concludes: rule for rule in rules}
    patient = {fault_type for rule in rules if rule.outlasted for fault_type in rule.types}
    rows: list[Fault] = _DUE.objects(concluded=[*concluding, SOURCE], patient=patient, now=now)
    if not rows:
        return []
    board = Board(fault_catalog.load(), now)
    events = [_ended(row, rules, board) for row in rows if row.fault_type in concluding]
    outlasted = [row for row in rows if row.held_until is not None and row.fault_type in patient]
    stilled = storms.ended([row for row in rows if row.fault_type == SOURCE], now)
    return [*(event for event in events if event is not None), *stilled, *_ripe(board, outlasted)]


def _ended(row: Fault, rules: Sequence[GatherRule], board: Board) -> FaultEvent | None:
    """Half of what made it standing keeps it so, or what else the rule says."""
    around = Surroundings(graphs.current())
    for rule in rules:
        if rule.concludes == row.fault_type and tallies.is_at(rule, row.resource, around):
            left = tallies.count_affected(
                rule,
                row.resource,
                active_symptoms.read_standing(rule, row.resource, around, board=board),
                around,
            )
            least = rule.needed(tallies.size(rule, row.resource, around)) * rule.clears_below
            if left >= max(1.0, least):
                return None
    text = f"most of what hangs on {board.format_resource(row.resource)} is well again"
    return conclusion(EventKind.CLEARED, row.fault_type, row.resource, text=text, now=board.now)


def _ripe(board: Board, rows: Sequence[Fault]) -> list[FaultEvent]:
    """Faults whose hold-down is about to end count before they get a place of their own."""
    rules = [rule for rule in site_rules.counting() if rule.outlasted]
    came = [board.case(row) for row in rows]
    gathering = Gathering(board, came, (), Surroundings(graphs.current()))
    for rule in rules if came else ():
        gathering.evaluate(rule)
    return gathering.events
