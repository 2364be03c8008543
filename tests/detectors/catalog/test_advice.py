"""What the catalogue tells a person to do: complete, short, and safe to paste."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import advice
from detectors.catalog.advice import Advice
from detectors.catalog.catalog import Catalog, load, read
from detectors.faults import Action, Severity

_ROW = {
    "types": ["nic.*"],
    "text": "On {host} run `ethtool -m {part}`. Well is: no alarm.",
    "source": "ethtool(8)",
}
_PERSONS = (Action.WATCH, Action.CHECK_CABLE, Action.VENDOR)
_GRAVE = (Severity.MAJOR, Severity.CRITICAL)


def a_row(**changes: object) -> dict[str, object]:
    return {**_ROW, **changes}


def test_every_grave_type_whose_action_is_a_persons_says_what_that_person_does() -> None:
    known = load()
    grave = [row for row in known if row.severity in _GRAVE and row.action in _PERSONS]
    assert len(grave) > 100
    assert [row.id for row in grave if known.get_advice(row.id) is None] == []


def test_every_row_of_ours_decides_for_some_type() -> None:
    known = load()
    deciding = {known.get_advice(row.id) for row in known}
    assert [row.where for row in known.advices if row not in deciding] == []


def test_every_row_of_ours_names_something_to_type_or_somebody_to_call() -> None:
    without = [row.types for row in load().advices if "`" not in row.text]
    # A leak is no time to type.
    assert without == [("switch.leak",)]


def test_no_command_that_takes_an_interface_is_given_a_pci_address() -> None:
    takes_interface = re.compile(r"`(ethtool|ip link|arping)[^`]*\{part\}")
    assert [row.types for row in load().advices if takes_interface.search(row.text)] == []


def test_an_unknown_type_has_no_advice() -> None:
    assert load().get_advice("no.such.type") is None
    assert Catalog({}).get_advice("gpu.xid.79") is None


def test_host_and_part_are_those_of_the_resource() -> None:
    row = advice.read("site.toml:1", a_row())
    assert row.format("node/gn042/nic/mlx5_0").startswith("On gn042 run `ethtool -m mlx5_0`.")
    assert row.format("node/gn042").startswith("On gn042 run `ethtool -m <part>`.")
    assert row.format("").startswith("On <host> run `ethtool -m <part>`.")


@pytest.mark.parametrize(
    "name", ["a;reboot", "$(reboot)", "`id`", "a b", "-oProxyCommand=x", "a\nb", "{host}", "a|b"]
)
def test_a_name_that_a_shell_reads_otherwise_never_becomes_part_of_a_command(name: str) -> None:
    text = advice.read("site.toml:1", a_row()).format(f"node/{name}/nic/{name}")
    assert text.startswith("On <host> run `ethtool -m <part>`.")


@given(st.text(max_size=40))
def test_any_resource_gets_the_same_number_of_commands(resource: str) -> None:
    row = Advice(("x",), str(_ROW["text"]), "tests")
    assert row.format(resource).count("`") == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": ""}, "missing text"),
        ({"source": ""}, "missing source"),
        ({"types": []}, "missing types"),
        ({"types": "nic.*"}, "types is no list of ids or patterns"),
        ({"severity": "major"}, "unknown field severity"),
        ({"text": "Look at it."}, "text has 1 sentences; two to four are expected"),
        ({"text": "Look. " * 4 + "Look."}, "text has 5 sentences"),
        ({"text": "Look at it. Mend it"}, "each with its stop"),
        ({"text": f"Look at it. Mend {'it ' * 200}."}, "at most 600 are expected"),
        ({"text": "Look at {node}. Mend it."}, "text names {node}; {host} and {part} are known"),
        ({"text": "Look at {host. Mend it."}, "text has a single brace"),
        ({"url": "javascript:alert(1)"}, "is no https:// address"),
    ],
)
def test_a_wrong_row_is_refused_with_its_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        advice.read("site.toml:1", a_row(**changes))
    assert reason in str(refused.value)


@pytest.fixture
def read_rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Catalog]:
    def read_after_ours(text: str) -> Catalog:
        path = tmp_path_factory.mktemp("site") / "site.toml"
        path.write_text(text)
        return read([path])

    return read_after_ours


def test_the_first_row_that_covers_a_type_counts(read_rows: Callable[[str], Catalog]) -> None:
    fault_type = """
[[type]]
id = "nic.sample"
title = "Sample"
component = "nic"
event_type = "equipment"
severity = "major"
action = "watch"
clears = "by_poll"
meaning = "A sample."
source = "tests"
"""
    row = """
[[advice]]
types = ["nic.sample"]
text = "Call {who}. Say `{{host}}`."
source = "tests"
"""
    ours = row.format(who="the vendor", host="host")
    sites = row.format(who="Ann", host="host")
    known = read_rows(fault_type + sites + ours)
    found = known.get_advice("nic.sample")
    assert found is not None
    assert found.text == "Call Ann. Say `{host}`."
    assert found.where == "site.toml:13"
