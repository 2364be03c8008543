"""Reboot the drained node through Slurm, once. An attempt of unknown outcome is looked at, never repeated blindly."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks import looking, ownership
from runbooks.guards import Act
from runbooks.step import Base, Context, Done, Effect, Failed, Result, Wait, told

# A request that scontrol was killed over may still reach slurmctld: its transport's limit, twice.
_SETTLES_IN = timedelta(seconds=60)


class Reboot(Base):
    name: ClassVar[str] = "reboot"
    plan: ClassVar[str] = "reboot it through Slurm"
    effect: ClassVar[Effect] = Effect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.REBOOT
    settles_in: ClassVar[timedelta] = _SETTLES_IN

    def is_done(self, ctx: Context) -> Done | None:
        """Slurm shows a reboot under way or issued since our drain, or the node runs another boot."""
        said = ctx.state.is_rebooting or ownership.says_reboot_issued(ctx.state)
        if said or _is_another_boot(ctx):
            ctx.facts["reboot_at"] = told(ctx.attempted_at or ctx.now)
            by = "" if ctx.attempted_at else " by someone else"
            return Done(f"{ctx.node} has been rebooted{by} since it was drained.")
        return None

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        if not ctx.state.is_drained:
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        return None

    def run(self, ctx: Context) -> Result:
        ctx.facts["reboot_at"] = told(ctx.now)
        ctx.world.slurm.reboot(ctx.node)
        return Done(f"{ctx.node} reboots: Slurm has taken the request.")


def _is_another_boot(ctx: Context) -> bool:
    before = ctx.facts.get("boot_id_before")
    boot = looking.boot(ctx) if before else None
    return boot is not None and boot.boot_id != before
