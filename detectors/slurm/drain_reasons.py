"""Who took a node out of service, read from what Slurm keeps of it: a person, Slurm itself, another
tool, or Kintsugi.

Pure; total on any text. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from typing import Optional

from detectors.faults import Word
from detectors.slurm.output import NodeState

OURS = "kintsugi:"
# Slurm joins what it appends to a reason that stands there already with this.
_JOIN = " : "
# What slurmctld and slurmd write themselves (src/slurmctld/node_mgr.c, job_mgr.c, agent.c,
# power_save.c and src/slurmd/slurmd/req.c of 21.08 to 25.05), by the word that we use for it.
_BY_SLURM: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("not_responding", r"Not responding"),
        ("kill_task_failed", r"Kill task failed"),
        ("prolog_error", r"Prolog error|Prolog/Epilog failure"),
        ("epilog_error", r"Epilog error"),
        ("batch_failure", r"batch job complete failure|Duplicate jobid"),
        ("unexpected_reboot", r"Node unexpectedly rebooted"),
        ("reboot_timed_out", r"reboot timed out"),
        ("reboot", r"reboot (?:issued|complete|requested)"),
        ("resume_timed_out", r"ResumeTimeout reached"),
        ("gres_count", r"gres/\S{1,128} count .*"),
        ("low_resources", r"Low (?:RealMemory|TmpDisk|CPUs).*|Low socket\*core.*"),
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


def cause(part: str) -> Optional[str]:
    """Our word for a reason that Slurm itself writes, such as `kill_task_failed`; None for anyone
    else's."""
    return next((word for word, pattern in _BY_SLURM if pattern.fullmatch(part.strip())), None)


def causes(reason: str) -> list[Optional[str]]:
    """Of each part of a reason that Slurm appended to."""
    return [cause(part) for part in reason.split(_JOIN) if part.strip()]


def is_slurms(reason: str, set_by: str, slurm_user: str = "slurm") -> bool:
    """Whether every part of it is Slurm's own and it was set by a user that Slurm's daemons run
    as."""
    found = causes(reason)
    return bool(found) and None not in found and set_by in _SLURM_USERS | {slurm_user}


def drainer(state: NodeState, slurm_user: str = "slurm") -> Drainer:
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
