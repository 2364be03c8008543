"""Rows that explain the drains of other checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.catalog.check_drains import CheckDrain
from tests.site_rows import nhc, site_rows


@pytest.mark.parametrize(
    ("pattern", "reason", "set_by", "fits"),
    [
        ("NHC: *", "NHC: check_fs_mount: /lustre", "root", True),
        ("NHC: *", "NHC: check_fs_mount: /lustre", "bob", False),
        ("NHC: *", "bob: NHC: is wrong here", "root", False),
        ("NHC: *", "NHC:", "root", False),
        ("[node_problem] *", "[node_problem] Xid 79", "root", True),
        ("[node_problem] *", "n Xid 79", "root", False),
        ("SUNK: *", "SUNK: two\nlines", "root", True),
        ("hung_proc", "hung_proc", "root", True),
        ("hung_proc", "hung_proc, bob looks into it", "root", False),
        ("NHC: * GPU * lost", "NHC: check_gpus: GPU 3 lost", "root", True),
    ],
)
def test_a_row_fits_the_whole_reason_of_its_users(
    tmp_path: Path, pattern: str, reason: str, set_by: str, fits: bool
) -> None:
    with site_rows(tmp_path, nhc(resume=True).replace("NHC: *", pattern)):
        [row] = catalog.load().drains
        assert row.fits(reason, set_by) is fits


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"gpu.lost"', '"gpu.nothing"', "gpu.nothing: no such fault type"),
        ('"NHC: *"', '"*"', "would fit what people write"),
        ('"NHC: *"', '"kintsugi:*"', "is what Kintsugi itself writes"),
        ('"NHC: *"', '"NHC: * * * *"', "has more than 3 of *"),
        ('["root"]', "[1]", "is no user and no list of users"),
        ('["root"]', "[]", "missing set_by"),
        ("true", '"yes"', "resume 'yes' is neither true nor false"),
        ("resume =", "resumes =", "unknown field resumes"),
        ("set_by", "setter", "missing set_by"),
    ],
)
def test_a_wrong_row_stops_the_start_with_file_line_and_what_was_expected(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    rows = nhc(resume=True).replace(old, new)
    with site_rows(tmp_path, rows), pytest.raises(catalog.CatalogError) as refused:
        catalog.load()
    assert f"{tmp_path / 'site.toml'}:2: " in str(refused.value)
    assert problem in str(refused.value)


def test_a_run_takes_nothing_over_where_the_row_does_not_say_so(tmp_path: Path) -> None:
    with site_rows(tmp_path, nhc(resume=True).replace("resume = true\n", "")):
        [row] = catalog.load().drains
    assert not row.resume


@given(st.text("abc*", max_size=8), st.text("abc", max_size=10))
def test_a_star_stands_for_any_characters_and_everything_else_for_itself(
    pattern: str, reason: str
) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), reason) is not None
    row = CheckDrain(pattern, ("root",), "gpu.lost", "tests")
    assert row.fits(reason, "root") is expected
    assert not row.fits(reason, "bob")
