"""Reads single values of the catalogue's TOML rows, and collects what is wrong with them. Python
3.9."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Optional

_DURATION = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def member(enum: type[Enum], name: str, value: object, reasons: list[str]) -> Optional[Enum]:
    try:
        return enum(value)
    except ValueError:
        reasons.append(
            f"{name} {value!r} is none of {', '.join(str(member.value) for member in enum)}"
        )
        return None


def duration(name: str, value: object, reasons: list[str]) -> timedelta:
    found = _DURATION.fullmatch(str(value))
    if found is None:
        reasons.append(f"{name} {value!r} is no duration such as 90s, 15m, 24h or 7d")
        return timedelta(0)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def number(name: str, value: object, reasons: list[str]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        reasons.append(f"{name} {value!r} is no number")
        return 0.0
    return float(value)


def count(name: str, value: object, reasons: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        reasons.append(f"{name} {value!r} is no whole number from 1 on")
        return 1
    return value


def list_wrong_fields(
    row: Mapping[str, object], known: Collection[str], required: Sequence[str]
) -> list[str]:
    """Fields that nobody knows, and required ones that are missing or empty."""
    unknown = sorted(set(row).difference(known))
    missing = [name for name in required if not row.get(name)]
    return [f"unknown field {name}" for name in unknown] + [f"missing {name}" for name in missing]


def are_names(value: object) -> bool:
    """Whether it is a list of strings, such as ids or patterns of ids."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
