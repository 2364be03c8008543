"""What has changed of Slurm's nodes between two looks. Pure.

A node in service that begins or ends a job, or is planned for one, is in the same state: only what
it shows is another word. Out of service, whether jobs are left on it is a state of its own
(`draining`, `drained`). Python 3.9, standard library alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from detectors.slurm import drain_reasons
from detectors.slurm.output import NodeState

# Of the columns that hold them; a name that is longer is no node of the inventory.
LONGEST_NAME = 64
_LONGEST_TEXT = 255
_LONGEST_USER = 64
_LOAD_FLAGS = frozenset({"COMPLETING", "PLANNED"})
_MOST_GPUS = 32_767


@dataclass(frozen=True)
class SeenState:
    """One node as one look saw it, as it is kept. Times are UTC; `gpus` as its slurmd registered
    them.

    `condition` is what makes it another state: the words of Slurm without what only its jobs
    change.
    """

    state: str
    condition: str
    is_serving: bool
    holder: str
    reason: str
    reason_set_by: str
    reason_set_at: Optional[datetime]
    resume_after: Optional[datetime]
    boot_time: Optional[datetime]
    slurmd_started_at: Optional[datetime]
    gpus: int

    @property
    def identity(self) -> tuple[object, ...]:
        """Two looks that give the same saw the same state."""
        of_reason = (self.reason, self.reason_set_by, self.reason_set_at, self.resume_after)
        return (self.condition, *of_reason, self.boot_time, self.slurmd_started_at, self.gpus)


@dataclass(frozen=True)
class Changes:
    """`began` of nodes in a state that they were not in at the look before, `ended` those whose
    state was another one or that Slurm knows no more, `reworded` those that are in the same state
    and show it in other words."""

    began: Mapping[str, SeenState]
    ended: frozenset[str]
    reworded: Mapping[str, SeenState]


def observe(node: NodeState, slurm_user: str) -> SeenState:
    """One node as it is kept."""
    state = _clean(format_state(node), _LONGEST_TEXT)
    is_serving = node.is_serving
    condition = get_condition(state, is_serving=is_serving)
    holder = _clean(drain_reasons.find_holder(node, slurm_user), _LONGEST_USER)
    reason = _clean(node.reason, _LONGEST_TEXT)
    reason_set_by = _clean(node.reason_set_by, _LONGEST_USER)
    gpus = min(node.gpus_registered, _MOST_GPUS)
    return SeenState(
        state=state,
        condition=condition,
        is_serving=is_serving,
        holder=holder,
        reason=reason,
        reason_set_by=reason_set_by,
        reason_set_at=node.reason_changed_at,
        resume_after=node.resume_after,
        boot_time=node.boot_time,
        slurmd_started_at=node.slurmd_started_at,
        gpus=gpus,
    )


def observe_all(nodes: Mapping[str, NodeState], slurm_user: str) -> dict[str, SeenState]:
    """By name, without those whose name no inventory holds."""
    fitting = (name for name in nodes if len(name) <= LONGEST_NAME and "\0" not in name)
    return {name: observe(nodes[name], slurm_user) for name in fitting}


def _clean(text: str, longest: int) -> str:
    """PostgreSQL holds no NUL."""
    return text.replace("\0", "")[:longest]


def format_state(node: NodeState) -> str:
    """`IDLE+DRAIN`: base and flags, in an order of their own."""
    return "+".join((node.base, *sorted(node.flags)))


def get_condition(state: str, *, is_serving: bool) -> str:
    """The state, as `format_state` writes it, without what only its jobs change."""
    base, *flags = state.split("+")
    lasting = [flag for flag in flags if flag not in _LOAD_FLAGS]
    if is_serving:
        return "+".join(("UP", *lasting))
    is_busy = base in ("ALLOCATED", "MIXED") or "COMPLETING" in flags
    word = "BUSY" if is_busy and base != "DOWN" else base
    return "+".join((word, *lasting))


def compare(before: Mapping[str, SeenState], after: Mapping[str, SeenState]) -> Changes:
    """From one whole look to the next; whoever has no whole answer does not compare."""
    began: dict[str, SeenState] = {}
    reworded: dict[str, SeenState] = {}
    for name, seen in after.items():
        known = before.get(name)
        if known is None or known.identity != seen.identity:
            began[name] = seen
        elif known != seen:
            reworded[name] = seen
    changed = began.keys() & before.keys()
    gone = before.keys() - after.keys()
    return Changes(began, frozenset(changed | gone), reworded)


def make_digest(nodes: Mapping[str, SeenState]) -> str:
    """The same for two looks that showed the same."""
    digest = hashlib.sha256()
    for name in sorted(nodes):
        seen = nodes[name]
        digest.update(
            repr((name, seen.state, seen.is_serving, seen.holder, seen.identity)).encode()
        )
    return digest.hexdigest()
