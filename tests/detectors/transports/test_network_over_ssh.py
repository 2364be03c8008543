"""The detectors of the network over SSH, as a poll runs them: one bundle, quoting and all, against
a simulated node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.detector import Target, Transports
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.polling import observe_one
from detectors.transports.ssh import SshShell
from fixtures.cluster.facets.nic import NicFacet
from fixtures.cluster.facets.nic_polled import expected
from fixtures.cluster.ssh_server import SshServer
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


@pytest.fixture
def world() -> SimulatedWorld:
    return SimulatedWorld.sakuraone(clock=lambda: NOW)


@pytest.fixture
def reached(world: SimulatedWorld, tmp_path: Path) -> Iterator[tuple[Target, SshShell]]:
    server = SshServer([world.node("gn001")])
    server.start()
    key, known_hosts = server.write_access(tmp_path)
    shell = SshShell(user="kintsugi", key_file=key, known_hosts=known_hosts)
    endpoint = server.endpoints["gn001"]
    yield Target("gn001", endpoint.address, endpoint.port), shell
    shell.close()
    server.stop()


def looked(name: str, target: Target, inventory: Expected, via: Transports) -> list[Observation]:
    whole = Target(target.name, target.address, target.port, expected=inventory)
    return observe_one(whole, registry.get_by_name(name), via, NOW)


@pytest.mark.parametrize("inventory", [expected(), Expected()], ids=["inventory", "none"])
@pytest.mark.parametrize("name", ["nic", "transceiver", "rail"])
def test_a_look_over_ssh_sees_what_a_look_in_memory_sees(
    name: str, inventory: Expected, world: SimulatedWorld, reached: tuple[Target, SshShell]
) -> None:
    target, shell = reached
    port = world.node("gn001").facet(NicFacet).port("rail3")
    port.go_down()
    port.optics.rx_dbm[2] = -15.0
    far = looked(name, target, inventory, Transports(shell=shell))
    near = looked(name, target, inventory, Transports(shell=SimulatedShell(world)))
    assert far == near
    assert [seen.value for seen in far if seen.metric == "detector.answered"] == [True]
    events = judge.judge(far, judge.Memory(), active=(), catalog=catalog.load()).events
    wanted = {"nic": "nic.link.down", "transceiver": "nic.transceiver.rx_power_low", "rail": None}[
        name
    ]
    assert {event.fault_type for event in events} == ({wanted} if wanted else set())
