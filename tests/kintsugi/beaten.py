"""A pipeline on a clock that the test turns, called as by a beat, over a Slurm of the test's
choice."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from detectors.catalog import catalog
from kintsugi.pipeline import Pipeline
from tests.builders import NOW
from tests.runbooks.site import Site


class Deaf:
    """People and doorbells of a site where nobody listens."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **more: None


class Beaten:
    """`pipeline` is one process; `another` makes a second one over the same database."""

    def __init__(self, slurm: Any, **pace: Any) -> None:
        self.now: datetime = NOW
        self._world = replace(Site(nodes=0).world, slurm=slurm)
        self.pipeline = self.another(**pace)

    def another(self, **pace: Any) -> Pipeline:
        notifier: Any = Deaf()
        return Pipeline(self._world, notifier, notifier, lambda: self.now, catalog.load(), **pace)
