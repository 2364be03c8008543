"""Take over a node that is out already: drained by Slurm itself or by a check of which the site
says so, or left by an incident that is over."""

from __future__ import annotations

from typing import ClassVar

from runbooks.step import Context, Failed, Wait
from runbooks.steps.drain import Drain, format_mended_ask


class AdoptDrain(Drain):
    """Never takes a node out of service, and never touches a person's drain."""

    name: ClassVar[str] = "adopt_drain"
    plan: ClassVar[str] = "take over {node}, which Slurm has taken out"

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        obstacle = super().blocked(ctx)
        if obstacle is not None or ctx.state.is_draining or ctx.state.base == "DOWN":
            return obstacle
        return Failed(
            f"{ctx.node} is in service: there is no drain to take over, and this runbook takes no"
            " node out.",
            ask=format_mended_ask(ctx),
        )
