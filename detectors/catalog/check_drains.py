"""Drains that other checks of a site make: the `[[drain]]` rows of the catalogue.

A row says what such a check's reason looks like, who sets it, which fault it tells of, and whether
a run may take the drain over. Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# With fewer letters before its first `*` a pattern would fit what people write too (our choice).
_LEAST_BEGINNING = 3
# No check's reason needs more (our choice).
_MOST_STARS = 3
_OURS = "kintsugi:"
_REQUIRED = ("pattern", "set_by", "type", "source")


@dataclass(frozen=True)
class CheckDrain:
    """One row. `pattern` is the whole reason, with `*` for any characters; `set_by` the users of
    Slurm by whom the check sets it; `type` the fault of the node that it tells of. `resume`:
    whether a run may take the drain over, and gives the node back when it is well again."""

    pattern: str
    set_by: tuple[str, ...]
    type: str
    source: str
    resume: bool = False
    where: str = ""

    def fits(self, reason: str, set_by: str) -> bool:
        return set_by in self.set_by and _fits_pattern(reason, self.pattern)


def read(where: str, row: Mapping[str, object]) -> CheckDrain:
    """A `[[drain]]` row. Raises ValueError with one reason per line."""
    reasons = [f"unknown field {name}" for name in sorted(set(row) - {*_REQUIRED, "resume"})]
    reasons += [f"missing {name}" for name in _REQUIRED if not row.get(name)]
    pattern, resume = row.get("pattern"), row.get("resume", False)
    if pattern:
        reasons += _list_objections(pattern)
    set_by = row.get("set_by")
    users = (set_by,) if isinstance(set_by, str) else tuple(_to_list(set_by))
    if set_by and not all(isinstance(user, str) and user for user in users):
        reasons.append(f'set_by {set_by!r} is no user and no list of users such as ["root"]')
    if not isinstance(resume, bool):
        reasons.append(f"resume {resume!r} is neither true nor false")
    if reasons:
        raise ValueError("\n".join(reasons))
    names = tuple(str(user) for user in users)
    return CheckDrain(
        str(pattern), names, str(row["type"]), str(row["source"]), resume is True, where
    )


def _fits_pattern(text: str, pattern: str) -> bool:
    """In time that grows as the text does: each piece between two `*` is looked for once, where it
    comes first."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, at, max(at, end))
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def _to_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [None]


def _list_objections(pattern: object) -> list[str]:
    if not isinstance(pattern, str):
        return [f"pattern {pattern!r} is no text"]
    beginning = pattern.partition("*")[0].strip()
    if len(beginning) < _LEAST_BEGINNING:
        least = f"it begins with {_LEAST_BEGINNING} characters of the check's own"
        return [f"pattern {pattern!r} would fit what people write: {least}, such as 'NHC: *'"]
    if pattern.startswith(_OURS):
        return [f"pattern {pattern!r} is what Kintsugi itself writes"]
    if pattern.count("*") > _MOST_STARS:
        return [f"pattern {pattern!r} has more than {_MOST_STARS} of *"]
    return []
