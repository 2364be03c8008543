"""A receiver as a process of its own, to be stopped and killed: `python -m ... HOME PORT [RELP_PORT]`.

Its inbox is away for ever, so that the spool keeps all that it ever held. HOME/ready exists while it
receives.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from detectors.receivers import connections
from detectors.receivers.passed_sockets import take_passed_sockets
from detectors.receivers.syslog import Listen
from tests.detectors.receiver_twin import MemoryInbox, RunningReceiver


def main(home: Path, port: int, relp_port: int | None) -> None:
    address = ("127.0.0.1", port)
    passed = take_passed_sockets()
    listen = Listen(
        *address,
        stream=passed.get(socket.SOCK_STREAM, address),
        datagram=passed.get(socket.SOCK_DGRAM, address),
    )
    passed.refuse_others()
    inbox = MemoryInbox()
    inbox.is_up = False
    relp = connections.listen(("127.0.0.1", relp_port)) if relp_port is not None else None
    with RunningReceiver(home, inbox=inbox, listen=listen, relp=relp):
        (home / "ready").touch()
        signal.sigwait({signal.SIGTERM})
        (home / "ready").unlink()


if __name__ == "__main__":
    # Before any thread is: each inherits it, and the wait above takes the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
