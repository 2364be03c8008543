"""The site's settings file: TOML whose keys are the names of the settings. The environment wins.

It is read where `KINTSUGI_CONFIG` names it; `kintsugi` names /etc/kintsugi/kintsugi.toml by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from detectors import toml_text

VARIABLE = "KINTSUGI_CONFIG"
DEFAULT_PATH = Path("/etc/kintsugi/kintsugi.toml")
_FILE = "_FILE"


@dataclass(frozen=True)
class Sources:
    """Settings as text by name, and the file of those that came from one."""

    values: dict[str, str]
    origins: dict[str, Path] = field(default_factory=dict)


def merge(environ: Mapping[str, str]) -> Sources:
    """The environment over the file that it names. Raises ImproperlyConfigured for the file."""
    name = environ.get(VARIABLE, "")
    if not name:
        return Sources(dict(environ))
    path = Path(name)
    values = dict(environ)
    origins: dict[str, Path] = {}
    for setting, text in read(path).items():
        if not _is_in(environ, setting):
            values[setting] = text
            origins[setting] = path
    return Sources(values, origins)


def read(path: Path) -> dict[str, str]:
    """Settings as they would stand in the environment. Raises ImproperlyConfigured."""
    try:
        table = toml_text.parse(path.read_text())
    except OSError as error:
        raise ImproperlyConfigured(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ImproperlyConfigured(f"{path}: expected UTF-8 ({error.reason}).") from error
    except ValueError as error:
        raise ImproperlyConfigured(f"{path}: expected TOML: {error}.") from error
    problems: list[str] = []
    values: dict[str, str] = {}
    for name, value in table.items():
        text = _format_value(value)
        if text is None:
            problems.append(f"{path}: {name}: expected a text, a number, true, false or a list.")
        else:
            values[name] = text
    if problems:
        raise ImproperlyConfigured("\n".join(problems))
    return values


def find_default_path() -> Path | None:
    """The file of the machine's site, where there is one, readable or not."""
    try:
        return DEFAULT_PATH if DEFAULT_PATH.exists() else None
    except PermissionError:
        return DEFAULT_PATH


def _is_in(environ: Mapping[str, str], setting: str) -> bool:
    """A secret in the environment outdoes the file's, whichever of the two names it has there."""
    base = setting.removesuffix(_FILE)
    return base in environ or f"{base}{_FILE}" in environ


def _format_value(value: Any) -> str | None:
    """A list is joined by commas, as settings with several words are written."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    return None
