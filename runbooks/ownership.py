"""Whose a node's drain is, read from its reason. Pure: a person's drain is never overwritten and never undone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from detectors.slurm_output import NodeState

_OURS = "kintsugi:"
# What slurmctld and slurmd write themselves (Slurm 22.05: src/slurmctld/node_mgr.c, src/slurmd/slurmd/req.c).
_BY_SLURM = re.compile(
    r"Not responding|Kill task failed|Prolog error|Epilog error|batch job complete failure|Duplicate jobid"
    r"|Node unexpectedly rebooted|reboot (?:issued|complete|timed out)|gres/gpu count .*"
    r"|Low (?:RealMemory|TmpDisk|CPUs).*|Low socket\*core.*"
)
_SLURM_USERS = frozenset({"", "root", "slurm"})
_REBOOT_ISSUED = re.compile(r" : reboot (?:issued|complete|timed out)")


class Owner(StrEnum):
    NOBODY = "nobody"
    THIS_INCIDENT = "this_incident"
    OTHER_INCIDENT = "other_incident"
    SLURM = "slurm"
    PERSON = "person"


def reason(incident_id: int, fault_type: str, text: str) -> str:
    """What stands on the node: `kintsugi:<incident> <fault type>: <text>`."""
    return f"{_prefix(incident_id)}{fault_type}: {text}"


def owner(state: NodeState, incident_id: int) -> Owner:
    """Who took the node out. A reason left on a node that takes jobs belongs to nobody."""
    if state.reason.startswith(_prefix(incident_id)):
        return Owner.THIS_INCIDENT
    if not state.is_draining and state.base != "DOWN":
        return Owner.NOBODY
    if state.reason.startswith(_OURS):
        return Owner.OTHER_INCIDENT
    if not state.reason:
        return Owner.NOBODY
    parts = [part for part in state.reason.split(" : ") if part]
    is_slurms = state.reason_set_by in _SLURM_USERS and all(_BY_SLURM.fullmatch(part) for part in parts)
    return Owner.SLURM if is_slurms else Owner.PERSON


def incident_of(state: NodeState) -> int | None:
    """The incident that a reason of ours names."""
    found = re.match(rf"{_OURS}(\d+) ", state.reason)
    return int(found[1]) if found else None


def says_reboot_issued(state: NodeState) -> bool:
    """Slurm appends to the reason when it sends the reboot; our drain wrote the reason anew."""
    return _REBOOT_ISSUED.search(state.reason) is not None


@dataclass(frozen=True)
class Held:
    """Drained, and ours."""


@dataclass(frozen=True)
class Dropped:
    """Slurm let go of our drain, as it does past ResumeTimeout: drain again before anything else."""

    text: str


@dataclass(frozen=True)
class TakenOver:
    """A person changed the node since we drained it: respect that. `is_resumed`: it takes jobs again."""

    text: str
    is_resumed: bool


def hold(state: NodeState, incident_id: int) -> Held | Dropped | TakenOver:
    """What became of the drain that this incident's run put on the node."""
    whose = owner(state, incident_id)
    if whose is Owner.THIS_INCIDENT:
        return Held() if state.is_draining else Dropped(f"Slurm dropped the drain of {state.name}")
    if state.base == "DOWN" and not state.is_draining and whose in (Owner.SLURM, Owner.NOBODY):
        return Dropped(f"Slurm set {state.name} down and dropped its drain")
    if not state.is_draining and state.base != "DOWN":
        return TakenOver(f"{state.name} was resumed by someone else", is_resumed=True)
    who = state.reason_set_by or "someone else"
    return TakenOver(f'{state.name} now has another reason, by {who}: "{state.reason}"', is_resumed=False)


def _prefix(incident_id: int) -> str:
    return f"{_OURS}{incident_id} "
