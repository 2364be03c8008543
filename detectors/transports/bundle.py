"""Several commands as one: a short script for the far shell, and the outputs taken apart again.
Pure.

Every command runs under coreutils' `timeout`, which kills its whole process group; the whole bundle
under `flock -n` in a folder of our own user, so that a round that hangs is not joined by the next.
Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from detectors.detector import Command, Output
from detectors.transports.private_folder import SHARED_MEMORY, SHELL, find_private_folder

# Between two outputs on both streams. The nonce is the caller's: no output can forge it.
BUSY = 75  # EX_TEMPFAIL: what flock ends with when the lock is held
TIMED_OUT = 124  # what timeout ends with
KILLED = 137
GRACE_S = 5.0
_MARK = "kintsugi-{nonce}"


# What a simulated machine, or a person who reads `ps`, knows it by. $1: the lock's name; $2: the
# script.
NAME = "kintsugi-bundle"
_LOCKED = f"""b={SHARED_MEMORY}; {SHELL}exec flock -n -E {BUSY} "$d/$1.lock" sh -c "$2\""""


def lock_path(name: str) -> Path:
    """The lock of that name for this process. Raises OSError."""
    return find_private_folder() / f"{name}.lock"


def build_script(commands: Sequence[Command], nonce: str, *, is_root: bool) -> str:
    """One line for each command, `k LIMIT ARGV...`, behind the function `k` that runs it between
    two marks."""
    mark = _MARK.format(nonce=nonce)
    head = (
        f"k() {{ l=$1; shift; echo; echo {mark} begin; echo >&2; echo {mark} begin >&2; "
        f'timeout --kill-after={GRACE_S:g} "$l" "$@" </dev/null; s=$?; echo; echo "{mark} end'
        ' $s"; }'
    )
    return "\n".join([head, *(f"k {_make_line(command, is_root)}" for command in commands)])


def _make_line(command: Command, is_root: bool) -> str:
    sudo = ("sudo", "-n") if command.as_root and not is_root else ()
    return shlex.join((f"{command.timeout.total_seconds():g}", *sudo, *command.argv))


def build_locked_command(name: str, text: str) -> tuple[str, ...]:
    """The argv that runs a script under the lock of that name."""
    return ("sh", "-c", _LOCKED, NAME, name, text)


def parse_script(text: str) -> list[tuple[str, ...]]:
    """The commands of a script, each as LIMIT ARGV...: for what plays a node."""
    return [tuple(shlex.split(line)[1:]) for line in text.splitlines() if line.startswith("k ")]


def split_outputs(
    commands: Sequence[Command], nonce: str, stdout: bytes, stderr: bytes
) -> dict[str, Output]:
    """Outputs by command name. A command that did not come to its end has status None."""
    mark = re.escape(_MARK.format(nonce=nonce).encode())
    outs = re.split(rb"\n?" + mark + rb" begin\n", stdout)[1:]
    errs = re.split(rb"\n?" + mark + rb" begin\n", stderr)[1:]
    found: dict[str, Output] = {}
    for number, command in enumerate(commands):
        out = outs[number] if number < len(outs) else b""
        body, end, status = out.rpartition(b"\n" + _MARK.format(nonce=nonce).encode() + b" end ")
        code = int(status.split()[0]) if end and status.split() else None
        was_cut = code is None or code in (TIMED_OUT, KILLED)
        printed = body if end else out
        errors = errs[number] if number < len(errs) else b""
        found[command.name] = Output(None if was_cut else code, printed, errors, timedelta(0))
    return found
