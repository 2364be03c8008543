"""The only file that speaks Slurm: the Protocol, and the client that drives scontrol, sinfo and squeue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class SlurmError(Exception):
    """Slurm did not do, or did not answer, what was asked: the command, its status, its words."""


@dataclass(frozen=True)
class NodeState:
    """One node as sinfo and scontrol show it. `base` is IDLE, ALLOCATED, MIXED, DOWN ...; `flags` hold
    DRAIN, REBOOT_ISSUED, REBOOT_REQUESTED, NOT_RESPONDING, COMPLETING ... in Slurm's own words, upper case."""

    name: str
    base: str
    flags: frozenset[str]
    reason: str
    reason_set_by: str
    reason_changed_at: datetime | None
    boot_time: datetime | None
    partitions: tuple[str, ...]

    @property
    def is_drained(self) -> bool:
        """DRAIN is set and no job is left on the node."""
        return "DRAIN" in self.flags and self.base in {"IDLE", "DOWN"} and "COMPLETING" not in self.flags

    @property
    def is_out(self) -> bool:
        """Takes no new jobs, whoever decided so."""
        return "DRAIN" in self.flags or self.base == "DOWN" or "NOT_RESPONDING" in self.flags


@dataclass(frozen=True)
class Job:
    job_id: str
    user: str
    name: str
    state: str
    nodes: tuple[str, ...]
    requeue: bool


class Slurm(Protocol):
    """Slurm's own verbs. Every method raises SlurmError; none returns before the state was read back."""

    def config(self) -> Mapping[str, str]: ...

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]: ...

    def jobs(self, node: str) -> list[Job]: ...

    def drain(self, node: str, reason: str) -> None: ...

    def resume(self, node: str) -> None: ...

    def reboot(self, node: str) -> None: ...

    def requeue(self, job_id: str) -> None: ...
