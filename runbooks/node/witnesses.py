"""Who has seen a fault on its node that no user of that node can speak for. Only looks.

A log line that came over the network says what anybody wrote. A witness is a detector's own
reading, a record of the node's kernel that we read ourselves over SSH and that begins with its
driver's own words, Slurm, the management controller, or a person. Of each fault the answer is one
of three, and people read which it was and of what:

1. Witnessed. The detectors that the fault type names see it, on the same resource or on the whole
   node; for a type that no detector can see the node's own kernel log, this boot's, holds it.
2. Denied. Whatever could have seen it has answered, and does not.
3. Unseen. The node, a detector or the kernel log gave no answer: nothing is known, and that is
   never well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from detectors.catalog import catalog
from detectors.faults import Action, FaultEvent, Fitness, Severity
from runbooks.node import looking
from runbooks.node.looking import KernelLog, NodeInspection
from runbooks.step import ActiveFault, Context

WITNESS = "witness"
"""The fact of a run: who has seen its fault, as the end of a sentence."""
WITNESSED_ACTION = "witnessed_action"
"""The fact of a run: the most that a fault calls for which a witness has seen."""
WITNESSED_SEVERITY = "witnessed_severity"
"""The fact of a run: how grave the fault is that a witness has seen."""
CONFIRMED_AT = "confirmed_at"
VOUCHED = "vouched"
"""The fact of a run: its fault was shown by the node itself before the drain, or a person vouches
for it."""
UNRECORDED = "unrecorded_witness"
"""The fact of a run: the fault, as [type, resource], that its node has shown and that does not
stand as seen in the inventory of faults yet: the act comes first."""
REFUTED_SINCE = "refuted_since"
"""The fact of a run: when all that can see its fault denied it first, and it was seen by nobody
since."""
REFUTED_AFTER = timedelta(minutes=5)
"""How long after that a second denial counts: polls, one a minute, have looked as well by then, and
a kernel's record has come to the journal. Our choice."""


@dataclass(frozen=True)
class Witnessed:
    """`how` ends the sentence "Confirmed on gn042: ...". `action` is what the thing that was seen
    calls for, and `severity` how grave it is: of a lesser fault on the same part not more than that
    one."""

    fault: ActiveFault
    how: str
    action: Action
    severity: Severity


@dataclass(frozen=True)
class Denied:
    """`how` says who has looked, and follows "not confirmed on gn042:"."""

    fault: ActiveFault
    how: str


@dataclass(frozen=True)
class Unseen:
    """`why` says who gave no answer."""

    fault: ActiveFault
    why: str


Testimony = Witnessed | Denied | Unseen


def is_witnessed(ctx: Context) -> bool:
    """Whether somebody who can be believed has seen the run's fault since it began."""
    return WITNESS in ctx.facts or CONFIRMED_AT in ctx.facts


def is_vendor_witnessed(ctx: Context) -> bool:
    """Whether a part may be called broken: a fault that by itself calls for the vendor has been
    seen itself. A lesser one that repairs have not cured was seen when they were tried."""
    row = catalog.load().get(ctx.fault_type)
    if row is None or row.action is not Action.VENDOR:
        return is_witnessed(ctx)
    return ctx.facts.get(WITNESSED_ACTION) == Action.VENDOR.value


def note_witness(ctx: Context, how: str, action: Action, severity: Severity) -> None:
    ctx.facts[WITNESS] = how
    ctx.facts[WITNESSED_ACTION] = action.value
    ctx.facts[WITNESSED_SEVERITY] = severity.value


def get_severity(fault_type: str) -> Severity:
    """By the catalogue: that of a fault is that of its type."""
    row = catalog.load().get(fault_type)
    return row.severity if row is not None else Severity.INDETERMINATE


def list_candidates(ctx: Context) -> Sequence[ActiveFault]:
    """The run's own fault, and all of the incident's that stand on the node and call for a
    repair."""
    row = catalog.load().get(ctx.fault_type)
    calls_for = row.action if row is not None else Action.NONE
    own = ActiveFault(ctx.fault_type, ctx.resource, ctx.now, calls_for)
    found: list[ActiveFault] = [own]
    for fault in ctx.members:
        if (fault.fault_type, fault.resource) == (own.fault_type, own.resource):
            found[0] = fault
        elif fault.action.at_least(Action.RESET_GPU):
            found.append(fault)
    return found


def list_detectors(fault_type: str) -> tuple[str, ...]:
    """Those that see such a fault on its node; none: its kernel alone does."""
    row = catalog.load().get(fault_type)
    return tuple(row.confirmed_by) if row is not None else ()


def list_detectors_of(faults: Iterable[ActiveFault]) -> list[str]:
    names: set[str] = set()
    for fault in faults:
        names.update(list_detectors(fault.fault_type))
    return sorted(names)


def examine(
    ctx: Context, fault: ActiveFault, inspection: NodeInspection, log: KernelLog
) -> Testimony:
    """What those say of one fault who are to see it."""
    detectors = list_detectors(fault.fault_type)
    if not detectors:
        return examine_log(ctx, fault, log)
    confirming = (event for event in inspection.raised if _is_confirming(event, fault, ctx))
    event = max(confirming, key=lambda event: event.action.rank, default=None)
    if event is not None:
        action = min(fault.action, event.action, key=lambda action: action.rank)
        severities = (get_severity(fault.fault_type), event.severity)
        severity = min(severities, key=lambda severity: severity.rank)
        how = f"{event.fault_type} on {event.resource} ({event.excerpt})"
        return Witnessed(fault, how, action, severity)
    silent = [
        f"its {name} check gives no answer ({inspection.silent[name]})"
        for name in detectors
        if name in inspection.silent
    ]
    if silent:
        return Unseen(fault, " and ".join(silent))
    return Denied(
        fault, f"its {' and '.join(detectors)} check finds nothing wrong with {fault.resource}"
    )


def examine_log(ctx: Context, fault: ActiveFault, log: KernelLog) -> Testimony:
    """What the node's own kernel says of one fault."""
    if log.complaint:
        return Unseen(fault, f"its own kernel log cannot be read ({log.complaint})")
    fact = log.get_last(fault.fault_type, fault.resource, ctx.node)
    if fact is not None:
        how = f'its own kernel log says "{fact.excerpt}"'
        return Witnessed(fault, how, fault.action, get_severity(fault.fault_type))
    if not log.is_whole:
        return Unseen(fault, "its own kernel log holds more lines than are read")
    return Denied(fault, f"its own kernel log does not hold it ({fault})")


def _is_confirming(event: FaultEvent, fault: ActiveFault, ctx: Context) -> bool:
    """The fault itself, or one of the same part that calls for a repair; one of the whole node
    counts for each of its parts."""
    is_there = looking.is_on(event.resource, part=fault.resource, node=ctx.node)
    is_itself = event.fault_type == fault.fault_type and event.resource == fault.resource
    return is_itself or (is_there and event.action.at_least(Action.RESET_GPU))


def find_witness(ctx: Context, faults: Sequence[ActiveFault]) -> Testimony:
    """One answer for all of these faults on the node, before anything is done to it.

    The kernel log is asked first, which takes a fraction of a second; of a type that detectors
    see, either is a witness.
    """
    log = looking.read_kernel_log(ctx)
    if not log.is_reached:
        return Unseen(faults[0], f"Kintsugi cannot reach it ({log.complaint})")
    by_log = [examine_log(ctx, fault, log) for fault in faults]
    seen = _find_strongest(by_log)
    names = list_detectors_of(faults)
    if seen is not None or not names:
        return seen or _excuse_boot(ctx, _combine(by_log))
    inspection = looking.inspect_node(ctx, only=names)
    if not inspection.is_reachable:
        return Unseen(faults[0], f"Kintsugi cannot reach it ({inspection.complaint})")
    return _combine([examine(ctx, fault, inspection, log) for fault in faults])


def _excuse_boot(ctx: Context, answer: Testimony) -> Testimony:
    """What the boot before has logged, such as a panic, this boot's log cannot hold."""
    if not isinstance(answer, Denied):
        return answer
    boot = looking.read_boot(ctx)
    if boot is not None and boot.booted_at <= answer.fault.last_seen_at:
        return answer
    return Unseen(answer.fault, f"{ctx.node} has booted since, and its log begins with that")


def _combine(answers: Sequence[Testimony]) -> Testimony:
    """One who has seen it suffices; well it is only where nobody was kept from looking."""
    unseen = (answer for answer in answers if isinstance(answer, Unseen))
    return _find_strongest(answers) or next(unseen, answers[0])


def _find_strongest(answers: Sequence[Testimony]) -> Witnessed | None:
    """Of those that were seen the one that calls for most."""
    seen = (answer for answer in answers if isinstance(answer, Witnessed))
    return max(seen, key=lambda answer: answer.action.rank, default=None)


def leaves_unusable(fault_type: str) -> bool:
    """Whether the catalogue calls a node unfit for jobs while such a fault is on it."""
    row = catalog.load().get(fault_type)
    return row is not None and row.fitness is Fitness.UNFIT


def find_unusable_fault(ctx: Context) -> str:
    """What is seen on the node right now and leaves it of no use to any job, as a sentence; empty
    where nothing is, or the node cannot be looked at. What a text or a poll of before has told does
    not suffice."""
    faults = [fault for fault in list_candidates(ctx) if leaves_unusable(fault.fault_type)]
    if not faults:
        return ""
    inspection, log = NodeInspection((), ""), KernelLog((), "")
    names = list_detectors_of(faults)
    if names:
        inspection = looking.inspect_node(ctx, only=names)
    if not inspection.is_reachable:
        return ""
    if not all(list_detectors(fault.fault_type) for fault in faults):
        log = looking.read_kernel_log(ctx)
    answers = (examine(ctx, fault, inspection, log) for fault in faults)
    seen = (answer for answer in answers if isinstance(answer, Witnessed))
    whole = (answer for answer in seen if answer.action.at_least(answer.fault.action))
    found = next(whole, None)
    return f"{found.fault} is seen there ({found.how})" if found is not None else ""
