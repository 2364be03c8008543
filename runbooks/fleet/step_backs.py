"""An arming, and a runbook's own mode, goes down a rung by itself when an act by it was wrong:
armed, approval, shadow.

An act was wrong where the run took a node out of service that was well, by what the dry-run report
calls so (`runbooks.shadow.well_nodes`), or where nobody has seen the fault and:

* the node, once it could be asked, denied what a text or a person alone had told;
* a person put the node back in service within an hour of our drain, where the run would have looked
  for the fault itself, and no person had asked for it.

What was done before it went down counts no second time, and what a person has set since counts
anew. No person is asked for leave; one arms again, by name.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from detectors.faults import Action
from incidents.db.prepared import Given, Prepared
from incidents.models import Incident
from incidents.state import transitions
from incidents.state.outbox import STEPPED_BACK
from incidents.text.wording import format_moment
from incidents.vocabulary.lifecycle import State
from runbooks.fleet import armings, fleet
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED
from runbooks.models import Arming, Mode, Run, RunbookMode
from runbooks.node.drains import RESUMED_AT
from runbooks.node.witnesses import CONFIRMED_AT, VOUCHED
from runbooks.shadow import well_nodes

_LOWER = {Mode.ARMED: Mode.APPROVAL, Mode.APPROVAL: Mode.SHADOW}
# Whoever mends a node by hand takes longer than this to give it back (our choice).
_UNDONE_WITHIN = timedelta(hours=1)
_LONGEST = 255
_LOOK = "confirm_on_node"
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]
_NO_FAULT = [State.FALSE_POSITIVE.value, State.DUPLICATE.value]


def _get_doubted() -> QuerySet[Run, Any]:
    doubts = Q(incident__state=State.FALSE_POSITIVE.value)
    for fact in (REFUTED, UNWITNESSED, RESUMED_AT):
        doubts |= Q(facts__has_key=fact)
    runs = Run.objects.filter(doubts, claimed_at__gte=Given("since")).order_by("pk")
    return runs.values_list("pk", "runbook", "claimed_at", f"facts__{armings.USED}")


_DOUBTED = Prepared(_get_doubted)
_ACTING_MODES = Prepared(
    lambda: _list_acting_modes().values_list("runbook", "set_at", "stepped_back_at")
)


def list_candidates(now: datetime) -> list[Run]:
    """Runs by armings in force, or by modes that let act, that may have been wrong: mostly none,
    by one query more."""
    armed = {}
    for row in armings.load_in_force(now):
        if Mode(row.mode) in _LOWER:
            armed[row.pk] = row.stepped_back_at or row.set_at
    own = {}
    for runbook, set_at, stepped_back_at in _ACTING_MODES.rows():
        own[runbook] = stepped_back_at or set_at
    if not armed and not own:
        return []
    found = []
    for pk, runbook, claimed_at, used in _DOUBTED.rows(since=min((*armed.values(), *own.values()))):
        since = armed.get(used) if used is not None else own.get(runbook)
        if since is not None and claimed_at >= since:
            found.append(pk)
    if not found:
        return []
    runs = Run.objects.filter(pk__in=found).order_by("pk")
    return list(runs.select_related("incident", "node"))


def _list_acting_modes() -> QuerySet[RunbookMode]:
    """The site's mode holds back, and lets nothing act by itself."""
    return RunbookMode.objects.filter(mode__in=_LOWER).exclude(runbook=fleet.SITE)


def find_wrong(run: Run) -> str:
    """Why it was wrong that the run took its node out; empty where it did not, or nothing says
    so."""
    facts = run.facts
    if "drained_at" not in facts:
        return ""
    well = well_nodes.find_reason(State(run.incident.state), is_refuted=REFUTED in facts)
    if well or CONFIRMED_AT in facts:
        return well
    if UNWITNESSED in facts:
        return "the node itself denies it"
    if VOUCHED in facts or not _looks_for_fault(run):
        return ""
    return _find_undone(facts["drained_at"], facts.get(RESUMED_AT))


def _is_needed_by_another(run: Run) -> bool:
    """Whether another incident called for a repair of the node while the run had it out: then it
    was not well, whatever became of this one."""
    drained_at = datetime.fromisoformat(run.facts["drained_at"])
    others = Incident.objects.filter(node=run.node_id, action__in=_REPAIRS)
    others = others.exclude(pk=run.incident_id).exclude(state__in=_NO_FAULT)
    if run.finished_at is not None:
        others = others.filter(opened_at__lte=run.finished_at)
    return others.filter(Q(closed_at=None) | Q(closed_at__gte=drained_at)).exists()


def _looks_for_fault(run: Run) -> bool:
    """A run that only takes the node out and asks hands for it, or waits for who asked for that,
    is answered by the person who puts it back."""
    return any(planned["step"] == _LOOK for planned in run.plan)


def is_wrong(run: Run) -> bool | None:
    """None where its node has not shown what was there, or was not taken out."""
    if find_wrong(run):
        return None if _is_needed_by_another(run) else True
    is_seen = CONFIRMED_AT in run.facts or run.incident.is_confirmed
    return False if is_seen and "drained_at" in run.facts else None


def _find_undone(drained_at: str, resumed_at: str | None) -> str:
    if resumed_at is None:
        return ""
    after = datetime.fromisoformat(resumed_at) - datetime.fromisoformat(drained_at)
    if after > _UNDONE_WITHIN:
        return ""
    return "a person put it back in service within the hour, and nobody had seen the fault there"


def step_back(run: Run, now: datetime) -> str:
    """Takes one rung from the arming, or else the runbook's own mode, by which the run acted, by a
    compare-and-swap, if that was wrong: then what people read of it, else nothing. In the
    transaction of whoever asks."""
    number, why = run.facts.get(armings.USED), find_wrong(run)
    if run.claimed_at is None or not why or _is_needed_by_another(run):
        return ""
    wrong = f"run {run.pk} took {run.place} out of service, which was well: {why}"
    with transaction.atomic():
        if number is not None:
            text = _take_from_arming(number, run, wrong, now)
        else:
            text = _take_from_mode(run, wrong, now)
        if text:
            transitions.record(run.incident_id, kind=STEPPED_BACK, text=text, now=now)
    return text


def _take_from_arming(number: int, run: Run, wrong: str, now: datetime) -> str:
    row = Arming.objects.filter(pk=number, ended_at=None, until__gt=now).first()
    if row is None or Mode(row.mode) not in _LOWER or _is_counted(run, row.stepped_back_at):
        return ""
    before = Mode(row.mode)
    unchanged = Arming.objects.filter(pk=number, mode=before, ended_at=None)
    if not unchanged.update(**_make_values(before, wrong, now)):
        return ""
    return (
        f"{_format_step(run, before, wrong)} It was {armings.describe(row)}. A person arms it"
        f" again: kintsugi arming end {number} --reason WHY, then kintsugi arming add."
    )


def _take_from_mode(run: Run, wrong: str, now: datetime) -> str:
    """What a person has set since the run took its node out is theirs."""
    row = _list_acting_modes().filter(runbook=run.runbook).first()
    if row is None or run.claimed_at is None or run.claimed_at < row.set_at:
        return ""
    if _is_counted(run, row.stepped_back_at):
        return ""
    before = Mode(row.mode)
    unchanged = RunbookMode.objects.filter(
        pk=row.pk, mode=before, set_at=row.set_at, stepped_back_at=row.stepped_back_at
    )
    if not unchanged.update(**_make_values(before, wrong, now)):
        return ""
    return (
        f"{_format_step(run, before, wrong)} It went by its own mode, which {row.set_by} set at"
        f" {format_moment(row.set_at)}; armings on some nodes stay as they are. Runs of it that"
        " are under"
        " way wait before their next act. A person sets it again: kintsugi mode set"
        f" {run.runbook} {before}."
    )


def _is_counted(run: Run, stepped_back_at: datetime | None) -> bool:
    """Whether what was done before the last step back has the run in it."""
    if stepped_back_at is None or run.claimed_at is None:
        return False
    return run.claimed_at < stepped_back_at


def _make_values(before: Mode, wrong: str, now: datetime) -> dict[str, Any]:
    why = wrong[:_LONGEST]
    return {"mode": _LOWER[before], "stepped_back_at": now, "stepped_back_why": why}


def _format_step(run: Run, before: Mode, wrong: str) -> str:
    return f"{run.runbook} steps back from {before} to {_LOWER[before]} by itself: {wrong}."
