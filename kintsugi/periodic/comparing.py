"""What only several machines' polls show together: cables by both ends, rails by several nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from detectors.catalog.catalog import Catalog
from detectors.faults import FaultEvent
from incidents import services as incidents
from runbooks.slurm import running_jobs
from runbooks.slurm.protocol import SlurmReader


def compare(now: datetime, catalog: Catalog, slurm: SlurmReader) -> list[FaultEvent]:
    """Says of open incidents which end of their cable is suspect; the events are those of rails."""

    def jobs(names: Collection[str]) -> Mapping[str, frozenset[str]] | None:
        return running_jobs.get_running_jobs(names, slurm)

    incidents.record_verdicts(incidents.evaluate_cables(now, jobs=jobs), now)
    return incidents.evaluate_rails(now, catalog, jobs=jobs)
