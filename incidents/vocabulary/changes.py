"""What services answer: values, never rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from incidents.vocabulary.lifecycle import State

KINTSUGI = "kintsugi"
"""The actor of what no person did."""


class ChangeKind(StrEnum):
    OPENED = "opened"
    JOINED = "joined"
    RECORDED = "recorded"
    REPEATED = "repeated"
    RETURNED = "returned"
    ESCALATED = "escalated"
    CLEARED = "cleared"
    IGNORED = "ignored"
    NOT_BELIEVED = "not_believed"
    QUARANTINED = "quarantined"
    MONITORING = "monitoring"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Change:
    """One thing that ingest or the sweep did, with the sentence that says why. Ids are None where
    none applies."""

    incident_id: int | None
    fault_id: int | None
    kind: ChangeKind
    text: str


@dataclass(frozen=True)
class Acted:
    """Done. `text`: what else was done with it, for the person; empty where nothing was."""

    state: State
    text: str = ""


@dataclass(frozen=True)
class Refused:
    """Nothing was changed; `reason` says why and what is possible."""

    reason: str
