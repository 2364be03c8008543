"""A site in one seed: whatever the order of people, Slurm, nodes, workers and texts, what must hold
holds."""

from __future__ import annotations

import re

import pytest

from tests.simulation import mutants, search
from tests.simulation.play import play_once

pytestmark = pytest.mark.django_db
# A play takes 0.4 to 0.7 s of CPU: one a test in the plain tier.
PLAYS, PLAYS_A_TEST = 2000, 100
# `run 51322`, `#52744` and the mark in a reason of ours, `kintsugi:52744/5b16b8e5-a9262b`.
_IDENTITY = re.compile(r"(?<=run )\d+|(?<=#)\d+|(?<=kintsugi:)\d+/[0-9a-f-]+")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, PLAYS, PLAYS_A_TEST))
def test_what_must_hold_holds_in_every_play(first: int, is_full_length: bool) -> None:
    seeds = range(first, first + (PLAYS_A_TEST if is_full_length else 1))
    assert list(search.list_failures(seeds)) == []


@pytest.mark.parametrize("name", sorted(mutants.BY_NAME))
def test_each_protection_can_be_taken_out(name: str) -> None:
    """Of the product as it is: what is renamed is renamed there too."""
    with mutants.taken_out(name):
        pass


def test_a_seed_plays_the_same_way_each_time() -> None:
    assert _number_rows(play_once(7).trace) == _number_rows(play_once(7).trace)


def _number_rows(trace: list[str]) -> list[str]:
    """With each row of the database, and each site's mark, numbered as it first appears: PostgreSQL
    gives no number twice, whatever was rolled back."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<{len(numbers) + 1}>")

    return [_IDENTITY.sub(number, line) for line in trace]
