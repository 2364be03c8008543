"""The wheels: what is in them, and that a site runs from them in an environment of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
SIMULATOR = ROOT / "packaging" / "simulator"
PACKAGES = ("detectors", "incidents", "kintsugi", "runbooks")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INVENTORY = """
[site]
cluster_name = "sakuraone"

[[nodes]]
names = "gn[001-004]"
"""


def built(project: Path, into: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)],
        cwd=project,
        check=True,
        capture_output=True,
        timeout=170,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def simulator_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SIMULATOR, tmp_path_factory.mktemp("simulator"))


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def sources(packages: Iterable[str]) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def installed_files() -> dict[str, str]:
    """Of every distribution in this environment but ours: path in site-packages, and whose it is."""
    return {
        str(path): distribution.name
        for distribution in importlib.metadata.distributions()
        if not distribution.name.startswith("kintsugi")
        for path in distribution.files or ()
    }


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, with our dependencies as they are here."""

    home: Path

    def install(self, *wheels: Path) -> None:
        argv = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)]
        ended = self._run([str(self._python), *argv], self.home)
        assert ended.returncode == 0, ended.stderr

    def kintsugi(self, *words: str) -> subprocess.CompletedProcess[str]:
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        return self._run([str(self._python.with_name("kintsugi")), *words], work)

    @property
    def _python(self) -> Path:
        return self.home / "bin" / "python"

    def _run(self, argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KINTSUGI_CONFIG": "",
            "KINTSUGI_DATA_DIR": str(self.home / "data"),
        }
        return subprocess.run(
            argv, cwd=cwd, env=environ, capture_output=True, text=True, timeout=170, check=False
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    here = home / "lib" / version / "site-packages" / "dependencies.pth"
    here.write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return Environment(home)


def test_a_wheel_holds_every_file_of_its_packages_and_nothing_else(wheel: Path) -> None:
    assert files(wheel) == sources(PACKAGES)


def test_the_simulator_has_what_a_demonstration_needs_and_no_captures(
    simulator_wheel: Path,
) -> None:
    held = files(simulator_wheel)
    expected = {name for name in sources(["fixtures"]) if not name.startswith("fixtures/signals/")}
    assert held == expected


def test_no_file_is_another_distributions(wheel: Path, simulator_wheel: Path) -> None:
    taken = installed_files()
    ours = files(wheel) | files(simulator_wheel)
    assert {name: taken[name] for name in ours if name in taken} == {}
    tops = {PurePosixPath(name).parts[0] for name in taken}
    assert tops & {PurePosixPath(name).parts[0] for name in ours} == set()


def test_both_distributions_have_one_version() -> None:
    simulator = tomllib.loads((SIMULATOR / "pyproject.toml").read_text())["project"]
    assert simulator["version"] == PROJECT["version"]
    wanted = f"kintsugi-simulator=={PROJECT['version']}"
    assert PROJECT["optional-dependencies"]["simulator"] == [wanted]


@pytest.mark.timeout(400)
def test_a_site_runs_from_a_wheel_in_an_environment_of_its_own(
    wheel: Path, environment: Environment
) -> None:
    environment.install(wheel)
    assert environment.kintsugi("--version").stdout == f"kintsugi {PROJECT['version']}\n"
    absent = environment.kintsugi("incident", "list")
    assert (absent.returncode, absent.stdout) == (3, "")
    migrated = environment.kintsugi("migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    checked = environment.kintsugi("check")
    assert checked.returncode == 0, checked.stderr
    inventory = environment.home / "site.toml"
    inventory.write_text(INVENTORY)
    imported = environment.kintsugi("inventory", "import", str(inventory))
    assert imported.returncode == 0, imported.stderr
    assert environment.kintsugi("node", "list", "--fold").stdout == "gn[001-004]\n"
    assert environment.kintsugi("runbook", "lint").returncode == 0
    assert json.loads(environment.kintsugi("incident", "list", "--json").stdout) == []
    line = "2025-01-03T04:05:06+00:00 gn001 kernel: NVRM: Xid (PCI:0000:19:00): 79, fell off"
    log = environment.home / "site.log"
    log.write_text(f"{line}\n")
    played = json.loads(environment.kintsugi("replay", str(log), "--json").stdout)
    assert [row["fault_type"] for row in played["incidents"]] == ["gpu.xid.79"]
    assert list((environment.home / "work").iterdir()) == []


@pytest.mark.timeout(400)
def test_the_simulator_comes_as_an_extra(
    wheel: Path, simulator_wheel: Path, environment: Environment
) -> None:
    environment.install(wheel)
    absent = environment.kintsugi("simulator", "inject")
    assert absent.returncode == 2
    assert "install kintsugi[simulator]" in absent.stderr
    environment.install(simulator_wheel)
    injections = environment.kintsugi("simulator", "inject")
    assert injections.returncode == 0, injections.stderr
    assert "gpu_lost" in injections.stdout
    assert environment.kintsugi("manage", "inject").returncode == 2
