"""The contract of steps: look first, then start; never wait, never sleep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from detectors.detector import Detector, Shell, Target
from detectors.faults import FaultEvent
from runbooks.slurm import Slurm


class Effect(StrEnum):
    """What a step does to the world; guards are asked again before each disruptive one."""

    READ_ONLY = "read_only"
    REVERSIBLE = "reversible"
    DISRUPTIVE = "disruptive"


@dataclass(frozen=True)
class Done:
    text: str


@dataclass(frozen=True)
class Wait:
    """Look again after `again_in`; `text` says for people what is being waited for."""

    text: str
    again_in: timedelta


@dataclass(frozen=True)
class Failed:
    """Stop, leave the node as it is, ask a person. `ask` is what that person can do."""

    text: str
    ask: str = ""


Result = Done | Wait | Failed


@dataclass(frozen=True)
class World:
    """The doors through which steps act and look; built once per process from the settings.

    `detectors` are run by Verify; `policy` holds the operator's limits (runbooks.policy.Policy).
    """

    slurm: Slurm
    shell: Shell
    detectors: Sequence[Detector]
    policy: Any


@dataclass
class Context:
    """What a step may see: the run's stored facts (kept when changed), its node, the world, the time.

    `judge` turns one poll of the node by all detectors into events; `target` is the node over SSH.
    """

    run_id: int
    incident_id: int
    fault_type: str
    node: str
    target: Target
    facts: dict[str, Any]
    world: World
    now: datetime
    events: list[FaultEvent]


class Step(Protocol):
    name: ClassVar[str]
    effect: ClassVar[Effect]

    def is_done(self, ctx: Context) -> bool: ...

    def run(self, ctx: Context) -> Result: ...
