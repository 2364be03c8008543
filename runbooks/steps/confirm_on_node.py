"""Confirm the fault on the node itself. A log line that came over the network never reboots
anything alone.

What is confirmed is the run's own fault, or any other that stands on the node in the same incident
and calls for a repair: the run goes on for that one. Of each the answer is one of three, and people
read which it was and of what:

1. Seen. The detectors that the fault type names see it, on the same resource or on the whole node;
   for a type that no detector can see the node's own kernel log, this boot's, holds it; or the node
   answers neither us nor Slurm.
2. Looked and well. Whatever could have seen it has answered, and does not.
3. Could not look. The node, a detector or the kernel log gave no answer: nothing is known, and that
  is never well.

Unless one is seen a person is asked, and it is looked at again: the node stays drained meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from detectors.catalog import catalog
from detectors.faults import Action, FaultEvent
from runbooks.node import looking
from runbooks.node.looking import KernelLog, NodeInspection
from runbooks.step import (
    Base,
    Context,
    Done,
    Result,
    StandingFault,
    Wait,
    fact_time,
    get_backoff,
    to_iso,
)

_LONGEST = timedelta(minutes=5)


@dataclass(frozen=True)
class _Seen:
    """`how` ends the sentence "Confirmed on gn042: ..."."""

    fault: StandingFault
    how: str


@dataclass(frozen=True)
class _Well:
    """`how` says who has looked, and follows "not confirmed on gn042:"."""

    fault: StandingFault
    how: str


@dataclass(frozen=True)
class _Unknown:
    """`why` says who gave no answer."""

    fault: StandingFault
    why: str


class ConfirmOnNode(Base):
    """Stores the boot id too: after this step the node may lose it."""

    name: ClassVar[str] = "confirm_on_node"
    plan: ClassVar[str] = "confirm the fault on {node} itself"

    def run(self, ctx: Context) -> Result:
        faults = _asked_about(ctx)
        detectors = {
            name for fault in faults for name in looking.those_that_confirm(fault.fault_type)
        }
        look = looking.inspect_node(ctx, only=sorted(detectors))
        if not look.is_reachable:
            return _unreachable(ctx, look)
        boot = looking.boot(ctx)
        ctx.facts["boot_id_before"] = boot.boot_id if boot is not None else ctx.known_boot_id
        log = (
            looking.kernel_log(ctx)
            if any(not _detectors_of(fault) for fault in faults)
            else KernelLog((), "")
        )
        answers = [_answer(ctx, fault, look, log) for fault in faults]
        seen = next((answer for answer in answers if isinstance(answer, _Seen)), None)
        if seen is not None:
            return _confirmed(ctx, seen, instead_of=answers[0])
        unknown = [answer for answer in answers if isinstance(answer, _Unknown)]
        well = [answer for answer in answers if isinstance(answer, _Well)]
        return _could_not_look(ctx, unknown, well) if unknown else _looked_and_well(ctx, well, look)


def _asked_about(ctx: Context) -> Sequence[StandingFault]:
    """The run's own fault, and all of the incident's that stand on the node and call for a
    repair."""
    own = StandingFault(ctx.fault_type, ctx.resource, ctx.now)
    calling = [one for one in ctx.members if one.action.at_least(Action.RESET_GPU)]
    others = [
        one for one in calling if (one.fault_type, one.resource) != (own.fault_type, own.resource)
    ]
    return [own, *others]


def _detectors_of(fault: StandingFault) -> tuple[str, ...]:
    row = catalog.load().get(fault.fault_type)
    return tuple(row.confirmed_by) if row is not None else ()


def _answer(
    ctx: Context, fault: StandingFault, look: NodeInspection, log: KernelLog
) -> _Seen | _Well | _Unknown:
    detectors = _detectors_of(fault)
    if not detectors:
        return _answer_of_log(ctx, fault, log)
    event = next((event for event in look.raised if _confirms(event, fault, ctx)), None)
    if event is not None:
        return _Seen(fault, f"{event.fault_type} on {event.resource} ({event.excerpt})")
    silent = [
        f"its {name} check gives no answer ({look.silent[name]})"
        for name in detectors
        if name in look.silent
    ]
    if silent:
        return _Unknown(fault, " and ".join(silent))
    return _Well(
        fault, f"its {' and '.join(detectors)} check finds nothing wrong with {fault.resource}"
    )


def _answer_of_log(ctx: Context, fault: StandingFault, log: KernelLog) -> _Seen | _Well | _Unknown:
    if log.complaint:
        return _Unknown(fault, f"its own kernel log cannot be read ({log.complaint})")
    fact = log.last(fault.fault_type, fault.resource, ctx.node)
    if fact is None:
        return _Well(fault, f"its own kernel log does not hold it ({fault})")
    return _Seen(fault, f'its own kernel log says "{fact.excerpt}"')


def _confirms(event: FaultEvent, fault: StandingFault, ctx: Context) -> bool:
    """A fault of the same part that calls for a repair; one of the whole node counts for each of
    its parts."""
    is_there = looking.is_on(event.resource, part=fault.resource, node=ctx.node)
    return is_there and event.action.at_least(Action.RESET_GPU)


def _confirmed(ctx: Context, seen: _Seen, *, instead_of: _Seen | _Well | _Unknown) -> Done:
    ctx.facts["confirmed_at"] = to_iso(ctx.now)
    text = f"Confirmed on {ctx.node}: {seen.how}."
    if seen.fault == instead_of.fault:
        return Done(text)
    is_well = isinstance(instead_of, _Well)
    was = "is not seen there" if is_well else "could not be looked at"
    text = (
        f"{text} The run goes on for {seen.fault}, of the same incident: {instead_of.fault} {was}."
    )
    return Done(text, cause=seen.fault)


def _looked_and_well(ctx: Context, answers: Sequence[_Well], look: NodeInspection) -> Wait:
    """What is seen on another part is not of this incident: its poll gives it a place. Nobody is
    told meanwhile that nothing is wrong."""
    elsewhere = [event for event in look.raised if event.action.at_least(Action.RESET_GPU)]
    if elsewhere:
        what = ", ".join(sorted({f"{event.fault_type} on {event.resource}" for event in elsewhere}))
        why = f"a look at it does not see that, and sees {what}, which is not of this incident"
        ask = (
            f"Look at {ctx.node}: {what} is seen there, and is not what incident #{ctx.incident_id}"
            " is about."
        )
        return _unconfirmed(ctx, f"{ctx.fault_type} is not confirmed on {ctx.node}: {why}", ask)
    why = _listed(answer.how for answer in answers)
    ask = (
        "If nothing is wrong with it, mark the incident a false alarm: Kintsugi then hands the node"
        " back."
    )
    return _unconfirmed(
        ctx, f"{ctx.fault_type} is not confirmed on {ctx.node}: {why}", f"Look at {ctx.node}. {ask}"
    )


def _could_not_look(ctx: Context, unknown: Sequence[_Unknown], well: Sequence[_Well] = ()) -> Wait:
    faults = " and ".join(str(answer.fault) for answer in unknown)
    why = _listed(answer.why for answer in unknown)
    ask = f"See why {ctx.node} cannot be looked at ({why}). Whether {faults} stands is not known."
    said = _listed((*(answer.why for answer in unknown), *(answer.how for answer in well)))
    return _unconfirmed(
        ctx, f"{faults} can neither be confirmed nor ruled out on {ctx.node}: {said}", ask
    )


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _unconfirmed(ctx: Context, says: str, ask: str) -> Wait:
    return Wait(
        f"{says}. It stays drained and is not rebooted.",
        get_backoff(fact_time(ctx, "drained_at"), ctx.now, longest=_LONGEST),
        ask=ask,
        is_told=True,
    )


def _unreachable(ctx: Context, look: NodeInspection) -> Result:
    own = StandingFault(ctx.fault_type, ctx.resource, ctx.now)
    if "NOT_RESPONDING" in ctx.state.flags or ctx.state.base == "DOWN":
        ctx.facts["boot_id_before"] = ctx.known_boot_id
        seen = _Seen(
            own, f"it answers neither Kintsugi ({look.complaint}) nor Slurm ({ctx.state.base})"
        )
        return _confirmed(ctx, seen, instead_of=seen)
    return _could_not_look(
        ctx, [_Unknown(own, f"Kintsugi cannot reach it ({look.complaint}), while Slurm can")]
    )
