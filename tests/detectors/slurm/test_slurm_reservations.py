"""Reservations as Slurm prints them: 22.05.8, by the hand of `scontrol --all show reservation` with
TZ=UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slurm.reservations import Reservation, parse_reservations

SHOWN = """ReservationName=maint_1 StartTime=2026-11-22T02:30:07 EndTime=2026-11-22T03:30:07 Duration=01:00:00
   Nodes=gn[001-002] NodeCnt=2 CoreCnt=32 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES
   TRES=cpu=32
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

ReservationName=class of may StartTime=2026-11-22T04:30:07 EndTime=2027-11-22T04:30:07 Duration=365-00:00:00
   Nodes=gn003,mt001 NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=gpu Flags=DAILY
   TRES=cpu=64
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

"""


def test_reservations_are_read_with_their_nodes_flags_and_times() -> None:
    first, second = parse_reservations(SHOWN)
    assert first == Reservation(
        "maint_1",
        ("gn001", "gn002"),
        frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}),
        datetime(2026, 11, 22, 2, 30, 7, tzinfo=UTC),
        datetime(2026, 11, 22, 3, 30, 7, tzinfo=UTC),
    )
    assert first.is_maintenance
    assert (second.name, second.nodes, second.is_maintenance) == (
        "class of may",
        ("gn003", "mt001"),
        False,
    )


def test_one_line_each_reads_the_same() -> None:
    lines = "\n".join(" ".join(block.split()) for block in SHOWN.split("\n\n"))
    assert parse_reservations(lines) == parse_reservations(SHOWN)


@pytest.mark.parametrize(
    "text",
    [
        "No reservations in the system\n",
        "",
        "ReservationName= StartTime=2026-11-22T02:30:07 EndTime=2026-11-22T03:30:07 Nodes=gn001 Flags=MAINT\n",
        "ReservationName=x StartTime=now EndTime=2026-11-22T03:30:07 Nodes=gn001 Flags=MAINT\n",
        "ReservationName=x StartTime=2026-11-22T02:30:07",
    ],
)
def test_what_names_no_time_is_no_reservation(text: str) -> None:
    assert parse_reservations(text) == []


def test_a_reservation_of_licences_alone_has_no_nodes() -> None:
    text = "ReservationName=x StartTime=2026-11-22T02:30:07 EndTime=2026-11-22T03:30:07\n   Nodes=(null) Flags=(null)\n"
    (found,) = parse_reservations(text)
    assert (found.nodes, found.flags) == ((), frozenset())


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    parse_reservations("ReservationName=" + text)
