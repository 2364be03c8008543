"""Before a node is taken out for what a text or a person alone has told: the node itself is asked.

Of a person's report it is asked where a detector can see what the report names; of a fault that was
refuted in an earlier run, whoever has told of it.

What its own kernel and detectors deny takes no node out of service, and gives back what was taken
while the node could not be asked: forged lines fill no cap. Whoever could not be asked keeps
today's rules: the node is drained, and confirmed before anything else is done to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import Action
from detectors.provenance import Forger, Provenance, Transport
from incidents.triage import sweep
from runbooks.engine import result as ending
from runbooks.engine import start, withdraw
from runbooks.engine.result import RunTurn
from runbooks.lease.withdrawal_reasons import UNWITNESSED, Withdraw
from runbooks.models import Run
from runbooks.node import witnesses
from runbooks.node.witnesses import Denied, Testimony, Unseen, Witnessed
from runbooks.step import ActiveFault, Context, Wait, World, format_iso, get_fact_time
from runbooks.steps.drain import AdoptDrain, Drain

# A kernel's line may come here by syslog before journald has written it: measured as seconds on a
# busy node (our choice).
_MAY_COME_LATE = timedelta(minutes=2)
_LOOK_AGAIN = timedelta(seconds=30)
# How often one is asked who gave no answer (our choice: as the guards are).
_ASK_AGAIN = timedelta(minutes=1)
_TAKES_NODE = (Drain.name, AdoptDrain.name)
_DENIED_SINCE, _ASKED_AT = "denied_since", "witness_asked_at"


@dataclass
class EarlyLook:
    """The node is asked while Slurm is: neither answer depends on the other. What it says counts
    where `is_denied` then asks about the same faults."""

    _candidates: Sequence[ActiveFault] = ()
    _answer: Testimony | None = None

    def ask(self, run: Run, ctx: Context) -> None:
        """Where `is_denied` would, by what the rows say now."""
        if not _needs_witness(run, ctx):
            return
        candidates = witnesses.list_candidates(ctx)
        if _list_believed(run, ctx, candidates) or _was_just_asked(ctx):
            return
        self._candidates, self._answer = candidates, witnesses.find_witness(ctx, candidates)

    def get_answer(self, candidates: Sequence[ActiveFault]) -> Testimony | None:
        """None: nobody was asked about these."""
        return self._answer if candidates == self._candidates else None


def is_denied(turn: RunTurn, ctx: Context, *, world: World, early: EarlyLook) -> bool:
    """Whether the turn ends here, since the node's own witnesses deny what the run is for."""
    run = turn.run
    if not _needs_witness(run, ctx):
        return False
    candidates = witnesses.list_candidates(ctx)
    believed = _list_believed(run, ctx, candidates)
    if believed:
        strongest = max(believed, key=lambda fault: fault.action.rank)
        return _is_chosen_anew(turn, ctx, strongest, candidates, world=world)
    if _was_just_asked(ctx):
        return False
    ctx.facts[_ASKED_AT] = format_iso(ctx.now)
    answer = early.get_answer(candidates) or witnesses.find_witness(ctx, candidates)
    least = _get_least_action(run)
    if isinstance(answer, Witnessed) and not answer.action.at_least(least):
        # A text called for the repair, and stands no more.
        answer = Denied(answer.fault, f"it shows no fault that calls for a repair: {answer.how}")
    if isinstance(answer, Denied):
        _wait_or_give_up(turn, ctx, answer, world=world)
        return True
    ctx.facts.pop(_DENIED_SINCE, None)
    if isinstance(answer, Witnessed):
        _keep_witness(ctx, answer)
    assert isinstance(answer, Witnessed | Unseen)  # noqa: S101 - the third was dealt with
    return False


def is_spared(run: Run, ctx: Context) -> bool:
    """Whether a run that may act would leave the node in service now: what it is for was told by
    nobody who is believed, and the node denies it. A look only."""
    candidates = witnesses.list_candidates(ctx)
    if _list_believed(run, ctx, candidates):
        return False
    return isinstance(witnesses.find_witness(ctx, candidates), Denied)


def _needs_witness(run: Run, ctx: Context) -> bool:
    """Whether the run is to take its node out or to reset its GPUs, and nobody who can be believed
    has seen its fault."""
    takes_node = any(row["step"] in _TAKES_NODE for row in run.plan)
    is_asked_for = takes_node or _get_least_action(run) is Action.RESET_GPU
    return is_asked_for and not witnesses.is_witnessed(ctx)


def _list_believed(run: Run, ctx: Context, candidates: Sequence[ActiveFault]) -> list[ActiveFault]:
    """Those that speak for the run and need no witness."""
    least = _get_least_action(run)
    repairs = (fault for fault in candidates if fault.action.at_least(least))
    return [fault for fault in repairs if _is_believed(ctx, fault)]


def _was_just_asked(ctx: Context) -> bool:
    """Whether the node has given no answer a moment ago."""
    asked_at = get_fact_time(ctx, _ASKED_AT)
    is_recent = asked_at is not None and ctx.now < asked_at + _ASK_AGAIN
    return is_recent and _DENIED_SINCE not in ctx.facts


def _get_least_action(run: Run) -> Action:
    """The least that a fault must call for, to speak for the run."""
    return min((Action.RESET_GPU, Action(run.incident.action)), key=lambda action: action.rank)


def _is_believed(ctx: Context, fault: ActiveFault) -> bool:
    if not fault.is_believed or [fault.fault_type, fault.resource] in _get_doubted(ctx):
        return False
    return not (fault.reporter and witnesses.list_detectors(fault.fault_type))


def _get_doubted(ctx: Context) -> list[list[str]]:
    doubted: list[list[str]] = ctx.facts.get(start.DOUBTED, [])
    return doubted


def _describe_source(ctx: Context, fault: ActiveFault) -> str:
    """Why it is not believed, as the end of a sentence that begins with the fault."""
    if [fault.fault_type, fault.resource] in _get_doubted(ctx):
        return "was told before and was not there"
    if fault.reporter:
        return f"was reported by {fault.reporter}, and seen by nobody else"
    return "was told by a text alone, which anybody may have written"


def _is_chosen_anew(
    turn: RunTurn,
    ctx: Context,
    strongest: ActiveFault,
    candidates: Sequence[ActiveFault],
    *,
    world: World,
) -> bool:
    """The run is for what is believed. What a text alone has told and calls for more counts where
    the node shows it too. Whether the turn ends here, since that calls for another run than this.
    """
    doubted = [fault for fault in candidates if fault.action.rank > strongest.action.rank]
    answer = witnesses.find_witness(ctx, doubted) if doubted else None
    if isinstance(answer, Witnessed) and answer.action.rank > strongest.action.rank:
        _keep_witness(ctx, answer)
        reason = f"{answer.fault}, of the same incident, is seen on {ctx.node} and calls for more"
        is_for_another = turn.run.claimed_at is None and not _is_own(ctx, answer.fault)
    else:
        how = f"{strongest}, which no user of {ctx.node} can have written"
        severity = witnesses.get_severity(strongest.fault_type)
        witnesses.note_witness(ctx, how, strongest.action, severity)
        reason = (
            f"{ctx.fault_type} was told by a text alone, which anybody may have written, and of its"
            f" incident only {strongest} is believed"
        )
        is_for_another = any(_is_own(ctx, fault) for fault in doubted)
    if is_for_another:
        withdraw.withdraw(turn.run, Withdraw(reason, hands_back=True), now=turn.now, world=world)
    return is_for_another


def _is_own(ctx: Context, fault: ActiveFault) -> bool:
    return (fault.fault_type, fault.resource) == (ctx.fault_type, ctx.resource)


def _keep_witness(ctx: Context, answer: Witnessed) -> None:
    fault = answer.fault
    witnesses.note_witness(ctx, answer.how, answer.action, answer.severity)
    ctx.facts[witnesses.VOUCHED] = True
    if answer.action.at_least(fault.action):
        ctx.facts[witnesses.UNRECORDED] = [fault.fault_type, fault.resource]


def record_witness(run: Run, now: datetime) -> None:
    """What the node has shown counts for others from now on. That takes the locks of ingest and
    would keep the drain waiting, so it comes after the act. Where a worker dies before, the fact is
    left, and the run's next turn begins with this; a second time changes nothing."""
    if witnesses.UNRECORDED not in run.facts:
        return
    fault_type, resource = run.facts[witnesses.UNRECORDED]
    told_by = Provenance(run.place, Transport.SSH, "its SSH host key", forger=Forger.ROOT)
    sweep.record_witness(fault_type, resource, told_by=told_by, now=now)
    del run.facts[witnesses.UNRECORDED]


def _wait_or_give_up(turn: RunTurn, ctx: Context, answer: Denied, *, world: World) -> None:
    since = datetime.fromisoformat(ctx.facts.setdefault(_DENIED_SINCE, format_iso(ctx.now)))
    others = start.get_incidents_calling(turn.run).exclude(pk=turn.run.incident_id)
    is_late = ctx.now - since < _MAY_COME_LATE
    if is_late and not others.exists():
        source = _describe_source(ctx, answer.fault)
        text = f"{answer.fault} {source}, and {ctx.node} does not show it"
        ending.wait(turn, Wait(f"{text}: {answer.how}. It is looked at again.", _LOOK_AGAIN))
        return
    run = turn.run
    run.facts[UNWITNESSED] = True
    reason = f"{answer.fault} {_describe_source(ctx, answer.fault)}"
    verdict = Withdraw(f"{reason}, and {ctx.node} itself denies it: {answer.how}", hands_back=True)
    ask = (
        f"See who wrote it (kintsugi incident why {run.incident_id}), and look at {ctx.node}. If"
        f" it is real: kintsugi runbook start {run.runbook} {run.incident_id}. If not, mark the"
        " incident a false alarm."
    )
    withdraw.withdraw(run, verdict, now=turn.now, world=world, ask=ask)
