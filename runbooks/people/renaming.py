"""A node gets another name while runs may be under way on it: its history, its runs and its drain
go by the new one.

Slurm keeps nothing for a name that is gone from slurm.conf, the drain neither. So a drain of ours
is written onto the new name first, before anything here says so; a person's is theirs to write.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from incidents.models import Node
from incidents.reserve import renames
from runbooks.engine import audit, contexts
from runbooks.fleet import armings
from runbooks.models import CureAttempt, Run, RunState, SeenNode
from runbooks.node import drains
from runbooks.outcomes import Controlled, ControlRefused, Outcome
from runbooks.slurm import ownership
from runbooks.slurm.protocol import NodeState, SlurmError
from runbooks.step import World


def rename(old: str, new: str, *, actor: str, why: str, world: World, now: datetime) -> Outcome:
    """Once slurm.conf has the new name, and no more the old one."""
    if not why.strip():
        return ControlRefused("Say why: the record keeps it.")
    obstacle = renames.find_obstacle(old, new)
    if obstacle:
        return ControlRefused(obstacle)
    try:
        nodes = world.slurm.read_nodes()
        if new not in nodes:
            return ControlRefused(
                f"Slurm knows no node {new}. Rename it in slurm.conf first, and have slurmctld read"
                " it."
            )
        if old in nodes:
            return ControlRefused(
                f"Slurm knows both {old} and {new}: these are two nodes. Take {old} out of"
                " slurm.conf first."
            )
        refused = _keep_out(old, nodes[new], world=world, now=now)
    except SlurmError as error:
        return ControlRefused(f"Slurm cannot be asked, and nothing was renamed: {error}")
    if refused:
        return ControlRefused(refused)
    with transaction.atomic():
        text = renames.rename(old, new, actor=actor, why=why.strip(), now=now)
        _move_runs(old, new, now)
        armings.rename_node(old, new)
        audit.record_node(actor, "rename", new, text, now=now)
    return Controlled(
        f"{text} Write {new} into the inventory's files too: the next import would bring {old}"
        " back."
    )


def _keep_out(old: str, state: NodeState, *, world: World, now: datetime) -> str:
    """Whoever had taken the node out, it stays out under its new name. What a person has to do
    first; else empty."""
    if state.is_draining:
        return ""
    run = _find_holder(old)
    if run is not None:
        if world.writer is None:
            return (
                f"Run {run.pk} holds {old} drained, and Slurm shows {state.name} in service. Do"
                " this where Kintsugi may act: kintsugi --acting."
            )
        ctx = contexts.build_context(run, state, None, now=now, world=world)
        ctx.node = state.name
        drains.drain_node(ctx, _get_reason(run))
        Run.objects.filter(pk=run.pk, fence=run.fence).update(facts=run.facts)
        return ""
    seen = SeenNode.objects.filter(node__name=old, is_out=True).first()
    if seen is not None and seen.persons_reason:
        return (
            f'{old} was taken out by a person ("{seen.persons_reason}"), and Slurm shows'
            f" {state.name} in service. Drain it, or wait until its owner has resumed it:"
            f" scontrol update NodeName={state.name} State=DRAIN Reason=..."
        )
    return ""


def _find_holder(node: str) -> Run | None:
    """The run whose drain stood on the node when it was last looked at: one under way that has
    drained it, or the last that ended with it."""
    seen = SeenNode.objects.filter(node__name=node).first()
    runs = Run.objects.filter(node__name=node).select_related("incident", "node").order_by("-pk")
    unfinished = runs.filter(pk__in=Run.objects.unfinished()).first()
    if unfinished is not None:
        return unfinished if ownership.load_written(unfinished.facts) else None
    if seen is None or not seen.is_ours:
        return None
    number = ownership.parse_incident(seen.reason)
    return next((run for run in runs if run.incident_id == number and _get_reason(run)), None)


def _get_reason(run: Run) -> str:
    reason: str = run.facts.get("reason", "")
    return reason


def _move_runs(old: str, new: str, now: datetime) -> None:
    """Facts name parts by their paths. A worker that is at one of them stores nothing more."""
    rewrite = renames.make_rewrite_of_names(old, new)
    node = Node.objects.get(name=new)
    for run in Run.objects.select_for_update().filter(node=node):
        facts = renames.rewrite_json(run.facts, rewrite)
        wakes: dict[str, Any] = {"wake_at": now} if run.state == RunState.RUNNING else {}
        if run.finished_at is None:
            wakes |= {"leased_until": None, "fence": F("fence") + 1}
        Run.objects.filter(pk=run.pk).update(facts=facts, **wakes)
    renames.rename_paths(CureAttempt, "resource", old, new)
