"""A real rsyslogd that sends by RELP to a receiver that is killed and stopped: nothing is lost, and
what counts twice is what was under way at a kill."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.detectors.receivers.numbered_lines import ReceiverProcess, Traffic, numbered
from tests.services.ports import free_port, listens, wait_until
from tests.services.rsyslog import Rsyslog

LINES_PER_S = 500
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
# In the deep tier: a thread that sleeps between two lines is late, and 1,000 a second come of it.
FULL_LINES_PER_S = 1_250
FULL_ENDS = (signal.SIGKILL, signal.SIGTERM) * 10
LAST = 10**6
# Of librelp: what may be sent and not yet acknowledged.
WINDOW = 128
GetLine = Callable[[bytes], bytes]
# The action of docs/receiver.md.
FORWARD = """
module(load="imtcp")
module(load="omrelp")
input(type="imtcp" address="127.0.0.1" port="%(listen)d")
global(workDirectory="{home}")
*.* action(type="omrelp" target="127.0.0.1" port="%(port)d"
           template="RSYSLOG_SyslogProtocol23Format"
           queue.type="LinkedList" queue.size="50000" queue.timeoutEnqueue="2000"
           queue.filename="kintsugi" queue.maxDiskSpace="1g" queue.saveOnShutdown="on"
           action.resumeRetryCount="-1" action.resumeInterval="1")
"""


@pytest.fixture
def relp_port() -> int:
    return free_port()


@pytest.fixture
def receiver(tmp_path: Path, relp_port: int) -> Iterator[ReceiverProcess]:
    running = ReceiverProcess(tmp_path, free_port(), relp_port)
    running.start()
    running.wait_until_ready()
    yield running
    running.end(signal.SIGKILL)


class Played:
    """What was sent while the receiver was killed and stopped, and what is spooled."""

    def __init__(
        self,
        receiver: ReceiverProcess,
        relp_port: int,
        get_line: GetLine,
        *,
        is_full_length: bool,
    ) -> None:
        self.ends = FULL_ENDS if is_full_length else ENDS
        self._lines_per_s = FULL_LINES_PER_S if is_full_length else LINES_PER_S
        listen = free_port()
        rsyslog = Rsyslog(FORWARD % {"listen": listen, "port": relp_port}).start()
        try:
            wait_until(lambda: listens(listen), within_s=20, what="rsyslogd")
            with socket.create_connection(("127.0.0.1", listen)) as source:
                self.sent = self._play(receiver, lambda line: source.sendall(get_line(line)))
                source.sendall(numbered(LAST) + b"\n")
            wait_until(lambda: LAST in receiver.occurrences(), within_s=60, what="the last line")
        finally:
            rsyslog.remove()
        receiver.end()
        self.found = receiver.occurrences()
        del self.found[LAST]

    def _play(self, receiver: ReceiverProcess, send: Callable[[bytes], object]) -> int:
        traffic = Traffic(send, lines_per_s=self._lines_per_s)
        traffic.start()
        for how in self.ends:
            traffic.goes_on(self._lines_per_s)
            receiver.restart(how)
        traffic.goes_on(self._lines_per_s)
        traffic.end()
        return traffic.sent


@pytest.mark.needs("rsyslogd", "omrelp.so")
@pytest.mark.timeout(600)
def test_no_line_is_lost_when_the_receiver_is_killed_and_stopped_under_load(
    receiver: ReceiverProcess, relp_port: int, is_full_length: bool
) -> None:
    played = Played(receiver, relp_port, lambda line: line + b"\n", is_full_length=is_full_length)
    lost = [number for number in range(played.sent) if number not in played.found]
    assert lost == []
    assert played.found.total() - played.sent <= WINDOW * len(played.ends)


@pytest.mark.needs("rsyslogd", "omrelp.so")
@pytest.mark.timeout(600)
def test_no_repeat_of_a_line_is_lost_when_the_receiver_is_killed_and_stopped_under_load(
    receiver: ReceiverProcess, relp_port: int, is_full_length: bool
) -> None:
    """Repeats of plain TCP wait in memory for up to two seconds, to become one event."""
    played = Played(
        receiver, relp_port, lambda _: numbered(0) + b"\n", is_full_length=is_full_length
    )
    assert played.sent <= played.found[0] <= played.sent + WINDOW * len(played.ends)
