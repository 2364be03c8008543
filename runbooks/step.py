"""The contract of steps: look first, then start; never wait, never sleep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Protocol

from detectors.detector import Detector, Shell, Target
from detectors.faults import Action, Recovery
from runbooks import parameters
from runbooks.guards.policy import Policy
from runbooks.guards.table import Act
from runbooks.power.protocol import NoPower, Power
from runbooks.slurm.ownership import Written
from runbooks.slurm.protocol import (
    NodeState,
    SlurmJob,
    SlurmReader,
    SlurmRefusal,
    SlurmWriter,
    check_unchanged,
)

LOOKS_ONLY = (
    "this process only looks (KINTSUGI_ACTS=no): acts are the runbook worker's, which has the keys"
    " for them (docs/deploy.md)"
)
_SHORTEST_LOOK = timedelta(seconds=2)


class StepEffect(StrEnum):
    """What a step does to the world."""

    READ_ONLY = "read_only"
    REVERSIBLE = "reversible"
    DISRUPTIVE = "disruptive"


@dataclass(frozen=True)
class EndedBoot:
    """A boot of the node that is over: ingest clears what a reboot clears."""

    boot_id: str
    booted_at: datetime


@dataclass(frozen=True)
class Reset:
    """GPUs that were reset, begun at `at`: ingest clears what a reset clears."""

    resources: tuple[str, ...]
    at: datetime


@dataclass(frozen=True)
class ActiveFault:
    """A fault that stands on the node, as the database has it. `action` is what it calls for;
    `is_believed`: no user of the node can have written what tells of it. `reporter`: the person who
    has told of it, where that is the best that is known."""

    fault_type: str
    resource: str
    last_seen_at: datetime
    action: Action = Action.NONE
    is_believed: bool = False
    reporter: str = ""
    qualifier: str = ""

    def __str__(self) -> str:
        return f"{self.fault_type} on {self.resource}"


@dataclass(frozen=True)
class Done:
    """Go on with the next step. `is_told`: it is worth a line in the timeline.

    `evidence` is what was seen, by what it is called: the end of a command's output, a report.
    Bounded by the step, and kept with the step's row. `cause` is the fault that the run is about
    from here on, where that is another one. `skips` are the steps, by name, that need not be made
    where they come right after this one.
    """

    text: str
    boot: EndedBoot | None = None
    is_told: bool = True
    evidence: Mapping[str, str] = field(default_factory=dict)
    reset: Reset | None = None
    cause: ActiveFault | None = None
    skips: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wait:
    """Look again after `again_in`; `text` says for people what is being waited for.

    `ask` is what a person is asked meanwhile. `is_told`: the timeline hears of it, once;
    `is_report`: each time. `kind` is the timeline entry's.
    """

    text: str
    again_in: timedelta
    ask: str = ""
    is_told: bool = False
    is_report: bool = False
    kind: str = "run_waiting"


@dataclass(frozen=True)
class Failed:
    """Stop, leave the node as it is, ask a person. `ask` is what that person can do."""

    text: str
    ask: str


@dataclass(frozen=True)
class NotCured:
    """What this runbook can do was done and has not healed the fault: the ladder's next rung is
    called for.

    The node stays drained by us. `ask` is for a person, where there is no further rung.
    """

    text: str
    ask: str
    evidence: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FollowingIncident:
    """Another incident of the run's node, for which a run that may act begins once this one has
    ended. `faults`: its active ones, by type, resource and qualifier."""

    number: int
    faults: frozenset[tuple[str, str, str]]


@dataclass(frozen=True)
class PassedOn:
    """The run's own fault is cured, and the node stays drained for another incident of it, whose
    run takes it over."""

    text: str
    incident: int


@dataclass(frozen=True)
class HandedOver:
    """This runbook's part is done as meant; the rest is a person's. The node stays as it is."""

    text: str
    ask: str


@dataclass(frozen=True)
class Back:
    """What the step before this one did is not so any more: it is made again."""

    text: str


@dataclass(frozen=True)
class Refuted:
    """What the run is for was looked for twice by what can see it, and is not there: the run ends,
    and its node is given back. `text` says so without a full stop."""

    text: str
    faults: Sequence[ActiveFault]


Result = Done | Wait | Failed | NotCured | PassedOn | HandedOver | Back


def _check_nothing() -> None:
    """Outside a run nobody else works on it."""


@dataclass(frozen=True)
class World:
    """The doors through which steps act and look; built once per process from the settings.

    `detectors` are run on the node by the steps that confirm and verify. `power` is main power by
    the management controllers. `writer` acts through Slurm: a process that only looks has none.
    `check_before_act` raises where the run is no longer this worker's.
    """

    slurm: SlurmReader
    shell: Shell
    detectors: Sequence[Detector]
    policy: Policy
    power: Power = field(default_factory=NoPower)
    writer: SlurmWriter | None = None
    check_before_act: Callable[[], None] = _check_nothing

    @property
    def slurm_writer(self) -> SlurmWriter:
        """Raises SlurmRefusal in a process that only looks."""
        if self.writer is None:
            raise SlurmRefusal(LOOKS_ONLY)
        return self.writer

    def with_check(self, check: Callable[[], None]) -> World:
        """The same, whose acts call `check` between the last look and the act."""
        writer = self.writer.with_check(check) if self.writer is not None else None
        return replace(self, writer=writer, check_before_act=check)

    def check_unchanged(self, node: str, as_seen: NodeState) -> None:
        """Looks once more, directly before an act by another way than Slurm. Raises NodeChanged
        where somebody has said or done something to the node since, and what `check_before_act`
        raises."""
        found = self.slurm.read_nodes((node,))[node]
        check_unchanged(node, as_seen, found)
        self.check_before_act()


@dataclass(frozen=True)
class Parameter:
    """A value that a runbook may give a step. `read` makes it of what YAML holds, and raises
    ValueError or TypeError.

    `expected` ends the sentence "... is wrong; expected ...". A step without a `default` for it
    needs it given.
    """

    read: Callable[[object], Any]
    expected: str
    default: Any = None
    is_needed: bool = False

    @classmethod
    def choice(cls, words: type[StrEnum], *, default: StrEnum) -> Parameter:
        return cls(parameters.build_choice_parser(words), parameters.format_choices(words), default)

    @classmethod
    def duration(cls, *, default: timedelta) -> Parameter:
        return cls(parameters.parse_duration, parameters.DURATION, default)

    @classmethod
    def names(cls) -> Parameter:
        return cls(parameters.parse_names, parameters.NAMES, ())

    @classmethod
    def positive(cls) -> Parameter:
        return cls(parameters.parse_positive, "a number above 0")

    @classmethod
    def whole_number(cls, least: int, most: int, *, default: int) -> Parameter:
        expected = f"a whole number from {least} to {most}"
        return cls(parameters.build_whole_number_parser(least, most), expected, default)


@dataclass
class Context:
    """What a step may see: its run's stored facts (kept when changed), its node, the world, the
    time.

    `resource` is what the fault is on; `state` is the node as Slurm showed it a moment ago;
    `attempted_at` is the time of an attempt at this step of which the outcome is not known;
    `known_boot_id` is the inventory's; `may_adopt` says whether a drain of another incident may be
    taken over. `params` are the step's parameters, read and complete; `key` names this step of this
    run for ever: what a step leaves in the world under it is started once. What only some steps
    want to know is looked up when they ask: most turns wait, and ask for nothing.
    """

    run_id: int
    incident_id: int
    fault_type: str
    resource: str
    node: str
    find_target: Callable[[], Target]
    state: NodeState
    facts: dict[str, Any]
    world: World
    now: datetime
    attempted_at: datetime | None = None
    known_boot_id: str = ""
    may_adopt: Callable[[], bool] = lambda: True
    find_following: Callable[[], Sequence[FollowingIncident]] = tuple
    find_active_faults: Callable[[], Sequence[ActiveFault]] = tuple
    find_members: Callable[[], Sequence[ActiveFault]] = tuple
    find_maintenance: Callable[[], str] = str
    find_written: Callable[[int], Sequence[Written]] = lambda incident: ()
    find_persons_reason: Callable[[], str] = str
    find_tag: Callable[[], str] = str
    explain_silence: Callable[[], str] = str
    find_unusable: Callable[[], str] = str
    params: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""

    @cached_property
    def target(self) -> Target:
        """How the node is reached, and what should be found on it."""
        return self.find_target()

    @cached_property
    def jobs(self) -> Sequence[SlurmJob]:
        """Slurm's jobs on the node, asked for once a turn. Who is about to act asks anew."""
        return self.world.slurm.list_jobs(self.node)

    @cached_property
    def active_faults(self) -> Sequence[ActiveFault]:
        """The faults that stand on the node."""
        return self.find_active_faults()

    @cached_property
    def members(self) -> Sequence[ActiveFault]:
        """Those of them that are the incident's: its root first, then what calls for most."""
        return self.find_members()

    @cached_property
    def maintenance(self) -> str:
        """The maintenance that the node is under, as a sentence; empty where nobody works on it."""
        return self.find_maintenance()

    @cached_property
    def unusable(self) -> str:
        """What is seen on the node right now and leaves it of no use to any job; empty where
        nothing is. Looked for once a turn, over SSH."""
        return self.find_unusable()


class Step(Protocol):
    """`name` is its name in the library. `plan` completes "Kintsugi would ..."; `{node}` is filled
    in.

    `act` is what the guards are asked for, None for a step they need not be asked for. `settles_in`
    is how long an attempt of unknown outcome is watched before it is taken not to have happened.
    `needs_hold`: the node must still be drained by us; of a step without an `act`, or a swap, that
    does not need it, while the run has drained the node. `recovery`: the rung of the ladder that
    this step is; when the run succeeds, what the incident was cured by. `parameters`: what a
    runbook may give it. `needs_approval`: a person approves it each time. `needs_node`: it looks at
    or acts on a node of Slurm; a runbook of steps that do not can be about a switch as well.
    `finishes`: what it has begun is finished before the run may be withdrawn, such as giving power
    back. `touches_node`: it does something on the node though the guards need not be asked: like
    what has an `act`, it is not begun while people work there.
    """

    name: ClassVar[str]
    plan: ClassVar[str]
    effect: ClassVar[StepEffect]
    act: ClassVar[Act | None]
    settles_in: ClassVar[timedelta]
    needs_hold: ClassVar[bool]
    recovery: ClassVar[Recovery | None]
    parameters: ClassVar[Mapping[str, Parameter]]
    needs_approval: ClassVar[bool]
    needs_node: ClassVar[bool]
    finishes: ClassVar[bool]
    touches_node: ClassVar[bool]

    def find_done(self, ctx: Context) -> Done | None:
        """Look: what makes it done already, or None."""
        ...

    def find_obstacle(self, ctx: Context) -> Wait | Failed | NotCured | PassedOn | None:
        """Look: what stands in the way, or None. NotCured: this rung cannot be tried here, or has
        ended badly."""
        ...

    def carry_on(self, ctx: Context) -> Result | None:
        """Go on with what an attempt has begun, for a step of several acts: asked before guards and
        people, who have given leave to begin. None: nothing is seen of the attempt, or the step has
        no more to do than `run`.
        """
        ...

    def run(self, ctx: Context) -> Result | Refuted:
        """Start it. What it changes in `ctx.facts` is stored with the result."""
        ...


class Base:
    """What most steps have in common; not a contract, only their defaults."""

    effect: ClassVar[StepEffect] = StepEffect.READ_ONLY
    act: ClassVar[Act | None] = None
    settles_in: ClassVar[timedelta] = timedelta(0)
    needs_hold: ClassVar[bool] = True
    recovery: ClassVar[Recovery | None] = None
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    needs_approval: ClassVar[bool] = False
    needs_node: ClassVar[bool] = True
    finishes: ClassVar[bool] = False
    touches_node: ClassVar[bool] = False

    def find_done(self, ctx: Context) -> Done | None:
        return None

    def find_obstacle(self, ctx: Context) -> Wait | Failed | NotCured | PassedOn | None:
        return None

    def carry_on(self, ctx: Context) -> Result | None:
        return None


def get_backoff(since: datetime | None, now: datetime, *, longest: timedelta) -> timedelta:
    """How long until the next look at something that others end: a tenth of the time waited so
    far."""
    waited = now - since if since is not None else timedelta(0)
    return min(longest, max(_SHORTEST_LOOK, waited / 10))


def format_iso(at: datetime) -> str:
    """A time as it is stored in facts."""
    return at.isoformat()


def get_fact_time(ctx: Context, fact: str) -> datetime | None:
    """A time from the facts, None when it was never stored."""
    text = ctx.facts.get(fact)
    return datetime.fromisoformat(text) if text else None
