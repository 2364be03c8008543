"""`./script/run` as a person calls it. The whole demonstration in its own folder, beside a running
one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import missing_programs
from fixtures.demo import guardian
from tests.services.patience import patient
from tests.services.ports import wait_until

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "script" / "run"


def marks(data: Path) -> set[str]:
    """Marks of the process trees that serve this folder."""
    found = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = environ.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"KINTSUGI_DATA_DIR={data}" in entries:
            found |= {entry for entry in entries if entry.startswith("DEMONSTRATION=")}
    return found


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A folder with a blank in its path. Whatever a failed test leaves running is ended."""
    data = tmp_path / "a demo"
    yield data
    for mark in marks(data):
        for pid in guardian.marked(mark):
            os.kill(pid, signal.SIGKILL)


def test_check_drives_a_lost_gpu_from_log_line_to_resolved_incident(data: Path) -> None:
    done = subprocess.run(
        [RUN, "--check", "--data", data],
        capture_output=True,
        text=True,
        timeout=patient(170),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    slurm = "the stand-in" if missing_programs() else "the real Slurm"
    assert f"\nSlurm: {slurm} (" in done.stdout
    stages = [
        "fallen off the bus",
        "is drained",
        "Confirmed on gn017",
        "reboots",
        "up again",
        "verified",
        "Resolved:",
    ]
    told = [line for line in done.stdout.splitlines() if " gn017 " in line]
    positions = [
        next(number for number, line in enumerate(told) if stage in line) for stage in stages
    ]
    assert positions == sorted(positions)
    assert marks(data) == set()


def test_everything_is_announced_and_nothing_is_left_when_it_is_interrupted(
    data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as into:
        run = subprocess.Popen(
            [RUN, "--slurm", "stand-in", "--data", data], stdout=into, stderr=into
        )
    wait_until(
        lambda: "Ctrl-C stops" in output.read_text() or run.poll() is not None,
        within_s=120,
        what="the start",
    )
    told = output.read_text()
    assert re.search(r"Console +http://127\.0\.0\.1:\d+/ +user admin, password \S+", told), told
    assert re.search(r"Slack page +http://127\.0\.0\.1:\d+/", told)
    assert "0:20  gn017/gpu/3" in told
    assert marks(data)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=patient(15)) == 0
    assert marks(data) == set()
