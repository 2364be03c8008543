"""What people do: approve, pause, resume or abort a run, arm a runbook, here or there, stop
everything. Each with its line told."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction

from incidents.models import Node
from incidents.polling import poll_pauses
from incidents.state import transitions
from incidents.text.wording import format_moment
from incidents.topology.topology import expand_typed
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import Trigger
from runbooks.engine import approvals, audit
from runbooks.fleet import armings, fleet
from runbooks.library import library
from runbooks.models import (
    UNFINISHED,
    Arming,
    Breaker,
    Mode,
    ReturnStop,
    Run,
    RunbookMode,
    RunState,
    SecondPersonRequest,
    StepRun,
    StopSwitch,
)
from runbooks.node import drains, overwritten
from runbooks.outcomes import Controlled, ControlRefused, Outcome
from runbooks.people import preflight
from runbooks.plan.runbook_file import SITE_WORD
from runbooks.second_person import changes, power_cycles, requests
from runbooks.second_person.changes import ModeChange, Order
from runbooks.step import World, format_iso
from runbooks.steps.pause_pollers import get_holder

_LONGEST_PLACE, _SHOWN = 255, 5


def approve(run_id: int, *, actor: str, seen: str, note: str = "", now: datetime) -> Outcome:
    """Lets a waiting run take its next step, with the state that the person saw: `seen` is the mark
    of that.

    The leave holds for KINTSUGI_APPROVAL_TIME, and while the state stays as it was shown. Where the
    site wants two persons for a power cycle, the first asks and the second gives leave.
    """
    people = actor[:150]
    with transaction.atomic():
        power_cycles.lock_if_needed()
        run = Run.objects.filter(pk=run_id, state=RunState.AWAITING_APPROVAL).first()
        if run is not None and seen != approvals.get_fingerprint(run):
            return ControlRefused(
                f"Run {run_id} asks about another state by now than the one you saw. Look at it"
                " again, and decide anew."
            )
        if run is not None:
            found = power_cycles.ask_or_confirm(run, actor=people, now=now)
            if not isinstance(found, str):
                return found
            people, note = found, note if found == people else f"Asked for by {found}. {note}"
            holds = settings.KINTSUGI["KINTSUGI_APPROVAL_TIME"]
            approvals.grant(run, actor=people, now=now, holds=holds)
        return _move_run(
            run_id,
            (RunState.AWAITING_APPROVAL,),
            RunState.RUNNING,
            "approved",
            actor,
            note,
            now,
            wake_at=now,
            approved_by=people,
        )


def pause(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """The run stands still; what a step has begun goes on in the world. The node stays as it is,
    and is looked at for what the run's last act owes people (`runbooks.engine.withdraw`)."""
    return _move_run(
        run_id, (RunState.RUNNING,), RunState.PAUSED, "paused", actor, note, now, wake_at=now
    )


def resume(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    return _move_run(
        run_id, (RunState.PAUSED,), RunState.RUNNING, "resumed", actor, note, now, wake_at=now
    )


def abort(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """Ends the run for good. The node stays as it is: drained, if it was."""
    values = {"finished_at": now, "wake_at": None, "outcome": f"aborted by {actor}. {note}".strip()}
    return _move_run(run_id, UNFINISHED, RunState.ABORTED, "aborted", actor, note, now, **values)


def take_over(run_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """A person goes on by hand: the run ends where it is, and the incident is theirs."""
    with transaction.atomic():
        values = {
            "finished_at": now,
            "wake_at": None,
            "outcome": f"taken over by {actor}. {note}".strip(),
        }
        outcome = _move_run(
            run_id, UNFINISHED, RunState.ABORTED, "taken over", actor, note, now, **values
        )
        if isinstance(outcome, Controlled):
            incident_id = Run.objects.values_list("incident_id", flat=True).get(pk=run_id)
            transitions.act(
                incident_id,
                Trigger.ACKNOWLEDGE,
                actor=actor,
                note=f"{actor} goes on by hand.",
                now=now,
            )
        return outcome


def set_mode(runbook: str, mode: str, *, actor: str, now: datetime, world: World | None) -> Outcome:
    """How far the runbook may go from now on. Arming needs a passing preflight, made here and now.

    `site` stands for all runbooks: none goes further than the site's mode. Without a `world`, in a
    process that does not act, the last report of the process that does is taken.
    """
    books = library.load()
    if runbook not in books and runbook != SITE_WORD:
        return ControlRefused(
            f"There is no runbook {runbook}; there are {', '.join(books)}, and {SITE_WORD} for all."
        )
    if mode not in Mode.values:
        return ControlRefused(f"There is no mode {mode}; there are {', '.join(Mode.values)}.")
    if mode == Mode.ARMED:
        objection = _find_objection_to_arming(runbook, now=now, world=world)
        if objection:
            return ControlRefused(objection)
    name = fleet.SITE if runbook == SITE_WORD else runbook
    what = f"{_name_scope(name)} goes to {mode}."
    change = ModeChange(Order.MODE, name, Mode(mode), what)
    with transaction.atomic():
        asked = requests.ask_if_needed(change, actor=actor, now=now)
        return asked or _write_mode(change, actor=actor, now=now, people=actor)


def _name_scope(name: str) -> str:
    return "The whole site" if name == fleet.SITE else name


def _write_mode(change: ModeChange, *, actor: str, now: datetime, people: str) -> Controlled:
    """In the order's transaction. `people`: who is answerable, one or two."""
    values = {
        "mode": change.mode,
        "set_by": people,
        "set_at": now,
        "stepped_back_at": None,
        "stepped_back_why": "",
    }
    RunbookMode.objects.update_or_create(runbook=change.runbook, defaults=values)
    word = SITE_WORD if change.runbook == fleet.SITE else change.runbook
    text = _format_mode(word, change.mode)
    sentence = text if people == actor else f"{text} Asked for by {people}."
    audit.record_person(actor, "set_mode", sentence, now=now)
    return Controlled(sentence)


def _find_objection_to_arming(runbook: str, *, now: datetime, world: World | None) -> str:
    """What the preflight says against it; empty when nothing stands in the way."""
    checks = preflight.run_checks(world) if world is not None else preflight.load_report(now)
    if checks is None:
        return (
            f"{runbook} is not armed yet: the runbook worker, which holds the keys for acts,"
            " has been asked to make the preflight. Arm it again in a minute; if this stays"
            " so, see that the runbook worker runs."
        )
    problems = [check for check in checks if check.stands_against(runbook)]
    if not problems:
        return ""
    found = [(check.name, check.found.rstrip("."), check.todo) for check in problems]
    reasons = "\n".join(f"{name}: {text}. {todo}" for name, text, todo in found)
    return f"{runbook} is not armed; preflight found:\n{reasons}"


@dataclass(frozen=True)
class ArmingDraft:
    """An arming that somebody wants. `scope` is a word of `Arming.Scope`, `place` what it names
    there: a host list for `nodes`, nothing for `all`. `runs`: None for any number."""

    runbook: str
    mode: str
    scope: str
    place: str
    until: datetime
    reason: str
    runs: int | None = None


def begin_arming(draft: ArmingDraft, *, actor: str, now: datetime, world: World | None) -> Outcome:
    """Lets the runbook go so far on these nodes, until then. Arming needs a passing preflight, as
    `set_mode` does."""
    problem = _find_problem(draft, now)
    if not problem and draft.mode == Mode.ARMED:
        problem = _find_objection_to_arming(draft.runbook, now=now, world=world)
    if problem:
        return ControlRefused(problem)
    change = _read_draft(draft)
    with transaction.atomic():
        asked = requests.ask_if_needed(change, actor=actor, now=now)
        return asked or _write_arming(change, actor=actor, now=now, people=actor)


def _read_draft(draft: ArmingDraft) -> ModeChange:
    is_of_nodes = draft.scope == Arming.Scope.NODES
    nodes = sorted(expand_typed(draft.place)) if is_of_nodes else []
    reason = draft.reason.strip()[:255]
    terms = {
        "scope": draft.scope,
        "place": draft.place,
        "nodes": nodes,
        "until": format_iso(draft.until),
        "runs": draft.runs,
        "reason": reason,
    }
    where = armings.format_scope(Arming(scope=draft.scope, place=draft.place))
    runs = "" if draft.runs is None else f", for {draft.runs} runs at most"
    until = f"until {format_moment(draft.until)}{runs}"
    what = f"{draft.runbook} goes to {draft.mode} on {where}, {until}: {reason}."
    return ModeChange(Order.ARMING, draft.runbook, Mode(draft.mode), what, terms)


def _write_arming(change: ModeChange, *, actor: str, now: datetime, people: str) -> Controlled:
    """As `_write_mode`."""
    values = {**change.terms, "until": datetime.fromisoformat(change.terms["until"])}
    row = Arming.objects.create(
        runbook=change.runbook, mode=change.mode, set_by=people, set_at=now, **values
    )
    text = f"{change.runbook} goes to {change.mode} by {armings.describe(row)}: {row.reason}."
    audit.record_person(actor, "arm", text, now=now)
    _wake_refused("mode", now)
    return Controlled(text)


def _find_problem(draft: ArmingDraft, now: datetime) -> str:
    books = library.load()
    if draft.runbook not in books:
        return f"There is no runbook {draft.runbook}; there are {', '.join(books)}."
    if draft.mode not in Mode.values:
        return f"There is no mode {draft.mode}; there are {', '.join(Mode.values)}."
    if not draft.reason.strip():
        return "Say why: whoever reads of it next will ask."
    if draft.until <= now:
        return "An arming ends in the future."
    if draft.runs is not None and draft.runs < 1:
        return "An arming is for one run at least."
    if fleet.get_mode(draft.runbook) is Mode.OFF:
        return f"{draft.runbook} is off, and no arming goes beyond that: set its mode first."
    return _find_unknown_place(draft)


def _find_unknown_place(draft: ArmingDraft) -> str:
    if draft.scope not in Arming.Scope.values:
        return f"There is no scope {draft.scope}; there are {', '.join(Arming.Scope.values)}."
    if draft.scope == Arming.Scope.ALL:
        return "" if not draft.place else "The scope all names no place."
    if not draft.place.isprintable() or not 0 < len(draft.place) <= _LONGEST_PLACE:
        return f"Name the {draft.scope}, with {_LONGEST_PLACE} characters at most."
    nodes = list(Node.objects.inventoried())
    if draft.scope == Arming.Scope.NODES:
        return _find_unknown_nodes(draft.place, {node.name for node in nodes})
    row = Arming(scope=draft.scope, place=draft.place)
    if any(armings.covers(row, node) for node in nodes):
        return ""
    return f"No node of the inventory is in {draft.scope} {draft.place}."


def _find_unknown_nodes(hostlist: str, known: Collection[str]) -> str:
    try:
        unknown = sorted(set(expand_typed(hostlist)).difference(known))
    except ValueError as error:
        return str(error)
    return f"Not in the inventory: {', '.join(unknown[:_SHOWN])}." if unknown else ""


def end_arming(number: int, reason: str, *, actor: str, now: datetime) -> Outcome:
    """Takes it back: from the next act on the runbook's own mode counts again."""
    if not reason.strip():
        return ControlRefused("Say why: whoever reads of it next will ask.")
    with transaction.atomic():
        row = Arming.objects.filter(pk=number, ended_at=None, until__gt=now).first()
        if row is None:
            return ControlRefused(f"Arming {number} is not in force.")
        terms = {"arming": number, "reason": reason.strip()[:255]}
        what = f"{row.runbook}: {armings.describe(row)}, ends: {terms['reason']}."
        change = ModeChange(Order.END_ARMING, row.runbook, Mode(row.mode), what, terms)
        asked = requests.ask_if_needed(change, actor=actor, now=now)
        return asked or _write_end(change, actor=actor, now=now, people=actor)


def _write_end(change: ModeChange, *, actor: str, now: datetime, people: str) -> Outcome:
    """As `_write_mode`."""
    number, why = change.terms["arming"], change.terms["reason"]
    values = {"ended_by": people, "ended_at": now, "ended_why": why}
    if not Arming.objects.filter(pk=number, ended_at=None, until__gt=now).update(**values):
        return ControlRefused(f"Arming {number} is not in force.")
    row = Arming.objects.get(pk=number)
    text = f"{row.runbook}: {armings.describe(row)}, has ended: {row.ended_why}."
    audit.record_person(actor, "end_arming", text, now=now)
    return Controlled(text)


def confirm_request(
    number: int, *, actor: str, seen: str, now: datetime, world: World | None
) -> Outcome:
    """Does what another person has asked for, exactly that. `seen` is the mark of what the second
    person read; `world` as in `set_mode`."""
    asked = SecondPersonRequest.objects.filter(pk=number, ended_at=None).first()
    problem = "" if asked is None else _find_problem_now(asked, now=now, world=world)
    if problem:
        return ControlRefused(problem)
    with transaction.atomic():
        requests.lock()
        request = requests.find(number)
        if isinstance(request, ControlRefused):
            return request
        if request.order == Order.APPROVAL:
            return ControlRefused(f"Approve run {request.run} itself: you see there what it is.")
        change = changes.read(request)
        state = changes.get_state(change, now)
        confirmed = requests.confirm(request, state=state, actor=actor, seen=seen, now=now)
        if isinstance(confirmed, ControlRefused):
            return confirmed
        return _WRITERS[change.order](change, actor=actor, now=now, people=confirmed.people)


def _find_problem_now(request: SecondPersonRequest, *, now: datetime, world: World | None) -> str:
    """What has come to stand against it since it was asked for."""
    until = request.terms.get("until")
    if until is not None and datetime.fromisoformat(until) <= now:
        return f"The time that request {request.pk} asks for is over: ask again."
    is_arming = request.order in (Order.MODE, Order.ARMING) and request.terms["mode"] == Mode.ARMED
    if request.until <= now or not is_arming:
        return ""
    word = SITE_WORD if request.runbook == fleet.SITE else request.runbook
    return _find_objection_to_arming(word, now=now, world=world)


_WRITERS: dict[Order, Callable[..., Outcome]] = {
    Order.MODE: _write_mode,
    Order.ARMING: _write_arming,
    Order.END_ARMING: _write_end,
}


def reject_request(number: int, reason: str, *, actor: str, now: datetime) -> Outcome:
    """Nothing comes of it: the second person says no, or the first takes it back."""
    if not reason.strip():
        return ControlRefused("Say why: who asked for it will want to know.")
    with transaction.atomic():
        request = requests.find(number)
        if isinstance(request, ControlRefused):
            return request
        return Controlled(requests.reject(request, reason.strip(), actor=actor, now=now))


def _format_mode(runbook: str, mode: Mode) -> str:
    if runbook == SITE_WORD:
        return f"The site is set to {mode}: no runbook goes further."
    ceiling = fleet.get_site_mode()
    if ceiling is not None and fleet.get_lower_mode(ceiling, mode) is not mode:
        return f"{runbook} is set to {mode}, and the site holds it at {ceiling}."
    return f"{runbook} is set to {mode}."


def stop(reason: str, *, actor: str, now: datetime, gives_back: bool = True) -> Outcome:
    """Engages the stop switch: nothing disruptive is done anywhere until it is released.

    Without `gives_back` no node is given back either: runs that hold one end, and it stays drained,
    for a person.
    """
    if not reason.strip():
        return ControlRefused("The stop switch needs a reason: everyone who sees it will ask.")
    record = reason if gives_back else f"Nothing is given back. {reason}"
    with transaction.atomic():
        switch = StopSwitch.objects.create(
            reason=reason[:255], engaged_by=actor[:150], engaged_at=now
        )
        audit.record_person(actor, "stop", record, now=now)
    text = "The stop switch is engaged: nothing disruptive is done until it is released"
    if gives_back:
        return Controlled(f"{text}.")
    ReturnStop.objects.create(switch=switch)
    ended = _end_holding_runs(reason, actor, now)
    return Controlled(
        f"{text}, and no node is given back. Runs ended, whose nodes stay as they are: {ended}."
    )


def _end_holding_runs(reason: str, actor: str, now: datetime) -> int:
    """Each in a transaction of its own: the switch stands already."""
    holding = Run.objects.unfinished().filter(claimed_at__isnull=False, node__isnull=False)
    note = f"Everything is stopped, and nothing is given back: {reason}"
    numbers = list(holding.order_by("pk").values_list("pk", flat=True))
    outcomes = [abort(number, actor=actor, note=note, now=now) for number in numbers]
    return sum(isinstance(outcome, Controlled) for outcome in outcomes)


def release(*, actor: str, note: str = "", now: datetime) -> Outcome:
    """Releases every standing switch, and wakes the runs that it held back."""
    count = StopSwitch.objects.filter(released_at=None).update(
        released_by=actor[:150], released_at=now
    )
    if not count:
        return ControlRefused("The stop switch is not engaged.")
    _wake_refused("stopped", now)
    audit.record_person(actor, "release", note or "The stop switch is released.", now=now)
    return Controlled("The stop switch is released. Runs that waited for it go on.")


def close_breaker(reason: str, *, actor: str, now: datetime) -> Outcome:
    """A person has looked at why so much turned bad: what was held back goes on, within the other
    guards."""
    if not reason.strip():
        return ControlRefused("Say what was found: whoever reads of the trip next will ask.")
    values = {"closed_by": actor[:150], "closed_at": now, "closed_why": reason[:255]}
    with transaction.atomic():
        if not Breaker.objects.filter(closed_at=None).update(**values):
            return ControlRefused("The breaker has not tripped.")
        _wake_refused("breaker", now)
        audit.record_person(actor, "close_breaker", reason, now=now)
    return Controlled("The breaker is closed. Runs that waited for it go on.")


def _wake_refused(kind: str, now: datetime) -> None:
    """The runs that wait for this refusal to be over."""
    waiting = Run.objects.filter(state=RunState.RUNNING, facts__refused=kind, wake_at__gt=now)
    waiting.update(wake_at=now)


def _move_run(
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
        run = Run.objects.select_related("node", "incident").filter(pk=run_id).first()
        if run is None:
            return ControlRefused(f"There is no run {run_id}.")
        if not moved:
            return ControlRefused(
                f"Run {run_id} is {run.get_state_display().lower()} and cannot be {word}."
            )
        moved_text = f"Run {run_id} on {run.place} is {word} by {actor}. {note}".strip()
        unfinished = run.facts.get("unfinished", "")
        text = f"{moved_text} {unfinished}".strip()
        audit.record_person(actor, word, text, now=now, run=run)
        if to is RunState.ABORTED:
            poll_pauses.end(get_holder(run.pk))
            _await_last_act(run, now)
            _record_abort(run, text, actor=actor, now=now)
        else:
            needs_human = "" if word == "approved" else None
            transitions.record(
                run.incident_id,
                kind=f"run_{word}",
                text=text,
                actor=actor,
                now=now,
                needs_human=needs_human,
            )
        return Controlled(text)


def _await_last_act(run: Run, now: datetime) -> None:
    """What is under way in this moment is looked at when its worker is done with it, and so is
    whether the run's last act has written over a person's words. While Slurm has a reboot of ours
    to send, the node is watched: whoever takes the drain away does not ask for that."""
    is_under_way = run.leased_until is not None
    is_unknown = run.steps.filter(outcome=StepRun.Outcome.ATTEMPTED).exists()
    is_awaited = drains.is_own_reboot_awaited(run.facts)
    if is_under_way or is_unknown or is_awaited or overwritten.is_unchecked(run.facts):
        Run.objects.filter(pk=run.pk).update(wake_at=now + overwritten.LOOK_AGAIN)


def _record_abort(run: Run, text: str, *, actor: str, now: datetime) -> None:
    node = run.place
    is_drained = "drained_at" in run.facts and not drains.is_lent(run.facts)
    ask = f"Resume {node} when it is well, and resolve the incident." if is_drained else ""
    note = f"{text} {node} stays drained." if is_drained else text
    acted = transitions.act(
        run.incident_id, Trigger.REPAIR_WITHDRAWN, actor=actor, note=note, now=now, needs_human=ask
    )
    if isinstance(acted, Refused):
        transitions.record(
            run.incident_id, kind="run_aborted", text=note, actor=actor, now=now, needs_human=ask
        )
