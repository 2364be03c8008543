"""What the machine itself shows for a vendor case: reports, logs, field diagnostics. Only looks;
over a Shell alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePosixPath

from detectors.detector import Command, DetectorError, NotConfigured, Output, Shell, Target
from detectors.node.outputs.bmc_alarms import MOST_ENTRIES
from incidents.text.archive import MOST_OF_ONE, Piece

_SOON, _LATER = timedelta(seconds=30), timedelta(seconds=60)
_MOST_FILES = 20
# File names of the archive, and what they are made of. The event log as the detector of boards asks
# for it, so that one line of sudoers serves both; the kernel log of this boot alone, without root.
LOOKS: Mapping[str, Command] = {
    "node/nvidia-smi-q.txt": Command("nvidia-smi-q", ("nvidia-smi", "-q"), _LATER),
    "node/nvidia-smi-topo.txt": Command("nvidia-smi-topo", ("nvidia-smi", "topo", "-m"), _SOON),
    "node/nvidia-smi-nvlink.txt": Command(
        "nvidia-smi-nvlink", ("nvidia-smi", "nvlink", "-s"), _SOON
    ),
    "node/kernel-log.txt": Command(
        "kernel-log",
        ("journalctl", "--dmesg", "--no-pager", "--output=short-iso", "--lines=20000"),
        _SOON,
    ),
    "node/lspci.txt": Command("lspci", ("lspci", "-vv"), _SOON),
    "node/system-event-log.txt": Command(
        "sel", ("ipmitool", "sel", "elist", "last", str(MOST_ENTRIES)), _LATER, as_root=True
    ),
}


def read_pieces(target: Target | None, shell: Shell, *, field_diagnostics: str = "") -> list[Piece]:
    """Every look, each missing one with why. `field_diagnostics`: a path whose last part is a
    pattern."""
    if target is None:
        return [_make_missing(name, "the machine is no node of the inventory") for name in LOOKS]
    try:
        outputs = shell.run_all(target, "vendor-evidence", list(LOOKS.values()))
    except (DetectorError, NotConfigured) as error:
        why = str(error)
        return [_make_missing(name, why) for name in LOOKS] + _list_unasked(field_diagnostics, why)
    own_pieces = []
    for name, look in LOOKS.items():
        own_pieces.append(_make_piece(name, outputs.get(look.name), look))
    if not field_diagnostics:
        return own_pieces
    return own_pieces + _collect_field_diagnostics(target, shell, field_diagnostics)


def _make_missing(name: str, why: str) -> Piece:
    return Piece(name, _format_source(LOOKS[name]), missing=why)


def _format_source(look: Command) -> str:
    return f"`{' '.join(look.argv)}` on the node"


def _make_piece(name: str, output: Output | None, look: Command) -> Piece:
    if output is None:
        return _make_missing(name, "it was not asked")
    if output.is_missing:
        return _make_missing(name, f"{look.argv[0]} is not installed there")
    if not output.stdout.strip():
        return _make_missing(name, output.complaint)
    return Piece(name, _format_source(look), output.stdout)


def _list_unasked(pattern: str, why: str) -> list[Piece]:
    return [Piece("field-diagnostics", pattern, missing=why)] if pattern else []


def _collect_field_diagnostics(target: Target, shell: Shell, pattern: str) -> list[Piece]:
    path = PurePosixPath(pattern)
    listing = ("find", str(path.parent), "-maxdepth", "1", "-type", "f", "-name", path.name)
    try:
        output = shell.run(target, listing, _SOON)
        names = sorted(output.stdout.decode(errors="replace").splitlines())
        if not names:
            why = "no such file there" if output.status == 0 else output.complaint
            return _list_unasked(pattern, why)
        kept = []
        for name in names[-_MOST_FILES:]:
            if PurePosixPath(name).parent == path.parent:
                kept.append(_fetch_file(target, shell, name))
    except DetectorError as error:
        return _list_unasked(pattern, str(error))
    left = len(names) - _MOST_FILES
    if left > 0:
        kept += _list_unasked(pattern, f"{left} files more than the last {_MOST_FILES}")
    return kept


def _fetch_file(target: Target, shell: Shell, name: str) -> Piece:
    output = shell.run(target, ("tail", "-c", str(MOST_OF_ONE), name), _LATER)
    inside = f"field-diagnostics/{PurePosixPath(name).name}"
    if output.status != 0:
        return Piece(inside, name, missing=output.complaint)
    return Piece(inside, f"{name} on the node", output.stdout)
