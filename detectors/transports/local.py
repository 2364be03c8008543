"""The machine we run on as a transport. Python 3.9, standard library alone: it travels to nodes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Optional

from detectors.detector import Command, DetectorError, Output, Target
from detectors.transports.bundle import lock_path

# Of one stream of one command. `scontrol show node` says about a node 0.8 to 1.3 kB: 10,000 nodes
# are up to 13 MB.
LONGEST_OUTPUT = 32 * 1024 * 1024
# What programs say is read by us: in their own language, not the site's.
_ENVIRONMENT = {"LC_ALL": "C", "LANG": "C"}
# What a program of this machine needs to run at all. All else of our environment stays with us: it
# holds our secrets, and sbatch hands on to a job whatever it is given.
_HANDED_ON = frozenset({"HOME", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"})
_PREFIX_HANDED_ON = "SLURM_"


class LocalShell:
    """Commands on this machine. The whole process group is killed when its time is over.

    `until`: a moment of `time.monotonic` that no command outlives. Of our environment a command
    gets what it needs to run; `environment` is added to that, for what must not stand on a command
    line, which every user of the machine can read.
    """

    def __init__(
        self, *, until: Optional[float] = None, environment: Optional[Mapping[str, str]] = None
    ) -> None:
        self._until = until
        self._environment = dict(environment or {})

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        """Raises DetectorError when the program cannot be started, or writes more than anybody
        reads."""
        begun = time.monotonic()
        limit_s = timeout.total_seconds()
        if self._until is not None:
            limit_s = max(0.0, min(limit_s, self._until - begun))
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**_get_handed_on(), **_ENVIRONMENT, **self._environment},
            )
        except OSError as error:
            raise DetectorError(
                f"{argv[0]} on {target.name}: cannot be started ({error.strerror})"
            ) from error
        status: Optional[int]
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = _read_left_over(process)
            status = None
        took = timedelta(seconds=time.monotonic() - begun)
        if max(len(stdout), len(stderr)) > LONGEST_OUTPUT:
            raise build_too_long_error(argv[0], target)
        return Output(status, stdout, stderr, took)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        """Raises DetectorError when the round before still runs. A program that is not there ends
        with 127."""
        with _lock(name, target):
            return {command.name: self._run_one(target, command) for command in commands}

    def _run_one(self, target: Target, command: Command) -> Output:
        sudo = ("sudo", "-n") if command.as_root and os.geteuid() != 0 else ()
        try:
            return self.run(target, (*sudo, *command.argv), command.timeout)
        except DetectorError as error:
            return Output(127, b"", str(error).encode(), timedelta(0))


def build_too_long_error(what: str, target: Target) -> DetectorError:
    """Half an answer would say that the other half is not there."""
    most = f"{LONGEST_OUTPUT // 1024 // 1024} MiB"
    return DetectorError(
        f"{what} on {target.name}: wrote more than {most}, and nothing of it was used"
    )


def _read_left_over(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a killed group had written. A process in uninterruptible sleep does not even die: it is
    left behind."""
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        return b"", b""


@contextlib.contextmanager
def _lock(name: str, target: Target) -> Iterator[None]:
    path = Path(name)
    try:
        path = lock_path(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise DetectorError(
            f"{name} on {target.name}: the lock {path} cannot be opened ({error.strerror})"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise DetectorError(f"{name} on {target.name}: the round before still runs") from error
    finally:
        os.close(descriptor)


def _get_handed_on() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _HANDED_ON or name.startswith(_PREFIX_HANDED_ON)
    }
