"""What a dry run keeps of its node: whether the fault was seen there, and what the guards said.

One fact of the run, written by `runbooks.engine.shadow_looks` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

FACT = "dry_run"
_TIMES = ("refuted_at", "refused_at", "allowed_at", "next_look_at")


class FaultLook(StrEnum):
    SEEN = "seen"
    DENIED = "denied"
    UNKNOWN = "unknown"


@dataclass
class EpisodeFacts:
    """`has_looked`: Slurm has shown the node. `look` is what the last look at the node said, and
    `refuted_at` when a second one denied the fault. `is_spared`: a run that may act would have
    asked the node first, and left it in service. `held_by` says who had the node in hand at the
    first look, or which guard spoke for them. `refusal` is the first guard's word
    (`runbooks.guards.verdicts.Refusal`) since `refused_at`; `allowed_at` is when they first let
    the drain pass. `next_look_at`: None when nothing is left to find out.
    """

    has_looked: bool = False
    look: FaultLook = FaultLook.UNKNOWN
    is_spared: bool = False
    held_by: str = ""
    refusal: str = ""
    refuted_at: datetime | None = None
    refused_at: datetime | None = None
    allowed_at: datetime | None = None
    next_look_at: datetime | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the node has shown whether the fault is there."""
        return self.look is FaultLook.SEEN or self.refuted_at is not None


def load(facts: Mapping[str, Any]) -> EpisodeFacts:
    """Of a run that has kept none yet, or none that can be read: nothing is known."""
    try:
        return _parse(dict(facts.get(FACT, {})))
    except (TypeError, ValueError):
        return EpisodeFacts()


def _parse(stored: dict[str, Any]) -> EpisodeFacts:
    for name in _TIMES:
        text = stored.get(name)
        stored[name] = datetime.fromisoformat(text) if text else None
    stored["look"] = FaultLook(stored.get("look", FaultLook.UNKNOWN))
    return EpisodeFacts(**stored)


def store(facts: dict[str, Any], episode: EpisodeFacts) -> None:
    values = {field.name: getattr(episode, field.name) for field in fields(episode)}
    for name in _TIMES:
        values[name] = values[name].isoformat() if values[name] is not None else None
    facts[FACT] = values | {"look": episode.look.value}


def get_next_look_at(facts: Mapping[str, Any]) -> datetime | None:
    """When the node of a dry run that has ended is looked at again."""
    return load(facts).next_look_at
