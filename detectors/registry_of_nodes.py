"""The detectors that look at nodes, over SSH or on the node itself: what the node check carries with it.

Python 3.9, standard library alone, and so is every module named here.
"""

from __future__ import annotations

from detectors.bmc import BmcDetector
from detectors.config import ConfigDetector
from detectors.dcgm import DcgmDetector
from detectors.detector import Detector
from detectors.disks import DisksDetector
from detectors.gpu import GpuDetector
from detectors.host import HostDetector
from detectors.nic import NicDetector
from detectors.node_log import NodeLogDetector
from detectors.nvlink import NvlinkDetector
from detectors.pcie import PcieDetector
from detectors.rail import RailDetector
from detectors.transceiver import TransceiverDetector

NODE_DETECTORS: tuple[Detector, ...] = (
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
    ConfigDetector(),
    DcgmDetector(),
)
