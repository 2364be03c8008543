"""The house keeps its shape: sizes, imports, words, and documents that are checked against the code."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from incidents.lifecycle import TRANSITIONS
from kintsugi import config

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kintsugi", "detectors", "incidents", "runbooks", "fixtures")
LONGEST_FUNCTION, USUAL_FUNCTION, LONGEST_FILE = 60, 40, 400
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "data", "info", "misc", "common"}
# The four places where any exception is caught: around one poll, one ingest batch, one advance, one notification.
BROAD_EXCEPTS = 4
FOR_NODES = (
    *("faults", "detector", "expected", "resources", "rows", "rules", "polling", "classify", "judge", "matcher"),
    *("bundle", "local", "files", "captures", "gpu", "check", "check_run", "check_post", "compiled", "http"),
    *("gpu_forms", "gpu_trouble", "nvlink", "pcie"),
    *("host", "host_system", "host_storage", "host_inventory", "disks", "node_log"),
    *("bmc", "bmc_alarms", "bmc_ipmi", "bmc_redfish"),
    *("nic", "nic_counters", "nic_link", "nic_outputs", "nic_ports", "optics", "transceiver", "rail", "both_ends"),
    *("config", "config_outputs", "sonic", "sonic_outputs", "sonic_settings"),
    *("slurm_output", "slurm_forms", "slurm_queries", "slurm_reasons", "slurm_nodes", "slurm_jobs", "failure_rate"),
    *("slurm_reservations",),
    *("exposition", "dcgm_fields", "dcgm", "promql", "prometheus", "stall", "job_stalled"),
)


def _sources() -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if "migrations" not in path.parts]


SOURCES = _sources()
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}


def _functions() -> Iterator[tuple[str, int]]:
    for path, tree in TREES.items():
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.end_lineno is not None:
                yield f"{path.relative_to(ROOT)}:{part.name}", part.end_lineno - part.lineno + 1


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_functions_are_short() -> None:
    lengths = dict(_functions())
    assert [name for name, length in lengths.items() if length > LONGEST_FUNCTION] == []
    assert statistics.quantiles(lengths.values(), n=20)[-1] < USUAL_FUNCTION


def test_files_are_short() -> None:
    assert [_named(path) for path in SOURCES if len(path.read_text().splitlines()) > LONGEST_FILE] == []


def test_no_import_stands_inside_a_function() -> None:
    inside = [
        f"{_named(path)}:{part.lineno}"
        for path, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ast.walk(function)
        if isinstance(part, ast.Import | ast.ImportFrom)
    ]
    assert inside == []


def test_no_shell_reads_our_commands() -> None:
    shells = [
        f"{_named(path)}:{part.value.lineno}"
        for path, tree in TREES.items()
        for part in ast.walk(tree)
        if isinstance(part, ast.keyword) and part.arg == "shell"
        if isinstance(part.value, ast.Constant) and part.value.value
    ]
    assert shells == []


def test_any_exception_is_caught_at_four_places_only() -> None:
    broad = [
        f"{_named(path)}:{part.lineno}"
        for path, tree in TREES.items()
        if path.parts[len(ROOT.parts)] != "fixtures"
        for part in ast.walk(tree)
        if isinstance(part, ast.ExceptHandler)
        and (part.type is None or (isinstance(part.type, ast.Name) and part.type.id == "Exception"))
    ]
    assert len(broad) <= BROAD_EXCEPTS, broad


def test_modules_have_telling_names() -> None:
    assert [_named(path) for path in SOURCES if path.stem in VAGUE_NAMES] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        _named(path) for path, tree in TREES.items() if path.read_text().strip() and ast.get_docstring(tree) is None
    ]
    assert silent == []


def test_few_files_speak_slurm() -> None:
    """`runbooks/slurm*.py` alone acts on Slurm, and `detectors/slurm*.py` alone asks it; others never name programs."""
    programs = re.compile(r"\b(scontrol|sinfo|squeue|sbatch)\b")
    speakers = [
        _named(path)
        for path, tree in TREES.items()
        if path.parts[len(ROOT.parts)] in ("detectors", "incidents") and not path.stem.startswith("slurm_")
        for part in ast.walk(tree)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and programs.fullmatch(part.value)
    ]
    assert speakers == []


def test_no_process_pays_for_scipys_statistics() -> None:
    """A second of each start, of functions that scipy.special has too."""
    words = "import django, sys; django.setup(); sys.exit('scipy.stats' in sys.modules)"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "kintsugi.settings"}
    assert subprocess.run([sys.executable, "-c", words], cwd=ROOT, env=environment, check=False).returncode == 0


def test_import_contracts_hold() -> None:
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout[-3000:]


@pytest.mark.parametrize("name", FOR_NODES)
def test_modules_that_travel_to_nodes_need_the_standard_library_alone(name: str) -> None:
    tree = TREES[ROOT / "detectors" / f"{name}.py"]
    optional = {"hyperscan", "re2"}  # looked for, not needed
    imported = {
        (part.module or "").split(".")[0] if isinstance(part, ast.ImportFrom) else alias.name.split(".")[0]
        for part in ast.walk(tree)
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }
    assert imported - optional - {"detectors"} <= set(sys.stdlib_module_names)


def _contracts() -> str:
    return (ROOT / "docs" / "contracts.md").read_text()


def test_every_transition_stands_in_the_contracts() -> None:
    rows = _contracts()
    missing = [
        f"{state} {trigger}"
        for (state, trigger), after in TRANSITIONS.items()
        if not re.search(rf"^\| {state} \| {trigger} \| {after} \|", rows, re.MULTILINE)
    ]
    assert missing == []


def test_every_setting_stands_in_the_contracts() -> None:
    rows = _contracts()
    assert [key.name for key in config.KEYS if f"| `{key.name}` |" not in rows] == []


def test_every_management_command_stands_in_the_documentation() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    commands = [
        path.stem
        for package in ("kintsugi", "fixtures")
        for path in (ROOT / package / "management" / "commands").glob("*.py")
        if path.stem != "__init__"
    ]
    assert [name for name in commands if f"manage.py {name}" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    broken = [
        f"{_named(page)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
