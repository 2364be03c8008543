"""Let a hot spare stand in for the node, or take it back once the node serves again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from incidents.inventory import services
from incidents.models import Spare
from incidents.reserve import spares
from runbooks import spare_swaps
from runbooks.guards.table import Act
from runbooks.node import looking
from runbooks.slurm.protocol import SlurmReader
from runbooks.step import Base, Context, Done, Parameter, Result, StepEffect, Wait

IN, OUT = "in", "out"
_AGAIN = timedelta(seconds=5)
# A person has to do something first (our choice).
_WHILE_REFUSED = timedelta(minutes=1)


def _parse_way(value: object) -> str:
    if value not in (IN, OUT):
        raise ValueError("neither in nor out")
    return str(value)


class SwapHotSpare(Base):
    """The spare is taken for the node in our own rows before Slurm is asked: two runs never take
    one spare."""

    name: ClassVar[str] = "swap_hot_spare"
    plan: ClassVar[str] = "swap a hot spare in for {node}, or back out"
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE
    act: ClassVar[Act | None] = Act.SWAP_SPARE
    needs_hold: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "way": Parameter(_parse_way, '"in", or "out" once the node serves again', default=IN),
    }

    def find_done(self, ctx: Context) -> Done | None:
        spare = spares.find_stand_in(ctx.node)
        if ctx.params["way"] == OUT:
            return _report_no_swap(ctx) if spare is None else None
        if spare is None:
            return None if spares.list_ready(ctx.state.partitions) else _report_no_spare(ctx)
        if spare.state == Spare.State.LEAVING or not spare_swaps.is_in(spare, ctx.world.slurm):
            return None
        spares.serves(spare, ctx.now)
        return Done(f"{spare.node.name} stands in for {ctx.node} already.")

    def run(self, ctx: Context) -> Result:
        return _swap_out(ctx) if ctx.params["way"] == OUT else _swap_in(ctx)


def _swap_in(ctx: Context) -> Result:
    spare = spares.find_stand_in(ctx.node)
    if spare is not None and spare.state == Spare.State.LEAVING:
        return Wait(f"{spare.node.name} is still on its way back into the pool.", _AGAIN)
    if spare is None:
        ready = _list_serving(spares.list_ready(ctx.state.partitions), ctx.world.slurm)
        spare = next((row for row in ready if not _find_refusal(ctx, row)), None)
        if spare is None:
            return _report_no_spare(ctx, [row.node.name for row in ready])
        if not spares.claim(spare, stands_for=ctx.node, incident_id=ctx.incident_id, now=ctx.now):
            return Wait("Another run took that spare; the next one is looked for.", _AGAIN)
    refusal = _find_refusal(ctx, spare)
    if refusal:
        return Wait(refusal, _WHILE_REFUSED, ask=_format_ask(spare), is_told=True)
    spare_swaps.bring_in(spare, ctx.world.slurm_writer, ctx.now)
    ctx.facts["spare"] = spare.node.name
    return Done(f"{spare.node.name} stands in for {ctx.node}: {_format_swap(spare)}.")


def _list_serving(rows: Sequence[Spare], slurm: SlurmReader) -> list[Spare]:
    """Those that take jobs now: one that is out is of no use in another's place."""
    if not rows:
        return []
    states = slurm.read_nodes([row.node.name for row in rows])
    return [row for row in rows if states[row.node.name].is_serving]


def _swap_out(ctx: Context) -> Result:
    spare = spares.find_stand_in(ctx.node)
    if spare is None:
        return _report_no_swap(ctx)
    refusal = _find_refusal(ctx, spare)
    if refusal:
        return Wait(refusal, _WHILE_REFUSED, ask=_format_ask(spare), is_told=True)
    spares.begin_leaving(spare, ctx.now)
    spare.refresh_from_db()
    spare_swaps.keep_free(spare, ctx.world.slurm_writer, ctx.now)
    return Done(
        f"{spare.node.name} is a spare again: {ctx.node} serves itself. Jobs that run there end in"
        " peace."
    )


def _find_refusal(ctx: Context, spare: Spare) -> str:
    """What the spare's own root says against acts there, as a sentence; empty where it does not
    refuse, or cannot be asked."""
    name = spare.node.name
    target = services.get_target(name)
    refusal = looking.read_refusal(ctx.world.shell, target) if target is not None else None
    if not isinstance(refusal, looking.NodeRefusal):
        return ""
    return f"The root of the spare {name} refuses: {refusal.reason}. It is left as it is."


def _format_ask(spare: Spare) -> str:
    name = spare.node.name
    return f"Have the root of {name} remove {looking.NEVER_FILE}, or take {name} out of the spares."


def _report_no_swap(ctx: Context) -> Done:
    return Done(f"{ctx.node} serves itself: no spare stands in for it.", is_told=False)


def _format_swap(spare: Spare) -> str:
    where = ", ".join(spare.partitions)
    return (
        f"its reservation is ended, and it takes jobs of {where}"
        if spare.reservation
        else f"it is in {where} now"
    )


def _report_no_spare(ctx: Context, refusing: Sequence[str] = ()) -> Done:
    where = " and ".join(ctx.state.partitions) or "no partition"
    partly = "; ".join(
        f"{row.node.name} is for {', '.join(row.partitions)}"
        for row in spares.list_partly_fitting(ctx.state.partitions)
    )
    why = f" ({partly}, and a spare stands in for each partition of a node)" if partly else ""
    if refusing:
        why += f" (the root of {', '.join(refusing)} refuses)"
    return Done(
        f"No hot spare stands ready for {where}{why}: {ctx.node} is missed until it is back."
    )
