"""Where Debian and others put the programs that tests drive, and a child process that never
outlives us."""

from __future__ import annotations

import ctypes
import glob
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

_PLACES = [
    "/usr/sbin",
    "/sbin",
    "/usr/local/sbin",
    *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True),
]
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def find(program: str) -> str | None:
    """The program's path, also where an ordinary user's PATH does not look; of a module of rsyslog
    (`omrelp.so`) that of its file."""
    if program.endswith(".so"):
        return next(iter(glob.glob(f"/usr/lib/*/rsyslog/{program}")), None)
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_PLACES))


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(argv: list[str], *, user: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start a server that ends with us. `user` is honoured when we are root (PostgreSQL refuses
    root)."""
    if user is not None and os.geteuid() == 0:
        account = pwd.getpwnam(user)
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(argv, preexec_fn=_die_with_parent, **options)


def give_to(user: str, directory: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(directory, user)


def stop(
    process: subprocess.Popen[bytes], *, how: signal.Signals = signal.SIGTERM, within_s: float = 10
) -> None:
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(within_s)
