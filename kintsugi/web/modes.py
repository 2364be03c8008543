"""How far each runbook may go, for pages. Reads only."""

from __future__ import annotations

from typing import Any

from runbooks.fleet import fleet
from runbooks.library import library
from runbooks.models import Mode, RunbookMode

MODE_MEANINGS: dict[Mode, str] = {
    Mode.OFF: "No run starts.",
    Mode.SHADOW: "Runs are written as they would go; nothing is done to any node.",
    Mode.APPROVAL: "Each run waits for a person before its first act on a node.",
    Mode.ARMED: "Runs go by themselves, within the guards.",
}


def list_runbook_modes() -> list[dict[str, Any]]:
    """Each runbook of the library with its own mode (without a row it is shadow, set by nobody),
    and how far it goes: no further than the site's mode."""
    rows = {row.runbook: row for row in RunbookMode.objects.all()}
    site_mode = Mode(rows[fleet.SITE].mode) if fleet.SITE in rows else Mode.ARMED
    return [
        _build_runbook_mode(book, rows.get(name), site_mode)
        for name, book in library.load().items()
    ]


def _build_runbook_mode(
    book: library.Runbook, row: RunbookMode | None, site_mode: Mode
) -> dict[str, Any]:
    mode = Mode(row.mode) if row is not None else Mode.SHADOW
    return {
        "runbook": book.name,
        "title": book.title,
        "meaning": book.meaning,
        "mode": mode.value,
        "goes": fleet.get_lower_mode(mode, site_mode).value,
        "set": row,
    }


def group_by_mode(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Mode, what it means, and the runbooks that go so far; those that may do most come first."""
    groups = []
    for mode in reversed(Mode):
        runbooks = [row for row in rows if row["goes"] == mode]
        if runbooks:
            groups.append((mode.value, MODE_MEANINGS[mode], runbooks))
    return groups
