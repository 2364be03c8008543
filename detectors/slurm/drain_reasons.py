"""Who took a node out of service, read from what Slurm keeps of it: a person, Slurm itself, another
tool, or Kintsugi.

Pure; total on any text. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from detectors.catalog.check_drains import CheckDrain
from detectors.faults import Word
from detectors.slurm.output import NodeState

OURS = "kintsugi:"
# Slurm joins what it appends to a reason that stands there already with this.
_JOIN = " : "
_JOB = r"(?: \(JobId=[^()]{1,128}\))?"
# What slurmctld and slurmd write themselves (src/slurmctld/node_mgr.c, job_mgr.c, agent.c,
# controller.c, read_config.c, power_save.c and src/slurmd of 21.08 to 26.05), by the word that we
# use for it. From 25.05 on the job is named: `Kill task failed (JobId=12 StepId=0)`
# (src/slurmd/slurmstepd/step_terminate_monitor.c).
_BY_SLURM: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("not_responding", r"Not responding"),
        ("kill_task_failed", rf"(?:Kill task failed|Job step not running){_JOB}"),
        ("prolog_error", r"Prolog error|Prolog/Epilog failure"),
        ("epilog_error", r"Epilog error"),
        ("job_environment", r"Job env setup error|switch_g_job_postfini failed"),
        ("spool_full", r"SlurmdSpoolDir is full"),
        ("no_address", r"NO NETWORK ADDRESS FOUND"),
        ("batch_failure", r"batch job complete failure|Duplicate jobid"),
        ("unexpected_reboot", r"Node unexpectedly rebooted"),
        ("reboot_timed_out", r"reboot timed out"),
        ("reboot", r"reboot (?:issued|complete|requested)"),
        ("resume_timed_out", r"ResumeTimeout reached"),
        # The counts end it: what a person adds is a person's.
        ("gres_count", r"gres/\S{1,128} count [a-z ]{1,64}\(\d{1,20} < \d{1,20}\)"),
        ("low_resources", r"Low (?:RealMemory|TmpDisk|CPUs).*|Low socket\*core.*|Bad core count"),
        ("other_configuration", r"CoreSpec differ.*|Could not unpack gres data.*"),
        ("other_features", r"Reported active features .*"),
        ("no_configuration", r"Failed to parse dynamic_conf nodeline"),
    )
)
# Health checks that drain nodes themselves, by how their reasons begin: LBNL's NHC
# (https://github.com/mej/nhc, helpers/node-mark-offline), Nebius soperator's checks
# (https://github.com/nebius/soperator/pull/1392), SageMaker HyperPod (Action:Replace,
# Action:Reboot), Azure's healthagent, and checks that name themselves as such.
_BY_TOOL = re.compile(
    r"NHC\b|\[(?:HC|node_problem|user_problem|hardware_problem)\]|Action:(?:Replace|Reboot)\b"
    r"|health[ _-]?(?:agent|check)",
    re.IGNORECASE,
)
_SLURM_USERS = frozenset({"", "root", "slurm"})


class Drainer(Word):
    """Who took a node out. `nobody`: no reason stands there, or the node is in service."""

    NOBODY = "nobody"
    KINTSUGI = "kintsugi"
    SLURM = "slurm"
    TOOL = "tool"
    PERSON = "person"


def find_cause(part: str) -> Optional[str]:
    """Our word for a reason that Slurm itself writes, such as `kill_task_failed`; None for anyone
    else's."""
    return next((word for word, pattern in _BY_SLURM if pattern.fullmatch(part.strip())), None)


def list_causes(reason: str) -> list[Optional[str]]:
    """Of each part of a reason that Slurm appended to."""
    return [find_cause(part) for part in reason.split(_JOIN) if part.strip()]


def is_slurms(reason: str, set_by: str, slurm_user: str = "slurm") -> bool:
    """Whether every part of it is Slurm's own and it was set by a user that Slurm's daemons run
    as."""
    return is_slurms_text(reason) and set_by in _SLURM_USERS | {slurm_user}


def is_slurms_text(reason: str) -> bool:
    """Whether every part of it is one that Slurm's own daemons write, whoever set it."""
    found = list_causes(reason)
    return bool(found) and None not in found


def strip_appended(reason: str) -> str:
    """The reason without what Slurm has put behind it since."""
    parts = reason.split(_JOIN)
    while len(parts) > 1 and is_slurms_text(parts[-1]):
        parts.pop()
    return _JOIN.join(parts)


def find_check(state: NodeState, checks: Sequence[CheckDrain]) -> Optional[CheckDrain]:
    """The first row that explains who took the node out; None for one in service, and for what
    none explains."""
    if not state.is_draining or not state.reason:
        return None
    reason = strip_appended(state.reason)
    return next((row for row in checks if row.fits(reason, state.reason_set_by)), None)


def classify_drainer(state: NodeState, slurm_user: str = "slurm") -> Drainer:
    """Who took the node out. Whatever cannot be told for certain to be a machine's is a
    person's."""
    if not state.is_out or not state.reason:
        return Drainer.NOBODY
    if state.reason.startswith(OURS):
        return Drainer.KINTSUGI
    if is_slurms(state.reason, state.reason_set_by, slurm_user):
        return Drainer.SLURM
    is_tools = _BY_TOOL.match(state.reason) is not None and state.reason_set_by in _SLURM_USERS | {
        slurm_user
    }
    return Drainer.TOOL if is_tools else Drainer.PERSON


_POWER_SAVING = frozenset(
    {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "CLOUD_DOWN"}
)
_HOLDER_OF_FLAG = {
    "MAINTENANCE": "a maintenance reservation",
    "BLOCKED": "a job that has its block of the topology alone",
    "REBOOT_ISSUED": "a reboot",
}


def find_holder(state: NodeState, slurm_user: str = "slurm") -> str:
    """Who keeps the node from taking jobs, in words; empty where it takes them.

    A reason comes first: whoever wrote it decided, whatever else holds the node besides.
    """
    if state.is_serving:
        return ""
    if state.is_failing:
        return state.reason_set_by or "a person"
    by = classify_drainer(state, slurm_user)
    if by is Drainer.PERSON:
        return state.reason_set_by or "a person"
    words = {Drainer.KINTSUGI: "Kintsugi", Drainer.TOOL: "a health check"}
    if by in words:
        return words[by]
    for flag, holder in _HOLDER_OF_FLAG.items():
        if flag in state.flags and by is Drainer.NOBODY:
            return holder
    if by is Drainer.NOBODY and state.flags & _POWER_SAVING:
        return "Slurm's power saving"
    return "Slurm itself"
