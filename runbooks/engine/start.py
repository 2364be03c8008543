"""Runs for the incidents that call for one. Touches no node: the run's first step does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from detectors.catalog import catalog
from detectors.faults import Action, Component, Fitness, Severity
from detectors.provenance import BELIEVED
from incidents.db.prepared import Given, Prepared
from incidents.maintenance import active_windows
from incidents.models import Fault, Incident, Node
from incidents.reserve import decommissions, lemons
from incidents.state import transitions
from incidents.vocabulary.lifecycle import OPEN, State
from runbooks.engine import outcome_history
from runbooks.fleet import believed_severity, fleet
from runbooks.fleet.fleet import ModeTable
from runbooks.lease import withdrawal_reasons
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED
from runbooks.library import library
from runbooks.models import UNFINISHED, Mode, Run, RunState
from runbooks.node.idle_moment import WAITS_SINCE, WANTED_NOW
from runbooks.plan.choose import Chosen, FaultPlace, NoRunbook, Past, choose
from runbooks.plan.runbook import Runbook, Trouble
from runbooks.step import FollowingIncident, World

_WAITS_FOR_RUN = (State.OPEN, State.ACKNOWLEDGED)
# After these a run comes again only by a person: it ended in asking one, or a person ended it.
_FINAL = (RunState.FAILED, RunState.ABORTED, RunState.SHADOWED)
_ACTING = (Mode.APPROVAL, Mode.ARMED)
_AWAITING_APPROVAL = Prepared(
    lambda: Run.objects.filter(state=RunState.AWAITING_APPROVAL).values_list("pk")[:1]
)


DOUBTED = "doubted"
"""The fact of a run: those of an earlier run of its incident."""
# How soon the same text has the node looked at again (our choice: as long as nothing may move
# before a person is asked).
_REST = timedelta(minutes=10)


def start_due(incident_ids: Iterable[int] | None, *, now: datetime, world: World) -> list[int]:
    """Starts what the incidents call for (None: all open ones) and returns the runs that are due at
    once.

    One unfinished run per node is a constraint: of several workers that start one, one does.
    """
    if incident_ids is None:
        _withdraw_unapproved(now)
    incidents = _load_waiting(incident_ids, now)
    if not incidents:
        return []
    table = fleet.load_modes(library.load(), now)
    started = []
    for incident, is_node_busy in incidents:
        modes = get_modes(table, incident.node)
        started.append(_start_run(incident, modes, now, is_node_busy=is_node_busy))
    return [run.pk for run in started if run is not None and _is_due(run, now)]


def _is_due(run: Run, now: datetime) -> bool:
    return run.wake_at is not None and run.wake_at <= now


_CALLING = Prepared(
    lambda: (
        Incident.objects.filter(pk__among=Given("ids"))
        .select_related("node", "root_fault")
        .order_by("pk")
    )
)


def _load_waiting(incident_ids: Iterable[int] | None, now: datetime) -> list[tuple[Incident, bool]]:
    """Those that wait for a run, of these incidents or of all, each with whether a run is at work
    on its node."""
    kinds = _freeze(_collect_kinds(library.load().values()))
    closed = get_closed_nodes(now)
    if incident_ids is None:
        waiting = _prepare_waiting(kinds).rows(now=now, closed=closed)
    else:
        ids = list(incident_ids)
        waiting = _prepare_waiting(kinds, among=True).rows(now=now, closed=closed, ids=ids)
    if not waiting:
        return []
    is_node_busy = dict(waiting)
    rows = _CALLING.objects(ids=list(is_node_busy))
    gravest_first = sorted(rows, key=lambda row: (-Severity(row.severity).rank, row.pk))
    return [(row, is_node_busy[row.pk]) for row in gravest_first]


def get_closed_nodes(now: datetime) -> set[str]:
    """Where people work, what is being taken away, and what is set aside until a person ends
    that."""
    return {
        *active_windows.get_maintained(now),
        *decommissions.get_decommissions(),
        *lemons.get_quarantined(),
    }


_Kinds = frozenset[tuple[str, frozenset[str]]]


@lru_cache(maxsize=8)
def _prepare_waiting(kinds: _Kinds, *, among: bool = False) -> Prepared:
    """The incidents that wait for a run, by their numbers, and whether a run is at work on the
    node; `among` those that are given alone. Mostly none."""

    def build() -> QuerySet[Incident, Any]:
        rows = _filter_by_kinds(kinds).filter(state__in=_WAITS_FOR_RUN)
        rows = rows.exclude(runs__state__in=UNFINISHED)
        # A wider cause is suspected; the sweep comes back.
        rows = rows.exclude(held_until__gt=Given("now"))
        rows = _exclude_over(rows.exclude(node__name__among=Given("closed"))).order_by("pk")
        if among:
            rows = rows.filter(pk__among=Given("ids"))
        on_node = Run.objects.unfinished().filter(node=OuterRef("node"))
        return rows.annotate(is_node_busy=Exists(on_node)).values_list("pk", "is_node_busy")

    return Prepared(build)


def get_modes(table: ModeTable, node: Node | None) -> dict[str, str]:
    """How far each runbook of the library may go there."""
    return {name: str(table.decide(name, node).mode) for name in table.own}


def get_incidents_calling(run: Run) -> QuerySet[Incident]:
    """Open incidents that call for a runbook on the run's node."""
    books = [book for book in library.load().values() if book.needs_node]
    return _filter_by_books(books).filter(state__in=OPEN, node=run.node)


def _filter_by_books(books: Iterable[Runbook]) -> QuerySet[Incident]:
    """Those whose action class and component one of them names; whether it fits is looked at one by
    one."""
    return _filter_by_kinds(_freeze(_collect_kinds(books)))


def _filter_by_kinds(kinds: _Kinds) -> QuerySet[Incident]:
    wanted = Q(pk__in=())
    for component, actions in sorted(kinds, key=lambda kind: kind[0]):
        wanted |= Q(component=component, action__in=sorted(actions))
    return Incident.objects.filter(wanted).filter(Q(node=None) | Q(node__is_provisional=False))


def _collect_kinds(books: Iterable[Runbook]) -> dict[str, set[str]]:
    """Action classes by component."""
    kinds: dict[str, set[str]] = {}
    for purpose in (purpose for book in books for purpose in book.purposes):
        actions = {str(action) for action in purpose.actions or Action}
        for component in purpose.components or Component:
            kinds.setdefault(str(component), set()).update(actions)
    return kinds


def _freeze(kinds: Mapping[str, set[str]]) -> _Kinds:
    return frozenset((component, frozenset(actions)) for component, actions in kinds.items())


def _exclude_over(waiting: QuerySet[Incident]) -> QuerySet[Incident]:
    """As `is_over` says, in the one query: each sweep looks at every open incident."""
    last = Run.objects.filter(incident=OuterRef("pk")).order_by("-pk")
    last_state = Subquery(last.values("state")[:1])
    is_handed_over = Subquery(last.values("facts__handed_over")[:1])
    unwitnessed = Subquery(last.values("facts__unwitnessed")[:1])
    annotated = waiting.annotate(
        last_state=last_state,
        last_ended_at=Subquery(last.values("finished_at")[:1]),
        is_handed_over=is_handed_over,
        unwitnessed=unwitnessed,
    )
    seen_again = Fault.objects.active().filter(
        membership__incident=OuterRef("pk"), last_seen_at__gt=OuterRef("last_ended_at")
    )
    is_seen_again = Q(unwitnessed__isnull=True) | Exists(seen_again)
    goes_on = ~Q(last_state__in=_FINAL) & Q(is_handed_over__isnull=True) & is_seen_again
    return annotated.filter(Q(last_state=None) | goes_on)


def _withdraw_unapproved(now: datetime) -> None:
    """A run that waits for approval is looked at by no worker: its incident may have ended
    meanwhile.

    One that has taken its node out already is withdrawn by a worker, who hands the node back.
    """
    if not _AWAITING_APPROVAL.values():
        return
    waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    for run in waiting.select_related("incident", "node"):
        verdict = withdrawal_reasons.evaluate(
            State(run.incident.state), is_called_for=is_called_for(run)
        )
        if not isinstance(verdict, withdrawal_reasons.Withdraw):
            continue
        if run.claimed_at is not None:
            waiting.filter(pk=run.pk).update(state=RunState.RUNNING, wake_at=now)
        else:
            text = f"Run {run.pk}, never approved, is withdrawn, because {verdict.reason}."
            _withdraw_run(run, text, now)


def _withdraw_run(run: Run, text: str, now: datetime) -> None:
    waiting = Run.objects.filter(pk=run.pk, state=RunState.AWAITING_APPROVAL)
    with transaction.atomic():
        if waiting.update(state=RunState.WITHDRAWN, outcome=text, finished_at=now):
            transitions.record(
                run.incident_id, kind="run_withdrawn", text=text, now=now, needs_human=""
            )
            transitions.note_withdrawal(run.incident_id, text, now)


def _start_run(
    incident: Incident, modes: Mapping[str, str], now: datetime, *, is_node_busy: bool
) -> Run | None:
    cause = find_cause(incident)
    chosen = choose_runbook(incident, cause, modes=modes, now=now)
    if isinstance(chosen, NoRunbook):
        return None
    last = _get_last_run(incident)
    if _is_resting(incident, last, now):
        return None
    book = chosen.book
    node = incident.node if book.needs_node else None
    if node is not None and is_node_busy:
        _wake_lesser_run(incident, node, now)
        return None
    run = build_run(incident, book, Mode(modes[book.name]), now=now)
    run.fault_type = _get_fault_type(incident, cause)
    run.wake_at = max(now, _get_hold_end(cause) or now)
    run.facts = {"resource": _get_resource(incident, cause), "why": chosen.reason}
    if run.mode == Mode.APPROVAL:  # whoever gives leave says when
        run.facts[WANTED_NOW] = True
    doubted = _get_doubted(last)
    if doubted:
        run.facts[DOUBTED] = doubted
    try:
        with transaction.atomic():
            run.save(force_insert=True)
            _record_hold(run, book.title, now)
    except IntegrityError:  # another worker's run on this node was first
        return None
    return run


def _wake_lesser_run(incident: Incident, node: Node, now: datetime) -> None:
    """One that waits for an idle moment of the node looks at once, and gives way."""
    lesser = fleet.list_lesser(Severity(incident.severity))
    waiting = Run.objects.filter(node=node, state=RunState.RUNNING, claimed_at=None)
    waiting = waiting.filter(incident__severity__in=lesser, facts__has_key=WAITS_SINCE)
    waiting.filter(wake_at__gt=now).update(wake_at=now)


def find_graver_incident(run: Run) -> Incident | None:
    """A graver one that waits for a run on this run's node."""
    graver = fleet.list_graver(Severity(run.incident.severity))
    calling = get_incidents_calling(run).filter(severity__in=graver, state__in=_WAITS_FOR_RUN)
    return _exclude_over(calling.exclude(runs__state__in=UNFINISHED)).first()


def build_run(incident: Incident, book: Runbook, mode: Mode, *, now: datetime) -> Run:
    """A run of the runbook for the incident, not stored yet: begun now, due at once."""
    node = incident.node if book.needs_node else None
    plan = [planned.as_row() for planned in book.steps]
    return Run(
        incident=incident,
        node=node,
        runbook=book.name,
        version=book.version,
        plan=plan,
        mode=mode,
        wake_at=now,
        started_at=now,
    )


def _get_fault_type(incident: Incident, cause: Fault | None) -> str:
    return cause.fault_type if cause else incident.fault_type


def _get_resource(incident: Incident, cause: Fault | None) -> str:
    return cause.resource if cause else incident.root_resource


def choose_runbook(
    incident: Incident, cause: Fault | None, *, modes: Mapping[str, str], now: datetime
) -> Chosen | NoRunbook:
    """What the incident calls for now: by its fault, where it is, and what was tried before."""
    books, node = library.load(), incident.node
    trouble = build_trouble(incident, cause, is_lemon=_is_lemon(node, books.values(), now))
    place = FaultPlace(
        resource=_get_resource(incident, cause),
        is_node=node is not None,
        is_provisional=node is not None and node.is_provisional,
    )
    has_rung = any(book.rung is not None and book.fits(trouble) for book in books.values())
    if has_rung:
        past = outcome_history.load_past(incident, trouble.fault_type, books, now)
    else:
        past = Past(spent=outcome_history.get_spent_runbooks(incident))
    return choose(trouble, place, books.values(), modes=modes, past=past, now=now)


def _is_lemon(node: Node | None, books: Iterable[Runbook], now: datetime) -> bool:
    """Asked only where a runbook wants to know."""
    wants_lemons = any(purpose.lemons for book in books for purpose in book.purposes)
    return wants_lemons and node is not None and lemons.is_lemon(node.name, now) is not None


def build_trouble(incident: Incident, cause: Fault | None, *, is_lemon: bool = False) -> Trouble:
    """As runbooks are chosen by it."""
    fault_type = _get_fault_type(incident, cause)
    row = catalog.load().get(fault_type)
    fitness = row.fitness if row is not None else Fitness.FIT
    severity = _get_severity(incident, cause)
    component = incident.component
    if cause is not None and fitness is Fitness.UNFIT:
        component = cause.component
    return Trouble(
        fault_type=fault_type,
        action=Action(incident.action),
        component=Component(component),
        severity=severity,
        is_lemon=is_lemon,
        fitness=fitness,
    )


def finds_acting_runbook(incident: Incident, now: datetime) -> bool:
    """Whether a run that may act, if only with a person's leave, comes for the incident by
    itself."""
    if is_over(incident):
        return False
    modes = get_modes(fleet.load_modes(library.load(), now), incident.node)
    chosen = choose_runbook(incident, find_cause(incident), modes=modes, now=now)
    return isinstance(chosen, Chosen) and modes[chosen.book.name] in _ACTING


def list_following(run: Run, now: datetime) -> list[FollowingIncident]:
    """Other incidents of the run's node for which a run begins when this one has ended, oldest
    first. None for what only a text has told: that keeps no node."""
    calling = get_incidents_calling(run).filter(state__in=_WAITS_FOR_RUN)
    calling = calling.exclude(pk=run.incident_id).select_related("node", "root_fault")
    following = []
    for incident in calling.order_by("pk"):
        cause = find_cause(incident)
        is_believed = cause is not None and cause.forger in BELIEVED
        if is_believed and finds_acting_runbook(incident, now):
            active = Fault.objects.active().filter(membership__incident=incident)
            faults = frozenset(active.values_list("fault_type", "resource", "qualifier"))
            following.append(FollowingIncident(incident.pk, faults))
    return following


def _get_severity(incident: Incident, cause: Fault | None) -> Severity:
    """The incident's; beside a cause that is believed no text alone raises it. Jobs that are hit
    may."""
    is_believed = cause is not None and cause.forger in BELIEVED
    if cause is None or not is_believed or believed_severity.is_raised_by_jobs(incident):
        return Severity(incident.severity)
    known = [Severity(cause.severity), *believed_severity.list_believed(incident)]
    return believed_severity.get_gravest(known)


def is_called_for(run: Run) -> bool:
    """Whether the incident is still where the run is, and still what a runbook is for; modes do not
    matter here."""
    incident = run.incident
    if run.node_id is not None and incident.node_id != run.node_id:
        return False
    is_on_node = run.node_id is not None
    books = [book for book in library.load().values() if book.needs_node == is_on_node]
    return incident.action in _collect_kinds(books).get(incident.component, ())


def is_over(incident: Incident) -> bool:
    """Whether the incident's last run ended in asking a person, or by one: then no run comes by
    itself."""
    last = _get_last_run(incident)
    return last is not None and (_is_left_to_person(last) or _is_unwitnessed(incident, last))


def keeps_node(incident: Incident) -> bool:
    """Whether the incident's last run left its node to a person, drained. One whose fault nobody
    has seen has left nothing."""
    last = _get_last_run(incident)
    return last is not None and _is_left_to_person(last)


_LAST_RUN = Prepared(lambda: Run.objects.filter(incident=Given("incident")).order_by("-pk")[:1])


def _get_last_run(incident: Incident) -> Run | None:
    return next(iter(_LAST_RUN.objects(incident=incident.pk)), None)


def _is_left_to_person(last: Run) -> bool:
    return RunState(last.state) in _FINAL or bool(last.facts.get("handed_over"))


def _is_unwitnessed(incident: Incident, last: Run) -> bool:
    """Whether its last run ended unwitnessed, and nobody has told of its faults since."""
    if not last.facts.get(UNWITNESSED):
        return False
    active = Fault.objects.active().filter(membership__incident=incident)
    return not active.filter(last_seen_at__gt=last.finished_at).exists()


def _get_doubted(last: Run | None) -> list[list[str]]:
    """What was refuted before and not seen since."""
    if last is None:
        return []
    known: list[list[str]] = last.facts.get(DOUBTED, [])
    refuted: list[list[str]] = last.facts.get(REFUTED, [])
    return [*known, *(pair for pair in refuted if pair not in known)]


def _is_resting(incident: Incident, last: Run | None, now: datetime) -> bool:
    """Whether its node has just denied the same text: it is not asked each time it is written."""
    if last is None or not last.facts.get(UNWITNESSED) or last.finished_at is None:
        return False
    active = Fault.objects.active().filter(membership__incident=incident)
    believed = active.filter(forger__in=BELIEVED, last_seen_at__gt=last.finished_at)
    return now < last.finished_at + _REST and not believed.exists()


_CAUSES = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(membership__incident=Given("incident"), action=Given("action"))
        .order_by("raised_at", "pk")
    )
)


def find_cause(incident: Incident) -> Fault | None:
    """The fault that calls for the action: the root, or a member that calls for more. One that
    is believed before one that a text alone has told, and of these one that leaves the node unfit
    for jobs before one that does not."""
    members = _CAUSES.objects(incident=incident.pk, action=incident.action)
    root = incident.root_fault
    is_of_root = root is not None and root.action == incident.action
    calling = [root, *members] if is_of_root and root is not None else list(members)
    believed = [fault for fault in calling if fault.forger in BELIEVED] or calling
    unfit = (fault for fault in believed if _is_unfit_beside(fault, root))
    return next(unfit, believed[0] if believed else root)


def _is_unfit_beside(fault: Fault, root: Fault | None) -> bool:
    """Whether it leaves the root's own machine unfit for jobs."""
    row = catalog.load().get(fault.fault_type)
    is_unfit = row is not None and row.fitness is Fitness.UNFIT
    return is_unfit and root is not None and fault.owner == root.owner


def _get_hold_end(cause: Fault | None) -> datetime | None:
    """The end of the fault type's hold-down; mostly it is over before an incident opens."""
    if cause is None:
        return None
    row = catalog.load().get(cause.fault_type)
    return cause.observed_at + row.hold_down if row is not None else None


def _record_hold(run: Run, title: str, now: datetime) -> None:
    if run.mode == Mode.ARMED and run.wake_at is not None and run.wake_at > now:
        begins = f"begins at {run.wake_at:%H:%M:%S %Z}"
        text = f"{title} on {run.place} {begins}, unless the fault clears before."
        transitions.record(run.incident_id, kind="run_held", text=text, now=now)


def format_plan(run: Run) -> str:
    """What the run does, as the end of a sentence that begins with "Kintsugi would"."""
    parts = [format_step(run, index) for index in range(len(run.plan))]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]


def format_step(run: Run, index: int) -> str:
    """The same of one of its steps; of one that this version does not know its name."""
    row = run.plan[index]
    try:
        (planned,) = library.load_plan([row])
    except library.LibraryError:
        return f"do {row['step']}, which this version does not know"
    return planned.step.plan.format(node=run.place)
