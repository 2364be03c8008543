"""Verify the rebooted node before it takes jobs again: its detectors, its active faults, the site's own command."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from detectors import catalog
from detectors.detector import DetectorError
from detectors.faults import Action
from runbooks import looking
from runbooks.step import Base, Context, Done, Failed, Result, Wait, patience, remembered, told

# Drivers load and links train after a boot: trouble counts when it outlasts a grace period, since one site condemned
# 214 of 288 nodes without one (docs/runbooks.md). Its length is our choice, not a measurement.
GRACE = timedelta(minutes=2)
_LOOK_AGAIN = timedelta(seconds=10)
_POLL_COMMAND = timedelta(seconds=2)
_POLL_COMMAND_LATER = timedelta(seconds=15)
_START_TIMEOUT = timedelta(seconds=20)
KEY = "kintsugi-verify"
# Starts the command once, apart from us (dcgmi diag takes minutes, and a worker never waits): mkdir is the lock.
# Prints `running`, or `ended STATUS` and the end of the output. $1 is the run's own key, the rest is the command.
SCRIPT = """umask 077
at="${TMPDIR:-/tmp}/kintsugi-verify-$1"; shift
if mkdir "$at" 2>/dev/null; then
  setsid sh -c 'at=$1; shift; "$@" >"$at/output" 2>&1; echo $? >"$at/new"; mv "$at/new" "$at/status"' sh "$at" "$@" \
    </dev/null >/dev/null 2>&1 &
  echo running
elif [ ! -O "$at" ]; then echo "ended 126"; echo "$at belongs to another user"
elif [ -f "$at/status" ]; then echo "ended $(cat "$at/status")"; tail -c 1500 "$at/output"
else echo running
fi"""


class Verify(Base):
    """Without a verify command of the site a person resumes the node, which the run notices."""

    name: ClassVar[str] = "verify"
    plan: ClassVar[str] = "verify that all GPUs are present, no fault stands, and the site's verify command passes"

    def run(self, ctx: Context) -> Result:
        booted_at = remembered(ctx, "booted_at") or ctx.now
        if "verify_started_at" in ctx.facts:
            return _verify_by_command(ctx, booted_at)
        trouble = _trouble(ctx, booted_at)
        if trouble and ctx.now < booted_at + GRACE:
            return Wait(f"{ctx.node} is not well yet: {trouble}", _LOOK_AGAIN)
        if trouble:
            return _failed(ctx, trouble)
        if not ctx.world.policy.verify_command:
            ctx.facts["asked_to_resume"] = True
            return Wait(
                f"{ctx.node} is up and its detectors find no fault. No verify command is configured"
                " (KINTSUGI_VERIFY_COMMAND), so a person decides.",
                patience(booted_at, ctx.now, longest=timedelta(minutes=1)),
                ask=f"Test {ctx.node} and resume it: scontrol update NodeName={ctx.node} State=RESUME",
                is_told=True,
            )
        return _verify_by_command(ctx, booted_at)


def _trouble(ctx: Context, booted_at: datetime) -> str:
    """What is wrong with the node, empty when nothing is."""
    seen = looking.look(ctx)
    if not seen.is_reachable:
        return f"Kintsugi cannot reach it: {seen.complaint}"
    against = seen.against(looking.those_that_confirm(ctx.fault_type))
    if against:
        return against
    rows = catalog.load()
    standing = [
        fault
        for fault in ctx.standing
        if fault.last_seen_at > booted_at
        and (row := rows.get(fault.fault_type)) is not None
        and row.action.at_least(Action.RESET_GPU)
    ]
    return "; ".join(f"{fault.fault_type} on {fault.resource} since the boot" for fault in standing)


def _verify_by_command(ctx: Context, booted_at: datetime) -> Result:
    """While it runs the detectors keep away: a stress test makes a healthy GPU slow to answer."""
    command = ctx.world.policy.verify_command
    shown = " ".join(command)
    started_at = remembered(ctx, "verify_started_at")
    if started_at is None:
        started_at = ctx.now
        ctx.facts["verify_started_at"] = told(ctx.now)
    key = f"{ctx.run_id}-{ctx.facts.get('boot_id_after') or 'unknown'}"
    try:
        output = ctx.world.shell.run(ctx.target, ("sh", "-c", SCRIPT, KEY, key, *command), _START_TIMEOUT)
        answer = output.stdout.decode(errors="replace") if output.status == 0 else ""
    except DetectorError:
        answer = ""
    first, _, said = answer.partition("\n")
    if first.startswith("ended "):
        status = first.removeprefix("ended ").strip()
        if status != "0":
            return _failed(ctx, f"`{shown}` ended with status {status}: {_tail(said)}")
        trouble = _trouble(ctx, booted_at)
        if trouble:
            return _failed(ctx, f"after `{shown}`: {trouble}")
        return Done(f"{ctx.node} is verified: its detectors find no fault and `{shown}` passed.")
    waited = ctx.now - started_at
    if waited > ctx.world.policy.verify_timeout:
        return _failed(ctx, f"`{shown}` has not ended after {round(waited.total_seconds() / 60)} min")
    return Wait(
        f"`{shown}` runs on {ctx.node}.", _POLL_COMMAND if waited < timedelta(minutes=1) else _POLL_COMMAND_LATER
    )


def _failed(ctx: Context, why: str) -> Failed:
    return Failed(
        f"{ctx.node} did not pass after its reboot: {why}. It stays drained.",
        ask=f"Examine {ctx.node}: a reboot did not cure {ctx.fault_type}. Power-cycle it or call the vendor.",
    )


def _tail(text: str) -> str:
    return " ".join(text.split())[-300:] or "no output"
