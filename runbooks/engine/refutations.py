"""While jobs go on a drained node: its fault is looked for there at once, and a fault that is
refuted twice keeps no node.

A look takes a second or two and changes nothing. What it answers is one of three:

1. Seen: people read so, and the run goes on with waiting for the jobs.
2. Looked and well: nothing is done to any job; a second look some minutes later that says the same
   ends the run, the node is given back, and the rule that told of the fault counts as wrong.
3. Could not look: people read why, and it is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from incidents.state import transitions
from runbooks.engine import result as ending
from runbooks.engine import withdraw
from runbooks.engine.result import RunTurn
from runbooks.lease import lease
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED, Withdraw
from runbooks.models import Run
from runbooks.node import drains, witnesses
from runbooks.slurm.ownership import Held
from runbooks.step import Context, Done, Refuted, Wait, World, format_iso, get_fact_time
from runbooks.steps.ask_person import AskPerson
from runbooks.steps.confirm_on_node import ConfirmOnNode

# The fact of a run: when its fault was looked for last while jobs went on.
_LOOKED_AT = "looked_at"
_TOLD = "look_told"
# How often one is asked who gave no answer. Our choice: as jobs are looked at.
_LOOK_AGAIN = timedelta(minutes=5)


def ends_turn(turn: RunTurn, ctx: Context, *, world: World) -> bool:
    """Whether the turn ends here, since a look at the node denies what the run is for."""
    if not _is_due(turn, ctx):
        return False
    ctx.facts[_LOOKED_AT] = format_iso(ctx.now)
    result = ConfirmOnNode().run(ctx)
    if isinstance(result, Refuted):
        give_back(turn, result, world=world)
        return True
    if isinstance(result, Done):
        _note_seen(turn, ctx, result)
        return False
    assert isinstance(result, Wait)  # noqa: S101 - a look ends in no other way
    if witnesses.REFUTED_SINCE in ctx.facts:
        ending.wait(turn, result)
        return True
    if ctx.facts.get(_TOLD) != result.ask:
        ctx.facts[_TOLD] = result.ask
        transitions.record(turn.run.incident_id, kind="run_note", text=result.text, now=ctx.now)
    return False


def give_back(turn: RunTurn, refuted: Refuted, *, world: World) -> None:
    """Ends the run, and says which rule has told what is not there."""
    run = turn.run
    run.facts[UNWITNESSED] = True
    reason = note_refuted(run, refuted)
    ask = (
        f"See what told of it (kintsugi incident why {run.incident_id}). If it is real all the"
        f" same: kintsugi runbook start {run.runbook} {run.incident_id}. If not, mark the incident"
        " a false alarm."
    )
    verdict = Withdraw(reason, hands_back=True)
    withdraw.withdraw(run, verdict, now=turn.now, world=world, ask=ask)


def note_refuted(run: Run, refuted: Refuted) -> str:
    """Keeps what is not there, and says so, with which rule has told it: without its full stop."""
    run.facts[REFUTED] = [[fault.fault_type, fault.resource] for fault in refuted.faults]
    names = " and ".join(dict.fromkeys(fault.fault_type for fault in refuted.faults))
    count = "The rule" if len(refuted.faults) == 1 else "Each rule"
    return f"{refuted.text}. {count} that told of {names} counts as wrong here"


def count_by_type() -> dict[str, int]:
    """How many runs have ended since their fault was refuted, by its type."""
    refuted = Run.objects.filter(**{f"facts__{REFUTED}__isnull": False})
    return dict(refuted.values_list("fault_type").annotate(Count("pk")).order_by())


@dataclass(frozen=True)
class WrongRule:
    """One fault type: so many runs ended since it was told of and was not there. `incidents`:
    theirs, the last first."""

    fault_type: str
    refuted: int
    last_at: datetime
    incidents: tuple[int, ...]


def list_wrong_rules(since: datetime) -> list[WrongRule]:
    """Fault types that were told of and refuted, of runs that began since then: the most often
    refuted first."""
    began = Run.objects.filter(started_at__gte=since).order_by("-pk")
    refuted: dict[str, list[Run]] = {}
    for run in began.filter(facts__has_key=REFUTED):
        for fault_type in {fault_type for fault_type, _ in run.facts[REFUTED]}:
            refuted.setdefault(fault_type, []).append(run)
    rows = [_build_wrong_rule(name, runs) for name, runs in refuted.items()]
    return sorted(rows, key=lambda row: (-row.refuted, row.fault_type))


def _build_wrong_rule(fault_type: str, runs: list[Run]) -> WrongRule:
    last_at = max(run.finished_at or run.started_at for run in runs)
    incidents = tuple(dict.fromkeys(run.incident_id for run in runs))
    return WrongRule(fault_type, len(runs), last_at, incidents)


def _is_due(turn: RunTurn, ctx: Context) -> bool:
    """Between the drain and the step that confirms, or asks a person about what detectors see,
    while jobs keep the run from getting there."""
    run = turn.run
    ahead = {row["step"] for row in run.plan[run.step + 1 :]}
    asks = AskPerson.name in ahead and bool(witnesses.list_detectors(ctx.fault_type))
    is_ahead = ConfirmOnNode.name in ahead or asks
    if not is_ahead or witnesses.CONFIRMED_AT in ctx.facts or turn.attempted_at is not None:
        return False
    looked_at = get_fact_time(ctx, _LOOKED_AT)
    is_recent = looked_at is not None and ctx.now < looked_at + _LOOK_AGAIN
    if is_recent and witnesses.REFUTED_SINCE not in ctx.facts:
        return False
    is_ours = "drained_at" in ctx.facts and isinstance(drains.evaluate_hold(ctx), Held)
    return is_ours and not ctx.state.is_drained and not ctx.maintenance


def _note_seen(turn: RunTurn, ctx: Context, seen: Done) -> None:
    if seen.cause is not None:
        ctx.facts["resource"] = seen.cause.resource
        lease.update(turn.run, fault_type=seen.cause.fault_type)
        ctx.fault_type, ctx.resource = seen.cause.fault_type, seen.cause.resource
    transitions.record(turn.run.incident_id, kind="step_done", text=seen.text, now=ctx.now)
