"""The catalogue against the severities that DCGM gives its error codes (dcgmlib/src/dcgm_errors.c of
github.com/NVIDIA/DCGM, July 2026)."""

from __future__ import annotations

import pytest

from detectors.catalog.catalog import load
from detectors.faults import Action, Component, Severity

LAST = 132
ISOLATE = frozenset(
    {3, 4, 7, 8, 13, 15, 24, 33, 35, 36, 38, 39, 52, 57, 58, 70, 71, 79, 81, 86, 87, 88, 95, 98}
    | {102, 103, 104, 105, 106, 107, 109, 111, 113, 114, 115, 116, 118, 119, 120, 121, 122, 126}
)
RESET = frozenset({6, 25, 80, 83, 84, 85, 125, 127, 128, 129})
CONFIG = frozenset(
    {18, 20, 23, 28, 29, 46, 47, 48, 55, 60, 68, 72, 78, 82, 96, 112, 117},
)
# A library of another release, and a code that is not sent any more; 25 is a program's window.
OF_SOFTWARE = frozenset({24, 25, 88})
# Its suggestion: damaged beyond repair.
BEYOND_REPAIR = 80


def test_every_code_has_a_row_and_a_newer_one_is_a_persons() -> None:
    codes = {row.code for row in load() if row.family == "dcgm" and row.code is not None}
    assert codes == set(range(1, LAST + 1))
    newer = load()[f"gpu.dcgm.{LAST + 1}"]
    assert (newer.action, newer.title) == (Action.WATCH, "DCGM 133, not in the catalogue")


@pytest.mark.parametrize("code", sorted(ISOLATE - OF_SOFTWARE))
def test_what_cannot_work_is_major_at_least(code: int) -> None:
    assert load()[f"gpu.dcgm.{code}"].severity.at_least(Severity.MAJOR)


@pytest.mark.parametrize("code", sorted(RESET - OF_SOFTWARE))
def test_what_wants_a_reset_gets_one_unless_it_is_beyond_repair(code: int) -> None:
    expected = Action.VENDOR if code == BEYOND_REPAIR else Action.RESET_GPU
    assert load()[f"gpu.dcgm.{code}"].action is expected


@pytest.mark.parametrize("code", sorted(set(range(1, LAST + 1)) - ISOLATE - RESET | OF_SOFTWARE))
def test_what_is_to_be_watched_triaged_or_configured_moves_nothing(code: int) -> None:
    row = load()[f"gpu.dcgm.{code}"]
    assert row.action is Action.WATCH
    assert not row.severity.at_least(Severity.MAJOR)


def test_a_setting_is_no_hardware() -> None:
    # The width of the link and the training of the fabric are hardware's as often as settings'; a
    # test that a person stopped is neither.
    unsure = {46, 47, 112}
    settings = [load()[f"gpu.dcgm.{code}"] for code in sorted(CONFIG - unsure)]
    assert {row.component for row in settings} == {Component.MISCONFIGURATION}
