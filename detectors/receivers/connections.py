"""The TCP half of the receiver: connections accepted, held back, and read empty at a stop. What a
connection says is its subclass's; here it is lines.

asyncio's own server would drop connections that nobody has accepted yet when it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from detectors.receivers.counters import Counters
from detectors.receivers.framing import Framer, FramingError
from detectors.receivers.intake import Sender
from detectors.receivers.senders import RefusedCertificates, make_fingerprint

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 10_000
_BACKLOG = 1024
_ACCEPT_AGAIN_S = 1.0
_READ_BYTES = 256 * 1024
# Lines that all state new faults take 0.1 ms each, a block of 256 KiB of them a fifth of a second.
# So less is read at once of whoever sends what takes longer than this (our choice).
_TURN_S = 0.01
_FIRST_READ_BYTES, _LEAST_READ_BYTES = 16 * 1024, 4 * 1024
_LEAST_OF_CONNECTION = 512
# A stop tells senders by a FIN and reads on for so long: rsyslog looks for it before it sends, and
# closes. Then each connection is read until it would block, for at most the second time. Both are
# our choice, small parts of the units' TimeoutStopSec.
_SENDERS_CLOSE_S = 1.0
_READ_EMPTY_S = 10.0
# A sender that is slower than this at TLS has its connection closed (our choice).
_HANDSHAKE_S = 10.0

# How soon a certificate that is refused from now on loses its connections (our choice).
_LOOK_FOR_REFUSED_S = 5.0

# By address, and by the name that a certificate proves, empty without one.
Accept = Callable[[str, str], Sender | None]
Take = Callable[[bytes, Sender, int], None]


@dataclass
class _Reading:
    """How much is read of an address at once, and by how many connections."""

    size: int = _FIRST_READ_BYTES
    connections: int = 0


class ReadSizes:
    """How much is read of a connection at once: so little that what one address sends holds up the
    others for some milliseconds, however dear it is and however many connections it has."""

    def __init__(self) -> None:
        self._readings: dict[str, _Reading] = {}

    def open(self, address: str) -> None:
        self._readings.setdefault(address, _Reading()).connections += 1

    def close(self, address: str) -> None:
        reading = self._readings[address]
        reading.connections -= 1
        if not reading.connections:
            del self._readings[address]

    def get(self, address: str) -> int:
        reading = self._readings.get(address, _Reading(connections=1))
        return max(_LEAST_OF_CONNECTION, reading.size // reading.connections)

    def adjust(self, address: str, count: int, took_s: float) -> None:
        """After `count` bytes were read and took so long."""
        reading = self._readings.get(address)
        if reading is None:
            return
        is_whole = count >= self.get(address)
        if took_s * reading.connections > _TURN_S:
            reading.size = max(_LEAST_READ_BYTES, reading.size // 2)
        elif is_whole and took_s * reading.connections < _TURN_S / 2:
            reading.size = min(_READ_BYTES, reading.size * 2)


class Connections:
    """Listens from the first, so that the kernel completes connections and keeps their bytes;
    `start` reads them.

    With `tls` each sender must show a certificate that the context takes (RFC 5425), and that is
    none of `refused`. `accept` gives
    the sender of an address, None refuses it; `connect` makes what reads a
    connection. `listener` listens already; others may listen on it after us: what has not been
    accepted at the end is theirs.
    """

    def __init__(
        self,
        listener: socket.socket,
        counters: Counters,
        accept: Accept,
        connect: Callable[[Connections], Connection],
        tls: ssl.SSLContext | None = None,
        refused: RefusedCertificates | None = None,
    ) -> None:
        self._tls = tls
        self._refused = refused
        self._counters = counters
        self._accept = accept
        self._connect = connect
        self._open: set[Connection] = set()
        self._accepting: set[asyncio.Task[object]] = set()
        self._is_held_back = False
        self._is_looking = False
        self.read_sizes = ReadSizes()
        # One for all: what was read into it is taken out before another reads.
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._listener = listener
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._listener.fileno(), self._accept_waiting)
        if self._refused is not None and not self._is_looking:
            self._is_looking = True
            loop.call_later(_LOOK_FOR_REFUSED_S, self._look_for_refused)

    def _look_for_refused(self) -> None:
        """A connection may last for months: it ends soon after its certificate is refused."""
        if self._refused is None or self._listener.fileno() < 0:
            return
        if self._refused.read_changes():
            for connection in list(self._open):
                if self._refused.has(connection.fingerprint):
                    self._count_refused(connection.fingerprint)
                    connection.abort()
        asyncio.get_running_loop().call_later(_LOOK_FOR_REFUSED_S, self._look_for_refused)

    def _count_refused(self, fingerprint: str) -> None:
        if not self._counters.refused_handshakes:
            _log.warning("refused the certificate %s, which the site's list names", fingerprint)
        self._counters.refused_handshakes += 1

    def hold_back(self, is_held_back: bool) -> None:
        self._is_held_back = is_held_back
        for connection in self._open:
            connection.hold_back(is_held_back)

    def close_listener(self) -> None:
        self._listener.close()

    async def drain_and_close(self, *, is_held_back: bool) -> None:
        """Takes what the kernel has acknowledged to senders and nobody has read yet, then closes
        each connection.

        A sender believes delivered what our kernel has acknowledged. While senders are held back
        nothing is read: there is no room for it.
        """
        self._accept_waiting()
        await self._stop_accepting()
        self._send_shutdown_notices()
        await self._wait_until_closed(0.0 if is_held_back else _SENDERS_CLOSE_S)
        read_until_s = time.monotonic() + (0.0 if is_held_back else _READ_EMPTY_S)
        for connection in list(self._open):
            connection.read_empty_and_close(read_until_s)
        await asyncio.sleep(0)  # the transports close in this turn

    async def tell_end_and_close(self) -> None:
        """Of senders who keep what was not acknowledged: nothing is read any more."""
        self._send_shutdown_notices()
        await self._stop_accepting()
        await self._wait_until_closed(_SENDERS_CLOSE_S)
        for connection in list(self._open):
            connection.close()
        await asyncio.sleep(0)

    async def _stop_accepting(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    def _send_shutdown_notices(self) -> None:
        for connection in self._open:
            connection.tell_end()

    async def _wait_until_closed(self, within_s: float) -> None:
        end_s = time.monotonic() + within_s
        while self._open and time.monotonic() < end_s:
            await asyncio.sleep(0.01)

    def _accept_waiting(self) -> None:
        """Every connection that waits. `_accepting` keeps those that have no transport yet."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:  # it was reset before it was accepted
                continue
            except OSError as error:
                _log.error(
                    "no connection can be accepted: %s; the next try is in %.0f s",
                    error,
                    _ACCEPT_AGAIN_S,
                )
                loop.remove_reader(self._listener.fileno())
                loop.call_later(_ACCEPT_AGAIN_S, self._accept_again)
                return
            accepted.setblocking(False)
            self._take_connection(loop, accepted)

    def _take_connection(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
        handshake_s = None if self._tls is None else _HANDSHAKE_S
        connecting = loop.connect_accepted_socket(
            lambda: self._connect(self),
            accepted,
            ssl=self._tls,
            ssl_handshake_timeout=handshake_s,
        )
        task = loop.create_task(connecting)
        self._accepting.add(task)
        task.add_done_callback(self._end_accepting)

    def _end_accepting(self, task: asyncio.Task[object]) -> None:
        self._accepting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if not self._counters.refused_handshakes:
                _log.warning("refused a connection over TLS: %s", error)
            self._counters.refused_handshakes += 1

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:  # not closed meanwhile
            self.start(asyncio.get_running_loop())

    # -- what a connection asks

    def admit(self, connection: Connection, address: str, proof: str) -> Sender | None:
        if self._refused is not None and self._refused.has(connection.fingerprint):
            self._count_refused(connection.fingerprint)
            return None
        sender = self._accept(address, proof) if len(self._open) < MAX_CONNECTIONS else None
        if sender is None:
            self._counters.refused_connections += 1
            return None
        self._counters.connections += 1
        self._open.add(connection)
        if self._is_held_back:
            connection.hold_back(True)
        return sender

    def record_framing_error(self, sender: Sender, error: FramingError) -> None:
        if not self._counters.framing_errors:
            _log.warning("closed the connection of %s: %s", sender.host, error)
        self._counters.framing_errors += 1

    def cut(self, lines: int) -> None:
        self._counters.cut_lines += lines

    def count_acknowledged(self, lines: int) -> None:
        self._counters.acknowledged_lines += lines

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)


def listen(address: tuple[str, int]) -> socket.socket:
    """Raises OSError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)


class TlsError(Exception):
    """The certificate, the key or the authorities cannot be used: says which, and why."""


def make_tls(certificate: str, key: str, authorities: str) -> ssl.SSLContext:
    """Of files in PEM: our certificate with its chain, its key, and who signs those of senders. A
    sender without a certificate of theirs is refused. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9662: 1.2 at least
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise TlsError(f"{certificate} with the key {key}: {error}") from error
    try:
        context.load_verify_locations(cafile=authorities)
    except (OSError, ValueError) as error:
        raise TlsError(f"{authorities}: {error}") from error
    return context


def find_name(certificate: Mapping[str, Any]) -> str:
    """The machine that a certificate (as `ssl` shows it) is of: its first DNS name, else its common
    name (RFC 5425, section 5.2); empty without either."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "DNS":
            return str(name)
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == "commonName":
                return str(name)
    return ""


def keep_alive(connection: socket.socket) -> None:
    """A sender that vanished without a word is found after about two minutes instead of two
    hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


class Connection(asyncio.BufferedProtocol):
    """One TCP sender; `sender` is None before it is accepted. A subclass says what its bytes
    mean."""

    def __init__(self, connections: Connections) -> None:
        self.sender: Sender | None = None
        self.fingerprint = ""  # of its certificate, empty without one
        self._address = ""
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._is_held_back = False

    # -- of a subclass

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """It has sent its last."""

    def may_be_read(self) -> bool:
        return not self._is_held_back

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a TCP transport is expected")
        peer = transport.get_extra_info("peername") or ("",)
        self._transport = transport
        certificate = transport.get_extra_info("peercert")
        proof = find_name(certificate) if certificate else ""
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        self.fingerprint = make_fingerprint(shown) if shown else ""
        self.sender = self._connections.admit(self, peer[0], proof)
        if self.sender is None:
            transport.abort()
            return
        self._address = peer[0]
        self._connections.read_sizes.open(self._address)
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connections.buffer[: self._connections.read_sizes.get(self._address)]

    def buffer_updated(self, nbytes: int) -> None:
        began_s = time.thread_time()
        self.data_received(bytes(self._connections.buffer[:nbytes]))
        took_s = time.thread_time() - began_s
        self._connections.read_sizes.adjust(self._address, nbytes, took_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.sender is not None:
            self._connections.read_sizes.close(self._address)
        self.finish()
        self._connections.forget(self)

    # -- what may be done with it

    def refuse(self, error: FramingError) -> None:
        """Nothing after a wrong frame can be trusted."""
        if self.sender is not None and self._transport is not None:
            self._connections.record_framing_error(self.sender, error)
            self._transport.abort()

    def cut(self, lines: int) -> None:
        self._connections.cut(lines)

    def count_acknowledged(self, lines: int) -> None:
        self._connections.count_acknowledged(lines)

    def write(self, content: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(content)

    def abort(self) -> None:
        """What it has under way is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """What was written is sent first."""
        if self._transport is not None:
            self._transport.close()

    def hold_back(self, is_held_back: bool) -> None:
        self._is_held_back = is_held_back
        self.pause_or_read()

    def pause_or_read(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.may_be_read():
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def tell_end(self) -> None:
        """Nothing more will be written to it: a sender that looks sees the end, and sends no
        more."""
        if self._transport is not None and not self._transport.is_closing():
            # It was reset; TLS has no half-closed connections.
            with contextlib.suppress(OSError, NotImplementedError):
                self._transport.write_eof()

    def read_empty_and_close(self, read_until_s: float) -> None:
        """Takes what the kernel holds of this sender, at most until then on the monotonic clock.
        Over TLS that is no text yet: what asyncio has not handed over is left."""
        transport = self._transport
        if transport is None or self.sender is None:
            return
        if transport.get_extra_info("ssl_object") is not None:
            self.finish()
            transport.close()
            return
        descriptor: int = transport.get_extra_info("socket").fileno()
        while not transport.is_closing():
            if time.monotonic() >= read_until_s:
                _log.warning(
                    "%s is closed before all it has sent was read: no time or no room",
                    self.sender.host,
                )
                break
            try:
                data = os.read(descriptor, _READ_BYTES)
            except OSError:  # it would block, or was reset
                break
            if not data:
                break
            self.data_received(data)
        self.finish()
        transport.close()


class LineConnection(Connection):
    """`take` gets whole lines of one sender, and how many of the line feeds in them are surplus."""

    def __init__(self, connections: Connections, *, take: Take) -> None:
        super().__init__(connections)
        self._take = take
        self._framer = Framer()

    def data_received(self, data: bytes) -> None:
        if self.sender is None:
            return
        try:
            block = self._framer.feed(data)
        except FramingError as error:
            block = self._framer.take_whole_lines()
            self.refuse(error)
        self.cut(self._framer.take_cut_count())
        self._take_lines(block)

    def finish(self) -> None:
        """The last line of a sender that closed without a line feed."""
        self._take_lines(self._framer.finish())

    def _take_lines(self, block: bytes) -> None:
        if block and self.sender is not None:
            self._take(block, self.sender, self._framer.take_surplus_count())
