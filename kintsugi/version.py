"""Which version this is."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def get_version() -> str:
    """Of the installed distribution; a checkout that is not installed has it in pyproject.toml."""
    try:
        return metadata.version("kintsugi")
    except metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])
