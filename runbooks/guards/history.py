"""Guards on what was done before: how often one fault type took nodes out, how often a node was
restarted. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from runbooks.guards import room
from runbooks.guards.verdicts import Act, Fleet, GuardRefused, PastReboot, Refusal, Request

HOUR = timedelta(hours=1)
# One restart a day (our choice); the same fault back within it has not been cured by it.
REBOOT_INTERVAL = timedelta(hours=24)
# After two restarts for one fault within 14 days the hardware is suspect (our choice:
# docs/runbooks.md, The ladder).
SUSPECT_WITHIN = timedelta(days=14)
SUSPECT_AFTER = 2
# A boot within this of a restart of ours is that restart's. Our choice: far longer than a boot
# takes.
OWN_BOOT_WITHIN = timedelta(hours=1)
_RESTARTS = {Act.REBOOT: "rebooted", Act.POWER_CYCLE: "power-cycled"}


def check_rate(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """A fault type that calls for node after node is not many nodes failing: it is one cause, or a
    wrong rule. Nodes that are each seen to be of no use are many nodes failing."""
    if room.is_drain_of_unusable(request, fleet):
        return None
    if fleet.is_claimed and request.act is not Act.DRAIN:
        return None
    limits = [limit for limit in (fleet.bounds.per_hour, fleet.per_hour) if limit is not None]
    begun = sorted(at for at in fleet.begun if now - at < HOUR)
    if len(begun) < min(limits):
        return None
    reason = (
        f"{len(begun)} nodes were taken out for {request.fault_type} within the last hour, and the"
        f" limit is {min(limits)} an hour"
    )
    again = begun[-min(limits)] + HOUR if min(limits) else now + HOUR
    return GuardRefused(Refusal.RATE, reason, again)


def check_reboots(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """A node is restarted once in 24 h, whoever restarted it, also where the clock was set back
    since.

    A power cycle may follow a reboot that has not cured the same fault.
    """
    if request.act not in _RESTARTS:
        return None
    past = [reboot for reboot in fleet.reboots if reboot.node == request.node]
    refused = _check_returned_fault(request, past, now) or _check_recent_restart(request, past, now)
    return refused or _check_recent_boot(request, fleet, past, now)


def _check_returned_fault(
    request: Request, past: list[PastReboot], now: datetime
) -> GuardRefused | None:
    alike = [reboot for reboot in past if reboot.act is request.act]
    times = sorted(reboot.at for reboot in alike if reboot.fault_type == request.fault_type)
    if not times:
        return None
    word, at = _RESTARTS[request.act], f"{times[-1]:%Y-%m-%d %H:%M %Z}"
    if now - times[-1] < REBOOT_INTERVAL:
        reason = (
            f"{request.node} was {word} for {request.fault_type} at {at}, and the fault is back"
            " within 24 h: the hardware is suspect"
        )
        return GuardRefused(Refusal.FAULT_RETURNED, reason)
    within = [time for time in times if now - time < SUSPECT_WITHIN]
    if len(within) >= SUSPECT_AFTER:
        reason = (
            f"{request.node} was {word} {len(within)} times for {request.fault_type} within 14"
            f" days, last at {at}: the hardware is suspect"
        )
        return GuardRefused(Refusal.FAULT_RETURNED, reason)
    return None


def _check_recent_restart(
    request: Request, past: list[PastReboot], now: datetime
) -> GuardRefused | None:
    lately = [
        reboot
        for reboot in past
        if now - reboot.at < REBOOT_INTERVAL and reboot.fault_type != request.fault_type
    ]
    if not lately:
        return None
    last = max(lately, key=lambda reboot: reboot.at)
    reason = (
        f"{request.node} was {_RESTARTS[last.act]} at {last.at:%Y-%m-%d %H:%M %Z}; a node is"
        " rebooted once in 24 h"
    )
    return GuardRefused(Refusal.REBOOTED_LATELY, reason, last.at + REBOOT_INTERVAL)


def _check_recent_boot(
    request: Request, fleet: Fleet, past: list[PastReboot], now: datetime
) -> GuardRefused | None:
    """A boot that no run of ours asked for counts as a reboot: a person, Slurm's power saving or a
    crash."""
    booted_at = fleet.booted_at
    if request.act is not Act.REBOOT or booted_at is None or now - booted_at >= REBOOT_INTERVAL:
        return None
    if any(_is_boot_of(reboot, booted_at) for reboot in past):
        return None
    reason = (
        f"{request.node} booted at {booted_at:%Y-%m-%d %H:%M %Z}, by no run of Kintsugi's; a node"
        " is rebooted once in 24 h"
    )
    return GuardRefused(Refusal.REBOOTED_LATELY, reason, booted_at + REBOOT_INTERVAL)


def _is_boot_of(reboot: PastReboot, booted_at: datetime) -> bool:
    return timedelta(0) <= booted_at - reboot.at < OWN_BOOT_WITHIN
