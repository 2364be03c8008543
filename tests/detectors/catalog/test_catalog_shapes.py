"""Whatever kind of value stands in a field of the catalogue, the row is taken or named."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from detectors.catalog import catalog, shapes
from tests.odd_values import ODD_VALUES

_TYPE = {
    "id": "quux.worn",
    "title": "A quux is worn",
    "component": "node",
    "event_type": "equipment",
    "severity": "minor",
    "action": "watch",
    "clears": "by_poll",
    "meaning": "It turns slower than it did.",
    "source": "our choice: a test",
}
_SIGNATURE = {
    "type": "quux.worn",
    "event": "raised",
    "on": "node",
    "program": "kernel",
    "facility": "kern",
    "begins": "message",
    "pattern": "quux: worn",
}
_GRAMMAR = {
    "type": "quux.worn",
    "subject": ["QUUX"],
    "fails": ["FAIL"],
    "clears": ["OK"],
    "says_fails": ["failed"],
    "says_clears": ["recovered"],
    "source": "our choice: a test",
}
_SOURCE = {"source": "our choice: a test"}
_ROWS: dict[str, dict[str, Any]] = {
    "type": _TYPE,
    "signature": _SIGNATURE,
    "grammar": _GRAMMAR,
    "rule": {"metric": "quux.speed", "type": "quux.worn", "when": "true", **_SOURCE},
    "grace": {"types": ["quux.worn"], "period": "1h", **_SOURCE},
    "harmless": {
        "pattern": "quux: ok",
        "program": "kernel",
        "facility": "kern",
        "reason": "It says that it is well.",
        **_SOURCE,
    },
    "advice": {"types": ["quux.worn"], "text": "Look at it. Grease it.", **_SOURCE},
    "drain": {"pattern": "quux check: *", "set_by": "root", "type": "quux.worn", **_SOURCE},
    "vendor_catalog": {"family": "quux", "name": "Quux' codes", **_SOURCE},
}


def list_problems(tables: dict[str, Any]) -> list[str]:
    """Why the tables are refused, or nothing."""
    try:
        catalog.from_rows(tables, "site.toml")
    except catalog.CatalogError as error:
        return str(error).splitlines()
    return []


def test_the_rows_that_are_changed_below_are_right() -> None:
    assert list_problems({"type": [_TYPE]}) == []
    for table in set(_ROWS) - {"type", "vendor_catalog"}:
        assert list_problems({"type": [_TYPE], table: [_ROWS[table]]}) == []


@given(table=st.sampled_from(sorted(shapes.BY_TABLE)), value=ODD_VALUES, data=st.data())
def test_any_value_in_any_field_is_taken_or_its_row_is_named(
    table: str, value: Any, data: st.DataObject
) -> None:
    fields = sorted({*shapes.BY_TABLE[table], *_ROWS[table]})
    row = {**_ROWS[table], data.draw(st.sampled_from(fields)): value}
    tables = {"type": [_TYPE], table: [row]}
    assert all(line.startswith("site.toml:") for line in list_problems(tables))


@given(table=st.sampled_from(["defaults", *sorted(shapes.BY_TABLE)]), value=ODD_VALUES)
@example(table="signature", value=5)
@example(table="defaults", value=[])
def test_any_value_in_place_of_rows_is_taken_or_named(table: str, value: Any) -> None:
    assert all(line.startswith("site.toml:") for line in list_problems({table: value}))


@given(value=ODD_VALUES)
@example(value=7)
def test_no_signature_counts_that_names_its_programs_otherwise_than_as_texts(value: Any) -> None:
    row = {**_SIGNATURE, "program": value}
    problems = list_problems({"type": [_TYPE], "signature": [row]})
    is_text = isinstance(value, str) and value != ""
    is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    assert (problems == []) == (is_text or (is_list and value != []))
