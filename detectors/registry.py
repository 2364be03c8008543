"""Every detector, one line each. The contract tests and the poller find them here and nowhere
else."""

from __future__ import annotations

from detectors.detector import Detector
from detectors.metrics.prometheus import PrometheusDetector
from detectors.node_registry import NODE_DETECTORS
from detectors.slurm.job_stalled import JobStalledDetector
from detectors.slurm.slurm_jobs import SlurmJobsDetector
from detectors.slurm.slurm_nodes import SlurmNodesDetector
from detectors.switch.sonic import SonicDetector
from detectors.switch.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from detectors.switch.trap_files import SnmptrapDetector

DETECTORS: tuple[Detector, ...] = (
    *NODE_DETECTORS,
    SwitchSnmpDetector(),
    SwitchSensorsDetector(),
    SonicDetector(),
    SlurmNodesDetector(),
    SlurmJobsDetector(),
    PrometheusDetector(),
    JobStalledDetector(),
)

# What comes by itself and is never asked for: its files are read all the same.
HANDED_IN: tuple[Detector, ...] = (SnmptrapDetector(),)


def get_by_name(name: str) -> Detector:
    """Raises KeyError naming the detectors that exist."""
    for detector in (*DETECTORS, *HANDED_IN):
        if detector.name == name:
            return detector
    raise KeyError(f"no detector {name}; there are {', '.join(sorted(d.name for d in DETECTORS))}")
