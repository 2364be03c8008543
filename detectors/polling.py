"""One look of detectors at one target. A detector that fails is an observation of its own, never silence.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from detectors.detector import Detector, DetectorError, Target, Transports, Unreachable
from detectors.faults import Observation

_log = logging.getLogger(__name__)


def observe_one(target: Target, detector: Detector, via: Transports, now: datetime) -> list[Observation]:
    """What one detector sees, with `target.reachable`, and `detector.answered` False where it broke."""
    found: list[Observation] = []
    try:
        found.extend(detector.parse(detector.collect(target, via, now)))
    except Unreachable as error:
        return [Observation(target.resource, "target.reachable", False, now, {"text": str(error)})]
    except DetectorError as error:
        found.append(_silent(target, detector, now, str(error)))
    except Exception as error:  # noqa: BLE001 - one of the four named places: around one poll
        _log.exception("detector %s broke on %s", detector.name, target.name)
        found.append(_silent(target, detector, now, f"it broke: {type(error).__name__}: {error}"))
    return [*found, Observation(target.resource, "target.reachable", True, now)]


def _silent(target: Target, detector: Detector, now: datetime, text: str) -> Observation:
    attributes = {"detector": detector.name, "text": text}
    return Observation(target.resource, "detector.answered", False, now, attributes)


def observe(target: Target, detectors: Sequence[Detector], via: Transports, now: datetime) -> list[Observation]:
    """What all detectors see on the target, one after the other; ends at the first one that cannot reach it."""
    found: list[Observation] = []
    is_reachable = Observation(target.resource, "target.reachable", True, now)
    for detector in detectors:
        seen = observe_one(target, detector, via, now)
        found.extend(seen[:-1])
        is_reachable = seen[-1]
        if is_reachable.value is False:
            break
    return [*found, is_reachable]
