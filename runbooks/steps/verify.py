"""Verify the repaired node before it takes jobs again: its detectors, its active faults, the site's
own command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.catalog import catalog
from detectors.faults import Action, Recovery
from incidents.polling import poll_pauses
from runbooks.node import detached_command, looking
from runbooks.node.detached_command import DetachedJob, Ended
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    NotCured,
    Result,
    Wait,
    fact_time,
    get_backoff,
    to_iso,
)
from runbooks.steps.pause_pollers import holder

# Drivers load and links train after a boot or a reset: trouble counts when it outlasts a grace
# period, since one site condemned 214 of 288 nodes without one (docs/runbooks.md). Its length is
# our choice, not a measurement.
GRACE = timedelta(minutes=2)
# The fact of a run whose node has passed its last test: when.
PROVED_AT = "proved_at"
_LOOK_AGAIN = timedelta(seconds=10)
_POLL_COMMAND = timedelta(seconds=2)
_POLL_COMMAND_LATER = timedelta(seconds=15)
_REPAIRS = {
    Recovery.GPU_RESET: "GPU reset",
    Recovery.NODE_RESTART: "reboot",
    Recovery.COLD_CYCLE: "power cycle",
    Recovery.VENDOR_REPLACEMENT: "new part",
}


@dataclass(frozen=True)
class _Trouble:
    """`is_of_part`: it is what the run was to cure, or as grave and on the same part."""

    text: str
    is_of_part: bool


class Verify(Base):
    """Without a verify command of the site a person resumes the node, which the run notices."""

    name: ClassVar[str] = "verify"
    plan: ClassVar[str] = (
        "verify that all GPUs are present, no fault stands, and the site's verify command passes"
    )
    touches_node: ClassVar[bool] = True

    def run(self, ctx: Context) -> Result:
        poll_pauses.end(holder(ctx.run_id))  # what the polls see from here on counts
        since = _touched_at(ctx)
        if _began(ctx) in ctx.facts:
            return _verify_by_command(ctx, since)
        troubles = list(_troubles(ctx, since))
        if troubles and ctx.now < since + GRACE:
            return Wait(f"{ctx.node} is not well yet: {_said(troubles)}", _LOOK_AGAIN)
        if troubles:
            return _not_well(ctx, troubles)
        if not ctx.world.policy.verify_command:
            ctx.facts["asked_to_resume"] = True
            return Wait(
                f"{ctx.node} is up and its detectors find no fault. No verify command is configured"
                " (KINTSUGI_VERIFY_COMMAND), so a person decides.",
                get_backoff(since, ctx.now, longest=timedelta(minutes=1)),
                ask=(
                    f"Test {ctx.node} and resume it: scontrol update NodeName={ctx.node}"
                    " State=RESUME"
                ),
                is_told=True,
            )
        return _verify_by_command(ctx, since)


def _touched_at(ctx: Context) -> datetime:
    """When the node was last booted or reset, or this step began: what was seen before speaks of
    another state."""
    began = ctx.facts.setdefault(f"{ctx.key}:since", to_iso(ctx.now))
    touched = [at for fact in ("booted_at", "reset_at") if (at := fact_time(ctx, fact)) is not None]
    return max(touched, default=datetime.fromisoformat(began))


def _began(ctx: Context) -> str:
    """The fact that holds when the command was started."""
    return f"{ctx.key}:began_at"


def _troubles(ctx: Context, since: datetime) -> Iterator[_Trouble]:
    seen = looking.inspect_node(ctx)
    if not seen.is_reachable:
        yield _Trouble(f"Kintsugi cannot reach it: {seen.complaint}", is_of_part=False)
        return
    grave = seen.grave(looking.those_that_confirm(ctx.fault_type))
    for event in grave:
        text = f"{event.fault_type} on {event.resource}: {event.excerpt}"
        # A detector that says nothing is no proof that the repair failed.
        is_of_part = event.fault_type != looking.SILENT and looking.is_of_part(event.resource, ctx)
        yield _Trouble(text, is_of_part=is_of_part)
    yield from _seen_since(ctx, since, f"the {_repair(ctx)}") if not grave else ()


def _seen_since(ctx: Context, since: datetime, what: str) -> Iterator[_Trouble]:
    """Faults that call for a repair and were seen after that, by polls or in lines."""
    rows = catalog.load()
    for fault in ctx.standing:
        row = rows.get(fault.fault_type)
        if fault.last_seen_at > since and row is not None and row.action.at_least(Action.RESET_GPU):
            text = f"{fault.fault_type} on {fault.resource} since {what}"
            yield _Trouble(text, is_of_part=looking.is_of_part(fault.resource, ctx))


def ill_again(ctx: Context) -> Failed | NotCured | None:
    """What was seen of the node since it passed its last test; None where that is nothing."""
    proved_at = fact_time(ctx, PROVED_AT)
    troubles = list(_seen_since(ctx, proved_at, "it was verified")) if proved_at is not None else []
    return _not_well(ctx, troubles) if troubles else None


def _said(troubles: list[_Trouble]) -> str:
    return "; ".join(trouble.text for trouble in troubles)


def _verify_by_command(ctx: Context, since: datetime) -> Result:
    """While it runs the detectors keep away: a stress test makes a healthy GPU slow to answer."""
    command = ctx.world.policy.verify_command
    shown = " ".join(command)
    began_at = datetime.fromisoformat(ctx.facts.setdefault(_began(ctx), to_iso(ctx.now)))
    # Once per boot: a node that went down in the middle is verified anew.
    job = DetachedJob(f"{ctx.key}-{ctx.facts.get('boot_id_after') or 'same-boot'}", command)
    answer = detached_command.start(ctx.world.shell, ctx.target, job)
    if isinstance(answer, Ended):
        evidence = {shown: answer.said}
        if answer.status != 0:
            return _failed(ctx, f"`{shown}` {answer.how}: {answer.last_words}")
        troubles = list(_troubles(ctx, since))
        if troubles:
            return _not_well(
                ctx, [_Trouble(f"after `{shown}`: {one.text}", one.is_of_part) for one in troubles]
            )
        ctx.facts[PROVED_AT] = to_iso(ctx.now)
        return Done(
            f"{ctx.node} is verified: its detectors find no fault and `{shown}` passed.",
            evidence=evidence,
        )
    waited = ctx.now - began_at
    if waited > ctx.world.policy.verify_timeout:
        return _failed(
            ctx, f"`{shown}` has not ended after {round(waited.total_seconds() / 60)} min"
        )
    return Wait(
        f"`{shown}` runs on {ctx.node}.",
        _POLL_COMMAND if waited < timedelta(minutes=1) else _POLL_COMMAND_LATER,
    )


def _not_well(ctx: Context, troubles: list[_Trouble]) -> Failed | NotCured:
    """The run's own fault calls for the next rung; any other trouble for a person."""
    if not any(trouble.is_of_part for trouble in troubles):
        return _failed(ctx, _said(troubles))
    repair = _repair(ctx)
    return NotCured(
        f"The {repair} has not cured {ctx.fault_type} on {ctx.resource}: {_said(troubles)}."
        f" {ctx.node} stays drained.",
        ask=(
            f"Examine {ctx.node}: a {repair} did not cure {ctx.fault_type}. Power-cycle it or call"
            " the vendor."
        ),
        evidence={"detectors": _said(troubles)},
    )


def _failed(ctx: Context, why: str) -> Failed:
    return Failed(
        f"{ctx.node} did not pass after its {_repair(ctx)}: {why}. It stays drained.",
        ask=(
            f"Examine {ctx.node}: it is not well after its {_repair(ctx)}. Power-cycle it or call"
            " the vendor."
        ),
    )


def _repair(ctx: Context) -> str:
    tried = ctx.facts.get("recovery")
    return _REPAIRS.get(Recovery(tried), "repair") if tried else "repair"
