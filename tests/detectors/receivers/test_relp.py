"""A RELP sender that speaks by hand: when its lines are acknowledged, and what ends its session."""

from __future__ import annotations

import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from detectors.receivers import connections
from detectors.receivers.senders import Senders
from tests.detectors.receiver_twin import MemoryInbox, RunningReceiver
from tests.detectors.receivers.numbered_lines import count_spooled, numbered
from tests.services.patience import patient
from tests.services.ports import wait_until

OFFERS = b"relp_version=0\nrelp_software=test\ncommands=syslog"
BENIGN = b"<30>Jan 12 03:04:05 gn042 systemd[1]: Started Session 7 of user root."
ANSWER = re.compile(rb"(\d+) (rsp|serverclose) (\d+)")


@dataclass
class Client:
    """One session. Frames are numbered from 1."""

    connection: socket.socket
    number: int = 0
    rest: bytes = b""
    answers: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, command: bytes, *texts: bytes) -> None:
        frames = []
        for text in texts:
            self.number += 1
            data = b" " + text if text else b""
            frames.append(b"%d %b %d%b\n" % (self.number, command, len(text), data))
        self.connection.sendall(b"".join(frames))

    def wait_for_answers(self, count: int) -> list[tuple[int, bytes]]:
        """Number and text of all since the session began; of the hint that it ends number 0."""
        while len(self.answers) < count:
            received = self.connection.recv(65536)
            assert received, f"closed after {self.answers}"
            self._take(received)
        return self.answers

    def wait_for_end(self) -> list[tuple[int, bytes]]:
        """All answers, once the connection is closed."""
        try:
            while received := self.connection.recv(65536):
                self._take(received)
        except ConnectionResetError:
            pass
        return self.answers

    def _take(self, received: bytes) -> None:
        self.rest += received
        while head := ANSWER.match(self.rest):
            end = head.end() + (1 + int(head[3]) if int(head[3]) else 0)
            if len(self.rest) <= end:
                return
            self.answers.append((int(head[1]), self.rest[head.end() : end].strip()))
            self.rest = self.rest[end + 1 :]


class Site:
    """A receiver whose database is away, so that its spool keeps everything."""

    def __init__(self, home: Path, senders: Senders | None = None) -> None:
        self.home = home
        inbox = MemoryInbox()
        inbox.is_up = False
        relp = connections.listen(("127.0.0.1", 0))
        self.address: tuple[str, int] = relp.getsockname()
        self.running = RunningReceiver(home, inbox=inbox, relp=relp, senders=senders)
        self.counters = self.running.receiver.counters
        self._open: list[socket.socket] = []

    def connect(self) -> Client:
        connection = socket.create_connection(self.address)
        connection.settimeout(patient(20))
        self._open.append(connection)
        return Client(connection)

    def __enter__(self) -> Site:
        self.running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            connection.close()
        self.running.stop()

    def spooled(self) -> dict[int, int]:
        return count_spooled(self.home / "spool")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        yield made


@pytest.fixture
def client(site: Site) -> Client:
    made = site.connect()
    made.send(b"open", OFFERS)
    [(number, text)] = made.wait_for_answers(1)
    assert number == 1
    assert text.startswith(b"200 OK\nrelp_version=0\n")
    assert text.endswith(b"\ncommands=syslog")
    return made


def test_a_line_is_in_the_spool_when_it_is_acknowledged(site: Site, client: Client) -> None:
    for number in range(20):
        client.send(b"syslog", numbered(number))
        client.wait_for_answers(2 + number)
        assert site.spooled() == dict.fromkeys(range(number + 1), 1)


def test_repeats_are_in_the_spool_when_they_are_acknowledged(site: Site, client: Client) -> None:
    """On the other ways they are held for up to two seconds."""
    for sent in (100, 200, 300):
        client.send(b"syslog", *[numbered(7)] * 100)
        client.wait_for_answers(1 + sent)
        assert site.spooled() == {7: sent}
    assert site.counters.events < 60


@contextmanager
def full_disk(site: Site) -> Iterator[None]:
    """No file grows beyond what the spool has now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (site.running.receiver.spool.size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def _has_failed(site: Site, times: int) -> bool:
    return site.counters.spool_failures >= times


def _has_said(caplog: pytest.LogCaptureFixture, words: str, times: int) -> bool:
    return sum(words in line for line in caplog.messages) >= times


def test_nothing_is_acknowledged_while_the_disk_is_full(site: Site, client: Client) -> None:
    client.send(b"syslog", *map(numbered, range(1000)))
    client.wait_for_answers(1001)
    with full_disk(site):
        client.send(b"syslog", numbered(1000))
        failures = site.counters
        wait_until(lambda: failures.spool_failures > 1, within_s=20, what="two tries to write")
        assert site.counters.acknowledged_lines == 1000
    client.wait_for_answers(1002)
    assert site.spooled() == dict.fromkeys(range(1001), 1)


def test_each_time_that_the_disk_is_full_the_log_says_where_and_that_it_is_over(
    site: Site, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        with full_disk(site):
            enough = site.counters.spool_failures + 2
            client.send(b"syslog", numbered(number))
            wait_until(partial(_has_failed, site, enough), within_s=20, what="two tries to write")
        client.wait_for_answers(1 + number)
        read_again = partial(_has_said, caplog, "senders are read again, after", number)
        wait_until(read_again, within_s=20, what="the end of it in the log")
    errors = [line for line in caplog.messages if "Make room on this disk" in line]
    held = [line for line in caplog.messages if "held back: the disk takes nothing" in line]
    assert (len(errors), len(held)) == (2, 2)
    assert str(site.running.receiver.spool.directory) in errors[1]


def test_answers_come_in_the_order_of_their_frames(client: Client) -> None:
    client.send(b"syslog", numbered(1), numbered(1), BENIGN, BENIGN, numbered(2))
    client.send(b"syslog", BENIGN)
    client.send(b"ask", b"", b"why")
    answers = client.wait_for_answers(9)
    assert [number for number, _ in answers] == list(range(1, 10))
    assert [text for _, text in answers[1:7]] == [b"200 OK"] * 6
    assert [text[:4] for _, text in answers[7:]] == [b"500 "] * 2


def test_benign_and_empty_lines_are_acknowledged_and_counted(site: Site, client: Client) -> None:
    client.send(b"syslog", *[BENIGN] * 500, b"", b"\n")
    client.wait_for_answers(503)
    assert (site.counters.lines, site.counters.acknowledged_lines) == (502, 502)
    assert site.spooled() == {}


def test_a_line_feed_in_a_message_starts_no_line(site: Site, client: Client) -> None:
    client.send(b"syslog", BENIGN + b"\n" + numbered(3) + b"\n", numbered(4) + b"\n")
    client.wait_for_answers(3)
    assert site.counters.lines == 2
    assert 4 in site.spooled()


def test_a_line_over_64_kib_is_cut_and_one_over_128_kib_ends_the_session(
    site: Site, client: Client
) -> None:
    client.send(b"syslog", numbered(5) + b"x" * 100_000)
    client.wait_for_answers(2)
    assert (site.counters.cut_lines, site.spooled()) == (1, {5: 1})
    client.send(b"syslog", b"x" * 140_000)
    assert len(client.wait_for_end()) == 2
    assert site.counters.framing_errors == 1


@pytest.mark.parametrize("garbage", [b"<4>no frame\n", b"2 syslog 1 xx\n", b"0 serverclose 0\n"])
def test_a_malformed_frame_ends_the_session_and_keeps_what_came_before(
    site: Site, client: Client, garbage: bytes
) -> None:
    client.send(b"syslog", numbered(6))
    client.connection.sendall(garbage)
    client.wait_for_end()
    assert site.counters.framing_errors == 1
    wait_until(lambda: site.spooled() == {6: 1}, within_s=10, what="the line before it")
    assert site.connect().connection.getpeername() == site.address


def test_lines_before_the_session_is_opened_are_refused(site: Site) -> None:
    early = site.connect()
    early.send(b"syslog", numbered(8))
    assert early.wait_for_end() == []
    assert (site.counters.framing_errors, site.counters.lines) == (1, 0)


def test_a_session_without_the_command_syslog_is_declined(site: Site) -> None:
    other = site.connect()
    other.send(b"open", b"relp_version=0\ncommands=eventlog")
    [(number, text)] = other.wait_for_end()
    assert (number, text[:4]) == (1, b"500 ")


def test_a_close_is_answered_behind_the_lines_before_it(client: Client) -> None:
    client.send(b"syslog", numbered(9), numbered(9))
    client.send(b"close", b"")
    ends = [(2, b"200 OK"), (3, b"200 OK"), (4, b"200 OK"), (0, b"")]
    assert client.wait_for_end()[1:] == ends


def test_a_stop_acknowledges_what_was_taken_and_says_that_it_ends(
    site: Site, client: Client
) -> None:
    client.send(b"syslog", *[numbered(10)] * 50)
    wait_until(lambda: site.counters.lines == 50, within_s=10, what="fifty lines")
    site.running.receiver.stop()
    answers = client.wait_for_end()
    client.connection.close()
    assert [number for number, _ in answers] == [*range(1, 52), 0]
    site.running.stop()
    assert site.spooled() == {10: 50}


def test_a_sender_that_takes_no_answers_is_not_read_for_ever(site: Site, client: Client) -> None:
    """Ten million lines would go through if answers that nobody takes were kept in memory."""
    client.connection.settimeout(3)
    block = b"".join(b"%d syslog %d %b\n" % (n, len(BENIGN), BENIGN) for n in range(2, 1_002))

    def flood() -> None:
        for _ in range(10_000):
            client.connection.sendall(block)

    with pytest.raises(TimeoutError):
        flood()
    assert site.counters.acknowledged_lines > 0


def test_only_accepted_networks_are_heard(tmp_path: Path) -> None:
    site = Site(tmp_path, Senders(networks=["192.0.2.0/24"], accepts_hosts=False))
    with site:
        assert site.connect().wait_for_end() == []
        assert site.counters.refused_connections == 1
