"""Every detector, one line each. The contract tests and the poller find them here and nowhere else."""

from __future__ import annotations

from detectors.detector import Detector
from detectors.job_stalled import JobStalledDetector
from detectors.prometheus import PrometheusDetector
from detectors.registry_of_nodes import NODE_DETECTORS
from detectors.slurm_jobs import SlurmJobsDetector
from detectors.slurm_nodes import SlurmNodesDetector
from detectors.snmptrap import SnmptrapDetector
from detectors.sonic import SonicDetector
from detectors.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector

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


def by_name(name: str) -> Detector:
    """Raises KeyError naming the detectors that exist."""
    for detector in (*DETECTORS, *HANDED_IN):
        if detector.name == name:
            return detector
    raise KeyError(f"no detector {name}; there are {', '.join(sorted(d.name for d in DETECTORS))}")
