"""A part of a pattern that many rows share is named once in its file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detectors.catalog import catalog, phrases
from detectors.catalog.catalog import CatalogError

FAILURE = r"(?i:\bfail(?:ed|ure)\b)"
TYPE = """
[[type]]
id = "node.test"
title = "A test"
component = "node"
event_type = "equipment"
severity = "warning"
action = "none"
clears = "after_quiet"
quiet = "1h"
fitness = "fit"
meaning = "A test."
source = "drivers/test.c"
"""
SIGNATURE = """
[[signature]]
type = "node.test"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = ['testdrv: .{0,80}{{trouble}}', 'testdrv broke']
"""


def test_each_pattern_of_a_row_has_the_phrase_in_its_place() -> None:
    tables = {
        "phrases": {"trouble": FAILURE},
        "signature": [{"pattern": ["a {{trouble}}", "b"], "unless": "{{trouble}}?", "type": "t"}],
    }
    assert phrases.fill(tables) == {
        "signature": [{"pattern": [f"a {FAILURE}", "b"], "unless": f"{FAILURE}?", "type": "t"}]
    }


def test_a_phrase_may_hold_those_that_stand_before_it() -> None:
    tables = {
        "phrases": {"trouble": FAILURE, "driver": "testdrv.*{{trouble}}"},
        "signature": [{"scan": "{{driver}}"}],
    }
    assert phrases.fill(tables) == {"signature": [{"scan": f"testdrv.*{FAILURE}"}]}


def test_a_repetition_is_no_phrase() -> None:
    rows = [{"pattern": r"[0-9a-f]{4}:\{\d{2}\}", "type": "{{t}}"}]
    assert phrases.fill({"signature": rows}) == {"signature": rows}


def test_a_file_with_phrases_reads_as_one_with_whole_patterns(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(f"[phrases]\ntrouble = '{FAILURE}'\n{TYPE}{SIGNATURE}")
    found = [signature.pattern for signature in catalog.read([path]).signatures]
    assert found == [r"testdrv: .{0,80}" + FAILURE, "testdrv broke"]
    assert re.compile(found[0]).match("testdrv: reset FAILED")


def test_a_phrase_that_the_file_does_not_name_is_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(f"{TYPE}{SIGNATURE}")
    with pytest.raises(CatalogError, match=r"rows\.toml: .*\{\{trouble\}\}.*names no trouble"):
        catalog.read([path])


def test_phrases_are_a_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(f"phrases = ['x']\n{TYPE}")
    with pytest.raises(CatalogError, match="no table of names and patterns"):
        catalog.read([path])


def test_every_file_may_use_the_words_of_failure(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(TYPE + SIGNATURE.replace("{{trouble}}", "{{failure}}"))
    pattern = catalog.read([path]).signatures[0].pattern
    assert re.compile(pattern).match("testdrv: link did not come up: Timed out")
    assert not re.compile(pattern).match("testdrv: faultless")


def test_no_file_gives_the_words_of_failure_another_meaning(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(f"[phrases]\nfailure = 'x'\n{TYPE}")
    with pytest.raises(CatalogError, match="names failure anew"):
        catalog.read([path])
