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


def runbook_modes() -> list[dict[str, Any]]:
    """Each runbook of the library with its own mode (without a row it is shadow, set by nobody),
    and how far it goes: no further than the site's mode."""
    rows = {row.runbook: row for row in RunbookMode.objects.all()}
    site = Mode(rows[fleet.SITE].mode) if fleet.SITE in rows else Mode.ARMED
    own = {name: Mode(rows[name].mode) if name in rows else Mode.SHADOW for name in library.load()}
    return [
        {
            "runbook": name,
            "title": book.title,
            "meaning": book.meaning,
            "mode": own[name].value,
            "goes": fleet.get_lower_mode(own[name], site).value,
            "set": rows.get(name),
        }
        for name, book in library.load().items()
    ]


def by_mode(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Mode, what it means, and the runbooks that go so far; those that may do most come first."""
    found = [(mode, [row for row in rows if row["goes"] == mode]) for mode in reversed(Mode)]
    return [(mode.value, MODE_MEANINGS[mode], group) for mode, group in found if group]
