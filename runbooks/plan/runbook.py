"""A runbook as a value: what it is for, its place on the ladder, its steps with their parameters,
its limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from detectors.faults import Action, Component, Fitness, Recovery, Severity
from runbooks.plan.limits import NO_LIMITS, Limits
from runbooks.step import Step

# More than any fault type has letters.
_LONGEST_NAME = 1000


@dataclass(frozen=True)
class Trouble:
    """What an incident shows of itself when a runbook is looked for: the fault that calls for the
    action, and more."""

    fault_type: str
    action: Action
    component: Component
    severity: Severity
    is_lemon: bool = False
    fitness: Fitness = Fitness.FIT


@dataclass(frozen=True)
class Purpose:
    """One entry of `for`: all that is said must hold; what is empty holds for everything. Faults
    are globs.

    `lemons`: only nodes that break again and again.
    """

    faults: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    actions: frozenset[Action] = frozenset()
    components: frozenset[Component] = frozenset()
    severities: frozenset[Severity] = frozenset()
    fitness: frozenset[Fitness] = frozenset()
    lemons: bool = False

    def fits(self, trouble: Trouble) -> bool:
        if self.faults and not _is_match(trouble.fault_type, self.faults):
            return False
        if _is_match(trouble.fault_type, self.but_not):
            return False
        if self.actions and trouble.action not in self.actions:
            return False
        if self.components and trouble.component not in self.components:
            return False
        if self.severities and trouble.severity not in self.severities:
            return False
        if self.fitness and trouble.fitness not in self.fitness:
            return False
        return trouble.is_lemon or not self.lemons

    def compute_closeness(self, trouble: Trouble) -> int:
        """How closely the fault is named: the letters of the longest glob that fits, 0 where none
        is given.

        What is for lemons alone is closer than any name of a fault.
        """
        fitting = [glob for glob in self.faults if fnmatchcase(trouble.fault_type, glob)]
        longest = max((len(glob) for glob in fitting), default=0)
        return longest + _LONGEST_NAME if self.lemons else longest


@dataclass(frozen=True)
class Planned:
    """A step with its parameters, read and complete. `needs_approval`: a person gives leave each
    time before it."""

    step: Step
    params: Mapping[str, Any]
    given: Mapping[str, Any]
    needs_approval: bool = False

    def as_row(self) -> dict[str, Any]:
        """As it stands in `Run.plan`."""
        row: dict[str, Any] = {"step": self.step.name, "with": dict(self.given)}
        return row | {"approval": True} if self.needs_approval else row


@dataclass(frozen=True)
class Runbook:
    """`title` and `meaning` are for people. `version` is what a run keeps: the declared number and
    the file's hash.

    `rung`: the cure that it is, None for one that stands beside the ladder. `origin`: the file that
    it came from.
    """

    name: str
    version: str
    title: str
    meaning: str
    steps: tuple[Planned, ...]
    purposes: tuple[Purpose, ...] = ()
    rung: Recovery | None = None
    limits: Limits = field(default=NO_LIMITS)
    number: int = 1
    origin: str = ""
    is_sites_own: bool = False

    @property
    def needs_node(self) -> bool:
        """Whether any step acts on a node; one that only watches or asks can be about a switch as
        well."""
        return any(planned.step.needs_node for planned in self.steps)

    def fits(self, trouble: Trouble) -> bool:
        return any(purpose.fits(trouble) for purpose in self.purposes)

    def compute_closeness(self, trouble: Trouble) -> int:
        """How closely it names the trouble's fault type, of the entries that fit."""
        fitting = [purpose for purpose in self.purposes if purpose.fits(trouble)]
        return max((purpose.compute_closeness(trouble) for purpose in fitting), default=0)


def _is_match(fault_type: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(fault_type, glob) for glob in globs)
