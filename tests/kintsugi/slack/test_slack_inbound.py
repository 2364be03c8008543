"""Orders from Slack: signed, fresh, of a person who may; obeyed once, by the console's own
services."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core import checks
from django.test import Client
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from fixtures.slack_page.interactions import App, over_http
from fixtures.slack_server import CHANNEL
from kintsugi.clients import slack_users
from kintsugi.roles import UserRole
from runbooks import questions
from runbooks import services as runbooks
from runbooks.engine import approvals
from runbooks.library import library
from runbooks.models import AuditEntry, Question, ReturnStop, Run, RunState, StopSwitch
from tests.builders import NOW
from tests.kintsugi import slack_site
from tests.kintsugi.management.test_answers import question
from tests.kintsugi.slack_site import SlackSite, kept_out, slack
from tests.runbooks.engine.test_approvals import asking
from tests.runbooks.site import Site

__all__ = ["kept_out", "question", "slack"]

BOTH = ("/slack/command/", "/slack/action/")


def stopped() -> list[tuple[str, str]]:
    return list(StopSwitch.objects.filter(released_at=None).values_list("engaged_by", "reason"))


# Who is let in.


@pytest.mark.parametrize("address", BOTH)
def test_without_a_secret_there_is_nothing_at_the_two_addresses(
    kept_out: SlackSite, address: str
) -> None:
    assert Client().get(address).status_code == 404
    assert Client().post(address).status_code == 404
    assert kept_out.command("stop row 3").status == 404
    assert stopped() == []


@pytest.mark.parametrize("address", BOTH)
def test_what_is_not_signed_is_refused_before_it_is_read(slack: SlackSite, address: str) -> None:
    answer = Client(enforce_csrf_checks=True).post(
        address, "text=stop", content_type="application/json"
    )
    assert (answer.status_code, "not signed by Slack" in answer.json()["error"]) == (401, True)
    assert Client().get(address).status_code == 405


def test_another_secret_signs_nothing_here(slack: SlackSite) -> None:
    app = slack.server.people.app
    assert app is not None
    slack.server.people.app = replace(app, secret="another")
    assert slack.command("stop row 3").status == 401
    assert stopped() == []


@pytest.mark.parametrize("by", [-310, 310])
def test_a_request_older_or_newer_than_five_minutes_is_refused(slack: SlackSite, by: int) -> None:
    slack.clock.by = by
    assert slack.command("stop row 3").status == 401
    slack.clock.by = by / 2
    assert slack.command("stop row 3").status == 200
    assert len(stopped()) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Slack-Request-Timestamp": "soon", "X-Slack-Signature": "v0=1"},
        {"X-Slack-Request-Timestamp": "9" * 400, "X-Slack-Signature": "v0=1"},
        {"X-Slack-Request-Timestamp": "9" * 5000, "X-Slack-Signature": "v0=1"},
        {"X-Slack-Signature": "v0=1"},
        {},
    ],
)
def test_headers_that_make_no_sense_are_refused_like_a_wrong_signature(
    slack: SlackSite, headers: dict[str, str]
) -> None:
    assert slack_site.by_client(BOTH[0], {"Content-Type": "text/plain", **headers}, b"x")[0] == 401


def test_bytes_that_are_no_text_and_a_signature_that_is_no_ascii_are_refused(
    slack: SlackSite,
) -> None:
    sent = slack.command("status")
    assert slack_site.by_client(BOTH[0], sent.headers, b"\xff\xfe")[0] == 401
    assert (
        slack_site.by_client(
            BOTH[0], {**sent.headers, "X-Slack-Signature": "v0=\u00e9"}, sent.body
        )[0]
        == 401
    )


def test_a_body_that_is_too_large_is_not_read(slack: SlackSite) -> None:
    assert (
        slack_site.by_client(BOTH[1], {"Content-Type": "text/plain"}, b"x" * (256 * 1024 + 1))[0]
        == 413
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload=1",
        b"payload={",
        b'payload={"type":"view_submission"}',
        b'payload={"type":"block_actions","actions":[{"action_id":1}]}',
    ],
)
def test_a_signed_click_of_another_form_is_refused(slack: SlackSite, body: bytes) -> None:
    assert slack.server.people._deliver(BOTH[1], body).status == 400


# The stop switch.


def test_who_is_on_call_stops_everything_from_slack(slack: SlackSite) -> None:
    assert slack.said("stop power works <row 3> & more") == (
        "The stop switch is engaged: nothing disruptive is done until it is released."
    )
    assert stopped() == [("alice", "power works <row 3> & more")]
    acts = AuditEntry.objects.filter(actor="alice").values_list("act", "phase")
    assert set(acts) == {("stop", "done"), ("order", "done")}
    assert AuditEntry.objects.get(act="order").text.startswith(
        "stop power works <row 3> & more (from Slack): "
    )


def test_orders_need_no_key_for_acts_and_nothing_of_the_cluster(
    slack: SlackSite, settings: Settings
) -> None:
    away = {
        "KINTSUGI_ACTS": False,
        "KINTSUGI_SLURM": "ssh:nowhere.invalid",
        "KINTSUGI_SSH_KEY": "/nowhere",
    }
    settings.KINTSUGI = {**settings.KINTSUGI, **away}
    _, _, run = asking()
    assert "waits for leave" in slack.said("status")
    slack.said(f"approve {run.pk}")
    slack.server.people.click_whisper("approve")
    slack.await_answer(0)
    assert "is approved by alice" in slack.whisper()
    assert "is engaged" in slack.said("stop row 3")


@pytest.mark.parametrize("option", ["--give-nothing-back", "\N{EM DASH}give-nothing-back"])
def test_who_is_on_call_stops_everything_and_has_nothing_given_back(
    slack: SlackSite, option: str
) -> None:
    assert "no node is given back" in slack.said(f"stop {option} bad nodes come back")
    assert ReturnStop.objects.get().switch.reason == "bad nodes come back"


def test_a_stop_that_gives_nothing_back_needs_its_reason_too(slack: SlackSite) -> None:
    assert "/kintsugi stop --give-nothing-back power works" in slack.said(
        "stop --give-nothing-back"
    )
    assert stopped() == []


def test_a_stop_needs_its_reason(slack: SlackSite) -> None:
    assert "Say why" in slack.said("stop")
    assert stopped() == []


@pytest.mark.parametrize("word", ["release", "resume everything", "start", "mode site armed"])
def test_starting_again_is_for_the_console_alone(slack: SlackSite, word: str) -> None:
    slack.said("stop row 3")
    assert "for the console and its commands alone" in slack.said(word)
    assert len(stopped()) == 1


def test_an_order_that_slack_repeats_is_obeyed_once_and_says_so(slack: SlackSite) -> None:
    first = slack.command("stop row 3")
    again = slack.server.people.again(first)
    assert again.answer is not None
    assert "came before and is not obeyed twice" in again.answer["text"]
    assert "The stop switch is engaged" in again.answer["text"]
    assert len(stopped()) == 1


def test_what_was_overheard_cannot_stop_what_was_released_since(slack: SlackSite) -> None:
    overheard = slack.command("stop row 3")
    runbooks.release(actor="ada", now=NOW)
    replayed = slack.server.people.replay(overheard)
    assert replayed.answer is not None
    assert "not obeyed twice" in replayed.answer["text"]
    assert stopped() == []


# Who may.


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (
            "U0NOBODY",
            'adds the line U0NOBODY = "your console name" to the file of KINTSUGI_SLACK_USERS',
        ),
        ("U0SAM", "The console has no active account sam"),
        ("U0VERA", "vera may not do this. Who has the role on-call or admin may."),
    ],
)
@pytest.mark.parametrize("text", ["stop row 3", "approve 1", "answer 1 yes"])
def test_who_may_not_is_told_who_may_and_nothing_is_done(
    slack: SlackSite, user: str, why: str, text: str
) -> None:
    said = slack.said(text, user)
    assert said.startswith("Nothing is done.")
    assert why in said
    assert stopped() == []
    kept = AuditEntry.objects.get(act="order", phase="failed")
    assert kept.actor in (f"slack:{user}", "vera")
    assert kept.text.startswith(text)


def test_who_may_look_sees_the_status_and_others_do_not(slack: SlackSite) -> None:
    assert "The stop switch is not engaged." in slack.said("status", "U0VERA")
    assert "Who has the role viewer or on-call or admin may." in slack.said("status", "U0NOBODY")


def test_a_person_whose_account_or_role_or_line_is_taken_away_may_nothing_from_then_on(
    slack: SlackSite,
) -> None:
    slack.said("stop one")
    alice = User.objects.get(username="alice")
    alice.groups.clear()
    assert "alice may not do this" in slack.said("stop two")
    alice.groups.add(Group.objects.get(name=UserRole.ON_CALL.value))
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert "no active account alice" in slack.said("stop three")
    User.objects.filter(pk=alice.pk).update(is_active=True)
    slack.users.write_text('U0BOB = "bob"\n')
    assert "U0ALICE is nobody in the console" in slack.said("stop four")
    assert stopped() == [("alice", "one")]


@pytest.mark.parametrize(
    "text", ["U0ALICE = 1", 'alice = "alice"', 'U0ALICE = ""', "U0ALICE =", 'U1 = "a"\nU1 = "b"']
)
def test_a_list_that_makes_no_sense_lets_nobody_act_and_stops_the_start(
    slack: SlackSite, text: str
) -> None:
    slack.users.write_text(text)
    assert "Kintsugi cannot read who is who in Slack" in slack.said("stop row 3")
    assert stopped() == []
    assert "kintsugi.E005" in [str(found.id) for found in checks.run_checks()]


def test_without_a_list_nobody_is_anybody(slack: SlackSite, settings: Settings) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SLACK_USERS": None}
    assert slack_users.names() == {}
    assert "is nobody in the console" in slack.said("stop row 3")


# What there is to see.


def test_the_status_says_what_stands_and_who_waits_for_people(slack: SlackSite) -> None:
    _, _, run = asking()
    slack.said("stop row 3")
    said = slack.said("status")
    assert said.startswith("Stopped by alice at ")
    assert "approval: drain_and_ask, drain_reboot_verify" in said
    assert f"Run {run.pk} on gn001 waits for leave: /kintsugi approve {run.pk}" in said


@pytest.mark.parametrize("text", ["", "help", "HELP"])
def test_help_names_every_order(slack: SlackSite, text: str) -> None:
    said = slack.said(text, "U0NOBODY")
    assert all(f"/kintsugi {word}" in said for word in ("stop", "status", "approve", "answer"))


def test_an_unknown_order_is_answered_with_those_that_there_are(slack: SlackSite) -> None:
    answer = slack.said("reboot gn001")
    assert answer.startswith('"reboot" is no order.\n/kintsugi stop [--give-nothing-back] REASON: ')


# Leave.


def test_the_message_that_asks_for_leave_shows_the_state_and_takes_the_answer(
    slack: SlackSite,
) -> None:
    site, _, run = asking()
    message = slack.asking(site)
    assert slack.buttons(message) == ["approve", "abort"]
    assert message.is_broadcast
    assert "gn001: in service" in str(message.blocks)
    assert slack.click(message, "approve").status == 200
    run.refresh_from_db()
    assert (run.state, run.approved_by) == (RunState.RUNNING, "alice")
    shown = slack.server.workspace.channels[CHANNEL].messages[message.ts]
    assert slack.buttons(shown) == []
    assert f"Run {run.pk} on gn001 is approved by alice. From Slack." in str(shown.blocks)
    assert run.wake_at is not None
    site.now = run.wake_at
    site.advance(run)
    assert [act[:2] for act in site.slurm.journal] == [("drain", "gn001")]


def test_a_second_click_and_another_persons_click_do_nothing_and_say_so(slack: SlackSite) -> None:
    site, incident, run = asking()
    message = slack.asking(site)
    old = replace(message)  # as it stands on a screen that has not heard yet
    slack.click(message, "approve")
    for user in ("U0ALICE", "U0BOB"):
        message.blocks = old.blocks
        slack.click(message, "approve", user)
        assert "Done already: alice approved just this at" in slack.whisper()
    assert [entry.actor for entry in incident.timeline.filter(kind="run_approved")] == ["alice"]
    assert run.approvals.get().given_by == "alice"


def test_a_click_that_slack_repeats_is_obeyed_once(slack: SlackSite) -> None:
    site, incident, _ = asking()
    first = slack.click(slack.asking(site), "approve")
    slack.server.people.again(first)
    slack.await_answer(1)
    assert "came before and is not obeyed twice" in slack.whisper()
    assert incident.timeline.filter(kind="run_approved").count() == 1


def test_leave_for_a_state_that_has_moved_is_refused_and_the_new_question_has_its_own_buttons(
    slack: SlackSite,
) -> None:
    site, _, run = asking()
    old = slack.asking(site)
    approved = runbooks.approve(
        run.pk, actor="bob", seen=approvals.get_fingerprint(run), now=site.now
    )
    assert isinstance(approved, runbooks.Controlled)
    site.slurm.human_drain("gn007", "bob tests")
    run.refresh_from_db()
    run = site.advance(run)
    for name in ("approve", "abort"):
        slack.click(old, name)
    assert run.state == RunState.AWAITING_APPROVAL
    assert "another state by now than the one you saw" in slack.whisper()
    new = slack.asking(site)
    assert new.ts != old.ts
    assert "Out of service beside it: 1" in str(new.blocks)
    slack.click(new, "approve")
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


def test_a_question_that_was_answered_before_its_message_went_out_has_no_buttons(
    slack: SlackSite,
) -> None:
    site, _, run = asking()
    runbooks.approve(run.pk, actor="bob", seen=approvals.get_fingerprint(run), now=site.now)
    with pytest.raises(IndexError):
        slack.asking(site)


def test_a_run_is_aborted_with_a_click_and_only_while_it_asks(slack: SlackSite) -> None:
    site, _, run = asking()
    message = slack.asking(site)
    old = replace(message)
    slack.click(message, "abort")
    run.refresh_from_db()
    assert (run.state, run.outcome) == (RunState.ABORTED, "aborted by alice. From Slack.")
    message.blocks = old.blocks
    slack.click(message, "abort", "U0BOB")
    assert "Done already: run" in slack.whisper()
    message.blocks = old.blocks
    slack.click(message, "approve", "U0BOB")
    assert "Nothing is done." in slack.whisper()
    assert site.slurm.journal == []


@pytest.mark.parametrize(
    ("user", "more"), [("U0VERA", {}), ("U0NOBODY", {}), ("U0ALICE", {"team": "T0ELSEWHERE"})]
)
def test_a_click_of_who_may_not_or_of_another_workspace_does_nothing(
    slack: SlackSite, user: str, more: dict[str, str]
) -> None:
    site, _, run = asking()
    message = slack.asking(site)
    slack.click(message, "approve", user, **more)
    assert slack.whisper().startswith("Nothing is done.")
    assert slack.buttons(slack.server.workspace.channels[CHANNEL].messages[message.ts]) == [
        "approve",
        "abort",
    ]
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL
    assert AuditEntry.objects.filter(act="order", phase="failed").count() == 1


def test_the_command_shows_the_state_before_it_takes_leave(slack: SlackSite) -> None:
    _, _, run = asking()
    assert f"/kintsugi approve {run.pk}" in slack.said("approve")
    assert f"Run {run.pk} on " in slack.said(f"approve #{run.pk}")
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL
    slack.server.people.click_whisper("approve")
    slack.await_answer(0)
    assert "is approved by alice" in slack.whisper()
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    assert "waits for no leave" in slack.said(f"approve {run.pk}")


@pytest.mark.parametrize(
    "value", ["", "1", "1 ", "x 0123456789abcdef", "1 0123456789abcdeg", "9" * 30]
)
def test_a_button_with_another_value_than_ours_does_nothing(slack: SlackSite, value: str) -> None:
    site, _, run = asking()
    message = slack.asking(site)
    for block in message.blocks:
        for element in block.get("elements", []):
            if element["type"] == "button":
                element["value"] = value
    slack.click(message, "approve")
    assert "none of Kintsugi's" in slack.whisper()
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL


def test_without_a_secret_messages_have_no_buttons(kept_out: SlackSite) -> None:
    site, _, _ = asking()
    with pytest.raises(IndexError):
        kept_out.asking(site)


# Questions.


def test_a_question_is_answered_by_command_once(slack: SlackSite, question: Question) -> None:
    number = question.run_id
    assert slack.said(f"answer {number}") == f"Run {number} on gn042 asks:"
    assert "is no answer to question" in slack.said(f"answer {number} maybe")
    assert slack.said(f"answer {number} yes") == f'alice answered run {number}: "yes".'
    assert "asks nothing" in slack.said(f"answer {number} no", "U0BOB")
    question.refresh_from_db()
    assert (question.answer, question.answered_by) == ("yes", "alice")


def test_the_words_of_a_question_are_buttons(slack: SlackSite, question: Question) -> None:
    slack.said(f"answer {question.run_id}")
    slack.server.people.click_whisper("answer_1")
    slack.await_answer(0)
    assert slack.whisper() == f'alice answered run {question.run_id}: "no".'
    slack.said("status")
    with pytest.raises(LookupError):
        slack.server.people.click_whisper("answer_0")


@pytest.mark.parametrize(
    "text", ["answer", "answer x", "answer 999 yes", "approve 999", "approve 9" + "9" * 30]
)
def test_a_run_that_does_not_exist_is_asked_for_again(slack: SlackSite, text: str) -> None:
    assert slack.said(text).startswith("Say which run")


def test_the_message_of_a_run_that_asks_has_a_button_for_each_answer(slack: SlackSite) -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.begin(incident)
    steps = [
        ("drain", {}),
        ("ask_person", {"question": "May {node} go?", "answers": ["yes", "no"]}),
    ]
    Run.objects.filter(pk=run.pk).update(
        plan=[library.plan_step(name, given).as_row() for name, given in steps]
    )
    run.refresh_from_db()
    site.advance(site.advance(run))
    message = slack.asking(site)
    assert slack.buttons(message) == ["answer_0", "answer_1"]
    slack.click(message, "answer_0")
    assert questions.get_open_question(run.pk) is None
    assert incident.timeline.get(kind="answered").actor == "alice"


# What is never said.


def test_no_log_holds_what_a_request_carries(
    slack: SlackSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site, _, _ = asking()
    slack.command("stop row 3")
    slack.click(slack.asking(site), "approve", "U0NOBODY")
    app = slack.server.people.app
    assert app is not None
    slack.server.people.app = replace(app, secret="another")
    slack.command("stop row 4")
    logged = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("kintsugi")
    )
    assert "not signed by Slack" in logged
    assert [
        word
        for word in ("verification-token", "/actions/", "/commands/", "simulated")
        if word in logged
    ] == []


def test_an_answer_goes_to_slack_alone_whatever_address_a_click_names(
    slack: SlackSite, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    site, _, run = asking()
    message = slack.asking(site)
    settings.KINTSUGI = {**settings.KINTSUGI, "SLACK_API_URL": "https://slack.com/api/"}
    assert slack.server.people.click(message.ts, "approve").status == 200
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    slack_site.wait_until(
        lambda: "named no address of Slack" in caplog.text,
        within_s=10,
        what="the answer that is not sent",
    )
    assert slack.server.people.whispers == []


@pytest.mark.django_db(transaction=True)
def test_the_same_holds_over_http(
    slack: SlackSite, live_server: LiveServer, tmp_path: Path
) -> None:
    url = live_server.url
    slack.server.people.app = App(f"{url}/slack/command/", f"{url}/slack/action/", send=over_http)
    assert "The stop switch is engaged" in slack.said("stop row 3")
    assert stopped() == [("alice", "row 3")]
    slack.server.people.app = App(
        f"{url}/slack/command/", f"{url}/slack/action/", "another", send=over_http
    )
    assert slack.command("stop row 4").status == 401
