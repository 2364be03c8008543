"""Once a run has ended because a person put its node back in service: whether polls go on seeing
the fault there.

A person's resume is respected: the run is over, and nothing takes the node out again. What a poll
sees after it is new, and whoever resumed the node may not know it: a person is asked at once,
loudly, and once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from detectors.faults import Action
from incidents.models import Fault
from incidents.polling.last_polls import get_last_polls
from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.lease import lease
from runbooks.models import Run, RunState
from runbooks.node.drains import RESUMED_AT
from runbooks.step import Context, get_backoff

_LOUD = "still_standing"
_SOON, _LONGEST = timedelta(seconds=30), timedelta(minutes=5)
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]


def get_next_check_at(facts: Mapping[str, Any], now: datetime) -> datetime | None:
    """When the ended run asks what polls say; None where no person has put its node back."""
    return now + _SOON if RESUMED_AT in facts else None


def check_fault(run: Run, ctx: Context) -> None:
    """One look, as long as the incident is open and has no later run, which says itself how it
    ends. While a run of another incident has the node, nobody is asked. It touches nothing."""
    resumed_at = datetime.fromisoformat(run.facts[RESUMED_AT])
    later = Run.objects.filter(incident=run.incident_id, pk__gt=run.pk)
    is_gone_on_with = later.exclude(state=RunState.SHADOWED).exists()
    if is_gone_on_with or State(run.incident.state) in CLOSED:
        lease.release(run, wake_at=None)
        return
    is_taken = Run.objects.unfinished().filter(node=run.node).exists()
    active = Fault.objects.active().filter(membership__incident=run.incident_id)
    faults = active.filter(action__in=_REPAIRS)
    polled_at = get_last_polls(list(faults.values_list("pk", flat=True)))
    after = {pk: at for pk, at in polled_at.items() if at > resumed_at}
    if not after or is_taken or ctx.state.is_out:
        again_in = max(_SOON, get_backoff(resumed_at, ctx.now, longest=_LONGEST))
        lease.release(run, wake_at=ctx.now + again_in)
        return
    at, pk = max((at, pk) for pk, at in after.items())
    _ask_person(run, ctx, faults.get(pk=pk), at=at, resumed_at=resumed_at)


def _ask_person(
    run: Run, ctx: Context, fault: Fault, *, at: datetime, resumed_at: datetime
) -> None:
    node = ctx.node
    text = (
        f"{node} takes jobs, since a person resumed it (seen at {resumed_at:%H:%M:%S %Z}), and"
        f" {fault} is still there: last polled as active at {at:%H:%M:%S %Z}. Kintsugi leaves it in"
        " service until a person decides."
    )
    ask = (
        f"Take {node} out again (scontrol update NodeName={node} State=DRAIN Reason=...), or have"
        f" Kintsugi repair it: kintsugi runbook start {run.runbook} {run.incident_id} --note ..."
    )
    with transaction.atomic():
        transitions.record(run.incident_id, kind=_LOUD, text=text, now=ctx.now, needs_human=ask)
        lease.release(run, wake_at=None)
