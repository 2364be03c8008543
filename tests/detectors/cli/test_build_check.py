"""The node check as one file: what is in it runs on Python 3.9 with the standard library alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog, compiled
from detectors.cli import build_check
from detectors.detector import TargetKind


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


# Those that are there, and always the one that runs the tests.
_OTHERS = filter(None, map(shutil.which, ("python3.9", "python3.10", "python3.12")))
INTERPRETERS = [sys.executable, *filter(_runs, _OTHERS)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_check.build(tmp_path_factory.mktemp("dist") / "kintsugi-check.pyz")


def test_every_module_of_the_check_needs_python_3_9_and_nothing_else() -> None:
    files = [str(path) for path in build_check.find_modules().values()]
    found = subprocess.run(
        [
            Path(sys.executable).with_name("vermin"),
            "-t=3.9-",
            "--no-tips",
            "--exclude",
            "tomllib",
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_a_module_that_a_node_does_not_have_stops_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build_check, "_ROOTS", ("detectors.transports.ssh",))
    with pytest.raises(
        build_check.BuildError, match=r"detectors\.transports\.ssh imports paramiko"
    ):
        build_check.find_modules()


@pytest.mark.parametrize("python", INTERPRETERS, ids=lambda path: Path(path).name)
def test_the_file_checks_a_node_without_anything_installed(
    program: Path, python: str, tmp_path: Path
) -> None:
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps({"gpus": [["0", "0000:19:00.0"]]}))
    words = [
        python,
        "-I",
        "-S",
        str(program),
        "--json",
        "--state",
        str(tmp_path),
        "--detectors",
        "gpu",
        "--node",
        "x",
    ]
    words += ["--expected", str(expected)]
    found = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd="/", env={"PATH": "/usr/bin:/bin"}
    )
    assert found.stderr == ""
    result = json.loads(found.stdout)
    assert (result["node"], result["exit_code"], found.returncode) == (
        "x",
        found.returncode,
        result["exit_code"],
    )
    assert {fault["fault_type"] for fault in result["faults"]} >= {
        "detector.silent"
    }  # there is no nvidia-smi


def test_the_file_holds_every_detector_of_nodes(program: Path) -> None:
    names = set(zipfile.ZipFile(program).namelist())
    for detector in registry.DETECTORS:
        if detector.kind is TargetKind.NODE:
            assert f"{type(detector).__module__.replace('.', '/')}.py" in names


def test_the_compiled_catalogue_is_the_catalogue() -> None:
    rows = catalog.from_rows(json.loads(compiled.compile_catalog(catalog.files())), "compiled")
    assert rows.types == catalog.load().types
    assert {metric: [r.key for r in some] for metric, some in rows.rules.items()} == {
        metric: [r.key for r in some] for metric, some in catalog.load().rules.items()
    }
    assert len(rows.signatures) == len(catalog.load().signatures)


@pytest.mark.parametrize(("words", "status"), [([], 3), (["--prolog"], 0)])
def test_a_check_that_is_itself_broken_says_so_and_stops_no_job(
    program: Path, tmp_path: Path, words: list[str], status: int
) -> None:
    broken = tmp_path / "broken.pyz"
    with zipfile.ZipFile(program) as whole, zipfile.ZipFile(broken, "w") as part:
        for name in whole.namelist():
            if name != "detectors/cli/check_run.py":
                part.writestr(name, whole.read(name))
    found = subprocess.run(
        [sys.executable, str(broken), *words], capture_output=True, text=True, check=False
    )
    assert found.returncode == status
    assert found.stdout.startswith(
        "KINTSUGI UNKNOWN - the check itself failed: an error of its own: No module named"
    )
    assert found.stderr.startswith("ModuleNotFoundError")
