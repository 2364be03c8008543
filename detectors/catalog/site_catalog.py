"""Where the site's own files of the catalogue lie. Set once by whoever knows the settings; light,
so that a command that needs no catalogue pays nothing for it. Python 3.9, standard library
alone."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

_directory: Optional[Path] = None


def set_directory(directory: Optional[Path]) -> None:
    """From now on `catalog.load` reads its files too; None: the shipped ones alone."""
    global _directory
    _directory = directory


def get_directory() -> Optional[Path]:
    return _directory
