"""Armings in a play: administrators widen and narrow where a runbook may act, and take that back.

What is allowed where is kept here beside the product's own rows, by the terms that people gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations
from typing import TYPE_CHECKING

from runbooks import services
from runbooks.models import Arming, Mode, PreflightReport
from runbooks.outcomes import Controlled
from runbooks.people.controls import ArmingDraft

if TYPE_CHECKING:
    from tests.simulation.play import Play

ACTING = (Mode.ARMED, Mode.APPROVAL)
_MODES = tuple(Mode)
# Some end amid a repair, most outlast a play.
_LASTS = tuple(timedelta(minutes=minutes) for minutes in (1, 3, 60, 60))
_RUNS = (None, None, 1, 2)


@dataclass
class Terms:
    """What a person has said. `acted`: runs that took a node out by it alone."""

    number: int
    runbook: str
    mode: Mode
    nodes: frozenset[str]
    until: datetime
    runs: int | None
    ended_at: datetime | None = None
    acted: set[int] = field(default_factory=set)

    def is_in_force(self, at: datetime) -> bool:
        return at < self.until and (self.ended_at is None or at < self.ended_at)

    def covers(self, runbook: str, node: str, at: datetime) -> bool:
        return self.runbook == runbook and node in self.nodes and self.is_in_force(at)


def get_strictest(own: Mode, covering: Iterable[Terms]) -> Mode:
    """An arming stands in the place of the runbook's own mode, unless that is off."""
    modes = [terms.mode for terms in covering]
    return min(modes, key=_MODES.index) if modes and own is not Mode.OFF else own


def list_modes(own: Mode, covering: Sequence[Terms]) -> set[Mode]:
    """Each that may count there: one that is for a number of runs may be used up."""
    limited = [terms for terms in covering if terms.runs is not None]
    others = [terms for terms in covering if terms.runs is None]
    modes = set()
    for count in range(len(limited) + 1):
        for left in combinations(limited, count):
            modes.add(get_strictest(own, (*others, *left)))
    return modes


class Armers:
    """Administrators who arm runbooks here and there."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {"arm": self.arm, "disarm": self.disarm}

    def begin_with_few(self) -> None:
        """The first repair is in shadow, and may act on some nodes."""
        play, runbook = self.play, self.play.runbooks[0]
        play.site.set_mode(Mode.SHADOW, runbook)
        play.record.own_modes[runbook] = Mode.SHADOW
        play.note("bob", f"sets {runbook} to {Mode.SHADOW}")
        self._arm(runbook, (Mode.ARMED, Mode.ARMED, Mode.APPROVAL))

    def arm(self) -> None:
        """Further than the runbook's own mode, or less far."""
        runbook = self.play.dice.choice(self.play.runbooks)
        self._arm(runbook, (Mode.ARMED, Mode.ARMED, Mode.APPROVAL, Mode.SHADOW, Mode.OFF))

    def _arm(self, runbook: str, modes: Sequence[Mode]) -> None:
        """On one node, its pod, its partition or everywhere."""
        play = self.play
        node = play.choose_node()
        scope, place, nodes = play.dice.choice(
            (
                (Arming.Scope.NODES, node, {node}),
                (Arming.Scope.POD, play.pods[node], play.get_pod(node)),
                (Arming.Scope.PARTITION, "gpu", set(play.site.names)),
                (Arming.Scope.ALL, "", set(play.site.names)),
            )
        )
        mode = play.dice.choice(modes)
        until, runs = play.site.now + play.dice.choice(_LASTS), play.dice.choice(_RUNS)
        draft = ArmingDraft(runbook, mode, scope, place, until, "try it there", runs)
        # What it checks of Slurm's settings has tests of its own.
        PreflightReport.objects.create(at=play.site.now, by="worker", checks=[])
        outcome = services.begin_arming(draft, actor="bob", now=play.site.now, world=None)
        play.note(
            "bob", f"kintsugi arming add {runbook} {mode} {scope} {place}: {type(outcome).__name__}"
        )
        if not isinstance(outcome, Controlled):
            return
        number = Arming.objects.latest("pk").pk
        terms = Terms(number, runbook, mode, frozenset(nodes), until, runs)
        play.record.armings.append(terms)
        play.record.changes += 1

    def disarm(self) -> None:
        """The newest that is in force."""
        play = self.play
        standing = [terms for terms in play.record.armings if terms.is_in_force(play.site.now)]
        if not standing:
            return
        terms, now = standing[-1], play.site.now
        outcome = services.end_arming(terms.number, "seen enough", actor="bob", now=now)
        play.note("bob", f"kintsugi arming end {terms.number}: {type(outcome).__name__}")
        if isinstance(outcome, Controlled):
            terms.ended_at = now
            play.record.changes += 1

    def set_again(self) -> None:
        """Those that have stepped back by themselves, so that the play goes on."""
        for row in Arming.objects.exclude(stepped_back_at=None).filter(ended_at=None):
            (terms,) = (terms for terms in self.play.record.armings if terms.number == row.pk)
            row.mode, row.stepped_back_at, row.stepped_back_why = terms.mode, None, ""
            row.save(update_fields=["mode", "stepped_back_at", "stepped_back_why"])
            self.play.note("bob", f"sets arming {row.pk} to {terms.mode} again")
