"""Whether slurmctld has kept that a node was given back. Pure.

slurmctld keeps its state on disk every 5 s at most (SAVE_MAX_WAIT, src/slurmctld/state_save.c of
22.05): of a resume in the seconds before its death the next one does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState

# The fact of a run that has given its node back: when.
GIVEN_BACK_AT = "given_back_at"
# The same as where a drain is forgotten: measured as up to 4 s, the rest is our choice.
_KEPT_AFTER = timedelta(seconds=30)


def get_returned_at(facts: Mapping[str, Any]) -> datetime | None:
    text = facts.get(GIVEN_BACK_AT)
    return datetime.fromisoformat(text) if text else None


def get_next_check_at(facts: Mapping[str, Any]) -> datetime | None:
    """When the return is kept, or slurmctld has died before; None where the node was not given
    back."""
    at = get_returned_at(facts)
    return at + _KEPT_AFTER if at is not None else None


def is_forgotten(state: NodeState, whose: Owner, facts: Mapping[str, Any]) -> bool:
    """Whether the node stands as it did before it was given back: drained, with our reason, written
    before that.

    A resume takes the reason away, and whoever drains anew writes another time: only a slurmctld
    that began anew from what it had kept shows this (measured in 22.05). It may begin hours later,
    so when it began does not matter.
    """
    at = get_returned_at(facts)
    is_ours = state.is_draining and whose is Owner.THIS_INCIDENT
    return (
        is_ours
        and at is not None
        and state.reason_changed_at is not None
        and state.reason_changed_at < at
    )
