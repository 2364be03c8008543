"""Watch what Kintsugi changes nothing on, such as a switch: report when it begins, when it lasts,
and once a day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from detectors.catalog import rows
from runbooks.step import Base, Context, Done, Parameter, Result, Wait, format_iso, get_fact_time

_NAMED = 3
_A_SPAN = "a number and m, h or d, such as 30m or 24h"


def _parse_span(value: object) -> timedelta:
    reasons: list[str] = []
    found = rows.duration("", value, reasons)
    if reasons or found < timedelta(minutes=1):
        raise ValueError("no span of a minute or more")
    return found


_LASTS, _CLEARED = "incident", "cleared"
# Our choice: how long a node whose fault has gone stays out before the run goes on, at most.
_LOOKS_EVERY = timedelta(minutes=1)


def _parse_end(value: object) -> str:
    if value not in (_LASTS, _CLEARED):
        raise ValueError("no such end")
    return str(value)


# What clears by itself within it needs nobody; a switch boots in less.
_ASK_AFTER = Parameter(_parse_span, _A_SPAN, default=timedelta(minutes=30))
_EVERY = Parameter(_parse_span, _A_SPAN, default=timedelta(days=1))


class WatchStep(Base):
    """Never done by itself, so that the run ends with its incident; with `until: cleared` it is
    done when no fault of the incident stands any more. Both spans are our choice; a runbook may
    give others."""

    name: ClassVar[str] = "watch"
    plan: ClassVar[str] = "watch {node} and report, changing nothing"
    needs_hold: ClassVar[bool] = False
    needs_node: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "ask_after": _ASK_AFTER,
        "every": _EVERY,
        "until": Parameter(_parse_end, "incident or cleared", default=_LASTS),
    }

    def run(self, ctx: Context) -> Result:
        since = get_fact_time(ctx, "watched_from") or ctx.now
        ctx.facts["watched_from"] = format_iso(since)
        if ctx.params["until"] == _CLEARED and not ctx.active_faults:
            return Done(f"No fault stands on {ctx.node} any more.")
        lasts = ctx.now - since >= ctx.params["ask_after"]
        ask = ""
        if lasts and ctx.active_faults:
            ask = f"Look at {ctx.node}: Kintsugi watches it and changes nothing there."
        reported_at = get_fact_time(ctx, "reported_at")
        is_due = reported_at is None or ctx.now - reported_at >= ctx.params["every"]
        is_report = is_due or bool(ask and not ctx.facts.get("asked"))
        if is_report:
            ctx.facts["reported_at"] = format_iso(ctx.now)
        again_in = ctx.params["every"] if lasts else since + ctx.params["ask_after"] - ctx.now
        if ctx.params["until"] == _CLEARED:
            again_in = min(again_in, _LOOKS_EVERY)
        return Wait(
            f"{ctx.node} is watched: {_format_faults(ctx)}.",
            again_in,
            ask=ask,
            is_told=is_report,
            is_report=is_report,
        )


def _format_faults(ctx: Context) -> str:
    if not ctx.active_faults:
        return "no fault of its incident stands any more"
    total = len(ctx.active_faults)
    places = ", ".join(str(fault) for fault in ctx.active_faults[:_NAMED])
    more = f" and {total - _NAMED} more" if total > _NAMED else ""
    count = "1 fault stands" if total == 1 else f"{total} faults stand"
    return f"{count} ({places}{more})"
