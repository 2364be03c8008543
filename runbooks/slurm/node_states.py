"""What Slurm's states of a node mean for a repair: who is there, what is under way, what cannot be.
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from detectors.slurm.output import NodeState

# Set by `scontrol update State=POWER_DOWN` or SuspendTime; measured in 22.05: a reboot of such a
# node is taken with status 0 and not done.
_SWITCHED_OFF = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"})
_SWITCHED_ON = frozenset({"POWER_UP", "POWERING_UP"})
# From 23.11 on the drain stays (src/slurmctld/node_mgr.c, `reboot timed out`).
_LAST_THAT_DROPS = (23, 2)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
# Slurm's own default, slurm.conf(5).
_UNKILLABLE = timedelta(seconds=60)
# Past UnkillableStepTimeout an epilog may still tidy up. Our choice.
_EPILOG = timedelta(minutes=5)


def format_power_saving(state: NodeState) -> str:
    """Slurm's power saving has the node: a sentence, empty where it has not."""
    if state.flags & _SWITCHED_ON:
        return f"Slurm is switching {state.name} on."
    if state.flags & _SWITCHED_OFF:
        return f"Slurm has switched {state.name} off, or is about to, to save power."
    return ""


def is_silent(state: NodeState) -> bool:
    """Its slurmd does not answer."""
    return "NOT_RESPONDING" in state.flags


def is_given_up(state: NodeState) -> bool:
    """Its slurmd does not answer, and Slurm has set it down for that: nothing that slurmd would do
    can be had."""
    return is_silent(state) and state.base == "DOWN"


def is_back(state: NodeState, since: datetime) -> bool:
    """Its slurmd answers after a boot that began since then. Where Slurm had dropped the drain and
    we drained it again, it stays DOWN with ReturnToService 0 and 1 (measured in 22.05), and a
    resume takes that away too.
    """
    if state.is_rebooting or is_silent(state) or format_power_saving(state):
        return False
    return state.base != "DOWN" or has_booted(state, since)


def has_booted(state: NodeState, since: datetime) -> bool:
    """By the boot time that its slurmd has told, in whole seconds."""
    return state.boot_time is not None and state.boot_time >= since.replace(microsecond=0)


def get_unkillable_delay(config: Mapping[str, str]) -> timedelta:
    """How long after a job's end what is left of it cannot be ended any more."""
    return _parse_seconds(config.get("UnkillableStepTimeout", ""), _UNKILLABLE) + _EPILOG


def drops_drains(config: Mapping[str, str]) -> bool:
    """Whether Slurm takes away the drain of a node that it has rebooted and that has not come back
    within ResumeTimeout. One that does not say its version may."""
    found = _VERSION.match(config.get("SLURM_VERSION", ""))
    return found is None or (int(found[1]), int(found[2])) <= _LAST_THAT_DROPS


def takes_back_unasked(config: Mapping[str, str], *, asked_at: datetime, now: datetime) -> bool:
    """Past ResumeTimeout an older Slurm drops a drain, and with ReturnToService=2 the node then
    takes jobs once it boots."""
    if not drops_drains(config):
        return False
    # slurm.conf(5): ResumeTimeout is 60 s by default.
    limit = _parse_seconds(config.get("ResumeTimeout", ""), timedelta(seconds=60))
    return config.get("ReturnToService", "").split(" ", 1)[0] == "2" and now - asked_at > limit


def _parse_seconds(text: str, default: timedelta) -> timedelta:
    """`60 sec`, as `scontrol show config` prints it."""
    number = text.split(" ", 1)[0]
    return timedelta(seconds=int(number)) if number.isdecimal() and len(number) < 9 else default
