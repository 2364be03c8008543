"""Runbooks as files: what is taken, and what is refused with file, line and what was expected."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detectors.faults import Action, Component, Recovery, Severity
from runbooks.library import library
from runbooks.plan.escalation_levels import STEPS_OF_RUNGS
from runbooks.plan.limits import Limits
from runbooks.plan.runbook import Trouble

WHOLE = """name: mine
version: 3
title: Mine
meaning: For the GPUs of row 3.
for:
  - faults: [gpu.xid.79, "gpu.ecc.*"]
    but_not: gpu.ecc.unrepairable
    actions: [reboot]
    components: [gpu]
    severities: [major, critical]
rung: node_restart
limits:
  per_hour: 4
  approval_above: 2
  window: 12h
steps:
  - drain
  - wait_for_jobs
  - confirm_on_node
  - reboot: {approval: yes}
  - wait_for_boot
  - verify
  - resume
"""
REST = "version: 1\ntitle: t\nmeaning: m\nfor: [{actions: reboot}]\nsteps: [drain]\n"


def written(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_whole_file_is_read(tmp_path: Path) -> None:
    book = library.read(written(tmp_path, WHOLE))
    assert (book.name, book.number, book.rung) == ("mine", 3, Recovery.NODE_RESTART)
    assert book.version.startswith("3 (")
    assert len(book.version) == len("3 (01234567)")
    assert book.limits == Limits(per_hour=4, approval_above=2, window=timedelta(hours=12))
    assert [planned.step.name for planned in book.steps if planned.needs_approval] == ["reboot"]
    assert book.steps[3].as_row() == {"step": "reboot", "with": {}, "approval": True}


def test_a_changed_file_is_another_version(tmp_path: Path) -> None:
    before = library.read(written(tmp_path, WHOLE)).version
    assert library.read(written(tmp_path, WHOLE + "# a word\n")).version != before


def test_a_run_follows_the_plan_that_it_keeps(tmp_path: Path) -> None:
    book = library.read(written(tmp_path, WHOLE))
    kept = library.load_plan([planned.as_row() for planned in book.steps])
    assert kept == book.steps


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"fault_type": "gpu.ecc.row_remap_pending"}, True),
        ({"fault_type": "gpu.ecc.unrepairable"}, False),
        ({"fault_type": "gpu.xid.62"}, False),
        ({"action": Action.VENDOR}, False),
        ({"component": Component.NODE}, False),
        ({"severity": Severity.MINOR}, False),
    ],
)
def test_runbook_fits_only_what_all_of_an_entry_says(
    tmp_path: Path, changes: dict[str, Any], fits: bool
) -> None:
    trouble = {
        "fault_type": "gpu.xid.79",
        "action": Action.REBOOT,
        "component": Component.GPU,
        "severity": Severity.CRITICAL,
        **changes,
    }
    assert library.read(written(tmp_path, WHOLE)).fits(Trouble(**trouble)) is fits


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mine.yaml:1: it is empty; expected the keys name"),
        ("- drain\n", "mine.yaml:1: the runbook is a list; expected keys with values"),
        (
            "name: mine\n",
            "mine.yaml:1: the runbook has no version, no title, no meaning, no steps; expected",
        ),
        (
            "name: other\n" + REST,
            "mine.yaml:1: name is other; expected mine, as the file is called",
        ),
        (
            "name: mine\ncolour: red\n" + REST,
            "mine.yaml:2: the runbook: no key colour; expected one of name, version",
        ),
        (
            "name: mine\nname: mine\n" + REST,
            "mine.yaml:2: the runbook: name stands twice, first on line 1",
        ),
        ("name: [mine\n", "mine.yaml:2: it is no YAML"),
        (
            "name: mine\n---\nname: mine\n",
            "mine.yaml:2: a second document; expected one runbook to a file",
        ),
        ("name: &a mine\n" + REST, "mine.yaml:1: an anchor or alias of YAML"),
        ("name: mine\ntitle: *a\n", "mine.yaml:2: an anchor or alias of YAML"),
        (
            "name: !!python/object/apply:os.system [ls]\n",
            "mine.yaml:1: a tag of YAML (tag:yaml.org,2002:python",
        ),
        ("name: !!str mine\n" + REST, "mine.yaml:1: a tag of YAML"),
        ("name: " + "[" * 5000, "mine.yaml:1: nested more than 12 deep"),
        ("name: mine\n" + REST.replace("1", "9" * 5000), "mine.yaml:2: '99"),
        (
            "name: mine\n" + REST.replace("1", "yes"),
            "mine.yaml:2: version is 'yes'; expected a whole number from 1",
        ),
        (
            "name: mine\n" + REST.replace("1", "0"),
            "mine.yaml:2: version is '0'; expected a whole number from 1",
        ),
        (
            "name: mine\nrung: prayer\n" + REST,
            "mine.yaml:2: rung is 'prayer'; expected one of gpu_reset",
        ),
        (
            "name: mine\nrung: cold_cycle\n" + REST,
            "mine.yaml:7: rung is cold_cycle, and no step does that",
        ),
        (
            "name: mine\nlimits: {per_hour: -1}\n" + REST,
            "mine.yaml:2: limits: per_hour is '-1'; expected a whole number",
        ),
        (
            "name: mine\nlimits: {window: long}\n" + REST,
            "mine.yaml:2: limits: window is 'long'; expected a number and s",
        ),
        (
            "name: mine\nlimits: {nodes: 3}\n" + REST,
            "mine.yaml:2: limits: no key nodes; expected one of per_hour",
        ),
    ],
)
def test_file_that_is_no_runbook_is_refused_with_line_and_what_was_expected(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(library.LibraryError) as refused:
        library.read(written(tmp_path, text))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("for: []", ":5: for is a list; expected a list of what it is for, with faults or actions"),
        ("for: [{components: gpu}]", ":5: for: an entry without faults and without actions"),
        ("for: [{faults: gpu.xid.9999*}]", ":5: for: faults: gpu.xid.9999* fits no fault type"),
        (
            "for: [{actions: repair}]",
            ":5: for: actions: no repair; expected one of none, restart_app",
        ),
        (
            "for: [{actions: reboot, severities: bad}]",
            ":5: for: severities: no bad; expected one of indeterminate",
        ),
        (
            "for: [{actions: reboot, fault: gpu.lost}]",
            ":5: for: no key fault; expected one of faults, but_not",
        ),
        (
            "for: [{actions: {a: b}}]",
            ":5: for: actions is a mapping; expected a word or a list of words",
        ),
        ("for: [{actions: reboot, lemons: sour}]", ":5: for: lemons is 'sour'; expected yes or no"),
        ("steps: drain", ":5: steps is 'drain'; expected a list of 1 to 40 steps"),
        ("steps: [drain, format_disk]", ":5: no step format_disk; expected one of"),
        ("steps: [drain: {gently: yes}]", ":5: drain: no parameter gently; expected none"),
        ("steps: [drain: {approval: maybe}]", ":5: drain: approval is 'maybe'; expected yes or no"),
        ("steps: [{drain: {}, resume: {}}]", ":5: a step with more than one name"),
        (
            "steps: [wait_for_jobs]",
            ":5: steps: wait_for_jobs comes first; expected drain or adopt_drain before",
        ),
        (
            "steps: [drain, reboot]",
            ":5: steps: reboot without wait_for_jobs before it; expected its jobs",
        ),
        (
            "steps: [drain, reboot]",
            ":5: steps: reboot without confirm_on_node before it; a log line alone changes",
        ),
        (
            "steps: [drain, restart_units]",
            ":5: steps: restart_units without wait_for_jobs before it; expected its jobs",
        ),
        (
            "steps: [drain, wait_for_jobs, restart_units]",
            ":5: steps: restart_units without confirm_on_node before it; a log line alone changes",
        ),
        (
            "steps: [drain, restart_units: {units: [sshd]}]",
            ":5: restart_units: no parameter units; expected longest",
        ),
        (
            "steps: [drain, reboot]",
            ":5: steps: reboot without wait_for_boot after it; expected to see it come back",
        ),
        (
            "steps: [drain, resume]",
            ":5: steps: resume without verify, diagnose or burn_in before it",
        ),
    ],
)
def test_wrong_line_is_named_with_what_was_expected(
    tmp_path: Path, line: str, complaint: str
) -> None:
    key = line.partition(":")[0]
    rows = {"for": "for: [{actions: reboot}]", "steps": "steps: [drain]"} | {key: line}
    rest = [row for other, row in rows.items() if other != key]
    head = ["name: mine", "version: 1", "title: t", "meaning: m"]
    with pytest.raises(library.LibraryError) as refused:
        library.read(written(tmp_path, "\n".join([*head, line, *rest])))
    assert f"mine.yaml{complaint}" in str(refused.value)


def test_all_problems_of_a_file_are_told_at_once_in_the_order_of_their_lines(
    tmp_path: Path,
) -> None:
    text = "name: other\nversion: x\ntitle: []\nmeaning: m\nfor: [{actions: fly}]\nsteps: [drain, jump]\n"
    with pytest.raises(library.LibraryError) as refused:
        library.read(written(tmp_path, text))
    assert [line.split(":")[1] for line in str(refused.value).splitlines()] == [
        "1",
        "2",
        "3",
        "5",
        "6",
    ]


def test_the_word_for_all_runbooks_names_none_of_them(tmp_path: Path) -> None:
    """`kintsugi mode set site shadow` is about all of them."""
    text = WHOLE.replace("name: mine", "name: site")
    with pytest.raises(
        library.LibraryError,
        match=r"^site\.yaml:1: name is site, the word for all runbooks; expected",
    ):
        library.read(written(tmp_path, text, "site"))
    with pytest.raises(library.LibraryError, match=r"site\.yaml:1: name is site"):
        library.read_folders(tmp_path)


def test_large_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(library.LibraryError, match=r"mine\.yaml:1: it is larger than 64 KiB"):
        library.read(written(tmp_path, WHOLE + "#" * 65536))


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(
        library.LibraryError, match=r"mine\.yaml:1: it cannot be read .*; expected a file of text"
    ):
        library.read(path)


@given(st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_whatever_stands_in_a_file_it_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(raw)
    with pytest.raises(library.LibraryError, match=r"mine\.yaml:\d+: "):
        library.read(path)


@given(
    st.lists(st.sampled_from(WHOLE.splitlines()), max_size=25),
    st.sampled_from(["", "&a ", "*a", "!!set ", "{", "- "]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_shuffled_lines_are_read_or_refused_with_a_line(
    tmp_path: Path, lines: list[str], odd: str
) -> None:
    path = written(tmp_path, "\n".join([*lines, odd]))
    try:
        book = library.read(path)
    except library.LibraryError as refused:
        assert all(line.startswith("mine.yaml:") for line in str(refused).splitlines())  # noqa: PT017
    else:
        assert book.steps


def test_a_sites_runbook_takes_the_place_of_a_shipped_one_with_a_higher_version(
    tmp_path: Path,
) -> None:
    shipped = library.read_folders(None)["drain_and_ask"]
    text = (
        Path(shipped.origin)
        .read_text()
        .replace(f"version: {shipped.number}", f"version: {shipped.number + 1}")
    )
    written(tmp_path, text, "drain_and_ask")
    written(tmp_path, WHOLE)
    books = library.read_folders(tmp_path)
    assert books["drain_and_ask"].is_sites_own
    assert "mine" in books
    assert "drain_reboot_verify" in books


def test_a_sites_runbook_with_the_shipped_version_is_refused(tmp_path: Path) -> None:
    shipped = library.read_folders(None)["drain_and_ask"]
    written(tmp_path, Path(shipped.origin).read_text(), "drain_and_ask")
    with pytest.raises(
        library.LibraryError,
        match=r"drain_and_ask\.yaml:1: version is 3; expected 4 or more, since",
    ):
        library.read_folders(tmp_path)


def test_an_empty_folder_of_the_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(library.LibraryError, match="no folder with"):
        library.read_folders(tmp_path / "nowhere")


def test_each_shipped_runbook_takes_a_node_out_before_it_touches_it_and_proves_it_before_it_gives_it_back() -> (
    None
):
    for book in library.load().values():
        names = [planned.step.name for planned in book.steps]
        assert not book.needs_node or names[0] in ("drain", "adopt_drain"), book.name
        for cure in set(STEPS_OF_RUNGS) & set(names):
            assert names.index("confirm_on_node") < names.index(cure), book.name
        if "resume" in names:
            assert {"verify", "burn_in"} & set(names[: names.index("resume")]), book.name
