"""docs/runbooks.md names for each fault type that moves hardware who has to have seen it, as the
catalogue has it. `--update-golden` writes the table anew."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.faults import Action, Component
from runbooks.node import witnesses

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
BEGIN, END = "| seen by | fault types |\n|---|---|\n", "\n\n"
OF_NODES = (Component.GPU, Component.NVLINK, Component.NODE)
NUMBERED = ("gpu.xid.", "nvlink.sxid.")


def list_types() -> list[str]:
    """Those for which a GPU is reset, a node rebooted or power-cycled, or the vendor called."""
    return [
        row.id
        for row in catalog.load().types.values()
        if row.action.at_least(Action.RESET_GPU) and row.component in OF_NODES
    ]


def format_types(types: list[str]) -> str:
    """Numbered families in one: `gpu.xid.` 46, 48."""
    parts = [f"`{name}`" for name in types if not name.startswith(NUMBERED)]
    for family in NUMBERED:
        numbers = sorted(int(name.removeprefix(family)) for name in types if family in name)
        if numbers:
            parts.append(f"`{family}`{{{', '.join(str(number) for number in numbers)}}}")
    return ", ".join(parts)


def build_table() -> str:
    by_witness: dict[str, list[str]] = defaultdict(list)
    for name in list_types():
        detectors = witnesses.list_detectors(name)
        checks = " or ".join(f"`{detector}`" for detector in detectors)
        by_witness[f"its {checks} check" if checks else "its kernel log"].append(name)
    rows = (f"| {who} | {format_types(types)} |" for who, types in sorted(by_witness.items()))
    return BEGIN + "\n".join(rows)


def test_the_page_names_the_witness_of_each_type(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    start = text.index(BEGIN)
    stands = text[start : text.index(END, start)]
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(stands, build_table()))
        return
    assert stands == build_table()


def test_every_type_that_moves_hardware_has_a_witness() -> None:
    """A detector, or a kernel's line in its driver's own words: of nothing else is a part moved."""
    rows = catalog.load()
    of_kernel = {name for signature in rows.signatures for name in signature.types}
    for name in list_types():
        numbered = name.startswith(NUMBERED)
        assert witnesses.list_detectors(name) or numbered or name in of_kernel, name
