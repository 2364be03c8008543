"""What may be done about jobs that keep a broken node, by partition: a file of the site, and the
deed that is due for one job. Pure but for `load`.

Without a file, or for a partition that it does not name, jobs are waited for and people are asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from detectors import toml_text
from runbooks import parameters
from runbooks.slurm.jobs import SlurmJob

# As sbatch's --signal has them (sbatch(1)): `B:` signals the batch script, else its steps. Those
# that programs take for a checkpoint; what ends a job is a requeue's.
_SIGNAL = re.compile(r"(?P<batch>B:)?(?P<name>USR1|USR2|HUP|URG)")
_OTHERS = "*"
_KEYS = ("names", "tell", "signal", "requeue_at_checkpoint", "longest", "then")


class Then(StrEnum):
    """What is done with a job that has made no progress for so long."""

    ASK = "ask"
    REQUEUE = "requeue"


class Deed(StrEnum):
    TELL = "tell"
    SIGNAL = "signal"
    REQUEUE = "requeue"
    ASK = "ask"
    WAIT = "wait"


class JobPolicyError(ValueError):
    """The file is not what was expected; the message names it, and what is wrong."""


@dataclass(frozen=True)
class JobPolicy:
    """Of the jobs of these partitions. `tells`: their owner reads of the fault in the job's output.
    `signal` asks a job to write a checkpoint, the script's own shell with `is_batch`; empty: none.
    `longest` is how long a job may go without a new checkpoint."""

    partitions: tuple[str, ...]
    tells: bool = False
    signal: str = ""
    is_batch: bool = False
    requeues_at_checkpoint: bool = False
    longest: timedelta = timedelta(minutes=30)
    then: Then = Then.ASK


@dataclass(frozen=True)
class CaredJob:
    """What was done about a job already."""

    is_told: bool = False
    is_signalled: bool = False


def load(path: Path) -> tuple[JobPolicy, ...]:
    """Raises JobPolicyError."""
    try:
        read = toml_text.parse(path.read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise JobPolicyError(f"{path} cannot be read ({why}).") from error
    try:
        return parse(read)
    except ValueError as error:
        raise JobPolicyError(f"{path}: {error}.") from error


def parse(read: Mapping[str, Any]) -> tuple[JobPolicy, ...]:
    """Raises ValueError with what is wrong and what was expected."""
    rows = read.get("partition", [])
    if set(read) - {"partition"} or not isinstance(rows, list):
        raise ValueError("expected [[partition]] tables and nothing else")
    found = tuple(_parse_row(row) for row in rows)
    names = [name for policy in found for name in policy.partitions]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} stands in two tables")
    return found


def find_policy(policies: Sequence[JobPolicy], partition: str) -> JobPolicy | None:
    """The table that names the partition, else the one of all others."""
    for name in (partition, _OTHERS):
        for policy in policies:
            if name in policy.partitions:
                return policy
    return None


def choose_deed(
    job: SlurmJob, policy: JobPolicy, cared: CaredJob, *, seen_at: datetime, now: datetime
) -> Deed:
    """What is due for a job that holds what is broken, since that was seen. A job that has written
    a checkpoint since then loses nothing by starting anew."""
    if policy.tells and not cared.is_told:
        return Deed.TELL
    if policy.signal and not cared.is_signalled:
        return Deed.SIGNAL
    saved_at = job.checkpoint_at
    is_saved = saved_at is not None and saved_at > seen_at
    if is_saved and policy.requeues_at_checkpoint and job.is_requeueable:
        return Deed.REQUEUE
    moved_at = max(seen_at, saved_at) if saved_at is not None else seen_at
    if now - moved_at < policy.longest:
        return Deed.WAIT
    is_requeued = policy.then is Then.REQUEUE and job.is_requeueable
    return Deed.REQUEUE if is_requeued else Deed.ASK


def _parse_row(row: object) -> JobPolicy:
    if not isinstance(row, dict) or set(row) - set(_KEYS):
        raise ValueError(f"a [[partition]] has other keys than {', '.join(_KEYS)}")
    names = row.get("names")
    is_list = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not names or not is_list:
        raise ValueError(
            'names is no list of partitions; expected ["gpu"], or ["*"] for all others'
        )
    tells = _read_flag(row, "tell")
    requeues_at_checkpoint = _read_flag(row, "requeue_at_checkpoint")
    signal, is_batch = _read_signal(row)
    then = _read_then(row)
    return JobPolicy(
        partitions=tuple(names),
        tells=tells,
        signal=signal,
        is_batch=is_batch,
        requeues_at_checkpoint=requeues_at_checkpoint,
        longest=_read_longest(row),
        then=then,
    )


def _read_signal(row: Mapping[str, Any]) -> tuple[str, bool]:
    """Its name, empty for none, and whether it goes to the batch script alone."""
    given = row.get("signal")
    if not given:
        return "", False
    signal = _SIGNAL.fullmatch(str(given))
    if signal is None:
        raise ValueError(f"signal {given!r}; expected USR1, USR2, HUP or URG, or B:USR1")
    return signal["name"], signal["batch"] is not None


def _read_then(row: Mapping[str, Any]) -> Then:
    then = str(row.get("then", Then.ASK))
    if then not in list(Then):
        raise ValueError(f"then {then!r}; expected {parameters.format_choices(Then)}")
    return Then(then)


def _read_flag(row: Mapping[str, Any], key: str) -> bool:
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r}; expected true or false")
    return value


def _read_longest(row: Mapping[str, Any]) -> timedelta:
    given = row.get("longest", "30m")
    try:
        return parameters.parse_duration(given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"longest {given!r}; expected {parameters.DURATION}") from error
