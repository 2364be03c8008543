"""`python -m detectors check`: is this node well? For Prolog, HealthCheckProgram, Nagios and
timers.

Report-only: it never drains and never stops a job by itself, unless `--block` is given and the
server grants it. A fresh answer in the cache is given without loading anything else. Python 3.9,
standard library alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Optional

OK, WARNING, CRITICAL, UNKNOWN = range(4)  # https://nagios-plugins.org/doc/guidelines.html#AEN78
_DEFAULT_STATE = "/var/lib/kintsugi-check"
_DEFAULT_TOKEN = "/etc/kintsugi/node-token"  # noqa: S105 - a path
_PROLOG = "--prolog"
_LATER = 5.0  # a clock that was set back a little does not make the cache useless


class CheckError(Exception):
    """The check cannot be made: says what is wrong and what to do."""


def main(words: Sequence[str]) -> int:
    """The exit code: 0 with `--prolog`, unless the job was stopped by leave of the server; else by
    what was found."""
    sys.excepthook = partial(_handle_crash, is_prolog=_PROLOG in words)
    try:
        options = _build_parser().parse_args(words)
        found = read_cached(options.state, options.max_age)
        if found is None or options.block:
            # Loaded by name, so that an answer from the cache does not wait for detectors and
            # catalogue.
            found = importlib.import_module("detectors.cli.check_run").run_check(options, found)
    except CheckError as error:
        print(_format_failure(str(error)))
        return 0 if _PROLOG in words else UNKNOWN
    return print_result(found, options)


def _handle_crash(
    kind: type[BaseException], error: BaseException, _trace: object, *, is_prolog: bool
) -> None:
    """Whatever nobody thought of: said, and no reason to stop a job, as Python's own exit code 1
    would be.

    People read the line; what a developer needs goes where errors go.
    """
    print(_format_failure(f"an error of its own: {error}"), flush=True)
    print(f"{kind.__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(0 if is_prolog else UNKNOWN)


def _format_failure(reason: str) -> str:
    return f"KINTSUGI UNKNOWN - the check itself failed: {' '.join(reason.split())}"


def print_result(result: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Prints one line, or the whole result; returns the exit code."""
    print(json.dumps(result, indent=2) if options.json else result["line"])
    if result.get("is_blocked"):
        return 1
    return 0 if options.prolog else int(result["exit_code"])


def read_cached(state: str, max_age_s: float) -> Optional[dict[str, Any]]:
    """The last result when it is young enough, whole, and nobody else could have written it."""
    if max_age_s <= 0:
        return None
    path = os.path.join(state, "result.json")
    try:
        with open(path, "rb") as file:
            owner = os.fstat(file.fileno())
            if owner.st_uid not in (0, os.geteuid()) or owner.st_mode & (
                stat.S_IWGRP | stat.S_IWOTH
            ):
                return None
            result = json.loads(file.read())
        age_s = time.time() - result["taken_at_s"]
        fits = (
            result["boot_id"] == read_boot_id()
            and isinstance(result["line"], str)
            and 0 <= result["exit_code"] <= UNKNOWN
        )
        return result if fits and -_LATER <= age_s <= max_age_s else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_boot_id() -> str:
    """The kernel's random id of this boot; empty where there is none. What was seen before a boot
    is not true now."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class _Parser(argparse.ArgumentParser):
    """A wrong option is a check that cannot be made, not argparse's own exit code 2: that would
    fail a Prolog."""

    def error(self, message: str) -> NoReturn:
        raise CheckError(f"{message}; --help lists the options")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kintsugi-check",
        description="Is this node well? Exit 0 well, 1 warning, 2 critical, 3 unknown.",
    )
    parser.add_argument("--json", action="store_true", help="the whole result instead of one line")
    parser.add_argument(
        _PROLOG, action="store_true", help="exit 0 whatever is found; --block alone stops a job"
    )
    parser.add_argument(
        "--max-age", type=float, default=0.0, metavar="S", help="an answer at most so old will do"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="what is not seen by then is unknown",
    )
    parser.add_argument(
        "--detectors",
        default="",
        help="names, comma-separated, or all; when left out the quick ones",
    )
    parser.add_argument(
        "--expected",
        default="",
        metavar="FILE",
        help="what should be here, as `kintsugi inventory expected NODE` prints it",
    )
    parser.add_argument(
        "--state",
        default=_DEFAULT_STATE,
        metavar="DIR",
        help=f"counters and the last result; {_DEFAULT_STATE}",
    )
    parser.add_argument(
        "--node", default="", help="this node's name, where it is not the short host name"
    )
    parser.add_argument(
        "--post",
        default="",
        metavar="URL",
        help="send what was seen to Kintsugi: https://HOST/api/v1/readings/",
    )
    parser.add_argument(
        "--block",
        default="",
        metavar="URL",
        help=(
            "for a missing GPU or a failed remap ask there for leave to stop the job:"
            " https://HOST/api/v1/leases/"
        ),
    )
    parser.add_argument(
        "--token-file",
        default=_DEFAULT_TOKEN,
        metavar="FILE",
        help=f"of this node, from `kintsugi node token`; {_DEFAULT_TOKEN}",
    )
    return parser


def command() -> None:
    """Of the single-file build."""
    sys.exit(main(sys.argv[1:]))
