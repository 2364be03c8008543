"""The catalogue for machines without tomllib: compiled to one JSON file when the node check is
built.

Python 3.9, standard library alone. Signatures are read only where they are asked for: they take
long to check.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path

from detectors.catalog import catalog, grammar
from detectors.catalog.catalog import Catalog, CatalogError

NAME = "compiled.json"
_TABLES = ("type", "rule", "signature", "grace", "harmless")


def compile_catalog(paths: Sequence[Path]) -> str:
    """The rows of the files as JSON, defaults filled in. Raises CatalogError: what does not load
    does not compile."""
    catalog.read(paths)
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in _TABLES}
    for path in paths:
        tables = catalog.tables(path)
        for name in _TABLES:
            filled = tables.get("defaults", {}) if name == "type" else {}
            rows[name] += [{**filled, **row} for row in tables.get(name, ())]
        for row in tables.get("grammar", ()):
            rows["signature"] += grammar.expand(row)
    return json.dumps(rows, separators=(",", ":"))


def load(*, with_signatures: bool = False) -> Catalog:
    """The compiled catalogue where there is one, else the files'. Raises CatalogError."""
    try:
        text = pkgutil.get_data("detectors", f"catalog/{NAME}")
    except OSError:
        return catalog.load()
    if text is None:
        return catalog.load()
    try:
        rows = json.loads(text)
        wanted = _TABLES if with_signatures else _TABLES[:2]
        return catalog.from_rows({name: rows[name] for name in wanted}, NAME)
    except (ValueError, KeyError, TypeError) as error:
        raise CatalogError(f"{NAME}: it cannot be read ({error})") from error
