"""Values as TOML has them, of every kind: what somebody may write where another kind is expected."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from typing import Any

from hypothesis import strategies as st

_PLAIN = [
    *(True, False, -1, 0, 8, 4_294_967_296, 1.5, float("inf"), float("nan")),
    *("", " ", "x", "[1-", "1h", "99999999999h", "é" * 300, "\0"),
    *(date(2026, 1, 1), time(1, 2), datetime(2026, 1, 1, tzinfo=UTC)),
]
ODD_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(_PLAIN),
    lambda values: (
        st.lists(values, max_size=2) | st.dictionaries(st.sampled_from(["a", "name"]), values)
    ),
    max_leaves=3,
)


def format_toml(value: object) -> str:
    """The value as it stands behind a key."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {format_toml(item)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_toml, value)) + "]"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
