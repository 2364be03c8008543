"""What an Xid or SXid line says beyond its number: recovery words, NVLink registers, fatal or not.

Text may raise what the catalogue's row asks for, except for Xid 74, whose registers are the vendor's own way to
tell a harmless event from a broken link. Pure; total on any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from detectors.catalog import FaultType
from detectors.faults import Action, Component, Severity

# NVML's nvmlDeviceGpuRecoveryAction_t and the driver's own words for it; an open list.
# https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
_RECOVERY: dict[str, Action] = {
    "none": Action.NONE,
    "gpu reset required": Action.RESET_GPU,
    "gpu reset": Action.RESET_GPU,
    "reset": Action.RESET_GPU,
    "pf flr": Action.RESET_GPU,
    "drain and reset": Action.RESET_GPU,
    "drain p2p": Action.WATCH,
    "node reboot required": Action.REBOOT,
    "node reboot": Action.REBOOT,
    "os reboot": Action.REBOOT,
    "system reboot": Action.REBOOT,
    "reboot": Action.REBOOT,
    "bus reset": Action.REBOOT,
}
_RECOVERY_TEXT = re.compile(r"changed from\s+\S+\s*\([^)]*\)\s+to\s+\S+\s*\((?P<word>[^)]*)\)", re.IGNORECASE)
_SEVERITY_OF = {
    Action.NONE: Severity.WARNING,
    Action.RESTART_APP: Severity.WARNING,
    Action.WATCH: Severity.WARNING,
    Action.CHECK_CABLE: Severity.MAJOR,
    Action.RESET_GPU: Severity.MAJOR,
    Action.REBOOT: Severity.MAJOR,
}

# Seven register words stand in brackets after an Xid 74; Hopper fills the first, third, fourth and fifth.
# NVIDIA's Xid catalogue, workflow for NVLink errors: (register, counted from 0) -> what each bit asks for.
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+){6})\)")
_HOPPER_BITS: dict[int, dict[Action, tuple[int, ...]]] = {
    0: {
        Action.NONE: (0, 23, 30),
        Action.WATCH: (1, 20, 27, 29),
        Action.CHECK_CABLE: (8, 9, 12, 16, 17, 21, 22, 24, 28),
        Action.RESET_GPU: (4, 5),
    },
    2: {Action.WATCH: (13, 16, 17, 18, 19), Action.RESET_GPU: (0, 1, 2, 6)},
    3: {Action.WATCH: (16, 17), Action.RESET_GPU: (18,)},
    4: {Action.WATCH: (20, 23, 26, 29), Action.RESET_GPU: (18, 19, 21, 22, 24, 25, 27, 28)},
}
_BIT_ACTION = {
    (register, bit): action
    for register, actions in _HOPPER_BITS.items()
    for action, bits in actions.items()
    for bit in bits
}
_FATAL_WORD = re.compile(r"\b(?P<non>non-?\s?)?fatal\b", re.IGNORECASE)
_LINK = re.compile(r"\b(?:link|port)\s*(?P<link>-?\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Decoded:
    """The row as this line makes it, what tells it from another fault of the type, and what else it said."""

    fault_type: FaultType
    qualifier: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


def _to(row: FaultType, action: Action) -> FaultType:
    return replace(row, action=action, severity=_SEVERITY_OF[action])


def _recovery_action(row: FaultType, text: str) -> Decoded:
    """Xid 154: the action that the driver now asks for. An unknown word leaves the row: a warning to look at."""
    found = _RECOVERY_TEXT.search(text)
    if found is None:
        return Decoded(row)
    word = " ".join(found["word"].split())
    action = _RECOVERY.get(word.lower())
    return Decoded(row if action is None else _to(row, action), "", (("recovery_action", word),))


def _nvlink_registers(row: FaultType, text: str) -> Decoded:
    """Xid 74: the strongest of what its bits ask for; a bit that NVIDIA does not list is for a person."""
    link = _link(text)
    found = _REGISTERS.search(text)
    if found is None:
        return Decoded(row, link)
    words = [int(word, 16) for word in found[1].split(",")]
    bits = [(register, bit) for register, word in enumerate(words) for bit in range(32) if word >> bit & 1]
    if not bits:
        return Decoded(row, link)
    action = max((_BIT_ACTION.get(bit, Action.WATCH) for bit in bits), key=lambda action: action.rank)
    shown = " ".join(f"{register + 1}:{bit}" for register, bit in bits)
    return Decoded(_to(row, action), link, (("register_bits", shown),))


def _nvlink5(row: FaultType, text: str) -> Decoded:
    """Xid 144 to 150 of NVLink 5: NVIDIA's decode table resets the GPU for what the line itself calls fatal."""
    found = _FATAL_WORD.search(text)
    if found is None or found["non"]:
        return Decoded(row, _link(text))
    return Decoded(replace(row, action=Action.RESET_GPU, severity=Severity.CRITICAL, is_fatal=True), _link(text))


def _about_nvlink(row: FaultType, text: str) -> Decoded:
    """Any other Xid whose text speaks of an NVLink is a fault of that link, whatever its number was meant for."""
    if not text.lstrip().lower().startswith("nvlink"):
        return Decoded(row)
    return Decoded(replace(row, component=Component.NVLINK), _link(text))


_XID: dict[int, Callable[[FaultType, str], Decoded]] = {
    74: _nvlink_registers,
    154: _recovery_action,
    **dict.fromkeys(range(144, 151), _nvlink5),
}


def xid(row: FaultType, text: str) -> Decoded:
    """`text` is what follows the number, without process id and name."""
    return _XID.get(row.code or 0, _about_nvlink)(row, text)


def is_fatal(text: str) -> bool | None:
    """The word `Fatal` or `Non-fatal` of an SXid line; None when it has neither."""
    found = _FATAL_WORD.search(text)
    return None if found is None else not found["non"]


def _link(text: str) -> str:
    found = _LINK.search(text)
    return f"link {int(found['link'])}" if found is not None else ""


def link(text: str) -> str:
    """`link 4` when the text names an NVLink, else empty: the qualifier of NVLink faults."""
    return _link(text)
