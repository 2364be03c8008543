"""Time zones by name: the site's words, never a path and never a whole file."""

from __future__ import annotations

import zoneinfo

import pytest

from detectors.time_zones import get_zone


@pytest.mark.parametrize(
    "name", ["UTC", "Asia/Tokyo", "America/Argentina/ComodRivadavia", "Etc/GMT+5"]
)
def test_each_name_is_that_zone(name: str) -> None:
    assert get_zone(name).key == name


def test_every_name_that_this_machine_knows_is_taken() -> None:
    assert all(get_zone(name).key == name for name in zoneinfo.available_timezones())


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "Tokyo", "Asia", "asia/tokyo/", "/etc/localtime", "../../etc/passwd"),
        *("Asia/Tokyo\n", "\x00", "10.0.0.0/8," * 200, "a." * 1000, "a/" * 1000, "é"),
    ],
)
def test_anything_else_is_refused_in_one_way(name: str) -> None:
    with pytest.raises(ValueError, match="no IANA time zone"):
        get_zone(name)
