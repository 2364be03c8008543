"""What has happened in a play, kept beside the product's own rows: people's words, the product's
acts, and what was allowed when a turn began."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from runbooks.models import Mode
from runbooks.slurm.protocol import NodeState
from tests.simulation.armings import ACTING, Terms, list_modes

_FAILING = frozenset({"FAIL", "FAILING"})
_OUT = _FAILING | {"DRAIN", "DOWN", "ERROR", "NOT_RESPONDING"}


class Broken(BaseException):
    """An invariant does not hold. No `except Exception` of the product takes it."""


@dataclass
class Word:
    """What a person said of a node last, and still means. `is_seen`: the product has looked at all
    nodes since; `is_hidden`: Slurm has written a reason of its own over it; `is_fail`: it is State=FAIL
    with the reason that stood there, so that the state alone is theirs."""

    text: str
    said_at: datetime
    is_seen: bool = False
    is_hidden: bool = False
    is_fail: bool = False

    def stands_in(self, state: NodeState) -> bool:
        """By Slurm's own words alone, not by what the product makes of them."""
        shown = {state.base, *state.flags}
        if self.is_fail:
            return bool(shown & _FAILING) and self.text in state.reason
        is_told = self.is_hidden or self.text in state.reason or "ask bob" in state.reason
        return bool(shown & _OUT) and is_told


@dataclass(frozen=True)
class TurnView:
    """What stood when a worker began its turn. `step`: which it takes; `fence`: that of its lease;
    `changes`: how often people had changed what is allowed; `in_partition`: nodes that jobs may
    have; `aside`: those in quarantine; `busy`: jobs on nodes that share a transceiver."""

    run_id: int
    runbook: str
    fence: int
    incident_id: int
    node: str
    step: str
    fault_type: str
    out: frozenset[str]
    claimed: frozenset[str]
    needed: int
    queued: int
    ill: frozenset[str]
    changes: int
    is_breaker_open: bool
    begun_at: datetime
    in_partition: frozenset[str]
    aside: frozenset[str]
    busy: frozenset[str]


@dataclass(frozen=True)
class Act:
    """A command of the product that changes a node. `is_raced`: a person spoke between its last look
    and the command."""

    at: datetime
    verb: str
    node: str
    reason: str
    before: NodeState
    after: NodeState
    view: TurnView | None
    is_raced: bool = False


@dataclass(frozen=True)
class TakenBack:
    """A person has resumed a node, and with that cancelled a reboot of ours. `left`: as it then
    stands, with the reason of before."""

    at: datetime
    left: NodeState


@dataclass
class Record:
    """Times are the play's. `resumed` holds, by node, reasons under which a person has put it back
    in service; `awaited_boots` how often it had booted when a person asked for a reboot that has
    not come yet, `persons_reboots` when they did; `ours_asked` when the product asked for one.
    `polled_at`: when a poll last saw a resource ill.
    `own_modes`: of runbooks that people have set alone since they set all of them to `mode`.
    `stops`: which of switch and file stop everything; `keeps_out`: which of them have nothing given
    back. `granted`: runs that a person let act; `approvers`: who approved that
    step of a run; `stand_ins`: for which node a spare stands in; `refusing`: nodes whose root refuses; `restarted_at`: when slurmctld last began;
    `attempted_at`: by run, when its step was last about to act."""

    words: dict[str, Word] = field(default_factory=dict)
    overwritten_at: dict[str, datetime] = field(default_factory=dict)
    resumed: dict[str, set[str]] = field(default_factory=dict)
    resumed_at: dict[str, datetime] = field(default_factory=dict)
    awaited_boots: dict[str, int] = field(default_factory=dict)
    persons_reboots: dict[str, datetime] = field(default_factory=dict)
    ours_asked: dict[str, datetime] = field(default_factory=dict)
    taken_back: dict[str, TakenBack] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    own_reasons: set[str] = field(default_factory=set)
    sick: set[str] = field(default_factory=set)
    maintained: set[str] = field(default_factory=set)
    stops: set[str] = field(default_factory=set)
    keeps_out: set[str] = field(default_factory=set)
    mode: Mode = Mode.ARMED
    own_modes: dict[str, Mode] = field(default_factory=dict)
    armings: list[Terms] = field(default_factory=list)
    granted: set[int] = field(default_factory=set)
    approvers: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    decommissioned: set[str] = field(default_factory=set)
    stand_ins: dict[str, str] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)
    restarted_at: datetime | None = None
    attempted_at: dict[int, datetime] = field(default_factory=dict)
    needed: int = 0
    # How often what a waiting job needs was set.
    queued: int = 0
    changes: int = 0
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    told_critical: dict[str, datetime] = field(default_factory=dict)
    polled_at: dict[str, datetime] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    aborted_runs: set[int] = field(default_factory=set)
    # Incidents whose repair had failed when a person who has Kintsugi leave put the node back.
    given_up: set[int] = field(default_factory=set)
    started_runs: set[int] = field(default_factory=set)
    dropped_since: dict[str, datetime] = field(default_factory=dict)
    alone_since: dict[int, datetime] = field(default_factory=dict)
    untold_since: dict[int, datetime] = field(default_factory=dict)
    apart_since: dict[str, datetime] = field(default_factory=dict)

    @property
    def is_stopped(self) -> bool:
        return bool(self.stops)

    def may_act(self, at: datetime) -> bool:
        """Every runbook may, everywhere."""
        lent = {terms.mode for terms in self.armings if terms.is_in_force(at)}
        return {self.mode, *self.own_modes.values(), *lent} <= set(ACTING)

    def get_mode(self, runbook: str) -> Mode:
        """Its own."""
        return self.own_modes.get(runbook, self.mode)

    def list_modes(self, act: Act) -> set[Mode]:
        """How far the runbook of its run might go there when the turn began or the act was made."""
        view = act.view
        assert view is not None
        own, found = self.get_mode(view.runbook), set()
        for at in (view.begun_at, act.at):
            covering = [terms for terms in self.armings if terms.covers(view.runbook, act.node, at)]
            found |= list_modes(own, covering)
        return found

    def get_word(self, node: str) -> Word | None:
        return self.words.get(node)

    def list_reboots(self, node: str) -> list[Act]:
        return [act for act in self.acts if act.verb == "reboot" and act.node == node]
