"""Each line of the threat model in docs/security.md names a test that is there, or says that what it
grants is granted."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "security.md").read_text().splitlines()
    if line.startswith("| ") and not line.endswith("| shown by |")
]
_SHOWN = re.compile(r"`(test_\w+)`, `(tests/\S+\.py)`")
# Granted: they may do that to what is theirs anyway.
GRANTED = ("all that the node says of itself", "arming, every key, every row")


def test_each_line_names_a_test_that_is_there() -> None:
    assert len(ROWS) > 20
    for _, reach, _, shown in ROWS:
        if shown == "-":
            assert reach in GRANTED
            continue
        name, path = _SHOWN.fullmatch(shown).groups()  # type: ignore[union-attr]
        assert f"def {name}(" in (ROOT / path).read_text(), shown


def test_each_file_of_attacks_stands_in_the_table() -> None:
    """A file that guards pages and words, and attacks nothing, is named here."""
    of_pages = {"test_threat_model.py", "test_what_runs.py", "test_witnesses_page.py"}
    of_words = {"test_who_said_so.py"}
    files = {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}
    named = {path.rpartition("/")[2] for *_, shown in ROWS for _, path in _SHOWN.findall(shown)}
    assert files - named - of_pages - of_words == set()
