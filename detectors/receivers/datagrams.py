"""The UDP half of the receiver: a non-blocking socket drained many datagrams at a wake.

asyncio's own datagram protocol allocates 256 KiB for each datagram and lost 44 % at 100,000 a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from detectors.provenance import Transport
from detectors.receivers.counters import Counters
from detectors.receivers.intake import Sender
from detectors.receivers.senders import Senders

_PER_WAKE = 8192
# Of each sender's lines so many seconds of CPU go in one turn, in blocks of so many bytes, and so
# much waits in memory; what one sends beyond is lost, as it would be in the kernel, and no other's.
# Our choices: a megabyte of benign lines takes milliseconds, and ten turns a tenth of a second.
_TURN_S = 0.01
_BLOCK_BYTES = 16 * 1024
_WAITING_BYTES = 32 * 1024 * 1024
_ALL_WAITING_BYTES = 128 * 1024 * 1024
_BUFFER_BYTES = 64 * 1024 * 1024
_SO_RCVBUFFORCE = 33  # Linux; needs CAP_NET_ADMIN
_LARGEST = 65535
_SENDERS = 20_000


class Datagrams:
    """One socket; `take` gets the lines of each wake as one block per address.

    `passed` is bound already, with a buffer of its own size, and is read by others after us. Raises
    OSError when the address cannot be had.
    """

    def __init__(
        self,
        address: tuple[str, int],
        counters: Counters,
        take: Callable[[dict[str, bytes]], None],
        *,
        passed: socket.socket | None = None,
    ) -> None:
        self._counters = counters
        self._take = take
        self._senders: OrderedDict[str, Sender] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_kept = passed is not None
        self._is_held_back = False
        self._waiting: dict[str, deque[bytes]] = {}
        self._sizes: Counter[str] = Counter()
        self._size = 0
        self._turn: asyncio.Handle | None = None
        self._socket = passed or _bind(address)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._drain)

    def hold_back(self, is_held_back: bool) -> None:
        if self._loop is None:
            return
        self._is_held_back = is_held_back
        if is_held_back:
            self._loop.remove_reader(self._socket.fileno())
        else:
            self._loop.add_reader(self._socket.fileno(), self._drain)
            self._continue_soon()

    def drain_and_close(self, *, is_held_back: bool) -> None:
        """What has come and was not read is taken. While senders are held back there is no room for
        it: then a passed socket keeps it for the next life."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        is_left = self._is_kept and is_held_back
        is_more = not is_left
        while is_more:
            is_more = self._drain()
            while self._waiting:
                self._take_turn()
        if self._turn is not None:
            self._turn.cancel()
        self._socket.close()

    def get_sender(self, address: str, senders: Senders) -> Sender:
        """Who sends from an address, remembered for its last lines; the longest silent is forgotten
        first."""
        sender = self._senders.get(address)
        if sender is None:
            provenance = senders.build_provenance(address, Transport.UDP)
            sender = Sender(senders.get_host(address), provenance=provenance)
            self._senders[address] = sender
            if len(self._senders) > _SENDERS:
                self._senders.popitem(last=False)
        else:
            self._senders.move_to_end(address)
        return sender

    def count_lost(self) -> None:
        """What the kernel dropped for want of buffer since the socket was made, from
        /proc/net/udp."""
        inode = str(os.fstat(self._socket.fileno()).st_ino)
        name = "udp6" if self._socket.family == socket.AF_INET6 else "udp"
        with contextlib.suppress(OSError, ValueError):
            for row in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[9] == inode:
                    self._counters.lost_datagrams = int(fields[-1])

    def _drain(self) -> bool:
        """Many datagrams, and of each sender's some; True when there may be more."""
        receive = self._socket.recvfrom
        drained = 0
        try:
            for drained in range(1, _PER_WAKE + 1):  # noqa: B007 - the count is the result
                line, address = receive(_LARGEST)
                self._keep(line, address[0])
        except BlockingIOError:
            drained = 0
        except OSError:  # an ICMP error of an earlier datagram; the next read goes on
            drained = 1
        self._take_turn()
        if drained < _PER_WAKE:
            self._continue_soon()
        return drained > 0

    def _keep(self, line: bytes, address: str) -> None:
        size = len(line)
        is_much = self._sizes[address] + size > _WAITING_BYTES
        if is_much or self._size + size > _ALL_WAITING_BYTES:
            self._counters.crowded_datagrams += 1
            return
        self._waiting.setdefault(address, deque()).append(line)
        self._sizes[address] += size
        self._size += size

    def _take_turn(self) -> None:
        """Of each sender a little: who sends much waits for itself alone."""
        for address, waiting in list(self._waiting.items()):
            until_s = time.thread_time() + _TURN_S
            while waiting:
                self._take({address: self._pop_block(address, waiting)})
                if time.thread_time() >= until_s:
                    break
            if not waiting:
                del self._waiting[address], self._sizes[address]

    def _pop_block(self, address: str, waiting: deque[bytes]) -> bytes:
        lines, size = [], 0
        while waiting and size < _BLOCK_BYTES:
            lines.append(waiting.popleft())
            size += len(lines[-1])
        self._sizes[address] -= size
        self._size -= size
        return _make_block(lines)

    def _continue_soon(self) -> None:
        """Another turn soon, where something waits and nobody has asked for one."""
        is_asked = self._turn is not None
        if self._waiting and not is_asked and not self._is_held_back and self._loop is not None:
            self._turn = self._loop.call_soon(self._take_next_turn)

    def _take_next_turn(self) -> None:
        self._turn = None
        if not self._is_held_back:
            self._take_turn()
            self._continue_soon()


def _bind(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.setblocking(False)
    try:
        bound.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _make_block(lines: list[bytes]) -> bytes:
    """One datagram is one line: a line feed within it becomes a space."""
    block = b"\n".join(lines)
    if block.count(b"\n") != len(lines) - 1:
        block = b"\n".join(line.rstrip(b"\r\n\0").replace(b"\n", b" ") for line in lines)
    return block
