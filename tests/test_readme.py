"""The README promises nothing that no test shows, and what pages name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_each_promise_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .* \| `(test_\w+)`, `(tests/\S+\.py)`", README, re.MULTILINE)
    assert len(rows) >= 8
    missing = [name for name, path in rows if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    folders = (ROOT / "docs", ROOT / "docs" / "reference", ROOT / "docs" / "development")
    pages = [page for folder in folders for page in folder.glob("*.md")]
    names = [page.relative_to(ROOT / "docs").as_posix() for page in pages]
    assert [name for name in names if name != "README.md" and f"({name})" not in index] == []


def test_what_a_user_reads_is_some_fourteen_pages() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert len(pages) <= 15


def test_each_file_of_ours_that_a_page_names_is_there() -> None:
    named = re.compile(
        r"`((?:tests|detectors|incidents|runbooks|kintsugi|fixtures|script|deploy)/[\w./*-]+)`"
    )
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages
        for path in named.findall(page.read_text())
        if not any(ROOT.glob(path))
    ]
    assert missing == []
