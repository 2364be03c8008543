"""Words for people: every member of every set has one, durations read as people say them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from enum import Enum

import pytest

from detectors.faults import Action, Channel, ClearRule, Component, Recovery, Role, Severity
from incidents.text import wording
from incidents.vocabulary.lifecycle import State


@pytest.mark.parametrize(
    ("words", "enum"),
    [
        (wording.SEVERITY_ICONS, Severity),
        (wording.STATE_ICONS, State),
        (wording.STATES, State),
        (wording.COMPONENTS, Component),
        (wording.ACTIONS, Action),
        (wording.CLEARS, ClearRule),
        (wording.RECOVERIES, Recovery),
        (wording.ROLES, Role),
        (wording.CHANNELS, Channel),
    ],
)
def test_every_member_has_its_word(words: dict[Enum, str], enum: type[Enum]) -> None:
    assert set(words) == set(enum)
    assert all(words.values())


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=-5), "0 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=61), "1 min 1 s"),
        (timedelta(minutes=9, seconds=59), "9 min 59 s"),
        (timedelta(minutes=10, seconds=59), "10 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=3, minutes=5, seconds=7), "3 h 5 min"),
        (timedelta(days=1, minutes=5), "1 d"),
        (timedelta(days=2, hours=4, minutes=59), "2 d 4 h"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(length: timedelta, said: str) -> None:
    assert wording.format_duration(length) == said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("node/gn042", "gn042"),
        ("node/gn042/gpu/0000:5d:00.0", "gn042 GPU 0000:5d:00.0"),
        ("switch/leaf-03/port/Ethernet64", "leaf-03 port Ethernet64"),
        ("node/-/gpu/0000:5d:00.0", "unknown host GPU 0000:5d:00.0"),
        ("odd", "odd"),
    ],
)
def test_a_resource_is_said_as_people_say_it(path: str, said: str) -> None:
    assert wording.format_resource_path(path) == said


def test_a_gpu_is_said_by_its_index_where_it_is_known() -> None:
    gpus = {"node/gn042/gpu/0000:5d:00.0": 3}
    assert wording.format_resource_path("node/gn042/gpu/0000:5d:00.0", gpus) == "gn042 GPU 3"
    assert (
        wording.format_resource_path("node/gn042/gpu/0000:9b:00.0", gpus)
        == "gn042 GPU 0000:9b:00.0"
    )


def test_a_time_is_said_in_utc_without_its_fractions() -> None:
    tokyo = datetime(2025, 1, 15, 14, 3, 42, 123456, tzinfo=timezone(timedelta(hours=9)))
    assert (wording.format_clock(tokyo), wording.format_moment(tokyo)) == (
        "05:03:42 UTC",
        "2025-01-15 05:03:42 UTC",
    )


@pytest.mark.parametrize(
    ("lag_s", "words"),
    [
        (3600.0, "by our clock: the device dates it 1 h before we saw it"),
        (-7260.0, "by our clock: the device dates it 2 h 1 min after we saw it"),
    ],
)
def test_a_time_of_ours_says_how_far_the_devices_was_off(lag_s: float, words: str) -> None:
    assert wording.format_clock_used(lag_s) == words
