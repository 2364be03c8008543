"""From the last byte of an Xid 79 line on the socket to the return of `scontrol update`, on real
parts.

Real Slurm with 100 nodes, PostgreSQL with fsync, Redis, one process for each part of Kintsugi; 200
lines, one after the other, while ten other nodes are in repair and wait for their jobs. A bare
`scontrol update` of the same Slurm, timed the same way, stands beside it. Then the same while a
storm of other faults comes in on the nodes whose repair is under way. At last the process that
holds a run's turn is killed, again and again: how long until another has the run.
"""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fixtures.cluster.control import ask
from tests.services.ports import wait_until
from tests.services.site import ClusterSite

SAMPLES = 200
SAMPLES_IN_STORM = 60
OTHERS = 10
# Of the storm: half of it repeats, the rest are new faults that move no node.
LINES_A_SECOND = 1_000
_LINES_AT_ONCE = 20
DEATHS = 20
# Every node is taken out in turn, some twice: what is timed is the path, not the limits.
WIDE = {
    "KINTSUGI_CAP_NODES": "100",
    "KINTSUGI_CAP_SHARE": "100%",
    "KINTSUGI_POD_FLOOR": "1%",
    "KINTSUGI_RATE_PER_HOUR": "10000",
    "KINTSUGI_BREAKER_SHARE": "100%",
    "KINTSUGI_APPROVAL_ABOVE": "1000",
    "KINTSUGI_POLL_EVERY": "1h",
}
# A text alone drains nothing: the node's own check has to see the GPU gone too.
_LOST = "gpu.lost"
_GPUS = ("0000:19:00", "0000:3b:00", "0000:4c:00", "0000:5d:00")
# Writes down when an update returned; costs one process more than the bare command.
_WRAPPER = """#!/bin/sh
{real} "$@"
status=$?
[ "$1" = update ] && echo "$(date +%s%N) $2 $3" >> {record}
exit $status
"""


class Watch:
    """A `scontrol` before the real one on PATH, and what it wrote down."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.record = directory / "updates"
        self.record.touch()
        wrapper = directory / "scontrol"
        wrapper.write_text(_WRAPPER.format(real=shutil.which("scontrol"), record=self.record))
        wrapper.chmod(0o755)

    def returned_at_ns(self, node: str, *, after_ns: int) -> int | None:
        for line in self.record.read_text().splitlines():
            at, target, state = line.split()
            if int(at) > after_ns and target == f"NodeName={node}" and state == "State=DRAIN":
                return int(at)
        return None


def _line(node: str, pci: str, number: int) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    text = (
        f"<3>1 {stamp}.{number % 1000:03d}Z {node} kernel - - - [{time.monotonic():.6f}] "
        f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    ).encode()
    return b"%d %s" % (len(text), text)


class Storm(threading.Thread):
    """Program errors and errors of NVLink on the first nodes, until it is told to stop.

    Each block of lines is sent at its own time, whatever the receiver takes for the last one.
    """

    def __init__(self, port: int, nodes: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._nodes = nodes
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self._port)) as out:
            while not self._is_over.is_set():
                out.sendall(b"".join(self._make_line(self.sent + n) for n in range(_LINES_AT_ONCE)))
                self.sent += _LINES_AT_ONCE
                due = began + self.sent / LINES_A_SECOND
                self._is_over.wait(max(0.0, due - time.monotonic()))

    def _make_line(self, number: int) -> bytes:
        node = self._nodes[number % len(self._nodes)]
        code = (13, 31, 43, 45)[number // len(self._nodes) % 4]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        text = (
            f"<3>1 {stamp}.{number % 1000:03d}Z {node} kernel - - - [{time.monotonic():.6f}] "
            f"NVRM: Xid (PCI:{_GPUS[number % 4]}): {code}, pid={number // 2}, name=python"
        ).encode()
        return b"%d %s" % (len(text), text)

    def end(self) -> None:
        self._is_over.set()
        self.join()


def _lose_gpu(site: ClusterSite, node: str) -> str:
    """A GPU of the node is gone from now on, and nothing tells of it; gives its address."""
    told = str(ask(site.home, do="inject", name=_LOST, resource=node)["sentence"])
    found = re.search(r"/gpu/([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})", told)
    assert found is not None, told
    return found[1]


def _release(site: ClusterSite, node: str) -> None:
    """Back to where the sample began: the GPU back, the run aborted, its incident closed, the node
    in service."""
    ask(site.home, do="mend", name=_LOST, resource=node)
    wait_until(lambda: _has_drained(site), within_s=30, what=f"the end of the drain of {node}")
    ended = "update runbooks_run set state = 'aborted', leased_until = null, claimed_at = null, finished_at = now()"
    of_node = "node_id = (select id from incidents_node where name = %s)"
    site.query(f"{ended} where finished_at is null and {of_node} returning id", node)
    closed = "update incidents_incident set state = 'false_positive', closed_at = now()"
    site.query(f"{closed} where closed_at is null and owner = %s returning id", f"node/{node}")
    cleared = "update incidents_fault set is_active = false, cleared_at = now()"
    site.query(f"{cleared} where is_active and owner = %s returning id", f"node/{node}")
    site.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
    # Just after a resume a node shows as not responding for a moment, and the guards count it as
    # out.
    wait_until(
        lambda: "*" not in site.slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%t"),
        within_s=30,
        what=f"{node} in service",
    )


def _has_drained(site: ClusterSite) -> bool:
    newest = "select outcome from runbooks_steprun where name = 'drain' order by id desc limit 1"
    return site.query(newest) == [("done",)]


def _bare(site: ClusterSite, watch: Watch) -> list[float]:
    took = []
    for _ in range(20):
        begun = time.time_ns()
        site.slurm("scontrol", "update", "NodeName=gn100", "State=DRAIN", "Reason=benchmark")
        returned = watch.returned_at_ns("gn100", after_ns=begun)
        took.append(((returned or time.time_ns()) - begun) / 1e6)
        site.slurm("scontrol", "update", "NodeName=gn100", "State=RESUME")
    return took


def _quantiles(name: str, took: list[float]) -> None:
    cuts = statistics.quantiles(took, n=100)
    print(f"{name}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, of {len(took)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kintsugi-latency-") as name:
        watch = Watch(Path(name))
        site = ClusterSite(is_durable=True, path=name, **WIDE).start()
        try:
            _measure(site, watch)
        finally:
            site.remove()


def _measure(site: ClusterSite, watch: Watch) -> None:
    nodes = [f"gn{number:03d}" for number in range(1, 100)]
    for node in nodes:  # a job each, so that a run waits after its drain
        site.slurm(
            "sbatch",
            "--quiet",
            "--chdir=/",
            "--output=/dev/null",
            f"--nodelist={node}",
            "--wrap=sleep 3600",
        )
    took = []
    others, nodes = nodes[:OTHERS], nodes[OTHERS:]
    with socket.create_connection(("127.0.0.1", site.port)) as sender:
        first = [_sample(site, sender, watch, node, number) for number, node in enumerate(others)]
        for number in range(SAMPLES):
            node = nodes[number % len(nodes)]
            took.append(_sample(site, sender, watch, node, number))
            _release(site, node)
    active = site.query(
        "select count(*) from runbooks_run where finished_at is null and state = 'running'"
    )[0][0]
    _quantiles("bare scontrol update", _bare(site, watch))
    _quantiles(f"Xid 79 line to scontrol update, beside {active} other runs", took)
    print(f"before those, the first of all, on cold processes: {first[0]:.0f} ms")
    _quantiles("the same in a storm", _sample_in_storm(site, watch, others, nodes))
    gone_on = [_death(site) for _ in range(DEATHS)]
    ordered = sorted(gone_on)
    middle, last = ordered[len(ordered) // 2], ordered[-1]
    print(
        f"a worker killed in its turn, {DEATHS} times: the run went on after {middle:.1f} s (p50), {last:.1f} s at most"
    )


def _sample_in_storm(
    site: ClusterSite, watch: Watch, others: Sequence[str], nodes: Sequence[str]
) -> list[float]:
    storm = Storm(site.port, others)
    storm.start()
    took = []
    elsewhere = socket.create_connection(("127.0.0.1", site.port), source_address=("127.0.0.2", 0))
    with elsewhere as sender:
        for number in range(SAMPLES_IN_STORM):
            node = nodes[number % len(nodes)]
            took.append(_sample(site, sender, watch, node, SAMPLES + number))
            _release(site, node)
    storm.end()
    waiting = site.query("select count(*) from incidents_inboxbatch")[0][0]
    print(f"{storm.sent} lines of the storm were sent; {waiting} batches wait")
    return took


def _death(site: ClusterSite) -> float:
    """Seconds from the SIGKILL of whoever holds a turn until that run is taken again; tried until
    one was hit."""
    held = (
        "select id, fence from runbooks_run where leased_until is not null and finished_at is null"
    )
    while True:
        site.query("update runbooks_run set wake_at = now() where finished_at is null returning id")
        wait_until(lambda: site.query(held), within_s=30, what="a turn")
        died_at = time.monotonic()
        site.kill_pool("runbook")
        if left := site.query(held):
            run, fence = left[0]
            taken = "select 1 from runbooks_run where id = %s and fence > %s"
            goes_on = partial(site.query, taken, run, fence)
            wait_until(goes_on, within_s=60, what=f"run {run} goes on")
            return time.monotonic() - died_at


def _sample(
    site: ClusterSite, sender: socket.socket, watch: Watch, node: str, number: int
) -> float:
    """Milliseconds from the last byte to the return of the update."""
    line = _line(node, _lose_gpu(site, node), number)
    sender.sendall(line[:-1])
    begun = time.time_ns()
    sender.sendall(line[-1:])
    wait_until(
        lambda: watch.returned_at_ns(node, after_ns=begun), within_s=30, what=f"the drain of {node}"
    )
    return ((watch.returned_at_ns(node, after_ns=begun) or 0) - begun) / 1e6


if __name__ == "__main__":
    if shutil.which("slurmctld") is None:
        sys.exit("This benchmark needs Slurm: apt-get install slurmctld slurmd slurm-client munge")
    main()
