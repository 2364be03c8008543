"""What an order of steps must keep, whoever wrote it: checked when a runbook is read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detectors.faults import Recovery
from runbooks.plan.escalation_levels import STEPS_THAT_BOOT, STEPS_THAT_REPAIR
from runbooks.plan.runbook import Planned
from runbooks.step import StepEffect

_TAKES_OUT = ("adopt_drain", "drain")
_PROVES = ("verify", "diagnose", "burn_in")


def find_order_problems(steps: Sequence[Planned], rung: Recovery | None) -> Iterator[str]:
    """What is wrong with the order, a sentence each."""
    names = [planned.step.name for planned in steps]
    if any(planned.step.needs_node for planned in steps) and names[0] not in _TAKES_OUT:
        yield (
            f"steps: {names[0]} comes first; expected drain or adopt_drain before anything is done"
            " to a node"
        )
    for index, planned in enumerate(steps):
        before, after = names[:index], names[index + 1 :]
        if planned.step.effect is StepEffect.DISRUPTIVE and not set(_TAKES_OUT) & set(before):
            yield (
                f"steps: {names[index]} without drain before it; expected the node to be taken out"
                " first"
            )
        if names[index] in STEPS_THAT_REPAIR and "wait_for_jobs" not in before:
            yield (
                f"steps: {names[index]} without wait_for_jobs before it; expected its jobs to have"
                " ended first"
            )
        if names[index] in STEPS_THAT_REPAIR and "confirm_on_node" not in before:
            yield (
                f"steps: {names[index]} without confirm_on_node before it; a log line alone changes"
                " nothing there"
            )
        if names[index] in STEPS_THAT_BOOT and "wait_for_boot" not in after:
            yield (
                f"steps: {names[index]} without wait_for_boot after it; expected to see it come"
                " back"
            )
        if names[index] == "resume" and not set(_PROVES) & set(before):
            yield (
                "steps: resume without verify, diagnose or burn_in before it; expected it proved"
                " well first"
            )
    cures = [planned.step.name for planned in steps if planned.step.recovery is not None]
    if rung is not None and rung is not Recovery.VENDOR_REPLACEMENT:
        rungs = {planned.step.recovery for planned in steps}
        if rung not in rungs:
            yield (
                f"rung is {rung}, and no step does that; expected its step among"
                f" {', '.join(cures) or 'them'}"
            )
