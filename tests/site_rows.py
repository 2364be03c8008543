"""Rows of a site in the catalogue, for as long as a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detectors.catalog import catalog, site_catalog

NHC = """
[[drain]]
pattern = "NHC: *"
set_by = ["root"]
type = "gpu.lost"
resume = RESUME
source = "https://github.com/mej/nhc"
"""


@contextmanager
def site_rows(directory: Path, text: str) -> Iterator[None]:
    (directory / "site.toml").write_text(text)
    before = site_catalog.get_directory()
    catalog._site = catalog._SiteCatalog()
    site_catalog.set_directory(directory)
    try:
        yield
    finally:
        site_catalog.set_directory(before)


def nhc(*, resume: bool) -> str:
    """Drains by NHC tell of a lost GPU."""
    return NHC.replace("RESUME", str(resume).lower())
