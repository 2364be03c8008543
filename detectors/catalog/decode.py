"""What an Xid or SXid line says beyond its number: recovery words, NVLink registers, fatal or not.

Text may raise what the catalogue's row asks for, except for Xid 74, whose registers are the
vendor's own way to tell a harmless event from a broken link. Pure; total on any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from detectors.catalog.catalog import FaultType
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
_RECOVERY_TEXT = re.compile(
    r"changed from\s{1,8}\S{1,40}\s{0,8}\([^()]{0,80}\)\s{1,8}"
    r"to\s{1,8}\S{1,40}\s{0,8}\((?P<word>[^()]{0,80})\)",
    re.IGNORECASE,
)
_SEVERITY_OF = {
    Action.NONE: Severity.WARNING,
    Action.WATCH: Severity.WARNING,
    Action.RESET_GPU: Severity.MAJOR,
    Action.REBOOT: Severity.MAJOR,
}

# Seven register words stand in brackets after an Xid 74; Hopper fills the first, third, fourth and
# fifth. NVIDIA's Xid catalogue, workflow for NVLink errors: register (counted from 0) to what each
# bit asks for. What is to be reported to NVIDIA is minor; a threshold of corrected errors, after
# which work goes on, is a warning.
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+){6})\)")
_IGNORE = (Action.NONE, Severity.WARNING)
_CORRECTED = (Action.WATCH, Severity.WARNING)
_REPORT = (Action.WATCH, Severity.MINOR)
_LOOK_AT_LINK = (Action.CHECK_CABLE, Severity.MAJOR)
_RESET = (Action.RESET_GPU, Severity.MAJOR)
_HOPPER_BITS: dict[int, dict[tuple[Action, Severity], tuple[int, ...]]] = {
    0: {
        _IGNORE: (0, 23, 30),
        _REPORT: (1, 20, 27, 29),
        _LOOK_AT_LINK: (8, 9, 12, 16, 17, 21, 22, 24, 28),
        _RESET: (4, 5),
    },
    2: {_REPORT: (13, 16, 17, 18, 19), _RESET: (0, 1, 2, 6)},
    3: {_REPORT: (16, 17), _RESET: (18,)},
    4: {_CORRECTED: (20, 23, 26, 29), _RESET: (18, 19, 21, 22, 24, 25, 27, 28)},
}
_BITS = {
    (register, bit): meaning
    for register, meanings in _HOPPER_BITS.items()
    for meaning, bits in meanings.items()
    for bit in bits
}
# An Xid of NVLink 5: the unit, the line's word, and registers, the first with the reason in bits
# 20 to 25, the second the unit's status.
_NVLINK5 = re.compile(
    r"\s*(?P<unit>MSE Degraded|[A-Z]\w{2,40})\s{1,8}(?:Link )?(?P<non>[Nn]on-?\s?)?[Ff]atal\b"
    r"[^(]{0,80}\((?P<first>0x[0-9a-fA-F]{1,8})[, ]{1,3}(?P<status>0x[0-9a-fA-F]{1,8})\b"
)
# NVIDIA's Xid catalogue, NVLink 5 decode table: bits of a unit's status by what they ask for.
# RLW_RXPIPE's first three ask for a reset where the line says fatal. What waits for an Xid 154 is
# looked at until that comes.
_TLW = {Action.NONE: 0x80000003, Action.RESET_GPU: 0x4}
_NVLINK5_BITS: dict[str, dict[Action, int]] = {
    "SAW_MVB": {Action.NONE: 0x2D, Action.RESET_GPU: 0x12},
    "RLW_CTRL": {Action.NONE: 0x80000000},
    "RLW_REMAP": {Action.NONE: 0x80000300, Action.WATCH: 0x3F, Action.RESET_GPU: 0xC0},
    "RLW_RSPCOL": {Action.NONE: 0x80000001, Action.RESET_GPU: 0x2},
    "RLW_RXPIPE": {Action.NONE: 0x8000000F},
    "RLW_SRC_TRACK": {Action.NONE: 0x80000002, Action.WATCH: 0xC, Action.RESET_GPU: 0x31},
    "RLW_TAGSTATE": {Action.NONE: 0x80010001, Action.RESET_GPU: 0x120002},
    "TLW_CTRL": _TLW,
    "TLW_RX": _TLW,
    "TLW_RX_PIPE0": _TLW,
    "TLW_RX_PIPE1": _TLW,
    "TLW_TX": _TLW,
    "TLW_TX_PIPE0": _TLW,
    "TLW_TX_PIPE1": _TLW,
    "TREX": {Action.NONE: 0x80000001},
    "NVLPW": {Action.NONE: 0x80000000},
    "NVLPW_CTRL": {Action.NONE: 0x80000000},
}
_NETIR = frozenset({"NETIR", "NETIR_INT"})
_NETIR_LINK = frozenset({"NETIR_LINK_EVT", "NETIR_LINK_DOWN"})
# Reasons of a link that went down which ask for nothing on this GPU: its host or its user did it.
_NETIR_IGNORED = frozenset({38, 40})
_MFDE = {
    1: Action.RESET_GPU,
    3: Action.NONE,
    4: Action.RESET_GPU,
    5: Action.RESET_GPU,
    7: Action.RESET_GPU,
}
_FATAL_WORD = re.compile(r"\b(?P<non>non-?\s?)?fatal\b", re.IGNORECASE)
_LINK_MEANING = (
    "The driver reported an NVLink error under a number that is meant for something else; see"
    " Xid 74."
)
_LINK = re.compile(r"\b(?:link|port)\s*(?P<link>-?\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Decoded:
    """The row as this line makes it, what tells it from another fault of the type, and what else it
    said."""

    fault_type: FaultType
    qualifier: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


def _decode_recovery_action(row: FaultType, text: str) -> Decoded:
    """Xid 154: the action that the driver now asks for. An unknown word leaves the row: a warning
    to look at."""
    found = _RECOVERY_TEXT.search(text)
    if found is None:
        return Decoded(row)
    word = " ".join(found["word"].split())
    action = _RECOVERY.get(word.lower())
    if action is not None:
        row = replace(row, action=action, severity=_SEVERITY_OF[action])
    return Decoded(row, "", (("recovery_action", word),))


def _decode_nvlink_registers(row: FaultType, text: str) -> Decoded:
    """Xid 74: the strongest of what its bits ask for; a bit that NVIDIA does not list is for a
    person."""
    qualifier = link(text)
    found = _REGISTERS.search(text)
    if found is None:
        return Decoded(row, qualifier)
    words = [int(word, 16) for word in found[1].split(",")]
    bits = [
        (register, bit)
        for register, word in enumerate(words)
        for bit in range(32)
        if word >> bit & 1
    ]
    if not bits:
        return Decoded(row, qualifier)
    meanings = [_BITS.get(bit, _REPORT) for bit in bits]
    action, severity = max(meanings, key=lambda meaning: (meaning[0].rank, meaning[1].rank))
    shown = " ".join(f"{register + 1}:{bit}" for register, bit in bits)
    return Decoded(
        replace(row, action=action, severity=severity), qualifier, (("register_bits", shown),)
    )


def _decode_nvlink5(row: FaultType, text: str) -> Decoded:
    """Xid 144 to 150 of NVLink 5: by the unit, and by the bits of its status word or the reason in
    its first word. A unit or a bit that NVIDIA does not list is judged by the line's own word."""
    found = _NVLINK5.match(text)
    action = None if found is None else _get_nvlink5_action(found)
    if action is None:
        is_fatal_line = is_fatal(text)
        if not is_fatal_line:
            return Decoded(row, link(text))
        action = Action.RESET_GPU
    severity = Severity.CRITICAL if action is Action.RESET_GPU else Severity.WARNING
    decoded = replace(row, action=action, severity=severity, is_fatal=action is Action.RESET_GPU)
    return Decoded(decoded, link(text))


def _get_nvlink5_action(found: re.Match[str]) -> Action | None:
    """What NVIDIA's table asks for; None where it has no row for this."""
    unit, is_fatal_line = found["unit"], not found["non"]
    first, status = int(found["first"], 16), int(found["status"], 16)
    if unit.startswith("MSE") or unit in _NETIR:
        return Action.RESET_GPU
    if unit in _NETIR_LINK:
        reason = first >> 20 & 0x3F
        return Action.NONE if reason in _NETIR_IGNORED else Action.RESET_GPU
    if unit == "NETIR_BER_EVENT":
        return Action.NONE
    if unit == "NETIR_MFDE_EVENT":
        return _MFDE.get(status)
    known = _NVLINK5_BITS.get(unit)
    if known is None or status & ~sum(known.values()) or not status:
        return None
    if unit == "RLW_RXPIPE" and is_fatal_line and status & 0x7:
        return Action.RESET_GPU
    asked = [action for action, bits in known.items() if status & bits]
    return max(asked, key=lambda action: action.rank)


def _decode_link(row: FaultType, text: str) -> Decoded:
    """Xid 155: whatever the line says of it, the row's own action."""
    return Decoded(row, link(text))


def _decode_nvlink_text(row: FaultType, text: str) -> Decoded:
    """Any other Xid whose text speaks of an NVLink is a fault of that link, whatever its number was
    meant for."""
    if not text.lstrip().lower().startswith("nvlink"):
        return Decoded(row)
    row = replace(row, component=Component.NVLINK, meaning=_LINK_MEANING)
    fatal = _FATAL_WORD.search(text)
    if fatal is not None and not fatal["non"] and not row.action.at_least(_RESET[0]):
        row = replace(row, action=_RESET[0], severity=_RESET[1], is_fatal=True)
    return Decoded(row, link(text))


_XID: dict[int, Callable[[FaultType, str], Decoded]] = {
    74: _decode_nvlink_registers,
    154: _decode_recovery_action,
    155: _decode_link,
    **dict.fromkeys(range(144, 151), _decode_nvlink5),
}


def xid(row: FaultType, text: str) -> Decoded:
    """`text` is what follows the number, without process id and name."""
    return _XID.get(row.code or 0, _decode_nvlink_text)(row, text)


def is_fatal(text: str) -> bool | None:
    """The word `Fatal` or `Non-fatal` of an SXid line; None when it has neither."""
    found = _FATAL_WORD.search(text)
    return None if found is None else not found["non"]


def link(text: str) -> str:
    """`link 4` when the text names an NVLink, else empty: the qualifier of NVLink faults."""
    found = _LINK.search(text)
    return f"link {int(found['link'])}" if found is not None else ""
