"""GPUs by the page of dcgm-exporter on a node: fields as levels and counters.

Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors import resources
from detectors.detector import (
    DetectorError,
    NothingToCompare,
    Reading,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.metrics import dcgm_fields, exposition
from detectors.provenance import Transport

URL = "dcgm"
# Prometheus' own scrape_timeout; the exporter answers from its memory.
_TIMEOUT = timedelta(seconds=10)


class DcgmDetector(NothingToCompare):
    """Observes what `detectors.metrics.dcgm_fields` names of each GPU, and `dcgm.gpu_count` of the
    node."""

    name: ClassVar[str] = "dcgm"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    transport: ClassVar[Transport] = Transport.HTTP
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset({"gpu", "nvlink", "pcie"})
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "gpu.ecc.remapped_correctable",
            "gpu.ecc.remapped_uncorrectable",
            "gpu.last_xid",
            "gpu.memory_temperature_c",
            "gpu.power_w",
            "gpu.temperature_c",
            "gpu.utilization_percent",
            "gpu.xids_in_window",
        }
    )

    def wants(self, target: Target) -> bool:
        return URL in target.expected.urls

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Raises DetectorError for a node without the exporter's address."""
        url = target.expected.urls.get(URL)
        if url is None:
            raise DetectorError(
                f"{target.name}: the inventory names no address of dcgm-exporter (urls.{URL})"
            )
        return Reading(self.name, target, now, {"metrics": via.http.get(target, url, _TIMEOUT)})

    def sniff(self, text: bytes) -> str:
        return "metrics"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        output = reading.outputs["metrics"]
        if output.status != 0:
            yield reading.silent(f"dcgm-exporter: {output.complaint}")
            return
        page = exposition.read(output.stdout)
        facts = list(dcgm_fields.list_facts(reading.target.name, page.metrics))
        for fact in facts:
            yield reading.saw(fact.metric, fact.value, fact.resource, **fact.attributes)
        if not facts:
            yield reading.silent(
                f"dcgm-exporter: the page holds no value of any GPU: {output.complaint[:120]}"
            )
            return
        if page.is_cut:
            yield reading.silent(
                f"dcgm-exporter: the page is cut off after {len(page.metrics)} values"
            )
            return
        yield from _count(reading, {fact.resource for fact in facts})
        yield reading.answered()


def _count(reading: Reading, shown: set[str]) -> Iterator[Observation]:
    """Against the inventory. A GPU that DCGM no longer sees leaves the page without a word."""
    expected = [resources.gpu(reading.target.name, pci) for _, pci in reading.target.expected.gpus]
    wanted = len(expected) or len(shown)
    missing = [path.rpartition("/")[2] for path in expected if path not in shown]
    text = f"dcgm-exporter shows {len(shown)} of {wanted} GPUs"
    if missing and any(path in shown for path in expected):
        text += f"; not {', '.join(missing[:8])}"
    attributes = {"expected": str(wanted), "text": text, "qualifier": "dcgm"}
    yield reading.saw("dcgm.gpu_count", len(shown), **attributes)
