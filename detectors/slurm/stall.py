"""Whether a job over several nodes stands still: GPUs seem busy, none works, and no network card
moves data. Pure.

Ranks that wait for each other in a collective spin: the GPU shows 100 %, as a kernel is running, at
little more power than idle (https://github.com/cupy/cupy/issues/3557; NVML's utilization is the
share of time in which a kernel runs). The one that they wait for may show less: it is named.

A job on one node is not judged: it has no traffic to miss, and small kernels alone look the same.
Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from detectors.faults import Word
from detectors.slurm.output import QueuedJob

_NAMED = 4


@dataclass(frozen=True)
class StallLimits:
    """What counts as busy, as little power, and as no traffic; a site may set its own
    (docs/reference/detectors/slurm.md).

    Power: an H100 with memory in use but no work draws 109 to 134 W
    (https://github.com/wilicc/gpu-burn/issues/114) and at most 700 W; 245 W is 35 % of that, twice
    the one and far from any training step. Traffic: without a job a node's cards move keep-alives
    and metadata; 10 MB/s is 0.02 % of one 400 Gb/s port. Both are derived, not measured.
    """

    busy_percent: float = 99.0
    power_w: float = 245.0
    nic_bytes_per_s: float = 1e7


@dataclass(frozen=True)
class GpuSample:
    """One GPU over the last minutes: its least utilization and its highest power."""

    gpu: str
    busy_percent: float
    power_w: float


class StallVerdict(Word):
    """`unknown`: not every GPU and node of the job was seen."""

    STALLED = "stalled"
    WORKING = "working"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StallJudgement:
    """With the sentence that explains it. The figures are the worst of all ranks, None where
    nothing was seen."""

    verdict: StallVerdict
    text: str
    busy_percent: Optional[float] = None
    power_w: Optional[float] = None
    nic_bytes_per_s: Optional[float] = None


def judge(
    job: QueuedJob,
    gpus: Mapping[str, Sequence[GpuSample]],
    traffic: Mapping[str, float],
    limits: StallLimits,
) -> StallJudgement:
    """`gpus` and `traffic` (bytes a second of all cards together) by short host."""
    needed = max(1, job.gpus_per_node)
    complete = {node for node in traffic if len(gpus.get(node, ())) >= needed}
    unseen = [node for node in job.nodes if node not in complete]
    if unseen:
        return StallJudgement(
            StallVerdict.UNKNOWN, f"not every GPU and card of {_format_names(unseen)} was seen"
        )
    ranks = [(node, sample) for node in job.nodes for sample in gpus[node]]
    busy = min(sample.busy_percent for _, sample in ranks)
    power = max(sample.power_w for _, sample in ranks)
    most = max(traffic[node] for node in job.nodes)
    figures = f"at most {power:.0f} W a GPU and {most / 1e6:.1f} MB/s a node"
    idle = [
        f"{node} {sample.gpu}"
        for node, sample in ranks
        if sample.busy_percent < limits.busy_percent
    ]
    has_work = power >= limits.power_w or most >= limits.nic_bytes_per_s
    if has_work or not _is_spinning(job, gpus, limits):
        return StallJudgement(StallVerdict.WORKING, figures, busy, power, most)
    waited = f"; the others may wait for {_format_names(idle)}, which is not busy" if idle else ""
    text = f"{len(ranks)} GPUs on {len(job.nodes)} nodes are busy without work: {figures}{waited}"
    return StallJudgement(StallVerdict.STALLED, text, busy, power, most)


def _is_spinning(
    job: QueuedJob, gpus: Mapping[str, Sequence[GpuSample]], limits: StallLimits
) -> bool:
    """Whether all nodes spin, or all but one, whose ranks are what the others wait for."""
    if all(_has_busy(gpus[node], limits) for node in job.nodes):
        return True
    still = [node for node in job.nodes if _is_still(gpus[node], limits)]
    return len(still) == 1 and len(job.nodes) > 2


def _has_busy(samples: Iterable[GpuSample], limits: StallLimits) -> bool:
    return any(sample.busy_percent >= limits.busy_percent for sample in samples)


def _is_still(samples: Iterable[GpuSample], limits: StallLimits) -> bool:
    return all(sample.busy_percent < limits.busy_percent for sample in samples)


def _format_names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
