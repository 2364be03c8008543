"""A real Slurm for the tests that ask for one: started once a file, because nodes left out count
against the cap."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fixtures.cluster.control import ControlServer
from fixtures.cluster.slurm import BIN, StandInSlurm, reply_of
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from fixtures.memory_slurm import MemorySlurm

CLUSTER = "kintsugi-test"
_NODES = tuple(f"gn{number:03d}" for number in range(1, 41))


@pytest.fixture(scope="module")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemons]:
    """Forty nodes in the partition `gpu`; `boots` in its directory holds a line for each boot of a
    node."""
    directory = tmp_path_factory.mktemp("slurm")
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(gpus_per_node=2, reboot_hook=(str(hook),))
    with SlurmDaemons(directory, nodes=_NODES, cluster_name=CLUSTER, options=options) as daemons:
        yield daemons


@pytest.fixture
def stand_in_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[MemorySlurm, str], Path]]:
    """scontrol, squeue and sinfo of the stand-in on PATH; called with a Slurm, it gives their
    SLURM_CONF."""
    monkeypatch.setenv(
        "PATH", os.pathsep.join((str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    with ExitStack() as served, TemporaryDirectory(prefix="kintsugi-") as directory:

        def serve(slurm: MemorySlurm, cluster_name: str) -> Path:
            socket = Path(directory) / "control"
            stand_in = StandInSlurm(
                slurm, Path(directory), cluster_name=cluster_name, socket=socket
            )
            server = ControlServer(socket, lambda order: reply_of(stand_in, order["argv"]))
            server.start()
            served.callback(server.stop)
            stand_in.start()
            return stand_in.conf

        yield serve


@pytest.fixture(scope="module")
def _fresh_nodes() -> Iterator[str]:
    return iter(_NODES)


@pytest.fixture
def take_node(_fresh_nodes: Iterator[str]) -> Callable[[], str]:
    """A node of the real Slurm that no other test touches."""
    return lambda: next(_fresh_nodes)


def boots(daemons: SlurmDaemons, node: str) -> int:
    """How often the node's power went, as its RebootProgram counted."""
    path = Path(daemons.directory / "boots")
    return path.read_text().split().count(node) if path.exists() else 0


def reboots_asked(daemons: SlurmDaemons, node: str) -> int:
    """How often slurmctld's own log says that a reboot of the node was queued."""
    lines = daemons.log.read_text().splitlines()
    return sum(line.endswith(f"reboot request queued for nodes {node}") for line in lines)


def numbered(prefix: str) -> Iterator[str]:
    return (f"{prefix}{number}" for number in itertools.count(1))
