"""Load the drained node for hours before it takes jobs again: the site's own command, or DCGM and
NCCL in turns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from runbooks import parameters
from runbooks.node import diagnostics
from runbooks.node.detached_command import Ended
from runbooks.node.diagnostics import Diagnosis, DiagnosticOutcome, DiagnosticVerdict, Wanted
from runbooks.step import Base, Context, Parameter, Result
from runbooks.steps.diagnose import tested

# A round that has begun is ended. Our choice: twelve times what DCGM's level 3 takes; of level 4 no
# length is stated.
_ONE_ROUND = timedelta(hours=3)


class BurnIn(Base):
    name: ClassVar[str] = "burn_in"
    plan: ClassVar[str] = "load it for hours and see whether it holds"
    touches_node: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        # Our choice; a site says how long it wants a node that was repaired to hold.
        "lasts": Parameter(parameters.duration, parameters.DURATION, default=timedelta(hours=4)),
        "command": Parameter(
            parameters.command, "a list of texts: a program and its arguments", default=()
        ),
        "level": Parameter(parameters.whole(1, 4), "a whole number from 1 to 4", default=3),
        "at_least": Parameter(parameters.positive, "a number above 0", default=None),
    }

    def run(self, ctx: Context) -> Result:
        lasts, own = ctx.params["lasts"], ctx.params["command"]
        if own:
            called = f"`{' '.join(own)}`"
            return tested(ctx, own, called=called, longest=lasts + _ONE_ROUND, judge=_by_status)
        gpus = len(ctx.target.expected.gpus)
        wanted = Wanted(Diagnosis.DCGM, ctx.params["level"], ctx.params["at_least"], gpus)
        return tested(
            ctx,
            diagnostics.burn_in(int(lasts.total_seconds()), level=wanted.level, gpus=gpus),
            called="the burn-in",
            longest=lasts + _ONE_ROUND,
            judge=lambda ended: diagnostics.judge_burn_in(wanted, ended),
        )


def _by_status(ended: Ended) -> DiagnosticVerdict:
    """Of the site's own command the exit status alone is known."""
    if ended.status == 0:
        return DiagnosticVerdict(DiagnosticOutcome.PASSED, "passed")
    outcome = (
        DiagnosticOutcome.UNKNOWN if ended.status in (None, 126, 127) else DiagnosticOutcome.ILL
    )
    return DiagnosticVerdict(outcome, f"{ended.how}: {ended.last_words}")
