"""A real Slurm for the tests that ask for one: started once, its nodes handed out one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions

CLUSTER = "kintsugi-test"
_NODES = tuple(f"gn{number:03d}" for number in range(1, 41))


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemons]:
    """Forty nodes in the partition `gpu`; `boots` in its directory holds a line for each boot of a node."""
    directory = tmp_path_factory.mktemp("slurm")
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(gpus_per_node=2, boot_takes=timedelta(seconds=0.3), reboot_hook=(str(hook),))
    with SlurmDaemons(directory, nodes=_NODES, cluster_name=CLUSTER, options=options) as daemons:
        yield daemons


@pytest.fixture(scope="session")
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
