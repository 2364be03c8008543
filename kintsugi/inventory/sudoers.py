"""The lines of /etc/sudoers.d: what detectors read as root and, in a file apart, what runs do.
Writes nothing.

Each detector's own `collect` is run: its commands that ask for root are noted and not sent. What it
asks without root is sent to the node where there is access, so that the commands of its second
round (one for each disk, say) are seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product

from detectors.detector import (
    Command,
    Detector,
    DetectorError,
    NotConfigured,
    Output,
    Shell,
    Target,
    Transports,
    Unreachable,
)
from incidents.topology import discovery
from runbooks.node import looking
from runbooks.people import root_rights
from runbooks.steps.confirm_on_node import ConfirmOnNode

# Where programs of root lie; a shell without login often looks into neither sbin.
_FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/sbin", "/bin")
_USUAL = ("/usr/sbin", "/usr/bin")
_LIMIT = timedelta(seconds=10)
# sudoers(5): a comma, colon, equals sign and backslash need a backslash in arguments, and so do
# wildcards.
_ESCAPED = re.compile(r"([,:=\\*?\[\]!#\"'])")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


@dataclass
class RootCommands:
    """What needs root, by program and arguments, with the detectors that ask; and where each
    program lies."""

    commands: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class _RecordingShell:
    """A shell that sends what needs no root and notes what does. Without `shell` it sends
    nothing."""

    def __init__(self, shell: Shell | None) -> None:
        self._shell = shell
        self.recorded: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._shell.run(target, argv, timeout) if self._shell is not None else _NOTHING

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        self.recorded += [command.argv for command in commands if command.as_root]
        sent = [command for command in commands if not command.as_root]
        outputs = {command.name: _NOTHING for command in commands}
        if self._shell is not None and sent:
            outputs |= self._shell.run_all(target, name, sent)
        return outputs


_NOTHING = Output(0, b"", b"", timedelta(0))


def find_detector_commands(
    detectors: Iterable[Detector], targets: Sequence[Target], shell: Shell | None, *, now: datetime
) -> RootCommands:
    """Of these targets; `shell` is None where there is no access, and second rounds stay unseen
    then."""
    needs = RootCommands()
    for target in targets:
        of_kind = [detector for detector in detectors if detector.kind is target.kind]
        wanted = [detector for detector in of_kind if detector.wants(target)]
        _add_commands(needs, target, wanted, shell, now)
    for command in discovery.build_commands():
        if command.as_root:
            needs.commands.setdefault(command.argv, set()).add("inventory discover")
    needs.commands.setdefault(looking.KERNEL_LOG.argv, set()).add(ConfirmOnNode.name)
    if shell is not None:
        _locate_programs(needs, targets, shell)
    return needs


def find_act_commands(
    targets: Sequence[Target], shell: Shell | None, units: Sequence[str]
) -> RootCommands:
    """What a run does as root on these nodes: the reset of GPUs, what is stopped and started for
    it, and the restart of services and mounts.

    `units` are those that the site's runbooks name for a reset besides the usual ones.
    """
    needs = RootCommands()
    for target, step in product(targets, root_rights.STEPS):
        for argv in root_rights.list_commands(target, step, tuple(units)):
            needs.commands.setdefault(argv, set()).add(step)
    if shell is not None:
        _locate_programs(needs, targets, shell)
    return needs


def _add_commands(
    needs: RootCommands,
    target: Target,
    detectors: Iterable[Detector],
    shell: Shell | None,
    now: datetime,
) -> None:
    """A node that does not answer is asked as if there were no access: its first rounds are seen
    all the same."""
    for detector in detectors:
        recording = _RecordingShell(shell)
        try:
            detector.collect(target, Transports(shell=recording), now)
        except Unreachable as error:
            needs.failed.append(f"{target.name}: {error}")
            if shell is not None:
                _add_commands(needs, target, detectors, None, now)
                return
        except NotConfigured:
            pass  # another door than the shell: nothing of it needs root
        except DetectorError as error:
            needs.failed.append(f"{detector.name} on {target.name}: {error}")
        for argv in recording.recorded:
            needs.commands.setdefault(argv, set()).add(detector.name)


def _locate_programs(needs: RootCommands, targets: Sequence[Target], shell: Shell) -> None:
    """sudo compares whole paths: where the programs lie on the first target that tells."""
    programs = sorted({argv[0] for argv in needs.commands if "/" not in argv[0]})
    if not programs:
        return
    places = [f"{folder}/{program}" for program in programs for folder in _FOLDERS]
    for target in targets:
        try:
            output = shell.run(target, ("ls", "-1d", *places), _LIMIT)
        except DetectorError:
            continue
        for path in output.stdout.decode("utf-8", "replace").split():
            needs.folders.setdefault(path.rpartition("/")[2], path)


LOOKS = (
    "# What Kintsugi may read as root. Every line only reads; nothing else is allowed.",
    "# Install as /etc/sudoers.d/kintsugi, owner root, mode 0440; check with `visudo -cf`.",
)
ACTS = (
    (
        "# What Kintsugi may do as root to reset GPUs, restart services and mount. Install it only"
        " where a runbook that does so is to be armed:"
    ),
    "# as /etc/sudoers.d/kintsugi-acts, owner root, mode 0440; check with `visudo -cf`.",
)


def format_sudoers(needs: RootCommands, user: str, *, head: Sequence[str] = LOOKS) -> list[str]:
    """A whole file for /etc/sudoers.d; `visudo -c` accepts it. Programs that were not found are
    allowed where usual."""
    if not needs.commands:
        return [*head, "# Nothing needs root."]
    by_detector: dict[str, list[tuple[str, ...]]] = {}
    for argv, names in sorted(needs.commands.items()):
        by_detector.setdefault(", ".join(sorted(names)), []).append(argv)
    lines = [*head, f"Defaults:{user} !requiretty"]
    for names_text, commands in sorted(by_detector.items()):
        lines += ["", f"# {names_text}"]
        lines += [f"{user} ALL=(root) NOPASSWD: {_format_rule(argv, needs)}" for argv in commands]
    return lines


def _format_rule(argv: tuple[str, ...], needs: RootCommands) -> str:
    program = argv[0]
    arguments = " ".join(_escape(word) for word in argv[1:]) or '""'  # "" forbids any
    if "/" in program:
        paths = [program]
    elif program in needs.folders:
        paths = [needs.folders[program]]
    else:
        paths = [f"{folder}/{program}" for folder in _USUAL]
    return ", ".join(f"{path} {arguments}" for path in paths)


def _escape(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    return _ESCAPED.sub(r"\\\1", word).replace(" ", r"\ ")
