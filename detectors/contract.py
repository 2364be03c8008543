"""What a detector promises beyond its types, for the tests of every detector and of new ones."""

from __future__ import annotations

from collections.abc import Collection

from detectors.catalog.catalog import Catalog
from detectors.detector import Detector


def list_unused_metrics(
    detector: Detector, metrics: Collection[str], catalog: Catalog
) -> list[str]:
    """The metrics that no rule or type mentions, that no later round needs, and that the detector
    does not name as kept for the record."""
    kept = detector.keeps | detector.for_the_record
    return sorted(
        metric
        for metric in metrics
        if metric not in catalog.rules and metric not in catalog.types and metric not in kept
    )
