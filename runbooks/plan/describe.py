"""A runbook in words for people: what it is for, its place on the ladder, each step, what holds it
back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from detectors.faults import Action, Component, Fitness, Recovery, Severity
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
_LEMONS = "only those that break again and again"


@dataclass(frozen=True)
class StepWords:
    """`given`: its parameters, as the runbook gives them or as they are by default. `notes` are
    worth a badge each."""

    name: str
    text: str
    given: str
    notes: tuple[str, ...]


def format_purpose(entry: Purpose) -> str:
    """One entry of `for`, as the end of a sentence that begins with "It is for"."""
    parts = [f"faults {_format_words(entry.faults)}" if entry.faults else "faults"]
    if entry.but_not:
        parts.append(f"but not {_format_words(entry.but_not)}")
    if entry.severities:
        parts.append(f"of severity {_format_words(entry.severities)}")
    if entry.fitness:
        parts.append(f"that leave a node {_format_words(entry.fitness)}")
    if entry.actions:
        parts.append(f"that call for {_format_words(entry.actions)}")
    if entry.components:
        parts.append(f"of class {_format_words(entry.components)}")
    if entry.lemons:
        parts.append("on nodes that break again and again")
    return " ".join(parts)


def list_conditions(entry: Purpose) -> list[tuple[str, str]]:
    """The same for a page: each of its conditions with a name, in people's words."""
    actions = [wording.ACTIONS[action] for action in Action if action in entry.actions]
    components = [
        wording.COMPONENTS[component] for component in Component if component in entry.components
    ]
    severities = [severity.value for severity in Severity if severity in entry.severities]
    conditions = {
        "Fault types": ", ".join(entry.faults) or "any",
        "But not": ", ".join(entry.but_not),
        "That call for": "; ".join(actions),
        "Of component": "; ".join(components),
    }
    conditions["Of severity"] = ", ".join(severities)
    conditions["Leave the node"] = ", ".join(word for word in Fitness if word in entry.fitness)
    conditions["On which nodes"] = _LEMONS if entry.lemons else ""
    return [(name, words) for name, words in conditions.items() if words]


def format_place(book: Runbook) -> str:
    """Where it stands on the ladder."""
    if book.rung is not None:
        titles = {**_RUNGS, book.rung: f"[{_RUNGS[book.rung]}]"}
        return " → ".join(titles[rung] for rung in RUNGS)
    if not book.purposes:
        return "beside the ladder: started by a person alone"
    return "beside the ladder: for what it names, and where no rung is left or allowed"


def describe_step(planned: Planned) -> StepWords:
    notes = [_EFFECTS[planned.step.effect]]
    if planned.step.act is not None:
        notes.append("asks the guards")
    if planned.needs_approval:
        notes.append("needs an approval each time")
    params = {key: value for key, value in planned.params.items() if value not in ("", None)}
    given = ", ".join(f"{key}: {_format_value(value)}" for key, value in params.items())
    text = planned.step.plan.format(node=_PLACE)
    return StepWords(planned.step.name, text, given, tuple(notes))


def list_limits(bounds: Limits) -> list[str]:
    """What holds it back beside the general guards; never empty."""
    window = bounds.window or escalation.WINDOW
    found = [f"a fault that comes back within {_format_value(window)} of a run was not cured by it"]
    if bounds.per_hour is not None:
        found.append(f"at most {bounds.per_hour} runs an hour for one fault type")
    if bounds.approval_above is not None:
        found.append(
            f"with {bounds.approval_above} nodes out by it, a person approves each further one"
        )
    return found


def format_runbook(book: Runbook, mode: str) -> str:
    """All of it, as `kintsugi runbook show NAME` prints it."""
    origin = "this site's own" if book.is_sites_own else "shipped"
    lines = [
        f"{book.title} ({book.name}, version {book.version}, {origin}; mode {mode})",
        "",
        book.meaning,
        "",
    ]
    lines += [f"For: {format_purpose(entry)}" for entry in book.purposes]
    lines += [f"Ladder: {format_place(book)}", "", "Steps:"]
    for number, planned in enumerate(book.steps, 1):
        words = describe_step(planned)
        given = f" ({words.given})" if words.given else ""
        lines.append(f"{number:3}. {words.name}{given}: {words.text}; {', '.join(words.notes)}")
    lines += ["", "Limits:"]
    lines += [f"  - {line}" for line in list_limits(book.limits)]
    return "\n".join(lines)


def _format_words(words: Collection[str]) -> str:
    """A set in order of the alphabet, a tuple as it stands."""
    ordered = words if isinstance(words, tuple) else sorted(str(word) for word in words)
    return ", ".join(str(word) for word in ordered)


_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def _format_duration(span: timedelta) -> str:
    seconds = round(span.total_seconds())
    if seconds == 86400:
        return "24 h"
    length, unit = next((length, unit) for length, unit in _UNITS if seconds % length == 0)
    return f"{seconds // length} {unit}"


def _format_value(value: Any) -> str:
    if isinstance(value, timedelta):
        return _format_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_format_value(item) for item in value)
    return str(value)
