"""The detectors that look at nodes, over SSH or on the node itself: what the node check carries
with it.

Python 3.9, standard library alone, and so is every module of `detectors.node`.
"""

from __future__ import annotations

from detectors import discovery, node
from detectors.detector import Detector

# The most frequent first: the first that looks says for all whether the node answers, and must be
# due again at the next look.
NODE_DETECTORS: tuple[Detector, ...] = tuple(
    sorted(
        discovery.list_node_detectors(node), key=lambda detector: (detector.every, detector.name)
    )
)
