"""What people may order from Slack, as a table: who may, what it means, and the service that does
it. Database only.

Each order is obeyed by the same service as in the console, in the name of the person's console
account.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from incidents.notify.notifier import Ask
from kintsugi.clients import slack_users
from kintsugi.clients.slack_users import Denied
from kintsugi.web import banners
from runbooks import questions, services
from runbooks.engine import approval_snapshot, approvals
from runbooks.models import UNFINISHED, Approval, Breaker, Mode, Question, Run, RunState
from runbooks.people import idempotency, open_requests
from runbooks.services import Controlled, ControlRefused, Outcome

CONTROL = ("runbooks.control_run",)
_NOTE = "From Slack."
_NUMBER = re.compile(r"#?([0-9]{1,18})")
_MARK = re.compile(r"[0-9]{1,18} [0-9a-f]{16}")
_MOST = 20


@dataclass(frozen=True)
class SlackRequest:
    """An order as it came: who (a Slack user id), `key` of the request, and when."""

    slack_id: str
    key: str
    now: datetime


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


def command(text: str, request: SlackRequest) -> OrderReply:
    """What follows `/kintsugi`."""
    word, _, words = _plain(text).partition(" ")
    if word.lower() in ("", "help"):
        return OrderReply(usage())
    order = ORDERS.get(word.lower())
    if order is None and word.lower() in _STARTS:
        return OrderReply(_ONLY_THERE)
    if order is None:
        return OrderReply(f'"{word[:40]}" is no order.\n{usage()}')
    return _by_who_may(order, f"{word.lower()} {words}".strip(), words.strip(), request)


def click(name: str, value: str, request: SlackRequest) -> OrderReply:
    """A button of a message that asks (`runbooks.people.open_requests`)."""
    order = CLICKS.get(name.partition("_")[0])
    if order is None:
        return OrderReply("This button is none of Kintsugi's.")
    return _by_who_may(order, f"{name.partition('_')[0]} {value}", value, request)


def usage() -> str:
    lines = [f"/kintsugi {order.usage}: {order.meaning}" for order in ORDERS.values()]
    return "\n".join([*lines, _ONLY_THERE])


def _by_who_may(order: Order, said: str, words: str, request: SlackRequest) -> OrderReply:
    person = slack_users.find(request.slack_id, order.permissions)
    if isinstance(person, Denied):
        idempotency.record_refusal(
            ControlRefused(person.reason), actor=person.name, words=said[:500], now=request.now
        )
        return OrderReply(f"Nothing is done. {person.reason}")
    return order.obey(AuthorisedOrder(request, person.name, words))


def _stop(given: AuthorisedOrder) -> OrderReply:
    if not given.words:
        return OrderReply("Nothing is done. Say why: /kintsugi stop power works in row 3")
    return _once(
        given,
        f"stop {given.words}",
        lambda: services.stop(given.words, actor=given.actor, now=given.request.now),
    )


def _status(given: AuthorisedOrder) -> OrderReply:
    """What holds Kintsugi back, how far runbooks may go, and who waits for people."""
    who = services.get_stop_reason(banners.stop_file())
    lines = [
        (
            f"Stopped by {who}. Nothing disruptive is done."
            if who
            else "The stop switch is not engaged."
        )
    ]
    lines += [f"The breaker {row}." for row in Breaker.objects.filter(closed_at=None)]
    site = services.get_site_mode()
    lines += [f"The site is at {site}: no runbook goes further."] if site is not None else []
    books: dict[Mode, list[str]] = {}
    for name in services.get_runbook_titles():
        books.setdefault(services.get_mode(name), []).append(name)
    lines += [f"{mode}: {', '.join(books[mode])}" for mode in reversed(Mode) if mode in books]
    waiting = _waiting()
    return OrderReply("\n".join([*lines, *(waiting or ["No run waits for a person."])]))


def _waiting() -> list[str]:
    """A line for each run that goes no further without a person."""
    runs = Run.objects.unfinished().select_related("node", "incident").order_by("pk")
    asks = {
        row.run_id: row
        for row in Question.objects.filter(answered_at=None, run__state__in=UNFINISHED)
    }
    lines = []
    for run in runs:
        if run.state == RunState.AWAITING_APPROVAL:
            lines.append(f"Run {run.pk} on {run.place} waits for leave: /kintsugi approve {run.pk}")
        elif run.state == RunState.PAUSED:
            lines.append(f"Run {run.pk} on {run.place} is paused.")
        elif run.pk in asks:
            lines.append(
                f"Run {run.pk} on {run.place} asks: {asks[run.pk].text} /kintsugi answer {run.pk}"
            )
    more = [f"And {len(lines) - _MOST} more."] if len(lines) > _MOST else []
    return lines[:_MOST] + more


def _approve(given: AuthorisedOrder) -> OrderReply:
    """Shows the state that leave is for, with the buttons: nobody approves what he has not seen."""
    run = _run(given.words)
    if run is None:
        return OrderReply("Say which run, as in /kintsugi approve 17.\n" + "\n".join(_waiting()))
    leave = approvals.get_open_approval(run) if run.state == RunState.AWAITING_APPROVAL else None
    if leave is None:
        return OrderReply(f"Run {run.pk} on {run.place} is {_state(run)} and waits for no leave.")
    plan = services.format_plan(run)
    text = (
        f"Run {run.pk} on {run.place}, for incident #{run.incident_id}: {plan}. {leave.why}. Now:"
    )
    return OrderReply(text, open_requests.find_run_ask(run))


def _answer(given: AuthorisedOrder) -> OrderReply:
    number, _, word = given.words.partition(" ")
    run = _run(number)
    question = (
        questions.get_open_question(run.pk) if run is not None and run.state in UNFINISHED else None
    )
    if run is None:
        return OrderReply(
            "Say which run, as in /kintsugi answer 17 go on.\n" + "\n".join(_waiting())
        )
    if question is None:
        return OrderReply(f"Run {run.pk} on {run.place} asks nothing.")
    if not word.strip():
        return OrderReply(f"Run {run.pk} on {run.place} asks:", open_requests.find_run_ask(run))
    return _once(
        given,
        f"answer {given.words}",
        lambda: questions.answer(question.pk, word, actor=given.actor, now=given.request.now),
    )


def _click_approve(given: AuthorisedOrder) -> OrderReply:
    return _decide(given, "approve", _give_leave)


def _click_abort(given: AuthorisedOrder) -> OrderReply:
    return _decide(given, "abort", _abort)


def _decide(
    given: AuthorisedOrder, word: str, act: Callable[[AuthorisedOrder, Run, str], Outcome]
) -> OrderReply:
    if not _MARK.fullmatch(given.words):
        return OrderReply("This button is none of Kintsugi's.")
    number, _, mark = given.words.partition(" ")
    run = _run(number)
    if run is None:
        return OrderReply(f"There is no run {number}.")
    return _once(given, f"{word} {given.words}", lambda: act(given, run, mark))


def _give_leave(given: AuthorisedOrder, run: Run, mark: str) -> Outcome:
    for leave in Approval.objects.filter(run=run).exclude(given_at=None):
        if approval_snapshot.get_fingerprint(leave.pk, leave.shown) == mark:
            return ControlRefused(
                f"Done already: {leave.given_by} approved just this at"
                f" {leave.given_at:%H:%M:%S %Z}."
            )
    return services.approve(run.pk, actor=given.actor, seen=mark, note=_NOTE, now=given.request.now)


def _abort(given: AuthorisedOrder, run: Run, mark: str) -> Outcome:
    """Only while the run asks what the button was about: who clicks an old message may not know
    what goes on."""
    live = Run.objects.select_for_update().get(pk=run.pk)
    if live.state == RunState.ABORTED:
        return ControlRefused(f"Done already: run {run.pk} was {live.outcome or 'aborted'}")
    if live.state != RunState.AWAITING_APPROVAL or approvals.get_fingerprint(live) != mark:
        return ControlRefused(
            f"Run {run.pk} is {_state(live)} and asks about another state by now than the one you"
            " saw. Look at it again: the console aborts it whatever it does."
        )
    return services.abort(run.pk, actor=given.actor, note=_NOTE, now=given.request.now)


def _click_answer(given: AuthorisedOrder) -> OrderReply:
    number, _, word = given.words.partition(" ")
    if not _NUMBER.fullmatch(number):
        return OrderReply("This button is none of Kintsugi's.")
    return _once(
        given,
        f"answer question {given.words}",
        lambda: questions.answer(int(number), word, actor=given.actor, now=given.request.now),
    )


def _once(given: AuthorisedOrder, said: str, act: Callable[[], Outcome]) -> OrderReply:
    """A request that comes twice, for Slack repeats what was not answered in time, is obeyed
    once."""
    request = given.request
    outcome = idempotency.execute_once(
        request.key, act, actor=given.actor, words=f"{said} (from Slack)"[:500], now=request.now
    )
    if isinstance(outcome, idempotency.Repeated):
        return OrderReply(
            f"This order came before and is not obeyed twice. It came to: {outcome.text}"
        )
    if isinstance(outcome, ControlRefused):
        return OrderReply(f"Nothing is done. {outcome.reason}")
    return OrderReply(outcome.text, is_done=isinstance(outcome, Controlled))


def _run(words: str) -> Run | None:
    found = _NUMBER.fullmatch(words.strip())
    return (
        Run.objects.select_related("node", "incident").filter(pk=int(found[1])).first()
        if found
        else None
    )


def _state(run: Run) -> str:
    return str(run.get_state_display()).lower()


def _plain(text: str) -> str:
    """Slack escapes three characters; what cannot be printed is left out."""
    for escape, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(escape, character)
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


_STARTS = ("release", "start", "go", "resume", "arm", "mode")
_ONLY_THERE = (
    "Starting again after a stop, and modes, are for the console and its commands alone"
    ' (manage.py stop --release --reason "...").'
)
_SEES: Sequence[str] = (
    "runbooks.view_run",
    "runbooks.view_stopswitch",
    "runbooks.view_runbookmode",
)
ORDERS: dict[str, Order] = {
    "stop": Order(
        "stop REASON", "nothing disruptive is done anywhere.", ("runbooks.use_stop_switch",), _stop
    ),
    "status": Order(
        "status", "stop switch, modes, runs that wait for people.", tuple(_SEES), _status
    ),
    "approve": Order(
        "approve RUN", "shows what the run asks leave for, with buttons.", CONTROL, _approve
    ),
    "answer": Order("answer RUN ANSWER", "answers what the run asks.", CONTROL, _answer),
}
CLICKS: dict[str, Order] = {
    open_requests.APPROVE: Order("", "", CONTROL, _click_approve),
    open_requests.ABORT: Order("", "", CONTROL, _click_abort),
    open_requests.ANSWER: Order("", "", CONTROL, _click_answer),
}
