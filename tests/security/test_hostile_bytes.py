"""Text that others write is neither obeyed by a terminal nor stops a detector."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import OutputWrapper

from detectors.cli import explain
from detectors.detector import Output, Reading, Target, TargetKind
from detectors.faults import event_id, fingerprint
from detectors.node.outputs import host_system
from detectors.resources import printable
from incidents.text.archive import hide_secrets
from kintsugi.cli import output
from kintsugi.management.store import StoreCommand
from tests.matching import get_shipped_matcher

_AT = datetime(2026, 1, 12, tzinfo=UTC)
_ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066"
_LINE = f"<3>1 - gn001 kernel - - - NVRM: Xid (PCI:0000:19:00): 79, pid=1, name={_ESCAPES}, x"


def test_what_a_line_says_is_printable_in_every_field() -> None:
    (fact,) = get_shipped_matcher().facts(
        _LINE.encode(), default_host="gn001", observed_at=_AT, zone=UTC
    )
    told = [fact.excerpt, fact.resource, fact.host, fact.source_key, *fact.attributes.values()]
    assert all(text.isprintable() for text in told)


def test_explain_shows_no_escape() -> None:
    (shown,) = explain.explain(
        [_LINE.encode()], get_shipped_matcher(), host="gn001", observed_at=_AT
    )
    assert shown.text.isprintable()
    assert shown.fact is not None


@pytest.mark.parametrize("host", ["gn\x1b[2J9", "gn\u202e1", "gn\ud8001"])
def test_a_host_with_an_escape_is_shown_as_text(host: str) -> None:
    line = f"<3>1 - {host} kernel - - - NVRM: Xid (PCI:0000:19:00): 79, x"
    content = line.encode("utf-8", "surrogatepass")
    facts = get_shipped_matcher().facts(content, default_host="x", observed_at=_AT, zone=UTC)
    assert all(fact.resource.isprintable() for fact in facts)


def test_what_a_detector_saw_is_printable() -> None:
    reading = Reading("gpu", Target("gn001", "", kind=TargetKind.NODE), _AT)
    seen = reading.saw(
        "gpu.name", f"H100{_ESCAPES}\ud800", f"node/gn001/gpu/{_ESCAPES}", text="\ud800"
    )
    told = [seen.resource, seen.value, *seen.attributes.values()]
    assert all(text.isprintable() for text in told)


def test_a_lone_surrogate_has_an_identity() -> None:
    assert fingerprint("node/\ud800", "gpu.lost") != fingerprint("node/\ud801", "gpu.lost")
    assert event_id("\ud800") != event_id("\ud801")


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 20])
def test_a_number_without_end_silences_no_detector(digits: str) -> None:
    output = Output(0, f"oom_kill {digits}\n".encode(), b"", timedelta(0))
    assert host_system._KILLS.search(output.text) is None


@pytest.mark.parametrize("tail", [b"\xff", b"\x80\x81", b"\xc3\x28", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_leave_no_secret_in_the_open(tail: bytes) -> None:
    content = b"password=hunter2secret\nhttps://ada:hunter2secret@bmc/\n" + tail
    assert b"hunter2secret" not in hide_secrets(content)


def test_printable_text_is_left_as_it_is() -> None:
    assert printable("GPU é 日本") == "GPU é 日本"
    assert json.dumps(printable("a\tb\nc")) == json.dumps("a b\N{REPLACEMENT CHARACTER}c")


@pytest.mark.django_db
def test_no_command_that_reads_rows_hands_an_escape_to_a_terminal() -> None:
    """Whatever stands in a row: all of them write through the one output."""
    for name, app in get_commands().items():
        command = load_command_class(app, name) if app in ("kintsugi", "fixtures") else None
        if isinstance(command, StoreCommand):
            out = io.StringIO()
            command.stdout = OutputWrapper(out)
            command.stdout.write(f"one {_ESCAPES}\ntwo {_ESCAPES}")
            assert all(line.isprintable() for line in out.getvalue().splitlines()), name
            assert out.getvalue().count("\n") == 2


def test_no_table_of_the_command_hands_an_escape_to_a_terminal() -> None:
    row = {"title": f"a {_ESCAPES}", "nodes": [_ESCAPES, "gn001"]}
    table = output.format_table([row], ("title", "nodes"))
    assert all(line.isprintable() for line in table.splitlines())
