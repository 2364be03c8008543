"""Kintsugi's own numbers in the text format of Prometheus, read anew from the database each time.

https://prometheus.github.io/client_python/collector/custom/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from django.db.models import Count, Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from detectors import resources
from detectors.faults import Severity
from incidents.checks.heartbeats import list_latest
from incidents.models import Fault, Incident, Notification, UnreadTemplate
from incidents.triage import inbox
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import refutations
from runbooks.models import Run, RunState


class OwnNumbers(Collector):
    """As of `now`. Raises the database's errors."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def collect(self) -> Iterable[Metric]:
        yield from _collect_parts(self._now)
        yield from _collect_inbox(self._now)
        yield _collect_faults()
        yield _collect_incidents()
        yield _collect_runs()
        yield _collect_refuted()
        yield from _collect_unread()
        waiting = Notification.objects.filter(state=Notification.SendState.WAITING).count()
        yield GaugeMetricFamily(
            "kintsugi_notifications_waiting", "Messages not yet sent.", value=waiting
        )


def format_metrics(now: datetime) -> bytes:
    """All of them, without control characters. Raises the database's errors."""
    registry = CollectorRegistry()
    registry.register(OwnNumbers(now))
    lines = generate_latest(registry).decode().split("\n")
    return "\n".join(map(resources.printable, lines)).encode()


def _collect_parts(now: datetime) -> Iterator[Metric]:
    """Of each part on each host the process that wrote last."""
    labels = ["part", "host"]
    age = GaugeMetricFamily(
        "kintsugi_part_age_seconds", "Since this part last wrote that it is alive.", labels=labels
    )
    began = GaugeMetricFamily(
        "kintsugi_part_start_time_seconds", "When its process began, as Unix time.", labels=labels
    )
    version = GaugeMetricFamily(
        "kintsugi_part_info", "Which version runs; always 1.", labels=[*labels, "version"]
    )
    degraded = GaugeMetricFamily(
        "kintsugi_part_degraded",
        "1: it runs, and something keeps it from its work.",
        labels=labels,
    )
    spool = GaugeMetricFamily(
        "kintsugi_spool_undelivered_bytes",
        "Events on a receiver's disk that the inbox has not taken.",
        labels=["host"],
    )
    free = GaugeMetricFamily(
        "kintsugi_data_directory_free_bytes",
        "What may still be written to the file system of the data directory.",
        labels=["host", "directory"],
    )
    for row in list_latest():
        age.add_metric([row.part, row.host], max(0.0, (now - row.seen_at).total_seconds()))
        began.add_metric([row.part, row.host], row.began_at.timestamp())
        version.add_metric([row.part, row.host, row.version], 1)
        degraded.add_metric([row.part, row.host], 1 if row.trouble else 0)
        if row.backlog_bytes is not None:
            spool.add_metric([row.host], row.backlog_bytes)
        if row.disk_free is not None:
            free.add_metric([row.host, row.directory], row.disk_free)
    yield from (age, began, version, degraded, spool, free)


def _collect_inbox(now: datetime) -> Iterator[Metric]:
    state = inbox.read_backlog(now)
    yield GaugeMetricFamily(
        "kintsugi_inbox_batches", "Batches of events not yet counted.", value=state.batches
    )
    yield GaugeMetricFamily("kintsugi_inbox_bytes", "Their size.", value=state.size)
    yield GaugeMetricFamily(
        "kintsugi_inbox_age_seconds",
        "For how long the oldest of them has waited.",
        value=state.age.total_seconds(),
    )


def _collect_faults() -> Metric:
    counts = Fault.objects.active().values_list("severity").annotate(Count("pk")).order_by()
    names = [str(severity) for severity in Severity]
    return _make_gauge(
        "kintsugi_active_faults", "Faults that stand.", "severity", names, dict(counts)
    )


def _collect_incidents() -> Metric:
    counts = Incident.objects.open().values_list("state").annotate(Count("pk")).order_by()
    names = [state.value for state in State if state not in CLOSED]
    return _make_gauge(
        "kintsugi_open_incidents", "Incidents that are open.", "state", names, dict(counts)
    )


def _collect_runs() -> Metric:
    counts = Run.objects.values_list("state").annotate(Count("pk")).order_by()
    return _make_gauge(
        "kintsugi_runs", "Runs of runbooks, all there are.", "state", RunState.values, dict(counts)
    )


def _collect_refuted() -> Metric:
    gauge = GaugeMetricFamily(
        "kintsugi_refuted_faults",
        "Runs that ended since what can see their fault denied it twice, by its type.",
        labels=["type"],
    )
    for fault_type, count in sorted(refutations.count_by_type().items()):
        gauge.add_metric([fault_type], count)
    return gauge


def _collect_unread() -> Iterator[Metric]:
    found = UnreadTemplate.objects.aggregate(templates=Count("pk"), lines=Sum("count"))
    yield GaugeMetricFamily(
        "kintsugi_unread_templates",
        "Forms of log lines of failures that no signature takes.",
        value=found["templates"],
    )
    yield GaugeMetricFamily(
        "kintsugi_unread_lines", "Lines of these forms so far.", value=found["lines"] or 0
    )


def _make_gauge(
    name: str, meaning: str, label: str, values: Iterable[str], counts: dict[str, int]
) -> Metric:
    """One for each value, 0 where there is none: an alert on it must not go stale."""
    gauge = GaugeMetricFamily(name, meaning, labels=[label])
    for value in values:
        gauge.add_metric([value], counts.get(value, 0))
    return gauge
