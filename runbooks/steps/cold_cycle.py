"""Power-cycle the node: off, a minute's rest, on. Each act is stored before, looked at after, and
not repeated blindly.

What it has begun it finishes, whoever loses interest meanwhile: a node that was switched off is
switched on again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.catalog import rows
from detectors.faults import Recovery
from runbooks.guards.table import Act
from runbooks.node import looking
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    Parameter,
    Result,
    StepEffect,
    Wait,
    format_iso,
    get_fact_time,
)

# A request takes 1 to 11 s with sushy-emulator; boards that ask their host first need longer. Past
# this it is taken not to have happened (our choice).
_TAKES = timedelta(seconds=60)
# Off for so long: a person is asked, and Kintsugi goes on trying (our choice: a node boots in
# less).
_LONGEST_OFF = timedelta(minutes=10)
_SOON = timedelta(seconds=2)
_LATER = timedelta(seconds=15)
_MOST_TRIES = 2


def _parse_rest(value: object) -> timedelta:
    reasons: list[str] = []
    found = rows.duration("off_for", value, reasons)
    if reasons or not timedelta(seconds=5) <= found <= _LONGEST_OFF / 2:
        raise ValueError(value)
    return found


class ColdCycle(Base):
    """Facts: power_off_at, seen_off_at, last_off_at, power_on_at; power_offs counts the requests to
    go off.

    `reboot_at`, from which the boot is waited for, is when it was last seen off.
    """

    name: ClassVar[str] = "cold_cycle"
    plan: ClassVar[str] = "switch its power off and, after a minute, on again"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.POWER_CYCLE
    settles_in: ClassVar[timedelta] = _TAKES
    recovery: ClassVar[Recovery | None] = Recovery.COLD_CYCLE
    needs_approval: ClassVar[bool] = True
    finishes: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        # 60 s is our choice: capacitors keep a GPU's state for some seconds.
        "off_for": Parameter(
            _parse_rest, "how long it stays off, 5s to 5m", default=timedelta(seconds=60)
        )
    }

    def find_done(self, ctx: Context) -> Done | None:
        """A node that was found off, and that a person has switched on since."""
        found_off_at = get_fact_time(ctx, "found_off_at")
        if (
            found_off_at is None
            or ctx.attempted_at is not None
            or _read_power_state(ctx) is not PowerState.ON
        ):
            return None
        ctx.facts["reboot_at"] = ctx.facts["last_off_at"]
        return Done(f"{ctx.node} was off, and someone has switched it on again.")

    def find_obstacle(self, ctx: Context) -> Wait | Failed | None:
        busy = [job for job in ctx.world.slurm.list_jobs(ctx.node) if job.state != "COMPLETING"]
        if busy or not ctx.state.is_draining:
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        try:
            state = _read_power_state(ctx)
        except PowerRefusal as refusal:
            return Failed(f"{ctx.node} is not power-cycled: {refusal}", ask=_format_manual_ask(ctx))
        except PowerError as error:
            return _postpone(ctx, error)
        ctx.facts.pop("power_away_at", None)
        if state is PowerState.OFF:
            ctx.facts.setdefault("found_off_at", format_iso(ctx.now))
            ctx.facts["last_off_at"] = format_iso(ctx.now)
            ctx.facts.setdefault("boot_id_before", ctx.known_boot_id)
            return Wait(
                f"{ctx.node} is off, and Kintsugi did not switch it off: someone may work on it.",
                _LATER,
                ask=(
                    f"See who has switched {ctx.node} off. Switch it on when nobody works on it:"
                    " Kintsugi goes on."
                ),
                is_told=True,
            )
        # Looked at now: what is stored before the act outlives a worker that dies after it.
        boot = looking.read_boot(ctx)
        ctx.facts["boot_id_before"] = (
            boot.boot_id if boot else ctx.facts.get("boot_id_before") or ctx.known_boot_id
        )
        return None

    def run(self, ctx: Context) -> Result:
        ctx.facts["power_off_at"] = format_iso(ctx.now)
        ctx.facts["power_offs"] = ctx.facts.get("power_offs", 0) + 1
        _note_power(ctx, "asked to go off")
        ctx.world.power.turn_off(ctx.target)
        rest = f"{ctx.params['off_for'].total_seconds():.0f} s"
        return Wait(
            f"{ctx.node} is being switched off. After {rest} it is switched on again.",
            _SOON,
            is_told=True,
        )

    def carry_on(self, ctx: Context) -> Result | None:
        try:
            state = _read_power_state(ctx)
            ctx.facts.pop("power_away_at", None)
            if "power_on_at" in ctx.facts:
                return _wait_for_on(ctx, state)
            if "seen_off_at" in ctx.facts:
                return _wait_while_off(ctx, state)
            return _wait_for_off(ctx, state)
        except PowerError as error:
            return _wait_for_controller(ctx, error)


def _wait_for_off(ctx: Context, state: PowerState) -> Result | None:
    """It was asked to go off, as far as is known."""
    asked_at = _get_asked_at(ctx)
    if state is PowerState.OFF:
        ctx.facts["seen_off_at"] = format_iso(ctx.now)
        ctx.facts["unfinished"] = f"Kintsugi has switched {ctx.node} off, and it is off still."
        _note_power(ctx, "off")
        return _wait_while_off(ctx, state)
    if state is PowerState.CHANGING or ctx.now < asked_at + _TAKES:
        return Wait(
            f"{ctx.node} was asked to go off at {asked_at:%H:%M:%S %Z}.",
            _SOON,
            ask=_format_ask_if_late(ctx, asked_at),
        )
    before, boot = ctx.facts.get("boot_id_before"), looking.read_boot(ctx)
    if before and boot is not None and boot.boot_id != before:
        ctx.facts["reboot_at"] = format_iso(asked_at)
        return Done(
            f"{ctx.node} was off and is on again: it runs another boot.",
            evidence=_get_evidence(ctx),
        )
    if ctx.facts.get("power_offs", 0) >= _MOST_TRIES:
        text = (
            f"{ctx.node} was asked {_MOST_TRIES} times to go off and is on still: its management"
            " controller says yes"
        )
        return Failed(f"{text} and does not do it.", ask=_format_manual_ask(ctx))
    return None


def _wait_while_off(ctx: Context, state: PowerState) -> Result:
    off_at = get_fact_time(ctx, "seen_off_at") or ctx.now
    if state is not PowerState.OFF:
        ctx.facts["power_on_at"] = format_iso(ctx.now)
        _note_power(ctx, "found on")
        return _wait_for_on(ctx, state)
    left = off_at + ctx.params["off_for"] - ctx.now
    if left > timedelta(0):
        return Wait(
            f"{ctx.node} is off since {off_at:%H:%M:%S %Z}, and is switched on in a moment.", left
        )
    if ctx.maintenance:
        return _leave_off(ctx, off_at)
    is_another = looking.read_boot(ctx) is not None
    ctx.world.check_before_act()
    ctx.world.power.turn_on(ctx.target)
    ctx.facts["power_on_at"] = format_iso(ctx.now)
    _note_power(ctx, "asked to go on")
    if is_another:
        return Failed(
            f"{ctx.node} answers while its management controller says that it is off: the"
            " controller is another machine's, which has lost its power and was asked to come"
            " back.",
            ask=f"Correct `bmc` of {ctx.node} in the inventory, and look which machine was off.",
        )
    return Wait(
        f"{ctx.node} was off for {_format_seconds(ctx.now - off_at)} and is switched on.", _SOON
    )


def _leave_off(ctx: Context, off_at: datetime) -> Wait:
    """Nobody's hands are in a machine when its power comes."""
    text = (
        f"{ctx.node} is off since {off_at:%H:%M:%S %Z}, by Kintsugi, and {ctx.maintenance}: it is"
        " left off meanwhile."
    )
    ask = (
        f"Switch {ctx.node} on when your work on it is done, or end the maintenance: Kintsugi"
        " switches it on then."
    )
    return Wait(text, timedelta(minutes=1), ask=ask, is_told=True)


def _wait_for_on(ctx: Context, state: PowerState) -> Result:
    on_at = get_fact_time(ctx, "power_on_at") or ctx.now
    off_at = get_fact_time(ctx, "seen_off_at") or on_at
    if state is PowerState.ON:
        ctx.facts.pop("unfinished", None)
        ctx.facts["reboot_at"] = ctx.facts.get("last_off_at") or format_iso(on_at)
        _note_power(ctx, "on")
        return Done(
            f"{ctx.node} was off for {_format_seconds(on_at - off_at)} and is on again.",
            evidence=_get_evidence(ctx),
        )
    ctx.facts["last_off_at"] = format_iso(ctx.now)
    again_at = get_fact_time(ctx, "power_on_again_at") or on_at
    if state is PowerState.OFF and ctx.maintenance:
        return _leave_off(ctx, off_at)
    if state is PowerState.OFF and ctx.now >= again_at + _TAKES:
        ctx.facts["power_on_again_at"] = format_iso(ctx.now)
        _note_power(ctx, "asked to go on again")
        ctx.world.check_before_act()
        ctx.world.power.turn_on(ctx.target)
    ask = _format_ask_if_late(ctx, off_at)
    text = f"{ctx.node} was asked to go on at {on_at:%H:%M:%S %Z} and is not on yet."
    return Wait(text, _LATER if ask else _SOON, ask=ask, is_told=bool(ask))


def _wait_for_controller(ctx: Context, error: PowerError) -> Wait:
    """Its power may be off: nothing ends here before that is known, and a person hears of it."""
    since = get_fact_time(ctx, "seen_off_at") or _get_asked_at(ctx)
    ask = _format_ask_if_late(ctx, since)
    if isinstance(error, PowerRefusal):
        ask = (
            ask or f"Let Kintsugi in again, or look at {ctx.node}'s power yourself: it may be off."
        )
    is_told = bool(ask) or "power_away_at" not in ctx.facts
    ctx.facts.setdefault("power_away_at", format_iso(ctx.now))
    return Wait(
        f"{ctx.node}'s power cannot be looked at: {error}", _LATER, ask=ask, is_told=is_told
    )


def _postpone(ctx: Context, error: PowerError) -> Wait:
    """Nothing is begun: the controller may come back."""
    is_first = "power_away_at" not in ctx.facts
    ctx.facts.setdefault("power_away_at", format_iso(ctx.now))
    since = get_fact_time(ctx, "power_away_at") or ctx.now
    ask = _format_manual_ask(ctx) if ctx.now >= since + _LONGEST_OFF else ""
    return Wait(
        f"{ctx.node} is not power-cycled yet: {error}",
        _LATER,
        ask=ask,
        is_told=is_first or bool(ask),
    )


def _read_power_state(ctx: Context) -> PowerState:
    return ctx.world.power.read_state(ctx.target)


def _get_asked_at(ctx: Context) -> datetime:
    """A worker that died right after the act has left the attempt alone."""
    times = (get_fact_time(ctx, "power_off_at"), ctx.attempted_at)
    return max((at for at in times if at is not None), default=ctx.now)


def _format_ask_if_late(ctx: Context, since: datetime) -> str:
    if ctx.now < since + _LONGEST_OFF:
        return ""
    return (
        f"Look at {ctx.node}: it may be off since {since:%H:%M %Z}. Switch it on by hand; Kintsugi"
        " goes on then."
    )


def _format_manual_ask(ctx: Context) -> str:
    return (
        f"Power-cycle {ctx.node} by hand (off, a minute, on), verify it and resume it. It is"
        " drained."
    )


def _note_power(ctx: Context, what: str) -> None:
    """Power states with their times, which are the step's evidence."""
    seen = f"{ctx.now:%Y-%m-%d %H:%M:%S %Z} {what}"
    ctx.facts["power_seen"] = [*ctx.facts.get("power_seen", []), seen][-20:]


def _get_evidence(ctx: Context) -> dict[str, str]:
    return {"power": "\n".join(ctx.facts.get("power_seen", []))}


def _format_seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"
