"""Builds the node check as one file: the modules that it needs, found by their imports, and the
compiled catalogue.

    python -m detectors.cli.build_check dist/kintsugi-check.pyz

Refuses what a node does not have: a module that needs anything beyond the standard library.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zipapp
from collections.abc import Iterator, Sequence
from pathlib import Path

from detectors.catalog import catalog, compiled

_PACKAGE = Path(__file__).parents[1]
_ROOTS = ("detectors.cli.check", "detectors.cli.check_run")
# Found by the check when it runs (`discovery`), so no import names what lies here.
_FOUND = ("node",)
# Looked for and not needed.
_OPTIONAL = {"tomllib", "hyperscan", "re2"}


class BuildError(Exception):
    """The check cannot be built: one line per module that asks for what a node does not have."""


def find_modules() -> dict[str, Path]:
    """Every module of the check by its dotted name. Raises BuildError."""
    found: dict[str, Path] = {}
    foreign: list[str] = []
    waiting = [*_ROOTS, *_find_detector_modules()]
    while waiting:
        name = waiting.pop()
        path = _find_file(name)
        if name in found or path is None:
            continue
        found[name] = path
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        for imported in _list_imports(path):
            top = imported.split(".")[0]
            if top == "detectors":
                waiting.append(imported)
            elif top not in sys.stdlib_module_names and top not in _OPTIONAL:
                foreign.append(f"{name} imports {imported}, which is not in the standard library")
    if foreign:
        raise BuildError("\n".join(sorted(foreign)))
    return found


def _find_detector_modules() -> list[str]:
    """Every module of the packages whose detectors are found when the check runs."""
    paths = [path for name in _FOUND for path in (_PACKAGE / name).rglob("*.py")]
    relative = [path.relative_to(_PACKAGE.parent).with_suffix("") for path in paths]
    return [".".join(path.parts).removesuffix(".__init__") for path in relative]


def _find_file(name: str) -> Path | None:
    path = _PACKAGE.parent.joinpath(*name.split("."))
    if (path / "__init__.py").exists():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else None


def _list_imports(path: Path) -> Iterator[str]:
    """Dotted names; of `from a import b` both a and a.b, since b may be a module."""
    for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module:
            yield part.module
            yield from (
                f"{part.module}.{alias.name}"
                for alias in part.names
                if part.module.startswith("detectors")
            )


def build(target: Path) -> Path:
    """Writes the file. Raises BuildError, CatalogError, OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in {**find_modules(), "detectors": _PACKAGE / "__init__.py"}.values():
            copy = root / path.relative_to(_PACKAGE.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        rows = root / "detectors" / "catalog" / compiled.NAME
        rows.parent.mkdir(exist_ok=True)
        rows.write_text(compiled.compile_catalog(catalog.files()), encoding="utf-8")
        zipapp.create_archive(
            root,
            target,
            interpreter="/usr/bin/env python3",
            main="detectors.cli.check:command",
            compressed=True,
        )
    target.chmod(0o755)
    return target


def main(words: Sequence[str]) -> int:
    target = Path(words[0]) if words else Path("dist/kintsugi-check.pyz")
    try:
        build(target)
    except (BuildError, catalog.CatalogError, OSError) as error:
        print(f"build-node-check: {error}", file=sys.stderr)
        return 1
    print(
        f"{target}: {target.stat().st_size // 1024} KiB. Copy it to /usr/local/sbin/kintsugi-check"
        " on the nodes."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
