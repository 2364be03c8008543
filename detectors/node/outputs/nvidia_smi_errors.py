"""What nvidia-smi says instead of an answer: it hangs, its driver does not run, or it gives up at a
lost GPU.

Each is a fault of its own, the same whichever command met it; what explains nothing is silence of
the detector. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors import resources
from detectors.detector import Output, Reading
from detectors.faults import Observation
from detectors.node.outputs import nvidia_smi

# NVML's words for one thing: its library in user space is not of the version of the module in the
# kernel.
_MISMATCH = re.compile(r"driver/library version mismatch", re.IGNORECASE)
_NO_DRIVER = re.compile(
    r"couldn't communicate with the NVIDIA driver|driver not loaded", re.IGNORECASE
)


def observe_hang(reading: Reading, seconds: float) -> Observation:
    return reading.saw(
        "gpu.responsive", False, text=f"nvidia-smi gave no answer within {seconds:g} s"
    )


def observe_failure(reading: Reading, output: Output, what: str) -> Iterator[Observation]:
    """Of GPUs that were not spoken of nothing is known. `what` was asked, for people."""
    words = (output.stdout + b"\n" + output.stderr).decode("utf-8", "replace")
    is_mismatch = bool(_MISMATCH.search(words))
    is_driver = is_mismatch or bool(_NO_DRIVER.search(words))
    on_bus = nvidia_smi.are_on_bus(reading.outputs.get(nvidia_smi.DEVICES.name))
    are_wanted = bool(reading.target.expected.gpus) or on_bus
    lost = nvidia_smi.parse_gpus_without_handle(words)
    if (output.is_missing or is_driver) and not are_wanted and on_bus is False:
        yield reading.answered()  # a node without GPUs: its driver is nobody's fault
    elif is_driver and are_wanted:
        yield reading.answered()
        metric = "gpu.driver_fits" if is_mismatch else "gpu.driver_runs"
        yield reading.saw(metric, False, text=output.complaint)
        if not is_mismatch:
            yield reading.saw("gpu.driver_fits", True)
    elif lost:
        yield (
            reading.answered()
        )  # it gives up at the first GPU that it cannot open: that GPU is the answer
    else:
        yield reading.silent(f"{what} ended with {output.complaint}")
    for pci, text in lost.items():
        yield reading.saw("gpu.present", False, resources.gpu(reading.target.name, pci), text=text)
