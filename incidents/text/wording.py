"""How the closed sets are written for people: one table per set. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from detectors.faults import Action, Channel, ClearRule, Component, Recovery, Role, Severity
from incidents.vocabulary.lifecycle import State

SEVERITY_ICONS: dict[Severity, str] = {
    Severity.CRITICAL: "dangerous",
    Severity.MAJOR: "error",
    Severity.MINOR: "warning",
    Severity.WARNING: "info",
    Severity.INDETERMINATE: "help",
}
STATE_ICONS: dict[State, str] = {
    State.OPEN: "radio_button_unchecked",
    State.ACKNOWLEDGED: "visibility",
    State.REPAIRING: "build",
    State.MONITORING: "monitor_heart",
    State.AWAITING_VENDOR: "local_shipping",
    State.RESOLVED: "check_circle",
    State.FALSE_POSITIVE: "cancel",
    State.DUPLICATE: "content_copy",
}
STATES: dict[State, str] = {state: state.value.replace("_", " ") for state in State}
COMPONENTS: dict[Component, str] = {
    Component.GPU: "GPU",
    Component.NVLINK: "NVLink, NVSwitch, PCIe switch",
    Component.NIC: "NIC and transceiver",
    Component.INTERCONNECT_SWITCH: "interconnect switch",
    Component.STORAGE_SWITCH: "storage switch",
    Component.MISCONFIGURATION: "misconfiguration",
    Component.NODE: "node",
    Component.STORAGE: "storage",
    Component.FACILITY: "facility",
    Component.UNKNOWN: "unknown",
}
ACTIONS: dict[Action, str] = {
    Action.NONE: "nothing",
    Action.RESTART_APP: "restart the application",
    Action.WATCH: "a person looks at it",
    Action.CHECK_CABLE: "check cable and seating",
    Action.RESET_GPU: "reset the GPU",
    Action.REBOOT: "reboot the node",
    Action.COLD_CYCLE: "power the machine off and on",
    Action.VENDOR: "the vendor replaces hardware",
}
CLEARS: dict[ClearRule, str] = {
    ClearRule.BY_POLL: "when the next poll finds it gone",
    ClearRule.BY_EVENT: "when the device reports its end",
    ClearRule.AFTER_REBOOT: "when the machine has booted again",
    ClearRule.AFTER_QUIET: "after a quiet period without it",
    ClearRule.BY_OPERATOR: "when a person says so",
}
RECOVERIES: dict[Recovery, str] = {
    Recovery.NODE_RESTART: "node restart",
    Recovery.GPU_RESET: "GPU reset",
    Recovery.COLD_CYCLE: "cold power cycle",
    Recovery.VENDOR_REPLACEMENT: "hardware replaced by the vendor",
    Recovery.SWITCH_RESTART: "switch restart",
    Recovery.CONFIG_CHANGE: "configuration changed",
    Recovery.SELF_CLEARED: "went away by itself",
    Recovery.NONE: "nothing was repaired",
}
ROLES: dict[Role, str] = {Role.ROOT: "root cause", Role.SYMPTOM: "symptom"}
CHANNELS: dict[Channel, str] = {Channel.PLATFORM: "platform", Channel.USER: "user report"}

_STEPS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def format_duration(length: timedelta) -> str:
    """`45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`: the two largest units, seconds only below ten
    minutes."""
    left = max(0, int(length.total_seconds()))
    if left >= 600:
        left -= left % 60
    parts = []
    for unit, seconds in _STEPS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def format_clock(moment: datetime) -> str:
    """`05:03:42 UTC`, where the day is plain from where it stands."""
    return f"{moment.astimezone(UTC):%H:%M:%S} UTC"


def format_clock_used(lag_s: float) -> str:
    """Of a time that is ours: `by our clock: the device dates it 1 h after we saw it`."""
    side = "after" if lag_s < 0 else "before"
    return (
        f"by our clock: the device dates it {format_duration(timedelta(seconds=abs(lag_s)))}"
        f" {side} we"
        " saw it"
    )


def format_moment(at: datetime) -> str:
    """`2025-01-15 05:03:42 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_resource_path(path: str, gpus: Mapping[str, int] = MappingProxyType({})) -> str:
    """`node/gn042/gpu/0000:5d:00.0` as `gn042 GPU 3` where `gpus` knows its index, else `gn042 GPU
    0000:5d:00.0`; the host alone for `node/gn042`."""
    parts = path.split("/", 3)
    if len(parts) < 2:
        return path
    machine = "unknown host" if parts[1] == "-" else parts[1]
    if len(parts) < 4:
        return machine
    if path in gpus:
        return f"{machine} GPU {gpus[path]}"
    kind = {"gpu": "GPU", "nic": "NIC", "pci": "PCI device", "nvswitch": "NVSwitch"}.get(
        parts[2], parts[2]
    )
    return f"{machine} {kind} {parts[3]}"
