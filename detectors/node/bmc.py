"""A node's management controller: event log and sensors by ipmitool on the node, health and logs by
Redfish.

Log entries that stand there at first sight are history; those that come later are faults. Python
3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

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
from detectors.node.outputs import bmc_alarms, ipmitool, redfish
from detectors.provenance import Transport


class BmcDetector(NothingToCompare):
    """Power, cooling and hardware as the board itself sees them. Either way of asking is enough."""

    name: ClassVar[str] = "bmc"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    transport: ClassVar[Transport] = Transport.BMC
    every: ClassVar[timedelta] = timedelta(minutes=5)
    families: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "bmc.log_entry",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({bmc_alarms.CURSOR})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """ipmitool on the node, then Redfish where the inventory says where. Raises Unreachable for
        the node alone."""
        outputs = dict(via.shell.run_all(target, self.name, ipmitool.build_commands()))
        base = target.expected.urls.get("redfish", "")
        if base:
            outputs.update(redfish.collect(target, via, base))
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        return sniff(text)

    def parse(self, reading: Reading) -> Iterator[Observation]:
        yield from read(reading)
        silent = [f"{name}: {trouble}" for name, trouble in _list_troubles(reading)]
        yield reading.silent("; ".join(silent[:4])) if silent else reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        return bmc_alarms.observe_new_entries(now, before)


def sniff(text: bytes) -> str:
    """`sel`, `sensors` or `redfish`; `sensors` where nothing fits."""
    if text.lstrip().startswith(b"{"):
        return "redfish"
    lines = text.decode("utf-8", "replace").splitlines()
    return "sel" if any(ipmitool.is_sel(line) for line in lines[:500]) else "sensors"


def read(reading: Reading) -> Iterator[Observation]:
    """What the controller says in all outputs that are its own."""
    documents = []
    for name, output in reading.outputs.items():
        kind = name.partition(".")[0]
        if kind == "sel":
            yield from ipmitool.observe_sel(reading, output)
        elif kind == "sensors":
            yield from ipmitool.observe_sensors(reading, output)
        elif kind == "redfish":
            documents.append(output)
    yield from redfish.read(reading, documents)


def _list_troubles(reading: Reading) -> Iterator[tuple[str, str]]:
    """ipmitool may be missing where Redfish answers, and the other way round; one of them has
    to."""
    asked = {
        name: output
        for name, output in reading.outputs.items()
        if name.partition(".")[0] in ("sel", "sensors")
    }
    documents = {
        name: output for name, output in reading.outputs.items() if name.startswith("redfish")
    }
    has_redfish = any(redfish.parse_document(output.stdout) for output in documents.values())
    for name, output in asked.items():
        if (
            name != "sensors.power-unit"
            and not _is_readable(name, output)
            and not _is_by_design(output, has_redfish)
        ):
            yield name, output.complaint
    for name, output in documents.items():
        is_document = redfish.parse_document(output.stdout) is not None
        # Some services name links that they do not serve; the root has to be there.
        if not is_document and (output.status is None or name in ("redfish", "redfish.0")):
            yield name, output.complaint
    if not asked and not documents:
        yield "bmc", "nothing was asked"


def _is_readable(name: str, output: Output) -> bool:
    """Some boards end with an error for one sensor of many; a log without entries is one too in
    some versions."""
    if output.status is None:
        return False
    text = output.stdout.decode("utf-8", "replace")
    if name == "sensors":
        return any(ipmitool.parse_alarms(text))
    return (
        output.status == 0
        or ipmitool.is_empty(output)
        or any(ipmitool.is_sel(line) for line in text.splitlines())
    )


def _is_by_design(output: Output, has_redfish: bool) -> bool:
    no_device = b"Could not open device at" in output.stderr
    return has_redfish and (output.is_missing or no_device)
