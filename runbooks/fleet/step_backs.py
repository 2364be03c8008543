"""An arming goes down a rung by itself when an act by it was wrong: armed, approval, shadow.

An act was wrong where the run took a node out of service that was well, by what the dry-run report
calls so (`runbooks.shadow.well_nodes`), or where nobody has seen the fault and:

* the node, once it could be asked, denied what a text or a person alone had told;
* a person put the node back in service within an hour of our drain.

What was done before the arming went down counts no second time. No person is asked for leave; one
arms again, by name.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from incidents.state import transitions
from incidents.state.outbox import STEPPED_BACK
from incidents.vocabulary.lifecycle import State
from runbooks.fleet import armings
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED
from runbooks.models import Arming, Mode, Run
from runbooks.node.drains import RESUMED_AT
from runbooks.node.witnesses import CONFIRMED_AT
from runbooks.shadow import well_nodes

_LOWER = {Mode.ARMED: Mode.APPROVAL, Mode.APPROVAL: Mode.SHADOW}
# Whoever mends a node by hand takes longer than this to give it back (our choice).
_UNDONE_WITHIN = timedelta(hours=1)
_LONGEST = 255


def list_candidates(now: datetime) -> list[Run]:
    """Runs by armings in force that may have been wrong: mostly none, by one query."""
    acting = [row for row in armings.load_in_force(now) if Mode(row.mode) in _LOWER]
    if not acting:
        return []
    begun = Q()
    for row in acting:
        since = row.stepped_back_at or row.set_at
        begun |= Q(**{f"facts__{armings.USED}": row.pk}, claimed_at__gte=since)
    doubts = Q(incident__state=State.FALSE_POSITIVE.value)
    for fact in (REFUTED, UNWITNESSED, RESUMED_AT):
        doubts |= Q(facts__has_key=fact)
    runs = Run.objects.filter(begun).filter(doubts).order_by("pk")
    return list(runs.select_related("incident", "node"))


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
    return _find_undone(facts["drained_at"], facts.get(RESUMED_AT))


def is_wrong(run: Run) -> bool | None:
    """None where its node has not shown what was there, or was not taken out."""
    if find_wrong(run):
        return True
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
    """Takes one rung from the arming by which the run acted, by a compare-and-swap, if that was
    wrong: then what people read of it, else nothing."""
    number, why = run.facts.get(armings.USED), find_wrong(run)
    if number is None or run.claimed_at is None or not why:
        return ""
    with transaction.atomic():
        row = Arming.objects.filter(pk=number, ended_at=None, until__gt=now).first()
        if row is None or Mode(row.mode) not in _LOWER:
            return ""
        if row.stepped_back_at is not None and run.claimed_at < row.stepped_back_at:
            return ""
        before, after = Mode(row.mode), _LOWER[Mode(row.mode)]
        wrong = f"run {run.pk} took {run.place} out of service, which was well: {why}"
        values = {"mode": after, "stepped_back_at": now, "stepped_back_why": wrong[:_LONGEST]}
        if not Arming.objects.filter(pk=number, mode=before, ended_at=None).update(**values):
            return ""
        text = (
            f"{run.runbook} steps back from {before} to {after} by itself: {wrong}. It was"
            f" {armings.describe(row)}. A person arms it again: kintsugi arming end {number}"
            " --reason WHY, then kintsugi arming add."
        )
        transitions.record(run.incident_id, kind=STEPPED_BACK, text=text, now=now)
    return text
