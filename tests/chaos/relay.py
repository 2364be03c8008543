"""A TCP relay before a server, which a test cuts in mid-command: what is open is reset, and nobody
gets through."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

# SO_LINGER of zero: a reset instead of an orderly end, as from a router that has lost its table.
_AT_ONCE = struct.pack("ii", 1, 0)


class Relay:
    """Listens on `port` of loopback and passes everything to and from `to`, until it is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._guard = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._guard:
            self._is_cut = True
            self.cuts += 1
            gone, self._open = self._open, []
        for one in gone:
            _reset(one)

    def mend(self) -> None:
        with self._guard:
            self._is_cut = False

    def stop(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._pass(client)

    def _pass(self, client: socket.socket) -> None:
        with self._guard:
            if self._is_cut:
                _reset(client)
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            self._open += [client, server]
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)


def _reset(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        one.shutdown(socket.SHUT_RDWR)
    one.close()
