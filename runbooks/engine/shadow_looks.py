"""A run in shadow: what it would do is written down, and its node is looked at as if it could act.

The run ends at once. Until its window is over the node is then asked what a run that may act would
have found there: a fault that is denied is looked for once more, and who gave no answer is asked
again. The guards are asked until they would let the drain pass. Nothing is touched.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from incidents.state import transitions
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.engine import contexts, refutations, witness_check
from runbooks.engine import result as ending
from runbooks.errors import WorldError
from runbooks.fleet import fleet, guard_check
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table
from runbooks.guards.table import Act, Allowed, GuardRefused, Refusal
from runbooks.guards.verdicts import ROOM
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import Mode, Run
from runbooks.node import witnesses
from runbooks.node.witnesses import REFUTED_AFTER
from runbooks.shadow import episode_facts, external_changes
from runbooks.shadow.episode_facts import EpisodeFacts, FaultLook
from runbooks.slurm.protocol import SlurmError
from runbooks.step import Context, Done, Refuted, World
from runbooks.steps.confirm_on_node import NOT_REBOOTED, ConfirmOnNode

# As often as a run that may act asks again who gave no answer (our choice there).
_LOOK_AGAIN = timedelta(minutes=5)
# People have the node in hand: it says nothing of what Kintsugi would have done.
_HANDS = frozenset({Refusal.MAINTENANCE, Refusal.DECOMMISSIONED})


def write_down(run: Run, *, now: datetime, world: World) -> None:
    """The first look, and the end of the run."""
    steps = [planned.step for planned in library.load_plan(run.plan)]
    episode = EpisodeFacts()
    try:
        remark = _look(run, episode, now=now, world=world)
    except SlurmError as error:
        remark = f" Slurm cannot be looked at: {error}"
        episode.next_look_at = now + _LOOK_AGAIN
    episode_facts.store(run.facts, episode)
    ending.store_shadow(run, steps, remark=remark, now=now)


def look_again(run: Run, *, now: datetime, world: World) -> None:
    """One more look of a run that has ended, and a line where it says something new."""
    episode = episode_facts.load(run.facts)
    before, text = episode.look, ""
    try:
        is_over = State(run.incident.state) in CLOSED
        if not is_over:
            text = _look(run, episode, now=now, world=world).strip()
    except WorldError:
        episode.next_look_at = now + _LOOK_AGAIN
    is_new = episode.look is not before or episode.refuted_at == now
    if is_over or now >= run.started_at + world.policy.shadow_window:
        episode.next_look_at = None
    episode_facts.store(run.facts, episode)
    with transaction.atomic():
        if text and is_new:
            text = f"Shadow mode, run {run.pk}: {text}"
            transitions.record(run.incident_id, kind="run_note", text=text, now=now)
        lease.release(run, wake_at=episode.next_look_at)


def _look(run: Run, episode: EpisodeFacts, *, now: datetime, world: World) -> str:
    """What stands against the drain, and what the node shows, as sentences after a space."""
    is_first = not episode.has_looked
    snapshot = fleet.read_snapshot(world.slurm)
    episode.next_look_at = None
    if run.place not in snapshot.nodes:
        return f" Slurm knows no node {run.place}."
    ctx = contexts.build_context(run, snapshot.nodes[run.place], None, now=now, world=world)
    episode.has_looked = True
    if is_first:
        seen = external_changes.observe_node(ctx.state)
        episode.held_by = seen.owner.value if seen.is_out else ""
    says = _look_at_node(run, ctx, episode, is_first=is_first)
    objection = ""
    verdict = None
    if episode.allowed_at is None and not episode.held_by:
        verdict = _ask_guards(run, snapshot, ctx)
        objection = _note_verdict(episode, verdict, now)
    episode.next_look_at = _get_next_look_at(episode, ctx, verdict)
    return f"{objection}{says}"


def _look_at_node(run: Run, ctx: Context, episode: EpisodeFacts, *, is_first: bool) -> str:
    is_looked_for = any(row["step"] == ConfirmOnNode.name for row in run.plan)
    is_looked_for = is_looked_for or bool(witnesses.list_detectors(run.fault_type))
    if episode.is_settled or not is_looked_for:
        return ""
    try:
        if is_first:
            episode.is_spared = witness_check.is_spared(run, ctx)
        result = ConfirmOnNode().run(ctx)
    except WorldError as error:
        episode.look = FaultLook.UNKNOWN
        return f" Its node could not be looked at: {error}"
    if isinstance(result, Done):
        episode.look = FaultLook.SEEN
        return f" {result.text}"
    if isinstance(result, Refuted):
        episode.look, episode.refuted_at = FaultLook.DENIED, ctx.now
        return _format_refuted(run, result, episode)
    is_denied = witnesses.REFUTED_SINCE in run.facts
    episode.look = FaultLook.DENIED if is_denied else FaultLook.UNKNOWN
    return f" A look at it now: {result.text.removesuffix(NOT_REBOOTED).strip()}"


def _format_refuted(run: Run, refuted: Refuted, episode: EpisodeFacts) -> str:
    would = "would have been drained for nothing, and given back by now"
    if episode.is_spared or episode.allowed_at is None:
        would = "would not have been drained"
    reason = refutations.note_refuted(run, refuted)
    return f" {reason}: {run.place} {would}."


def _ask_guards(run: Run, snapshot: FleetSnapshot, ctx: Context) -> Allowed | GuardRefused:
    """As if the runbook were armed. What other dry runs would have taken out is in service."""
    policy = ctx.world.policy
    limits = library.get_limits(run.runbook)
    state = fleet.load_fleet(run, snapshot, limits=limits, policy=policy, now=ctx.now)
    state = replace(state, mode=Mode.ARMED)
    request = guard_check.build_request(Act.DRAIN, run.place, run.fault_type)
    verdict = table.check(request, state, ctx.now)
    is_short = isinstance(verdict, GuardRefused) and verdict.kind in ROOM
    if is_short and ctx.unusable:
        verdict = table.check(request, replace(state, unusable=ctx.unusable), ctx.now)
    return verdict


def _note_verdict(episode: EpisodeFacts, verdict: Allowed | GuardRefused, now: datetime) -> str:
    if isinstance(verdict, Allowed):
        episode.allowed_at = now
        return ""
    if episode.refused_at is None and verdict.kind in _HANDS:
        episode.held_by = verdict.kind.value
    elif episode.refused_at is None:
        episode.refused_at, episode.refusal = now, verdict.kind.value
    return f" The guards would refuse that now: {verdict.reason}."


def _get_next_look_at(
    episode: EpisodeFacts, ctx: Context, verdict: Allowed | GuardRefused | None
) -> datetime | None:
    """None when the node has shown what it can, or somebody has taken it out meanwhile."""
    if episode.held_by:
        return None
    if episode.look is FaultLook.DENIED and episode.refuted_at is None:
        return ctx.now + REFUTED_AFTER
    if not ctx.state.is_serving or episode.refuted_at is not None:
        return None
    is_refused = isinstance(verdict, GuardRefused) and verdict.ask_again_at is not None
    is_unknown = episode.look is FaultLook.UNKNOWN and _is_seen_by_somebody(ctx)
    return ctx.now + _LOOK_AGAIN if is_refused or is_unknown else None


def _is_seen_by_somebody(ctx: Context) -> bool:
    """Whether a look may find it later: a fault that only its kernel tells may have left the
    log."""
    return bool(witnesses.list_detectors(ctx.fault_type))
