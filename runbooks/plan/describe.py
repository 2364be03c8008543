"""A runbook in words for people: what it is for, its place on the ladder, each step, what holds it
back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from detectors.faults import Action, Component, Recovery, Severity
from incidents.text import wording
from runbooks.plan import escalation
from runbooks.plan.escalation_levels import RUNGS
from runbooks.plan.limits import Limits
from runbooks.plan.runbook import Planned, Purpose, Runbook
from runbooks.step import StepEffect

_EFFECTS: Mapping[StepEffect, str] = {
    StepEffect.READ_ONLY: "looks or waits only",
    StepEffect.REVERSIBLE: "can be taken back",
    StepEffect.DISRUPTIVE: "disrupts the node",
}
_RUNGS: Mapping[Recovery, str] = {
    Recovery.GPU_RESET: "GPU reset",
    Recovery.NODE_RESTART: "warm reboot",
    Recovery.COLD_CYCLE: "cold power cycle",
    Recovery.VENDOR_REPLACEMENT: "vendor",
}
_PLACE = "the node"


@dataclass(frozen=True)
class StepWords:
    """`given`: its parameters, as the runbook gives them or as they are by default. `notes` are
    worth a badge each."""

    name: str
    text: str
    given: str
    notes: tuple[str, ...]


def purpose(entry: Purpose) -> str:
    """One entry of `for`, as the end of a sentence that begins with "It is for"."""
    parts = [f"faults {_listed(entry.faults)}" if entry.faults else "faults"]
    if entry.but_not:
        parts.append(f"but not {_listed(entry.but_not)}")
    if entry.severities:
        parts.append(f"of severity {_listed(entry.severities)}")
    if entry.actions:
        parts.append(f"that call for {_listed(entry.actions)}")
    if entry.components:
        parts.append(f"of class {_listed(entry.components)}")
    if entry.lemons:
        parts.append("on nodes that break again and again")
    return " ".join(parts)


def purpose_facts(entry: Purpose) -> list[tuple[str, str]]:
    """The same for a page: each of its conditions with a name, in people's words."""
    actions = "; ".join(wording.ACTIONS[action] for action in Action if action in entry.actions)
    components = "; ".join(
        wording.COMPONENTS[component] for component in Component if component in entry.components
    )
    severities = ", ".join(severity.value for severity in Severity if severity in entry.severities)
    found = [
        ("Fault types", ", ".join(entry.faults) or "any"),
        ("But not", ", ".join(entry.but_not)),
        ("That call for", actions),
        ("Of component", components),
        ("Of severity", severities),
        ("On which nodes", "only those that break again and again" if entry.lemons else ""),
    ]
    return [(name, words) for name, words in found if words]


def place(book: Runbook) -> str:
    """Where it stands on the ladder."""
    names = " → ".join(f"[{_RUNGS[rung]}]" if rung is book.rung else _RUNGS[rung] for rung in RUNGS)
    if book.rung is not None:
        return names
    if not book.purposes:
        return "beside the ladder: started by a person alone"
    return "beside the ladder: for what it names, and where no rung is left or allowed"


def step(planned: Planned) -> StepWords:
    notes = [_EFFECTS[planned.step.effect]]
    if planned.step.act is not None:
        notes.append("asks the guards")
    if planned.needs_approval:
        notes.append("needs an approval each time")
    given = ", ".join(
        f"{key}: {_shown(value)}"
        for key, value in planned.params.items()
        if value not in ("", None)
    )
    return StepWords(planned.step.name, planned.step.plan.format(node=_PLACE), given, tuple(notes))


def limits(bounds: Limits) -> list[str]:
    """What holds it back beside the general guards; never empty."""
    window = bounds.window or escalation.WINDOW
    found = [f"a fault that comes back within {_shown(window)} of a run was not cured by it"]
    if bounds.per_hour is not None:
        found.append(f"at most {bounds.per_hour} runs an hour for one fault type")
    if bounds.approval_above is not None:
        found.append(
            f"with {bounds.approval_above} nodes out by it, a person approves each further one"
        )
    return found


def text(book: Runbook, mode: str) -> str:
    """All of it, as `manage.py runbook show NAME` prints it."""
    whose = "this site's own" if book.is_sites_own else "shipped"
    lines = [
        f"{book.title} ({book.name}, version {book.version}, {whose}; mode {mode})",
        "",
        book.meaning,
        "",
    ]
    lines += [f"For: {purpose(entry)}" for entry in book.purposes]
    lines += [f"Ladder: {place(book)}", "", "Steps:"]
    for number, words in enumerate((step(planned) for planned in book.steps), 1):
        given = f" ({words.given})" if words.given else ""
        lines.append(f"{number:3}. {words.name}{given}: {words.text}; {', '.join(words.notes)}")
    return "\n".join([*lines, "", "Limits:", *(f"  - {line}" for line in limits(book.limits))])


def _listed(words: object) -> str:
    found = [str(word) for word in words] if isinstance(words, tuple) else sorted(map(str, words))  # type: ignore[call-overload]
    return ", ".join(found)


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        seconds = round(value.total_seconds())
        unit = next(
            (each for each in ((86400, "d"), (3600, "h"), (60, "m")) if seconds % each[0] == 0),
            (1, "s"),
        )
        return f"{seconds // unit[0]} {unit[1]}" if (unit[1] != "d" or seconds > 86400) else "24 h"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_shown, value)) if isinstance(value, (list, tuple)) else str(value)
