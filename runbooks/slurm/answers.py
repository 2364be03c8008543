"""What Slurm's programs said when they did not do, or did not answer, what was asked: as errors
that say what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from detectors.detector import Output
from runbooks.slurm.protocol import SlurmError

_NO_DATABASE = re.compile(r"Problem talking to the database: (.{1,80})")
_WITHOUT_WORDS = "it said nothing"


def words(output: Output) -> str:
    return (
        " ".join((output.stderr or output.stdout).decode(errors="replace").split())
        or _WITHOUT_WORDS
    )


def not_so(what: str, output: Output) -> SlurmError:
    return SlurmError(f"{what}; scontrol ended with status {output.status}: {words(output)}")


def without_accounts(output: Output) -> str:
    """sacct of 22.05.8: `Connection refused` where slurmdbd is down, `Unable to connect to
    database` behind it."""
    said = words(output)
    found = _NO_DATABASE.search(said)
    if found is not None:
        return (
            f"slurmdbd or its database is down or cannot be reached ({found[1]}), see"
            " slurmdbd's log"
        )
    return f"sacct ended with status {output.status}: {said}"


def error(argv: Sequence[str], output: Output) -> SlurmError:
    said = words(output)
    advice = ""
    if "Unable to contact slurm controller" in said:
        advice = (
            " slurmctld is down or cannot be reached: Kintsugi looks again, `scontrol ping` shows"
            " when it is back."
        )
    elif "permission" in said.lower() or "access denied" in said.lower():
        advice = (
            " This user needs Slurm's admin level Operator: `manage.py preflight` says which user"
            " it is."
        )
    return SlurmError(f"`{' '.join(argv)}` ended with status {output.status}: {said}.{advice}")
