"""What the kernel keeps of a receiver that restarts, where somebody else keeps its sockets."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from detectors.receivers.passed_sockets import (
    PassedSocketError,
    PassedSockets,
    take_passed_sockets,
)
from tests.detectors.receivers.numbered_lines import ReceiverProcess, Traffic
from tests.services.ports import free_port, listens, wait_until
from tests.services.rsyslog import Rsyslog
from tests.services.socket_activation import KeptSockets

# Fewer than a sender may state a second (detectors/receivers/refusals.py): however long a restart
# takes on a busy machine, each line stays an event of its own.
LINES_PER_S = 40
LINES = 60
# The action of docs/receiver.md.
FORWARD = """
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="%(listen)d")
global(workDirectory="{home}")
*.* action(type="omfwd" target="127.0.0.1" port="%(port)d" protocol="tcp" TCP_Framing="octet-counted"
           template="RSYSLOG_SyslogProtocol23Format"
           queue.type="LinkedList" queue.size="50000" queue.timeoutEnqueue="2000"
           queue.filename="kintsugi" queue.maxDiskSpace="1g" queue.saveOnShutdown="on"
           action.resumeRetryCount="-1" action.resumeInterval="1")
"""


@pytest.fixture
def kept() -> Iterator[KeptSockets]:
    with closing(KeptSockets(receive_bytes=8 * 1024 * 1024)) as sockets:
        yield sockets


@pytest.fixture
def receiver(tmp_path: Path, kept: KeptSockets) -> Iterator[ReceiverProcess]:
    running = ReceiverProcess(tmp_path, kept.address[1], kept=kept)
    running.start()
    running.wait_until_ready()
    yield running
    running.end(signal.SIGKILL)


@pytest.mark.timeout(300)
def test_no_datagram_is_lost_over_two_restarts(
    receiver: ReceiverProcess, kept: KeptSockets
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        traffic = Traffic(lambda line: sender.sendto(line, kept.address), lines_per_s=LINES_PER_S)
        traffic.start()
        for _ in range(2):
            traffic.goes_on(LINES)
            receiver.restart()
        traffic.goes_on(LINES)
        traffic.end()
    receiver.end()
    assert receiver.occurrences() == Counter(range(traffic.sent))


@pytest.mark.timeout(300)
def test_datagrams_wait_in_the_kernel_while_a_killed_receiver_is_away(
    receiver: ReceiverProcess, kept: KeptSockets
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        traffic = Traffic(lambda line: sender.sendto(line, kept.address), lines_per_s=LINES_PER_S)
        traffic.start()
        traffic.goes_on(LINES)
        receiver.end(signal.SIGKILL)
        first_kept = traffic.sent + 1  # one may have left and not be counted as sent yet
        traffic.goes_on(LINES)
        receiver.start()
        receiver.wait_until_ready()
        traffic.end()
    receiver.end()
    found = receiver.occurrences()
    assert max(found.values()) == 1
    assert [number for number in range(first_kept, traffic.sent) if number not in found] == []


@pytest.mark.needs("rsyslogd")
@pytest.mark.timeout(300)
def test_no_line_of_rsyslog_is_lost_over_two_restarts(
    receiver: ReceiverProcess, kept: KeptSockets
) -> None:
    listen = free_port()
    rsyslog = Rsyslog(FORWARD % {"listen": listen, "port": kept.address[1]}).start()
    try:
        wait_until(lambda: listens(listen), within_s=20, what="rsyslogd")
        with socket.create_connection(("127.0.0.1", listen)) as source:
            traffic = Traffic(lambda line: source.sendall(line + b"\n"), lines_per_s=LINES_PER_S)
            traffic.start()
            for _ in range(2):
                traffic.goes_on(LINES)
                receiver.restart()
            traffic.goes_on(LINES)
            traffic.end()
        last = traffic.sent - 1
        wait_until(lambda: last in receiver.occurrences(), within_s=60, what="the last line")
    finally:
        rsyslog.remove()
    receiver.end()
    assert receiver.occurrences() == Counter(range(traffic.sent))


# -- what is passed


def take(*sockets: socket.socket, **environ: str) -> PassedSockets:
    """From descriptors in a row, as the protocol has them from 3 on."""
    first = max(each.fileno() for each in sockets) + 100
    for place, each in enumerate(sockets, first):
        os.dup2(each.fileno(), place)
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), **environ}
    return take_passed_sockets(given, first=first)


def test_sockets_are_known_by_their_kind_and_address(kept: KeptSockets) -> None:
    passed = take(kept.stream, kept.datagram)
    port = kept.address[1]
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        found = passed.require(kind, ("localhost", port), "KINTSUGI_SYSLOG_LISTEN")
        assert found is not None
        assert (found.type, found.getsockname()) == (kind, kept.address)
        assert not found.get_inheritable()
        found.close()
    passed.refuse_others()


def test_sockets_of_another_process_are_left_alone(kept: KeptSockets) -> None:
    passed = take(kept.stream, LISTEN_PID=str(os.getppid()))
    assert passed.require(socket.SOCK_STREAM, kept.address, "KINTSUGI_SYSLOG_LISTEN") is None


def test_the_variables_are_not_left_to_children() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/"}
    take_passed_sockets(environ)
    assert environ == {"HOME": "/"}


def test_another_address_than_that_of_the_setting_is_refused(kept: KeptSockets) -> None:
    host, port = kept.address
    passed = take(kept.stream)
    with pytest.raises(PassedSocketError, match=rf"LISTEN={host}:{port}: .* no UDP .*TCP {host}"):
        passed.require(socket.SOCK_DGRAM, kept.address, "KINTSUGI_SYSLOG_LISTEN")
    passed = take(kept.stream)
    with pytest.raises(PassedSocketError, match=f"passes TCP {host}:{port}, which no setting"):
        passed.refuse_others()


@pytest.mark.parametrize(
    ("family", "kind", "found"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, "found AF_INET, SOCK_STREAM"),
        (socket.AF_INET, socket.SOCK_DGRAM, "found AF_INET, SOCK_DGRAM"),
        (socket.AF_UNIX, socket.SOCK_DGRAM, "found AF_UNIX, SOCK_DGRAM"),
    ],
)
def test_a_socket_that_does_not_listen_or_is_of_another_kind_is_refused(
    family: socket.AddressFamily, kind: socket.SocketKind, found: str
) -> None:
    with socket.socket(family, kind) as other, pytest.raises(PassedSocketError, match=found):
        take(other)


def test_a_descriptor_that_is_no_socket_is_refused(tmp_path: Path, kept: KeptSockets) -> None:
    with pytest.raises(PassedSocketError, match="systemd passes no socket here"):
        take(kept.stream, LISTEN_FDS="2")
    with pytest.raises(PassedSocketError, match="LISTEN_FDS=many: expected a number"):
        take(kept.stream, LISTEN_FDS="many")
