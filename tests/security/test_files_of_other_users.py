"""Files and folders that any user of a node can make in /dev/shm, /tmp and /var/tmp blind no detector
and veto no step."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Command
from detectors.transports import bundle, private_folder
from runbooks.slurm.protocol import format_own_name
from runbooks.steps import diagnose_in_job

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="makes files of another user")
NOBODY = 65534
ECHO = Command("echo", ("echo", "seen"), timedelta(seconds=5))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /dev/shm: anybody may write there, and nobody may remove what is another's."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private_folder, "SHARED_MEMORY", str(folder))
    return folder


def run_bundle(shared: Path, name: str = "gpu") -> subprocess.CompletedProcess[bytes]:
    nonce = "0123456789abcdef"
    argv = bundle.build_locked_command(name, bundle.build_script([ECHO], nonce, is_root=True))
    here = [word.replace("b=/dev/shm;", f"b={shared};") for word in argv]
    return subprocess.run(here, capture_output=True, check=False, timeout=20)


def make_planted(shared: Path, kind: str) -> None:
    """What another user may make under any name that he can foresee."""
    for name in (
        "kintsugi-gpu.lock",
        f"kintsugi-{os.getuid()}",
        f"kintsugi-{os.getuid()}-aaaaaaaa",
    ):
        path = shared / name
        if kind == "file":
            path.touch(mode=0o600)
        elif kind == "folder":
            path.mkdir(mode=0o700)
        else:
            path.symlink_to("/etc")
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@NEEDS_ROOT
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_another_user_made_keeps_no_detector_from_looking(shared: Path, kind: str) -> None:
    make_planted(shared, kind)
    done = run_bundle(shared)
    assert done.returncode == 0, done.stderr
    assert b"seen" in done.stdout


@NEEDS_ROOT
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_another_user_made_keeps_no_check_on_the_node_from_looking(
    shared: Path, kind: str
) -> None:
    make_planted(shared, kind)
    found = private_folder.find_private_folder()
    assert found.stat().st_uid == os.getuid()
    assert found.stat().st_mode & 0o777 == 0o700


@NEEDS_ROOT
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_another_user_made_vetoes_no_test_in_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The name of the reservation is everybody's to read before the job begins."""
    monkeypatch.setattr(diagnose_in_job, "FOLDER", str(tmp_path))
    foreseen = tmp_path / format_own_name("7-1-diagnose")
    foreseen.mkdir() if kind == "folder" else foreseen.symlink_to("/etc")
    os.chown(foreseen, NOBODY, NOBODY, follow_symlinks=False)
    command = diagnose_in_job.build_command("7-1-diagnose", ("echo", "seen"))
    subprocess.run(command, check=True, timeout=20)
    folder = Path(diagnose_in_job.get_folder("7-1-diagnose"))
    assert (folder / "output").read_text() == "seen\n"
    assert folder != Path(diagnose_in_job.get_folder("8-1-diagnose"))


def test_a_folder_of_ours_that_others_may_enter_is_not_taken(shared: Path) -> None:
    (shared / f"kintsugi-{os.getuid()}").mkdir(mode=0o755)
    assert private_folder.find_private_folder().stat().st_mode & 0o777 == 0o700


def test_both_ways_take_the_same_folder(shared: Path) -> None:
    run_bundle(shared)
    assert (private_folder.find_private_folder() / "gpu.lock").exists()
    assert len(list(shared.iterdir())) == 1


def test_a_round_is_not_joined_by_the_next(shared: Path) -> None:
    run_bundle(shared)
    lock = private_folder.find_private_folder() / "gpu.lock"
    holder = subprocess.Popen(
        ["flock", str(lock), "sh", "-c", "echo held; cat"], stdin=-1, stdout=-1
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert run_bundle(shared).returncode == bundle.BUSY
    holder.communicate()
    assert run_bundle(shared).returncode == 0
