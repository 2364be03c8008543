"""What a person is shown before giving leave for a step, and what of it has moved since. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from detectors.slurm.output import NodeState
from runbooks.guards.verdicts import Act

# What these do ends the jobs on the node, or disturbs them; a drain harms none that runs there.
_HARMS_JOBS = frozenset({Act.REQUEUE, Act.REBOOT, Act.RESET_GPU, Act.POWER_CYCLE})
_OUT_OF_HAND = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN"})


@dataclass(frozen=True)
class ApprovalSnapshot:
    """The state that a leave is tied to. `power` is empty where it plays no part; `nodes_out` is of
    the whole fleet."""

    node: str
    service: str
    reason: str
    jobs: tuple[str, ...]
    faults: tuple[str, ...]
    power: str
    nodes_out: int

    def as_row(self) -> dict[str, Any]:
        """As it stands in `Approval.shown`."""
        return {**asdict(self), "jobs": list(self.jobs), "faults": list(self.faults)}


def of_row(row: Mapping[str, Any]) -> ApprovalSnapshot:
    return ApprovalSnapshot(**{**row, "jobs": tuple(row["jobs"]), "faults": tuple(row["faults"])})


def service(state: NodeState) -> str:
    """Whether the node serves jobs, in a word or two: jobs that come and go do not change it."""
    if state.base in _OUT_OF_HAND:
        return f"{state.base.lower()}, drained" if state.is_draining else state.base.lower()
    if state.is_rebooting:
        return "rebooting"
    if state.is_draining:
        return "drained"
    return "not responding" if "NOT_RESPONDING" in state.flags else "in service"


def mark(number: int, seen: Mapping[str, Any]) -> str:
    """Names one question with the state that it showed: a form that holds another one is stale."""
    text = json.dumps([number, seen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def moved(shown: ApprovalSnapshot, found: ApprovalSnapshot, act: Act | None) -> list[str]:
    """What of the state is not as it was shown, as the ends of sentences. Less harm than was shown
    moves nothing."""
    told = []
    if shown.service != found.service:
        told.append(f"{found.node} was {shown.service} and is {found.service}")
    if shown.reason != found.reason:
        told.append(f'its reason was "{shown.reason}" and is "{found.reason}"')
    came = _added(shown.jobs, found.jobs)
    if came and act in _HARMS_JOBS:
        told.append(f"{_listed(came)} came to run there")
    told += [f"{one} came" for one in _added(shown.faults, found.faults)]
    told += [f"{one} is gone" for one in _added(found.faults, shown.faults)]
    if shown.power != found.power:
        told.append(
            f"its power was {shown.power or 'not asked'} and is {found.power or 'not asked'}"
        )
    if found.nodes_out > shown.nodes_out:
        told.append(f"{shown.nodes_out} nodes were out and {found.nodes_out} are")
    return told


def _added(before: Collection[str], after: Collection[str]) -> list[str]:
    return sorted(set(after) - set(before))


def _listed(jobs: Collection[str]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(jobs)
