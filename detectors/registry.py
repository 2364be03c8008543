"""Every detector, one line each. The contract tests and the poller find them here and nowhere else."""

from __future__ import annotations

from detectors.detector import Detector
from detectors.gpu import GpuDetector
from detectors.slurm_nodes import SlurmNodesDetector

DETECTORS: tuple[Detector, ...] = (
    GpuDetector(),
    SlurmNodesDetector(),
)


def by_name(name: str) -> Detector:
    """Raises KeyError naming the detectors that exist."""
    for detector in DETECTORS:
        if detector.name == name:
            return detector
    raise KeyError(f"no detector {name}; there are {', '.join(sorted(d.name for d in DETECTORS))}")
