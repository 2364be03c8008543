"""Runs a command on a node once, apart from any connection, and reads later how it ended.

A diagnosis takes minutes and a worker never waits; a connection may be cut and a worker may die in
mid-command. So the command is started under a key, on the node, by the node: whoever asks again
under that key looks, and starts nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from detectors.detector import DetectorError, Shell, Target
from detectors.transports.private_folder import SHELL

# What a simulated node, or a person who reads `ps`, knows it by.
NAME = "kintsugi-apart"
_TIMEOUT = timedelta(seconds=20)
_KEY = re.compile(r"[A-Za-z0-9._-]{1,120}")
# $1: `start` or `look`; $2: the key; $3: how much of the output is shown; $4: what is done at the
# end, as shell text; the rest: the command. A folder under the key says that it was begun, a lock
# on a file beside it that it runs: a lock goes with its last holder, also with one that was killed.
# What was killed before it could say how it ended is `lost`: whoever finds that has the end done.
# Answers `never`, `running`, or `ended STATUS` and the output's end.
# Outputs lie in a folder of our own user (`private_folder`); where another user has made one of the
# name that it had before, it is passed over.
_BEGIN = f"""b="${{TMPDIR:-/tmp}}"; {SHELL}do=$1; at="$d/$2"; shown=$3; after=$4; shift 4
"""
_RUN = """if [ "$do" = look ] && [ ! -d "$at" ]; then echo never; exit; fi
exec 9>>"$at.lock"
flock -n 9 || { [ $? = 1 ] && echo running; exit; }
if [ -f "$at/status" ]; then echo "ended $(cat "$at/status")"; tail -c "$shown" "$at/output"; exit; fi
how=lost; mkdir "$at" 2>/dev/null && how=begun
setsid sh -c 'how=$1; export KINTSUGI_APART="$2"; after=$3; shift 3
  status=lost; if [ "$how" = begun ]; then "$@" >"$KINTSUGI_APART/output" 2>&1; status=$?; fi
  sh -c "$after" >>"$KINTSUGI_APART/output" 2>&1
  echo "$status" >"$KINTSUGI_APART/new"; mv "$KINTSUGI_APART/new" "$KINTSUGI_APART/status"
' sh "$how" "$at" "$after" "$@" </dev/null >/dev/null 2>&1 &
echo running"""  # noqa: E501
SCRIPT = _BEGIN + _RUN


@dataclass(frozen=True)
class DetachedJob:
    """`key` names it for ever. `after` is done on the node when it ends, however it ends. `shown`:
    bytes of output."""

    key: str
    command: tuple[str, ...]
    after: str = ":"
    shown: int = 1500


@dataclass(frozen=True)
class NotBegun:
    """Nothing was ever started under this key, as far as this node's disk knows."""


@dataclass(frozen=True)
class Running:
    """Begun, and not at its end."""


@dataclass(frozen=True)
class Ended:
    """`status` None: it was killed before it could say how it ended. `said` is the end of its
    output."""

    status: int | None
    said: str

    @property
    def last_words(self) -> str:
        return " ".join(self.said.split())[-300:] or "no output"

    @property
    def how(self) -> str:
        """Completes "it ...", for people."""
        return (
            "was killed before its end"
            if self.status is None
            else f"ended with status {self.status}"
        )


@dataclass(frozen=True)
class Unknown:
    """The node could not be asked, or gave another answer: `why`, for people."""

    why: str


Answer = NotBegun | Running | Ended | Unknown


def start(shell: Shell, node: Target, job: DetachedJob) -> Answer:
    """Starts it unless it was ever started under this key, and says how far it is."""
    return _run_script(shell, node, job, "start")


def poll_command(shell: Shell, node: Target, job: DetachedJob) -> Answer:
    """How far it is; starts nothing but the end of one that was killed."""
    return _run_script(shell, node, job, "look")


def _run_script(shell: Shell, node: Target, job: DetachedJob, do: str) -> Answer:
    if not _KEY.fullmatch(job.key):
        raise ValueError(f"{job.key!r} is no key")
    argv = ("sh", "-c", SCRIPT, NAME, do, job.key, str(job.shown), job.after, *job.command)
    try:
        output = shell.run(node, argv, _TIMEOUT)
    except DetectorError as error:
        return Unknown(str(error))
    if output.status != 0:
        return Unknown(output.complaint)
    return parse_answer(output.stdout.decode(errors="replace"))


_FIRST = re.compile(r"^(?:never|running|ended (?P<status>\d{1,3}|lost))$", re.MULTILINE)


def parse_answer(text: str) -> Answer:
    """What the script printed; what a noisy login shell prints before it is passed over."""
    found = _FIRST.search(text)
    if found is None:
        return Unknown(f"an answer that is none: {' '.join(text.split())[:100] or 'nothing'}")
    if found[0] == "never":
        return NotBegun()
    if found[0] == "running":
        return Running()
    status = found["status"]
    return Ended(None if status == "lost" else int(status), text[found.end() + 1 :])
