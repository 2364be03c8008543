"""The `[[grace]]` rows of the catalogue: how long after a boot which types of fault come of the
boot itself.

Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from detectors.catalog import rows


@dataclass(frozen=True)
class Grace:
    """One row. `types` are ids or patterns of ids, such as `nic.link.*`."""

    types: tuple[str, ...]
    period: timedelta
    where: str = ""

    def unknown(self, types: Iterable[str]) -> list[str]:
        """The patterns that fit no type."""
        known = list(types)
        return [pattern for pattern in self.types if not fnmatch.filter(known, pattern)]

    def covers(self, fault_type: str) -> bool:
        return any(fnmatch.fnmatchcase(fault_type, pattern) for pattern in self.types)


def longest(graces: Iterable[Grace], fault_type: str) -> timedelta:
    """Of those that cover the type; nothing where none does."""
    periods = (grace.period for grace in graces if grace.covers(fault_type))
    return max(periods, default=timedelta(0))


def read(where: str, row: Mapping[str, Any]) -> Grace:
    """A `[[grace]]` row. Raises ValueError with one reason per line."""
    required = ("types", "period", "source")
    reasons = rows.list_wrong_fields(row, required, required)
    types = row.get("types", ())
    if not rows.are_names(types):
        reasons.append("types is no list of ids or patterns")
    period = rows.duration("period", row["period"], reasons) if "period" in row else timedelta(0)
    if reasons:
        raise ValueError("\n".join(reasons))
    return Grace(tuple(types), period, where)
