"""Reads single values of the catalogue's TOML rows, and collects what is wrong with them. Python
3.9."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Optional

_DURATION = re.compile(r"(\d{1,12})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A century: with longer ones the moments before now that are asked for could lie before the first
# that Python and the databases know.
_LONGEST_D = 36_500


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
    seconds = int(found[1]) * _UNIT_S[found[2]]
    if seconds > _LONGEST_D * _UNIT_S["d"]:
        reasons.append(f"{name} {value!r} is longer than {_LONGEST_D}d")
        return timedelta(0)
    return timedelta(seconds=seconds)


def number(name: str, value: object, reasons: list[str]) -> float:
    if not _is_number(value):
        reasons.append(f"{name} {value!r} is no number")
        return 0.0
    return float(value)  # type: ignore[arg-type]


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


@dataclass(frozen=True)
class Shape:
    """A kind of value. `expected` says to people what fits."""

    expected: str
    fits: Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return _is_text(value) or (are_names(value) and "" not in value)  # type: ignore[operator]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


TEXT = Shape("a text", _is_text)
TEXTS = Shape("a text or a list of texts", _are_texts)
NAMES = Shape("a list of texts", are_names)
FLAG = Shape("true or false", _is_flag)
COUNT = Shape("a whole number", _is_count)
NUMBER = Shape("a number", _is_number)


def list_wrong_shapes(row: Mapping[str, object], shapes: Mapping[str, Shape]) -> list[str]:
    """Fields whose value is of another kind than theirs."""
    reasons = []
    for name, shape in shapes.items():
        if name in row and not shape.fits(row[name]):
            reasons.append(f"{name} is {row[name]!r}: expected {shape.expected}")
    return reasons


def are_rows(value: object) -> bool:
    """Whether it is what `[[name]]` tables of a file become."""
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)
