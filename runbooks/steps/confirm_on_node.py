"""Confirm the fault on the node itself. A log line that came over the network never reboots
anything alone.

What is confirmed is the run's own fault, or any other that stands on the node in the same incident
and calls for a repair: the run goes on for that one. Of each the answer is one of three, and people
read which it was and of what:

1. Seen. A witness sees it (`runbooks.node.witnesses`). A node that answers neither us nor Slurm is
  down: the run goes on for that, unless more than this node is silent.
2. Looked and well. Whatever could have seen it has answered, and does not.
3. Could not look. The node, a detector or the kernel log gave no answer: nothing is known, and that
  is never well.

Unless one is seen a person is asked, and it is looked at again: the node stays drained meanwhile.
Where detectors that see such faults have looked twice, some minutes apart, and the node's own
kernel log does not hold them either, they are refuted: then the node is given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.faults import Action
from runbooks.node import looking, mig_devices, witnesses
from runbooks.node.looking import KernelLog, NodeInspection
from runbooks.node.witnesses import (
    CONFIRMED_AT,
    REFUTED_AFTER,
    REFUTED_SINCE,
    VOUCHED,
    Denied,
    Testimony,
    Unseen,
    Witnessed,
)
from runbooks.step import (
    ActiveFault,
    Base,
    Context,
    Done,
    EndedBoot,
    Refuted,
    Result,
    Wait,
    format_iso,
    get_backoff,
    get_fact_time,
)

NOT_REBOOTED = "It stays drained and is not rebooted."
_LONGEST = timedelta(minutes=5)
_SOON = timedelta(seconds=1)
_DOWN = "slurm.node_down"


class ConfirmOnNode(Base):
    """Stores the boot id too: after this step the node may lose it."""

    name: ClassVar[str] = "confirm_on_node"
    plan: ClassVar[str] = "confirm the fault on {node} itself"

    def run(self, ctx: Context) -> Result | Refuted:
        faults = witnesses.list_candidates(ctx)
        detectors: set[str] = set()
        for fault in faults:
            detectors.update(looking.get_confirming_detectors(fault.fault_type))
        inspection = looking.inspect_node(ctx, only=sorted(detectors))
        if not inspection.is_reachable:
            return _report_unreachable(ctx, inspection)
        mig_devices.note_before(ctx, inspection)
        boot = looking.read_boot(ctx)
        ctx.facts["boot_id_before"] = boot.boot_id if boot is not None else ctx.known_boot_id
        log = KernelLog((), "")
        if not all(witnesses.list_detectors(fault.fault_type) for fault in faults):
            log = looking.read_kernel_log(ctx)
        answers = [witnesses.examine(ctx, fault, inspection, log) for fault in faults]
        confirmed = next((answer for answer in answers if isinstance(answer, Witnessed)), None)
        if confirmed is not None:
            return _confirm(ctx, confirmed, instead_of=answers[0])
        unknown = [answer for answer in answers if isinstance(answer, Unseen)]
        well = [answer for answer in answers if isinstance(answer, Denied)]
        if unknown:
            return _report_unknown(ctx, unknown, well)
        may_be_wrong = _may_be_refuted(ctx, faults, boot)
        return _report_well(ctx, well, inspection, may_be_wrong=may_be_wrong)


def _confirm(ctx: Context, confirmed: Witnessed, *, instead_of: Testimony) -> Done:
    ctx.facts[CONFIRMED_AT] = format_iso(ctx.now)
    ctx.facts.pop(REFUTED_SINCE, None)
    text = f"Confirmed on {ctx.node}: {confirmed.how}."
    if confirmed.fault == instead_of.fault:
        return Done(text)
    is_well = isinstance(instead_of, Denied)
    was = "is not seen there" if is_well else "could not be looked at"
    goes_on = f"The run goes on for {confirmed.fault}, of the same incident"
    text = f"{text} {goes_on}: {instead_of.fault} {was}."
    return Done(text, cause=confirmed.fault)


def _may_be_refuted(ctx: Context, faults: Sequence[ActiveFault], boot: EndedBoot | None) -> bool:
    """Whether a second denial ends it: by detectors that see each of these faults, in the boot in
    which it was told, of what nobody has seen, and what the node's own kernel log does not hold."""
    if CONFIRMED_AT in ctx.facts or VOUCHED in ctx.facts or boot is None:
        return False
    if not all(witnesses.list_detectors(fault.fault_type) for fault in faults):
        return False
    if any(boot.booted_at > fault.last_seen_at for fault in faults):
        return False
    log = looking.read_kernel_log(ctx)
    return all(isinstance(witnesses.examine_log(ctx, fault, log), Denied) for fault in faults)


def _report_well(
    ctx: Context, answers: Sequence[Denied], inspection: NodeInspection, *, may_be_wrong: bool
) -> Wait | Refuted:
    """What is seen on another part is not of this incident: its poll gives it a place. Nobody is
    told meanwhile that nothing is wrong."""
    elsewhere = [event for event in inspection.raised if event.action.at_least(Action.RESET_GPU)]
    if elsewhere:
        ctx.facts.pop(REFUTED_SINCE, None)
        what = ", ".join(sorted({f"{event.fault_type} on {event.resource}" for event in elsewhere}))
        why = f"a look at it does not see that, and sees {what}, which is not of this incident"
        ask = (
            f"Look at {ctx.node}: {what} is seen there, and is not what incident #{ctx.incident_id}"
            " is about."
        )
        return _wait_unconfirmed(
            ctx, f"{ctx.fault_type} is not confirmed on {ctx.node}: {why}", ask
        )
    why = _join_distinct(answer.how for answer in answers)
    if not may_be_wrong:
        ctx.facts.pop(REFUTED_SINCE, None)
    since = get_fact_time(ctx, REFUTED_SINCE)
    if may_be_wrong and since is not None and ctx.now - since >= REFUTED_AFTER:
        faults = [answer.fault for answer in answers]
        names = " and ".join(map(str, faults))
        return Refuted(f"{names} was looked for twice and is not there: {why}", faults)
    ask = (
        "If nothing is wrong with it, mark the incident a false alarm: Kintsugi then hands the node"
        " back."
    )
    says = f"{ctx.fault_type} is not confirmed on {ctx.node}: {why}"
    waiting = _wait_unconfirmed(ctx, says, f"Look at {ctx.node}. {ask}")
    if not may_be_wrong:
        return waiting
    began_at = datetime.fromisoformat(ctx.facts.setdefault(REFUTED_SINCE, format_iso(ctx.now)))
    due_in = max(began_at + REFUTED_AFTER - ctx.now, _SOON)
    return replace(waiting, again_in=min(waiting.again_in, due_in))


def _report_unknown(ctx: Context, unknown: Sequence[Unseen], well: Sequence[Denied] = ()) -> Wait:
    ctx.facts.pop(REFUTED_SINCE, None)
    faults = " and ".join(str(answer.fault) for answer in unknown)
    why = _join_distinct(answer.why for answer in unknown)
    ask = f"See why {ctx.node} cannot be looked at ({why}). Whether {faults} stands is not known."
    reasons = _join_distinct(
        (*(answer.why for answer in unknown), *(answer.how for answer in well))
    )
    return _wait_unconfirmed(
        ctx, f"{faults} can neither be confirmed nor ruled out on {ctx.node}: {reasons}", ask
    )


def _join_distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _wait_unconfirmed(ctx: Context, says: str, ask: str) -> Wait:
    return Wait(
        f"{says}. {NOT_REBOOTED}",
        get_backoff(get_fact_time(ctx, "drained_at"), ctx.now, longest=_LONGEST),
        ask=ask,
        is_told=True,
    )


def _report_unreachable(ctx: Context, inspection: NodeInspection) -> Result:
    """A node that answers nobody shows that it is down, and nothing of what a text has told."""
    own = ActiveFault(ctx.fault_type, ctx.resource, ctx.now)
    complaint = inspection.complaint
    if "NOT_RESPONDING" not in ctx.state.flags and ctx.state.base != "DOWN":
        why = f"Kintsugi cannot reach it ({complaint}), while Slurm can"
        return _report_unknown(ctx, [Unseen(own, why)])
    wider = ctx.explain_silence()
    if wider:
        why = f"it answers nobody ({complaint}), and not it alone: {wider}"
        return _report_unknown(ctx, [Unseen(own, why)])
    ctx.facts["boot_id_before"] = ctx.known_boot_id
    how = f"it answers neither Kintsugi ({complaint}) nor Slurm ({ctx.state.base})"
    seen = own if witnesses.is_witnessed(ctx) else ActiveFault(_DOWN, f"node/{ctx.node}", ctx.now)
    severity = witnesses.get_severity(seen.fault_type)
    confirmed = Witnessed(seen, how, seen.action, severity)
    return _confirm(ctx, confirmed, instead_of=Unseen(own, complaint))
