"""What stands in a node's Comment in Slurm while Kintsugi holds it: which incident it is held for,
and where to read of that. Pure. A person's comment is never written over.

It is Comment and not Extra: jobs may be kept off a node by what its Extra holds
(https://slurm.schedmd.com/extra_constraints.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from detectors.slurm.output import NodeState
from runbooks.slurm import ownership

# Measured in 22.05, 24.11 and 26.05: one update takes state, reason and comment. A scontrol that
# does not know a word aborts the whole update (src/scontrol/update_node.c), and nothing older was
# measured.
_FIRST_VERSION = (22, 5)
_OURS = re.compile(r"kintsugi: incident \d{1,18}, \S{1,200}")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\b")


def format_comment(incident_id: int, incidents_at: str) -> str:
    """`incidents_at` is the address below which the console shows incidents."""
    return f"kintsugi: incident {incident_id}, {incidents_at}{incident_id}/"


def is_ours(comment: str) -> bool:
    """The whole of it: what a person has added to makes it theirs."""
    return _OURS.fullmatch(comment) is not None


def get_words(
    before: NodeState, reason: str, incidents_at: str, config: Mapping[str, str]
) -> tuple[str, ...]:
    """What is added to an update that writes this reason, or none: nothing where the comment is a
    person's, or as it should be already. Without an address none is written, and ours goes."""
    incident_id = ownership.parse_incident(reason)
    wanted = ""
    if incident_id is not None and incidents_at:
        wanted = format_comment(incident_id, incidents_at)
    is_free = not before.comment or is_ours(before.comment)
    if before.comment == wanted or not is_free or not _takes_comments(config):
        return ()
    return (f"Comment={wanted}",)


def _takes_comments(config: Mapping[str, str]) -> bool:
    """By `SLURM_VERSION = 22.05.8`, as `scontrol show config` prints it."""
    found = _VERSION.match(config.get("SLURM_VERSION", ""))
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_VERSION
