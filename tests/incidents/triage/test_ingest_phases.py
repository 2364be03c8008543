"""The picture of ingest in the documentation is the function that runs it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

from incidents.triage import ingest

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "development" / "architecture.md"
_LINE = re.compile(r"^      \| ([\w.]+) +([\w/]+)\.py  ", re.MULTILINE)
# What is no phase: making a value, and opening a transaction.
_NO_PHASE = re.compile(r"^(fault_catalog|aliases|transaction|contextlib)\.")


def _get_phases() -> list[str]:
    """The functions that the one function of ingest calls, in the order of its lines."""
    tree = ast.parse(inspect.getsource(ingest._ingest_events))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    names = [ast.unparse(call.func) for call in calls]
    return [name for name in names if not _NO_PHASE.match(name)]


def _get_picture() -> list[tuple[str, str]]:
    return _LINE.findall(PICTURE.read_text())


def test_phases_of_the_picture_are_called_in_its_order() -> None:
    drawn = [name for name, _ in _get_picture()]
    assert drawn == _get_phases()
    assert len(drawn) > 10


def test_phases_of_the_picture_live_where_it_says() -> None:
    for name, path in _get_picture():
        module = importlib.import_module(f"incidents.{path.replace('/', '.')}")
        function = getattr(module, name.rpartition(".")[2])
        assert function.__module__ == module.__name__, name
