"""Where nothing moves for a critical fault a person is asked, with the reason.

The sweep evaluates it anew from what stands now: it asks once per incident and reason, and takes
back what it asked when something moves again. What people have taken, silenced or are working on is
theirs: nobody is asked for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.db.models.functions import Coalesce

from detectors.faults import Severity
from incidents.db.prepared import Given, Prepared
from incidents.faults import flapping
from incidents.models import Fault, Incident, IncidentFault, TimelineEntry
from incidents.state import transitions
from incidents.text.wording import format_clock, format_duration
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import start
from runbooks.fleet import breaker, fleet
from runbooks.fleet.fleet import ModeTable
from runbooks.guards.verdicts import Refusal
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import UNFINISHED, Mode, Run, RunState, StepRun
from runbooks.people import progress
from runbooks.plan.choose import Chosen

# Our choice: as long as a repair is held at most (incidents.state.holds.LONGEST). What passes by
# itself has passed by then.
ASKS_AFTER = timedelta(minutes=10)
ASKED, ASKED_IN_THREAD, OVER = "standstill", "standstill_in_thread", "standstill_over"
_WITH_KINTSUGI = (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)
_CLOSED = [state.value for state in CLOSED]
# People work on the node, or take it away: they know.
_WITH_PEOPLE = (Refusal.MAINTENANCE, Refusal.DECOMMISSIONED)
_BY_HAND = "or look after {place} by hand."
_DRAIN = "drain {place} by hand if it cannot wait, or bring other nodes back."
# The reason in a few words, and what a person can do. Without numbers: what is asked stays the same
# while it stands.
_ASKS: Mapping[Refusal, str] = {
    Refusal.STOPPED: f"The stop switch is engaged: release it, {_BY_HAND}",
    Refusal.MODE: f"Its runbook may not act: let it go further, {_BY_HAND}",
    Refusal.BREAKER: f"The breaker is open: close it once its cause is known, {_BY_HAND}",
    Refusal.HELD: f"A wider cause is suspected: see whether it is the cause, {_BY_HAND}",
    Refusal.WIDER_CAUSE: (
        f"A wider incident holds it up: resolve that if it is not the cause, {_BY_HAND}"
    ),
    Refusal.UNREACHABLE_ALONE: (
        "Nothing but silence speaks against {place}: see whether it is well."
    ),
    Refusal.RATE: f"Too many nodes were taken out for this fault within the hour: {_DRAIN}",
    Refusal.CAP: f"As many nodes of its partition are out as may be: {_DRAIN}",
    Refusal.POD_FLOOR: f"As many nodes of its pod are out as may be: {_DRAIN}",
    Refusal.JOB_FLOOR: f"A job needs the nodes that are left: {_DRAIN}",
    Refusal.REBOOTED_LATELY: (
        "{place} was restarted within 24 h and is drained: restart it by hand if that is right so"
        " soon, or call the vendor."
    ),
}
_IN_TROUBLE = f"See what keeps Kintsugi from acting on {{place}}, {_BY_HAND}"
_CLOSE_BREAKER = (
    "Find out why so many nodes turned bad at once, then close the breaker: the page of the stop"
    " switch, or kintsugi breaker close --reason WHY."
)


@dataclass(frozen=True)
class Standstill:
    """`reason` says why nothing moves, `ask` what a person can do. `is_loud`: asked in the channel
    too."""

    since: datetime
    reason: str
    ask: str
    is_loud: bool = True


@dataclass(frozen=True)
class Moves:
    """Nobody is asked; `why` ends the sentence "What was asked is taken back: ..."."""

    why: str


_OF = Coalesce("incident__duplicate_of_id", "incident_id")


def get_critical_incidents(since: datetime) -> set[int]:
    """Incidents with a critical fault that has been active since then, or with the breaker's."""
    return set(_CRITICAL.values(since=since))


def _get_asking_incidents() -> set[int]:
    """Open incidents that ask a person, and have done so by us."""
    return set(_ASKING.values())


def _build_critical() -> QuerySet[IncidentFault, Any]:
    has_lasted = Q(fault__severity=Severity.CRITICAL.value, fault__observed_at__lte=Given("since"))
    members = IncidentFault.objects.filter(fault__is_active=True).filter(
        has_lasted | Q(fault__fault_type=breaker.FAULT_TYPE)
    )
    return members.annotate(holder=_OF).order_by().values_list("holder").distinct()


def _build_asking() -> QuerySet[Incident, Any]:
    asked_by_us = TimelineEntry.objects.filter(
        incident=OuterRef("pk"), kind__in=(ASKED, ASKED_IN_THREAD)
    )
    open_incidents = Incident.objects.open().exclude(needs_human="")
    return open_incidents.filter(Exists(asked_by_us)).values_list("pk")


_CRITICAL = Prepared(_build_critical)
_ASKING = Prepared(_build_asking)


def sweep_standstills(now: datetime) -> None:
    """Asks for what stands still, and takes back what was asked for what moves. Mostly two
    queries."""
    critical = get_critical_incidents(now - ASKS_AFTER)
    ids = critical | _get_asking_incidents()
    if not ids:
        return
    situation = _Situation.load(ids, now)
    for incident in situation.incidents:
        if incident.needs_human and not situation.has_asked(incident):
            continue  # a run, a window or a person asks for something else
        found: Standstill | Moves = Moves("no critical fault stands any more")
        if incident.pk in critical:
            found = situation.evaluate(incident)
        if isinstance(found, Standstill):
            _ask_person(incident, found, now)
        elif incident.needs_human:
            text = f"What was asked is taken back: {found.why}."
            transitions.take_back(incident.pk, incident.needs_human, kind=OVER, text=text, now=now)


def _ask_person(incident: Incident, found: Standstill, now: datetime) -> None:
    if incident.needs_human == found.ask:
        return
    since = f"since {format_clock(found.since)} ({format_duration(now - found.since)})"
    text = f"Nothing has moved {since}: {found.reason.rstrip('.')}. {found.ask}"
    kind = ASKED if found.is_loud else ASKED_IN_THREAD
    transitions.ask(
        incident.pk, found.ask, kind=kind, text=text, now=now, instead_of=incident.needs_human
    )


@dataclass(frozen=True)
class _Situation:
    """What stands now of these incidents."""

    now: datetime
    incidents: Sequence[Incident]
    active_since: Mapping[int, datetime]
    asked_texts: Mapping[int, Sequence[str]]
    modes: ModeTable
    with_people: frozenset[str]

    @classmethod
    def load(cls, ids: Iterable[int], now: datetime) -> _Situation:
        rows = Incident.objects.open().filter(pk__in=ids).select_related("node", "root_fault")
        texts: dict[int, list[str]] = defaultdict(list)
        entries = TimelineEntry.objects.filter(incident__in=ids, kind__in=(ASKED, ASKED_IN_THREAD))
        for incident_id, text in entries.values_list("incident_id", "text"):
            texts[incident_id].append(text)
        with_people = frozenset(start.get_closed_nodes(now))
        modes = fleet.load_modes(library.load(), now)
        return cls(
            now=now,
            incidents=list(rows.order_by("pk")),
            active_since=_get_active_since(ids),
            asked_texts=texts,
            modes=modes,
            with_people=with_people,
        )

    def has_asked(self, incident: Incident) -> bool:
        """Whether what a person is asked now was asked here."""
        texts = self.asked_texts.get(incident.pk, ())
        return any(text.endswith(incident.needs_human) for text in texts)

    def evaluate(self, incident: Incident) -> Standstill | Moves:
        if incident.state not in _WITH_KINTSUGI:
            return Moves("it waits for the vendor, or for its quiet period")
        if incident.silence_id is not None:
            return Moves("a window keeps it from people")
        if incident.node is not None and incident.node.name in self.with_people:
            return Moves("people have the node")
        steps = Prefetch("steps", StepRun.objects.order_by("pk"))
        runs = list(progress.get_runs_about(incident).prefetch_related(steps))
        under_way = next((run for run in runs if run.state in UNFINISHED), None)
        if under_way is not None:
            return self._evaluate_run(incident, under_way)
        if incident.state != State.OPEN:
            return Moves("a person has it")
        return self._evaluate_without_run(incident, next(iter(runs), None))

    def _evaluate_run(self, incident: Incident, run: Run) -> Standstill | Moves:
        refused, place = run.facts.get(lease.REFUSED), run.place
        is_stuck = run.state == RunState.RUNNING and (refused or run.facts.get("noted"))
        since = max(_get_moved_at(run), self._get_since(incident))
        if not is_stuck or refused in _WITH_PEOPLE or self.now < since + ASKS_AFTER:
            return Moves(f"run {run.pk} goes on, or a person has it")
        ask = _ASKS.get(refused, _IN_TROUBLE)
        reason = run.waiting_for
        if run.incident_id != incident.pk:
            reason = f"Run {run.pk} for incident #{run.incident_id} goes first. {reason}"
        # The breaker has an incident of its own, which asks in the channel for all that it holds.
        is_loud = refused != Refusal.BREAKER
        return Standstill(since, reason, ask.format(place=place), is_loud=is_loud)

    def _evaluate_without_run(self, incident: Incident, last: Run | None) -> Standstill | Moves:
        since = self._get_since(incident)
        if last is not None and last.finished_at is not None:
            since = max(since, last.finished_at)
        if incident.fault_type == breaker.FAULT_TYPE:
            return Standstill(
                since, "the breaker is open, and a person alone closes it", _CLOSE_BREAKER
            )
        if self.now < since + ASKS_AFTER:
            return Moves("something has just happened")
        if incident.held_until is not None and incident.held_until > self.now:
            ask = _ASKS[Refusal.HELD].format(place=_get_place(incident))
            return Standstill(since, incident.held_reason, ask)
        if last is not None and last.state == RunState.SHADOWED:
            return self._evaluate_shadow(incident, last, since)
        if last is not None and start.is_over(incident):
            return Moves("a person ended its run, or was asked by it")
        return self._evaluate_choice(incident, since)

    def _evaluate_shadow(self, incident: Incident, run: Run, since: datetime) -> Standstill | Moves:
        """While nothing may act, people rely on nothing: what would be done is told, and nobody is
        asked for that."""
        if not self.modes.may_act:
            return Moves("nothing at this site may act")
        reason = (
            f"{progress.get_title(run)} is in shadow: it was written down, and nothing was done"
        )
        return Standstill(since, reason, _ASKS[Refusal.MODE].format(place=_get_place(incident)))

    def _evaluate_choice(self, incident: Incident, since: datetime) -> Standstill | Moves:
        """Where nothing may act: as if everything might, so that shadow shows what a person would
        be asked."""
        modes = dict.fromkeys(self.modes.own, str(Mode.ARMED))
        if self.modes.may_act:
            modes = start.get_modes(self.modes, incident.node)
        chosen = start.choose_runbook(
            incident, start.find_cause(incident), modes=modes, now=self.now
        )
        if isinstance(chosen, Chosen):
            return Moves(f"{chosen.book.title} is due")
        place = _get_place(incident)
        if incident.node is not None and incident.node.is_provisional:
            ask = (
                f"{place} is not in the inventory, and nothing is done to it: add it, or look after"
                " it by hand."
            )
            return Standstill(since, chosen.reason, ask)
        return Standstill(since, chosen.reason, f"Look after {place} by hand: {chosen.reason}.")

    def _get_since(self, incident: Incident) -> datetime:
        """Since when a critical fault of it stands; of the breaker's own incident, since it
        opened."""
        return max(incident.opened_at, self.active_since.get(incident.pk, incident.opened_at))


def _get_active_since(ids: Iterable[int]) -> dict[int, datetime]:
    """By incident: since when the critical fault stands that has stood longest. One that came back
    counts from then."""
    since: dict[int, datetime] = {}
    links = IncidentFault.objects.filter(
        fault__is_active=True, fault__severity=Severity.CRITICAL.value
    )
    for link in links.annotate(of=_OF).filter(of__in=ids).select_related("fault"):
        at = _get_came_at(link.fault)
        since[link.of] = min(at, since.get(link.of, at))
    return since


def _get_came_at(fault: Fault) -> datetime:
    changes = flapping.read(fault.changes_at) if fault.returns else []
    return max(fault.observed_at, *changes) if changes else fault.observed_at


def _get_moved_at(run: Run) -> datetime:
    """When it last began or ended a step. A refusal moves nothing."""
    steps = [step for step in run.steps.all() if step.outcome != StepRun.Outcome.REFUSED]
    return max([run.started_at, *(step.finished_at or step.started_at for step in steps)])


def _get_place(incident: Incident) -> str:
    return incident.owner.rpartition("/")[2]
