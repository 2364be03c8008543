"""`python -m detectors explain`: every line accounted for, in JSON and in prose, with clear
refusals."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.catalog import site_catalog
from detectors.cli.explain import explain, main
from tests.matching import get_shipped_matcher

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
KEYS = [
    "line",
    "fault_type",
    "event",
    "component",
    "severity",
    "resource",
    "host",
    "occurred_at",
    "count",
    "code",
    "action",
    "meaning",
    "decided_by",
    "unread",
]
LOG = b"""Nov 21 03:59:58 gn042 systemd[1]: Started Session 4 of User root.
Nov 21 03:59:59 gn042 kernel: [ 8123.6] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.
mlx5_core 0000:9a:00.0 ens4np0: Link up
"""


@cache
def matcher():
    return get_shipped_matcher()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "messages"
    path.write_bytes(LOG)
    return str(path)


def printed(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_fact_is_one_object_with_exactly_the_promised_keys(log, capsys):
    assert main(["explain", log, "--json", "--host", "gn001"]) == 0
    facts = printed(capsys)
    assert all(list(fact) == KEYS for fact in facts)
    assert [(fact["line"], fact["fault_type"], fact["event"]) for fact in facts][:2] == [
        (2, "gpu.xid.79", "raised"),
        (3, "nic.link.down", "cleared"),
    ]
    first = facts[0]
    assert (first["host"], first["resource"], first["count"]) == (
        "gn042",
        "node/gn042/gpu/0000:9b:00.0",
        1,
    )
    assert (first["component"], first["severity"], first["action"], first["code"]) == (
        "gpu",
        "critical",
        "reboot",
        79,
    )
    assert datetime.fromisoformat(first["occurred_at"]).tzinfo is not None
    assert {fact["host"] for fact in facts[1:]} == {"gn001"}


def test_benign_lines_are_shown_with_a_null_fault_type_when_all_are_asked_for(log, capsys):
    main(["explain", log, "--json", "--all"])
    first = printed(capsys)[0]
    assert list(first) == KEYS
    assert (first["line"], first["fault_type"], first["meaning"]) == (1, None, None)


def test_standard_input_is_read_when_no_file_is_named():
    run = subprocess.run(
        [sys.executable, "-m", "detectors", "explain", "--json"],
        input=LOG,
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(run.stdout.splitlines()[0])["fault_type"] == "gpu.xid.79"
    assert run.stderr == b""


def test_prose_says_what_where_when_and_what_to_do(log, capsys):
    assert main(["explain", log]) == 0
    out = capsys.readouterr().out
    assert "line 2: GPU has fallen off the bus" in out
    assert "on node/gn042/gpu/0000:9b:00.0" in out
    assert "asks for: reboot" in out
    assert out.rstrip().endswith("3 lines: 4 facts, 1 line benign.")


def test_a_calm_log_says_so(tmp_path, capsys):
    path = tmp_path / "calm.log"
    path.write_text("all is well\n")
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out == "1 line: nothing that Kintsugi would record.\n"


def test_an_empty_log_is_no_error(tmp_path, capsys):
    path = tmp_path / "empty.log"
    path.touch()
    assert main(["explain", str(path), "--json", "--all"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "cannot be read (No such file or directory)"),
        (lambda path: path.mkdir(), "this is a directory"),
        (lambda path: path.write_bytes(b"\x7fELF\0\0\0\0" * 9), "this is a binary file"),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0"), "this is a compressed file"),
    ],
)
def test_input_that_cannot_be_read_is_refused_with_its_name_and_a_reason(
    tmp_path, capsys, make, reason
):
    path = tmp_path / "input"
    make(path)
    assert main(["explain", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(path) in captured.err
    assert reason in captured.err


@pytest.mark.parametrize(
    "arguments",
    [["explain", "--zone", "Mars/Olympus"], ["explain", "--year", "soon"], ["heal"], []],
)
def test_arguments_that_make_no_sense_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_zone_and_year_of_stamps_that_name_none_can_be_given(log, capsys):
    main(["explain", log, "--json", "--zone", "Asia/Tokyo", "--year", "2024"])
    assert printed(capsys)[0]["occurred_at"] == "2024-11-20T18:59:59+00:00"


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    path = tmp_path / "long.log"
    path.write_bytes(LOG * 3_000)
    run = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m detectors explain --json "{path}" | head -1'],
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(run.stdout)["line"] == 2
    assert run.stderr == b""


@given(data=st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_every_line_of_any_bytes_is_accounted_for(data):
    lines = io.BytesIO(data).readlines()
    results = list(explain(lines, matcher(), host="-", observed_at=NOW))
    assert sorted({result.line for result in results}) == list(range(1, len(lines) + 1))
    for result in results:
        json.dumps(result.as_json())


def test_a_line_that_nobody_reads_is_shown_as_such_without_asking_for_all(capsys, tmp_path):
    log = tmp_path / "log"
    log.write_text("<11>Nov  1 12:00:00 gn001 slurmd[99]: error: frobnicator 7 is not there\n")
    assert main(["explain", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "line 1: unread" in shown
    assert "error: frobnicator <*> is not there" in shown
    assert "0 facts, 1 line unread, 0 lines benign" in shown
    assert main(["explain", str(log), "--json"]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["fault_type"], row["unread"]) == (None, "error: frobnicator <*> is not there")


def test_the_file_and_line_that_decided_are_named_a_sites_too(capsys, tmp_path):
    (tmp_path / "site.toml").write_text(
        """[[signature]]
type = "node.kernel.panic"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'quux: gave up'
"""
    )
    log = tmp_path / "log"
    log.write_text("kernel: quux: gave up\n")
    try:
        assert main(["explain", str(log), "--json", "--catalog", str(tmp_path)]) == 0
    finally:
        site_catalog.set_directory(None)
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["decided_by"] == f"{tmp_path / 'site.toml'}:1"
