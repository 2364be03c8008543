"""Ways to the power of two machines, each a twin of the others: in memory, simulated, and two real
programs."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from detectors.detector import Target
from detectors.expected import Expected
from fixtures.cluster import controllers
from fixtures.cluster.controllers import Controllers
from fixtures.memory_power import MemoryPower
from runbooks.power.access import BmcAccess, BmcKind
from runbooks.power.ipmi import IpmiPower
from runbooks.power.protocol import Power, PowerState
from runbooks.power.redfish import RedfishPower
from tests.services.ipmi import IpmiSim
from tests.services.patience import deadline_in
from tests.services.ports import free_port
from tests.services.redfish import SushyEmulator, a_system

EPOCH = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
_WITHIN_S = 25.0


@dataclass
class Door:
    """`node` and `other` are on; `away` answers nothing; `locked_out` is power with wrong
    credentials."""

    power: Power
    locked_out: Power
    node: Target
    other: Target
    away: Target
    wait: Callable[[], None] = lambda: time.sleep(0.2)

    def until(self, state: PowerState) -> None:
        """A request is answered before it has taken effect."""
        deadline = deadline_in(_WITHIN_S)
        while (seen := self.power.read_state(self.node)) is not state:
            assert time.monotonic() < deadline, f"still {seen} and not {state} after {_WITHIN_S} s"
            self.wait()


def machine(name: str, bmc: str, *, serial: str = "") -> Target:
    return Target(name, name, expected=Expected(bmc=bmc, serial=serial))


def redfish(password: str = "right", *, system: str = "", user: str = "kintsugi") -> RedfishPower:
    return RedfishPower(BmcAccess(BmcKind.REDFISH, user, password, verify=False, system=system))


@contextlib.contextmanager
def in_memory() -> Iterator[Door]:
    now = [EPOCH]

    def pass_time() -> None:
        now[0] += timedelta(seconds=1)

    power = MemoryPower(["gn001", "gn002", "gn003"], now=lambda: now[0])
    power.away.add("gn003")
    locked = MemoryPower(["gn001"], now=lambda: now[0])
    locked.locked.add("gn001")
    nodes = [machine(name, name) for name in ("gn001", "gn002", "gn003")]
    yield Door(power, locked, *nodes, wait=pass_time)


@contextlib.contextmanager
def simulated() -> Iterator[Door]:
    names = ["gn001", "gn002", "gn003"]
    ours = Controllers(names, on_change=lambda node, is_on, at: None, takes=timedelta(seconds=0.4))
    ours.start()
    ours.inject("controller_away", "gn003")
    nodes = [machine(name, ours.url(name), serial=controllers.serial(name)) for name in names]
    try:
        right = redfish(controllers.PASSWORD, user=controllers.USER)
        yield Door(right, redfish("wrong", user=controllers.USER), *nodes)
    finally:
        ours.stop()


@contextlib.contextmanager
def sushy() -> Iterator[Door]:
    """Two machines behind one service: told apart by their names."""
    emulator = SushyEmulator(systems=[a_system(1), a_system(2)], password="right")
    try:
        emulator.start()
        nodes = [machine(name, emulator.url) for name in ("fake-1", "fake-2")]
        away = machine("fake-3", f"http://127.0.0.1:{free_port()}")
        yield Door(redfish(system="{name}"), redfish("wrong", system="{name}"), *nodes, away)
    finally:
        emulator.remove()


@contextlib.contextmanager
def ipmi() -> Iterator[Door]:
    sims = [IpmiSim(has_chassis=True), IpmiSim(has_chassis=True)]
    try:
        nodes = [
            machine(f"gn00{n}", f"127.0.0.1:{sim.start().port}") for n, sim in enumerate(sims, 1)
        ]
        away = machine("gn003", f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}")
        right, wrong = (
            BmcAccess(BmcKind.IPMI, "ipmiusr", word, cipher=3) for word in ("test", "wrong")
        )
        yield Door(IpmiPower(right), IpmiPower(wrong), *nodes, away)
    finally:
        for sim in sims:
            sim.remove()


DOORS = {"in memory": in_memory, "simulated": simulated, "sushy-emulator": sushy, "ipmi_sim": ipmi}
