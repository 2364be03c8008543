"""What Slurm's programs said when they did not do, or did not answer, what was asked: as errors
that say what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from detectors.detector import Output
from runbooks.slurm.protocol import SlurmError

_NO_DATABASE = re.compile(r"Problem talking to the database: (.{1,80})")
_WITHOUT_WORDS = "it said nothing"


def format_output(output: Output) -> str:
    return (
        " ".join((output.stderr or output.stdout).decode(errors="replace").split())
        or _WITHOUT_WORDS
    )


def build_mismatch(what: str, output: Output) -> SlurmError:
    return SlurmError(
        f"{what}; scontrol ended with status {output.status}: {format_output(output)}"
    )


def explain_no_accounts(output: Output) -> str:
    """sacct of 22.05.8: `Connection refused` where slurmdbd is down, `Unable to connect to
    database` behind it."""
    text = format_output(output)
    found = _NO_DATABASE.search(text)
    if found is not None:
        return (
            f"slurmdbd or its database is down or cannot be reached ({found[1]}), see"
            " slurmdbd's log"
        )
    return f"sacct ended with status {output.status}: {text}"


def build_error(argv: Sequence[str], output: Output) -> SlurmError:
    text = format_output(output)
    advice = ""
    if "Unable to contact slurm controller" in text:
        advice = (
            " slurmctld is down or cannot be reached: Kintsugi looks again, `scontrol ping` shows"
            " when it is back."
        )
    elif "permission" in text.lower() or "access denied" in text.lower():
        advice = (
            " This user needs Slurm's admin level Operator: `kintsugi preflight` says which user"
            " it is."
        )
    return SlurmError(f"`{' '.join(argv)}` ended with status {output.status}: {text}.{advice}")
