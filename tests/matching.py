"""The matcher of the shipped catalogue, made once in each process, which takes half a second: tests
use it in one thread after the other."""

from __future__ import annotations

from functools import cache

from detectors.catalog import catalog
from detectors.logs.signatures import Matcher


@cache
def get_shipped_matcher(engine: str = "") -> Matcher:
    return Matcher(catalog.load(), engine=engine)
