"""When a job stands still, when that cannot be told, and how its end is seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import Output, Reading, Sample, Target, TargetKind, Transports
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.slurm import stall
from detectors.slurm.job_stalled import QUERIES, JobStalledDetector
from detectors.slurm.output import QueuedJob
from detectors.slurm.stall import GpuSample, StallLimits, StallVerdict
from fixtures.cluster.http import PROMETHEUS_URL
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedWorld

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
NODES = ("gn001", "gn002", "gn003")
JOB = QueuedJob("7101", "alice", "pretrain", "RUNNING", NODES, 8)
DETECTOR = JobStalledDetector()
SITE = Target(
    "slurm", "", kind=TargetKind.SITE, expected=Expected(urls={"prometheus": PROMETHEUS_URL})
)


def gpus(busy: float, power: float, **odd: tuple[float, float]) -> dict[str, list[GpuSample]]:
    """Eight a node; `odd` names a node whose last GPU shows (busy, power) instead."""
    found = {node: [GpuSample(f"GPU {index}", busy, power) for index in range(8)] for node in NODES}
    for node, (its_busy, its_power) in odd.items():
        found[node][7] = GpuSample("GPU 7", its_busy, its_power)
    return found


def traffic(each: float, **odd: float) -> dict[str, float]:
    return {**dict.fromkeys(NODES, each), **odd}


@pytest.mark.parametrize(
    ("why", "samples", "moved", "expected"),
    [
        ("all wait in a collective", gpus(100, 130), traffic(4e4), StallVerdict.STALLED),
        (
            "one rank is gone, the others wait",
            gpus(100, 130, gn002=(0, 90)),
            traffic(4e4),
            StallVerdict.STALLED,
        ),
        ("a training step", gpus(100, 600), traffic(1.8e11), StallVerdict.WORKING),
        ("a long step without traffic", gpus(100, 600), traffic(0), StallVerdict.WORKING),
        (
            "one GPU works, the others wait",
            gpus(100, 130, gn002=(100, 600)),
            traffic(4e4),
            StallVerdict.WORKING,
        ),
        ("a checkpoint is written", gpus(100, 180), traffic(4e4, gn001=3e9), StallVerdict.WORKING),
        ("data is loaded, nothing spins", gpus(20, 120), traffic(4e4), StallVerdict.WORKING),
        ("an idle allocation", gpus(0, 75), traffic(4e4), StallVerdict.WORKING),
    ],
)
def test_a_job_stands_still_only_when_all_signs_agree(
    why: str, samples: dict[str, list[GpuSample]], moved: dict[str, float], expected: StallVerdict
) -> None:
    assert stall.judge(JOB, samples, moved, StallLimits()).verdict is expected, why


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    judged = stall.judge(JOB, gpus(100, 130, gn002=(0, 90)), traffic(4e4), StallLimits())
    assert "wait for gn002 GPU 7" in judged.text


def test_a_whole_node_may_be_what_the_others_wait_for() -> None:
    samples = gpus(100, 130)
    samples["gn003"] = [GpuSample(f"GPU {index}", 0, 80) for index in range(8)]
    assert stall.judge(JOB, samples, traffic(4e4), StallLimits()).verdict is StallVerdict.STALLED


@pytest.mark.parametrize("missing", ["gpu", "node", "traffic"])
def test_of_a_job_that_is_not_wholly_seen_nothing_is_said(missing: str) -> None:
    samples, moved = gpus(100, 130), traffic(4e4)
    if missing == "gpu":
        samples["gn002"].pop()
    elif missing == "node":
        del samples["gn002"]
    else:
        del moved["gn002"]
    judged = stall.judge(JOB, samples, moved, StallLimits())
    assert judged.verdict is StallVerdict.UNKNOWN
    assert "gn002" in judged.text


@given(
    st.lists(st.floats(0, 100), min_size=3, max_size=3),
    st.lists(st.floats(60, 700), min_size=3, max_size=3),
    st.lists(st.floats(0, 2e11), min_size=3, max_size=3),
)
def test_a_job_that_draws_power_or_moves_data_never_stands_still(
    busy: list[float], power: list[float], moved: list[float]
) -> None:
    limits = StallLimits()
    samples = {
        node: [GpuSample("GPU 0", *pair)]
        for node, pair in zip(NODES, zip(busy, power, strict=True), strict=True)
    }
    job = QueuedJob("1", "a", "b", "RUNNING", NODES, 1)
    judged = stall.judge(job, samples, dict(zip(NODES, moved, strict=True)), limits)
    if max(power) >= limits.power_w or max(moved) >= limits.nic_bytes_per_s:
        assert judged.verdict is StallVerdict.WORKING


def test_a_job_that_ended_is_no_longer_still() -> None:
    resource = "site/slurm/job/7101"
    before = {(resource, "job.stalled"): Sample(True, NOW - timedelta(minutes=1))}
    answered = Observation("site/slurm", "detector.answered", True, NOW, {})
    silent = Observation("site/slurm", "detector.answered", False, NOW, {})
    assert [(o.resource, o.value) for o in DETECTOR.compare([answered], before)] == [
        (resource, False)
    ]
    assert list(DETECTOR.compare([silent], before)) == []
    still = Observation(resource, "job.stalled", True, NOW, {})
    assert list(DETECTOR.compare([answered, still], before)) == []


def test_only_jobs_on_several_nodes_are_judged_and_by_the_sites_own_limits() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.site.slurm.add_job("1", nodes=("gn001", "gn002"))
    world.site.slurm.add_job("2", nodes=("gn003",))
    for node in ("gn001", "gn002"):
        world.site.traffic[node] = 5e7
        for index in range(8):
            world.site.fields[node, index, "GPU_UTIL"] = 100
            world.site.fields[node, index, "POWER_USAGE"] = 260
    for settings, expected in (
        ({}, False),
        ({"stall_power_w": "300", "stall_nic_bytes_per_s": "1e8"}, True),
    ):
        expects = Expected(urls={"prometheus": PROMETHEUS_URL}, settings=settings)
        target = Target("slurm", "", kind=TargetKind.SITE, expected=expects)
        found = DETECTOR.parse(DETECTOR.collect(target, simulated_transports(world), NOW))
        judged = {o.resource: o.value for o in found if o.metric == "job.stalled"}
        assert judged == {"site/slurm/job/1": expected}


def test_a_metric_that_prometheus_cannot_give_is_told() -> None:
    jobs = Output(0, b"1|RUNNING|alice|gn[001-002]|gres:gpu:8|x\n", b"", timedelta(0))
    bad = Output(
        422,
        b'{"status":"error","errorType":"execution","error":"too many samples"}',
        b"",
        timedelta(0),
    )
    reading = Reading("job_stalled", SITE, NOW, {"jobs": jobs, **dict.fromkeys(QUERIES, bad)})
    [answered] = list(DETECTOR.parse(reading))
    assert answered.value is False
    assert "too many samples" in answered.attributes["text"]


def test_it_is_wanted_only_where_slurm_and_a_prometheus_are() -> None:
    assert DETECTOR.wants(SITE)
    assert not DETECTOR.wants(Target("slurm", "", kind=TargetKind.SITE))
    assert not DETECTOR.wants(
        Target("prometheus", "", kind=TargetKind.SITE, expected=SITE.expected)
    )


def test_nothing_is_asked_of_a_shell_but_the_list_of_jobs() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    via = simulated_transports(world)
    reading = DETECTOR.collect(SITE, Transports(shell=via.shell, http=via.http), NOW)
    assert set(reading.outputs) == {"jobs", *QUERIES}
