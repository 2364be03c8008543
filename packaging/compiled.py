"""Compiles the receiver's inner loop with mypyc, for a wheel that is built with
`KINTSUGI_COMPILED=yes`.

Without it a wheel is pure Python and fits every machine. A compiled one fits the version of Python
and the kind of machine that it was built on; it holds the same modules as source too.

    python packaging/compiled.py FOLDER    the compiled modules into FOLDER, as they lie in a wheel
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
SWITCH = "KINTSUGI_COMPILED"
# mypyc looks at types alone; what is not installed where a wheel is built has none.
_MYPY = "[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n"
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

config, library, objects, *modules = sys.argv[1:]
parts = mypycify([f"--config-file={config}", *modules], target_dir=objects)
argv = ["--quiet", "build_ext", f"--build-lib={library}", f"--build-temp={objects}"]
setup(name="kintsugi", packages=[], ext_modules=parts, script_args=argv)
"""


class CompilerError(Exception):
    """The modules could not be compiled: says what the compiler said."""


class CompiledModules(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.15", "setuptools>=70"] if is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not is_wanted() or version == "editable":
            return
        into = Path(tempfile.mkdtemp(prefix="kintsugi-compiled-"))
        files = compile_modules(self.config["modules"], into)
        build_data["force_include"] |= {str(path): str(path.relative_to(into)) for path in files}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def is_wanted() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("1", "yes", "true")


def compile_modules(modules: list[str], into: Path) -> list[Path]:
    """The files that were made. Raises CompilerError."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-objects-") as scratch:
        config = Path(scratch, "mypy.ini")
        config.write_text(_MYPY, encoding="utf-8")
        argv = [sys.executable, "-c", _SETUP, str(config), str(into), scratch, *modules]
        ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise CompilerError(
            f"{SWITCH}=yes needs a C compiler, the headers of Python (on Debian: gcc, python3-dev),"
            f" mypy and setuptools.\n{ended.stdout}{ended.stderr}"
        )
    return sorted(path for path in into.rglob("*") if path.is_file())


def read_modules() -> list[str]:
    """Paths of what is compiled, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    modules: list[str] = wheel["hooks"]["custom"]["modules"]
    return modules


if __name__ == "__main__":
    for made in compile_modules(read_modules(), Path(sys.argv[1]).resolve()):
        sys.stdout.write(f"{made}\n")
