"""TOML that people write for us. Where there is no tomllib (Python before 3.11) none is read."""

from __future__ import annotations

from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # the node check, which brings the catalogue compiled
    tomllib = None  # type: ignore[assignment]


def parse(written: str) -> dict[str, Any]:
    """The tables. Raises ValueError with what is wrong."""
    try:
        return tomllib.loads(written)
    except RecursionError:
        # Not from it: its traceback is as long as the stack is deep.
        raise ValueError(
            "tables or lists stand within each other too deeply; expected a few levels"
        ) from None
