"""Jobs that stand still on all of their nodes, by Slurm's list of jobs and the metrics of the
site's Prometheus.

Its owner is told; nothing is repaired. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from detectors import resources
from detectors.detector import NothingToCompare, Reading, Samples, Target, TargetKind, Transports
from detectors.faults import Observation
from detectors.metrics import promql
from detectors.metrics.promql import QueryResult
from detectors.provenance import Forger, Transport
from detectors.slurm import output, queries, stall
from detectors.slurm.output import QueuedJob
from detectors.slurm.stall import GpuSample, StallLimits, StallVerdict

_METRIC = "job.stalled"
# Three minutes hold two samples at Prometheus' default pace of one a minute, which a rate needs.
QUERIES = {
    "busy": "min_over_time(DCGM_FI_DEV_GPU_UTIL[3m])",
    "power": "max_over_time(DCGM_FI_DEV_POWER_USAGE[3m])",
    "traffic": (
        "sum without (device, port) (rate(node_infiniband_port_data_transmitted_bytes_total[3m])"
        " + rate(node_infiniband_port_data_received_bytes_total[3m]))"
    ),
}


class JobStalledDetector(NothingToCompare):
    """Observes `job.stalled` of each running job on two nodes or more, with its figures as
    facts."""

    name: ClassVar[str] = "job_stalled"
    kind: ClassVar[TargetKind] = TargetKind.SITE
    transport: ClassVar[Transport] = Transport.SLURM
    forger: ClassVar[Forger] = Forger.USER
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "job.busy_percent",
            "job.nic_bytes_per_s",
            "job.power_w",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({_METRIC})

    def wants(self, target: Target) -> bool:
        return queries.is_slurm_site(target) and promql.URL in target.expected.urls

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Slurm's jobs by a command, the rest by the query API."""
        outputs = via.shell.run_all(target, self.name, [queries.build_running_jobs_query(target)])
        return Reading(self.name, target, now, {**outputs, **promql.ask(target, via, QUERIES)})

    def sniff(self, text: bytes) -> str:
        if b"DCGM_FI_DEV_POWER" in text:
            return "power"
        return "jobs" if b'"status"' not in text else "busy" if b'"gpu"' in text else "traffic"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        asked = reading.outputs.get("jobs")
        answers: dict[str, QueryResult] = {}
        complaints: list[str] = []
        for name in QUERIES:
            if name in reading.outputs:
                answer = answers[name] = promql.answer(reading.outputs[name])
                complaints += [f"{name}: {words}" for words in answer.complaints]
        if asked is not None and asked.status != 0:
            complaints.append(f"jobs: {queries.get_complaint(asked)}")
        if complaints:
            yield reading.silent("; ".join(complaints)[:300])
            return
        jobs = [] if asked is None else output.parse_jobs(asked.text)
        gpus = _parse_gpus(reading, answers)
        traffic = _parse_traffic(reading, answers)
        limits = _get_limits(reading.target)
        for job in jobs:
            if len(job.nodes) > 1 and job.state == "RUNNING":
                yield from _evaluate_job(reading, job, gpus, traffic, limits)
        yield reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """A job that stood still and is no longer listed has ended, and its fault with it."""
        answered = [
            seen for seen in now if seen.metric == "detector.answered" and seen.value is True
        ]
        listed = {seen.resource for seen in now if seen.metric == _METRIC}
        for (resource, metric), sample in before.items():
            if answered and metric == _METRIC and sample.value is True and resource not in listed:
                text = {"text": "Slurm no longer lists the job"}
                yield Observation(resource, _METRIC, False, answered[0].observed_at, text)


def _evaluate_job(
    reading: Reading,
    job: QueuedJob,
    gpus: Mapping[str, Sequence[GpuSample]],
    traffic: Mapping[str, float],
    limits: StallLimits,
) -> Iterator[Observation]:
    hosts = tuple(map(resources.short_host, job.nodes))
    judged = stall.judge(replace(job, nodes=hosts), gpus, traffic, limits)
    resource = resources.job(reading.target.name, job.job_id)
    text = f"job {job.job_id} ({job.name[:40]}) of {job.user}: {judged.text}"
    attributes = {"text": text, "user": job.user, "nodes": ",".join(job.nodes)[:200]}
    is_stalled = judged.verdict is StallVerdict.STALLED
    value = None if judged.verdict is StallVerdict.UNKNOWN else is_stalled
    yield reading.saw(_METRIC, value, resource, **attributes)
    for name in ("busy_percent", "power_w", "nic_bytes_per_s"):
        figure = getattr(judged, name)
        if figure is not None:
            yield reading.saw(f"job.{name}", round(figure, 1), resource)


def _parse_gpus(reading: Reading, answers: Mapping[str, QueryResult]) -> dict[str, list[GpuSample]]:
    """By short host. A GPU of which only one of both is known is not counted."""
    chosen = reading.target.expected.settings.get("prometheus_host_label", "")
    power: dict[tuple[str, str], float] = {}
    for series in answers["power"].series if "power" in answers else ():
        if series.value == series.value:
            power[promql.get_host(series.labels, chosen), _get_gpu(series.labels)] = series.value
    found: dict[str, list[GpuSample]] = {}
    for series in answers["busy"].series if "busy" in answers else ():
        key = (promql.get_host(series.labels, chosen), _get_gpu(series.labels))
        if key in power and series.value == series.value:
            found.setdefault(key[0], []).append(GpuSample(key[1], series.value, power[key]))
    return found


def _get_gpu(labels: Mapping[str, str]) -> str:
    return f"GPU {labels.get('gpu') or labels.get('UUID') or labels.get('device') or '?'}"


def _parse_traffic(reading: Reading, answers: Mapping[str, QueryResult]) -> dict[str, float]:
    chosen = reading.target.expected.settings.get("prometheus_host_label", "")
    found: dict[str, float] = {}
    for series in answers["traffic"].series if "traffic" in answers else ():
        if series.value == series.value:
            host = promql.get_host(series.labels, chosen)
            found[host] = found.get(host, 0.0) + series.value
    return found


def _get_limits(target: Target) -> StallLimits:
    """The settings `stall_power_w` and `stall_nic_bytes_per_s` go before the constants."""
    settings, usual = target.expected.settings, StallLimits()
    try:
        power = float(settings.get("stall_power_w", usual.power_w))
        traffic = float(settings.get("stall_nic_bytes_per_s", usual.nic_bytes_per_s))
    except ValueError:
        return usual
    return StallLimits(usual.busy_percent, power, traffic)
