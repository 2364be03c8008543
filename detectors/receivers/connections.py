"""The TCP half of the receiver: connections accepted, framed, held back, and read empty at a stop.

asyncio's own server would drop connections that nobody has accepted yet when it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable

from detectors.receivers.counters import Counters
from detectors.receivers.framing import Framer, FramingError
from detectors.receivers.intake import Sender

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 10_000
_BACKLOG = 1024
_ACCEPT_AGAIN_S = 1.0
_READ_BYTES = 256 * 1024
# A stop tells senders by a FIN and reads on for so long: rsyslog looks for it before it sends, and
# closes. Then each connection is read until it would block, for at most the second time. Both are
# our choice, small parts of the units' TimeoutStopSec.
_SENDERS_CLOSE_S = 1.0
_READ_EMPTY_S = 10.0

Accept = Callable[[str], Sender | None]
Take = Callable[[bytes, Sender], None]


class Connections:
    """Listens from the first, so that the kernel completes connections and keeps their bytes;
    `start` reads them.

    `accept` gives the sender of an address, None refuses it; `take` gets whole lines of one sender.
    `passed` listens already, and is listened on by others after us: what has not been accepted at
    the end is theirs. Raises OSError when the address cannot be had.
    """

    def __init__(
        self,
        address: tuple[str, int],
        counters: Counters,
        accept: Accept,
        take: Take,
        *,
        passed: socket.socket | None = None,
    ) -> None:
        self._counters = counters
        self._accept = accept
        self._take = take
        self._open: set[_Connection] = set()
        self._accepting: set[asyncio.Task[object]] = set()
        self._is_held_back = False
        self._listener = passed or _listen(address)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._listener.fileno(), self._accept_waiting)

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
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for connection in self._open:
            connection.tell_end()
        end_s = time.monotonic() + (0.0 if is_held_back else _SENDERS_CLOSE_S)
        while self._open and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        read_until_s = time.monotonic() + (0.0 if is_held_back else _READ_EMPTY_S)
        for connection in list(self._open):
            connection.read_empty_and_close(read_until_s)
        await asyncio.sleep(0)  # the transports close in this turn

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
            task = loop.create_task(
                loop.connect_accepted_socket(lambda: _Connection(self), accepted)
            )
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:  # not closed meanwhile
            self.start(asyncio.get_running_loop())

    # -- what a connection asks

    def opened(self, connection: _Connection, address: str) -> Sender | None:
        sender = self._accept(address) if len(self._open) < MAX_CONNECTIONS else None
        if sender is None:
            self._counters.refused_connections += 1
            return None
        self._counters.connections += 1
        self._open.add(connection)
        if self._is_held_back:
            connection.hold_back(True)
        return sender

    def lines(self, block: bytes, sender: Sender) -> None:
        if block:
            self._take(block, sender)

    def broken(self, sender: Sender, error: FramingError) -> None:
        if not self._counters.framing_errors:
            _log.warning("closed the connection of %s: %s", sender.host, error)
        self._counters.framing_errors += 1

    def cut(self, lines: int) -> None:
        self._counters.cut_lines += lines

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)


def _listen(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)


def keep_alive(connection: socket.socket) -> None:
    """A sender that vanished without a word is found after about two minutes instead of two
    hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


class _Connection(asyncio.Protocol):
    """One TCP sender."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._framer = Framer()
        self._sender: Sender | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a TCP transport is expected")
        peer = transport.get_extra_info("peername") or ("",)
        self._transport = transport
        self._sender = self._connections.opened(self, peer[0])
        if self._sender is None:
            transport.abort()
            return
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._sender is None or self._transport is None:
            return
        try:
            block = self._framer.feed(data)
        except FramingError as error:
            self._connections.broken(self._sender, error)
            block = self._framer.pending()
            self._transport.abort()
        self._connections.cut(self._framer.taken_cuts())
        self._connections.lines(block, self._sender)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()
        self._connections.closed(self)

    def _finish(self) -> None:
        """The last line of a sender that closed without a line feed."""
        block = self._framer.finish()
        if self._sender is not None:
            self._connections.lines(block, self._sender)

    def hold_back(self, is_held_back: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if is_held_back:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def tell_end(self) -> None:
        """Nothing will be written to it: a sender that looks sees the end, and sends no more."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # it was reset
                self._transport.write_eof()

    def read_empty_and_close(self, read_until_s: float) -> None:
        """Takes what the kernel holds of this sender, at most until then on the monotonic clock."""
        transport = self._transport
        if transport is None or self._sender is None:
            return
        descriptor: int = transport.get_extra_info("socket").fileno()
        while not transport.is_closing():
            if time.monotonic() >= read_until_s:
                _log.warning(
                    "%s is closed before all it has sent was read: no time or no room",
                    self._sender.host,
                )
                break
            try:
                data = os.read(descriptor, _READ_BYTES)
            except OSError:  # it would block, or was reset
                break
            if not data:
                break
            self.data_received(data)
        self._finish()
        transport.close()
