"""Cards and replies: within Slack's limits for any words, and readable without colour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.faults import Severity
from fixtures.slack_page import block_kit
from incidents.notify.notifier import Ask, Button, Card, Reply
from incidents.notify.slack import blocks, mrkdwn
from incidents.vocabulary.lifecycle import State

T0 = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
CARD = Card(
    incident=42,
    title="GPU has fallen off the bus",
    severity=Severity.CRITICAL,
    state=State.OPEN,
    resource="gn042 GPU 4 (0000:9b:00.0)",
    where="rack r07, pod-a",
    component="gpu",
    channels=("platform", "user"),
    onset_at=T0,
    opened_at=T0,
    now="Kintsugi watches it.",
    asked="Acknowledge it.",
    url="https://console.example/incidents/incident/42/change/",
)
_words = st.one_of(st.text(max_size=12), st.text(alphabet="&<>|*`\n", max_size=12))
_moments = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
_cards = st.builds(
    Card,
    incident=st.integers(1, 10**9),
    title=_words,
    severity=st.sampled_from(Severity),
    state=st.sampled_from(State),
    resource=_words,
    where=_words,
    component=_words,
    channels=st.tuples(_words, _words),
    onset_at=_moments,
    opened_at=_moments,
    now=_words,
    asked=_words,
    url=st.sampled_from(
        ["https://console.example/a b|c&d<e>", "http://10.0.0.1:8000/incidents/incident/7/change/"]
    ),
    faults=st.integers(1, 10**6),
    needs_human=st.booleans(),
    closed_at=st.one_of(st.none(), _moments),
    latest=_words,
    impact=_words,
    advice=_words,
    advice_url=st.sampled_from(["", "https://wiki.example/a b|c&d<e>"]),
)
_buttons = st.builds(
    Button,
    name=st.just("answer"),
    label=st.text(min_size=1),
    value=_words,
    question=_words,
    is_danger=st.booleans(),
)
_asks = st.builds(
    lambda lines, buttons: Ask(
        lines, tuple(replace(one, name=f"answer_{n}") for n, one in enumerate(buttons))
    ),
    st.lists(_words).map(tuple),
    st.lists(_buttons, min_size=1, max_size=40),
)
_replies = st.builds(
    Reply,
    incident=st.integers(1, 10**9),
    kind=_words,
    text=_words,
    actor=_words,
    occurred_at=_moments,
    ask=st.one_of(st.none(), _asks),
)


def _all_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(
            v if k == "text" and isinstance(v, str) else _all_text(v) for k, v in value.items()
        )
    return " ".join(map(_all_text, value)) if isinstance(value, list) else ""


def _assert_taken(content: Card | Reply) -> None:
    made = blocks.blocks(content)
    assert block_kit.problems(made) == []
    assert block_kit.all_text(made) <= block_kit.ALL_TEXT
    assert block_kit.unescaped(blocks.format_text(content)) == ""
    assert 0 < len(blocks.format_text(content)) <= 1000 or isinstance(content, Reply)


@given(_cards, st.integers(1, 900))
def test_slack_takes_a_card_whatever_devices_wrote(card: Card, times: int) -> None:
    grown = {
        name: getattr(card, name) * times
        for name in ("title", "resource", "where", "component", "now", "asked")
    }
    _assert_taken(replace(card, **grown, latest=card.latest * times))


@given(_replies, st.integers(1, 900))
def test_slack_takes_a_reply_whatever_people_wrote(reply: Reply, times: int) -> None:
    _assert_taken(replace(reply, text=reply.text * times, actor=reply.actor * times))


@given(st.text(max_size=300), st.integers(1, 50))
def test_cutting_keeps_the_limit_and_never_halves_an_escape(text: str, limit: int) -> None:
    cut = mrkdwn.escape(text, limit)
    assert len(cut) <= limit
    assert block_kit.unescaped(cut) == ""


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=0xFFF), max_size=80))
def test_short_text_is_readable_again_after_escaping(text: str) -> None:
    unescaped = (
        mrkdwn.escape(text, 10_000).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    assert unescaped == "".join(c if c.isprintable() else " " for c in text)


def test_a_card_answers_what_where_since_when_what_now_and_what_to_do() -> None:
    told = _all_text(blocks.blocks(replace(CARD, needs_human=True, asked="Look at gn042.")))
    for words in (
        ":no_entry: CRITICAL: GPU has fallen off the bus",
        "*gn042 GPU 4 (0000:9b:00.0)*, rack r07, pod-a",
        "<!date^1736910000^{date_short_pretty} {time_secs}|2025-01-15 03:00:00 UTC>",
        "Kintsugi watches it.",
        "*A person is needed*\nLook at gn042.",
        "<https://console.example/incidents/incident/42/change/|Open incident #42>",
        "seen by monitoring and a user",
    ):
        assert words in told


def test_each_severity_has_a_sign_and_a_word_of_its_own() -> None:
    headers = [
        _all_text(blocks.blocks(replace(CARD, severity=severity))[0]) for severity in Severity
    ]
    signs = {header.split()[0] for header in headers}
    assert len(signs) == len(Severity)
    for severity, header in zip(Severity, headers, strict=True):
        assert str(severity).upper() in header


@pytest.mark.parametrize("state", [State.RESOLVED, State.FALSE_POSITIVE, State.DUPLICATE])
def test_a_closed_card_leads_with_how_it_ended(state: State) -> None:
    header = _all_text(blocks.blocks(replace(CARD, state=state, closed_at=T0))[0])
    assert str(state).replace("_", " ").upper() in header
    assert "CRITICAL" not in header


def test_the_fallback_text_tells_a_lock_screen_that_a_person_is_needed() -> None:
    assert blocks.format_text(replace(CARD, needs_human=True)) == (
        "CRITICAL: GPU has fallen off the bus. gn042 GPU 4 (0000:9b:00.0), rack r07, pod-a. State: open."
        " A person is needed."
    )


def test_a_reply_names_the_person_who_acted_and_not_kintsugi() -> None:
    reply = Reply(42, "acknowledge", "Acknowledged: on it.", "alice", T0)
    assert ", by alice" in _all_text(blocks.blocks(reply))
    assert ", by" not in _all_text(blocks.blocks(replace(reply, actor="kintsugi")))


def test_the_jobs_stand_on_the_card_when_they_are_known() -> None:
    said = str(blocks.make_card_blocks(replace(CARD, impact="3 jobs of 2 people, 64 nodes")))
    assert "Jobs: 3 jobs of 2 people, 64 nodes" in said
    assert "Jobs:" not in str(blocks.make_card_blocks(CARD))


def test_a_card_says_how_to_go_about_it_with_the_sites_own_page() -> None:
    advice = "Run `ethtool -m mlx5_0`. Well is: no alarm."
    card = replace(CARD, advice=advice, advice_url="https://wiki.example/nic")
    sections = [block for block in blocks.make_card_blocks(card) if block["type"] == "section"]
    assert sections[-1]["text"]["text"] == (
        f"*How to go about it*\n{advice}\n<https://wiki.example/nic|This site's page about it>"
    )
    assert len(blocks.make_card_blocks(card)) == len(blocks.make_card_blocks(CARD)) + 1
