"""Every state with every trigger: what is possible, and that the table people read says the
same."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from incidents.vocabulary.lifecycle import CLOSED, OPEN, TRANSITIONS, State, Trigger, get_next_state

CONTRACTS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "contracts.md"
ROW = re.compile(r"^\| (\w+) \| (\w+) \| (\w+) \|$", re.MULTILINE)
EVERY = list(itertools.product(State, Trigger))
# What people may do to an incident that is not closed, whatever it is doing.
BY_PEOPLE = {
    Trigger.RESOLVE: State.RESOLVED,
    Trigger.MARK_FALSE_POSITIVE: State.FALSE_POSITIVE,
    Trigger.MARK_DUPLICATE: State.DUPLICATE,
}


def documented() -> dict[tuple[str, str], str]:
    text = CONTRACTS.read_text().split("## States of an incident", 1)[1].split("\n## ", 1)[0]
    return {
        (state, trigger): after for state, trigger, after in ROW.findall(text) if state != "state"
    }


@pytest.mark.parametrize(("state", "trigger"), EVERY, ids=lambda word: word.value)
def test_trigger_does_what_the_contract_says(state: State, trigger: Trigger) -> None:
    after = get_next_state(state, trigger)
    assert documented().get((state.value, trigger.value)) == (after.value if after else None)


@pytest.mark.parametrize("state", sorted(OPEN))
def test_people_can_close_whatever_is_open(state: State) -> None:
    assert {trigger: get_next_state(state, trigger) for trigger in BY_PEOPLE} == BY_PEOPLE


@pytest.mark.parametrize("state", sorted(CLOSED))
def test_nothing_reopens_what_is_closed(state: State) -> None:
    assert {after for (before, _), after in TRANSITIONS.items() if before is state} <= CLOSED


def test_false_positives_and_duplicates_are_final() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in (State.FALSE_POSITIVE, State.DUPLICATE)]


def test_only_a_repair_that_started_can_end() -> None:
    ends = {Trigger.REPAIR_SUCCEEDED, Trigger.REPAIR_FAILED, Trigger.REPAIR_WITHDRAWN}
    assert {state for state, trigger in TRANSITIONS if trigger in ends} == {State.REPAIRING}


def test_only_quiet_and_people_resolve() -> None:
    resolving = {trigger for (_, trigger), after in TRANSITIONS.items() if after is State.RESOLVED}
    assert resolving == {Trigger.QUIET_ELAPSED, Trigger.RESOLVE}


def test_every_state_can_be_reached() -> None:
    reached, frontier = {State.OPEN}, {State.OPEN}
    while frontier:
        frontier = {
            after for (before, _), after in TRANSITIONS.items() if before in frontier
        } - reached
        reached |= frontier
    assert reached == set(State)
