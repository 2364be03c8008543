"""Verify the repaired node before it takes jobs again: its detectors, its active faults, the site's
own command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.catalog import catalog
from detectors.faults import Action, Recovery
from detectors.node.gpu import MIG_DEVICES, SETTINGS
from incidents.polling import poll_pauses
from runbooks.node import detached_command, looking, mig_devices
from runbooks.node.detached_command import DetachedJob, Ended
from runbooks.node.diagnostics import PROVED_AT
from runbooks.node.systemd_units import RESTARTED_AT
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    NotCured,
    PassedOn,
    Result,
    Wait,
    format_iso,
    get_backoff,
    get_fact_time,
)
from runbooks.steps.pause_pollers import get_holder

# Drivers load and links train after a boot or a reset: trouble counts when it outlasts a grace
# period, since one site condemned 214 of 288 nodes without one (docs/runbooks.md). Its length is
# our choice, not a measurement.
GRACE = timedelta(minutes=2)
_SETTING = "gpu.setting"
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
    """`is_of_part`: it is what the run was to cure, or as grave and on the same part. `fault`: its
    type, resource and qualifier; None: it is none that could be told of."""

    text: str
    is_of_part: bool
    fault: tuple[str, str, str] | None = None


class Verify(Base):
    """Without a verify command of the site a person resumes the node, which the run notices."""

    name: ClassVar[str] = "verify"
    plan: ClassVar[str] = (
        "verify that all GPUs are present, no fault stands, and the site's verify command passes"
    )
    touches_node: ClassVar[bool] = True

    def run(self, ctx: Context) -> Result:
        poll_pauses.end(get_holder(ctx.run_id))  # what the polls see from here on counts
        since = _get_touched_at(ctx)
        if _get_began_fact(ctx) in ctx.facts:
            return _verify_by_command(ctx, since)
        troubles = list(_find_troubles(ctx, since))
        if troubles and ctx.now < since + GRACE:
            return Wait(f"{ctx.node} is not well yet: {_format_troubles(troubles)}", _LOOK_AGAIN)
        if troubles:
            return _report_troubles(ctx, troubles)
        if not ctx.world.policy.verify_command:
            return _ask_to_resume(ctx, since)
        return _verify_by_command(ctx, since)


def _ask_to_resume(ctx: Context, since: datetime) -> Wait:
    ctx.facts["asked_to_resume"] = True
    text = (
        f"{ctx.node} is up and its detectors find no fault. No verify command is configured"
        f" (KINTSUGI_VERIFY_COMMAND), so a person decides.{_format_wrong_settings(ctx)}"
    )
    again_in = get_backoff(since, ctx.now, longest=timedelta(minutes=1))
    ask = f"Test {ctx.node} and resume it: scontrol update NodeName={ctx.node} State=RESUME"
    return Wait(text, again_in, ask=ask, is_told=True)


def _get_touched_at(ctx: Context) -> datetime:
    """When the node was last booted or reset, its services were restarted, or this step began: what
    was seen before speaks of another state."""
    began = ctx.facts.setdefault(f"{ctx.key}:since", format_iso(ctx.now))
    times = [get_fact_time(ctx, fact) for fact in ("booted_at", "reset_at", RESTARTED_AT)]
    touched = [time for time in times if time is not None]
    return max(touched, default=datetime.fromisoformat(began))


def _get_began_fact(ctx: Context) -> str:
    """The fact that holds when the command was started."""
    return f"{ctx.key}:began_at"


def _format_wrong_settings(ctx: Context) -> str:
    """What of the GPUs is set otherwise than the inventory declares, as a sentence; empty where
    nothing is. A boot or a reset loses settings, and a wrong one keeps no node out."""
    declared = {*SETTINGS, MIG_DEVICES} & ctx.target.expected.settings.keys()
    if not declared and not ctx.facts.get(mig_devices.BEFORE):
        return ""
    inspection = looking.inspect_node(ctx, only=("gpu",))
    wrong = [
        f"{event.resource}: {event.attributes.get('text', event.excerpt)}"
        for event in inspection.raised
        if event.fault_type == _SETTING
    ]
    lost = [] if MIG_DEVICES in declared else mig_devices.list_lost(ctx, inspection)
    settings = _format_lost("a setting of its GPUs was lost", wrong, "set it anew")
    devices = _format_lost("MIG devices of its GPUs are others", lost, "create them anew")
    return f"{settings}{devices}"


def _format_lost(what: str, found: Sequence[str], todo: str) -> str:
    if not found:
        return ""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f" But {what} ({found[0]}{more}): {todo}."


def _find_troubles(ctx: Context, since: datetime) -> Iterator[_Trouble]:
    inspection = looking.inspect_node(ctx)
    if not inspection.is_reachable:
        yield _Trouble(f"Kintsugi cannot reach it: {inspection.complaint}", is_of_part=False)
        return
    grave = inspection.get_grave_events(looking.get_confirming_detectors(ctx.fault_type))
    for event in grave:
        text = f"{event.fault_type} on {event.resource}: {event.excerpt}"
        # A detector that says nothing is no proof that the repair failed.
        is_of_part = event.fault_type != looking.SILENT and looking.is_of_part(event.resource, ctx)
        yield _Trouble(text, is_of_part, (event.fault_type, event.resource, event.qualifier))
    if not grave:
        yield from _find_faults_since(ctx, since, f"the {_get_repair(ctx)}")


def _find_faults_since(ctx: Context, since: datetime, what: str) -> Iterator[_Trouble]:
    """Faults that call for a repair and were seen after that, by polls or in lines."""
    rows = catalog.load()
    for fault in ctx.active_faults:
        row = rows.get(fault.fault_type)
        calls_for_repair = row is not None and row.action.at_least(Action.RESET_GPU)
        if fault.last_seen_at > since and calls_for_repair:
            is_of_part = looking.is_of_part(fault.resource, ctx)
            key = (fault.fault_type, fault.resource, fault.qualifier)
            yield _Trouble(f"{fault} since {what}", is_of_part, key)


def find_new_trouble(ctx: Context) -> Failed | NotCured | PassedOn | None:
    """What was seen of the node since it passed its last test; None where that is nothing."""
    proved_at = get_fact_time(ctx, PROVED_AT)
    if proved_at is None:
        return None
    troubles = list(_find_faults_since(ctx, proved_at, "it was verified"))
    return _report_troubles(ctx, troubles) if troubles else None


def _format_troubles(troubles: list[_Trouble]) -> str:
    return "; ".join(trouble.text for trouble in troubles)


def _verify_by_command(ctx: Context, since: datetime) -> Result:
    """While it runs the detectors keep away: a stress test makes a healthy GPU slow to answer."""
    command = ctx.world.policy.verify_command
    began_at = datetime.fromisoformat(
        ctx.facts.setdefault(_get_began_fact(ctx), format_iso(ctx.now))
    )
    # Once per boot: a node that went down in the middle is verified anew.
    job = DetachedJob(f"{ctx.key}-{ctx.facts.get('boot_id_after') or 'same-boot'}", command)
    answer = detached_command.start(ctx.world.shell, ctx.target, job)
    if isinstance(answer, Ended):
        return _evaluate_command(ctx, answer, since)
    quoted = f"`{' '.join(command)}`"
    waited = ctx.now - began_at
    if waited > ctx.world.policy.verify_timeout:
        minutes = round(waited.total_seconds() / 60)
        return _build_failed(ctx, f"{quoted} has not ended after {minutes} min")
    again_in = _POLL_COMMAND if waited < timedelta(minutes=1) else _POLL_COMMAND_LATER
    return Wait(f"{quoted} runs on {ctx.node}.", again_in)


def _evaluate_command(ctx: Context, ended: Ended, since: datetime) -> Result:
    """Passed where it ended well and the detectors still find nothing."""
    command = " ".join(ctx.world.policy.verify_command)
    if ended.status != 0:
        return _build_failed(ctx, f"`{command}` {ended.how}: {ended.last_words}")
    troubles = [
        _Trouble(f"after `{command}`: {trouble.text}", trouble.is_of_part, trouble.fault)
        for trouble in _find_troubles(ctx, since)
    ]
    if troubles:
        return _report_troubles(ctx, troubles)
    ctx.facts[PROVED_AT] = format_iso(ctx.now)
    text = f"{ctx.node} is verified: its detectors find no fault and `{command}` passed."
    return Done(f"{text}{_format_wrong_settings(ctx)}", evidence={command: ended.said})


def _report_troubles(ctx: Context, troubles: list[_Trouble]) -> Failed | NotCured | PassedOn:
    """The run's own fault calls for the next rung, and those of an incident whose run comes next
    for that run; any other trouble for a person."""
    found = _format_troubles(troubles)
    following = ctx.find_following()
    others = {fault: incident for incident in following for fault in incident.faults}
    rest = [trouble for trouble in troubles if trouble.fault not in others]
    if not rest:
        number = min(others[trouble.fault].number for trouble in troubles if trouble.fault)
        return _pass_on(ctx, found, number)
    if not any(trouble.is_of_part for trouble in rest):
        return _build_failed(ctx, found)
    repair, node = _get_repair(ctx), ctx.node
    fault = f"{ctx.fault_type} on {ctx.resource}"
    text = f"The {repair} has not cured {fault}: {found}. {node} stays drained."
    ask = (
        f"Examine {node}: a {repair} did not cure {ctx.fault_type}. Power-cycle it or call the"
        " vendor."
    )
    return NotCured(text, ask=ask, evidence={"detectors": found})


def _pass_on(ctx: Context, found: str, incident: int) -> PassedOn:
    fault = f"{ctx.fault_type} on {ctx.resource}"
    text = f"{fault} is not there after the {_get_repair(ctx)}. {ctx.node} stays drained for"
    return PassedOn(f"{text} incident #{incident}, whose run comes next: {found}.", incident)


def _build_failed(ctx: Context, why: str) -> Failed:
    repair, node = _get_repair(ctx), ctx.node
    return Failed(
        f"{node} did not pass after its {repair}: {why}. It stays drained.",
        ask=(
            f"Examine {node}: it is not well after its {repair}. Power-cycle it or call the vendor."
        ),
    )


def _get_repair(ctx: Context) -> str:
    tried = ctx.facts.get("recovery")
    return _REPAIRS.get(Recovery(tried), "repair") if tried else "repair"
