"""What a site may arm next by its own record: the next rung where a runbook is armed, or a wider
scope, once the share of wrong drains is shown to be small. Reads only; a person arms.

The record is what was done by the present arming since it began or last went down a rung; in
shadow, its dry runs there. A drain whose node has not shown what was there stands in no record.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from incidents.models import Node
from runbooks.fleet import armings, fleet, step_backs
from runbooks.library import library
from runbooks.models import Arming, Mode, Run, RunbookMode
from runbooks.shadow import trials
from runbooks.shadow.episodes import Episode, load_episodes
from runbooks.shadow.report import Share, compute_report, compute_share

# As the dry-run report, where nobody asks for another time.
_PERIOD = timedelta(days=30)
_HIGHER = {Mode.SHADOW: Mode.APPROVAL, Mode.APPROVAL: Mode.ARMED}


@dataclass(frozen=True)
class Proposal:
    """`present` and `next`: how far the runbook goes now, and would then. `missing`: so many more
    drains, none of them wrong, and the record allows it. `most`: the limit that it has to stay
    below. `arming`: whose record it is; None: of the runbook in shadow."""

    runbook: str
    arming: int | None
    present: str
    next: str
    command: str
    record: Share
    most: float
    missing: int

    @property
    def is_allowed(self) -> bool:
        return self.missing == 0


def list_proposals(now: datetime, *, most: float) -> list[Proposal]:
    """One for each arming in force that can go on, and for each runbook in shadow without one."""
    nodes = list(Node.objects.inventoried())
    standing = armings.load_in_force(now)
    found = [_propose_after(arming, nodes, now, most) for arming in standing]
    armed = {arming.runbook for arming in standing}
    shadowed = _list_shadow_runbooks(now)
    episodes = _load_dry_runs(now) if shadowed - armed else []
    found += [_propose_first(name, episodes, most) for name in sorted(shadowed - armed)]
    return [proposal for proposal in found if proposal is not None]


def _list_shadow_runbooks(now: datetime) -> set[str]:
    """Those that take nodes out, and do nothing yet but write it down."""
    books = {name for name, book in library.load().items() if book.needs_node}
    own = fleet.load_modes(books, now).own
    return {name for name in books if own[name] is Mode.SHADOW}


def _load_dry_runs(now: datetime) -> list[Episode]:
    """Of 30 days, or since the runbook's own mode last went down a rung."""
    back = RunbookMode.objects.exclude(stepped_back_at=None)
    since = dict(back.values_list("runbook", "stepped_back_at"))
    episodes = load_episodes(now - _PERIOD, now)
    return [row for row in episodes if row.began_at >= (since.get(row.runbook) or row.began_at)]


def _propose_first(runbook: str, episodes: Collection[Episode], most: float) -> Proposal | None:
    """None where no dry run of it has taken a node out."""
    own = [episode for episode in episodes if episode.runbook == runbook]
    record = compute_report(own).well
    if not record.of:
        return None
    command = f"kintsugi arming add {runbook} approval --nodes NODES --for TIME --reason WHY"
    next_step = "approval on a few nodes"
    missing = trials.count_missing(record, most)
    return Proposal(runbook, None, "shadow", next_step, command, record, most, missing)


def _propose_after(
    arming: Arming, nodes: Sequence[Node], now: datetime, most: float
) -> Proposal | None:
    mode, scope = Mode(arming.mode), armings.format_scope(arming)
    if mode is Mode.OFF:
        return None
    record = _load_record(arming, nodes, now)
    wider = find_wider(arming, nodes) if mode is Mode.ARMED else arming
    if wider is None:
        next_step = "armed by its own mode, without an end"
        command = f"kintsugi mode set {arming.runbook} armed"
    else:
        next_mode = _HIGHER.get(mode, mode)
        next_step = f"{next_mode} on {armings.format_scope(wider)}"
        command = _format_command(arming, wider, next_mode)
    missing = trials.count_missing(record, most)
    present = f"{mode} on {scope}"
    return Proposal(arming.runbook, arming.pk, present, next_step, command, record, most, missing)


def find_wider(arming: Arming, nodes: Sequence[Node]) -> Arming | None:
    """The smallest place that holds all nodes of the arming, and more; all nodes, where no such
    place is. None where it is of all nodes already."""
    if arming.scope == Arming.Scope.ALL:
        return None
    covered = [node for node in nodes if armings.covers(arming, node)]
    places = [Arming(scope=scope, place=place) for scope, place in _list_common(covered)]
    wider = []
    for place in places:
        size = sum(armings.covers(place, node) for node in nodes)
        if size > len(covered):
            wider.append((size, place))
    if not wider:
        return Arming(scope=Arming.Scope.ALL)
    return min(wider, key=lambda pair: pair[0])[1]


def _list_common(nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """The places that all of these nodes are in."""
    racks, pods = {node.rack for node in nodes}, {node.pod for node in nodes}
    partitions = [frozenset(node.partitions) for node in nodes]
    common = frozenset.intersection(*partitions) if partitions else frozenset()
    if len(racks) == 1:
        yield from ((Arming.Scope.RACK, name) for name in racks if name)
    yield from ((Arming.Scope.PARTITION, name) for name in sorted(common))
    if len(pods) == 1:
        yield from ((Arming.Scope.POD, name) for name in pods if name)


def _load_record(arming: Arming, nodes: Sequence[Node], now: datetime) -> Share:
    since = arming.stepped_back_at or arming.set_at
    if arming.mode == Mode.SHADOW:
        names = {node.name for node in nodes if armings.covers(arming, node)}
        episodes = load_episodes(since, now, runbook=arming.runbook)
        return compute_report([row for row in episodes if row.node in names]).well
    runs = Run.objects.filter(**{f"facts__{armings.USED}": arming.pk}, claimed_at__gte=since)
    found = [step_backs.is_wrong(run) for run in runs.select_related("incident", "node")]
    return compute_share(found.count(True), len(found) - found.count(None))


def _format_command(arming: Arming, wider: Arming, mode: Mode) -> str:
    """A wider one of the same mode stands beside the other; one that goes further takes its
    place."""
    scope = wider.scope
    place = f"--{scope} {shlex.quote(wider.place)}" if scope != Arming.Scope.ALL else "--all"
    add = f"kintsugi arming add {arming.runbook} {mode} {place} --for TIME --reason WHY"
    if mode == arming.mode:
        return add
    return f"kintsugi arming end {arming.pk} --reason WHY && {add}"


def describe(proposal: Proposal) -> str:
    record, limit = proposal.record, f"{proposal.most:.0%}"
    known = (
        f"{proposal.runbook}, {proposal.present}: {record.count} of {record.of} drains whose node"
        f" showed what was there were wrong, {record.high:.1%} at most (the site takes {limit})."
    )
    if proposal.is_allowed:
        return f"{known} The next scope may be {proposal.next}: {proposal.command}"
    drains = "drain" if proposal.missing == 1 else "drains"
    return f"{known} {proposal.missing} more {drains}, none of them wrong, before {proposal.next}."
