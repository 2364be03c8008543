"""Which units are restarted, and the script that does it: by a real sh, and over a real sshd, with
stand-ins for systemctl and sudo on PATH."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detectors.detector import Shell, Target
from detectors.expected import Expected
from detectors.transports.ssh import LocalShell, SshShell
from runbooks.node import detached_command, systemd_units
from runbooks.node.detached_command import Answer, Ended
from runbooks.node.systemd_units import MOUNT_MISSING, SERVICE_DOWN
from tests.services.patience import deadline_in
from tests.services.sshd import Sshd

HERE = Target("here", "here")
EXPECTED = Expected(mounts=("/lustre", "/home/data/"), services=("site-agent",))
KEY = "1-3-restart_units"
SYSTEMCTL = """#!/bin/sh
echo "$1 $2" >>STATE/did
if [ -f "STATE/broken" ]; then echo "Job for $2 failed." >&2; exit 1; fi
"""
SUDO = '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n'
PATHS = (
    "/lustre",
    "/home/data",
    "/a.b-c/d_e",
    "/x y",
    "/.hid/.x",
    "/",
    "/scratch/",
    "/ü:1",
    "/a//b",
    "/a$(id);`id`",
)


@pytest.mark.parametrize(
    ("fault_type", "name", "unit"),
    [
        (SERVICE_DOWN, "nvidia-fabricmanager", "nvidia-fabricmanager.service"),
        (SERVICE_DOWN, "munge", "munge.service"),
        (SERVICE_DOWN, "site-agent", ""),
        (SERVICE_DOWN, "sshd", ""),
        (SERVICE_DOWN, "munge.service; reboot", ""),
        (SERVICE_DOWN, "/lustre", ""),
        (MOUNT_MISSING, "/lustre", "lustre.mount"),
        (MOUNT_MISSING, "/home/data", "home-data.mount"),
        (MOUNT_MISSING, "/etc", ""),
        (MOUNT_MISSING, "", ""),
        (MOUNT_MISSING, "munge", ""),
        ("gpu.xid.79", "munge", ""),
    ],
)
def test_only_what_the_table_or_the_inventory_names_is_restarted(
    fault_type: str, name: str, unit: str
) -> None:
    assert systemd_units.find_unit(fault_type, name, EXPECTED) == unit


def test_what_others_need_is_started_first_and_slurmd_last() -> None:
    mixed = ["slurmd.service", "lustre.mount", "nvidia-imex.service", "munge.service"]
    assert systemd_units.sort_units(mixed) == [
        "munge.service",
        "nvidia-imex.service",
        "lustre.mount",
        "slurmd.service",
    ]


@pytest.mark.needs("systemd-escape")
@pytest.mark.parametrize("path", PATHS)
def test_a_mounts_unit_is_called_as_systemd_calls_it(path: str) -> None:
    asked = ["systemd-escape", "--path", "--suffix=mount", path]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert systemd_units.format_mount_unit(path) == found.stdout.strip()


def test_each_service_says_where_its_name_comes_from() -> None:
    assert all(service.source.startswith("https://") for service in systemd_units.SERVICES)


def test_the_script_does_nothing_that_sudoers_does_not_name() -> None:
    names = {argv[1:] for argv in systemd_units.list_commands(EXPECTED)}
    for fault_type, name in ((SERVICE_DOWN, "slurmd"), (MOUNT_MISSING, "/home/data")):
        unit = systemd_units.find_unit(fault_type, name, EXPECTED)
        verb = "start" if fault_type == MOUNT_MISSING else "restart"
        assert (verb, unit) in names


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the stand-ins write what they were asked for."""
    for name in ("bin", "tmp", "state"):
        (tmp_path / name).mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("sudo", SUDO)):
        program = tmp_path / "bin" / name
        program.write_text(text.replace("STATE", str(tmp_path / "state")))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "state"


@pytest.fixture
def sshd(node: Path) -> Iterator[Sshd]:
    temporary = f'TMPDIR="{os.environ["TMPDIR"]}"'
    server = Sshd(SetEnv=f'PATH="{os.environ["PATH"]}" {temporary}').start()
    yield server
    server.remove()


def run(units: tuple[str, ...], shell: Shell, target: Target = HERE) -> Ended:
    job = systemd_units.build_job(KEY, units)
    deadline = deadline_in(30)
    answer: Answer = detached_command.start(shell, target, job)
    while not isinstance(answer, Ended):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
        answer = detached_command.poll_command(shell, target, job)
    return answer


def test_services_are_restarted_and_mounts_started_each_once(node: Path) -> None:
    units = ("munge.service", "x\\x20y.mount")
    assert run(units, LocalShell()).status == 0
    assert run(units, LocalShell()).status == 0
    did = (node / "did").read_text().splitlines()
    assert did == ["restart munge.service", "start x\\x20y.mount"]


def test_one_that_does_not_start_keeps_no_other_from_it_and_is_told(node: Path) -> None:
    (node / "broken").touch()
    ended = run(("munge.service", "lustre.mount"), LocalShell())
    assert ended.status == 1
    assert "Job for munge.service failed." in ended.said
    assert "could not start lustre.mount" in ended.said


@pytest.mark.needs("sshd", "ssh-keygen")
def test_the_same_over_a_real_sshd(node: Path, sshd: Sshd) -> None:
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    target = Target("gn001", "127.0.0.1", sshd.port)
    try:
        ended = run(("nvidia-fabricmanager.service", "x\\x20y.mount"), shell, target)
    finally:
        shell.close()
    assert (ended.status, (node / "did").read_text().splitlines()) == (
        0,
        ["restart nvidia-fabricmanager.service", "start x\\x20y.mount"],
    )
