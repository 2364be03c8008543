"""What nvidia-smi prints of GPUs, in each form that it has or had, as one `Card` per GPU. Judges
nothing.

XML (`-q -x`), text (`-q`, whole or one section), table, list (`-L`), CSV (`--query-gpu`), and the
words for a GPU that it cannot open. Total on any text, in linear time. Python 3.9, standard library
alone.
"""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from detectors import resources
from detectors.detector import Output
from detectors.transports import files

# Whether there is anything of NVIDIA's at all, from the kernel: a node without GPUs needs no
# driver.
DEVICES = files.build_read_command("devices", "/sys/bus/pci/devices", "*/vendor", depth=2)
_NVIDIA = "0x10de"
# Words for "this GPU, this driver or this system does not have it".
_ABSENT = frozenset(
    {"", "n/a", "not supported", "requested functionality has been deprecated", "deprecated"}
)
# `GPU 0000:09:00.0:`, `GPU0000:17:00.0:`, `GPU0: 0000:17:00.0:` and a domain of three digits all
# occur; terminals wrap the line anywhere. Forms: fixtures/signals/gpu.
_NO_HANDLE = re.compile(
    r"Unable\s+to\s+determine\s+the\s+device\s+handle\s+for\s+gpu\s?(?:\d{1,3}:\s)?"
    r"\s?(?P<pci>[0-9A-F:.]{7,18}):\s"
    r"\s?(?P<text>[A-Za-z][A-Za-z ]{0,60}(?:\r?\n[A-Za-z ]{1,40}$)?)",
    re.IGNORECASE | re.MULTILINE,
)
_CORRUPT = re.compile(r"infoROM is corrupted at gpu (?P<pci>[0-9A-F:.]{7,18})", re.IGNORECASE)
_LISTED = re.compile(
    r"^GPU (?P<index>\d{1,3}): (?P<product>.{1,120}) \(UUID: (?P<uuid>[^)\s]{1,80})\)", re.MULTILINE
)
_TEXT_GPU = re.compile(r"^GPU (?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{7})\s*$")
_TABLE_PCI = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
# `  MIG 3g.20gb     Device  0: (UUID: MIG-...)` below its GPU's line; some copies lose the indent
# (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/).
_MIG_DEVICE = re.compile(r"^ {0,8}MIG (?P<profile>[0-9a-z.+-]{1,40}) {1,40}Device {1,10}\d{1,3}:")
_LONGEST_LINE = 300
_LONGEST_COUNT = 8
# The columns by which a GPU is told, of which a query has one.
_CSV_KEYS = {"pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index"}
_MOST_LINES_BEFORE = 50  # banners

# Name here, and the paths under which the generations of each form have it: XML and text alike once
# their labels are brought to one spelling; CSV columns with / for their dots. The first that holds
# a value speaks.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "product": ("product_name", "name"),
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "serial_number"),
    "vbios_version": ("vbios_version",),
    "module_id": (
        "gpu_module_id",
        "platforminfo/module_id",
        "platform_info/module_id",
        "platform/module_id",
    ),
    "virtualization": ("gpu_virtualization_mode/virtualization_mode",),
    "mig": ("mig_mode/current_mig", "mig_mode/current", "mig/mode/current"),
    "persistence_mode": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "power_limit": (
        *("gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit"),
        *("power_readings/power_limit", "power_readings/current_power_limit", "power/limit"),
    ),
    "application_clock": (
        *("applications_clocks/graphics_clock", "applications_clocks/graphics"),
        "clocks/applications/graphics",
    ),
    "recovery_action": ("gpu_recovery_action",),
    "reset_required": ("gpu_reset_status/reset_required",),
    "drain_recommended": ("gpu_reset_status/drain_and_reset_recommended",),
    "performance_state": ("performance_state", "pstate"),
    "gpu_utilization": ("utilization/gpu_util", "utilization/gpu"),
    "temperature": ("temperature/gpu_temp", "temperature/gpu_current_temp", "temperature/gpu"),
    "fan_speed": ("fan_speed", "fan/speed"),
    "power_draw": (
        *("gpu_power_readings/instant_power_draw", "gpu_power_readings/instantaneous_power_draw"),
        *("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw"),
        *("power_readings/power_draw", "power/draw/instant", "power/draw"),
    ),
    "sm_clock": ("clocks/sm_clock", "clocks/sm", "clocks/current/sm"),
    "memory_used": ("fb_memory_usage/used", "memory/used"),
    "ecc_mode": ("ecc_mode/current_ecc", "ecc_mode/current", "ecc/mode/current"),
    "gen_max": (
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "pci/gpu_link_info/pcie_generation/max",
        "pcie/link/gen/max",
    ),
    "gen_current": (
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pci/gpu_link_info/pcie_generation/current",
        *("pcie/link/gen/current", "pcie/link/gen/gpucurrent"),
    ),
    "width_max": (
        "pci/pci_gpu_link_info/link_widths/max_link_width",
        *("pci/gpu_link_info/link_width/max", "pcie/link/width/max"),
    ),
    "width_current": (
        "pci/pci_gpu_link_info/link_widths/current_link_width",
        *("pci/gpu_link_info/link_width/current", "pcie/link/width/current"),
    ),
    "replays": ("pci/replay_counter", "pci/replays_since_reset"),
    "fabric_state": ("fabric/state",),
    "fabric_status": ("fabric/status",),
    "fabric_summary": ("fabric/health/summary",),
    "fabric_bandwidth": ("fabric/health/bandwidth",),
    "fabric_route_unhealthy": ("fabric/health/route_unhealthy",),
    "fabric_incorrect_configuration": ("fabric/health/incorrect_configuration",),
    "sram_threshold": (
        "ecc_errors/aggregate/sram_threshold_exceeded",
        "ecc/errors/uncorrected/aggregate/sram/thresholdexceeded",
    ),
    "channel_repair_pending": ("ecc_errors/channel_repair_pending",),
    "tpc_repair_pending": ("ecc_errors/tpc_repair_pending",),
    "unrepairable_memory": ("ecc_errors/unrepairable_memory",),
    "remapped_correctable": (
        *(
            "remapped_rows/remapped_row_corr",
            "remapped_rows/correctable_error",
            "remapped_rows/correctable",
        ),
    ),
    "remapped_uncorrectable": (
        *(
            "remapped_rows/remapped_row_unc",
            "remapped_rows/uncorrectable_error",
            "remapped_rows/uncorrectable",
        ),
    ),
    "remap_pending": ("remapped_rows/remapped_row_pending", "remapped_rows/pending"),
    "remap_failure": (
        "remapped_rows/remapped_row_failure",
        *("remapped_rows/remapping_failure_occurred", "remapped_rows/failure"),
    ),
    "retired_single_bit": (
        "retired_pages/multiple_single_bit_retirement/retired_count",
        *("retired_pages/single_bit_ecc", "retired_pages/single_bit_ecc/count"),
    ),
    "retired_double_bit": (
        "retired_pages/double_bit_retirement/retired_count",
        *("retired_pages/double_bit_ecc", "retired_pages/double_bit/count"),
    ),
    "retirement_pending": (
        *("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        *("retired_pages/pending_page_blacklist", "retired_pages/pending"),
    ),
}
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")


def _list_slowdown_paths(name: str) -> tuple[str, ...]:
    paths: list[str] = []
    for group in _REASONS:
        paths += (f"{group}/{group[:-1]}_{name}", f"{group}/{name}", f"{group}/hw_slowdown/{name}")
    return tuple(paths)


# What of a GPU's clocks the driver holds down: "Active" or "Not Active".
SLOWDOWNS: Mapping[str, tuple[str, ...]] = {
    name: _list_slowdown_paths(name)
    for name in (
        "hw_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sw_thermal_slowdown",
        "sw_power_cap",
    )
}


@dataclass(frozen=True)
class PrintedGpu:
    """One GPU as printed: its PCI address in canonical form (empty in forms without one), its
    values by path.

    `mig_devices`: of each MIG device how many multiprocessors it has, as printed; None in forms
    that do not list them.
    """

    pci: str
    values: Mapping[str, str] = field(default_factory=dict)
    mig_devices: Optional[tuple[str, ...]] = None

    def get_text(self, name: str) -> str:
        """The value of one of FIELDS as printed; empty when this GPU or this form has none."""
        return self.find(FIELDS[name])

    def find(self, paths: tuple[str, ...]) -> str:
        return next((value for value in map(self.get_raw_value, paths) if value), "")

    def get_raw_value(self, path: str) -> str:
        value = self.values.get(path, "").strip()
        bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        return "" if bare.lower() in _ABSENT else bare

    def get_number(self, name: str) -> Optional[int]:
        """The whole number at the front of the value: `16x`, `100 %`, `60 C`; None when there is
        none."""
        return parse_whole_number(self.get_text(name))

    def get_flag(self, name: str) -> Optional[bool]:
        return _FLAGS.get(self.get_text(name).lower())

    def is_active(self, slowdown: str) -> Optional[bool]:
        return _FLAGS.get(self.find(SLOWDOWNS[slowdown]).lower())


@dataclass(frozen=True)
class Printed:
    """All that one output says. `cards` is None when it holds no list of GPUs; `lost` maps address
    to the words."""

    cards: Optional[list[PrintedGpu]]
    lost: Mapping[str, str]
    driver_version: str = ""


_FLAGS = {
    "yes": True,
    "no": False,
    "active": True,
    "not active": False,
    "true": True,
    "false": False,
}


def parse_whole_number(text: str) -> Optional[int]:
    found = re.match(r"\d{1,18}", text)
    return int(found[0]) if found else None


def read(stdout: bytes, stderr: bytes = b"") -> Printed:
    """The form is told by its own marks; XML first, as that is what is asked for."""
    text = stdout.decode("utf-8", "replace")
    both = text + "\n" + stderr.decode("utf-8", "replace")
    lost = parse_gpus_without_handle(both)
    root = _parse_document(stdout)
    if root is not None:
        return Printed(
            list(_parse_xml(root)), lost, (root.findtext("driver_version") or "").strip()
        )
    if "NVSMI LOG" in text:
        return _parse_text(text, lost)
    if _LISTED.search(text):
        return Printed(list(_parse_list(text)), lost)
    cards = _parse_csv(text)
    if cards:
        return Printed(cards, lost, cards[0].get_raw_value("driver_version"))
    return Printed(list(_parse_table(text)) or None, lost)


def are_on_bus(output: Optional[Output]) -> Optional[bool]:
    """Of the output of DEVICES; None when that tells nothing."""
    vendors = (
        {text.strip() for text in files.parse_contents(output).values()}
        if output is not None
        else set()
    )
    return _NVIDIA in vendors if vendors else None


def parse_gpus_without_handle(text: str) -> dict[str, str]:
    """PCI address to the driver's words, of each GPU that it names but cannot open."""
    return {
        format_full_address(found["pci"]): " ".join(found["text"].split())
        for found in _NO_HANDLE.finditer(text)
    }


def parse_gpus_with_corrupt_inforom(text: str) -> frozenset[str]:
    """PCI addresses of the GPUs whose information ROM nvidia-smi warns of."""
    return frozenset(format_full_address(found["pci"]) for found in _CORRUPT.finditer(text))


def format_full_address(pci: str) -> str:
    """A domain of three digits occurs (dcgm-exporter issue 604)."""
    return resources.pci_address(pci) or resources.pci_address(pci.rjust(12, "0")) or pci.lower()


def _parse_document(stdout: bytes) -> Optional[ElementTree.Element]:
    """The XML from its first tag on: sites print banners and warnings before it."""
    start = stdout.find(b"<nvidia_smi_log")
    end = stdout.rfind(b"</nvidia_smi_log>")
    if start < 0 or end < start:
        return None
    try:
        # Read from the root tag on: without a DTD there are no entities to blow up.
        return ElementTree.fromstring(stdout[start : end + len(b"</nvidia_smi_log>")])  # noqa: S314
    except ElementTree.ParseError:
        return None


def _parse_xml(root: ElementTree.Element) -> Iterator[PrintedGpu]:
    for gpu in root.iter("gpu"):
        pci = resources.pci_address(gpu.get("id", ""))
        if pci is not None:
            yield PrintedGpu(pci, dict(_list_leaves(gpu, "", 0)), _read_mig_devices(gpu))


def _read_mig_devices(gpu: ElementTree.Element) -> Optional[tuple[str, ...]]:
    """`<mig_devices>None</mig_devices>` where there is none; older drivers have no such element."""
    devices = gpu.find("mig_devices")
    if devices is None:
        return None
    path = "device_attributes/shared/multiprocessor_count"
    counts = [(device.findtext(path) or "").strip() for device in devices.iter("mig_device")]
    return tuple(count[:_LONGEST_COUNT] or "?" for count in counts)


def read_mig_profiles(stdout: bytes) -> dict[str, tuple[str, ...]]:
    """The profile of each MIG device by the UUID of its GPU, of `nvidia-smi -L`; empty where that
    lists no GPU. An instance of a GPU without a compute instance is no device, and not listed."""
    profiles: dict[str, tuple[str, ...]] = {}
    uuid = ""
    for line in stdout.decode("utf-8", "replace").splitlines():
        gpu = _LISTED.match(line[:_LONGEST_LINE])
        device = _MIG_DEVICE.match(line[:_LONGEST_LINE])
        if gpu is not None:
            uuid = gpu["uuid"]
            profiles[uuid] = ()
        elif device is not None and uuid:
            profiles[uuid] = (*profiles[uuid], device["profile"])
    return profiles


def _list_leaves(element: ElementTree.Element, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """No generation nests deeper than six; the long lists of processes and clocks are left out."""
    for child in element:
        if child.tag in ("supported_clocks", "processes", "accounted_processes") or depth > 6:
            continue
        here = f"{path}{_normalise(str(child.tag))}"
        if len(child):
            yield from _list_leaves(child, f"{here}/", depth + 1)
        else:
            yield here, (child.text or "").strip()


def _normalise(label: str) -> str:
    """`SRAM Uncorrectable SEC-DED` and `sram_uncorrectable_secded` alike."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower().replace("-", "")).strip("_")


def _parse_text(text: str, lost: Mapping[str, str]) -> Printed:
    """`-q`: labels under labels by indentation. Of a file with several rounds the last speaks."""
    cards: dict[str, dict[str, str]] = {}
    values: Optional[dict[str, str]] = None
    above: list[tuple[int, str]] = []
    version = ""
    for line in text.splitlines():
        found = _TEXT_GPU.match(line)
        if found is not None:
            values, above = cards.setdefault(format_full_address(found["pci"]), {}), []
            continue
        if not line.strip() or line.startswith("#"):
            values = None if line.startswith("#") else values  # the next section of a file of many
            continue
        label, colon, value = line[:_LONGEST_LINE].partition(":")
        if values is None:
            version = value if label.strip() == "Driver Version" else version
            continue
        indent = len(label) - len(label.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        above.append((indent, _normalise(label)))
        if colon:
            values["/".join(name for _, name in above)] = value.strip()
    return Printed([PrintedGpu(pci, found) for pci, found in cards.items()], lost, version.strip())


def _parse_list(text: str) -> Iterator[PrintedGpu]:
    """`-L` has no addresses: index and UUID are what it tells them by."""
    for found in _LISTED.finditer(text):
        yield PrintedGpu(
            "", {"index": found["index"], "product_name": found["product"], "uuid": found["uuid"]}
        )


def _parse_table(text: str) -> Iterator[PrintedGpu]:
    """Two lines for each GPU: names and address above, `Fan Temp Perf Pwr` below."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        above = line[:_LONGEST_LINE].split("|")[1:]
        names = above[0].split() if len(above) > 2 else []
        pci = _TABLE_PCI.search(above[1]) if names and names[0].isdecimal() else None
        if pci is None:
            continue
        values = {
            "index": names[0],
            "product_name": " ".join(names[1:-1]),
            "table/ecc": above[2].strip(),
        }
        below = lines[number + 1][:_LONGEST_LINE].split("|")[1:] if number + 1 < len(lines) else []
        if len(below) > 2:
            sensors = (
                "fan_speed",
                "temperature/gpu_temp",
                "performance_state",
                "gpu_power_readings/power_draw",
            )
            values.update(zip(sensors, below[0].split()))
            values["utilization/gpu_util"] = (below[2].split() or [""])[0]
        yield PrintedGpu(format_full_address(pci[0]), values)


def _parse_csv(text: str) -> list[PrintedGpu]:
    """`--query-gpu=... --format=csv`: units stand in brackets behind the column's name. Empty when
    it is no such."""
    lines = text.splitlines()
    head = next(
        (number for number, line in enumerate(lines[:_MOST_LINES_BEFORE]) if _is_csv_head(line)),
        None,
    )
    if head is None:
        return []
    try:
        rows = list(csv.reader(lines[head:], skipinitialspace=True))
    except csv.Error:  # a NUL byte, or a field without end
        return []
    names = [name.split(" [")[0].strip().lower().replace(".", "/") for name in rows[0]]
    found = [dict(zip(names, row)) for row in rows[1:] if len(row) == len(names)]
    keys = [values.get("pci/bus_id") or values.get("gpu_bus_id") or "" for values in found]
    return [
        PrintedGpu(format_full_address(pci.strip()) if pci.strip() else "", values)
        for pci, values in zip(keys, found)
    ]


def _is_csv_head(line: str) -> bool:
    names = {name.split(" [")[0].strip() for name in line[:20_000].split(",")}
    return len(names) > 1 and bool(names & _CSV_KEYS)
