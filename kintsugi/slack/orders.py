"""What people may order from Slack, as a table: who may, what it means, and the service that does
it. Database only.

Each order is obeyed by the same service as in the console, in the name of the person's console
account.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from incidents.notify.notifier import Ask
from incidents.text.wording import format_moment
from kintsugi.clients import slack_users
from kintsugi.clients.slack_users import NotPermitted
from kintsugi.configuration import stop_file
from runbooks import questions, services
from runbooks.engine import approval_snapshot, approvals
from runbooks.models import (
    UNFINISHED,
    Approval,
    Breaker,
    Mode,
    Question,
    Run,
    RunState,
    SecondPersonRequest,
)
from runbooks.people import idempotency, open_requests
from runbooks.second_person import requests
from runbooks.second_person.changes import Order as Asked
from runbooks.services import Controlled, ControlRefused, Outcome

CONTROL = ("runbooks.control_run",)
SET_MODE = ("runbooks.set_mode",)
_NOTE = "From Slack."
_NUMBER = re.compile(r"#?([0-9]{1,18})")
_MARK = re.compile(r"[0-9]{1,18} [0-9a-f]{16}")
_MOST = 20


@dataclass(frozen=True)
class SlackRequest:
    """An order as it came: who (a Slack user id), `key` of the request, and when. `ask_preflight`
    rings the process that acts for a new preflight, in the name of this account."""

    slack_id: str
    key: str
    now: datetime
    ask_preflight: Callable[[str], None]


@dataclass(frozen=True)
class AuthorisedOrder:
    """An order of somebody who may: `actor` is the console account, `words` what follows the
    order's word."""

    request: SlackRequest
    actor: str
    words: str


@dataclass(frozen=True)
class OrderReply:
    """Plain text for the person alone, with what can be answered to it. `is_done`: something has
    changed."""

    text: str
    ask: Ask | None = None
    is_done: bool = False


@dataclass(frozen=True)
class Order:
    usage: str
    meaning: str
    permissions: tuple[str, ...]
    obey: Callable[[AuthorisedOrder], OrderReply]


def obey_command(text: str, request: SlackRequest) -> OrderReply:
    """What follows `/kintsugi`."""
    word, _, words = _parse_plain_text(text).partition(" ")
    if word.lower() in ("", "help"):
        return OrderReply(format_usage())
    order = ORDERS.get(word.lower())
    if order is None and word.lower() in _STARTS:
        return OrderReply(_ONLY_THERE)
    if order is None:
        return OrderReply(f'"{word[:40]}" is no order.\n{format_usage()}')
    return _obey_authorised(order, f"{word.lower()} {words}".strip(), words.strip(), request)


def obey_click(name: str, value: str, request: SlackRequest) -> OrderReply:
    """A button of a message that asks (`runbooks.people.open_requests`)."""
    word = name.partition("_")[0]
    order = CLICKS.get(word)
    if order is None:
        return OrderReply("This button is none of Kintsugi's.")
    return _obey_authorised(order, f"{word} {value}", value, request)


def format_usage() -> str:
    lines = [f"/kintsugi {order.usage}: {order.meaning}" for order in ORDERS.values()]
    return "\n".join([*lines, _ONLY_THERE])


def _obey_authorised(order: Order, text: str, words: str, request: SlackRequest) -> OrderReply:
    person = slack_users.find(request.slack_id, order.permissions)
    if isinstance(person, NotPermitted):
        refusal = ControlRefused(person.reason)
        idempotency.record_refusal(refusal, actor=person.name, words=text[:500], now=request.now)
        return OrderReply(f"Nothing is done. {person.reason}")
    return order.obey(AuthorisedOrder(request, person.name, words))


def _stop(order: AuthorisedOrder) -> OrderReply:
    first, _, rest = order.words.partition(" ")
    gives_back = first.replace(_LONG_DASH, "--") != _GIVE_NOTHING_BACK
    reason = order.words if gives_back else rest.strip()
    if not reason:
        words = " ".join(("/kintsugi stop", *([] if gives_back else [_GIVE_NOTHING_BACK])))
        return OrderReply(f"Nothing is done. Say why: {words} power works in row 3")
    now = order.request.now
    return _obey_once(
        order,
        f"stop {order.words}",
        lambda: services.stop(reason, actor=order.actor, now=now, gives_back=gives_back),
    )


def _show_status(order: AuthorisedOrder) -> OrderReply:
    """What holds Kintsugi back, how far runbooks may go, and who waits for people."""
    stopped_by = services.get_stop_reason(stop_file.get_path())
    if stopped_by:
        lines = [f"Stopped by {stopped_by}. Nothing disruptive is done."]
    else:
        lines = ["The stop switch is not engaged."]
    lines += [f"The breaker {breaker}." for breaker in Breaker.objects.filter(closed_at=None)]
    lines += _format_modes()
    lines += _format_waiting_runs() or ["No run waits for a person."]
    lines += _format_requests(order.request.now)
    return OrderReply("\n".join(lines))


def _format_modes() -> Iterator[str]:
    """How far the site goes, where it is held back, and which runbooks are in which mode."""
    site_mode = services.get_site_mode()
    if site_mode is not None:
        yield f"The site is at {site_mode}: no runbook goes further."
    books: dict[Mode, list[str]] = {}
    for name in services.get_runbook_titles():
        books.setdefault(services.get_mode(name), []).append(name)
    for mode in reversed(Mode):
        if mode in books:
            yield f"{mode}: {', '.join(books[mode])}"


def _format_requests(now: datetime) -> list[str]:
    """A line for each request that waits for a second person; leave for a run's step stands with
    the runs."""
    standing = requests.list_standing(now).exclude(order=Asked.APPROVAL)
    return [
        f"Request {request.pk} of {request.asked_by} waits for a second person: {request.what}"
        f" /kintsugi confirm {request.pk}"
        for request in standing[:_MOST]
    ]


def _format_waiting_runs() -> list[str]:
    """A line for each run that goes no further without a person."""
    open_questions = Question.objects.filter(answered_at=None, run__state__in=UNFINISHED)
    question_of = {question.run_id: question for question in open_questions}
    lines = []
    for run in Run.objects.unfinished().select_related("node", "incident").order_by("pk"):
        name = f"Run {run.pk} on {run.place}"
        if run.state == RunState.AWAITING_APPROVAL:
            lines.append(f"{name} waits for leave: /kintsugi approve {run.pk}")
        elif run.state == RunState.PAUSED:
            lines.append(f"{name} is paused.")
        elif run.pk in question_of:
            lines.append(f"{name} asks: {question_of[run.pk].text} /kintsugi answer {run.pk}")
    more = [f"And {len(lines) - _MOST} more."] if len(lines) > _MOST else []
    return lines[:_MOST] + more


def _show_approval(order: AuthorisedOrder) -> OrderReply:
    """Shows the state that leave is for, with the buttons: nobody approves what he has not seen."""
    run = _get_run(order.words)
    if run is None:
        return _ask_which("Say which run, as in /kintsugi approve 17.")
    name = f"Run {run.pk} on {run.place}"
    is_waiting = run.state == RunState.AWAITING_APPROVAL
    approval = approvals.get_open_approval(run) if is_waiting else None
    if approval is None:
        return OrderReply(f"{name} is {_get_state_word(run)} and waits for no leave.")
    plan = services.format_plan(run)
    text = f"{name}, for incident #{run.incident_id}: {plan}. {approval.why}. Now:"
    return OrderReply(text, open_requests.find_run_ask(run))


def _ask_which(text: str) -> OrderReply:
    return OrderReply("\n".join([text, *_format_waiting_runs()]))


def _confirm(order: AuthorisedOrder) -> OrderReply:
    """Shows what is asked for, with the button: nobody confirms what he has not seen."""
    request = _get_request(order.words)
    now = order.request.now
    if request is None:
        lines = ["Say which request, as in /kintsugi confirm 7.", *_format_requests(now)]
        return OrderReply("\n".join(lines))
    if request.order == Asked.APPROVAL:
        return OrderReply(f"That is leave for a run: /kintsugi approve {request.run}")
    by = f"{request.asked_by} asks for this at {format_moment(request.asked_at)}"
    text = (
        f"Request {request.pk}. {by}: {request.what} It waits until {format_moment(request.until)}."
    )
    return OrderReply(text, open_requests.build_second_person_ask(request))


def _reject(order: AuthorisedOrder) -> OrderReply:
    number, _, reason = order.words.partition(" ")
    request = _get_request(number)
    if request is None or not reason.strip():
        return OrderReply(
            "Nothing is done. Say which request and why: /kintsugi reject 7 after the patch day"
        )
    return _obey_once(
        order,
        f"reject {order.words}",
        lambda: services.reject_request(
            request.pk, reason, actor=order.actor, now=order.request.now
        ),
    )


def _click_confirm(order: AuthorisedOrder) -> OrderReply:
    if not _MARK.fullmatch(order.words):
        return OrderReply("This button is none of Kintsugi's.")
    number, _, seen = order.words.partition(" ")
    now = order.request.now
    request = _get_request(number)
    if request is not None and request.terms.get("mode") == Mode.ARMED:
        order.request.ask_preflight(order.actor)
    return _obey_once(
        order,
        f"confirm {order.words}",
        lambda: services.confirm_request(
            int(number), actor=order.actor, seen=seen, now=now, world=None
        ),
    )


def _get_request(words: str) -> SecondPersonRequest | None:
    """One that nobody has ended."""
    match = _NUMBER.fullmatch(words.strip())
    if match is None:
        return None
    return SecondPersonRequest.objects.filter(pk=int(match[1]), ended_at=None).first()


def _answer(order: AuthorisedOrder) -> OrderReply:
    number, _, word = order.words.partition(" ")
    run = _get_run(number)
    if run is None:
        return _ask_which("Say which run, as in /kintsugi answer 17 go on.")
    question = questions.get_open_question(run.pk) if run.state in UNFINISHED else None
    if question is None:
        return OrderReply(f"Run {run.pk} on {run.place} asks nothing.")
    if not word.strip():
        return OrderReply(f"Run {run.pk} on {run.place} asks:", open_requests.find_run_ask(run))
    return _obey_once(
        order,
        f"answer {order.words}",
        lambda: questions.answer(question.pk, word, actor=order.actor, now=order.request.now),
    )


def _click_approve(order: AuthorisedOrder) -> OrderReply:
    return _decide(order, "approve", _give_leave)


def _click_abort(order: AuthorisedOrder) -> OrderReply:
    return _decide(order, "abort", _abort)


def _decide(
    order: AuthorisedOrder, word: str, act: Callable[[AuthorisedOrder, Run, str], Outcome]
) -> OrderReply:
    if not _MARK.fullmatch(order.words):
        return OrderReply("This button is none of Kintsugi's.")
    number, _, snapshot_mark = order.words.partition(" ")
    run = _get_run(number)
    if run is None:
        return OrderReply(f"There is no run {number}.")
    return _obey_once(order, f"{word} {order.words}", lambda: act(order, run, snapshot_mark))


def _give_leave(order: AuthorisedOrder, run: Run, snapshot_mark: str) -> Outcome:
    for approval in Approval.objects.filter(run=run).exclude(given_at=None):
        if approval_snapshot.get_fingerprint(approval.pk, approval.shown) == snapshot_mark:
            given_at = f"{approval.given_at:%H:%M:%S %Z}"
            return ControlRefused(
                f"Done already: {approval.given_by} approved just this at {given_at}."
            )
    return services.approve(
        run.pk, actor=order.actor, seen=snapshot_mark, note=_NOTE, now=order.request.now
    )


def _abort(order: AuthorisedOrder, run: Run, snapshot_mark: str) -> Outcome:
    """Only while the run asks what the button was about: who clicks an old message may not know
    what goes on."""
    live = Run.objects.select_for_update().get(pk=run.pk)
    if live.state == RunState.ABORTED:
        return ControlRefused(f"Done already: run {run.pk} was {live.outcome or 'aborted'}")
    if live.state != RunState.AWAITING_APPROVAL or approvals.get_fingerprint(live) != snapshot_mark:
        return ControlRefused(
            f"Run {run.pk} is {_get_state_word(live)} and asks about another state by now than the"
            " one you saw. Look at it again: the console aborts it whatever it does."
        )
    return services.abort(run.pk, actor=order.actor, note=_NOTE, now=order.request.now)


def _click_answer(order: AuthorisedOrder) -> OrderReply:
    number, _, word = order.words.partition(" ")
    if not _NUMBER.fullmatch(number):
        return OrderReply("This button is none of Kintsugi's.")
    return _obey_once(
        order,
        f"answer question {order.words}",
        lambda: questions.answer(int(number), word, actor=order.actor, now=order.request.now),
    )


def _obey_once(order: AuthorisedOrder, text: str, act: Callable[[], Outcome]) -> OrderReply:
    """A request that comes twice, for Slack repeats what was not answered in time, is obeyed
    once."""
    request = order.request
    words = f"{text} (from Slack)"[:500]
    outcome = idempotency.execute_once(
        request.key, act, actor=order.actor, words=words, now=request.now
    )
    if isinstance(outcome, idempotency.Repeated):
        return OrderReply(
            f"This order came before and is not obeyed twice. It came to: {outcome.text}"
        )
    if isinstance(outcome, ControlRefused):
        return OrderReply(f"Nothing is done. {outcome.reason}")
    return OrderReply(outcome.text, is_done=isinstance(outcome, Controlled))


def _get_run(words: str) -> Run | None:
    match = _NUMBER.fullmatch(words.strip())
    if match is None:
        return None
    runs = Run.objects.select_related("node", "incident")
    return runs.filter(pk=int(match[1])).first()


def _get_state_word(run: Run) -> str:
    return str(run.get_state_display()).lower()


def _parse_plain_text(text: str) -> str:
    """Slack escapes three characters; what cannot be printed is left out."""
    for escape, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(escape, character)
    printable = [letter if letter.isprintable() else " " for letter in text]
    return " ".join("".join(printable).split())


_GIVE_NOTHING_BACK = "--give-nothing-back"
# Slack's editors and phones make one dash of two.
_LONG_DASH = "\N{EM DASH}"
_STARTS = ("release", "start", "go", "resume", "arm", "mode")
_ONLY_THERE = (
    "Starting again after a stop, and asking for another mode or arming, are for the console and"
    " its commands alone"
    ' (kintsugi stop --release --reason "...").'
)
_SEES: Sequence[str] = (
    "runbooks.view_run",
    "runbooks.view_stopswitch",
    "runbooks.view_runbookmode",
)
ORDERS: dict[str, Order] = {
    "stop": Order(
        f"stop [{_GIVE_NOTHING_BACK}] REASON",
        "nothing disruptive is done anywhere; no node is given back either where you say so.",
        ("runbooks.use_stop_switch",),
        _stop,
    ),
    "status": Order(
        "status", "stop switch, modes, runs that wait for people.", tuple(_SEES), _show_status
    ),
    "approve": Order(
        "approve RUN", "shows what the run asks leave for, with buttons.", CONTROL, _show_approval
    ),
    "answer": Order("answer RUN ANSWER", "answers what the run asks.", CONTROL, _answer),
    "confirm": Order(
        "confirm REQUEST",
        "shows what another person asks to arm, with a button to confirm it.",
        SET_MODE,
        _confirm,
    ),
    "reject": Order("reject REQUEST WHY", "nothing comes of that request.", SET_MODE, _reject),
}
CLICKS: dict[str, Order] = {
    open_requests.APPROVE: Order("", "", CONTROL, _click_approve),
    open_requests.ABORT: Order("", "", CONTROL, _click_abort),
    open_requests.ANSWER: Order("", "", CONTROL, _click_answer),
    open_requests.CONFIRM: Order("", "", SET_MODE, _click_confirm),
}
