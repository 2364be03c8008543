"""Runs for the incidents that call for one. Touches no node: the run's first step does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from detectors.catalog import catalog
from detectors.faults import Action, Component, Severity
from incidents.db.prepared import Given, Prepared
from incidents.maintenance import active_windows
from incidents.models import Fault, Incident
from incidents.reserve import decommissions, lemons
from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import outcome_history
from runbooks.fleet import fleet
from runbooks.lease import withdrawal_reasons
from runbooks.library import library
from runbooks.models import UNFINISHED, Mode, Run, RunState
from runbooks.plan.choose import Chosen, FaultPlace, NoRunbook, Past, choose
from runbooks.plan.runbook import Runbook, Trouble
from runbooks.step import World

_WAITS_FOR_RUN = (State.OPEN, State.ACKNOWLEDGED)
# After these a run comes again only by a person: it ended in asking one, or a person ended it.
_FINAL = (RunState.FAILED, RunState.ABORTED, RunState.SHADOWED)


def start_due(incident_ids: Iterable[int] | None, *, now: datetime, world: World) -> list[int]:
    """Starts what the incidents call for (None: all open ones) and returns the runs that are due at
    once.

    One unfinished run per node is a constraint: of several workers that start one, one does.
    """
    kinds = _frozen(_kinds(library.load().values()))
    # Where people work, what is being taken away, and what is set aside until a person ends that.
    closed = {
        *active_windows.maintained(now),
        *decommissions.get_decommissions(),
        *lemons.quarantined(),
    }
    if incident_ids is None:
        _withdraw_unapproved(now)
        waiting = _waiting(kinds).values(now=now, closed=closed)
    else:
        waiting = _waiting(kinds, among=True).values(now=now, closed=closed, ids=list(incident_ids))
    found = []
    if waiting:
        rows = _not_over(Incident.objects.filter(pk__in=waiting)).select_related(
            "node", "root_fault"
        )
        found = list(rows.order_by("pk"))
    known = modes() if found else {}
    started = (_start(incident, known, now) for incident in found)
    return [
        run.pk
        for run in started
        if run is not None and run.wake_at is not None and run.wake_at <= now
    ]


_Kinds = frozenset[tuple[str, frozenset[str]]]


@lru_cache(maxsize=8)
def _waiting(kinds: _Kinds, *, among: bool = False) -> Prepared:
    """The incidents that wait for a run, by their numbers; `among` those that are given alone.
    Mostly none."""

    def build() -> QuerySet[Incident, Any]:
        rows = _of_kinds(kinds).filter(state__in=_WAITS_FOR_RUN).exclude(runs__state__in=UNFINISHED)
        rows = rows.exclude(
            held_until__gt=Given("now")
        )  # a wider cause is suspected; the sweep comes back
        rows = _not_over(rows.exclude(node__name__among=Given("closed"))).order_by("pk")
        return (rows.filter(pk__among=Given("ids")) if among else rows).values_list("pk")

    return Prepared(build)


def modes() -> dict[str, str]:
    """How far each runbook of the library may go."""
    return {name: str(mode) for name, mode in fleet.modes_of(library.load()).items()}


def calling_for(run: Run) -> QuerySet[Incident]:
    """Open incidents that call for a runbook on the run's node."""
    books = [book for book in library.load().values() if book.needs_node]
    return _calling(books).exclude(state__in=CLOSED).filter(node=run.node)


def _calling(books: Iterable[Runbook]) -> QuerySet[Incident]:
    """Those whose action class and component one of them names; whether it fits is looked at one by
    one."""
    return _of_kinds(_frozen(_kinds(books)))


def _of_kinds(kinds: _Kinds) -> QuerySet[Incident]:
    wanted = Q(pk__in=())
    for component, actions in sorted(kinds, key=lambda kind: kind[0]):
        wanted |= Q(component=component, action__in=sorted(actions))
    return Incident.objects.filter(wanted).filter(Q(node=None) | Q(node__is_provisional=False))


def _kinds(books: Iterable[Runbook]) -> dict[str, set[str]]:
    """Action classes by component."""
    kinds: dict[str, set[str]] = {}
    for purpose in (purpose for book in books for purpose in book.purposes):
        for component in purpose.components or Component:
            kinds.setdefault(str(component), set()).update(
                str(action) for action in purpose.actions or Action
            )
    return kinds


def _frozen(kinds: Mapping[str, set[str]]) -> _Kinds:
    return frozenset((component, frozenset(actions)) for component, actions in kinds.items())


def _not_over(waiting: QuerySet[Incident]) -> QuerySet[Incident]:
    """As `is_over` says, in the one query: each sweep looks at every open incident."""
    last = Run.objects.filter(incident=OuterRef("pk")).order_by("-pk")
    waiting = waiting.annotate(
        last_state=Subquery(last.values("state")[:1]),
        is_handed_over=Subquery(last.values("facts__handed_over")[:1]),
        is_node_busy=Exists(Run.objects.unfinished().filter(node=OuterRef("node"))),
    )
    return waiting.filter(
        Q(last_state=None) | (~Q(last_state__in=_FINAL) & Q(is_handed_over__isnull=True))
    )


def _withdraw_unapproved(now: datetime) -> None:
    """A run that waits for approval is looked at by no worker: its incident may have ended
    meanwhile.

    One that has taken its node out already is withdrawn by a worker, who hands the node back.
    """
    waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    for run in waiting.select_related("incident", "node"):
        verdict = withdrawal_reasons.consider(
            State(run.incident.state), is_called_for=is_called_for(run)
        )
        if isinstance(verdict, withdrawal_reasons.Withdraw):
            if run.claimed_at is not None:
                waiting.filter(pk=run.pk).update(state=RunState.RUNNING, wake_at=now)
                continue
            text = f"Run {run.pk}, never approved, is withdrawn, because {verdict.reason}."
            with transaction.atomic():
                values = {"state": RunState.WITHDRAWN, "outcome": text, "finished_at": now}
                if Run.objects.filter(pk=run.pk, state=RunState.AWAITING_APPROVAL).update(**values):
                    transitions.record(
                        run.incident_id, kind="run_withdrawn", text=text, now=now, needs_human=""
                    )
                    transitions.note_withdrawal(run.incident_id, text, now)


def _start(incident: Incident, modes: Mapping[str, str], now: datetime) -> Run | None:
    cause = cause_of(incident)
    chosen = chosen_for(incident, cause, modes=modes, now=now)
    if isinstance(chosen, NoRunbook):
        return None
    book = chosen.book
    node = incident.node if book.needs_node else None
    if node is not None and incident.is_node_busy:  # type: ignore[attr-defined]  # annotated by `_not_over`
        return None
    mode = Mode(modes[book.name])
    try:
        with transaction.atomic():
            run = Run.objects.create(
                incident=incident,
                node=node,
                runbook=book.name,
                version=book.version,
                plan=[planned.as_row() for planned in book.steps],
                fault_type=cause.fault_type if cause else incident.fault_type,
                mode=mode,
                wake_at=max(now, _held_until(cause) or now),
                facts={
                    "resource": cause.resource if cause else incident.root_resource,
                    "why": chosen.reason,
                },
                started_at=now,
            )
            _tell(run, book.title, now)
    except IntegrityError:  # another worker's run on this node was first
        return None
    return run


def chosen_for(
    incident: Incident, cause: Fault | None, *, modes: Mapping[str, str], now: datetime
) -> Chosen | NoRunbook:
    """What the incident calls for now: by its fault, where it is, and what was tried before."""
    books = library.load()
    node = incident.node
    asks = any(purpose.lemons for book in books.values() for purpose in book.purposes)
    is_lemon = asks and node is not None and lemons.is_lemon(node.name, now) is not None
    trouble = trouble_of(incident, cause, is_lemon=is_lemon)
    where = FaultPlace(
        resource=cause.resource if cause else incident.root_resource,
        is_node=node is not None,
        is_provisional=node is not None and node.is_provisional,
    )
    has_rung = any(book.rung is not None and book.fits(trouble) for book in books.values())
    past = (
        outcome_history.past(incident, trouble.fault_type, books, now)
        if has_rung
        else Past(spent=outcome_history.spent(incident))
    )
    return choose(trouble, where, books.values(), modes=modes, past=past, now=now)


def trouble_of(incident: Incident, cause: Fault | None, *, is_lemon: bool = False) -> Trouble:
    """As runbooks are chosen by it."""
    return Trouble(
        fault_type=cause.fault_type if cause else incident.fault_type,
        action=Action(incident.action),
        component=Component(incident.component),
        severity=Severity(incident.severity),
        is_lemon=is_lemon,
    )


def is_called_for(run: Run) -> bool:
    """Whether the incident is still where the run is, and still what a runbook is for; modes do not
    matter here."""
    incident = run.incident
    if run.node_id is not None and incident.node_id != run.node_id:
        return False
    alike = [
        book for book in library.load().values() if book.needs_node == (run.node_id is not None)
    ]
    return incident.action in _kinds(alike).get(incident.component, ())


def is_over(incident: Incident) -> bool:
    """Whether the incident's last run ended in asking a person, or by one: then no run comes by
    itself."""
    last = incident.runs.order_by("-pk").first()
    return last is not None and (
        RunState(last.state) in _FINAL or bool(last.facts.get("handed_over"))
    )


def cause_of(incident: Incident) -> Fault | None:
    """The fault that calls for the action: the root, or a member that calls for more."""
    members = (
        Fault.objects.active().filter(membership__incident=incident).order_by("raised_at", "pk")
    )
    root = incident.root_fault
    if root is not None and root.action == incident.action:
        return root
    return next((fault for fault in members if fault.action == incident.action), root)


def _held_until(cause: Fault | None) -> datetime | None:
    """The end of the fault type's hold-down; mostly it is over before an incident opens."""
    row = catalog.load().get(cause.fault_type) if cause else None
    return cause.observed_at + row.hold_down if row is not None and cause is not None else None


def _tell(run: Run, title: str, now: datetime) -> None:
    if run.mode == Mode.ARMED and run.wake_at is not None and run.wake_at > now:
        text = (
            f"{title} on {run.place} begins at {run.wake_at:%H:%M:%S %Z}, unless the fault clears"
            " before."
        )
        transitions.record(run.incident_id, kind="run_held", text=text, now=now)


def plan(run: Run) -> str:
    """What the run does, as the end of a sentence that begins with "Kintsugi would"."""
    parts = [planned.step.plan.format(node=run.place) for planned in library.planned(run.plan)]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
