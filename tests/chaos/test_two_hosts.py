"""Two management machines on one database and one Redis, each with every part: one loses its power
in mid-work, or is cut off, and the other goes on.

The dead one is cut off first and then killed, so that neither PostgreSQL nor Redis hears a word of
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from tests.chaos.hosts import (
    NODES,
    OF_DATABASE,
    PART_NAMES,
    SYSLOG_PORT,
    Host,
    Pair,
    two_hosts,
)
from tests.services.ports import wait_until
from tests.services.programs import stop

pytestmark = [
    pytest.mark.needs("ip", "unshare", "redis-server", "postgres", "initdb"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.timeout(1800),
]
# A machine is told as silent after a minute; work goes on long before.
GOES_ON_WITHIN_S = 30
# Of lines of each host's own nodes, half of all; each with a stamp of its own.
LINES_A_SECOND = 20
_SEND = """
import datetime, pathlib, signal, socket, sys, time
port, rate, first, nodes = map(int, sys.argv[1:5])
sent = pathlib.Path(sys.argv[5])
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
with socket.create_connection(("127.0.0.1", port)) as out:
    number = 0
    while not over:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        node = f"gn{first + number % nodes:03d}"
        words = f"NVRM: Xid (PCI:0000:19:00): 31, pid={number}, name=t"
        out.sendall(f"<4>1 {now} {node} kernel - - - {words}\\n".encode())
        number += 1
        sent.write_text(str(number))
        time.sleep(1 / rate)
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with two_hosts(tmp_path) as made:
        yield made


class Sender:
    """Sends a host's own receiver lines at a steady rate, of the nodes from `first` on, in turn."""

    def __init__(self, host: Host, first: int) -> None:
        self._first, self._nodes = first, NODES // 2
        self._sent = host.home / "sent"
        words = (SYSLOG_PORT, LINES_A_SECOND, first, self._nodes, self._sent)
        self._process: subprocess.Popen[bytes] = host.spawn("-c", _SEND, *map(str, words))
        wait_until(self._sent.exists, within_s=30, what="the first line")

    def end(self) -> Counter[str]:
        """Lines that were sent, by node."""
        assert self._process.poll() is None, "the receiver has hung up"
        stop(self._process, how=signal.SIGTERM)
        numbers = range(int(self._sent.read_text()))
        return Counter(f"node/gn{self._first + number % self._nodes:03d}" for number in numbers)


def count_lines(pair: Pair) -> Counter[str]:
    """Occurrences by node."""
    rows = pair.rows(
        "SELECT owner, sum(count)::bigint FROM incidents_fault"
        " WHERE fault_type LIKE 'gpu.%%' GROUP BY owner"
    )
    return Counter({owner: int(count) for owner, count in rows})


def works(pair: Pair, host: Host) -> Callable[[], bool]:
    """Whether since now each of these has been done: lines of this host counted, polls, sweeps."""
    begun = get_work(pair, host)

    def has_worked() -> bool:
        pairs = zip(get_work(pair, host), begun, strict=True)
        return all(later > before for later, before in pairs)

    return has_worked


def get_work(pair: Pair, host: Host) -> tuple[int, datetime, datetime]:
    """Lines of this host that are counted; the last poll and the last sweep of all."""
    of_host = f"node/gn0{host.number - 1}"
    counted = sum(n for owner, n in count_lines(pair).items() if owner.startswith(of_host))
    sweeps = "SELECT max(began_at) FROM incidents_periodictask WHERE name = 'own_health'"
    return counted, pair.polled_at(), pair.ask(sweeps)


def say_what_is_the_matter(pair: Pair, *, cut: Host, other: Host) -> None:
    """The other tells each part of the cut one as silent; the cut one says itself what it lacks."""
    parts = {f"{cut.name}/{part}" for part in PART_NAMES}
    wait_until(lambda: pair.silent() == parts, within_s=150, what="the cut machine is told")
    assert cut.ask("/readyz") == (503, "the database does not answer\n\n")
    assert other.ask("/readyz") == (200, "ok\n\n")
    for part in ("ingest", "poll", "receiver"):
        assert "nobody is told that this runs" in cut.read_log(part)


def take_up_work_again(pair: Pair, host: Host) -> None:
    """Its link is back: each of its parts writes again, and its receiver has nothing left."""
    wanted = {(host.name, part) for part in PART_NAMES}
    wait_until(lambda: wanted <= pair.parts(), within_s=90, what="all parts write again")
    wait_until(lambda: not pair.silent(), within_s=90, what="nothing is told as silent")
    spooled = "SELECT count(*) FROM incidents_heartbeat WHERE backlog_since IS NOT NULL"
    wait_until(lambda: not pair.ask(spooled), within_s=90, what="the spool is delivered")


def xid(host: Host, node: str) -> None:
    """A lost GPU, sent to this machine's receiver from its neighbour's side of the wire."""
    line = (
        f"<4>{time.strftime('%b %e %H:%M:%S')} {node} kernel: NVRM: Xid (PCI:0000:19:00): 79, GPU"
    )
    send = (
        "import socket,sys;"
        f"s=socket.create_connection(({host.address!r},{SYSLOG_PORT}),10);"
        "s.sendall(sys.argv[1].encode()+bytes([10]));s.close()"
    )
    host.run("-c", send, line)


def test_one_machine_dies_and_the_other_goes_on_within_half_a_minute(pair: Pair) -> None:
    first, second = pair.hosts
    pair.start()
    xid(first, "gn001")
    xid(second, "gn002")
    for node in ("gn001", "gn002"):
        wait_until(lambda: pair.is_counted(node), within_s=30, what=f"the line of {node}")  # noqa: B023
    wait_until(lambda: pair.polled_at() is not None, within_s=90, what="polls")

    first.lose_power()
    died_at = pair.ask("SELECT now()")
    xid(second, "gn003")
    wait_until(lambda: pair.is_counted("gn003"), within_s=GOES_ON_WITHIN_S, what="ingest goes on")
    wait_until(
        lambda: pair.polled_at() > died_at, within_s=GOES_ON_WITHIN_S + 30, what="polls go on"
    )
    assert second.ask("/readyz") == (200, "ok\n\n")
    told = "SELECT count(*) FROM incidents_fault WHERE fault_type = 'kintsugi.part_silent'"
    wait_until(lambda: pair.ask(told), within_s=150, what="the dead machine is told")
    assert not pair.ask(
        "SELECT count(*) FROM (SELECT detector, target FROM incidents_poll GROUP BY 1, 2"
        " HAVING count(*) > 1) AS doubled"
    )


def test_machines_that_are_cut_apart_or_off_lose_no_line_and_count_none_twice(pair: Pair) -> None:
    """First from each other, then one from the database alone, then the other from everything."""
    first, second = pair.hosts
    pair.start()
    senders = [Sender(host, NODES // 2 * (host.number - 1)) for host in pair.hosts]
    wait_until(lambda: pair.polled_at() is not None, within_s=90, what="polls")
    for host in pair.hosts:
        wait_until(works(pair, host), within_s=60, what="both work")

    with ExitStack() as cut:
        for host in pair.hosts:
            host.cut_from_neighbours(True)
            cut.callback(host.cut_from_neighbours, False)
        assert not first.reaches(second)
        for host in pair.hosts:
            wait_until(works(pair, host), within_s=GOES_ON_WITHIN_S + 60, what="both go on")
    assert first.reaches(second)
    assert pair.silent() == set()

    with first.cut_from(OF_DATABASE):
        wait_until(works(pair, second), within_s=GOES_ON_WITHIN_S + 60, what="the second goes on")
        say_what_is_the_matter(pair, cut=first, other=second)
    take_up_work_again(pair, first)

    with second.cut_from_all():
        wait_until(works(pair, first), within_s=GOES_ON_WITHIN_S + 60, what="the first goes on")
        say_what_is_the_matter(pair, cut=second, other=first)
    take_up_work_again(pair, second)

    sent = senders[0].end() + senders[1].end()
    wait_until(
        lambda: count_lines(pair).total() >= sent.total(), within_s=120, what="every line counted"
    )
    assert count_lines(pair) == sent
