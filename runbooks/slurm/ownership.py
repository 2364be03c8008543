"""Whose a node's drain is: ours where the reason is just what a run of ours wrote, Slurm's where
Slurm wrote it, else a person's. Pure: a person's drain is never overwritten and never undone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from detectors.catalog import catalog
from detectors.catalog.check_drains import CheckDrain
from detectors.slurm import drain_reasons
from detectors.slurm.output import NodeState

_OURS = drain_reasons.OURS
SLURM_USER = "slurm"
WRITTEN = "written"
"""The fact of a run: the reasons that it has written, as Slurm showed them afterwards."""
# What Slurm puts between a reason and what it appends to it.
_BETWEEN = " : "
# `kintsugi:7/1a2b3c4d-5e6f70 `; before 0.2.0 without what follows the incident.
_OF_INCIDENT = re.compile(rf"{_OURS}(\d{{1,18}})(?:/[0-9a-z-]{{1,32}})? ")
# Appended past ResumeTimeout (src/slurmctld/node_mgr.c and controller.c of 22.05), when it takes
# DRAIN away too.
_GIVEN_UP = "reboot timed out"
_REBOOT_ISSUED = re.compile(r" : reboot (?:issued|complete|timed out)")


class Owner(StrEnum):
    NOBODY = "nobody"
    THIS_INCIDENT = "this_incident"
    OTHER_INCIDENT = "other_incident"
    SLURM = "slurm"
    CHECK = "check"
    """Of a check of the site whose drains a run may take over, as a [[drain]] row says."""
    PERSON = "person"


def format_reason(incident_id: int, fault_type: str, text: str, *, tag: str = "") -> str:
    """What stands on the node: `kintsugi:<incident>/<tag> <fault type>: <text>`."""
    of_run = f"/{tag}" if tag else ""
    return f"{_OURS}{incident_id}{of_run} {fault_type}: {text}"


def format_tag(site_id: str, run_id: int, started_at: datetime) -> str:
    """Names one run of one installation: another installation has another site id, and a database
    that was restored gives the same number to a run that began at another time."""
    seed = f"{site_id} {run_id} {started_at.timestamp()}"
    return f"{site_id}-{hashlib.sha256(seed.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Written:
    """A reason of ours as Slurm showed it after we had written it; by whom and when, where Slurm
    says so."""

    reason: str
    by: str = ""
    at: datetime | None = None

    def stands_in(self, state: NodeState) -> bool:
        """It is there as we wrote it, but for what Slurm itself appends: then it names itself as
        the one who set it.

        The time is not compared: a worker that died right after it had written the same once more
        has not kept when.
        """
        if state.reason == self.reason:
            return not self.by or not state.reason_set_by or state.reason_set_by == self.by
        return self.is_continued_by(state.reason)

    def is_continued_by(self, reason: str) -> bool:
        """The text is this one, with at most what Slurm itself appends."""
        rest = reason.removeprefix(self.reason)
        if reason == self.reason:
            return True
        return rest != reason and rest.startswith(_BETWEEN) and drain_reasons.is_slurms_text(rest)


def get_written(state: NodeState) -> Written:
    """What is kept of a node that we have drained, as it was read back, without what Slurm has
    appended since: then it shows itself as the one who set it."""
    reason = drain_reasons.strip_appended(state.reason)
    by = state.reason_set_by if reason == state.reason else ""
    return Written(reason, by, state.reason_changed_at)


def load_written(facts: Mapping[str, Any]) -> list[Written]:
    """What a run has written. One of an earlier version has kept the text alone."""
    rows = facts.get(WRITTEN)
    if rows:
        return [_parse_written(row) for row in rows]
    return [Written(facts["reason"])] if "reason" in facts else []


def _parse_written(row: Mapping[str, str]) -> Written:
    at = datetime.fromisoformat(row["at"]) if row.get("at") else None
    return Written(row["reason"], row.get("by", ""), at)


def get_owner(
    state: NodeState,
    incident_id: int,
    known: Sequence[Written] | None = None,
    *,
    slurm_user: str = SLURM_USER,
) -> Owner:
    """Who took the node out. A reason left on a node that takes jobs belongs to nobody: a
    resume keeps it there from 23.11 to 25.11, where no accounts are kept.

    `known` are the reasons that runs of ours wrote; what only looks like one, or was added to one,
    is a person's word. None: the text alone is believed, as for what nothing is done about.
    """
    if state.is_failing:
        return Owner.PERSON
    is_out = state.is_draining or state.base == "DOWN"
    if not is_out or not state.reason:
        return Owner.NOBODY
    if state.reason.startswith(_OURS):
        if known is not None and not any(written.stands_in(state) for written in known):
            return Owner.PERSON
        is_of_this = parse_incident(state.reason) == incident_id
        return Owner.THIS_INCIDENT if is_of_this else Owner.OTHER_INCIDENT
    if is_by_slurm(state, slurm_user):
        return Owner.SLURM
    check = find_check(state)
    return Owner.CHECK if check is not None and check.resume else Owner.PERSON


def find_check(state: NodeState) -> CheckDrain | None:
    """The row of the site's that explains the drain; None where none does."""
    return drain_reasons.find_check(state, catalog.load().drains)


def is_by_slurm(state: NodeState, slurm_user: str = SLURM_USER) -> bool:
    """Whether the reason is one that Slurm's own daemons write, set by a user that they run as."""
    return drain_reasons.is_slurms(state.reason, state.reason_set_by, slurm_user)


def parse_slurm_user(config: Mapping[str, str]) -> str:
    """`SlurmUser = slurm(64030)`, as `scontrol show config` prints it."""
    return config.get("SlurmUser", "").partition("(")[0] or SLURM_USER


def parse_incident(reason: str) -> int | None:
    """The incident that a reason of ours names."""
    found = _OF_INCIDENT.match(reason)
    return int(found[1]) if found else None


def says_reboot_issued(state: NodeState) -> bool:
    """Slurm appends to the reason when it sends the reboot; our drain wrote the reason anew."""
    return _REBOOT_ISSUED.search(state.reason) is not None


def ends_with_reboot_issued(state: NodeState) -> bool:
    """The last that Slurm says is that it has sent a reboot."""
    return state.reason.endswith(" : reboot issued")


@dataclass(frozen=True)
class Held:
    """Drained, and ours."""


@dataclass(frozen=True)
class Dropped:
    """Slurm let go of our drain, as it does past ResumeTimeout: drain again before anything
    else."""

    text: str


@dataclass(frozen=True)
class TakenOver:
    """A person changed the node since we drained it: respect that. `is_resumed`: it takes jobs
    again."""

    text: str
    is_resumed: bool


def evaluate_hold(
    state: NodeState, whose: Owner, *, drops_drains: bool = True
) -> Held | Dropped | TakenOver:
    """What became of the drain that this incident's run put on the node, and that it has not seen
    go.

    From 23.02 on slurmctld puts a reason of its own in the place of ours where a drained node
    registers with fewer GPUs (src/slurmctld/node_mgr.c, NODE_STATE_INVALID_REG): the drain stands,
    and stays ours.

    A node that is down without a drain was let go of by Slurm only where it still shows our reason,
    followed by Slurm's own word that it has given up, and this Slurm `drops_drains`: one that does
    takes the reason away when a person resumes the node. Without that word a person took the drain
    away (State=UNDRAIN).
    """
    who = state.reason_set_by or "someone else"
    if state.is_failing:
        return TakenOver(
            f'{state.name} was set to FAIL by {who}: "{state.reason}"', is_resumed=False
        )
    if state.is_draining and whose in (Owner.THIS_INCIDENT, Owner.SLURM):
        return Held()
    is_down = state.base == "DOWN"
    is_given_up = is_down and state.reason.endswith(_GIVEN_UP)
    may_be_dropped = not state.is_draining and is_given_up and drops_drains
    if may_be_dropped and whose is Owner.THIS_INCIDENT:
        return Dropped(f"Slurm dropped the drain of {state.name}")
    is_nobodys = whose in (Owner.THIS_INCIDENT, Owner.SLURM, Owner.NOBODY)
    if not state.is_draining and (is_nobodys or not is_down):
        return TakenOver(f"{state.name} was resumed by someone else", is_resumed=True)
    return TakenOver(
        f'{state.name} now has another reason, by {who}: "{state.reason}"', is_resumed=False
    )
