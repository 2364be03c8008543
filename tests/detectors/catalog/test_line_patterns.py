"""Rows are tried on lines by RE2. Of a site's own nobody has measured the patterns: none holds the
receiver, and what RE2 does not know is refused before anything begins."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.catalog.catalog import CatalogError
from detectors.catalog.line_patterns import find_reason
from detectors.logs.signatures import LONGEST_LINE, Matcher

NOW = datetime(2026, 1, 12, tzinfo=UTC)
# Our choice: a megabyte of such lines, 128 of 8 KiB, would be held up by a second at most.
LIMIT_S = 0.01
SIGNATURE = """
[[signature]]
type = "node.power_supply.failed"
event = "raised"
on = "node"
program = "any"
facility = "any"
begins = "{begins}"
pattern = '{pattern}'
unless = '{unless}'
"""
HARMLESS = """
[[harmless]]
program = "any"
facility = "any"
pattern = '{pattern}'
reason = "a fan of ours that says so at each start"
source = "our own boards"
"""
EXPONENTIAL = "fan (?P<device>(?:x+)+)y"
CUBIC = "fan [^;]*fan [^;]*fan [^;]*down"


def read(tmp_path: Path, rows: str) -> catalog.Catalog:
    path = tmp_path / "ours.toml"
    path.write_text(rows)
    return catalog.read([path, *catalog.files()])


def measure(matcher: Matcher, message: str) -> tuple[list[str], float]:
    """The fault types that a line states, and the seconds of this thread that it took."""
    line = f"<3>1 - gn001 boards - - - {message}".encode()
    began = time.thread_time()
    facts = matcher.facts(line, default_host="gn001", observed_at=NOW, zone=UTC)
    return [fact.fault_type for fact in facts], time.thread_time() - began


SLOW = {
    "exponential": (EXPONENTIAL, "", f"fan {'x' * 4000}z fan xy"),
    "cubic": (CUBIC, "", f"{'fan ' * 2000}do; fan fan fan down"),
    "exponential unless": ("fan .{0,40}down", "(?:x+)+y", f"fan down {'x' * 4000}z"),
}


@pytest.mark.parametrize("begins", ["message", "program"])
@pytest.mark.parametrize("name", sorted(SLOW))
def test_no_pattern_of_a_site_takes_longer_than_its_line_is_long(
    name: str, begins: str, tmp_path: Path
) -> None:
    pattern, unless, message = SLOW[name]
    rows = SIGNATURE.format(pattern=pattern, unless=unless, begins=begins)
    matcher = Matcher(read(tmp_path, rows))
    assert len(message) < LONGEST_LINE
    measure(matcher, message)
    found, spent_s = measure(matcher, message)
    assert spent_s < LIMIT_S
    # In two of them what fits stands behind the begin of the message, where it says nothing.
    assert found == ([TYPE] if name == "exponential unless" else [])


def test_no_harmless_row_of_a_site_takes_longer_than_its_line_is_long(tmp_path: Path) -> None:
    row = SIGNATURE.format(pattern="fan .{0,40}down", unless="", begins="message")
    matcher = Matcher(read(tmp_path, row + HARMLESS.format(pattern=EXPONENTIAL)))
    measure(matcher, "fan xy down")
    assert measure(matcher, "fan xy down")[0] == []
    found, spent_s = measure(matcher, f"fan down {'fan ' + 'x' * 4000}z fan xy")
    assert spent_s < LIMIT_S
    assert found == [TYPE]


def test_re2_knows_each_shipped_pattern() -> None:
    shipped = catalog.load()
    patterns = {row.pattern for row in (*shipped.signatures, *shipped.harmless)}
    patterns |= {row.unless for row in shipped.signatures if row.unless}
    assert [find_reason("pattern", pattern) for pattern in patterns] == [""] * len(patterns)


def test_what_a_pattern_of_a_site_names_is_known_by_name(tmp_path: Path) -> None:
    rows = SIGNATURE.format(pattern="fan (?P<name>[a-z]+) down", unless="", begins="message")
    matcher = Matcher(read(tmp_path, rows))
    line = b"<3>1 - gn001 boards - - - fan left down"
    (fact,) = matcher.facts(line, default_host="gn001", observed_at=NOW, zone=UTC)
    assert fact.attributes == {"name": "left"}


@pytest.mark.parametrize(
    "rows",
    [
        SIGNATURE.format(pattern="fan (?>x+)y", unless="", begins="message"),
        SIGNATURE.format(pattern="fan down", unless="x{1,2000}y", begins="message"),
        HARMLESS.format(pattern=r"fan down\Z"),
    ],
    ids=["pattern", "unless", "harmless"],
)
def test_a_pattern_that_re2_does_not_know_is_refused_with_file_line_and_what_to_do(
    rows: str, tmp_path: Path
) -> None:
    with pytest.raises(CatalogError) as refused:
        read(tmp_path, rows)
    (problem,) = str(refused.value).splitlines()
    assert problem.startswith("ours.toml:2: ")
    assert "RE2" in problem
    assert "https://github.com/google/re2/wiki/Syntax" in problem


def test_without_re2_a_sites_patterns_are_refused_and_other_rows_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("detectors.catalog.line_patterns.re2", None)
    with pytest.raises(CatalogError, match="google-re2 is not installed"):
        read(tmp_path, SIGNATURE.format(pattern="fan down", unless="", begins="message"))
    read(tmp_path, "")


TYPE = "node.power_supply.failed"
