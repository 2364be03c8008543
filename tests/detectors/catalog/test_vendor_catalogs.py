"""How old the vendors' lists are that types were written from."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import vendor_catalogs
from detectors.catalog.catalog import load
from detectors.catalog.vendor_catalogs import OLD_AFTER

_AS_OF = date(2026, 1, 1)
_ROW = {
    "family": "xid",
    "name": "The list",
    "as_of": _AS_OF,
    "source": "https://example.org/list",
}


def test_every_numbered_family_says_what_it_was_written_from() -> None:
    known = load()
    families = {row.family for row in known if row.family}
    assert families == {"xid", "sxid", "dcgm"}
    assert all(known.get_vendor_catalog(family) is not None for family in families)
    assert known.get_vendor_catalog("") is None


@pytest.mark.parametrize(("days", "is_old"), [(0, False), (180, False), (181, True)])
def test_a_list_is_old_after_half_a_year(days: int, is_old: bool) -> None:
    row = vendor_catalogs.read("site.toml:1", _ROW)
    today = _AS_OF + timedelta(days=days)
    assert row.is_old(today) is is_old
    text = row.format_age(today)
    assert text.startswith(f"The list of 2026-01-01, {days} days old")
    assert ("https://example.org/list" in text) is is_old


@given(st.dates())
def test_an_age_is_never_negative(today: date) -> None:
    row = vendor_catalogs.read("site.toml:1", _ROW)
    assert row.age(today) >= timedelta(0)
    assert row.is_old(today) is (today - _AS_OF > OLD_AFTER)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"family": ""}, "missing family"),
        ({"as_of": None}, "missing as_of"),
        ({"as_of": "2026-01-01"}, "as_of '2026-01-01' is no date"),
        ({"as_of": datetime(2026, 1, 1)}, "is no date"),  # noqa: DTZ001
        ({"url": "x"}, "unknown field url"),
    ],
)
def test_a_wrong_row_is_refused_with_its_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        vendor_catalogs.read("site.toml:1", {**_ROW, **changes})
