"""docs/runbooks.md names for each fault type that moves a node who has to have seen it, as the
catalogue has it. `--update-golden` writes the table anew."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.catalog.catalog import OF_A_NODE, FaultType
from detectors.faults import Action, Fitness
from runbooks.node import witnesses

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
BEGIN, END = "| seen by | fault types |\n|---|---|\n", "\n\n"
NUMBERED = ("gpu.xid.", "nvlink.sxid.")
# What Slurm says of itself, what a test of ours has found, and what a check of the site asked for.
BY_MANAGERS = ("slurm.", "gpu.dcgm.", "site.")


def list_types() -> list[str]:
    """Those for which a node is isolated, a GPU reset, a node rebooted or power-cycled, or the
    vendor called."""
    return [
        row.id
        for row in catalog.load().types.values()
        if _moves_a_node(row) and not row.id.startswith(BY_MANAGERS)
    ]


def _moves_a_node(row: FaultType) -> bool:
    is_of_node = row.component in OF_A_NODE
    calls_for_repair = row.action.at_least(Action.RESET_GPU) and is_of_node
    return calls_for_repair or row.fitness is Fitness.UNFIT


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
