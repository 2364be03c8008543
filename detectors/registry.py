"""Every detector, one line each. The contract tests and the poller find them here and nowhere else."""

from __future__ import annotations

from detectors.bmc import BmcDetector
from detectors.config import ConfigDetector
from detectors.dcgm import DcgmDetector
from detectors.detector import Detector
from detectors.disks import DisksDetector
from detectors.gpu import GpuDetector
from detectors.host import HostDetector
from detectors.job_stalled import JobStalledDetector
from detectors.nic import NicDetector
from detectors.node_log import NodeLogDetector
from detectors.nvlink import NvlinkDetector
from detectors.pcie import PcieDetector
from detectors.prometheus import PrometheusDetector
from detectors.rail import RailDetector
from detectors.slurm_jobs import SlurmJobsDetector
from detectors.slurm_nodes import SlurmNodesDetector
from detectors.snmptrap import SnmptrapDetector
from detectors.sonic import SonicDetector
from detectors.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from detectors.transceiver import TransceiverDetector

DETECTORS: tuple[Detector, ...] = (
    GpuDetector(),
    NvlinkDetector(),
    PcieDetector(),
    HostDetector(),
    NicDetector(),
    RailDetector(),
    TransceiverDetector(),
    DisksDetector(),
    NodeLogDetector(),
    BmcDetector(),
    SlurmNodesDetector(),
    SwitchSnmpDetector(),
    SwitchSensorsDetector(),
    SonicDetector(),
    ConfigDetector(),
    DcgmDetector(),
    PrometheusDetector(),
    SlurmJobsDetector(),
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
