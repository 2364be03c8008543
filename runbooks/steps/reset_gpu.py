"""Reset one GPU, or all of the node with their NVSwitches, by nvidia-smi on the node itself, once.

The reset runs apart from the connection, under this step's key: what it stopped (persistence mode,
DCGM, nvidia-persistenced) it puts back itself, also when it is killed. Whoever looks later reads
how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.faults import FaultEvent, Recovery
from runbooks.guards.table import Act
from runbooks.node import detached_command, gpu_holders, gpu_reset, looking
from runbooks.node.detached_command import DetachedJob, Ended, NotBegun, Running
from runbooks.node.gpu_reset import Which
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    NotCured,
    Parameter,
    Reset,
    Result,
    StepEffect,
    Wait,
    format_iso,
    get_fact_time,
)

# A start that was sent over SSH may still arrive: its transport's limit.
_SETTLES_IN = timedelta(seconds=30)
_LOOK_AGAIN = timedelta(seconds=3)
# A reset asks the GPU itself: one that is off the bus or hangs cannot answer (nvidia-smi's return
# code 15, or none).
_CANNOT_ANSWER = frozenset(
    {"gpu.lost", "gpu.count_mismatch", "gpu.unresponsive", "gpu.driver.unavailable"}
)
# What its output is called among the evidence.
_COMMAND = "nvidia-smi --gpu-reset"


# Units of the site that hold GPUs too, such as an exporter of its own.
_UNITS = Parameter.names()
# Our choice: services stop and start within a minute, and the script tries three times two minutes.
_LONGEST = Parameter.duration(default=timedelta(minutes=10))


class ResetGpu(Base):
    name: ClassVar[str] = "reset_gpu"
    plan: ClassVar[str] = "reset the GPU with nvidia-smi"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.RESET_GPU
    settles_in: ClassVar[timedelta] = _SETTLES_IN
    recovery: ClassVar[Recovery | None] = Recovery.GPU_RESET
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "which": Parameter.choice(Which, default=Which.PART),
        "units": _UNITS,
        "longest": _LONGEST,
    }

    def find_done(self, ctx: Context) -> Done | None:
        boot = looking.read_boot(ctx) if ctx.facts.get("boot_id_before") else None
        if boot is not None and boot.boot_id != ctx.facts["boot_id_before"]:
            ctx.facts.update(booted_at=format_iso(boot.booted_at), boot_id_after=boot.boot_id)
            text = f"{ctx.node} has booted since it was drained, which resets its GPUs too."
            return Done(text, boot=boot)
        if ctx.attempted_at is None:
            return None
        answer = detached_command.poll_command(ctx.world.shell, ctx.target, _build_job(ctx))
        if isinstance(answer, Ended) and answer.status == 0:
            return _build_done(ctx, answer)
        return None

    def find_obstacle(self, ctx: Context) -> Wait | Failed | NotCured | None:
        if not _is_for_all(ctx) and _get_pci_address(ctx) is None:
            why = f"{ctx.resource} names no GPU, so none can be reset by itself"
            return _build_not_cured(ctx, why, "")
        if ctx.attempted_at is not None:
            return _wait_for_end(ctx, ctx.attempted_at)
        if not ctx.state.is_drained:
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        return _find_obstacle(ctx)

    def run(self, ctx: Context) -> Result:
        answer = detached_command.start(ctx.world.shell, ctx.target, _build_job(ctx))
        if not isinstance(answer, Ended):
            text = f"{_format_gpus(ctx)} on {ctx.node} is being reset."
            return Wait(text, _LOOK_AGAIN, is_told=True)
        if answer.status != 0:
            return _build_failed_reset(ctx, answer)
        return _build_done(ctx, answer)


def _is_for_all(ctx: Context) -> bool:
    return ctx.params["which"] is Which.ALL


def _build_job(ctx: Context) -> DetachedJob:
    gpus = [_get_pci_address(ctx) or ""]
    if _is_for_all(ctx):
        gpus = [address for _, address in ctx.target.expected.gpus]
    return gpu_reset.build_job(ctx.key, ctx.params["which"], gpus, more_units=ctx.params["units"])


def _get_pci_address(ctx: Context) -> str | None:
    """The GPU that the fault is on, or on a part of which, such as a link, it is."""
    parts = ctx.resource.split("/")
    return parts[3] if len(parts) > 3 and parts[2] == "gpu" else None


def _format_gpus(ctx: Context) -> str:
    return "Every GPU" if _is_for_all(ctx) else f"GPU {_get_pci_address(ctx)}"


def _wait_for_end(ctx: Context, since: datetime) -> Wait | NotCured | None:
    """How far the reset is that was asked for. None: it was not begun."""
    answer = detached_command.poll_command(ctx.world.shell, ctx.target, _build_job(ctx))
    if isinstance(answer, NotBegun):
        return None
    if isinstance(answer, Ended) and answer.status != 0:
        return _build_failed_reset(ctx, answer)
    if isinstance(answer, Ended):
        return Wait("The reset has just ended.", timedelta(0))
    waited = ctx.now - since
    if waited > ctx.params["longest"]:
        minutes = round(waited.total_seconds() / 60)
        how = "it has not ended"
        if not isinstance(answer, Running):
            how = f"{ctx.node} does not answer ({answer.why})"
        return _build_not_cured(ctx, f"{minutes} min after the reset was begun {how}", "")
    text = f"{_format_gpus(ctx)} on {ctx.node} is being reset since {since:%H:%M:%S %Z}."
    return Wait(text, _LOOK_AGAIN)


def _find_obstacle(ctx: Context) -> Wait | NotCured | None:
    """Before it is tried: a GPU that cannot answer, and processes that hold it."""
    inspection = looking.inspect_node(ctx, only=("gpu",))
    if not inspection.is_reachable:
        cannot = f"Kintsugi cannot reach {ctx.node} ({inspection.complaint})"
        return _wait_or_give_up(ctx, f"{cannot}, so its GPU cannot be reset.")
    unanswering = (event for event in inspection.raised if event.fault_type in _CANNOT_ANSWER)
    event = next((event for event in unanswering if _is_meant(event, ctx)), None)
    if event is not None:
        fault = f"{event.fault_type}: {event.excerpt}"
        why = f"it cannot be reset, since it does not answer ({fault})"
        return _build_not_cured(ctx, why, "")
    holders = _list_holders(ctx)
    if not holders:
        return None
    node = f"{ctx.node}, which is drained and empty of jobs"
    text = f"{', '.join(holders)} on {node}: the GPU cannot be reset yet."
    ask = f"End what holds the GPU on {ctx.node}, or the node is rebooted over it."
    return _wait_or_give_up(ctx, text, ask=ask)


def _is_meant(event: FaultEvent, ctx: Context) -> bool:
    return _is_for_all(ctx) or looking.is_of_part(event.resource, ctx)


def _list_holders(ctx: Context) -> list[str]:
    """The processes on the GPUs that are meant, as text. What is not told, nvidia-smi refuses."""
    found = gpu_holders.list_holders(ctx.world.shell, ctx.target) or ()
    address = _get_pci_address(ctx)
    return [str(holder) for holder in found if _is_for_all(ctx) or holder.address == address]


def _wait_or_give_up(ctx: Context, text: str, *, ask: str = "") -> Wait | NotCured:
    """For as long as a reset may take; then the next rung, which needs nobody's leave."""
    since = datetime.fromisoformat(ctx.facts.setdefault(f"{ctx.key}:since", format_iso(ctx.now)))
    if ctx.now - since > ctx.params["longest"]:
        return _build_not_cured(ctx, text.rstrip("."), "")
    return Wait(text, timedelta(seconds=15), ask=ask, is_told=True)


def _build_done(ctx: Context, ended: Ended) -> Done:
    began_at = ctx.attempted_at or get_fact_time(ctx, f"{ctx.key}:since") or ctx.now
    ctx.facts["reset_at"] = format_iso(ctx.now)
    text = f"{_format_gpus(ctx)} on {ctx.node} was reset."
    unrestored = gpu_reset.list_unrestored(ended.said)
    if unrestored:
        text = f"{text} But the script {'; it '.join(unrestored)}."
    reset = Reset(_list_resources_to_reset(ctx), began_at)
    return Done(text, reset=reset, evidence={_COMMAND: ended.said})


def _list_resources_to_reset(ctx: Context) -> tuple[str, ...]:
    node = f"node/{ctx.node}"
    if not _is_for_all(ctx):
        return (f"{node}/gpu/{_get_pci_address(ctx)}",)
    gpus = (f"{node}/gpu/{address}" for _, address in ctx.target.expected.gpus)
    return (*gpus, f"{node}/nvswitch")


def _build_failed_reset(ctx: Context, ended: Ended) -> NotCured:
    return _build_not_cured(ctx, f"the reset {ended.how}: {ended.last_words}", ended.said)


def _build_not_cured(ctx: Context, why: str, output: str) -> NotCured:
    text = f"{_format_gpus(ctx)} on {ctx.node} was not reset: {why}. {ctx.node} stays drained."
    ask = f"Examine {ctx.node}: reboot or power-cycle it."
    return NotCured(text, ask=ask, evidence={_COMMAND: output} if output else {})
