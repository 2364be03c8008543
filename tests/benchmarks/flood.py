"""How long another node's critical line waits while one node floods: `python -m
tests.benchmarks.flood`.

Real parts: Slurm with 100 nodes, PostgreSQL with fsync, Redis, one process for each part of
Kintsugi. From the line on the socket to the fault's row, first with no other sender, then while
one node states as many new critical faults as a connection takes. The aim is 1 s at most.
"""

from __future__ import annotations

import itertools
import socket
import statistics
import threading
import time

from fixtures.cluster.ssh_server import node_address
from tests.services.ports import wait_until
from tests.services.site import ClusterSite

QUIET_SAMPLES = 11
SAMPLES = 20
# Each sample is a new fault: a GPU of the node and a critical Xid.
_GPUS = tuple(f"0000:{bus}:00" for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db"))
_CRITICAL = (79, 48, 95, 119)
_TYPES = [f"gpu.xid.{code}" for code in _CRITICAL]
_NODE, _FLOODING_NODE = "gn001", "gn050"
_CODES_OF_FLOOD = (48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 136, 140, 143, 154)
_LINES_AT_ONCE = 50
_PAUSE_S = 0.005


class Flood(threading.Thread):
    """Critical lines of one node, each a fault that was never seen, until it is told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._out = _connect(port, _FLOODING_NODE)
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            numbers = range(self.sent, self.sent + _LINES_AT_ONCE)
            self._out.sendall(b"".join(_make_line_of_flood(number) for number in numbers))
            self.sent += _LINES_AT_ONCE
            self._is_over.wait(_PAUSE_S)

    def end(self) -> None:
        self._is_over.set()
        self.join()
        self._out.close()


def _make_line_of_flood(number: int) -> bytes:
    """Places that the inventory does not know are new faults too."""
    place = f"{number // 60 % 65536:04x}:{number % 60 + 16:02x}:00"
    return _make_line(_FLOODING_NODE, place, _CODES_OF_FLOOD[number % len(_CODES_OF_FLOOD)], number)


def _make_line(node: str, gpu: str, code: int, number: int) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    text = (
        f"<3>1 {stamp}.{number % 1000:03d}Z {node} kernel - - - [{time.monotonic():.6f}] "
        f"NVRM: Xid (PCI:{gpu}): {code}, pid={number}, name=python"
    ).encode()
    return b"%d %s" % (len(text), text)


def _connect(port: int, node: str) -> socket.socket:
    """From the node's own address: a node speaks for itself."""
    address = node_address(int(node[2:]) - 1)
    return socket.create_connection(("127.0.0.1", port), source_address=(address, 0))


def _measure(site: ClusterSite, sender: socket.socket, first: int, samples: int) -> list[float]:
    """Seconds, each of a fault that was not there before."""
    took = []
    faults = list(itertools.product(_CRITICAL, _GPUS))[first : first + samples]
    for number, (code, gpu) in enumerate(faults, start=first):
        began = time.monotonic()
        sender.sendall(_make_line(_NODE, gpu, code, 10_000_000 + number))
        wait_until(lambda: _count(site) > number, within_s=30, what="the fault")  # noqa: B023
        took.append(time.monotonic() - began)
        time.sleep(0.4 + 0.037 * number)  # at any moment of the flood's batches
    return took


def _count(site: ClusterSite) -> int:
    counted = "select count(*) from incidents_fault where owner = %s and fault_type = any(%s)"
    ((count,),) = site.query(counted, f"node/{_NODE}", _TYPES)
    return int(count)


def _print(name: str, took: list[float]) -> None:
    print(
        f"{name}: median {statistics.median(took):.2f} s, longest {max(took):.2f} s, of {len(took)}"
    )


def main() -> None:
    site = ClusterSite(
        is_durable=True, KINTSUGI_SYSLOG_RELAYS="127.0.0.1", KINTSUGI_POLL_EVERY="1h"
    ).start()
    try:
        with _connect(site.port, _NODE) as sender:
            first, *quiet = _measure(site, sender, 0, QUIET_SAMPLES)
            print(f"the first after the start: {first:.2f} s")
            _print("no other sender", quiet)
            flood = Flood(site.port)
            flood.start()
            began = time.monotonic()
            took = _measure(site, sender, QUIET_SAMPLES, SAMPLES)
            lines_a_second = flood.sent / (time.monotonic() - began)
            flood.end()
            _print(f"while another node sends {lines_a_second:,.0f} new faults/s", took)
    finally:
        site.remove()


if __name__ == "__main__":
    main()
