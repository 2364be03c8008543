"""What a person is shown before giving leave for a step, and what of it has moved since. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from detectors.slurm.output import NodeState
from runbooks.guards.verdicts import Act

# What these do ends the jobs on the node, or disturbs them; a drain harms none that runs there.
_HARMS_JOBS = frozenset(
    {Act.REQUEUE, Act.RESTART_UNITS, Act.REBOOT, Act.RESET_GPU, Act.POWER_CYCLE}
)
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


def parse_snapshot(row: Mapping[str, Any]) -> ApprovalSnapshot:
    return ApprovalSnapshot(**{**row, "jobs": tuple(row["jobs"]), "faults": tuple(row["faults"])})


def format_service(state: NodeState) -> str:
    """Whether the node serves jobs, in a word or two: jobs that come and go do not change it."""
    if state.base in _OUT_OF_HAND:
        return f"{state.base.lower()}, drained" if state.is_draining else state.base.lower()
    if state.is_rebooting:
        return "rebooting"
    if state.is_draining:
        return "drained"
    return "not responding" if "NOT_RESPONDING" in state.flags else "in service"


def get_fingerprint(number: int, shown: Mapping[str, Any]) -> str:
    """Names one question with the state that it showed: a form that holds another one is stale."""
    text = json.dumps([number, shown], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_changes(before: ApprovalSnapshot, after: ApprovalSnapshot, act: Act | None) -> list[str]:
    """What of the state is not as it was shown, as the ends of sentences. Less harm than was shown
    changes nothing."""
    changes = []
    if before.service != after.service:
        changes.append(f"{after.node} was {before.service} and is {after.service}")
    if before.reason != after.reason:
        changes.append(f'its reason was "{before.reason}" and is "{after.reason}"')
    new_jobs = _get_added(before.jobs, after.jobs)
    if new_jobs and act in _HARMS_JOBS:
        changes.append(f"{_format_jobs(new_jobs)} came to run there")
    changes += [f"{fault} came" for fault in _get_added(before.faults, after.faults)]
    changes += [f"{fault} is gone" for fault in _get_added(after.faults, before.faults)]
    if before.power != after.power:
        power_before, power_after = before.power or "not asked", after.power or "not asked"
        changes.append(f"its power was {power_before} and is {power_after}")
    if after.nodes_out > before.nodes_out:
        changes.append(f"{before.nodes_out} nodes were out and {after.nodes_out} are")
    return changes


def list_changes_beside(
    before: ApprovalSnapshot, after: ApprovalSnapshot, act: Act | None
) -> list[str]:
    """As `list_changes`, without what a run under way changes itself (that its node is out, with
    its reason), and without how many others are out: the guards count those."""
    shown = replace(
        before,
        service=after.service,
        reason=after.reason,
        power=after.power,
        nodes_out=after.nodes_out,
    )
    return list_changes(shown, after, act)


def _get_added(before: Collection[str], after: Collection[str]) -> list[str]:
    return sorted(set(after) - set(before))


def _format_jobs(jobs: Collection[str]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(jobs)
