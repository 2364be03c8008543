"""Lines a second received, matched and accounted for over TCP, beside rsyslog writing the same
stream in the same run.

    python -m tests.benchmarks.receiver [--rounds N] [--lines N] [--flood-seconds S]

Each round gives the same file to both, one after the other, over one connection on loopback. A line
of ours is accounted for when it is counted and, if it is a fault, folded; the last event is spooled
before the clock stops.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.catalog import catalog
from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadReader
from detectors.receivers.delivery import Backlog
from detectors.receivers.intake import Zones
from detectors.receivers.senders import Senders
from detectors.receivers.spool import Batch, Extent, Spool
from detectors.receivers.syslog import Listen, Receiver
from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import spawn
from tests.services.rsyslog import Rsyslog

ROOT = Path(__file__).resolve().parent.parent.parent
START = datetime(2025, 1, 12, 3, 0, tzinfo=UTC)
BENIGN = (
    "systemd[1]: Started Session {n} of User root.",
    "slurmstepd[{n}]: task 3 ({n}) exited with status 0",
    "kernel: mlx5_core 0000:1a:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps",
    "sshd[{n}]: Accepted publickey for ops from 10.0.0.7 port 50{n} ssh2: ED25519 SHA256:c29tZXRoaW5nIGVsc2U",
    "kernel: nvidia-nvlink: Nvlink Core is being initialized, major device number 236",
    'dockerd[{n}]: time="2025-01-12T03:00:00" level=info msg="ignoring event" container={n} topic=/tasks/delete',
    "kernel: perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 50000",
    "CROND[{n}]: (root) CMD (run-parts /etc/cron.hourly)",
)
CODES = (31, 48, 63, 74, 79, 94)
# As Debian and Rocky ship it: one main queue with its default sizes, one file.
RSYSLOG = """
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="%(port)d")
*.* action(type="omfile" file="{home}/out")
"""


@dataclass(frozen=True)
class Stream:
    """A file of framed lines, and what is in it."""

    path: Path
    lines: int
    faults: int


class NoInbox:
    """Takes every batch: the database is another figure."""

    def __init__(self) -> None:
        self.position: Extent | None = None

    def read_position(self, receiver: str) -> Extent | None:
        return self.position

    def put(self, receiver: str, batches: Sequence[Batch], after: Extent | None) -> None:
        self.position = batches[-1].extent

    def read_backlog(self) -> Backlog:
        return Backlog(0, 0, timedelta(0))

    def wake_worker(self) -> None:
        pass


def make_lines(
    count: int, *, fault_share: float, has_kernel_stamps: bool
) -> Iterator[tuple[bytes, bool]]:
    """Lines of 100 nodes in order of time, 2,000 a second, and whether each is a fault. Seeded."""
    dice = random.Random(7)
    for number in range(count):
        stamp = f"{START + timedelta(seconds=number // 2000):%b %e %H:%M:%S}"
        host = f"gn{dice.randrange(1, 101):03d}"
        is_fault = dice.random() < fault_share
        if is_fault:
            kernel = f"[{90_000 + number / 2000:.6f}] " if has_kernel_stamps else ""
            gpu, code = (
                dice.choice(("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")),
                dice.choice(CODES),
            )
            text = f"kernel: {kernel}NVRM: Xid (PCI:0000:{gpu}:00): {code}, pid={4000 + dice.randrange(2)}, name=python3"
        else:
            text = dice.choice(BENIGN).format(n=dice.randrange(1000, 9999))
        yield f"<4>{stamp} {host} {text}".encode(), is_fault


def make_stream(
    path: Path, lines: int, *, fault_share: float, is_counted: bool, has_kernel_stamps: bool
) -> Stream:
    faults = 0
    with path.open("wb") as file:
        for line, is_fault in make_lines(
            lines, fault_share=fault_share, has_kernel_stamps=has_kernel_stamps
        ):
            file.write(b"%d %b" % (len(line), line) if is_counted else line + b"\n")
            faults += is_fault
    return Stream(path, lines, faults)


def send(stream: Stream, port: int) -> float:
    """Sends the whole file; returns the monotonic time before the first byte."""
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        stream.path.open("rb") as file,
    ):
        started = time.monotonic()
        connection.sendfile(file)
    return started


def cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def rsyslog_seconds(stream: Stream) -> tuple[float, float]:
    """Wall and CPU time until rsyslog has written the last line. Raises AssertionError when it lost
    one."""
    port, cpu = free_port(), cpu_seconds(resource.RUSAGE_CHILDREN)
    rsyslog = Rsyslog(RSYSLOG % {"port": port}).start()
    try:
        wait_until(lambda: listens(port), within_s=20, what="rsyslogd")
        out = rsyslog.home / "out"
        started = send(stream, port)
        size, ended, deadline = -1, started, started + 300
        while time.monotonic() < deadline:
            now = out.stat().st_size if out.exists() else 0
            if now != size:
                size, ended = now, time.monotonic()
            elif time.monotonic() - ended > 2.0:  # omfile flushes at the latest after a second
                break
            time.sleep(0.01)
        with out.open("rb") as file:
            written = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    finally:
        rsyslog.remove()
    if written != stream.lines:
        raise AssertionError(f"rsyslog wrote {written} of {stream.lines} lines")
    return ended - started, cpu_seconds(resource.RUSAGE_CHILDREN) - cpu


def our_seconds(stream: Stream, *, looks_for_unread: bool) -> tuple[float, dict[str, float]]:
    """Wall time until all lines are accounted for and all events spooled. Raises AssertionError at
    any loss."""
    with tempfile.TemporaryDirectory() as home:
        argv = [
            sys.executable,
            "-m",
            "tests.benchmarks.receiver",
            "--serve",
            home,
            str(stream.lines),
        ]
        if looks_for_unread:
            argv.append("--unread")
        process = spawn(argv, cwd=ROOT, stdout=subprocess.PIPE)
        if process.stdout is None:
            raise AssertionError("no pipe")
        port = int(process.stdout.readline())
        started = send(stream, port)
        told = json.loads(process.stdout.readline())
        process.wait(30)
    if (told["lines"], told["occurrences"]) != (stream.lines, stream.faults):
        raise AssertionError(
            f"sent {stream.lines} lines with {stream.faults} faults; accounted for: {told}"
        )
    return told["ended"] - started, told


def serve(home: Path, lines: int, *, looks_for_unread: bool) -> None:
    """The receiver process: prints its port, then what it counted once `lines` have come."""
    matcher = Matcher(catalog.load())
    unread_reader = UnreadReader(matcher) if looks_for_unread else None
    receiver = Receiver(
        matcher=lambda: matcher,
        spool=Spool(home / "spool"),
        inbox=NoInbox(),
        listen=Listen("127.0.0.1", 0),
        senders=Senders,
        zones=Zones(),
        now=lambda: START + timedelta(minutes=10),
        unread_reader=lambda: unread_reader,
    )
    thread = threading.Thread(target=receiver.run)
    thread.start()
    receiver.ready.wait(60)
    print(receiver.address[1], flush=True)
    cpu = cpu_seconds(resource.RUSAGE_SELF)
    while receiver.counters.lines < lines:
        time.sleep(0.005)
    receiver.stop()
    thread.join()
    told = receiver.counters.copy_counts() | {
        "ended": time.monotonic(),
        "cpu_s": cpu_seconds(resource.RUSAGE_SELF) - cpu,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(told), flush=True)


STREAMS = (
    # share of faults, octet-counted, with kernel stamps, with what nobody reads looked for, name
    (0.001, False, False, False, "0.1 % faults, LF"),
    (0.001, False, False, True, "0.1 % faults, LF, unread lines too"),
    (0.001, True, False, False, "0.1 % faults, octet-counted"),
    (0.5, False, False, False, "50 % faults, LF"),
    (0.5, True, False, False, "50 % faults, octet-counted"),
    (0.5, False, True, False, "50 % faults with kernel stamps, LF"),
)


def compare(home: Path, rounds: int, lines: int) -> None:
    """One row per stream: lines a second (median of the rounds), their ratio, and lines per second
    of CPU."""
    print(f"{'':36} {'lines a second':>24}        {'per CPU second':>24}")
    print(
        f"{'stream':36} {'ours':>12} {'rsyslog':>12} {'ratio':>6} {'ours':>12} {'rsyslog':>12}  lost events   MiB"
    )
    for share, is_counted, has_stamps, looks_for_unread, name in STREAMS:
        size = lines if share < 0.1 else lines // 2
        stream = make_stream(
            home / "stream",
            size,
            fault_share=share,
            is_counted=is_counted,
            has_kernel_stamps=has_stamps,
        )
        theirs = [rsyslog_seconds(stream) for _ in range(rounds)]
        ours = [our_seconds(stream, looks_for_unread=looks_for_unread) for _ in range(rounds)]
        we = size / statistics.median(wall for wall, _ in ours)
        they = size / statistics.median(wall for wall, _ in theirs)
        we_cpu = size / statistics.median(told["cpu_s"] for _, told in ours)
        they_cpu = size / statistics.median(cpu for _, cpu in theirs)
        told = ours[-1][1]
        print(
            f"{name:36} {we:12,.0f} {they:12,.0f} {we / they:6.2f} {we_cpu:12,.0f} {they_cpu:12,.0f}"
            f"     0 {told['events']:6} {told['rss_mib']:5}",
            flush=True,
        )


def flood(home: Path, seconds: float) -> None:
    """800,000 repeated Xid 95 lines of one node in a minute, 29 distinct, at their own pace."""
    total = int(800_000 * seconds / 60)
    texts = [
        f"NVRM: Xid (PCI:0000:19:00): 95, pid={4000 + n}, name=train, Uncontained: LTC TAG"
        for n in range(29)
    ]
    argv = [
        sys.executable,
        "-m",
        "tests.benchmarks.receiver",
        "--serve",
        str(home / "flood"),
        str(total),
    ]
    process = spawn(argv, cwd=ROOT, stdout=subprocess.PIPE)
    if process.stdout is None:
        raise AssertionError("no pipe")
    port = int(process.stdout.readline())
    memory: list[int] = []
    started, sent = time.monotonic(), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while sent < total:
            due = min(total, int(total * (time.monotonic() - started) / seconds))
            stamp = f"{START + timedelta(seconds=time.monotonic() - started):%b %e %H:%M:%S}"
            lines = [
                f"<4>{stamp} gn042 kernel: {texts[number % 29]}\n" for number in range(sent, due)
            ]
            connection.sendall("".join(lines).encode())
            sent = due
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            memory.append(pages * resource.getpagesize() // 1024**2)
            time.sleep(0.05)
    told = json.loads(process.stdout.readline())
    process.wait(30)
    with tempfile.TemporaryDirectory() as _:
        spool = Spool(home / "flood" / "spool")
        wires = [wire for batch in spool.list_batches() for wire in batch.wires]
        spool.close()
    facts = {wire["excerpt"].partition("kernel: ")[2] for wire in wires}
    print(
        f"{total:,} Xid 95 lines in {seconds:.0f} s, 29 distinct: {len(facts)} facts, "
        f"{sum(wire['count'] for wire in wires):,} occurrences, {len(wires)} events spooled, "
        f"memory {memory[len(memory) // 4]} MiB after a quarter, {memory[-1]} MiB at the end, {told['lines']:,} lines"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--flood-seconds", type=float, default=60.0)
    parser.add_argument("--serve", nargs=2, metavar=("HOME", "LINES"), help=argparse.SUPPRESS)
    parser.add_argument("--unread", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        home, lines = options.serve
        serve(Path(home), int(lines), looks_for_unread=options.unread)
        return
    with tempfile.TemporaryDirectory() as home:
        if options.rounds:
            compare(Path(home), options.rounds, options.lines)
        if options.flood_seconds:
            flood(Path(home), options.flood_seconds)


if __name__ == "__main__":
    main()
