"""Listening sockets that the service manager made and keeps: while this process restarts, the
kernel goes on completing their connections and keeping their datagrams.

The protocol is that of sd_listen_fds(3): LISTEN_PID names the process, LISTEN_FDS how many
descriptors it has from 3 on. Nothing here binds a socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_FIRST = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_TRANSPORTS = {socket.SOCK_STREAM: "TCP", socket.SOCK_DGRAM: "UDP"}
_REMEDY = (
    "Let ListenStream= and ListenDatagram= of kintsugi-receiver.socket name the addresses of the"
    " settings (systemctl edit kintsugi-receiver.socket), or disable that unit"
)


class PassedSocketError(Exception):
    """What was passed is not what the settings say: names both, and what to do."""


class PassedSockets:
    """Those that this process was given and has not taken yet."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._passed = ", ".join(_describe(each) for each in sockets)

    def get(self, kind: socket.SocketKind, address: tuple[str, int]) -> socket.socket | None:
        """The one of this kind at this address; None when it was not passed."""
        wanted = _resolve(kind, address)
        for each in self._sockets:
            if each.type == kind and each.getsockname()[:2] in wanted:
                self._sockets.remove(each)
                return each
        return None

    def require(
        self, kind: socket.SocketKind, address: tuple[str, int], setting: str
    ) -> socket.socket | None:
        """As `get`; None only where nothing at all was passed. Raises PassedSocketError, naming the
        setting."""
        found = self.get(kind, address)
        if found is None and self._passed:
            self.close()
            raise PassedSocketError(
                f"{setting}={address[0]}:{address[1]}: systemd passes no {_TRANSPORTS[kind]} socket"
                f" at this address, but {self._passed}. {_REMEDY}"
            )
        return found

    def close(self) -> None:
        """Those that were not taken."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def refuse_others(self) -> None:
        """Raises PassedSocketError when one was passed that nobody reads."""
        if self._sockets:
            unread = ", ".join(_describe(each) for each in self._sockets)
            self.close()
            raise PassedSocketError(f"systemd passes {unread}, which no setting names. {_REMEDY}")


def take_passed_sockets(
    environ: MutableMapping[str, str] = os.environ, *, first: int = _FIRST
) -> PassedSockets:
    """None of them where the variables are unset or are for another process. The variables are
    removed: they are not for our children.

    Raises PassedSocketError for a descriptor that is no listening TCP socket and no UDP socket.
    """
    given = {name: environ.pop(name, "") for name in _VARIABLES}
    if given["LISTEN_PID"] != str(os.getpid()):
        return PassedSockets([])
    if not given["LISTEN_FDS"].isdecimal():
        raise PassedSocketError(f"LISTEN_FDS={given['LISTEN_FDS']}: expected a number")
    found: list[socket.socket] = []
    try:
        for descriptor in range(first, first + int(given["LISTEN_FDS"])):
            found.append(_open(descriptor))
    except PassedSocketError:
        for each in found:
            each.close()
        raise
    return PassedSockets(found)


def _open(descriptor: int) -> socket.socket:
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise PassedSocketError(
            f"descriptor {descriptor}: systemd passes no socket here ({error.strerror}). {_REMEDY}"
        ) from error
    is_inet = found.family in (socket.AF_INET, socket.AF_INET6)
    if not is_inet or found.type not in _TRANSPORTS or not _is_bound(found):
        kind = f"{found.family.name}, {found.type.name}"
        found.detach()
        raise PassedSocketError(
            f"descriptor {descriptor}: expected a listening TCP socket or a UDP socket, found"
            f" {kind}. {_REMEDY}"
        )
    found.set_inheritable(False)
    found.setblocking(False)
    return found


def _is_bound(found: socket.socket) -> bool:
    if found.type == socket.SOCK_STREAM:
        return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return bool(found.getsockname()[1])


def _resolve(kind: socket.SocketKind, address: tuple[str, int]) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(*address, type=kind)
    except OSError:
        return set()
    return {(str(each[4][0]), int(each[4][1])) for each in found}


def _describe(each: socket.socket) -> str:
    host, port = each.getsockname()[:2]
    return f"{_TRANSPORTS[each.type]} {host}:{port}"
