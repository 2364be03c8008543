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
from runbooks.people import root_rights
from runbooks.steps.reset_gpu import ResetGpu

# Where programs of root lie; a shell without login often looks into neither sbin.
_FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/sbin", "/bin")
_USUAL = ("/usr/sbin", "/usr/bin")
_LIMIT = timedelta(seconds=10)
# sudoers(5): a comma, colon, equals sign and backslash need a backslash in arguments, and so do
# wildcards.
_ESCAPED = re.compile(r"([,:=\\*?\[\]!#\"'])")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


@dataclass
class RootCommand:
    """What needs root, by program and arguments, with the detectors that ask; and where each
    program lies."""

    commands: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class _Noting:
    """A shell that sends what needs no root and notes what does. Without `shell` it sends
    nothing."""

    def __init__(self, shell: Shell | None) -> None:
        self._shell = shell
        self.noted: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._shell.run(target, argv, timeout) if self._shell is not None else _NOTHING

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        self.noted += [command.argv for command in commands if command.as_root]
        sent = [command for command in commands if not command.as_root]
        outputs = {command.name: _NOTHING for command in commands}
        if self._shell is not None and sent:
            outputs |= self._shell.run_all(target, name, sent)
        return outputs


_NOTHING = Output(0, b"", b"", timedelta(0))


def ask(
    detectors: Iterable[Detector], targets: Sequence[Target], shell: Shell | None, *, now: datetime
) -> RootCommand:
    """Of these targets; `shell` is None where there is no access, and second rounds stay unseen
    then."""
    asked = RootCommand()
    for target in targets:
        wanted = [each for each in detectors if each.kind is target.kind and each.wants(target)]
        _ask_one(asked, target, wanted, shell, now)
    for command in discovery.commands():
        if command.as_root:
            asked.commands.setdefault(command.argv, set()).add("inventory discover")
    if shell is not None:
        _locate(asked, targets, shell)
    return asked


def acts(targets: Sequence[Target], shell: Shell | None, units: Sequence[str]) -> RootCommand:
    """What a run does as root on these nodes: the reset of GPUs, and what is stopped and started
    for it.

    `units` are those that the site's runbooks name besides the usual ones.
    """
    asked = RootCommand()
    for target in targets:
        for argv in root_rights.list_commands(target, tuple(units)):
            asked.commands.setdefault(argv, set()).add(ResetGpu.name)
    if shell is not None:
        _locate(asked, targets, shell)
    return asked


def _ask_one(
    asked: RootCommand,
    target: Target,
    detectors: Iterable[Detector],
    shell: Shell | None,
    now: datetime,
) -> None:
    """A node that does not answer is asked as if there were no access: its first rounds are seen
    all the same."""
    for detector in detectors:
        noting = _Noting(shell)
        try:
            detector.collect(target, Transports(shell=noting), now)
        except Unreachable as error:
            asked.failed.append(f"{target.name}: {error}")
            if shell is not None:
                _ask_one(asked, target, detectors, None, now)
                return
        except NotConfigured:
            pass  # another door than the shell: nothing of it needs root
        except DetectorError as error:
            asked.failed.append(f"{detector.name} on {target.name}: {error}")
        for argv in noting.noted:
            asked.commands.setdefault(argv, set()).add(detector.name)


def _locate(asked: RootCommand, targets: Sequence[Target], shell: Shell) -> None:
    """sudo compares whole paths: where the programs lie on the first target that tells."""
    programs = sorted({argv[0] for argv in asked.commands if "/" not in argv[0]})
    if not programs:
        return
    places = [f"{folder}/{program}" for program in programs for folder in _FOLDERS]
    for target in targets:
        try:
            output = shell.run(target, ("ls", "-1d", *places), _LIMIT)
        except DetectorError:
            continue
        for path in output.stdout.decode("utf-8", "replace").split():
            asked.folders.setdefault(path.rpartition("/")[2], path)


LOOKS = (
    "# What Kintsugi may read as root. Every line only reads; nothing else is allowed.",
    "# Install as /etc/sudoers.d/kintsugi, owner root, mode 0440; check with `visudo -cf`.",
)
ACTS = (
    (
        "# What Kintsugi may do as root to reset GPUs. Install it only where a runbook that resets"
        " them is to be armed:"
    ),
    "# as /etc/sudoers.d/kintsugi-acts, owner root, mode 0440; check with `visudo -cf`.",
)


def lines(asked: RootCommand, user: str, *, head: Sequence[str] = LOOKS) -> list[str]:
    """A whole file for /etc/sudoers.d; `visudo -c` accepts it. Programs that were not found are
    allowed where usual."""
    if not asked.commands:
        return [*head, "# Nothing needs root."]
    by_detector: dict[str, list[tuple[str, ...]]] = {}
    for argv, names in sorted(asked.commands.items()):
        by_detector.setdefault(", ".join(sorted(names)), []).append(argv)
    found = [*head, f"Defaults:{user} !requiretty"]
    for named, commands in sorted(by_detector.items()):
        found += ["", f"# {named}"]
        found += [f"{user} ALL=(root) NOPASSWD: {_allowed(argv, asked)}" for argv in commands]
    return found


def _allowed(argv: tuple[str, ...], asked: RootCommand) -> str:
    program, arguments = argv[0], " ".join(_escaped(word) for word in argv[1:])
    if "/" in program:
        paths = [program]
    elif program in asked.folders:
        paths = [asked.folders[program]]
    else:
        paths = [f"{folder}/{program}" for folder in _USUAL]
    # "" in place of arguments forbids any.
    return ", ".join(f"{path} {arguments}" if arguments else f'{path} ""' for path in paths)


def _escaped(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else _ESCAPED.sub(r"\\\1", word).replace(" ", r"\ ")
