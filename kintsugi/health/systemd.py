"""What systemd is told of this process, where it asks (`Type=notify`, `WatchdogSec=`).

The protocol: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger(__name__)
READY, WATCHDOG = "READY=1", "WATCHDOG=1"
# The manual advises half of what systemd waits for; a third lets one message be late.
_SHARE = 1 / 3
_TIMEOUT_S = 5.0  # our choice: a systemd that does not read holds nothing up


def notify(state: str) -> bool:
    """Whether it was sent; nothing is where the process does not run under systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_TIMEOUT_S)
            sender.connect(address)
            sender.sendall(state.encode())
    except OSError as error:
        _log.warning("systemd is not told %s: %s", state, error)
        return False
    return True


def get_watchdog_period_s() -> float | None:
    """How often systemd is to hear of this process; None: it does not wait for it."""
    period = os.environ.get("WATCHDOG_USEC", "")
    own_pid = str(os.getpid())
    if not period.isdecimal() or os.environ.get("WATCHDOG_PID", own_pid) != own_pid:
        return None
    return int(period) / 1e6 * _SHARE
