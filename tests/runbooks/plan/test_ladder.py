"""The ladder: GPU reset, warm reboot, cold cycle, vendor; by the action class and by what was tried
before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.faults import Action, Recovery
from runbooks.plan.escalation import FIRST, MEMORY, WINDOW, Tried, get_call
from runbooks.plan.escalation_levels import RUNGS
from tests.builders import NOW

RESET, REBOOT, COLD, VENDOR = RUNGS
PART, OTHER = "node/gn001/gpu/0000:19:00.0", "node/gn001/gpu/0000:3b:00.0"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def tried(
    rung: Recovery, ago: timedelta, has_cured: bool | None = False, resource: str = PART
) -> Tried:
    return Tried(rung, resource, NOW - ago, has_cured)


@pytest.mark.parametrize(
    ("action", "history", "rung"),
    [
        # Nothing was tried: the action class says where to begin.
        (Action.RESET_GPU, [], RESET),
        (Action.REBOOT, [], REBOOT),
        (Action.COLD_CYCLE, [], COLD),
        (Action.VENDOR, [], VENDOR),
        # What did not cure is passed, whatever lies below it.
        (Action.RESET_GPU, [tried(RESET, HOUR)], REBOOT),
        (Action.RESET_GPU, [tried(REBOOT, HOUR)], COLD),
        (Action.RESET_GPU, [tried(RESET, 2 * HOUR), tried(REBOOT, HOUR)], COLD),
        (Action.REBOOT, [tried(COLD, HOUR)], VENDOR),
        (Action.VENDOR, [tried(VENDOR, HOUR)], VENDOR),
        # A milder rung than the one that is called for says nothing.
        (Action.COLD_CYCLE, [tried(RESET, HOUR)], COLD),
        # What cured then, and came back after its window, begins anew; what is not known counts
        # within its window.
        (Action.RESET_GPU, [tried(RESET, 3 * DAY, True)], RESET),
        (Action.RESET_GPU, [tried(RESET, HOUR, None)], REBOOT),
        (Action.RESET_GPU, [tried(RESET, 3 * DAY, None)], RESET),
        # Two restarts within 14 days make the hardware suspect, also where each cured for a while.
        (Action.REBOOT, [tried(REBOOT, 9 * DAY, True)], REBOOT),
        (Action.REBOOT, [tried(REBOOT, 9 * DAY, True), tried(REBOOT, 4 * DAY, True)], VENDOR),
        (Action.RESET_GPU, [tried(REBOOT, 9 * DAY, True), tried(COLD, 4 * DAY, True)], VENDOR),
        (Action.REBOOT, [tried(REBOOT, 15 * DAY, True), tried(REBOOT, 4 * DAY, True)], REBOOT),
        # Resets are no restarts.
        (Action.RESET_GPU, [tried(RESET, 9 * DAY, True), tried(RESET, 4 * DAY, True)], RESET),
        # A restart that the guards would refuse is passed: another part of the node, the same
        # fault.
        (Action.REBOOT, [tried(REBOOT, HOUR, True, OTHER)], COLD),
        (Action.REBOOT, [tried(REBOOT, 2 * DAY, True, OTHER)], REBOOT),
        (
            Action.REBOOT,
            [tried(REBOOT, 9 * DAY, True, OTHER), tried(REBOOT, 2 * DAY, True, OTHER)],
            COLD,
        ),
        (Action.REBOOT, [tried(REBOOT, HOUR, True, OTHER), tried(COLD, HOUR, True, OTHER)], VENDOR),
        # A rung that could not even be tried is passed, and is no restart.
        (Action.REBOOT, [Tried(REBOOT, PART, NOW - HOUR, False, was_begun=False)], COLD),
        (
            Action.RESET_GPU,
            [Tried(REBOOT, PART, NOW - HOUR, False, was_begun=False), tried(RESET, HOUR)],
            COLD,
        ),
        # A reset of another GPU is no reason against this one's.
        (Action.RESET_GPU, [tried(RESET, HOUR, False, OTHER)], RESET),
    ],
)
def test_rung_follows_from_the_action_class_and_what_was_tried(
    action: Action, history: list[Tried], rung: Recovery
) -> None:
    call = get_call(action, PART, history, now=NOW)
    assert call is not None
    assert call.rung is rung


@pytest.mark.parametrize(
    "action", [Action.NONE, Action.RESTART_APP, Action.WATCH, Action.CHECK_CABLE]
)
def test_no_rung_answers_what_calls_for_no_repair(action: Action) -> None:
    assert get_call(action, PART, [], now=NOW) is None


def test_two_restarts_are_named_in_the_reason() -> None:
    call = get_call(
        Action.REBOOT, PART, [tried(REBOOT, 9 * DAY, True), tried(REBOOT, 4 * DAY, True)], now=NOW
    )
    assert call is not None
    assert "2 restarts for it within 14 days" in call.reason
    assert "suspect" in call.reason


def test_vendor_is_not_called_where_nothing_was_tried_and_the_fault_does_not_say_so() -> None:
    call = get_call(Action.REBOOT, PART, [], now=NOW)
    assert call is not None
    assert not call.may_go_to_vendor
    after = get_call(Action.REBOOT, PART, [tried(REBOOT, HOUR)], now=NOW)
    assert after is not None
    assert after.may_go_to_vendor


attempts = st.builds(
    Tried,
    rung=st.sampled_from(RUNGS),
    resource=st.sampled_from([PART, OTHER]),
    at=st.timedeltas(timedelta(0), timedelta(days=30)).map(lambda ago: NOW - ago),
    has_cured=st.sampled_from([None, True, False]),
)
actions = st.sampled_from(sorted(FIRST, key=str))


@given(actions, st.lists(attempts, max_size=12))
def test_ladder_never_leads_down_nor_repeats_what_has_just_failed(
    action: Action, history: list[Tried]
) -> None:
    call = get_call(action, PART, history, now=NOW)
    assert call is not None
    assert RUNGS.index(call.rung) >= RUNGS.index(FIRST[action])
    failed = {
        one.rung
        for one in history
        if one.resource == PART and one.has_cured is False and NOW - one.at < MEMORY
    }
    assert call.rung not in failed or call.rung is VENDOR


@given(actions, st.lists(attempts, max_size=12))
def test_node_is_restarted_at_most_twice_in_14_days_for_one_fault_of_one_part(
    action: Action, history: list[Tried]
) -> None:
    call = get_call(action, PART, history, now=NOW)
    lately = [one for one in history if one.resource == PART and NOW - one.at < MEMORY]
    if len([one for one in lately if one.rung in (REBOOT, COLD)]) >= 2:
        assert call is not None
        assert call.rung is VENDOR


@given(actions, st.lists(attempts, max_size=12))
def test_node_is_rebooted_once_a_day_for_one_fault_whatever_part_shows_it(
    action: Action, history: list[Tried]
) -> None:
    call = get_call(action, PART, history, now=NOW)
    assert call is not None
    assert not any(
        one.rung is call.rung and NOW - one.at < WINDOW
        for one in history
        if call.rung in (REBOOT, COLD)
    )


@given(actions, st.lists(attempts, max_size=12), attempts)
def test_more_failures_never_lead_to_a_milder_rung(
    action: Action, history: list[Tried], more: Tried
) -> None:
    before, after = (
        get_call(action, PART, history, now=NOW),
        get_call(action, PART, [*history, more], now=NOW),
    )
    assert before is not None
    assert after is not None
    assert RUNGS.index(after.rung) >= RUNGS.index(before.rung)


@given(actions, st.lists(attempts, max_size=12))
def test_what_is_older_than_14_days_is_forgotten(action: Action, history: list[Tried]) -> None:
    lately = [one for one in history if NOW - one.at < MEMORY]
    assert get_call(action, PART, history, now=NOW) == get_call(action, PART, lately, now=NOW)
