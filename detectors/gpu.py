"""GPUs of a node by `nvidia-smi -q -x`: how many there are, and which of the expected ones are lost.

Python 3.9, standard library alone. Issue of meaning only; thresholds and severities are the catalogue's.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors import resources
from detectors.detector import NothingToCompare, Output, Reading, Target, TargetKind, Transports
from detectors.faults import Observation

_COMMAND = ("nvidia-smi", "-q", "-x")
# A healthy HGX node answers in 2 to 8 s without the persistence daemon; gpud gives up after 30 s as well
# (https://github.com/leptonai/gpud, components/accelerator/nvidia/query).
_TIMEOUT = timedelta(seconds=30)
# `GPU 0000:09:00.0:`, `GPU0000:17:00.0:` and a domain of three digits all occur; fixtures/signals/gpu.
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)\s?(?P<pci>[0-9A-Fa-f:.]+):\s*(?P<text>[^\r\n]{0,120})"
)
_LOST_WORDS = ("gpu is lost", "unknown error", "err!")
_FIELDS_THAT_TELL = ("product_name", "uuid", "serial")
_EXCERPT = 200


class GpuDetector(NothingToCompare):
    """Presence of the expected GPUs. Observes `detector.answered`, `gpu.responsive`, `gpu.count`, `gpu.present`."""

    name: ClassVar[str] = "gpu"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One nvidia-smi call. Raises DetectorError when the node cannot be reached."""
        output = via.shell.run(target, _COMMAND, _TIMEOUT)
        return Reading(detector=self.name, target=target, taken_at=now, outputs={"nvidia-smi": output})

    def sniff(self, text: bytes) -> str:
        return "nvidia-smi"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        output = reading.outputs["nvidia-smi"]
        node = resources.node(reading.target.name)
        if output.status is None:
            text = f"nvidia-smi gave no answer within {_TIMEOUT.seconds} s"
            yield Observation(node, "gpu.responsive", False, reading.taken_at, {"text": text})
            return
        yield Observation(node, "gpu.responsive", True, reading.taken_at)
        lost = _without_handle(output)
        listed = _listed(output)
        if listed is None:
            # Of GPUs that were not spoken of nothing is known: that is a fault of the look, not of the GPUs.
            silent = {"detector": self.name, "text": _complaint(output)}
            yield Observation(node, "detector.answered", False, reading.taken_at, silent)
            for pci, text in lost.items():
                yield _presence(reading, pci, text)
            return
        yield Observation(node, "detector.answered", True, reading.taken_at, {"detector": self.name})
        yield from _inventory(reading, {**listed, **lost})


def _presence(reading: Reading, pci: str, loss: str) -> Observation:
    """`loss` is empty for a GPU that answers, else the words of its loss."""
    attributes = {"text": loss} if loss else {}
    return Observation(resources.gpu(reading.target.name, pci), "gpu.present", not loss, reading.taken_at, attributes)


def _inventory(reading: Reading, states: dict[str, str]) -> Iterator[Observation]:
    """`states` maps each PCI address that nvidia-smi spoke of to "" (well) or the words of its loss."""
    target = reading.target
    expected = [pci for _, pci in target.expected.gpus]
    present = sum(1 for text in states.values() if not text)
    wanted = len(expected) or len(states)
    attributes = {"expected": str(wanted), "text": f"{present} of {wanted} GPUs answer"}
    yield Observation(resources.node(target.name), "gpu.count", present, reading.taken_at, attributes)
    for pci in [*expected, *(pci for pci in states if pci not in expected)]:
        yield _presence(reading, pci, states.get(pci, "nvidia-smi does not list it"))


def _without_handle(output: Output) -> dict[str, str]:
    """PCI address to the driver's words, of each GPU that it names but cannot open."""
    text = (output.stdout + b"\n" + output.stderr).decode("utf-8", "replace")
    return {
        _full_address(found["pci"]): found["text"].strip() or "no device handle" for found in _NO_HANDLE.finditer(text)
    }


def _listed(output: Output) -> dict[str, str] | None:
    """PCI address to "" or words of loss, of each GPU in the XML; None when there is no XML."""
    root = _document(output.stdout)
    if root is None:
        return None
    addresses = ((resources.pci_address(gpu.get("id", "")), gpu) for gpu in root.iter("gpu"))
    return {pci: _words_of_loss(gpu) for pci, gpu in addresses if pci is not None}


def _document(stdout: bytes) -> ElementTree.Element | None:
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


def _words_of_loss(gpu: ElementTree.Element) -> str:
    """Only identity fields are read: a healthy H100 prints `Unknown Error` under its addressing mode."""
    for name in _FIELDS_THAT_TELL:
        value = (gpu.findtext(name) or "").strip()
        if any(word in value.lower() for word in _LOST_WORDS):
            return value
    return ""


def _full_address(pci: str) -> str:
    """A domain of three digits occurs (dcgm-exporter issue 604)."""
    return resources.pci_address(pci) or resources.pci_address(pci.rjust(12, "0")) or pci.lower()


def _complaint(output: Output) -> str:
    words = (output.stderr.strip() or output.stdout.strip()).decode("utf-8", "replace")
    shown = " ".join(words.split())[:_EXCERPT] or "no output"
    return f"nvidia-smi ended with status {output.status}: {shown}"
