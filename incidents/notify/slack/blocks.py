"""Cards and replies as Block Kit, for a person at 3 a.m.: what, where, since when, what happens,
what to do. Pure.

Limits (https://docs.slack.dev/reference/block-kit/blocks): 50 blocks, header 150 characters,
section text 3,000, 10 fields of 2,000, about 13,200 characters in all. Everything here stays far
below them.
"""

from __future__ import annotations

from typing import Any

from detectors.faults import Severity
from incidents.notify.notifier import Ask, Button, Card, Content, NoticeCard, Reply
from incidents.notify.slack import mrkdwn
from incidents.vocabulary.lifecycle import CLOSED, State

Block = dict[str, Any]

# Each severity has a sign of its own shape and its word: colour alone says nothing to one person in
# twelve.
SIGNS: dict[Severity, str] = {
    Severity.CRITICAL: ":no_entry:",
    Severity.MAJOR: ":small_red_triangle:",
    Severity.MINOR: ":large_orange_diamond:",
    Severity.WARNING: ":warning:",
    Severity.INDETERMINATE: ":grey_question:",
}
CLOSED_SIGNS: dict[State, str] = {
    State.RESOLVED: ":white_check_mark:",
    State.FALSE_POSITIVE: ":ballot_box_with_check:",
    State.DUPLICATE: ":heavy_multiplication_x:",
}
# What happened, by the kind of the timeline entry; any other kind has a plain dot.
REPLY_SIGNS: dict[str, str] = {
    "joined": ":link:",
    "escalated": ":arrow_up:",
    "returned": ":arrow_up:",
    "fault_returned": ":arrow_up:",
    "cleared": ":white_check_mark:",
    "faults_cleared": ":white_check_mark:",
    "repair_succeeded": ":white_check_mark:",
    "quiet_elapsed": ":white_check_mark:",
    "resolve": ":white_check_mark:",
    "same_fault_back": ":arrow_up:",
    "user_report": ":speech_balloon:",
    "note": ":speech_balloon:",
    "repair_started": ":wrench:",
    "step_done": ":wrench:",
    "approval_asked": ":raised_hand:",
    "repair_failed": ":raised_hand:",
    "standstill": ":raised_hand:",
    "asked_again": ":raised_hand:",
    "paged": ":pager:",
    "page_failed": ":raised_hand:",
    "jobs_in_the_way": ":raised_hand:",
    "beyond_limit": ":raised_hand:",
    "stepped_back": ":raised_hand:",
    "drain_left": ":raised_hand:",
    "still_standing": ":raised_hand:",
    "cable_judged": ":mag:",
    "impact": ":busts_in_silhouette:",
    "severity_raised": ":arrow_up:",
    "owner_told": ":speech_balloon:",
}
ACTIONS = "actions"
_OTHER_SIGN = ":small_blue_diamond:"


def blocks(content: Content) -> list[Block]:
    if isinstance(content, NoticeCard):
        return make_notice_blocks(content)
    return make_card_blocks(content) if isinstance(content, Card) else make_reply_blocks(content)


def format_text(content: Content) -> str:
    """What notifications, screen readers and old clients show instead of the blocks."""
    if isinstance(content, Reply):
        return mrkdwn.escape(content.text, 1000)
    if isinstance(content, NoticeCard):
        return mrkdwn.escape(f"{content.title}. {content.text}", 1000)
    need = " A person is needed." if content.needs_human else ""
    place = f"{content.resource}, {content.where}"
    state = format_state(content.state)
    return mrkdwn.escape(f"{format_headline(content)}. {place}. State: {state}.{need}", 1000)


def format_headline(card: Card) -> str:
    """`CRITICAL: GPU has fallen off the bus`, or `RESOLVED: ...` once it is closed."""
    word = format_state(card.state) if card.state in CLOSED else str(card.severity)
    return f"{word.upper()}: {card.title}"


def format_state(state: State) -> str:
    return str(state).replace("_", " ")


def make_card_blocks(card: Card) -> list[Block]:
    """What it is; where and since when; what happens now beside what to do; the rest in small
    print."""
    sign = CLOSED_SIGNS.get(card.state, SIGNS[card.severity])
    header = f"{sign} {mrkdwn.format_plain(format_headline(card), 110)}"
    place = _make_mrkdwn(_format_place(card))
    now_and_next = [_make_mrkdwn(_format_doing(card)), _make_mrkdwn(_format_asking(card))]
    small_print = [_make_mrkdwn(_format_small_print(card)), *_make_latest_blocks(card)]
    return [
        {"type": "header", "text": _make_plain(header)},
        {"type": "section", "text": place},
        {"type": "section", "fields": now_and_next},
        *_make_advice_blocks(card),
        {"type": "context", "elements": small_print},
    ]


def make_notice_blocks(notice: NoticeCard) -> list[Block]:
    """Who asks what; what happens now beside what to do; a button for each answer."""
    sign = ":raised_hand:" if notice.is_open else ":ballot_box_with_check:"
    header = f"{sign} {mrkdwn.format_plain(notice.title, 110)}"
    doing = f"*What Kintsugi does now*\n{mrkdwn.escape(notice.now, 600)}"
    heading = ":raised_hand: *A person is needed*" if notice.is_open else "*What you can do*"
    page = mrkdwn.link(notice.url, "Open its page")
    asking = f"{heading}\n{mrkdwn.escape(notice.asked, 600)}\n{page}"
    buttons = ask_blocks(notice.ask) if notice.ask is not None else []
    text = _make_mrkdwn(mrkdwn.escape(notice.text, 2900))
    fields = [_make_mrkdwn(doing), _make_mrkdwn(asking)]
    return [
        {"type": "header", "text": _make_plain(header)},
        {"type": "section", "text": text},
        {"type": "section", "fields": fields},
        *buttons,
    ]


def make_reply_blocks(reply: Reply) -> list[Block]:
    sign = REPLY_SIGNS.get(reply.kind, _OTHER_SIGN)
    by = "" if reply.actor == "kintsugi" else f", by {mrkdwn.escape(reply.actor, 150)}"
    text = f"{sign} {mrkdwn.escape(reply.text, 2900)}"
    small_print = f"{mrkdwn.format_date(reply.occurred_at)}{by}"
    lines: list[Block] = [{"type": "section", "text": _make_mrkdwn(text)}]
    if reply.ask is not None:
        lines += ask_blocks(reply.ask)
    lines.append({"type": "context", "elements": [_make_mrkdwn(small_print)]})
    return lines


def ask_blocks(ask: Ask) -> list[Block]:
    """What there is to know, then a button for each answer. Limits: 25 buttons, labels of 75,
    values of 2,000."""
    lines = "\n".join(mrkdwn.escape(line, 300) for line in ask.lines[:8])
    shown = [{"type": "section", "text": _make_mrkdwn(lines)}] if lines else []
    return [
        *shown,
        {"type": ACTIONS, "elements": [_make_button(button) for button in ask.buttons[:25]]},
    ]


def _make_button(button: Button) -> Block:
    made: Block = {
        "type": "button",
        "action_id": button.name,
        "text": _make_plain_text(button.label, 75),
        "value": button.value[:2000],
    }
    if button.is_danger:
        made["style"] = "danger"
    if button.question:
        made["confirm"] = {
            "title": _make_plain_text(button.label, 100),
            "text": _make_plain_text(button.question, 300),
            "confirm": _make_plain_text(button.label, 30),
            "deny": _make_plain("Not now"),
        }
    return made


def _make_plain_text(text: str, limit: int) -> Block:
    """Slack takes no empty text."""
    return _make_plain(mrkdwn.format_plain(text, limit) or "-")


def _format_place(card: Card) -> str:
    if card.state in CLOSED and card.closed_at is not None:
        state = f"{format_state(card.state)} {mrkdwn.format_date(card.closed_at)}"
    else:
        state = f"now *{format_state(card.state)}*"
    resource = mrkdwn.escape(card.resource, 300)
    where = mrkdwn.escape(card.where, 300)
    since = mrkdwn.format_date(card.onset_at)
    lines = [f"*{resource}*, {where}", f"Since {since}, {state}"]
    if card.impact:
        lines.append(f"Jobs: {mrkdwn.escape(card.impact, 300)}")
    return "\n".join(lines)


def _format_doing(card: Card) -> str:
    return f"*What Kintsugi does now*\n{mrkdwn.escape(card.now, 600)}"


def _format_asking(card: Card) -> str:
    asks = ":raised_hand: *A person is needed*" if card.needs_human else "*What you can do*"
    page = mrkdwn.link(card.url, f"Open incident #{card.incident}")
    return f"{asks}\n{mrkdwn.escape(card.asked, 600)}\n{page}"


def _make_advice_blocks(card: Card) -> list[Block]:
    """What the catalogue says to do, over the whole width: it has commands to type."""
    if not card.advice:
        return []
    lines = ["*How to go about it*", mrkdwn.escape(card.advice, 700)]
    if card.advice_url:
        lines.append(mrkdwn.link(card.advice_url, "This site's page about it"))
    return [{"type": "section", "text": _make_mrkdwn("\n".join(lines))}]


def _format_small_print(card: Card) -> str:
    component = mrkdwn.escape(card.component, 100)
    severity = f"{SIGNS[card.severity]} {card.severity}"
    seen_by = _format_seen_by(card)
    return f"{severity} | {component} | seen by {seen_by} | {_format_faults(card)}"


def _format_faults(card: Card) -> str:
    joined = "1 fault" if card.faults == 1 else f"{card.faults} faults joined into one incident"
    return (
        f"{joined}, {card.active_faults or 'none'} still active"
        if card.state not in CLOSED
        else joined
    )


def _format_seen_by(card: Card) -> str:
    known = {"platform": "monitoring", "user": "a user"}
    channels = " and ".join(known.get(channel, channel) for channel in card.channels)
    return mrkdwn.escape(channels, 200) or "nobody yet"


def _make_latest_blocks(card: Card) -> list[Block]:
    return [_make_mrkdwn(f"Latest: {mrkdwn.escape(card.latest, 600)}")] if card.latest else []


def _make_mrkdwn(value: str) -> Block:
    """`verbatim` keeps Slack from making links and mentions of what devices wrote."""
    return {"type": "mrkdwn", "text": value, "verbatim": True}


def _make_plain(value: str) -> Block:
    return {"type": "plain_text", "text": value, "emoji": True}
