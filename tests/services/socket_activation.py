"""Listening sockets that outlive the programs that read them, as systemd keeps those of a socket
unit (sd_listen_fds(3))."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

from tests.services.programs import spawn

# A descriptor may stand where another is to go, so all are moved away first.
_START = """
import fcntl, os, sys
descriptors, command = sys.argv[1].split(","), sys.argv[2:]
moved = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 100) for each in descriptors]
for place, descriptor in enumerate(moved, 3):
    os.dup2(descriptor, place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(moved))}
os.execv(command[0], command)
"""


class KeptSockets:
    """A TCP and a UDP socket of one loopback address. What they receive waits in the kernel until a
    program that was spawned with them reads it."""

    def __init__(self, *, receive_bytes: int) -> None:
        self.stream = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self.stream.getsockname()
        self.datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagram.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.datagram.bind(self.address)

    def spawn(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return spawn_with([self.stream, self.datagram], argv, **options)

    def close(self) -> None:
        self.stream.close()
        self.datagram.close()


def spawn_with(
    sockets: list[socket.socket], argv: list[str], **options: Any
) -> subprocess.Popen[bytes]:
    """A program that finds these sockets at its descriptors 3, 4, ..."""
    descriptors = [each.fileno() for each in sockets]
    given = ",".join(map(str, descriptors))
    return spawn([sys.executable, "-c", _START, given, *argv], pass_fds=descriptors, **options)
