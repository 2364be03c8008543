"""How a turn ends: the step's row, the run, the incident and its timeline, in one transaction under
the lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db import transaction

from detectors.faults import Recovery
from incidents.db.prepared import Given, Prepared
from incidents.polling import poll_pauses
from incidents.state import transitions
from incidents.triage import sweep
from incidents.vocabulary.changes import Refused as ActRefused
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks.engine import audit, keep_drained, outcome_history, persons_resume
from runbooks.engine.start import format_plan
from runbooks.fleet import fleet, room_queue, step_backs
from runbooks.guards.table import GuardRefused, Refusal
from runbooks.lease import lease
from runbooks.lease.lease import REFUSED, SAID_AT
from runbooks.models import Run, RunState, StepRun
from runbooks.node import drains, overwritten, return_to_service
from runbooks.shadow import episode_facts
from runbooks.slurm.ownership import TakenOver
from runbooks.step import (
    Back,
    Context,
    Done,
    Failed,
    HandedOver,
    NotCured,
    PassedOn,
    Result,
    Step,
    StepEffect,
    Wait,
    format_iso,
)
from runbooks.steps.pause_pollers import get_holder

_KINTSUGI = "kintsugi"
# Facts of a run: why what was seen of its node counts no more, and how often it has gone back to
# look again.
LOOK_ANEW = "look_anew"
TIMES_BACK = "times_back"
# How long a node that a run holds is not looked at while a guard refuses the next act: as long as
# while its jobs are waited for.
_LONGEST_UNSEEN = timedelta(minutes=5)
# When a node that was left drained for another incident is looked at: a run of that one begins
# within a sweep (our choice: some sweeps).
_LEFT_NODE = timedelta(minutes=1)
_ENOUGH_BACK = "It goes on when enough nodes are back in service. "
# Until when, where that is no time: what has one is asked again then.
UNTIL: Mapping[Refusal, str] = {
    Refusal.STOPPED: "It goes on when the stop switch is released. ",
    Refusal.MODE: "It goes on when the mode allows it. ",
    Refusal.BREAKER: "It goes on when a person has closed the breaker. ",
    Refusal.WIDER_CAUSE: "It goes on when that is restored. ",
    Refusal.UNREACHABLE_ALONE: "It goes on when anything else speaks against it. ",
    Refusal.MAINTENANCE: "It goes on when the maintenance is over. ",
    Refusal.DECOMMISSIONED: "It goes on if the node stays. ",
    Refusal.CAP: _ENOUGH_BACK,
    Refusal.POD_FLOOR: _ENOUGH_BACK,
    Refusal.JOB_FLOOR: _ENOUGH_BACK,
}


_ROWS_OF_STEP = Prepared(
    lambda: StepRun.objects.filter(run=Given("run"), index=Given("index")).order_by("pk")
)


@dataclass
class RunTurn:
    """One turn of a run at a step; without a step when the turn is about the whole run.

    `tried` is the step's attempt whose outcome is not known, `waiting` the row of what it waits
    for.
    """

    run: Run
    step: Step | None
    now: datetime
    tried: StepRun | None = None
    waiting: StepRun | None = None

    def __post_init__(self) -> None:
        if self.step is not None:
            for row in _ROWS_OF_STEP.objects(run=self.run.pk, index=self.run.step):
                self.tried = row if row.outcome == StepRun.Outcome.ATTEMPTED else self.tried
                self.waiting = row if row.outcome == StepRun.Outcome.WAITING else self.waiting

    @property
    def key(self) -> str:
        """Names this step of this run for ever; made anew where the run has gone back to it."""
        name = self.step.name if self.step is not None else "run"
        key = f"{self.run.pk}-{self.run.step}-{name}"
        times_back = self.run.facts.get(TIMES_BACK, 0)
        return f"{key}_{times_back}" if times_back else key

    def find_held_nodes(self) -> frozenset[str]:
        """Those that our other runs have been let take out, as first read in this turn: for what
        people are asked. Guards read them anew."""
        return self._held_nodes

    @cached_property
    def _held_nodes(self) -> frozenset[str]:
        return fleet.get_held_nodes(self.run, self.now)

    @property
    def attempted_at(self) -> datetime | None:
        """When an attempt was stored whose outcome is not known."""
        return self.tried.started_at if self.tried is not None else None

    def note_outcome(
        self, outcome: StepRun.Outcome, text: str, *, evidence: Mapping[str, str] | None = None
    ) -> None:
        """On the row of the attempt, else of the wait, else on a row of its own."""
        if self.step is None:
            return
        row = self.tried or self.waiting or self.build_row()
        row.outcome, row.text, row.finished_at = outcome, text, self.now
        row.evidence = dict(evidence or {})
        row.save()
        if (
            self.waiting is not None and row.pk != self.waiting.pk
        ):  # what an attempt waited for ends with it
            self.waiting.delete()
            self.waiting = None

    def note_wait(self, text: str) -> None:
        """An attempt of unknown outcome stays what it is while it is waited for."""
        if self.step is None:
            return
        self.waiting = self.waiting or self.build_row()
        self.waiting.outcome, self.waiting.text = StepRun.Outcome.WAITING, text
        self.waiting.save()

    def build_row(self) -> StepRun:
        name = self.step.name if self.step is not None else ""
        return StepRun(
            run=self.run, index=self.run.step, name=name, key=self.key, started_at=self.now
        )


def store_attempt(turn: RunTurn) -> None:
    """Before the act. A step that only looks needs no row: what it saw is stored afterwards."""
    run, step = turn.run, turn.step
    if step is None or step.effect is StepEffect.READ_ONLY:
        return
    with transaction.atomic(savepoint=False):
        lease.update(run, facts=run.facts)
        is_again = turn.tried is not None
        if is_again:
            turn.note_outcome(
                StepRun.Outcome.FAILED, "It did not take: nothing of it was seen on the node."
            )
        turn.tried = turn.build_row()
        turn.tried.outcome = StepRun.Outcome.ATTEMPTED
        turn.tried.save()
        if step.recovery is not None and not is_again:
            outcome_history.record_attempt(run, step.recovery, turn.now)
        _audit(turn, audit.Phase.BEGUN, step.plan.format(node=run.place))


def store_result(
    turn: RunTurn, result: Result, *, is_last: bool, outcome: StepRun.Outcome = StepRun.Outcome.DONE
) -> None:
    """The step's result, and what follows from it."""
    if isinstance(result, Wait):
        wait(turn, result)
    elif isinstance(result, Failed):
        fail(turn, result)
    elif isinstance(result, NotCured):
        _escalate(turn, result)
    elif isinstance(result, PassedOn):
        _pass_on(turn, result)
    elif isinstance(result, HandedOver):
        _hand_over(turn, result)
    elif isinstance(result, Back):
        _return_to_previous_step(turn, result)
    else:
        _advance_to_next_step(turn, result, is_last=is_last, outcome=outcome)


def _return_to_previous_step(turn: RunTurn, back: Back) -> None:
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.FAILED, back.text)
        _record(turn, "run_note", back.text)
        lease.release(turn.run, wake_at=turn.now, step=turn.run.step - 1, waiting_for="")


def _advance_to_next_step(
    turn: RunTurn, done: Done, *, is_last: bool, outcome: StepRun.Outcome
) -> None:
    run, step, now = turn.run, turn.step, turn.now
    with transaction.atomic():
        _audit(turn, audit.Phase.DONE, done.text)
        turn.note_outcome(outcome, done.text, evidence=done.evidence)
        _forget_refusal(run)
        if step is not None and step.recovery is not None:
            run.facts["recovery"] = step.recovery.value
        if done.boot is not None and run.node is not None:
            booted = done.boot
            sweep.record_node_restart(
                run.place, booted_at=booted.booted_at, boot_id=booted.boot_id, now=now
            )
        if done.cause is not None:
            run.facts["resource"] = done.cause.resource
            lease.update(run, fault_type=done.cause.fault_type)
        if done.reset is not None:
            sweep.record_gpu_reset(done.reset.resources, reset_at=done.reset.at, now=now)
        if is_last:
            _succeed(turn, done.text)
            return
        if run.step == 0 and run.node is not None:
            _start_repair(turn, done.text)
        elif done.is_told:
            needs_human = "" if run.facts.pop("asked", None) else None
            _record(turn, "step_done", done.text, needs_human=needs_human)
        lease.release(run, wake_at=now, step=_find_next_step(run, done.skips), waiting_for="")


def _find_next_step(run: Run, skips: Sequence[str]) -> int:
    """The next one that is not spared; the last one is never spared."""
    index, last = run.step + 1, len(run.plan) - 1
    while index < last and run.plan[index]["step"] in skips:
        index += 1
    return index


def _start_repair(turn: RunTurn, text: str) -> None:
    """The node is out: the repair has begun. For a further rung it has been out since the first."""
    incident = turn.run.incident
    since = incident.out_of_service_at if incident.restored_at is None else None
    acted = transitions.act(
        turn.run.incident_id,
        Trigger.REPAIR_STARTED,
        actor=_KINTSUGI,
        note=text,
        now=turn.now,
        out_of_service_at=since or turn.now,
        needs_human="",
    )
    if isinstance(acted, ActRefused):  # a person closed it meanwhile; the next turn sees that
        _record(turn, "step_done", text)


def _succeed(turn: RunTurn, text: str) -> None:
    """The incident was cured by the last rung that the run has tried. A run beside nodes cures
    nothing."""
    run = turn.run
    if run.node is None:
        conclude(turn, text)
        return
    _finish(turn, RunState.SUCCEEDED, text)
    _act(turn, Trigger.REPAIR_SUCCEEDED, text, restored_at=turn.now, **_get_recovery(run))
    run.facts.pop("asked", None)


def _get_recovery(run: Run) -> dict[str, Any]:
    """What the incident was cured by, as a change of it."""
    recovery = run.facts.get("recovery")
    return {"recovery": Recovery(recovery)} if recovery else {}


def _pass_on(turn: RunTurn, passed: PassedOn) -> None:
    """The run has done its part. Its node is not back in service, and is looked after until the
    other incident's run has it."""
    run = turn.run
    run.facts[drains.LEFT_FOR] = {"incident": passed.incident, "hands_back": True}
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.DONE, passed.text)
        _finish(turn, RunState.SUCCEEDED, passed.text)
        changes = _get_recovery(run)
        _act(turn, Trigger.REPAIR_SUCCEEDED, passed.text, restored_at=None, **changes)


def wait(turn: RunTurn, waiting: Wait) -> None:
    """Look again later. A line for people only when the question or the sentence is new."""
    run = turn.run
    with transaction.atomic():
        is_new = waiting.ask != run.facts.get("asked", "") or turn.waiting is None
        turn.note_wait(waiting.text)
        if waiting.is_told and (is_new or waiting.is_report):
            _record(turn, waiting.kind, waiting.text, needs_human=waiting.ask or None)
        if waiting.ask:
            run.facts["asked"] = waiting.ask
        _forget_refusal(run)
        _schedule_retry(turn, waiting.text, at=turn.now + waiting.again_in)


def refuse(turn: RunTurn, refused: GuardRefused, *, maintenance: str = "") -> None:
    """The guards said no: told once for each kind of reason, asked again at the time they name.

    `maintenance` is what the node is under then, whichever guard spoke: it is looked at anew
    afterwards.
    """
    run = turn.run
    retry_at = (refused.ask_again_at or turn.now) + room_queue.get_queue_delay(run, refused)
    # Until then people may have resumed the node, or taken it over.
    look_at = min(retry_at, turn.now + _LONGEST_UNSEEN)
    goes_on = UNTIL.get(refused.kind, "")
    text = f"{refused.reason}. {goes_on}Asked again at {retry_at:%Y-%m-%d %H:%M:%S %Z}."
    with transaction.atomic():
        if run.facts.get(REFUSED) != refused.kind:
            row = turn.build_row()
            row.outcome, row.text, row.finished_at = StepRun.Outcome.REFUSED, text, turn.now
            row.save()
            _record(turn, "run_refused", text)
            run.facts[REFUSED] = str(refused.kind)
        if maintenance:
            run.facts[LOOK_ANEW] = f"The maintenance of {run.place} is over"
        _schedule_retry(turn, text, at=look_at)


def return_to_inspection(turn: RunTurn, *, index: int) -> None:
    """Goes back to the step that looks at the node: somebody has worked on it since."""
    run = turn.run
    text = f"{run.facts.pop(LOOK_ANEW)}: Kintsugi looks at it anew before it goes on."
    with transaction.atomic():
        run.facts[TIMES_BACK] = run.facts.get(TIMES_BACK, 0) + 1
        _forget_refusal(run)
        _record(turn, "run_note", text)
        lease.release(run, wake_at=turn.now, step=index, waiting_for=text)


def store_note(turn: RunTurn, text: str, *, again_in: timedelta) -> None:
    """Something went on beside the steps. Told once while the sentence stays the same."""
    run = turn.run
    with transaction.atomic():
        if run.facts.get("noted") != text:
            _record(turn, "run_note", text)
            run.facts["noted"] = text
        _schedule_retry(turn, text, at=turn.now + again_in)


def _schedule_retry(turn: RunTurn, text: str, *, at: datetime) -> None:
    """Waits, and says for what, as it is now."""
    turn.run.facts[SAID_AT] = format_iso(turn.now)
    lease.release(turn.run, wake_at=at, waiting_for=text)


def fail(turn: RunTurn, failed: Failed) -> None:
    """Stop; the node stays as it is, and a person is asked."""
    with transaction.atomic():
        text = f"{failed.text} {turn.run.facts.get('unfinished', '')}".strip()
        _audit(turn, audit.Phase.FAILED, text)
        turn.note_outcome(StepRun.Outcome.FAILED, text)
        _finish(turn, RunState.FAILED, text)
        _act(turn, Trigger.REPAIR_FAILED, text, needs_human=failed.ask)


def _escalate(turn: RunTurn, result: NotCured) -> None:
    """The run ends, its rung is judged, and the node stays ours: the incident calls for the next
    rung at once."""
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.FAILED, result.text, evidence=result.evidence)
        if turn.step is not None and turn.step.recovery is not None and turn.tried is None:
            # A rung that cannot be tried has not cured either: it is not called for again.
            outcome_history.record_attempt(turn.run, turn.step.recovery, turn.now)
        outcome_history.record_verification(
            turn.run, has_cured=False, why=result.text, now=turn.now
        )
        _finish(turn, RunState.NOT_CURED, result.text)
        _act(turn, Trigger.REPAIR_FAILED, result.text, needs_human=result.ask)


def end_attempt(turn: RunTurn, text: str, *, again_in: timedelta) -> None:
    """The act was not made, since the node had changed just before it: the attempt is over."""
    with transaction.atomic():
        _audit(turn, audit.Phase.FAILED, text)
        turn.note_outcome(StepRun.Outcome.FAILED, text)
        _record(turn, "run_note", text)
        _schedule_retry(turn, text, at=turn.now + again_in)


def take_over(turn: RunTurn, taken: TakenOver, *, left: str = "") -> None:
    """A person changed the node. Where they were asked to, the run has succeeded; else it stops.
    `left`: what became of what the run had asked Slurm for."""
    run = turn.run
    with transaction.atomic():
        if taken.is_resumed and run.facts.get("asked_to_resume"):
            turn.note_outcome(StepRun.Outcome.DONE, f"{taken.text} after the reboot.")
            _succeed(turn, f"{taken.text} after the reboot.")
            return
        stops = f"{taken.text}. Kintsugi respects that and stops run {run.pk}."
        sentences = [stops, left, run.facts.get("unfinished", "")]
        text = " ".join(sentence for sentence in sentences if sentence)
        turn.note_outcome(StepRun.Outcome.REFUSED, text)
        if taken.is_resumed:
            drains.note_persons_resume(run.facts, turn.now)
        _finish(turn, RunState.ABORTED, text)
        ask = "Resolve the incident when the fault is mended."
        _act(turn, Trigger.REPAIR_WITHDRAWN, text, needs_human=ask)


def restore_persons_drain(turn: RunTurn, ctx: Context) -> bool:
    """Whether the turn ends here: a person's drain came in the moment of our last act and is put
    back, or the accounts that would say so are waited for."""
    found = overwritten.find_overwritten(ctx)
    if found is None:
        return False
    if isinstance(found, overwritten.NotRecorded):
        text = f"Slurm's accounts are asked whether anybody has drained {ctx.node} meanwhile."
        if turn.run.finished_at is None:
            _schedule_retry(turn, text, at=turn.now + overwritten.LOOK_AGAIN)
        else:
            lease.release(turn.run, wake_at=turn.now + overwritten.LOOK_AGAIN)
        return True
    audit.record_run(turn.run, "drain", audit.Phase.BEGUN, "A person's drain.", now=turn.now)
    text = overwritten.put_back(ctx, found)
    if drains.is_lent(ctx.facts):
        store_note(turn, f"{text}.", again_in=timedelta(0))
    elif turn.run.finished_at is None:
        take_over(turn, TakenOver(text, is_resumed=False))
    else:
        _store_restored(turn, f"{text}.")
    return True


def _store_restored(turn: RunTurn, text: str) -> None:
    """The run is over: it had given the node back, or a person had ended it."""
    turn.run.facts.pop(return_to_service.GIVEN_BACK_AT, None)
    has_ended_well = turn.run.state == RunState.SUCCEEDED
    end = "its repair had ended well" if has_ended_well else "its repair was ended before"
    ask = f"See whether {turn.run.place} is to stay out: {end}."
    with transaction.atomic():
        _record(turn, "run_note", text, needs_human=ask)
        is_unchecked = overwritten.is_unchecked(turn.run.facts)
        wake_at = turn.now + overwritten.LOOK_AGAIN if is_unchecked else None
        lease.release(turn.run, wake_at=wake_at)


def conclude(turn: RunTurn, text: str) -> None:
    """What acted on no node has come to its end: a line, and nothing of the incident is changed."""
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.DONE, text)
        _finish(turn, RunState.SUCCEEDED, text)
        _record(turn, "run_ended", text)


def withdraw(turn: RunTurn, done: Done, *, ask: str = "") -> None:
    """`ask` is what a person is asked, where the node is left drained although something stands on
    it."""
    with transaction.atomic():
        _finish(turn, RunState.WITHDRAWN, done.text)
        if State(turn.run.incident.state) is State.REPAIRING:
            _act(turn, Trigger.REPAIR_WITHDRAWN, done.text, needs_human=ask)
        else:
            _record(turn, "run_withdrawn", done.text, needs_human=ask or None)
        transitions.note_withdrawal(turn.run.incident_id, done.text, turn.now)


def store_shadow(run: Run, steps: Sequence[Step], *, remark: str, now: datetime) -> None:
    """What the run would do, told in one line; nothing was touched."""
    text = f"Shadow mode: Kintsugi would {format_plan(run)}.{remark}"
    rows = [_build_shadow_row(run, index, step, now) for index, step in enumerate(steps)]
    with transaction.atomic():
        StepRun.objects.bulk_create(rows)
        turn = RunTurn(run, None, now)
        _finish(turn, RunState.SHADOWED, text)
        _record(turn, "run_shadowed", text)


def _build_shadow_row(run: Run, index: int, step: Step, now: datetime) -> StepRun:
    text = f"would {step.plan.format(node=run.place)}"
    return StepRun(
        run=run,
        index=index,
        name=step.name,
        outcome=StepRun.Outcome.WOULD_RUN,
        text=text,
        started_at=now,
        finished_at=now,
    )


def _hand_over(turn: RunTurn, handed: HandedOver) -> None:
    with transaction.atomic():
        turn.note_outcome(StepRun.Outcome.DONE, handed.text)
        turn.run.facts["handed_over"] = True
        _finish(turn, RunState.SUCCEEDED, handed.text)
        _act(turn, Trigger.REPAIR_WITHDRAWN, handed.text, needs_human=handed.ask)


def _audit(turn: RunTurn, phase: audit.Phase, text: str) -> None:
    """A line of the audit log, where the step acts and was begun: what was only looked at is no
    act."""
    step = turn.step
    if step is not None and step.effect is not StepEffect.READ_ONLY and turn.tried is not None:
        audit.record_run(turn.run, step.name, phase, text, now=turn.now, key=turn.key)


def _finish(turn: RunTurn, state: RunState, outcome: str) -> None:
    poll_pauses.end(get_holder(turn.run.pk))
    wake_at = get_next_check_at(turn.run, turn.now)
    if overwritten.is_unchecked(turn.run.facts):
        wake_at = turn.now + overwritten.LOOK_AGAIN
    lease.release(
        turn.run,
        wake_at=wake_at,
        state=state,
        outcome=outcome,
        waiting_for="",
        finished_at=turn.now,
    )
    step_back_if_wrong(turn.run, turn.now)


def step_back_if_wrong(run: Run, now: datetime) -> bool:
    """Whether the arming or the mode by which the run acted has gone down a rung, since that was
    wrong."""
    with transaction.atomic():
        text = step_backs.step_back(run, now)
        if text:
            audit.record_run(run, "step_back", audit.Phase.DONE, text, now=now)
    return bool(text)


def get_next_check_at(run: Run, now: datetime) -> datetime | None:
    """When an ended run is looked at once more, and None where that is not needed."""
    facts = run.facts
    wake_at = persons_resume.get_next_check_at(facts, now)
    wake_at = wake_at or return_to_service.get_next_check_at(facts)
    wake_at = wake_at or episode_facts.get_next_look_at(facts)
    if drains.LEFT_FOR in facts:
        wake_at = wake_at or now + _LEFT_NODE
    return wake_at or keep_drained.get_next_check_at(facts, now)


def _act(turn: RunTurn, trigger: Trigger, text: str, **changes: Any) -> None:
    """Moves the incident; where its state does not allow that, the timeline and the question are
    written alone."""
    acted = transitions.act(
        turn.run.incident_id, trigger, actor=_KINTSUGI, note=text, now=turn.now, **changes
    )
    if isinstance(acted, ActRefused):
        _record(turn, "run_ended", text, needs_human=changes.get("needs_human"))


def _record(turn: RunTurn, kind: str, text: str, *, needs_human: str | None = None) -> None:
    transitions.record(
        turn.run.incident_id, kind=kind, text=text, now=turn.now, needs_human=needs_human
    )


def _forget_refusal(run: Run) -> None:
    run.facts.pop(REFUSED, None)
    run.facts.pop("noted", None)
