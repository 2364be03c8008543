"""One look of detectors at one target. A detector that fails is an observation of its own, never
silence.

What is the same for all detectors is recognised here: who does not answer, and what sudo refused.
Python 3.9, standard library alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from detectors.detector import (
    Command,
    Detector,
    DetectorError,
    Http,
    NotConfigured,
    Output,
    Shell,
    Target,
    TargetKind,
    Transports,
    Unreachable,
)
from detectors.faults import Observation

_log = logging.getLogger(__name__)

# What sudo says instead of running the command (sudo's own messages, plugins/sudoers and
# src/sudo.c), and what timeout says where there is no sudo.
_REFUSED = re.compile(
    rb"sudo: a password is required|sudo: a terminal is required|sudo: no tty present|sudo: sorry,"
    rb" you must have a tty"
    rb"|Sorry, user \S+ (?:is not allowed|may not run)|is not in the sudoers file|sudo: account"
    rb" validation failure"
    rb"|sudo: unknown user|failed to run command .{0,4}sudo.{0,4}:|sudo: (?:command )?not found"
)


def observe_one(
    target: Target, detector: Detector, via: Transports, now: datetime
) -> list[Observation]:
    """What one detector sees, `target.reachable` last, and `detector.answered` False where it
    broke.

    Empty where the site has configured no way to look.
    """
    found: list[Observation] = []
    watched = _Watched(via.shell)
    try:
        found.extend(
            detector.parse(
                detector.collect(
                    target, _choose_transports(target, replace(via, shell=watched)), now
                )
            )
        )
    except NotConfigured:
        return []
    except Unreachable as error:
        return [Observation(target.resource, "target.reachable", False, now, {"text": str(error)})]
    except DetectorError as error:
        found.append(_make_silence(target, detector, now, str(error)))
    except Exception:  # noqa: BLE001 - one of the four named places: around one poll
        _log.exception("detector %s broke on %s", detector.name, target.name)
        found.append(
            _make_silence(
                target,
                detector,
                now,
                "it broke on what it was answered; Kintsugi's log describes how",
            )
        )
    if watched.refused:
        found = [seen for seen in found if seen.metric != "detector.answered"]
        found.append(_make_silence(target, detector, now, watched.refused))
    return [*found, Observation(target.resource, "target.reachable", True, now)]


def _make_silence(target: Target, detector: Detector, now: datetime, text: str) -> Observation:
    attributes = {"detector": detector.name, "text": text}
    return Observation(target.resource, "detector.answered", False, now, attributes)


def observe(
    target: Target, detectors: Sequence[Detector], via: Transports, now: datetime
) -> list[Observation]:
    """What all detectors see on the target, one after the other; ends at the first one that cannot
    reach it."""
    found: list[Observation] = []
    is_reachable = Observation(target.resource, "target.reachable", True, now)
    for detector in detectors:
        seen = observe_one(target, detector, via, now)
        found.extend(seen[:-1])
        is_reachable = seen[-1] if seen else is_reachable
        if is_reachable.value is False:
            break
    return [*found, is_reachable]


class _Watched:
    """A shell that remembers what sudo refused: what needs root and was not run is not known,
    whatever else is."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.refused = ""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._shell.run(target, argv, timeout)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        outputs = self._shell.run_all(target, name, commands)
        for command in commands:
            output = outputs.get(command.name)
            if (
                command.as_root
                and output is not None
                and output.status != 0
                and _REFUSED.search(output.stderr)
            ):
                self.refused = (
                    self.refused or f"sudo -n {' '.join(command.argv)[:120]}: {output.complaint}"
                )
        return outputs


class _SideShell:
    """SSH of what is watched over SNMP: its sshd is not the machine."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        try:
            return self._shell.run(target, argv, timeout)
        except Unreachable as error:
            raise DetectorError(str(error)) from error

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        try:
            return self._shell.run_all(target, name, commands)
        except Unreachable as error:
            raise DetectorError(str(error)) from error


class _SideHttp:
    """HTTP of a machine that is watched otherwise: an exporter that is down is not the machine."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def get(self, target: Target, url: str, timeout: timedelta) -> Output:
        try:
            return self._http.get(target, url, timeout)
        except Unreachable as error:
            raise DetectorError(str(error)) from error


def _choose_transports(target: Target, via: Transports) -> Transports:
    """A node is unreachable when SSH says so, a switch when SNMP does, a site by whichever door it
    has.

    Two doors that disagreed would raise and clear one fault in turn.
    """
    if target.kind is TargetKind.NODE:
        return replace(via, http=_SideHttp(via.http))
    if target.kind is TargetKind.SWITCH:
        return replace(via, shell=_SideShell(via.shell), http=_SideHttp(via.http))
    return via
