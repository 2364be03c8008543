"""What only several machines' polls show together, judged now and then: cables by both ends, rails by several nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.catalog import Catalog
from detectors.faults import FaultEvent
from incidents import services as incidents
from runbooks import services as runbooks
from runbooks.slurm import Slurm

# Links are polled every 60 s: sooner there is nothing new. Each process keeps its own time; saying twice is harmless.
_EVERY = timedelta(minutes=1)


@dataclass
class Comparing:
    """When this process has compared last."""

    last: datetime | None = None

    def due(self, now: datetime, catalog: Catalog, slurm: Slurm) -> list[FaultEvent]:
        """Says of open incidents which end of their cable is suspect; the events are those of rails."""
        if self.last is not None and now < self.last + _EVERY:
            return []
        self.last = now

        def jobs(names: Collection[str]) -> Mapping[str, frozenset[str]] | None:
            return runbooks.jobs_on(names, slurm)

        incidents.say_verdicts(incidents.cable_verdicts(now, jobs=jobs), now)
        return incidents.slow_rails(now, catalog, jobs=jobs)
