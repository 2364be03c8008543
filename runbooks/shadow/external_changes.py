"""What somebody did to a node between two looks at Slurm. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from runbooks.slurm import ownership
from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState

# No incident has this number: the reason is only asked whose it is.
_NO_INCIDENT = 0


class ActKind(StrEnum):
    DRAIN = "drain"
    REBOOT = "reboot"
    RESUME = "resume"


@dataclass(frozen=True)
class NodeSnapshot:
    """A node at one look. `owner`: whose the reason is, where it is out.

    `is_out`: drained, or set down by a person. What Slurm set down comes back by itself
    (ReturnToService); what is drained comes back by somebody's hand alone.
    """

    is_out: bool
    owner: Owner
    reason: str
    boot_time: datetime | None


@dataclass(frozen=True)
class ExternalAct:
    """`at` is Slurm's own time where it gives one. `by` is empty where Slurm does not say who."""

    kind: ActKind
    at: datetime
    by: str
    text: str


def observe_node(state: NodeState, slurm_user: str = ownership.SLURM_USER) -> NodeSnapshot:
    whose = (
        ownership.get_owner(state, _NO_INCIDENT, slurm_user=slurm_user)
        if state.is_draining or state.base == "DOWN"
        else Owner.NOBODY
    )
    is_out = state.is_draining or whose in (Owner.PERSON, Owner.CHECK)
    return NodeSnapshot(
        is_out, whose if is_out else Owner.NOBODY, state.reason if is_out else "", state.boot_time
    )


def find_acts(
    before: NodeSnapshot,
    state: NodeState,
    now: datetime,
    slurm_user: str = ownership.SLURM_USER,
) -> list[ExternalAct]:
    """What people did since `before`. What Slurm and Kintsugi did by themselves is left out.

    A boot is taken for a reboot on purpose only where a person holds the node, or it was drained: a
    node that takes jobs and boots has crashed.
    """
    after = observe_node(state, slurm_user)
    found: list[ExternalAct] = []
    is_persons = after.owner is Owner.PERSON
    if is_persons and before.owner is not Owner.PERSON:
        found.append(
            ExternalAct(
                ActKind.DRAIN, state.reason_changed_at or now, state.reason_set_by, state.reason
            )
        )
    if _has_booted(before, after) and (before.is_out or is_persons):
        assert after.boot_time is not None  # noqa: S101 - `_has_booted` says so
        found.append(
            ExternalAct(
                ActKind.REBOOT,
                after.boot_time,
                "",
                f"{state.name} booted while it was out of service",
            )
        )
    if before.is_out and not after.is_out and before.owner is not Owner.NOBODY:
        found.append(
            ExternalAct(
                ActKind.RESUME,
                now,
                "",
                f"{state.name} takes jobs again; it was out: {before.reason}",
            )
        )
    return found


def _has_booted(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    return (
        before.boot_time is not None
        and after.boot_time is not None
        and after.boot_time > before.boot_time
    )
