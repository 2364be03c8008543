"""Processor time of one walk of a 64-port switch, beside `snmpbulkwalk` of the same columns in the
same run.

    python -m tests.benchmarks.snmp [--walks N]

A simulated agent serves from a process of its own, whose time does not count. `table`: the 13
columns of ports that `switch_snmp` reads. `round`: everything that `switch_snmp` asks for. With
`parse and judge` the whole poll is counted. Switches a minute are those that one core can poll when
it does nothing else.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from detectors.catalog import catalog
from detectors.detector import Snmp, Target, TargetKind, Transports
from detectors.evaluation import judge
from detectors.switch import tables as oids
from detectors.switch.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from detectors.transports.snmp import SnmpTransport
from detectors.transports.snmp_credentials import SnmpVersion
from detectors.transports.snmp_fast import FastSnmpTransport
from fixtures.cluster.snmp_agent import COMMUNITY, SnmpAgents, credentials
from fixtures.cluster.switch import SimulatedSwitch
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.services.programs import find, spawn, stop

PORTS = [f"Ethernet{4 * number}" for number in range(64)]
NAME = "leaf-01"
ADDRESS = "127.0.0.1"
TARGET = Target(NAME, ADDRESS, kind=TargetKind.SWITCH)
FROZEN = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


def world() -> SimulatedWorld:
    return SimulatedWorld([], [SimulatedSwitch(NAME, "leaf", ports=PORTS)], clock=lambda: FROZEN)


def serve() -> None:
    print(SnmpAgents(world(), [NAME]).start().ports[NAME], flush=True)
    threading.Event().wait()


def cpu_ms(act: Callable[[], object], times: int) -> float:
    """Median processor milliseconds of this process; the first time, which warms caches, does not
    count."""
    act()
    taken = []
    for _ in range(times):
        began = time.process_time()
        act()
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


def children_ms(act: Callable[[], object], times: int) -> float:
    """Mean processor milliseconds of the child processes that `act` runs."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        act()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime) / times


def bulkwalk(port: int, columns: tuple[str, ...]) -> int:
    """One process for each column, as the program takes one subtree; gives the number of
    objects."""
    lines = 0
    for column in columns:
        argv = [
            str(find("snmpbulkwalk")),
            "-v2c",
            "-c",
            COMMUNITY,
            "-Cr100",
            "-On",
            f"{ADDRESS}:{port}",
            f".{column}",
        ]
        done = subprocess.run(
            argv, capture_output=True, check=True, env={**os.environ, "MIBS": "", "MIBDIRS": ""}
        )
        lines += done.stdout.count(b"\n")
    return lines


def say(what: str, milliseconds: float, peer: float | None = None) -> None:
    beside = f"  {milliseconds / peer:5.2f} of snmpbulkwalk's" if peer else ""
    print(
        f"{what:<46}{milliseconds:8.1f} ms CPU{beside}  {60_000 / milliseconds:9,.0f} switches a minute in one core"
    )


def poll(snmp: Snmp) -> Callable[[], object]:
    """A whole poll: ask, read, compare, judge."""
    detector, via, rows = (
        SwitchSnmpDetector(),
        Transports(SimulatedShell(world()), snmp=snmp),
        catalog.load(),
    )
    memory = judge.Memory()

    def act() -> None:
        seen = list(detector.parse(detector.collect(TARGET, via, datetime.now(UTC))))
        nonlocal memory
        memory = judge.judge_round(detector, seen, memory, active=(), catalog=rows).memory

    return act


def measure(port: int, walks: int) -> None:
    objects = bulkwalk(port, oids.PORTS)
    peer = children_ms(lambda: bulkwalk(port, oids.PORTS), max(walks // 4, 3))
    empty = children_ms(
        lambda: bulkwalk(port, ("1.3.6.1.2.1.999",) * len(oids.PORTS)), max(walks // 4, 3)
    )
    print(f"64 ports, {len(oids.PORTS)} columns, {objects} objects")
    print(
        f"{'snmpbulkwalk, a process for each column':<46}{peer:8.1f} ms CPU, of which {empty:.1f} start and end"
    )
    for version in (SnmpVersion.V2C, SnmpVersion.V3):
        for name, make in (("pysnmp", SnmpTransport), ("gufo-snmp", FastSnmpTransport)):
            snmp = make(lambda target, version=version: credentials(port, version))  # type: ignore[misc]
            via = Transports(SimulatedShell(world()), snmp=snmp)
            say(
                f"table   {name} v{version}",
                cpu_ms(partial(snmp.walk, TARGET, oids.PORTS), walks),
                peer,
            )
            say(
                f"round   {name} v{version}",
                cpu_ms(lambda: SwitchSnmpDetector().collect(TARGET, via, FROZEN), walks),  # noqa: B023
            )
            say(f"parse and judge   {name} v{version}", cpu_ms(poll(snmp), walks))
            if version is SnmpVersion.V2C:
                say(
                    f"sensors round   {name} v{version}",
                    cpu_ms(lambda: SwitchSensorsDetector().collect(TARGET, via, FROZEN), 3),  # noqa: B023
                )
            snmp.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    agent = spawn(
        [sys.executable, "-m", "tests.benchmarks.snmp", "--serve"], stdout=subprocess.PIPE
    )
    try:
        assert agent.stdout is not None
        measure(int(agent.stdout.readline()), options.walks)
    finally:
        stop(agent)


if __name__ == "__main__":
    main()
