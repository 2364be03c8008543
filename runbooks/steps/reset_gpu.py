"""Reset one GPU, or all of the node with their NVSwitches, by nvidia-smi on the node itself, once.

The reset runs apart from the connection, under this step's key: what it stopped (persistence mode,
DCGM, nvidia-persistenced) it puts back itself, also when it is killed. Whoever looks later reads
how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from detectors import resources
from detectors.detector import DetectorError
from detectors.faults import FaultEvent, Recovery
from runbooks import parameters
from runbooks.guards.table import Act
from runbooks.node import detached_command, gpu_reset, looking
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
    fact_time,
    to_iso,
)

# A start that was sent over SSH may still arrive: its transport's limit.
_SETTLES_IN = timedelta(seconds=30)
_LOOK_AGAIN = timedelta(seconds=3)
_LOOK_TIMEOUT = timedelta(seconds=20)
# A reset asks the GPU itself: one that is off the bus or hangs cannot answer (nvidia-smi's return
# code 15, or none).
_CANNOT_ANSWER = frozenset(
    {"gpu.lost", "gpu.count_mismatch", "gpu.unresponsive", "gpu.driver.unavailable"}
)
_HOLDERS = (
    "nvidia-smi",
    "--query-compute-apps=gpu_bus_id,pid,process_name",
    "--format=csv,noheader",
)


class ResetGpu(Base):
    name: ClassVar[str] = "reset_gpu"
    plan: ClassVar[str] = "reset the GPU with nvidia-smi"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.RESET_GPU
    settles_in: ClassVar[timedelta] = _SETTLES_IN
    recovery: ClassVar[Recovery | None] = Recovery.GPU_RESET
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "which": Parameter(parameters.one_of(Which), parameters.said_of(Which), default=Which.PART),
        # Units of the site that hold GPUs too, such as an exporter of its own.
        "units": Parameter(parameters.names, parameters.NAMES, default=()),
        # Our choice: services stop and start within a minute, and the script tries three times two
        # minutes.
        "longest": Parameter(
            parameters.duration, parameters.DURATION, default=timedelta(minutes=10)
        ),
    }

    def is_done(self, ctx: Context) -> Done | None:
        boot = looking.boot(ctx) if ctx.facts.get("boot_id_before") else None
        if boot is not None and boot.boot_id != ctx.facts["boot_id_before"]:
            ctx.facts.update(booted_at=to_iso(boot.booted_at), boot_id_after=boot.boot_id)
            return Done(
                f"{ctx.node} has booted since it was drained, which resets its GPUs too.", boot=boot
            )
        if ctx.attempted_at is None:
            return None
        answer = detached_command.poll_command(ctx.world.shell, ctx.target, _job(ctx))
        return _done(ctx, answer) if isinstance(answer, Ended) and answer.status == 0 else None

    def blocked(self, ctx: Context) -> Wait | Failed | NotCured | None:
        if _pci(ctx) is None and ctx.params["which"] is Which.PART:
            return _not_cured(
                ctx, f"{ctx.resource} names no GPU, so none can be reset by itself", ""
            )
        if ctx.attempted_at is not None:
            return _under_way(ctx, ctx.attempted_at)
        if not ctx.state.is_drained:
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        return _in_the_way(ctx)

    def run(self, ctx: Context) -> Result:
        answer = detached_command.start(ctx.world.shell, ctx.target, _job(ctx))
        if isinstance(answer, Ended):
            return _done(ctx, answer) if answer.status == 0 else _ended_badly(ctx, answer)
        return Wait(f"{_what(ctx)} on {ctx.node} is being reset.", _LOOK_AGAIN, is_told=True)


def _job(ctx: Context) -> DetachedJob:
    pci = _pci(ctx)
    gpus = (
        [address for _, address in ctx.target.expected.gpus]
        if ctx.params["which"] is Which.ALL
        else [pci or ""]
    )
    return gpu_reset.job(ctx.key, ctx.params["which"], gpus, more_units=ctx.params["units"])


def _pci(ctx: Context) -> str | None:
    """The GPU that the fault is on, or on a part of which, such as a link, it is."""
    parts = ctx.resource.split("/")
    return parts[3] if len(parts) > 3 and parts[2] == "gpu" else None


def _what(ctx: Context) -> str:
    return "Every GPU" if ctx.params["which"] is Which.ALL else f"GPU {_pci(ctx)}"


def _under_way(ctx: Context, since: datetime) -> Wait | NotCured | None:
    """How far the reset is that was asked for. None: it was not begun."""
    answer = detached_command.poll_command(ctx.world.shell, ctx.target, _job(ctx))
    if isinstance(answer, NotBegun):
        return None
    if isinstance(answer, Ended):
        return (
            _ended_badly(ctx, answer)
            if answer.status != 0
            else Wait("The reset has just ended.", timedelta(0))
        )
    waited = ctx.now - since
    if waited > ctx.params["longest"]:
        minutes = round(waited.total_seconds() / 60)
        how = (
            "it has not ended"
            if isinstance(answer, Running)
            else f"{ctx.node} does not answer ({answer.why})"
        )
        return _not_cured(ctx, f"{minutes} min after the reset was begun {how}", "")
    return Wait(
        f"{_what(ctx)} on {ctx.node} is being reset since {since:%H:%M:%S %Z}.", _LOOK_AGAIN
    )


def _in_the_way(ctx: Context) -> Wait | NotCured | None:
    """Before it is tried: a GPU that cannot answer, and processes that hold it."""
    seen = looking.inspect_node(ctx, only=("gpu",))
    if not seen.is_reachable:
        return _wait(
            ctx, f"Kintsugi cannot reach {ctx.node} ({seen.complaint}), so its GPU cannot be reset."
        )
    dumb = next(
        (
            event
            for event in seen.raised
            if event.fault_type in _CANNOT_ANSWER and _is_meant(event, ctx)
        ),
        None,
    )
    if dumb is not None:
        return _not_cured(
            ctx,
            f"it cannot be reset, since it does not answer ({dumb.fault_type}: {dumb.excerpt})",
            "",
        )
    holders = _holders(ctx)
    if not holders:
        return None
    return _wait(
        ctx,
        f"{', '.join(holders)} on {ctx.node}, which is drained and empty of jobs: the GPU cannot be"
        " reset yet.",
        ask=f"End what holds the GPU on {ctx.node}, or the node is rebooted over it.",
    )


def _is_meant(event: FaultEvent, ctx: Context) -> bool:
    return ctx.params["which"] is Which.ALL or looking.is_of_part(event.resource, ctx)


def _holders(ctx: Context) -> list[str]:
    """The processes that nvidia-smi shows on the GPUs that are meant, as text. What it does not
    tell, it refuses."""
    try:
        output = ctx.world.shell.run(ctx.target, _HOLDERS, _LOOK_TIMEOUT)
    except DetectorError:
        return []
    found = []
    for line in output.stdout.decode(errors="replace").splitlines():
        bus, _, rest = line.partition(", ")
        pid, _, name = rest.partition(", ")
        address = resources.pci_address(bus)
        if address and pid.isdigit() and (ctx.params["which"] is Which.ALL or address == _pci(ctx)):
            found.append(f"Process {pid} ({name.strip()}) holds GPU {address}")
    return found


def _wait(ctx: Context, text: str, *, ask: str = "") -> Wait | NotCured:
    """For as long as a reset may take; then the next rung, which needs nobody's leave."""
    since = datetime.fromisoformat(ctx.facts.setdefault(f"{ctx.key}:since", to_iso(ctx.now)))
    if ctx.now - since > ctx.params["longest"]:
        return _not_cured(ctx, text.rstrip("."), "")
    return Wait(text, timedelta(seconds=15), ask=ask, is_told=True)


def _done(ctx: Context, ended: Ended) -> Done:
    began_at = ctx.attempted_at or fact_time(ctx, f"{ctx.key}:since") or ctx.now
    ctx.facts["reset_at"] = to_iso(ctx.now)
    left = gpu_reset.not_put_back(ended.said)
    trouble = f" But the script {'; it '.join(left)}." if left else ""
    return Done(
        f"{_what(ctx)} on {ctx.node} was reset.{trouble}",
        reset=Reset(_resources(ctx), began_at),
        evidence={"nvidia-smi --gpu-reset": ended.said},
    )


def _resources(ctx: Context) -> tuple[str, ...]:
    if ctx.params["which"] is Which.PART:
        return (f"node/{ctx.node}/gpu/{_pci(ctx)}",)
    gpus = (f"node/{ctx.node}/gpu/{address}" for _, address in ctx.target.expected.gpus)
    return (*gpus, f"node/{ctx.node}/nvswitch")


def _ended_badly(ctx: Context, ended: Ended) -> NotCured:
    return _not_cured(ctx, f"the reset {ended.how}: {ended.last_words}", ended.said)


def _not_cured(ctx: Context, why: str, said: str) -> NotCured:
    return NotCured(
        f"{_what(ctx)} on {ctx.node} was not reset: {why}. {ctx.node} stays drained.",
        ask=f"Examine {ctx.node}: reboot or power-cycle it.",
        evidence={"nvidia-smi --gpu-reset": said} if said else {},
    )
