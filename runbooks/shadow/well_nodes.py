"""By what a node counts as well although a run was for its fault: one definition for what a dry run
would have done and for what was done. Pure."""

from __future__ import annotations

from incidents.vocabulary.lifecycle import State


def find_reason(state: State, *, is_refuted: bool) -> str:
    """Empty where nothing says so. `state` is the incident's; `is_refuted`: what can see the fault
    has denied it twice."""
    if state is State.FALSE_POSITIVE:
        return "a person marked the incident a false alarm"
    return "looked for twice on the node, and not there" if is_refuted else ""
