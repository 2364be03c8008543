"""A real Slurm of one node whose Prolog and HealthCheckProgram are the node's own check."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from detectors.cli import build_check
from fixtures.cluster.gpu import Presence, SimulatedGpu, query_xml
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions

NODE = "gn001"
_BUSES = ("19", "3b")
# The check is made until it has seen the GPUs (another test on this machine may hold its lock), and
# then no more: what the Prolog prints can only be of the cache.
_HEALTH = """#!/bin/sh
[ -e {folder}/health.out ] && exit
line=$({check} 2>&1)
case $line in *UNKNOWN*) ;; *) echo "$line" >{folder}/health.out ;; esac
"""
_PROLOG = """#!/bin/sh
began=$(date +%s%N)
{check} --prolog --max-age 3600 {words} >>{folder}/prolog.out 2>&1
status=$?
echo "$SLURM_JOB_ID $began $(date +%s%N)" >>{folder}/prolog.times
exit $status
"""


def _format_way_home() -> str:
    """A slurmd of `script/slurm-root` runs in a root of its own, where no Python is: its scripts go
    back to this machine's root for it, which is this process's."""
    found = shutil.which("slurmd")
    is_elsewhere = found is not None and Path(found).resolve().name == "run-in-root"
    return f"/usr/sbin/chroot /proc/{os.getpid()}/root" if is_elsewhere else ""


@dataclass(frozen=True)
class CheckedSlurm:
    """What the node's check has printed and how long it took, as the scripts have noted it."""

    slurm: SlurmDaemons
    folder: Path

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def list_prolog_times_ms(self) -> list[float]:
        """From before the check's process to after it, of each job in turn."""
        rows = (line.split() for line in self.read("prolog.times").splitlines())
        return [(int(ended) - int(began)) / 1e6 for _, began, ended in rows]

    def run_job(self) -> None:
        """To its end."""
        self.slurm.command("srun", "--quiet", "--ntasks=1", "true")


@contextmanager
def a_checked_slurm(
    folder: Path, *, lost: Sequence[int] = (), words: Sequence[str] = ()
) -> Iterator[CheckedSlurm]:
    """Of a node with two GPUs, of which those of `lost` are missing; `words` are the Prolog's
    further options. Returns when HealthCheckProgram has run once."""
    program = build_check.build(folder / "kintsugi-check.pyz")
    _write_gpus(folder, lost)
    home = f"{_format_way_home()} /usr/bin/env PATH={folder}:/usr/bin:/bin".strip()
    python = f"{home} {sys.executable} -I -S {program}"
    options = f"--detectors gpu --node {NODE} --state {folder}/state"
    check = f"{python} {options} --expected {folder}/expected.json --token-file {folder}/token"
    scripts = {
        "health": _HEALTH.format(folder=folder, check=check),
        "prolog": _PROLOG.format(folder=folder, check=check, words=" ".join(words)),
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    settings = {
        "Prolog": str(folder / "prolog"),
        "HealthCheckProgram": str(folder / "health"),
        "HealthCheckInterval": "1",
        "HealthCheckNodeState": "ANY",
    }
    slurm_options = SlurmOptions(gpus_per_node=0, settings=settings)
    with SlurmDaemons(folder / "slurm", nodes=(NODE,), options=slurm_options) as slurm:
        checked = CheckedSlurm(slurm, folder)
        slurm.wait_until(lambda: bool(checked.read("health.out")), what="the node is checked")
        yield checked


def _write_gpus(folder: Path, lost: Sequence[int]) -> None:
    gpus = [
        SimulatedGpu(
            index,
            f"0000:{bus}:00.0",
            f"GPU-{index}",
            f"{index}",
            Presence.MISSING if index in lost else Presence.PRESENT,
        )
        for index, bus in enumerate(_BUSES)
    ]
    _, text = query_xml(gpus, datetime(2026, 11, 21, tzinfo=UTC))
    (folder / "answer.xml").write_text(text)
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" >>{folder}/asked\ncat {folder}/answer.xml\n')
    program.chmod(0o755)
    rows = ", ".join(f'["{index}", "0000:{bus}:00.0"]' for index, bus in enumerate(_BUSES))
    (folder / "expected.json").write_text(f'{{"gpus": [{rows}]}}')
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("secret-token\n")
