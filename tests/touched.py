"""How far each test file is from what a change touches, by the imports of both."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("detectors", "incidents", "runbooks", "kintsugi", "fixtures", "tests")
_IMPORT = re.compile(r"^ *from ([\w.]+) import (\([^)]*\)|[^#\n]*)|^ *import ([\w.]+)", re.M)
_WORD = re.compile(r"\w+")
# A file that no chain of imports joins to the change.
FAR = 1_000


def list_changed_files(base: str) -> set[Path]:
    """What differs from where this branch left `base`, and what is not committed."""
    ours = subprocess.run(
        ["git", "merge-base", base, "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    changed = subprocess.run(
        ["git", "diff", "--name-only", ours.stdout.strip()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {ROOT / name for name in changed.stdout.splitlines()}


def get_imported_names(source: str) -> set[str]:
    """Modules, and names that may be modules."""
    names = set()
    for package, members, module in _IMPORT.findall(source):
        names.add(package or module)
        names |= {f"{package}.{member}" for member in _WORD.findall(members) if package}
    return names


def _get_module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def load_imports() -> dict[Path, set[Path]]:
    """By file, the files of ours that it imports."""
    files = [file for folder in _FOLDERS for file in (ROOT / folder).rglob("*.py")]
    by_name = {_get_module_name(file): file for file in files}
    imports = {}
    for file in files:
        names = get_imported_names(file.read_text())
        imports[file] = {by_name[name] for name in names & by_name.keys()}
    return imports


def get_distances(
    changed: Iterable[Path], imports: Mapping[Path, Iterable[Path]]
) -> dict[Path, int]:
    """0 for what changed, 1 for what imports that, and so on."""
    importers: dict[Path, list[Path]] = {}
    for file, imported in imports.items():
        for target in imported:
            importers.setdefault(target, []).append(file)
    distances = dict.fromkeys(changed, 0)
    waiting = deque(distances)
    while waiting:
        file = waiting.popleft()
        for importer in importers.get(file, ()):
            if importer not in distances:
                distances[importer] = distances[file] + 1
                waiting.append(importer)
    return distances


class Touched:
    """Read when the first distance is asked for."""

    def __init__(self, base: str) -> None:
        self.base = base

    @cached_property
    def _distances(self) -> dict[Path, int]:
        return get_distances(list_changed_files(self.base), load_imports())

    def get_distance(self, file: Path) -> int:
        return self._distances.get(file, FAR)
