"""The receiver's inner loop as a compiled wheel holds it passes the tests of its source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.needs("gcc", "python3-config"), pytest.mark.timeout(600)]
# The quick ones, and where time is not short all that speak to a receiver.
QUICK = (
    "test_framing.py",
    "test_folding.py",
    "test_receiver.py::test_remembered_shapes_say_what_the_matcher_says",
    "test_receiver.py::test_a_text_that_many_hosts_send_says_of_each_what_the_matcher_says",
    "test_receiver.py::test_every_line_is_accounted_for",
)
ALL = (*QUICK[:2], "test_receiver.py", "test_relp.py", "test_tls.py", "test_restarts.py")


@pytest.fixture(scope="module")
def compiled_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with the compiled modules beside it."""
    tree = tmp_path_factory.mktemp("compiled")
    shutil.copytree(ROOT / "detectors", tree / "detectors")
    shutil.copytree(ROOT / "tests", tree / "tests")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in ("fixtures", "incidents", "kintsugi", "runbooks"):
        (tree / name).symlink_to(ROOT / name)
    argv = [sys.executable, str(ROOT / "packaging" / "compiled.py"), str(tree)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return tree


def run(tree: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, *argv],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_modules_are_compiled(compiled_tree: Path) -> None:
    names = ("folding", "framing", "intake", "shapes", "texts")
    imports = "; ".join(f"import detectors.receivers.{name} as {name}" for name in names)
    files = ", ".join(f"{name}.__file__" for name in names)
    ended = run(compiled_tree, "-c", f"{imports}; print(*[{files}], sep='\\n')")
    assert ended.returncode == 0, ended.stderr
    for name, file in zip(names, ended.stdout.splitlines(), strict=True):
        assert Path(file).parent == compiled_tree / "detectors" / "receivers", name
        assert Path(file).suffix == ".so", name


def test_what_holds_of_the_source_holds_of_the_compiled_modules(
    compiled_tree: Path, is_full_length: bool
) -> None:
    tests = [f"tests/detectors/receivers/{name}" for name in (ALL if is_full_length else QUICK)]
    ended = run(compiled_tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert ended.returncode == 0, ended.stdout
