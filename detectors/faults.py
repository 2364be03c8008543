"""Vocabulary of faults: the closed sets and the values that travel from sensing to the database.

Runs on compute nodes: Python 3.9 and the standard library alone. Never imports Django.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Optional

from detectors import provenance as provenances
from detectors.provenance import UNKNOWN, Provenance


class Word(str, Enum):
    """A closed set whose members are stored and printed as their value."""

    def __str__(self) -> str:
        return str(self.value)


class _Ranked(Word):
    """A closed set in rising order: the order of definition is the rank."""

    @property
    def rank(self) -> int:
        return type(self)._member_names_.index(self._name_)

    def at_least(self, other: _Ranked) -> bool:
        return self.rank >= other.rank


class Severity(_Ranked):
    """RFC 8632 perceived severity; *cleared* is an event there and here, not a severity."""

    INDETERMINATE = "indeterminate"
    WARNING = "warning"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"


class Action(_Ranked):
    """What a fault type calls for, in rising order."""

    NONE = "none"
    RESTART_APP = "restart_app"
    WATCH = "watch"
    CHECK_CABLE = "check_cable"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    COLD_CYCLE = "cold_cycle"
    VENDOR = "vendor"


class Fitness(_Ranked):
    """Whether a job can be placed on a node while such a fault is on it, in rising order. Of what
    is no node's, such as a switch, no node is judged: fit."""

    UNFIT = "unfit"
    DEGRADED = "degraded"
    FIT = "fit"


class Component(Word):
    """Component class: table 13 of arXiv 2604.13600, plus what that study did not see."""

    GPU = "gpu"
    NVLINK = "nvlink"
    NIC = "nic"
    INTERCONNECT_SWITCH = "interconnect_switch"
    STORAGE_SWITCH = "storage_switch"
    MISCONFIGURATION = "misconfiguration"
    NODE = "node"
    STORAGE = "storage"
    FACILITY = "facility"
    UNKNOWN = "unknown"


class EventType(Word):
    """X.733 section 8.1.1 event types."""

    COMMUNICATIONS = "communications"
    QUALITY_OF_SERVICE = "quality_of_service"
    PROCESSING_ERROR = "processing_error"
    EQUIPMENT = "equipment"
    ENVIRONMENTAL = "environmental"


class ClearRule(Word):
    """How a fault of a type stops being active. A type without one does not load."""

    BY_POLL = "by_poll"
    BY_EVENT = "by_event"
    AFTER_REBOOT = "after_reboot"
    AFTER_QUIET = "after_quiet"
    BY_OPERATOR = "by_operator"


class EventKind(Word):
    RAISED = "raised"
    CLEARED = "cleared"


class Channel(Word):
    PLATFORM = "platform"
    USER = "user"


class Role(Word):
    ROOT = "root"
    SYMPTOM = "symptom"


class Recovery(Word):
    NODE_RESTART = "node_restart"
    GPU_RESET = "gpu_reset"
    COLD_CYCLE = "cold_cycle"
    VENDOR_REPLACEMENT = "vendor_replacement"
    SWITCH_RESTART = "switch_restart"
    CONFIG_CHANGE = "config_change"
    SELF_CLEARED = "self_cleared"
    NONE = "none"


class VerdictKind(Word):
    """What deduplication makes of one event."""

    NEW = "new"
    REPEAT = "repeat"
    ESCALATED = "escalated"
    CLEARED = "cleared"
    FLAPPING = "flapping"
    STALE = "stale"
    IGNORED = "ignored"


@dataclass(frozen=True)
class Verdict:
    """A decision of deduplication with the sentence that explains it."""

    kind: VerdictKind
    reason: str


@dataclass(frozen=True)
class Observation:
    """One fact about one resource as the device said it, for example metric `gpu.present`, value
    False."""

    resource: str
    metric: str
    value: Any
    observed_at: datetime
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FaultEvent:
    """A judgement: a fault type raised or cleared on a resource.

    `event_id` makes a redelivery count once; `source_key` folds one line that came by two paths
    (empty: nothing to fold by). `resource` is as reported; ingest resolves aliases before the
    fingerprint. Times are timezone-aware. `count` is how many identical facts the receiver folded
    into this one. `provenance`: who said so.
    """

    event_id: str
    fault_type: str
    event: EventKind
    resource: str
    source: str
    occurred_at: datetime
    observed_at: datetime
    severity: Severity
    action: Action
    component: Component
    qualifier: str = ""
    source_key: str = ""
    count: int = 1
    code: Optional[int] = None
    excerpt: str = ""
    channel: Channel = Channel.PLATFORM
    attributes: dict[str, str] = field(default_factory=dict)
    provenance: Provenance = UNKNOWN


_ENUM_FIELDS: dict[str, type[Word]] = {
    "event": EventKind,
    "severity": Severity,
    "action": Action,
    "component": Component,
    "channel": Channel,
}


def fingerprint(resource: str, fault_type: str, qualifier: str = "") -> str:
    """RFC 8632's alarm identity: resource, alarm type, qualifier. 32 hex digits."""
    return hashlib.sha256(
        "\x1f".join((resource, fault_type, qualifier)).encode(errors="surrogatepass")
    ).hexdigest()[:32]


def event_id(*parts: object) -> str:
    """Identity of one delivery, such as (receiver, segment, offset). 32 hex digits."""
    return hashlib.sha256(
        "\x1f".join(str(part) for part in parts).encode(errors="surrogatepass")
    ).hexdigest()[:32]


def to_wire(event: FaultEvent) -> dict[str, Any]:
    """The event as JSON-ready values: the shape of spool records and task arguments."""
    wire = asdict(event)
    for name in _ENUM_FIELDS:
        wire[name] = str(wire[name])
    wire["occurred_at"] = event.occurred_at.isoformat()
    wire["observed_at"] = event.observed_at.isoformat()
    wire["provenance"] = provenances.to_wire(event.provenance)
    return wire


def from_wire(wire: dict[str, Any]) -> FaultEvent:
    """Inverse of `to_wire`. Raises ValueError, KeyError or TypeError on a record that is not an
    event."""
    values = dict(wire)
    for name, enum in _ENUM_FIELDS.items():
        if name in values:
            values[name] = enum(values[name])
    values["occurred_at"] = datetime.fromisoformat(values["occurred_at"])
    values["observed_at"] = datetime.fromisoformat(values["observed_at"])
    values["provenance"] = provenances.from_wire(values.get("provenance"))
    return FaultEvent(**values)
