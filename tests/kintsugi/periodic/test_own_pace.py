"""What a second of our computing takes, by what the kernel says of our threads."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from kintsugi.periodic.own_pace import OwnPace, read_thread_times

S = 10**9


def test_a_second_takes_as_long_as_its_threads_ran_and_waited() -> None:
    pace = OwnPace()
    pace.update({1: (5 * S, 100 * S)}, 0.0)
    assert pace.update(
        {1: (6 * S, 103 * S), 2: (1 * S, 3 * S)}, 30.0
    ).second_takes == pytest.approx(4.0)


def test_only_the_last_minute_counts() -> None:
    pace = OwnPace()
    pace.update({1: (0, 0)}, 0.0)
    pace.update({1: (1 * S, 99 * S)}, 30.0)
    pace.update({1: (2 * S, 99 * S)}, 60.0)
    assert pace.update({1: (3 * S, 99 * S)}, 100.0).second_takes == pytest.approx(1.0)


def test_nothing_is_said_soon_after_the_start_or_of_a_process_that_computes_nothing() -> None:
    pace = OwnPace()
    pace.update({1: (0, 0)}, 0.0)
    assert pace.update({1: (1 * S, 99 * S)}, 10.0).second_takes is None
    idle = OwnPace()
    idle.update({1: (0, 0)}, 0.0)
    assert idle.update({1: (0, 0)}, 100.0).second_takes is None
    assert idle.update({}, 200.0).up_for == timedelta(seconds=200)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's own")
def test_the_kernel_says_what_our_threads_computed() -> None:
    assert sum(run for run, _ in read_thread_times().values()) > 0
