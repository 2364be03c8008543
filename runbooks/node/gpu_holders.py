"""Which processes hold GPUs of a node, as nvidia-smi shows them. Only looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from detectors import resources
from detectors.detector import DetectorError, Shell, Target

COMMAND = (
    "nvidia-smi",
    "--query-compute-apps=gpu_bus_id,pid,process_name",
    "--format=csv,noheader",
)
TIMEOUT = timedelta(seconds=20)


@dataclass(frozen=True)
class Holder:
    """A process on a GPU, by its PCI address."""

    address: str
    pid: str
    name: str

    def __str__(self) -> str:
        return f"Process {self.pid} ({self.name}) holds GPU {self.address}"


def list_holders(shell: Shell, target: Target) -> Sequence[Holder] | None:
    """None where nvidia-smi does not tell: who holds the GPUs is not known then."""
    try:
        output = shell.run(target, COMMAND, TIMEOUT)
    except DetectorError:
        return None
    parsed = (_parse_line(line) for line in output.text.splitlines())
    found = [holder for holder in parsed if holder is not None]
    return found if found or output.status == 0 else None


def _parse_line(line: str) -> Holder | None:
    bus, _, rest = line.partition(", ")
    pid, _, name = rest.partition(", ")
    address = resources.pci_address(bus)
    return Holder(address, pid, name.strip()) if address and pid.isdecimal() else None
