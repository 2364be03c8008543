"""A node itself: boot, clock, services, main memory, file systems, RAID, Lustre's connections,
mounts.

Collects in one bundle; what each output means stands in `host_system` and `host_storage`. Never
asks a shared file system. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors.detector import (
    NothingToCompare,
    Output,
    Reading,
    Samples,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.node.outputs import (
    bmc_alarms,
    host_inventory,
    host_storage,
    host_system,
    ipmitool,
    redfish,
)

_READERS: dict[str, Callable[[Reading, Output], Iterator[Observation]]] = {
    "date": host_system.observe_date,
    "boot": host_system.observe_boot,
    "services": host_system.observe_services,
    "vmstat": host_system.observe_vmstat,
    "interrupts": host_system.observe_interrupts,
    "edac": host_system.observe_edac,
    "chrony": host_system.observe_chrony,
    "ntpq": host_system.observe_ntpq,
    "df": host_storage.observe_room,
    "mdstat": host_storage.observe_mdstat,
    "lustre": host_storage.observe_lustre,
    "smart": host_storage.observe_smart,
    # What the detectors `bmc` and `disks` collect is understood here too, when a person hands it
    # in.
    "sel": ipmitool.observe_sel,
    "sensors": ipmitool.observe_sensors,
    "snapshot": host_inventory.read,
    "redfish": lambda reading, output: redfish.read(reading, [output]),
}
# Without these nothing is known of the node; every Linux has them.
_NEEDED = frozenset({"boot", "mounts"})
# A node may do without; what they say when they have nothing to show is no complaint.
_MAY_FAIL = {
    "vmstat": re.compile(r"^$"),
    "interrupts": re.compile(r"^$"),
    "ntpq": re.compile(r""),
    "chrony": re.compile(r""),
    "fstab": re.compile(r"No such file"),
    "mdstat": re.compile(r"No such file"),
    "edac": re.compile(r"No such file"),
    "df": re.compile(r"no file systems processed"),
    "lustre": re.compile(r"param_path|No such file|No such device|not found"),
    "services": re.compile(r"not been booted with systemd|Failed to connect to bus"),
}
# How a file that a person hands in is told apart, by what only that output holds.
_SNIFFED = (
    ("chrony", re.compile(rb"^Leap status\s*:", re.MULTILINE)),
    ("services", re.compile(rb"^ActiveState=", re.MULTILINE)),
    ("mdstat", re.compile(rb"^Personalities :", re.MULTILINE)),
    ("lustre", re.compile(rb"^import:\s*$", re.MULTILINE)),
    (
        "smart",
        re.compile(rb'"(?:critical_warning|nvme_smart_health_information_log|smart_status)"'),
    ),
    ("edac", re.compile(rb"^/sys/devices/system/edac/", re.MULTILINE)),
    ("df", re.compile(rb"^\S+\s+\S+\s+(?:\d+%|-)\s+(?:\d+%|-)\s+/", re.MULTILINE)),
    ("mounts", re.compile(rb"^\S+ / \S+ \S+ \d+ \d+$", re.MULTILINE)),
    ("vmstat", re.compile(rb"^oom_kill \d+", re.MULTILINE)),
    ("interrupts", re.compile(rb"^[ \t]*MCE:\s", re.MULTILINE)),
    ("ntpq", re.compile(rb"\bleap_\w+")),
    ("boot", re.compile(rb"^[0-9a-f]{8}-[0-9a-f-]{27}\s+\d+\.\d+ ")),
    ("redfish", re.compile(rb"^\s*\{.{0,4000}?(?:@odata|\"Status\")", re.DOTALL)),
    ("sel", re.compile(rb"^[ \t]*[0-9a-f]{1,5} \| \d\d/\d\d/\d+ \| \d", re.MULTILINE)),
    (
        "sensors",
        re.compile(
            rb"^(?:Sensor ID\s*:|\S[^|\n]* \| [^|\n]*\|"
            rb" *(?:ok|ns|[lu]?(?:nc|cr|nr))\b|\d+,[^,\n]+,[^,\n]+,)",
            re.MULTILINE,
        ),
    ),
)


class HostDetector(NothingToCompare):
    """Everything of a node that is cheap to ask and is no GPU, NIC or disk."""

    name: ClassVar[str] = "host"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset(
        {"clock", "cpu", "filesystem", "lustre", "memory", "mount", "node", "raid", "service"}
    )
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "node.boot_id",
            "node.uptime_s",
            "raid.state",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({bmc_alarms.CURSOR, "raid.started"})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One bundle, and a second where Lustre is mounted. Raises DetectorError: the node is out
        of reach, or busy."""
        wanted = [
            *host_system.build_commands(target.expected.services),
            *host_storage.build_commands(),
        ]
        outputs = dict(via.shell.run_all(target, self.name, wanted))
        further = host_storage.build_lustre_commands(outputs["mounts"])
        if further:
            outputs.update(via.shell.run_all(target, self.name, further))
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        """`mounts` where nothing fits: its reader says nothing of what is no mount table."""
        if host_inventory.is_one(text):
            return "snapshot"
        return next((name for name, pattern in _SNIFFED if pattern.search(text)), "mounts")

    def parse(self, reading: Reading) -> Iterator[Observation]:
        found: list[Observation] = []
        silent: list[str] = []
        for name, output in reading.outputs.items():
            observations = list(self._observe_output(reading, name, output))
            found += observations
            trouble = _find_complaint(name, output, is_told=bool(observations))
            silent += [f"{name}: {trouble}"] if trouble else []
        yield from found
        yield reading.silent("; ".join(silent)) if silent else reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        yield from host_storage.observe_stopped_arrays(now, before)
        yield from bmc_alarms.observe_new_entries(now, before)

    def _observe_output(self, reading: Reading, name: str, output: Output) -> Iterator[Observation]:
        if name == "mounts":
            return host_storage.observe_mounts(reading, output, reading.outputs.get("fstab"))
        read = _READERS.get(name)
        return read(reading, output) if read else iter(())


def _find_complaint(name: str, output: Output, *, is_told: bool) -> Optional[str]:
    """Why an output tells less than it should; None where it is well, or not needed."""
    if output.status is None:
        return output.complaint
    if name == "mounts" and b" / " in output.stdout:
        return None
    if name in _NEEDED and not is_told:
        return output.complaint
    if name == "sensors" and not is_told:  # `ok` says that a sensor was read, and no more
        return f"no sensor tells how its part is: {output.complaint}"
    if output.status == 0 or is_told or output.is_missing:
        return None
    allowed = _MAY_FAIL.get(name)
    stderr = output.stderr.decode("utf-8", "replace").strip()
    return None if allowed is not None and allowed.search(stderr) else output.complaint
