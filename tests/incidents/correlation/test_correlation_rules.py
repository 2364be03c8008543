"""The rules of correlation as data: a wrong row names file, line, key and what to write."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.faults import Component
from incidents.correlation import rule_file
from incidents.correlation.rules import (
    CorrelationError,
    FaultClass,
    ResourceKind,
    Root,
    Rule,
    RuleSet,
    get_kind,
)
from incidents.vocabulary.relations import Relation
from tests.incidents.correlation.test_correlate import a_view
from tests.odd_values import ODD_VALUES, format_toml

ROW = {
    "name": '"mine"',
    "cause": '"switch.rebooted"',
    "effect": '"nic.link.down"',
    "relation": '"port_of_switch"',
    "because": '"it runs over that switch"',
    "source": '"our choice: a test"',
}
DOC = Path(__file__).resolve().parents[3] / "docs" / "reference" / "correlation.md"


def a_row(table: str = "rule", **changes: str) -> str:
    values = {**(ROW if table == "rule" else {}), **changes}
    return f"[[{table}]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def read(folder: Path, *texts: str) -> RuleSet:
    """Each text is a folder of its own, the site's last."""
    folders = []
    for number, text in enumerate(texts):
        one = folder / str(number)
        one.mkdir()
        (one / "rules.toml").write_text(text)
        folders.append(one)
    return rule_file.read(folders, catalog.load())


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(CorrelationError) as refused:
        read(folder, text)
    return str(refused.value).splitlines()


def test_a_row_becomes_a_rule_with_its_defaults(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, a_row())
    assert (rule.name, rule.relations, rule.root, rule.window) == (
        "mine",
        (Relation.PORT_OF_SWITCH,),
        Root.CAUSE,
        None,
    )
    assert rule.where == "rules.toml:1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cause": '"gpu.xid.unheard"'},
            "mine: cause: gpu.xid.unheard matches no fault type of the catalogue",
        ),
        ({"effect": '"@none"'}, "mine: effect: @none is no class; known are "),
        ({"relation": '"beside"'}, "mine: relation: 'beside' is none of same_part, same_gpu"),
        ({"window": '"soon"'}, "mine: window: 'soon' is no duration such as 90s, 15m, 24h or 7d"),
        ({"lasts": '"ever"'}, "mine: lasts: 'ever' is none of window, while_active, while_open"),
        (
            {"direction": '"up"'},
            "mine: direction: 'up' is none of either, cause_first, effect_first",
        ),
        ({"root": '"effect"'}, "mine: root: 'effect' is none of cause, stronger, first"),
        ({"states": '["broken"]'}, "mine: states: 'broken' is none of open,"),
        ({"one_machine": '"yes"'}, "mine: one_machine: expected true or false, not 'yes'"),
        ({"cause": "7"}, "mine: cause: expected a text or a list of texts, not 7"),
        ({"colour": '"red"'}, "mine: colour: unknown, expected one of because, by_root,"),
        ({"because": '""'}, "mine: because: missing"),
        ({"because": "7"}, "mine: because is 7: expected a text"),
        ({"states": "7"}, "mine: states: expected a text or a list of texts, not 7"),
        ({"window": '"99999999d"'}, "mine: window: '99999999d' is longer than 36500d"),
        ({"name": f'"{"x" * 65}"'}, "name: longer than 64 characters"),
    ],
)
def test_a_wrong_row_is_refused_with_file_line_key_and_what_was_expected(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    (problem,) = problems(tmp_path, a_row(**changes))
    assert problem.startswith("rules.toml:1: ")
    assert said in problem


@given(table=st.sampled_from(["class", "rule"]), value=ODD_VALUES, data=st.data())
def test_any_value_of_any_key_is_taken_or_its_row_is_named(
    table: str, value: Any, data: st.DataObject
) -> None:
    keys = sorted(rule_file._RULE_KEYS if table == "rule" else rule_file._CLASS_KEYS)
    key = data.draw(st.sampled_from(keys))
    text = a_row(table, **{"name": '"mine"', key: format_toml(value)})
    assert all(line.startswith("rules.toml:1: ") for line in list_problems(text))


@given(table=st.sampled_from(["class", "rule"]), value=ODD_VALUES)
def test_any_value_in_place_of_rows_is_taken_or_named(table: str, value: Any) -> None:
    text = f"{table} = {format_toml(value)}"
    assert all(line.startswith("rules.toml:") for line in list_problems(text))


def list_problems(text: str) -> list[str]:
    """Why the file is refused, or nothing."""
    with TemporaryDirectory() as name:
        try:
            read(Path(name), text)
        except CorrelationError as error:
            return str(error).splitlines()
    return []


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = (
        a_row(cause='"none.such"')
        + a_row(name='"other"', relation='"beside"')
        + "[[cause]]\nname = 1\n"
    )
    found = problems(tmp_path, text)
    assert [line.split(": ")[0] for line in found] == ["rules.toml", "rules.toml:1", "rules.toml:8"]


def test_a_name_given_twice_in_one_folder_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, a_row() + a_row()) == [
        "rules.toml:8: name: a second rule mine, first at rules.toml:1"
    ]


def test_a_folder_without_rules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorrelationError, match="no folder with"):
        rule_file.read([tmp_path / "none"], catalog.load())


def test_a_sites_rules_come_first_and_replace_ours_by_name(tmp_path: Path) -> None:
    ours = a_row() + a_row(name='"other"')
    theirs = a_row(name='"new"') + a_row(name='"other"', window='"60s"')
    found = read(tmp_path, ours, theirs)
    assert [rule.name for rule in found] == ["new", "other", "mine"]
    assert found.rules[1].window is not None


def test_a_site_turns_one_of_our_rules_off(tmp_path: Path) -> None:
    assert list(read(tmp_path, a_row(), '[[rule]]\nname = "mine"\nenabled = false\n')) == []


def test_a_sites_rule_may_name_our_classes(tmp_path: Path) -> None:
    ours = a_row("class", name='"link"', types='["nic.link.*"]')
    (rule,) = read(tmp_path, ours, a_row(effect='"@link"'))
    assert rule.effect[0].holds_type("nic.link.down")


def test_a_class_asks_for_everything_that_it_says() -> None:
    link = a_view("nic.link.down", "node/gn042/nic/mlx5_0")
    assert FaultClass("c", types=("nic.*",), on=frozenset({ResourceKind.NIC})).holds_place(link)
    assert not FaultClass("c", on=frozenset({ResourceKind.PORT})).holds_place(link)
    assert not FaultClass("c", components=frozenset({Component.GPU})).holds_place(link)
    assert not FaultClass("c", flags=(("is_sympathetic", True),)).holds_place(link)
    assert not FaultClass("c", types=("nic.*",), but_not=("nic.link.*",)).holds_type(
        "nic.link.down"
    )


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("node/gn042", ResourceKind.NODE),
        ("node/gn042/gpu/0000:19:00.0", ResourceKind.GPU),
        ("switch/leaf-01", ResourceKind.SWITCH),
        ("switch/leaf-01/port/Ethernet0/1", ResourceKind.PORT),
        ("switch/leaf-01/module/3", ResourceKind.MODULE),
        ("site/slurm/job/17", ResourceKind.JOB),
        ("rack/r01", ResourceKind.RACK),
        ("unheard/of", ResourceKind.OTHER),
    ],
)
def test_a_path_says_what_kind_of_thing_it_names(resource: str, kind: ResourceKind) -> None:
    assert get_kind(resource) is kind


def test_every_shipped_rule_has_a_reason_a_source_and_fits_its_column() -> None:
    for rule in rule_file.load():
        assert len(rule.name) <= 64
        assert not rule.because.endswith(".")
        assert rule.source


def test_every_side_of_every_shipped_rule_holds_a_type_of_the_catalogue() -> None:
    types = [row.id for row in catalog.load()]
    for rule in rule_file.load():
        for side in (rule.cause, rule.effect):
            assert any(one.holds_type(fault_type) for one in side for fault_type in types), (
                rule.name
            )


def test_the_documents_table_is_that_of_the_files() -> None:
    told = [line for line in DOC.read_text().splitlines() if line.startswith("| `")]
    assert [line for line in told if line.count("|") == 7] == [
        as_row(rule) for rule in rule_file.load()
    ]


def as_row(rule: Rule) -> str:
    """How docs/reference/correlation.md shows a rule."""
    window = "join" if rule.window is None else f"{rule.window.total_seconds():g} s"
    lasts = window if rule.lasts == "window" else rule.lasts.replace("_", " ")
    sides = [", ".join(f"`{one.name}`" for one in side) for side in (rule.cause, rule.effect)]
    relations = ", ".join(relation.value.replace("_", " ") for relation in rule.relations)
    return (
        f"| `{rule.name}` | {sides[0]} | {sides[1]} | {relations} | {lasts} | {rule.root.value} |"
    )
