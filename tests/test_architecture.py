"""The house keeps its shape: sizes, imports, words, and documents that are checked against the
code."""

from __future__ import annotations

import ast
import fnmatch
import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detectors import registry
from detectors.cli import build_check
from incidents.vocabulary.lifecycle import TRANSITIONS
from kintsugi.configuration import config

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kintsugi", "detectors", "incidents", "runbooks", "fixtures")
VAGUE_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "manager",
    "data",
    "info",
    "misc",
    "common",
}
# The four places where any exception is caught: around one poll, one ingest batch, one advance, one
# notification.
BROAD_EXCEPTS = 4
# How many modules a folder holds at most, and one whose files are plug-ins.
MODULES, PLUGINS = 16, 23
TOP_LEVEL = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "manage.py"),
    *("pyproject.toml", "uv.lock", "deploy", "docs", "packaging", "script", "tests", *PACKAGES),
}
# Imports under `if TYPE_CHECKING`.
FOR_TYPES_ALONE: dict[str, set[str]] = {}
# What the node check carries, by its imports and its packages of detectors, and every other detector
# of the registry: each is a file that may travel.
FOR_NODES = sorted(
    {*build_check.find_modules()}
    | {type(detector).__module__ for detector in (*registry.DETECTORS, *registry.HANDED_IN)}
)


def _sources() -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if "migrations" not in path.parts]


SOURCES = _sources()


def test_nothing_lies_at_the_top_level_that_is_not_named_here() -> None:
    """A command that writes where it is called leaves files that `git add --all` takes in."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    left = {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert names - left == TOP_LEVEL


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, _tree(path)


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULE_FILES = {_module_name(path): path for path in SOURCES}


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _modules_of(folder: Path) -> list[Path]:
    """Files that hold more than a docstring."""
    return [path for path in folder.glob("*.py") if len(_tree(path).body) > 1]


def test_a_folder_holds_what_one_looks_through_at_once() -> None:
    folders = {path.parent for path in SOURCES if "fixtures" not in path.parts}
    most = {"steps": PLUGINS, "node": PLUGINS, "commands": PLUGINS}
    wide = {
        _named(folder): len(_modules_of(folder))
        for folder in folders
        if len(_modules_of(folder)) > most.get(folder.name, MODULES)
    }
    assert wide == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions counted."""
    product = {name for name, path in MODULE_FILES.items() if "fixtures" not in path.parts}
    imports = {module: _imports_of(module) & product for module in product}
    with_own_end: set[str] = set()
    while True:
        ended = {
            module
            for module, needed in imports.items()
            if module not in with_own_end and needed <= with_own_end
        }
        if not ended:
            break
        with_own_end |= ended
    assert sorted(set(imports) - with_own_end) == []


def _imports_of(module: str) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(_tree(MODULE_FILES[module])):
        if isinstance(part, ast.Import):
            found.update(alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module:
            for alias in part.names:
                submodule = f"{part.module}.{alias.name}"
                found.add(submodule if submodule in MODULE_FILES else part.module)
    return (found & set(MODULE_FILES)) - {module} - FOR_TYPES_ALONE.get(module, set())


def _imports_inside_functions(path: Path) -> set[int]:
    """The lines on which they stand."""
    return {
        part.lineno
        for function in ast.walk(_tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ast.walk(function)
        if isinstance(part, ast.Import | ast.ImportFrom)
    }


def test_no_import_stands_inside_a_function_but_at_an_entry_point_with_what_it_saves() -> None:
    reason = re.compile(r"  # noqa: PLC0415  \(.+\)$")
    inside = [
        f"{_named(path)}:{number}"
        for path in SOURCES
        for number in sorted(_imports_inside_functions(path))
        if not _is_entry_point(path) or not reason.search(path.read_text().splitlines()[number - 1])
    ]
    assert inside == []


def _is_entry_point(path: Path) -> bool:
    """Commands and what wires: they know what a process will use."""
    return path.parts[len(ROOT.parts)] == "kintsugi"


def test_no_shell_reads_our_commands() -> None:
    shells = [
        f"{_named(path)}:{part.value.lineno}"
        for path, tree in _trees()
        for part in ast.walk(tree)
        if isinstance(part, ast.keyword) and part.arg == "shell"
        if isinstance(part.value, ast.Constant) and part.value.value
    ]
    assert shells == []


def _is_raised_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_any_exception_is_caught_at_four_places_only() -> None:
    broad = [
        f"{_named(path)}:{part.lineno}"
        for path, tree in _trees()
        if path.parts[len(ROOT.parts)] != "fixtures"
        for part in ast.walk(tree)
        if isinstance(part, ast.ExceptHandler)
        and not _is_raised_again(part)
        and (part.type is None or (isinstance(part.type, ast.Name) and part.type.id == "Exception"))
    ]
    assert len(broad) <= BROAD_EXCEPTS, broad


def _shows_a_class(part: ast.AST) -> bool:
    """`type(error).__name__`, or `{error!r}` in a text, where `error` is what was caught."""
    if isinstance(part, ast.FormattedValue):
        return (
            part.conversion == ord("r")
            and isinstance(part.value, ast.Name)
            and part.value.id == "error"
        )
    return (
        isinstance(part, ast.Attribute)
        and part.attr == "__name__"
        and isinstance(part.value, ast.Call)
        and isinstance(part.value.func, ast.Name)
        and part.value.func.id == "type"
        and ast.unparse(part.value.args[0]) == "error"
    )


def test_people_never_read_the_class_of_an_exception() -> None:
    """The log may name it; a decoder's panic is known by its class alone."""
    shown = []
    for path, tree in _trees():
        logged = {
            id(inner)
            for call in ast.walk(tree)
            if (isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log."))
            or isinstance(call, ast.Compare)
            for inner in ast.walk(call)
        }
        shown += [
            f"{_named(path)}:{part.lineno}"
            for part in ast.walk(tree)
            if _shows_a_class(part) and id(part) not in logged and isinstance(part, ast.expr)
        ]
    assert shown == []


def test_one_module_uses_what_django_does_not_promise_to_keep() -> None:
    private = re.compile(
        r"get_compiler|\bas_sql\b|ModelState|models\.sql\b|_db_converters|set_cached_value"
    )
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if private.search(path.read_text())
    }
    assert {Path(name).name for name in found} == {"prepared.py"}


def test_modules_have_telling_names() -> None:
    assert [_named(path) for path in SOURCES if path.stem in VAGUE_NAMES] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        _named(path)
        for path, tree in _trees()
        if path.read_text().strip() and ast.get_docstring(tree) is None
    ]
    assert silent == []


def test_few_files_speak_slurm() -> None:
    """`runbooks/slurm` alone acts on Slurm, and `detectors/slurm` alone asks it; others
    never name programs, but for those whose lines are read in logs."""
    reads_their_lines = ROOT / "detectors" / "logs" / "unread_words.py"
    programs = re.compile(r"\b(scontrol|sinfo|squeue|sbatch)\b")
    speakers = [
        _named(path)
        for path, tree in _trees()
        if path.parts[len(ROOT.parts)] in ("detectors", "incidents")
        and path.parent != ROOT / "detectors" / "slurm"
        and path != reads_their_lines
        for part in ast.walk(tree)
        if isinstance(part, ast.Constant)
        and isinstance(part.value, str)
        and programs.fullmatch(part.value)
    ]
    assert speakers == []


def test_no_process_pays_for_scipys_statistics() -> None:
    """A second of each start, of functions that scipy.special has too."""
    words = "import django, sys; django.setup(); sys.exit('scipy.stats' in sys.modules)"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "kintsugi.settings"}
    assert (
        subprocess.run(
            [sys.executable, "-c", words], cwd=ROOT, env=environment, check=False
        ).returncode
        == 0
    )


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
    module = importlib.import_module(name)
    tree = _tree(Path(str(module.__file__)))
    optional = {"hyperscan", "re2", "tomllib"}  # looked for, not needed
    imported = {
        (part.module or "").split(".")[0]
        if isinstance(part, ast.ImportFrom)
        else alias.name.split(".")[0]
        for part in ast.walk(tree)
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }
    assert imported - optional - {"detectors"} <= set(sys.stdlib_module_names)


def _contracts() -> str:
    return (ROOT / "docs" / "reference" / "contracts.md").read_text()


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
    text = "\n".join(
        path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    )
    commands = [
        path.stem
        for package in ("kintsugi", "fixtures")
        for path in (ROOT / package / "management" / "commands").glob("*.py")
        if path.stem != "__init__"
    ]
    assert [name for name in commands if f"manage.py {name}" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        f"{_named(page)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
