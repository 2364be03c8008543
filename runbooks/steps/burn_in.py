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
from runbooks.steps.diagnose import run_test

# A round that has begun is ended. Our choice: twelve times what DCGM's level 3 takes; of level 4 no
# length is stated.
_ONE_ROUND = timedelta(hours=3)


# Our choice; a site says how long it wants a node that was repaired to hold.
_LASTS = Parameter.duration(default=timedelta(hours=4))
_COMMAND = Parameter(
    parameters.parse_command, "a list of texts: a program and its arguments", default=()
)


class BurnIn(Base):
    name: ClassVar[str] = "burn_in"
    plan: ClassVar[str] = "load it for hours and see whether it holds"
    touches_node: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "lasts": _LASTS,
        "command": _COMMAND,
        "level": Parameter.whole_number(1, 4, default=3),
        "at_least": Parameter.positive(),
    }

    def run(self, ctx: Context) -> Result:
        command = ctx.params["command"]
        return _run_command(ctx, command) if command else _run_rounds(ctx)


def _run_command(ctx: Context, command: tuple[str, ...]) -> Result:
    return run_test(
        ctx,
        command,
        called=f"`{' '.join(command)}`",
        longest=ctx.params["lasts"] + _ONE_ROUND,
        judge=_evaluate_status,
    )


def _run_rounds(ctx: Context) -> Result:
    lasts: timedelta = ctx.params["lasts"]
    level, gpus = ctx.params["level"], len(ctx.target.expected.gpus)
    wanted = Wanted(Diagnosis.DCGM, level, ctx.params["at_least"], gpus)
    seconds = int(lasts.total_seconds())
    command = diagnostics.build_burn_in_command(seconds, level=level, gpus=gpus)
    return run_test(
        ctx,
        command,
        called="the burn-in",
        longest=lasts + _ONE_ROUND,
        judge=lambda ended: diagnostics.evaluate_burn_in(wanted, ended),
    )


def _evaluate_status(ended: Ended) -> DiagnosticVerdict:
    """Of the site's own command the exit status alone is known."""
    if ended.status == 0:
        return DiagnosticVerdict(DiagnosticOutcome.PASSED, "passed")
    outcome = (
        DiagnosticOutcome.UNKNOWN if ended.status in (None, 126, 127) else DiagnosticOutcome.ILL
    )
    return DiagnosticVerdict(outcome, f"{ended.how}: {ended.last_words}")
