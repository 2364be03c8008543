"""What a Prometheus of the site knows: DCGM's fields of every GPU, and which exporters it still
reaches.

For sites where the nodes themselves cannot be asked, and as a second eye where they can. Python
3.9, standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors import resources
from detectors.detector import NothingToCompare, Reading, Target, TargetKind, Transports
from detectors.faults import Observation
from detectors.metrics import dcgm_fields, promql
from detectors.metrics.exposition import Metric
from detectors.metrics.promql import QueryResult, Series
from detectors.provenance import Transport

_JOBS = ".*(node|dcgm|gpu).*"


def build_queries(target: Target) -> dict[str, str]:
    """By output name. The setting `prometheus_jobs` is the pattern of the scrape jobs that watch
    nodes."""
    jobs = (
        target.expected.settings.get("prometheus_jobs", _JOBS)
        .replace("\\", "\\\\")
        .replace('"', '\\"')
    )
    fields = "|".join(dcgm_fields.JUDGED)
    return {
        "up": f'up{{job=~"{jobs}"}}',
        "age": f'time() - timestamp(up{{job=~"{jobs}"}})',
        "dcgm": f'{{__name__=~"{fields}"}}',
    }


class PrometheusDetector(NothingToCompare):
    """Observes `prometheus.scraped` and `prometheus.sample_age_s` of nodes, and what DCGM's fields
    say of GPUs."""

    name: ClassVar[str] = "prometheus"
    kind: ClassVar[TargetKind] = TargetKind.SITE
    transport: ClassVar[Transport] = Transport.HTTP
    every: ClassVar[timedelta] = timedelta(seconds=60)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "gpu.ecc.remapped_correctable",
            "gpu.ecc.remapped_uncorrectable",
            "gpu.last_xid",
            "gpu.memory_temperature_c",
            "gpu.power_w",
            "gpu.temperature_c",
            "gpu.utilization_percent",
        }
    )

    def wants(self, target: Target) -> bool:
        return (
            target.kind is TargetKind.SITE
            and target.name == promql.URL
            and promql.URL in target.expected.urls
        )

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        return Reading(self.name, target, now, promql.ask(target, via, build_queries(target)))

    def sniff(self, text: bytes) -> str:
        if b'"DCGM_' in text:
            return "dcgm"
        return "up" if b'"__name__":"up"' in text.replace(b'": "', b'":"') else "age"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        answers = {name: promql.answer(output) for name, output in reading.outputs.items()}
        chosen = reading.target.expected.settings.get("prometheus_host_label", "")
        for name, answer in answers.items():
            if name == "dcgm":
                yield from _observe_gpus(reading, answer, chosen)
            else:
                yield from _observe_scrapes(reading, name, answer, chosen)
        yield _observe_answers(reading, answers)


def _observe_answers(reading: Reading, answers: dict[str, QueryResult]) -> Observation:
    """A query that fails, is answered in part, or finds nothing at all is never taken for
    healthy."""
    complaints = [
        f"{name}: {words}" for name, answer in answers.items() for words in answer.complaints
    ]
    if not complaints and not any(answer.series for answer in answers.values()):
        complaints = ["it knows no series of any node (is the setting prometheus_jobs right?)"]
    up = answers["up"].series if "up" in answers else ()
    if up and not any(series.value == 1 for series in up):
        complaints.append(f"it scrapes none of its {len(up)} exporters on nodes")
    return (
        reading.silent(f"Prometheus: {'; '.join(complaints)}"[:300])
        if complaints
        else reading.answered()
    )


def _observe_scrapes(
    reading: Reading, name: str, answer: QueryResult, chosen: str
) -> Iterator[Observation]:
    for series in answer.series:
        host = promql.get_host(series.labels, chosen)
        if host == resources.UNKNOWN_HOST:
            continue
        job, instance = series.labels.get("job", ""), series.labels.get("instance", "")
        attributes = {
            "qualifier": f"{job} {instance.rpartition(':')[2]}".strip(),
            "job": job,
            "instance": instance,
        }
        where = resources.node(host)
        if name == "up":
            is_up = series.value == 1
            text = {} if is_up else {"text": f"Prometheus cannot scrape {instance or host} ({job})"}
            yield reading.saw("prometheus.scraped", is_up, where, **attributes, **text)
        elif name == "age" and math.isfinite(series.value):
            text = {
                "text": f"the last scrape of {instance or host} ({job}) is {series.value:.0f} s old"
            }
            yield reading.saw(
                "prometheus.sample_age_s", round(series.value, 1), where, **attributes, **text
            )


def _observe_gpus(reading: Reading, answer: QueryResult, chosen: str) -> Iterator[Observation]:
    hosts: dict[str, list[Metric]] = {}
    for series in answer.series:
        host = promql.get_host(series.labels, chosen)
        if host != resources.UNKNOWN_HOST:
            hosts.setdefault(host, []).append(_make_metric(series))
    for host, metrics in hosts.items():
        for fact in dcgm_fields.list_facts(host, metrics):
            yield reading.saw(fact.metric, fact.value, fact.resource, **fact.attributes)


def _make_metric(series: Series) -> Metric:
    return Metric(series.name, series.labels, series.value)
