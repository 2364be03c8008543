"""Readers of values that a runbook gives its steps. Each raises ValueError or TypeError for what it
cannot be. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from detectors.catalog import rows

E = TypeVar("E", bound=StrEnum)
DURATION = "a duration such as 90s, 15m, 24h or 7d"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:-]{0,63}")
NAMES = "a list of names of letters, digits, @ . _ : -"


def parse_duration(value: object) -> timedelta:
    reasons: list[str] = []
    found = rows.duration("it", value, reasons)
    if reasons or not found:
        raise ValueError("; ".join(reasons) or "it is nothing")
    return found


def build_choice_parser(words: type[E]) -> Callable[[object], E]:
    return lambda value: words(str(value))


def format_choices(words: type[StrEnum]) -> str:
    """Ends "expected ..."."""
    return "one of " + ", ".join(words)


def parse_names(value: object) -> tuple[str, ...]:
    """Names as systemd, Slurm and RDMA devices have them: nothing that a shell would take for more
    than a word."""
    if not isinstance(value, list) or not all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in value
    ):
        raise ValueError("it is no list of names")
    return tuple(value)


def build_whole_number_parser(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"it is no whole number from {least} to {most}")
        return value

    return read


def parse_positive(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise ValueError("it is no number above 0")
    return float(value)


def parse_command(value: object) -> tuple[str, ...]:
    """A program and its arguments, as a list of texts: no shell reads them."""
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(word, str) and word for word in value)
    ):
        raise ValueError("it is no list of texts")
    return tuple(value)
