"""Disks of a node by their own watch over themselves: NVMe health logs, SMART of others,
controllers that died.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.detector import (
    Command,
    NothingToCompare,
    Output,
    Reading,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.node.outputs import host_storage
from detectors.transports import files

_NVME = re.compile(r"^/sys/class/nvme/(nvme\d+)/(serial|model|firmware_rev|state)$")
_BLOCK = re.compile(r"^sd[a-z]+$")
_METRICS = {"serial": "disk.serial", "model": "disk.model", "firmware_rev": "disk.firmware"}
# Controllers of RAID cards show volumes of their own making: SMART of those is not the disks'.
_VOLUMES = re.compile(r"PERC|MR\d|Virtual|LOGICAL VOLUME|VMware|QEMU", re.IGNORECASE)
_MOST_DISKS = 64
_TIMEOUT = timedelta(seconds=5)
# What is no trouble: states of the Linux NVMe driver (nvme_sysfs_show_state) other than these are
# of a dying one.
_LIVE = frozenset({"live", "new", "resetting", "connecting"})


class DisksDetector(NothingToCompare):
    """Health of each local disk. Lists them from sysfs, then asks each in one bundle."""

    name: ClassVar[str] = "disks"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(minutes=5)
    families: ClassVar[frozenset[str]] = frozenset({"disk"})
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "disk.firmware",
            "disk.model",
            "disk.serial",
        }
    )

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Two or three rounds. Raises DetectorError when the node cannot be reached, or its last
        round still runs."""
        nvme = (f"/sys/class/nvme/nvme*/{key}" for key in (*_METRICS, "state"))
        listing = [
            files.build_read_command("nvme-list", "/sys/class/nvme", *nvme, depth=2),
            Command(
                "block-list",
                ("lsblk", "--json", "--nodeps", "--output", "NAME,TYPE,VENDOR,MODEL"),
                _TIMEOUT,
            ),
        ]
        outputs = via.shell.run_all(target, self.name, listing)
        asked = (
            via.shell.run_all(target, self.name, _list_questions(outputs))
            if _list_questions(outputs)
            else {}
        )
        unasked = [
            name for name, output in asked.items() if name.startswith("nvme.") and output.is_missing
        ]
        again = (
            via.shell.run_all(
                target,
                self.name,
                [_get_smartctl_command(name.split(".", 1)[1]) for name in unasked],
            )
            if unasked
            else {}
        )
        kept = {name: output for name, output in asked.items() if name not in unasked}
        return Reading(self.name, target, now, {**outputs, **kept, **again})

    def sniff(self, text: bytes) -> str:
        return "nvme-list" if text.lstrip().startswith(b"/sys/") else "smart"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        silent: list[str] = []
        for name, output in reading.outputs.items():
            if name.endswith("-list"):
                yield from _observe_list(reading, output)
                silent += [f"{name}: {output.complaint}"] if _is_unlisted(name, output) else []
                continue
            observations = list(host_storage.observe_smart(reading, output, name.partition(".")[2]))
            yield from observations
            silent += [] if observations else [f"{name}: {output.complaint}"]
        yield reading.silent("; ".join(silent[:8])) if silent else reading.answered()


def _is_unlisted(name: str, output: Output) -> bool:
    """lsblk always answers; /sys/class/nvme is not there where no NVMe disk is."""
    return output.status is None or (
        name == "block-list" and host_storage.parse_document(output.stdout) is None
    )


def _observe_list(reading: Reading, output: Output) -> Iterator[Observation]:
    for path, value in files.parse_contents(output).items():
        found = _NVME.match(path)
        if found is None:
            continue
        resource = host_storage.build_part_path(reading, found[1])
        if found[2] == "state":
            sentence = f"the driver says that {found[1]} is {value.strip()}"
            yield reading.saw("disk.live", value.strip() in _LIVE, resource, text=sentence)
        else:
            yield reading.saw(_METRICS[found[2]], value.strip(), resource)


def _list_questions(outputs: dict[str, Output]) -> list[Command]:
    """One for each disk that is alive; none for volumes that a RAID controller made up."""
    states: dict[str, str] = {}
    for path, value in files.parse_contents(outputs["nvme-list"]).items():
        found = _NVME.match(path)
        if found:
            states[found[1]] = value.strip() if found[2] == "state" else states.get(found[1], "")
    alive = sorted(name for name, state in states.items() if not state or state in _LIVE)
    return [
        *map(_get_nvme_command, alive),
        *map(_get_smartctl_command, _list_unlisted_devices(outputs["block-list"])),
    ][:_MOST_DISKS]


def _list_unlisted_devices(output: Output) -> list[str]:
    rows = (host_storage.parse_document(output.stdout) or {}).get("blockdevices")
    found = []
    for row in rows if isinstance(rows, list) else []:
        name = str(row.get("name", "")) if isinstance(row, dict) else ""
        if _BLOCK.match(name) and row.get("type") == "disk":
            words = f"{row.get('vendor') or ''} {row.get('model') or ''}"
            found += [] if _VOLUMES.search(words) else [name]
    return sorted(found)


def _get_nvme_command(device: str) -> Command:
    return Command(
        f"nvme.{device}",
        ("nvme", "smart-log", f"/dev/{device}", "-o", "json"),
        _TIMEOUT,
        as_root=True,
    )


def _get_smartctl_command(device: str) -> Command:
    argv = ("smartctl", "--json", "--health", "--attributes", "--info", f"/dev/{device}")
    return Command(f"smartctl.{device}", argv, _TIMEOUT, as_root=True)
