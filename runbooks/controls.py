"""What people do: approve, pause, resume or abort a run, arm a runbook, stop everything. Each with its line told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from incidents import services as incidents
from incidents.lifecycle import Trigger
from runbooks import library, preflight
from runbooks.models import UNFINISHED, Mode, Run, RunbookMode, RunState, StopSwitch
from runbooks.step import World


@dataclass(frozen=True)
class Controlled:
    """It is so from now on; `text` says what."""

    text: str


@dataclass(frozen=True)
class ControlRefused:
    """Nothing was changed; `reason` says why and what is possible."""

    reason: str

    def __str__(self) -> str:
        return self.reason


Outcome = Controlled | ControlRefused


def approve(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """Lets a waiting run begin."""
    values = {"wake_at": now, "approved_by": actor[:150]}
    return _move(run_id, (RunState.AWAITING_APPROVAL,), RunState.RUNNING, "approved", actor, note, now, **values)


def pause(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """The run stands still; what a step has begun goes on in the world. The node stays as it is."""
    return _move(run_id, (RunState.RUNNING,), RunState.PAUSED, "paused", actor, note, now)


def resume(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    return _move(run_id, (RunState.PAUSED,), RunState.RUNNING, "resumed", actor, note, now, wake_at=now)


def abort(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """Ends the run for good. The node stays as it is: drained, if it was."""
    values = {"finished_at": now, "wake_at": None, "outcome": f"aborted by {actor}. {note}".strip()[:255]}
    return _move(run_id, UNFINISHED, RunState.ABORTED, "aborted", actor, note, now, **values)


def set_mode(runbook: str, mode: str, *, actor: str, now: datetime, world: World | None) -> Outcome:
    """How far the runbook may go from now on. Arming needs a passing preflight, made here and now."""
    books = library.load()
    if runbook not in books:
        return ControlRefused(f"There is no runbook {runbook}; there are {', '.join(books)}.")
    if mode not in Mode.values:
        return ControlRefused(f"There is no mode {mode}; there are {', '.join(Mode.values)}.")
    if mode == Mode.ARMED:
        if world is None:
            return ControlRefused("Nothing can be armed here: KINTSUGI_SLURM is off.")
        problems = [check for check in preflight.check(world) if not check.is_ok]
        if problems:
            reasons = "\n".join(f"{check.name}: {check.found} {check.todo}" for check in problems)
            return ControlRefused(f"{runbook} is not armed; preflight found:\n{reasons}")
    RunbookMode.objects.update_or_create(runbook=runbook, defaults={"mode": mode, "set_by": actor[:150], "set_at": now})
    return Controlled(f"{runbook} is set to {mode}.")


def stop(reason: str, *, actor: str, now: datetime) -> Outcome:
    """Engages the stop switch: nothing disruptive is done anywhere until it is released."""
    if not reason.strip():
        return ControlRefused("The stop switch needs a reason: everyone who sees it will ask.")
    StopSwitch.objects.create(reason=reason[:255], engaged_by=actor[:150], engaged_at=now)
    return Controlled("The stop switch is engaged: nothing disruptive is done until it is released.")


def release(*, actor: str, note: str = "", now: datetime) -> Outcome:
    """Releases every standing switch, and wakes the runs that it held back."""
    count = StopSwitch.objects.filter(released_at=None).update(released_by=actor[:150], released_at=now)
    if not count:
        return ControlRefused("The stop switch is not engaged.")
    Run.objects.filter(state=RunState.RUNNING, facts__refused="stopped", wake_at__gt=now).update(wake_at=now)
    return Controlled("The stop switch is released. Runs that waited for it go on.")


def _move(
    run_id: int,
    states: tuple[RunState, ...],
    to: RunState,
    word: str,
    actor: str,
    note: str,
    now: datetime,
    **values: object,
) -> Outcome:
    with transaction.atomic():
        moved = Run.objects.filter(pk=run_id, state__in=states).update(state=to, **values)
        run = Run.objects.select_related("node").filter(pk=run_id).first()
        if run is None:
            return ControlRefused(f"There is no run {run_id}.")
        if not moved:
            return ControlRefused(f"Run {run_id} is {run.get_state_display().lower()} and cannot be {word}.")
        text = f"Run {run_id} on {run.node.name} is {word} by {actor}. {note}".strip()
        if to is RunState.ABORTED:
            _tell_aborted(run, text, actor=actor, now=now)
        else:
            needs_human = "" if word == "approved" else None
            incidents.record(
                run.incident_id, kind=f"run_{word}", text=text, actor=actor, now=now, needs_human=needs_human
            )
        return Controlled(text)


def _tell_aborted(run: Run, text: str, *, actor: str, now: datetime) -> None:
    node = run.node.name
    is_drained = "drained_at" in run.facts
    ask = f"Resume {node} when it is well, and resolve the incident." if is_drained else ""
    told = f"{text} {node} stays drained." if is_drained else text
    acted = incidents.act(run.incident_id, Trigger.REPAIR_WITHDRAWN, actor=actor, note=told, now=now, needs_human=ask)
    if isinstance(acted, incidents.Refused):
        incidents.record(run.incident_id, kind="run_aborted", text=told, actor=actor, now=now, needs_human=ask)
