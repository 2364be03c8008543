"""One round of detectors on one target. A detector that fails is an observation of its own, never silence.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from detectors import resources
from detectors.detector import Detector, DetectorError, Target, Transports
from detectors.faults import Observation

_log = logging.getLogger(__name__)


def observe(target: Target, detectors: Sequence[Detector], via: Transports, now: datetime) -> list[Observation]:
    """What all detectors see on the target; ends at the first one that cannot reach it.

    Adds `target.reachable` for the node, and `detector.answered` False where a detector broke.
    """
    node = resources.node(target.name)
    found: list[Observation] = []
    for detector in detectors:
        try:
            found.extend(detector.parse(detector.collect(target, via, now)))
        except DetectorError as error:
            return [*found, Observation(node, "target.reachable", False, now, {"text": str(error)})]
        except Exception as error:  # noqa: BLE001 - one of the four named places: around one poll
            _log.exception("detector %s broke on %s", detector.name, target.name)
            broke = {"detector": detector.name, "text": f"it broke: {type(error).__name__}: {error}"}
            found.append(Observation(node, "detector.answered", False, now, broke))
    return [*found, Observation(node, "target.reachable", True, now)]
