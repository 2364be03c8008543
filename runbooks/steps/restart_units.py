"""Restart the dead services of the drained, idle node and mount what is missing there; a reboot
follows only where that does not end the fault.

What is restarted says the node's own detector, looked at now, within a closed table
(`runbooks.node.systemd_units`): the words of the fault that the run is about choose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from runbooks.guards.table import Act
from runbooks.models import AuditEntry
from runbooks.node import detached_command, gpu_holders, looking, systemd_units, witnesses
from runbooks.node.detached_command import DetachedJob, Ended, NotBegun, Running
from runbooks.node.looking import NodeInspection
from runbooks.node.systemd_units import MOUNT_MISSING, RESTARTED_AT, SERVICE_DOWN
from runbooks.step import (
    Base,
    Context,
    Done,
    Parameter,
    Result,
    StepEffect,
    Wait,
    format_iso,
)

_DETECTOR = "host"
_ENDS = frozenset({SERVICE_DOWN, MOUNT_MISSING})
# What a restart that ended the fault leaves nothing to do for.
_SPARED = ("reboot", "wait_for_boot")
# A start that was sent over SSH may still arrive: its transport's limit.
_SETTLES_IN = timedelta(seconds=30)
_LOOK_AGAIN = timedelta(seconds=3)
_LOOK_AGAIN_LATER = timedelta(seconds=15)
# Seen well twice, as the fault itself takes two polls of the detector, one a minute.
HOLDS = timedelta(minutes=1)
# A service that is dead again within a day was not mended by its restart: as with a reboot (our
# choice).
ONCE_IN = timedelta(hours=24)
_OUTPUT = "systemctl"
# Our choice: each of six services may take four minutes, and mostly one is down.
_LONGEST = Parameter.duration(default=timedelta(minutes=10))


class RestartUnits(Base):
    """Never fails the run: whatever it cannot end is left to the reboot that follows."""

    name: ClassVar[str] = "restart_units"
    plan: ClassVar[str] = (
        "restart its dead services and mount what is missing, which spares the reboot where it"
        " ends the fault"
    )
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.RESTART_UNITS
    settles_in: ClassVar[timedelta] = _SETTLES_IN
    parameters: ClassVar[Mapping[str, Parameter]] = {"longest": _LONGEST}

    def find_done(self, ctx: Context) -> Done | None:
        """Nothing is tried where it cannot help, and nothing is left to do where all runs."""
        if ctx.attempted_at is not None:
            return None
        other = _find_other_fault(ctx)
        if other:
            return Done(f"No restart of a service ends {other}.", is_told=False)
        passed = _find_earlier_restart(ctx) or _find_long_wait(ctx)
        if passed:
            return _go_on(ctx, passed)
        inspection = looking.inspect_node(ctx, only=(_DETECTOR,))
        complaint = _get_complaint(inspection)
        if complaint:
            ctx.facts[_get_why(ctx)] = f"{ctx.node} cannot be looked at ({complaint})"
            return None
        ctx.facts.pop(_get_why(ctx), None)
        return _choose_units(ctx, inspection)

    def find_obstacle(self, ctx: Context) -> Wait | None:
        if not ctx.state.is_drained:
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        ctx.facts.setdefault(_get_since(ctx), format_iso(ctx.now))
        why = ctx.facts.get(_get_why(ctx)) or _find_holders(ctx)
        if not why:
            return None
        ctx.facts[_get_why(ctx)] = why
        ask = f"See what holds {ctx.node}, or it is rebooted over it: {why}."
        text = f"{why}: its services are not restarted yet."
        return Wait(text, _LOOK_AGAIN_LATER, ask=ask, is_told=True)

    def carry_on(self, ctx: Context) -> Result | None:
        """How far the restart is that was asked for. None: it was not begun."""
        answer = detached_command.poll_command(ctx.world.shell, ctx.target, _build_job(ctx))
        if isinstance(answer, NotBegun):
            return None
        if isinstance(answer, Ended):
            return _evaluate(ctx, answer)
        how = "it has not ended"
        if not isinstance(answer, Running):
            how = f"{ctx.node} does not answer ({answer.why})"
        return _wait_for_end(ctx, f"{_format_units(ctx)} on {ctx.node} is being started: {how}")

    def run(self, ctx: Context) -> Result:
        ctx.facts[RESTARTED_AT] = format_iso(ctx.now)
        detached_command.start(ctx.world.shell, ctx.target, _build_job(ctx))
        text = f"{_format_units(ctx)} on {ctx.node} is being started."
        return Wait(text, _LOOK_AGAIN, is_told=True)


def _get_since(ctx: Context) -> str:
    """The fact that holds since when the restart is in the way of something."""
    return f"{ctx.key}:since"


def _get_why(ctx: Context) -> str:
    """The fact that says what is in the way."""
    return f"{ctx.key}:why"


def _get_well_since(ctx: Context) -> str:
    """The fact that holds since when everything was seen to run."""
    return f"{ctx.key}:well_since"


def _get_units_fact(ctx: Context) -> str:
    return f"{ctx.key}:units"


def _find_other_fault(ctx: Context) -> str:
    """What a restart cannot end, of what the run is for: its own fault, and all of its incident
    that leave the node unfit."""
    own = [] if ctx.fault_type in _ENDS else [f"{ctx.fault_type} on {ctx.resource}"]
    others = (fault for fault in ctx.members if fault.fault_type not in _ENDS)
    unfit = (fault for fault in others if witnesses.leaves_unusable(fault.fault_type))
    return " and ".join(own or map(str, unfit))


def _find_earlier_restart(ctx: Context) -> str:
    """Whether another run has tried it on this node within a day."""
    begun = AuditEntry.objects.filter(
        node=ctx.node,
        at__gt=ctx.now - ONCE_IN,
        act=RestartUnits.name,
        phase=AuditEntry.Phase.BEGUN,
    )
    last = begun.exclude(run=ctx.run_id).first()
    if last is None:
        return ""
    return f"run {last.run} restarted services there at {last.at:%Y-%m-%d %H:%M %Z}"


def _find_long_wait(ctx: Context) -> str:
    since = ctx.facts.get(_get_since(ctx))
    if since is None or ctx.now - datetime.fromisoformat(since) <= ctx.params["longest"]:
        return ""
    return str(ctx.facts.get(_get_why(ctx), "it took too long"))


def _choose_units(ctx: Context, inspection: NodeInspection) -> Done | None:
    """What is to be started, kept as a fact; the end of the step where there is nothing that may
    be."""
    missing = _list_missing_services(inspection)
    if not missing:
        text = f"Every service and mount of {ctx.node} is there again, without a restart."
        return Done(text, skips=_SPARED)
    expected = ctx.target.expected
    units = {
        name: systemd_units.find_unit(fault_type, name, expected) for fault_type, name in missing
    }
    unknown = [name for name, unit in units.items() if not unit]
    if unknown:
        text = f"{', '.join(unknown)} is neither a service that Kintsugi restarts nor a mount"
        return _go_on(ctx, f"{text} of the inventory")
    ctx.facts[_get_units_fact(ctx)] = systemd_units.sort_units(list(units.values()))
    return None


def _list_missing_services(inspection: NodeInspection) -> Sequence[tuple[str, str]]:
    """By fault type, the service or mount point that the detector misses."""
    seen = (event for event in inspection.raised if event.fault_type in _ENDS)
    return [(event.fault_type, event.qualifier) for event in seen]


def _get_complaint(inspection: NodeInspection) -> str:
    """Why it is not known what runs there; empty where it is."""
    return inspection.complaint or inspection.silent.get(_DETECTOR, "")


def _find_holders(ctx: Context) -> str:
    """What uses the node's GPUs, or that it cannot be seen; empty where nothing does."""
    if not ctx.target.expected.gpus:
        return ""
    found = gpu_holders.list_holders(ctx.world.shell, ctx.target)
    if found is None:
        return f"nvidia-smi does not tell what uses the GPUs of {ctx.node}"
    if not found:
        return ""
    return f"{', '.join(map(str, found))} on {ctx.node}, which is drained and empty of jobs"


def _build_job(ctx: Context) -> DetachedJob:
    return systemd_units.build_job(ctx.key, ctx.facts.get(_get_units_fact(ctx), ()))


def _format_units(ctx: Context) -> str:
    return ", ".join(ctx.facts.get(_get_units_fact(ctx), ()))


def _evaluate(ctx: Context, ended: Ended) -> Result:
    """The detector has the last word, twice."""
    evidence = {_OUTPUT: ended.said or "no output"}
    if ended.status != 0:
        return _go_on(ctx, f"the restart {ended.how}: {ended.last_words}", evidence=evidence)
    inspection = looking.inspect_node(ctx, only=(_DETECTOR,))
    complaint = _get_complaint(inspection)
    if complaint:
        return _wait_for_end(ctx, f"{ctx.node} cannot be looked at ({complaint})")
    missing = [name for _, name in _list_missing_services(inspection)]
    if missing:
        return _go_on(ctx, f"{', '.join(missing)} is not there after it", evidence=evidence)
    since = datetime.fromisoformat(ctx.facts.setdefault(_get_well_since(ctx), format_iso(ctx.now)))
    if ctx.now - since < HOLDS:
        text = f"{_format_units(ctx)} on {ctx.node} runs. It is looked at once more."
        return Wait(text, since + HOLDS - ctx.now)
    text = f"{_format_units(ctx)} on {ctx.node} was started, and its detector sees it run."
    return Done(f"{text} No reboot is needed.", evidence=evidence, skips=_SPARED)


def _wait_for_end(ctx: Context, text: str) -> Wait | Done:
    """For as long as it may take since it was asked for."""
    asked_at = ctx.attempted_at or ctx.now
    if ctx.now - asked_at > ctx.params["longest"]:
        return _go_on(ctx, text)
    return Wait(f"{text}.", _LOOK_AGAIN)


def _go_on(ctx: Context, why: str, *, evidence: Mapping[str, str] | None = None) -> Done:
    """The fault is left to what the runbook does next."""
    text = f"A restart of services does not end {ctx.fault_type} on {ctx.node}: {why}."
    return Done(f"{text} Kintsugi goes on to the next step.", evidence=evidence or {})
