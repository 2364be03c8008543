"""How rounds of observations become fault events: debounce, hysteresis, counters by their rise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.catalog.catalog import Catalog, CatalogError
from detectors.detector import Sample
from detectors.evaluation import judge
from detectors.faults import Observation, fingerprint

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PART = "node/gn001/nic/mlx5_0"
TYPE = """
[[type]]
id = "t.fault"
title = "A fault"
component = "nic"
event_type = "equipment"
severity = "minor"
action = "watch"
clears = "{clears}"
meaning = "Something."
source = "a test"
"""


def rules(tmp_path: Path, *rows: str, clears: str = "by_poll") -> Catalog:
    text = TYPE.format(clears=clears)
    for row in rows:
        text += f'\n[[rule]]\nmetric = "m"\ntype = "t.fault"\nsource = "a test"\n{row}\n'
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return catalog.read([path])


def play(
    rows: Catalog,
    values: Sequence[Any],
    *,
    booted_at: datetime | None = None,
    apart: timedelta = MINUTE,
    **attributes: str,
) -> list[str]:
    """What each round says: `+severity` raised, `-` cleared, empty nothing. Memory goes through
    JSON each time."""
    memory, active, said = judge.Memory(), set(), []
    for number, value in enumerate(values):
        seen = (
            []
            if value is ...
            else [Observation(PART, "m", value, START + number * apart, attributes)]
        )
        judged = judge.judge(seen, memory, active=active, catalog=rows, booted_at=booted_at)
        memory = judge.from_json(json.loads(json.dumps(judge.to_json(judged.memory))), UTC)
        said.append(
            "".join("-" if e.event == "cleared" else f"+{e.severity}" for e in judged.events)
        )
        for event in judged.events:
            (active.discard if event.event == "cleared" else active.add)(
                fingerprint(PART, "t.fault")
            )
    return said


def test_the_first_sight_of_a_counter_is_a_baseline_and_its_rise_a_fault(tmp_path: Path) -> None:
    assert play(rules(tmp_path, 'when = "rises"'), [900, 900, 901, 901]) == ["", "", "+minor", "-"]


def test_a_counter_that_was_reset_starts_anew(tmp_path: Path) -> None:
    assert play(rules(tmp_path, 'when = "rises"'), [900, 3, 3, 4]) == ["", "", "", "+minor"]


def test_a_counter_missed_for_a_round_is_compared_with_its_last_sample(tmp_path: Path) -> None:
    assert play(rules(tmp_path, 'when = "rises"'), [5, ..., 6]) == ["", "", "+minor"]


def test_two_rises_within_the_period_are_a_fault_and_age_out_of_it(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "rises"\nraise_at = 1\nwithin = "5m"')
    assert play(rows, [0, 1, 1, 2, 2, 2, 2, 2]) == [
        "",
        "",
        "",
        "+minor",
        "+minor",
        "+minor",
        "-",
        "",
    ]


def test_a_rate_is_per_second(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "faster"\nraise_at = 1\nclear_at = 0.5')
    assert play(rows, [0, 30, 120, 165, 195]) == ["", "", "+minor", "", "-"]


def test_a_level_is_raised_past_one_threshold_and_cleared_at_another(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "above"\nraise_at = 80\nclear_at = 70')
    assert play(rows, [79, 81, 75, 70, 75]) == ["", "+minor", "", "-", ""]
    rows = rules(tmp_path, 'when = "below"\nraise_at = -8\nclear_at = -7')
    assert play(rows, [-7.5, -8.5, -7.5, -7.0]) == ["", "+minor", "", "-"]


def test_the_devices_own_threshold_goes_before_the_catalogues(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "above"\nraise_at = 80\nclear_at = 70')
    assert play(rows, [85, 91], raise_at="90") == ["", "+minor"]


def test_a_fault_waits_for_so_many_bad_polls_in_a_row(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "false"\npolls = 3\nclear_polls = 2')
    assert play(rows, [False, False, True, False, False, False, True, True]) == [
        *[""] * 5,
        "+minor",
        "",
        "-",
    ]


def test_a_fault_waits_until_it_has_held(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "true"\nhold = "2m"')
    assert play(rows, [True, True, True, False]) == ["", "", "+minor", "-"]


def test_what_a_boot_disturbs_does_not_count_until_its_grace_is_over(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "false"\npolls = 2\ngrace = "2m"')
    assert play(rows, [False] * 4, booted_at=START) == ["", "", "", "+minor"]


def test_the_worse_of_two_rules_speaks_and_both_must_be_well_to_clear(tmp_path: Path) -> None:
    rows = rules(
        tmp_path,
        'when = "above"\nraise_at = 1\nseverity = "warning"',
        'when = "above"\nraise_at = 10\nclear_at = 5\nseverity = "major"',
    )
    assert play(rows, [2, 11, 7, 1]) == ["+warning", "+major", "+warning", "-"]


@pytest.mark.parametrize(
    ("clears", "end"),
    [("by_poll", "-"), ("by_event", "-"), ("after_reboot", ""), ("by_operator", "")],
)
def test_a_poll_ends_only_what_its_type_lets_it_end(tmp_path: Path, clears: str, end: str) -> None:
    assert play(rules(tmp_path, 'when = "true"', clears=clears), [True, False]) == ["+minor", end]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('when = "above"', "needs raise_at"),
        ('when = "sometimes"', "is none of"),
        ('when = "true"\nraise_at = 1', "are for above"),
        ('when = "above"\nraise_at = 1\nclear_at = 2', "faulty side"),
        ('when = "below"\nraise_at = 1\nclear_at = 0', "faulty side"),
        ('when = "true"\nwithin = "5m"', "within is for rises"),
        ('when = "true"\npolls = 0', "whole number"),
        ('when = "true"\nlimit = 3', "unknown field limit"),
    ],
)
def test_a_wrong_rule_stops_the_start_with_its_place_and_reason(
    tmp_path: Path, row: str, complaint: str
) -> None:
    with pytest.raises(CatalogError, match=rf"rules.toml:\d+: t.fault: .*{complaint}"):
        rules(tmp_path, row)


def test_every_threshold_of_the_catalogue_names_its_source() -> None:
    assert all(len(rule.source) > 3 for some in catalog.load().rules.values() for rule in some)


@given(
    values=st.lists(
        st.one_of(st.none(), st.integers(), st.floats(), st.booleans(), st.text(max_size=5)),
        max_size=8,
    )
)
def test_any_values_are_judged_without_an_error(values: list[Any]) -> None:
    rows = catalog.load()
    memory = judge.Memory()
    for number, value in enumerate(values):
        seen = [
            Observation(PART, metric, value, START + number * MINUTE, {"expected": "1"})
            for metric in rows.rules
        ]
        memory = judge.judge(seen, memory, active=(), catalog=rows).memory
    assert all(sample.at >= START for sample in memory.samples.values())


# The last look at which it was well
# ---------------------------------------------------------------------------


def looked(
    rows: Catalog,
    rounds: Sequence[Any],
    *,
    active: Sequence[str] = (),
    booted_at: datetime | None = None,
) -> list[str]:
    """Of each round's events the minute of the last good look; `-` without one. A value, `...` for
    no answer at all, or None for a detector that gave no usable answer."""
    memory, said = judge.Memory(), []
    for number, value in enumerate(rounds):
        at = START + number * MINUTE
        seen = [Observation("node/gn001", "target.reachable", value is not ..., at)]
        if value is None:
            seen.append(
                Observation("node/gn001", "detector.answered", False, at, {"detector": "nic"})
            )
        elif value is not ...:
            seen.append(Observation(PART, "m", value, at))
        judged = judge.judge(seen, memory, active=active, catalog=rows, booted_at=booted_at)
        memory = judge.from_json(json.loads(json.dumps(judge.to_json(judged.memory))), UTC)
        for event in [
            event
            for event in judged.events
            if event.event == "raised" and event.fault_type == "t.fault"
        ]:
            good = event.attributes.get("last_known_good_at")
            said.append(f"{(datetime.fromisoformat(good) - START) // MINUTE}" if good else "-")
    return said


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([0, 0, 5], ["1"]),
        ([5], ["-"]),  # never seen well
        ([0, ..., ..., 5], ["0"]),  # what did not answer was not seen well
        ([0, None, 5], ["0"]),
    ],
)
def test_a_new_fault_says_when_it_was_last_seen_well(
    tmp_path: Path, rounds: list[Any], said: list[str]
) -> None:
    assert looked(rules(tmp_path, 'when = "above"\nraise_at = 1'), rounds) == said


def test_a_fault_that_waits_for_more_bad_polls_was_well_before_the_first_of_them(
    tmp_path: Path,
) -> None:
    assert looked(rules(tmp_path, 'when = "above"\nraise_at = 1\npolls = 3'), [0, 0, 5, 5, 5]) == [
        "1"
    ]


def test_a_fault_that_stands_says_no_more_when_it_was_well(tmp_path: Path) -> None:
    stands = [fingerprint(PART, "t.fault")]
    assert looked(rules(tmp_path, 'when = "above"\nraise_at = 1'), [0, 5], active=stands) == ["-"]


def test_what_a_boot_excused_was_not_seen_well(tmp_path: Path) -> None:
    rows = rules(tmp_path, 'when = "above"\nraise_at = 1\ngrace = "90s"')
    assert looked(rows, [5, 5, 5], booted_at=START) == ["-"]


NICS = tuple(f"node/gn001/nic/mlx5_{number}" for number in range(10))
FEW = {(NICS[0], "nic.errors"): Sample(1, START), (NICS[1], "nic.state"): Sample("up", START)}
COUNTERS = ("nic.errors", "nic.discards", "nic.pauses")
MANY = {(nic, name): Sample(len(name), START) for nic in NICS for name in COUNTERS} | {
    (NICS[0], "nic.state"): Sample("up", START - MINUTE),
    (NICS[4], "nic.state"): Sample("down", START),
}


@pytest.mark.parametrize("samples", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("looked_at", [None, START])
def test_what_is_remembered_is_read_as_it_was_written(
    samples: dict[tuple[str, str], Sample], looked_at: datetime | None
) -> None:
    memory = judge.Memory(samples)
    values = json.loads(json.dumps(judge.to_json(memory, looked_at)))

    assert judge.from_json(values, UTC, looked_at) == memory


def test_many_samples_are_written_alike_in_whatever_order_they_were_kept() -> None:
    turned = judge.Memory(dict(reversed(MANY.items())))

    assert json.dumps(judge.to_json(turned)) == json.dumps(judge.to_json(judge.Memory(MANY)))


def test_of_many_samples_a_metric_is_written_once_and_a_resource_once() -> None:
    text = json.dumps(judge.to_json(judge.Memory(MANY), START))

    assert (text.count("nic.errors"), text.count(NICS[1])) == (1, 1)


def test_many_samples_of_an_earlier_version_are_read() -> None:
    samples = [[*key, sample.value, sample.at.timestamp()] for key, sample in MANY.items()]
    values = {"samples": samples, "streaks": [], "rises": []}

    assert judge.from_json(values, UTC) == judge.Memory(MANY)


@pytest.mark.parametrize(("numbers", "column"), [(None, [1]), ([0], [1, 2]), ([2], [1])])
def test_values_of_resources_that_are_not_there_are_refused(
    numbers: list[int] | None, column: list[int]
) -> None:
    columns = [["nic.errors", 0.0, numbers, column]]
    values = {"samples": [], "resources": NICS[:2], "columns": columns, "streaks": [], "rises": []}

    with pytest.raises((ValueError, KeyError)):
        judge.from_json(values, UTC)
