"""The scripts that reset a GPU, run by a real sh with stand-ins for nvidia-smi, systemctl and sudo
on PATH."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from detectors.detector import Target
from detectors.transports.ssh import LocalShell
from runbooks.node import detached_command, gpu_reset
from runbooks.node.detached_command import Answer, Ended, Running
from runbooks.node.gpu_reset import Which
from tests.services.patience import deadline_in

HERE = Target("here", "here")
GPUS = ("0000:19:00.0", "0000:3b:00.0")
ACTIVE = {"dcgm-exporter", "nvidia-dcgm", "nvidia-persistenced", "nvidia-fabricmanager"}

# Each keeps its state as files of a folder, and a line of what it was asked for that changes
# something.
SYSTEMCTL = """#!/bin/sh
cd STATE; unit=$(for last; do :; done; echo "$last")
case $1 in
  is-active) [ -f "units/$unit" ] ;;
  stop) [ ! -f "stuck/$unit" ] || exit 1; echo "stop $unit" >>did; rm -f "units/$unit" ;;
  start) echo "start $unit" >>did; [ ! -f "broken/$unit" ] && touch "units/$unit" ;;
esac
"""
NVIDIA_SMI = """#!/bin/sh
cd STATE; pci=$(for last; do :; done; echo "$last")
case $1 in
  --query-gpu=compute_mode,power.limit) [ ! -f "lost/$pci" ] || exit 6
    echo "$(cat "compute/$pci"), $(cat "power/$pci")" ;;
  --query-gpu=*) [ ! -f "lost/$pci" ] || { echo "No devices were found"; exit 6; }
    if [ -f "modes/$pci" ]; then echo Enabled; else echo Disabled; fi ;;
  -pm) echo "pm $2 $pci" >>did; if [ "$2" = 1 ]; then touch "modes/$pci"; else rm -f "modes/$pci"; fi ;;
  -c) [ ! -f "broken/-c" ] || exit 1
    echo "c $2 $pci" >>did; case $2 in 0) echo Default ;; 3) echo Exclusive_Process ;; esac >"compute/$pci" ;;
  --gpu-reset) [ "$2" = -i ] || pci=all
    while [ -f hold ]; do sleep 0.05; touch held; done
    for unit in dcgm-exporter nvidia-dcgm nvidia-persistenced; do
      [ ! -f "units/$unit" ] || { echo "GPU $pci: In use by another client"; exit 255; }
    done
    [ $pci != all ] || [ ! -f units/nvidia-fabricmanager ] || { echo "In use by another client"; exit 255; }
    [ ! -f "modes/$pci" ] || { echo "GPU $pci: In use by another client"; exit 255; }
    left=$(cat busy 2>/dev/null || echo 0)
    [ "$left" = 0 ] || { echo $((left - 1)) >busy; echo "GPU $pci: In use by another client"; exit 255; }
    for gpu in compute/*; do
      gpu=${gpu#compute/}
      [ $pci = all ] || [ $pci = "$gpu" ] || continue
      echo Default >"compute/$gpu"; echo 700.00 >"power/$gpu"
    done
    echo "reset $pci" >>did; echo "GPU $pci was successfully reset."; echo "All done." ;;
esac
"""
SUDO = '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n'
SLEEP = '#!/bin/sh\nexec /bin/sleep $(if [ "$1" = 5 ]; then echo 0.05; else echo "$1"; fi)\n'


class ANode:
    """This machine as a node: what runs, what was done, and what goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("units", "modes", "stuck", "broken", "lost", "compute", "power"):
            (folder / name).mkdir()
        for unit in ACTIVE:
            (folder / "units" / unit).touch()
        for gpu in GPUS:
            (folder / "modes" / gpu).touch()
            (folder / "compute" / gpu).write_text("Default\n")
            (folder / "power" / gpu).write_text("700.00\n")

    @property
    def active(self) -> set[str]:
        return {path.name for path in (self.folder / "units").iterdir()}

    @property
    def modes(self) -> set[str]:
        return {path.name for path in (self.folder / "modes").iterdir()}

    @property
    def did(self) -> list[str]:
        path = self.folder / "did"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ANode:
    state, programs = tmp_path / "state", tmp_path / "bin"
    for folder in (state, programs, tmp_path / "tmp"):
        folder.mkdir()
    texts = {"systemctl": SYSTEMCTL, "nvidia-smi": NVIDIA_SMI, "sudo": SUDO, "sleep": SLEEP}
    for name, text in texts.items():
        (programs / name).write_text(text.replace("STATE", str(state)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return ANode(state)


def ended(job: detached_command.DetachedJob) -> Ended:
    deadline = deadline_in(30)
    answer: Answer = detached_command.start(LocalShell(), HERE, job)
    while not isinstance(answer, Ended):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
        answer = detached_command.poll_command(LocalShell(), HERE, job)
    return answer


def test_one_gpu_is_reset_once_what_holds_it_is_stopped_and_all_of_that_is_put_back(
    node: ANode,
) -> None:
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 0
    assert f"GPU {GPUS[0]} was successfully reset." in answer.said
    assert node.did == [
        "stop dcgm-exporter",
        "stop nvidia-dcgm",
        "stop nvidia-persistenced",
        f"pm 0 {GPUS[0]}",
        f"reset {GPUS[0]}",
        f"pm 1 {GPUS[0]}",
        "start nvidia-persistenced",
        "start nvidia-dcgm",
        "start dcgm-exporter",
    ]
    assert (node.active, node.modes) == (ACTIVE, set(GPUS))


def test_all_gpus_are_reset_in_one_command_with_the_fabric_manager_stopped(node: ANode) -> None:
    assert ended(gpu_reset.build_job("1-4-reset_gpu", Which.ALL, GPUS)).status == 0
    assert "reset all" in node.did
    assert node.did.index("stop nvidia-fabricmanager") < node.did.index("reset all")
    assert (node.active, node.modes) == (ACTIVE, set(GPUS))


def test_what_did_not_run_before_does_not_run_after(node: ANode) -> None:
    (node.folder / "units" / "dcgm-exporter").unlink()
    (node.folder / "modes" / GPUS[0]).unlink()
    assert ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1])).status == 0
    assert node.active == ACTIVE - {"dcgm-exporter"}
    assert node.modes == {GPUS[1]}


def test_unit_that_the_site_names_is_stopped_first(node: ANode) -> None:
    (node.folder / "units" / "site-exporter").touch()
    assert (
        ended(
            gpu_reset.build_job(
                "1-4-reset_gpu", Which.PART, GPUS[:1], more_units=("site-exporter",)
            )
        ).status
        == 0
    )
    assert node.did[0] == "stop site-exporter"
    assert "site-exporter" in node.active


def test_gpu_that_is_in_use_for_a_moment_is_tried_again(node: ANode) -> None:
    (node.folder / "busy").write_text("2\n")
    assert ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1])).status == 0
    assert node.did.count(f"reset {GPUS[0]}") == 1


def test_refusal_is_told_in_nvidia_smis_words_and_everything_is_put_back(node: ANode) -> None:
    (node.folder / "busy").write_text("9\n")
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 255
    assert "In use by another client" in answer.said
    assert (node.active, node.modes) == (ACTIVE, set(GPUS))


def test_gpu_that_does_not_answer_is_not_reset(node: ANode) -> None:
    (node.folder / "lost" / GPUS[0]).touch()
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 72
    assert not any(line.startswith("reset") for line in node.did)
    assert node.active == ACTIVE


def test_service_that_does_not_stop_ends_it_before_any_reset(node: ANode) -> None:
    (node.folder / "stuck" / "nvidia-dcgm").touch()
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 71
    assert "could not stop nvidia-dcgm" in answer.said
    assert not any(line.startswith("reset") for line in node.did)
    assert node.active == ACTIVE


def test_service_that_does_not_start_again_is_told(node: ANode) -> None:
    (node.folder / "broken" / "nvidia-dcgm").touch()
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 0
    assert gpu_reset.list_unrestored(answer.said) == ["could not start nvidia-dcgm again"]


def test_a_compute_mode_that_the_reset_lost_is_set_again_once_all_runs_that_keeps_it(
    node: ANode,
) -> None:
    for gpu in GPUS:
        (node.folder / "compute" / gpu).write_text("Exclusive_Process\n")
    assert ended(gpu_reset.build_job("1-4-reset_gpu", Which.ALL, GPUS)).status == 0
    for gpu in GPUS:
        assert (node.folder / "compute" / gpu).read_text() == "Exclusive_Process\n"
    started = [number for number, line in enumerate(node.did) if line.startswith("start ")]
    assert node.did.index(f"c 3 {GPUS[0]}") > max(started)


def test_it_is_set_again_where_nothing_held_the_gpu(node: ANode) -> None:
    for folder in ("units", "modes"):
        for path in (node.folder / folder).iterdir():
            path.unlink()
    (node.folder / "compute" / GPUS[0]).write_text("Exclusive_Process\n")
    assert ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1])).status == 0
    assert node.did == [f"reset {GPUS[0]}", f"c 3 {GPUS[0]}"]


def test_what_of_its_settings_is_lost_is_told(node: ANode) -> None:
    (node.folder / "compute" / GPUS[0]).write_text("Exclusive_Process\n")
    (node.folder / "power" / GPUS[0]).write_text("500.00\n")
    (node.folder / "broken" / "-c").touch()
    answer = ended(gpu_reset.build_job("1-4-reset_gpu", Which.PART, GPUS[:1]))
    assert answer.status == 0
    assert gpu_reset.list_unrestored(answer.said) == [
        f"could not set the compute mode of {GPUS[0]} again",
        f"could not set the power limit of {GPUS[0]} again: it is 700.00 W and was 500.00 W",
    ]


def descendants(pid: int) -> list[int]:
    """Children and theirs, as /proc shows them."""
    children = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (entry / "stat").exists() and _parent(entry) == pid
    ]
    return [*children, *(one for child in children for one in descendants(child))]


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def watcher(key: str) -> int:
    """The process that runs what keeps its output under this key, below this test's TMPDIR."""
    below, end = os.environ["TMPDIR"].encode() + b"/", b"/" + key.encode()
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        is_script = words[:2] == [b"sh", b"-c"] and b"begun" in words
        if is_script and any(word.startswith(below) and word.endswith(end) for word in words):
            return int(entry.name)
    raise AssertionError(f"nothing runs under {key}")


def held(node: ANode) -> None:
    deadline = deadline_in(20)
    while not (node.folder / "held").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("victims", ["the script", "the watcher", "all of it"])
def test_what_was_stopped_runs_again_whoever_is_killed_in_the_middle(
    node: ANode, victims: str
) -> None:
    job = gpu_reset.build_job("77-4-reset_gpu", Which.PART, GPUS[:1])
    (node.folder / "hold").touch()
    assert detached_command.start(LocalShell(), HERE, job) == Running()
    held(node)
    first = watcher(job.key)
    below = descendants(first)
    killed = {"the script": below, "the watcher": [first], "all of it": [first, *below]}[victims]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # the stand-in's short sleeps come and go
            os.kill(pid, signal.SIGKILL)
    (node.folder / "hold").unlink()
    answer = ended(job)
    assert answer.status != 0
    assert (node.active, node.modes) == (ACTIVE, set(GPUS))
    assert node.did.count(f"reset {GPUS[0]}") == (1 if victims == "the watcher" else 0)
    assert ended(job) == answer


def test_every_command_that_needs_root_is_named_for_sudoers(node: ANode, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    sudo = Path(shutil.which("sudo") or "")
    sudo.write_text(f'#!/bin/sh\nshift\necho "$@" >>{asked}\nexec "$@"\n')
    if os.getuid() == 0:
        as_nobody = tmp_path / "bin" / "id"
        as_nobody.write_text("#!/bin/sh\necho 1000\n")
        as_nobody.chmod(0o755)
        folder = tmp_path / "tmp" / "kintsugi-1000"
        folder.mkdir(mode=0o700)
        os.chown(folder, 1000, 1000)
    for key, which, gpus in (
        ("1-4-reset_gpu", Which.PART, GPUS[:1]),
        ("2-4-reset_gpu", Which.ALL, GPUS),
    ):
        assert ended(gpu_reset.build_job(key, which, gpus)).status == 0
    allowed = {" ".join(command) for command in gpu_reset.list_commands(GPUS)}
    assert set(asked.read_text().splitlines()) <= allowed
    assert "nvidia-smi --gpu-reset" in asked.read_text().splitlines()
