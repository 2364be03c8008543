"""The `[[vendor_catalog]]` rows of the catalogue: which vendor's list a family of types was written
from, and how old that list is.

Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from detectors.catalog import rows

# Our choice: NVIDIA's driver has a new release branch about twice a year, and each has brought
# codes of its own.
OLD_AFTER = timedelta(days=180)
_REQUIRED = ("family", "name", "as_of", "source")


@dataclass(frozen=True)
class VendorCatalog:
    """One row. `family` is that of the types (`xid`); `as_of` the day of the list that they were
    written from."""

    family: str
    name: str
    as_of: date
    source: str
    where: str = ""

    def age(self, today: date) -> timedelta:
        return max(today - self.as_of, timedelta(0))

    def is_old(self, today: date) -> bool:
        """Whether codes of a newer list may be missing here."""
        return self.age(today) > OLD_AFTER

    def format_age(self, today: date) -> str:
        """For people: `NVIDIA's Xid catalogue of 2025-11-01, 389 days old`, and what that means
        where it is old."""
        days = self.age(today).days
        text = f"{self.name} of {self.as_of.isoformat()}, {days} days old"
        if not self.is_old(today):
            return text
        return (
            f"{text}: codes of newer drivers may be missing or ask for something else now. Compare"
            f" with {self.source}"
        )


def read(where: str, row: Mapping[str, Any]) -> VendorCatalog:
    """A `[[vendor_catalog]]` row. Raises ValueError with one reason per line."""
    reasons = rows.list_wrong_fields(row, _REQUIRED, _REQUIRED)
    as_of = row.get("as_of")
    is_date = isinstance(as_of, date) and not isinstance(as_of, datetime)
    if as_of is not None and not is_date:
        reasons.append(f"as_of {as_of!r} is no date such as 2025-11-01")
    if reasons or not isinstance(as_of, date):
        raise ValueError("\n".join(reasons))
    family, name, source = str(row["family"]), str(row["name"]), str(row["source"])
    return VendorCatalog(family, name, as_of, source, where)
