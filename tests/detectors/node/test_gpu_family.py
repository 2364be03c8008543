"""The gpu, nvlink and pcie detectors over their real way: SSH, a bundle under a lock, and real find
and grep."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors import registry
from detectors.detector import Command, Output, Reading, Target, Transports
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.node import pcie
from detectors.polling import observe_one
from detectors.transports.ssh import SshShell
from fixtures.cluster.facets.pcie import PcieFacet
from fixtures.cluster.ssh_server import SshServer
from fixtures.cluster.world import SimulatedWorld

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
SYSFS = "/sys/bus/pci/devices"


@pytest.fixture
def world() -> SimulatedWorld:
    return SimulatedWorld.sakuraone(clock=lambda: NOW)


@pytest.fixture
def server(world: SimulatedWorld) -> Iterator[SshServer]:
    server = SshServer([world.node("gn017")])
    server.start()
    yield server
    server.stop()


@pytest.fixture
def via(server: SshServer, tmp_path: Path) -> Iterator[Transports]:
    key, known_hosts = server.write_access(tmp_path)
    shell = SshShell(user="kintsugi", key_file=key, known_hosts=known_hosts)
    yield Transports(shell=shell)
    shell.close()


def seen(
    name: str, server: SshServer, via: Transports, world: SimulatedWorld
) -> dict[tuple[str, str], object]:
    endpoint = server.endpoints["gn017"]
    gpus = tuple((str(gpu.index), gpu.pci) for gpu in world.node("gn017").gpus)
    target = Target("gn017", endpoint.address, endpoint.port, expected=Expected(gpus=gpus))
    found = observe_one(target, registry.get_by_name(name), via, NOW)
    return {(each.resource.rpartition("/")[2], each.metric): each.value for each in found}


def test_each_of_them_is_answered_over_ssh(
    server: SshServer, via: Transports, world: SimulatedWorld
) -> None:
    world.node("gn017").gpu(3).is_remap_pending = True
    world.node("gn017").gpu(5).links_down = 2
    gpus, links, bus = (seen(name, server, via, world) for name in ("gpu", "nvlink", "pcie"))
    assert all(each["gn017", "detector.answered"] for each in (gpus, links, bus))
    assert (gpus["gn017", "gpu.count"], gpus["0000:5d:00.0", "gpu.ecc.remap_pending"]) == (8, True)
    assert (
        links["0000:bb:00.0", "nvlink.links_active"],
        links["0000:19:00.0", "nvlink.links_active"],
    ) == (16, 18)
    assert bus["gn017", "pcie.gpus_on_bus"] == 8


@pytest.fixture
def tree(world: SimulatedWorld, tmp_path: Path) -> Path:
    """A node's sysfs as files: each device a symbolic link, and a loop inside, as the kernel has
    them."""
    real, root = tmp_path / "real", tmp_path / "devices"
    root.mkdir()
    for path, text in world.node("gn017").facet(PcieFacet).files().items():
        file = real / path.removeprefix(f"{SYSFS}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for device in real.iterdir():
        (root / device.name).symlink_to(device)
        (device / "subsystem").symlink_to(root)
    return root


def collected(tree: Path) -> list[Observation]:
    """What the detector's own commands find there."""
    commands: list[Command] = []

    class Remember:
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            raise AssertionError(argv)

        def run_all(
            self, target: Target, name: str, asked: tuple[Command, ...]
        ) -> dict[str, Output]:
            commands.extend(asked)
            return {}

    target, detector = Target("gn017", "127.0.0.1"), pcie.PcieDetector()
    detector.collect(target, Transports(shell=Remember()), NOW)
    outputs = {}
    for command in commands:
        argv = [word.replace(SYSFS, str(tree)) for word in command.argv]
        stdout = subprocess.run(argv, capture_output=True, check=False).stdout
        outputs[command.name] = Output(
            0, stdout.replace(str(tree).encode(), SYSFS.encode()), b"", timedelta(0)
        )
    return list(detector.parse(Reading("pcie", target, NOW, outputs)))


def test_its_commands_find_every_link_and_every_counter(world: SimulatedWorld, tree: Path) -> None:
    (tree / "0000:16:00.0" / "current_link_width").write_text("8\n")
    (tree / "0000:e1:00.0" / "aer_dev_nonfatal").write_text(
        "Undefined 0\nCmpltTO 3\nTOTAL_ERR_NONFATAL 3\n"
    )
    found = {(each.resource, each.metric): each.value for each in collected(tree)}
    links = {
        resource.rpartition("/")[2]: full
        for (resource, metric), full in found.items()
        if metric == "pcie.full_link"
    }
    node = world.node("gn017")
    assert {gpu.pci for gpu in node.gpus} | {nic.pci for nic in node.nics} <= set(links)
    assert [pci for pci, is_full in links.items() if not is_full] == ["0000:16:00.0"]
    assert found["node/gn017", "pcie.aer_counts"] == "0000:e1:00.0/nonfatal=3"
