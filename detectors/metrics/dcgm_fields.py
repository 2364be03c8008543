"""What DCGM's fields say of a GPU, whoever shows them: an exporter's page or a query API. Pure.

Facts that nvidia-smi tells too bear the same names, so that one fault is one fault whoever saw it
first. https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html . Python 3.9,
standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from detectors import resources
from detectors.metrics.exposition import Metric

PREFIXES = ("DCGM_FI_", "DCGM_EXP_", "dcgm_")
# DCGM's words for "no value": INT32_BLANK, INT64_BLANK and FP64_BLANK, each with the reasons that
# follow it (not found, not supported, not permitted ...): dcgm_structs.h.
_BLANKS = (
    (0x7FFFFFF0, 0x80000000),
    (0x7FFFFFFFFFFFFF00, 2**64),
    (140737488355328.0, 140737488355340.0),
)

# Other names of fields: those of dcgm-exporter 1.x, which its compatibility list still gives
# (https://github.com/NVIDIA/dcgm-exporter, etc/1.x-compatibility-metrics.csv), and of DCGM 4.7
# where unit and meaning stayed (https://github.com/NVIDIA/go-dcgm, aliases). Names of 4.7 in
# another unit are not read.
_SAME = {
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_xid_errors": "DCGM_FI_DEV_XID_ERRORS",
    "dcgm_pcie_replay_counter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "dcgm_thermal_violation": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "dcgm_power_violation": "DCGM_FI_DEV_POWER_VIOLATION",
    "dcgm_ecc_dbe_volatile_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_retired_pages_sbe": "DCGM_FI_DEV_RETIRED_SBE",
    "dcgm_retired_pages_dbe": "DCGM_FI_DEV_RETIRED_DBE",
    "dcgm_retired_pages_pending": "DCGM_FI_DEV_RETIRED_PENDING",
    "dcgm_nvlink_flit_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_replay_error_count_total": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_recovery_error_count_total": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_BOARD_POWER_WATTS": "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_XID_ERROR": "DCGM_FI_DEV_XID_ERRORS",
}
_LEVELS = {
    "DCGM_FI_DEV_GPU_UTIL": "gpu.utilization_percent",
    "DCGM_FI_DEV_POWER_USAGE": "gpu.power_w",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "gpu.power_limit_w",
    "DCGM_FI_DEV_GPU_TEMP": "gpu.temperature_c",
    "DCGM_FI_DEV_MEMORY_TEMP": "gpu.memory_temperature_c",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "gpu.ecc.uncorrected",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "gpu.ecc.remapped_uncorrectable",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "gpu.ecc.remapped_correctable",
    # The last Xid stays for ever and hides repeats: recorded, never judged.
    "DCGM_FI_DEV_XID_ERRORS": "gpu.last_xid",
}
_COUNTERS = {
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": "gpu.ecc.uncorrected_ever",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie.replays",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "gpu.violation.thermal_ns",
    "DCGM_FI_DEV_POWER_VIOLATION": "gpu.violation.power_ns",
}
_FLAGS = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "gpu.ecc.remap_failure",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "gpu.ecc.remap_pending",
    "DCGM_FI_DEV_RETIRED_PENDING": "gpu.ecc.retirement_pending",
}
# Metric, the qualifier by which nvidia-smi's reader tells its faults apart, and the fields that are
# one sum.
_NVLINK = (
    (
        "nvlink.total.crc_errors",
        "crc",
        (
            "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
            "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        ),
    ),
    ("nvlink.total.replay_errors", "replay", ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",)),
    (
        "nvlink.total.recovery_errors",
        "recovery",
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),
    ),
)
_REASONS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_RETIRED = ("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE")
_XID_COUNT = "DCGM_EXP_XID_ERRORS"
_HEALTH = "DCGM_EXP_GPU_HEALTH_STATUS"
# nvml.h, nvmlClocksEventReasons.
_SLOWDOWN, _THERMAL, _POWER_BRAKE = 0x08, 0x40, 0x80
JUDGED = (
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    *(name for name in _COUNTERS if name != "DCGM_FI_DEV_POWER_VIOLATION"),
    *_FLAGS,
    *_REASONS,
    *_RETIRED,
    *(name for *_, names in _NVLINK for name in names),
    _HEALTH,
)
"""The fields that can make a fault, for a query that names them: levels alone are half of what an
exporter shows."""


@dataclass(frozen=True)
class GpuFact:
    """A value of one GPU, ready to become an observation."""

    resource: str
    metric: str
    value: object
    attributes: Mapping[str, str] = field(default_factory=dict)


def is_blank(value: float) -> bool:
    """No number, or one of DCGM's words for none."""
    return (
        math.isnan(value) or math.isinf(value) or any(low <= value < high for low, high in _BLANKS)
    )


def get_gpu_resource(host: str, labels: Mapping[str, str]) -> str:
    """The GPU by PCI address, else UUID, else index (both are aliases that ingest resolves); empty
    for no GPU."""
    if labels.get("GPU_I_ID"):
        return ""  # a MIG instance: its GPU is shown besides
    pci = labels.get("pci_bus_id", "")
    if resources.pci_address(pci):
        return resources.gpu(host, pci)
    uuid = labels.get("UUID") or labels.get("uuid") or ""
    if uuid.startswith("GPU-") and uuid[4:].replace("-", "").isalnum():
        return resources.gpu(host, uuid)
    index = labels.get("gpu", "")
    return resources.gpu(host, f"index:{index}") if index.isdecimal() and len(index) < 4 else ""


def list_facts(host: str, metrics: Iterable[Metric]) -> Iterator[GpuFact]:
    """What the fields of one host say, GPU by GPU. Blank values are no facts."""
    gpus: dict[str, list[Metric]] = {}
    for metric in metrics:
        resource = get_gpu_resource(host, metric.labels) if metric.name.startswith(PREFIXES) else ""
        if resource and not is_blank(metric.value):
            gpus.setdefault(resource, []).append(metric)
    for resource, its in gpus.items():
        yield from _read_gpu(resource, its)


def _read_gpu(resource: str, its: list[Metric]) -> Iterator[GpuFact]:
    values = {_SAME.get(metric.name, metric.name): metric.value for metric in its}
    for name, metric in (*_LEVELS.items(), *_COUNTERS.items()):
        if name in values:
            yield GpuFact(resource, metric, _to_number(values[name]), _get_text(name, values[name]))
    for name, metric in _FLAGS.items():
        if name in values:
            yield GpuFact(
                resource,
                metric,
                values[name] > 0,
                {**_get_text(name, values[name]), **_get_qualifier(name)},
            )
    if all(name in values for name in _RETIRED):
        pages = int(sum(values[name] for name in _RETIRED))
        yield GpuFact(resource, "gpu.ecc.retired_pages", pages, {"text": f"{pages} retired pages"})
    for metric, qualifier, names in _NVLINK:
        known = [values[name] for name in names if name in values]
        if known:
            text = f"{int(sum(known))} {qualifier} errors of all links since the last reset"
            yield GpuFact(resource, metric, int(sum(known)), {"qualifier": qualifier, "text": text})
    yield from _list_slowdowns(resource, values)
    yield from _read_counts(resource, its)


def _list_slowdowns(resource: str, values: Mapping[str, float]) -> Iterator[GpuFact]:
    """Held down by software to keep to its power limit is normal, and not told."""
    reasons = next((int(values[name]) for name in _REASONS if name in values), None)
    if reasons is None:
        return
    text = {"text": f"clocks event reasons {reasons:#x}"}
    yield GpuFact(resource, "gpu.slowdown.thermal", bool(reasons & _THERMAL), text)
    yield GpuFact(resource, "gpu.slowdown.power_brake", bool(reasons & _POWER_BRAKE), text)
    is_unexplained = bool(reasons & _SLOWDOWN) and not reasons & (_THERMAL | _POWER_BRAKE)
    yield GpuFact(resource, "gpu.slowdown.unexplained", is_unexplained, text)


def _read_counts(resource: str, its: Iterable[Metric]) -> Iterator[GpuFact]:
    """Xids of a sliding window (their line in the log is the event), and DCGM's own health
    watches."""
    worst: Optional[Metric] = None
    for metric in its:
        xid = metric.labels.get("xid") or metric.labels.get("err_code") or ""
        if xid and (
            metric.name.startswith(_XID_COUNT) or metric.name.startswith("DCGM_FI_DEV_XID_ERRORS_")
        ):
            yield GpuFact(resource, "gpu.xids_in_window", _to_number(metric.value), {"xid": xid})
        if metric.name == _HEALTH and (worst is None or metric.value > worst.value):
            worst = metric
    if worst is not None:
        watches = ", ".join(
            v for k, v in worst.labels.items() if k in ("health_watch", "health_error_code") and v
        )
        yield GpuFact(
            resource,
            "gpu.dcgm_health",
            _to_number(worst.value),
            {"text": f"DCGM's own watch: {watches or 'all'}"},
        )


def _to_number(value: float) -> float:
    return int(value) if value == int(value) else value


def _get_text(name: str, value: float) -> dict[str, str]:
    return {"text": f"{name} = {_to_number(value)}"}


def _get_qualifier(name: str) -> dict[str, str]:
    """As nvidia-smi's reader tells two faults of one type apart."""
    return {"qualifier": "pages"} if name == "DCGM_FI_DEV_RETIRED_PENDING" else {}
