"""Before a node is taken out for what a text alone has told: the node itself is asked.

What its own kernel and detectors deny takes no node out of service, and gives back what was taken
while the node could not be asked: forged lines fill no cap. Whoever could not be asked keeps
today's rules: the node is drained, and confirmed before anything else is done to it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.faults import Action
from runbooks.engine import result as ending
from runbooks.engine import start, withdraw
from runbooks.engine.result import Turn
from runbooks.lease.withdrawal_reasons import Withdraw
from runbooks.node import witnesses
from runbooks.node.witnesses import Denied, Unseen, Witnessed
from runbooks.step import Context, Wait, World, fact_time, to_iso

# A kernel's line may come here by syslog before journald has written it: measured as seconds on a
# busy node (our choice).
_MAY_COME_LATE = timedelta(minutes=2)
_LOOK_AGAIN = timedelta(seconds=30)
# How often one is asked who gave no answer (our choice: as the guards are).
_ASK_AGAIN = timedelta(minutes=1)
_DENIED_SINCE, _ASKED_AT = "denied_since", "witness_asked_at"


def is_denied(turn: Turn, ctx: Context, *, world: World) -> bool:
    """Whether the turn ends here, since the node's own witnesses deny what the run is for."""
    run = turn.run
    if witnesses.is_witnessed(ctx) or not Action(run.incident.action).at_least(Action.RESET_GPU):
        return False
    believed = [fault for fault in witnesses.list_candidates(ctx) if fault.is_believed]
    if believed:
        strongest = max(believed, key=lambda fault: fault.action.rank)
        how = f"{strongest}, which no user of {ctx.node} can have written"
        witnesses.note_witness(ctx, how, strongest.action)
        return False
    asked_at = fact_time(ctx, _ASKED_AT)
    if asked_at is not None and ctx.now < asked_at + _ASK_AGAIN and _DENIED_SINCE not in ctx.facts:
        return False
    ctx.facts[_ASKED_AT] = to_iso(ctx.now)
    answer = witnesses.find_witness(ctx)
    if isinstance(answer, Denied):
        _wait_or_give_up(turn, ctx, answer, world=world)
        return True
    ctx.facts.pop(_DENIED_SINCE, None)
    if isinstance(answer, Witnessed):
        witnesses.note_witness(ctx, answer.how, answer.fault.action)
    assert isinstance(answer, Witnessed | Unseen)  # noqa: S101 - the third was dealt with
    return False


def _wait_or_give_up(turn: Turn, ctx: Context, answer: Denied, *, world: World) -> None:
    since = datetime.fromisoformat(ctx.facts.setdefault(_DENIED_SINCE, to_iso(ctx.now)))
    others = start.get_incidents_calling(turn.run).exclude(pk=turn.run.incident_id)
    is_late = ctx.now - since < _MAY_COME_LATE
    if is_late and not others.exists():
        text = f"{answer.fault} was told by a text alone, and {ctx.node} does not show it"
        ending.wait(turn, Wait(f"{text}: {answer.how}. It is looked at again.", _LOOK_AGAIN))
        return
    run = turn.run
    run.facts[start.UNWITNESSED] = True
    reason = f"{answer.fault} was told by a text alone, which anybody may have written"
    verdict = Withdraw(f"{reason}, and {ctx.node} itself denies it: {answer.how}", hands_back=True)
    ask = (
        f"See who wrote it (kintsugi incident why {run.incident_id}), and look at {ctx.node}. If"
        f" it is real: kintsugi runbook start {run.runbook} {run.incident_id}. If not, mark the"
        " incident a false alarm."
    )
    withdraw.withdraw(run, verdict, now=turn.now, world=world, ask=ask)
