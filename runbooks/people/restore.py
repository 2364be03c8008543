"""After the database was restored from a backup: what happened since is not known, so nothing is
done on the strength of what was known then.

1. The stop switch is engaged: modes and switches are those of the backup.
2. Unfinished runs end where they are: their nodes may be another run's by now, or a person's.
3. Numbers go on above those that may have been used: incident 123 in a node's reason or in a
   message never names two.
4. Drains that say they are ours and that no run here knows of are listed: only a person can say
   what they were for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import connection
from django.db.models import AutoField, Max, Model

from incidents.models import Incident
from runbooks.engine import audit
from runbooks.models import Run, StopSwitch
from runbooks.people import controls, ended_runs
from runbooks.slurm import ownership
from runbooks.slurm.protocol import NodeState, SlurmError, SlurmReader

_SCHEMA_OR_QUOTE = re.compile(r"^.*\.|\"")
REASON = "The database was restored from a backup: what happened since then is not known."
# Our choice: more incidents, runs and messages than a site makes between two backups.
NUMBERS_LEFT_OUT = 10_000
_APPS = ("incidents", "runbooks")


@dataclass(frozen=True)
class UnknownDrain:
    """A node that is out with a reason of ours that no run of this database wrote."""

    node: str
    reason: str
    by: str
    since: datetime | None


@dataclass(frozen=True)
class Restored:
    """What was done. `drains`: None when Slurm did not answer, for which `slurm_error` has its
    words. `next_incident`: the lowest number that the next incident may have."""

    withdrawn: tuple[int, ...]
    next_incident: int
    drains: tuple[UnknownDrain, ...] | None
    slurm_error: str = ""


def follow_restore(slurm: SlurmReader, *, actor: str, now: datetime) -> Restored:
    """Does the four of them; may be called again. Acts on no node."""
    if not StopSwitch.objects.filter(released_at=None, reason=REASON).exists():
        controls.stop(REASON, actor=actor, now=now)
    unfinished = Run.objects.unfinished().select_related("incident", "node")
    withdrawn = tuple(run.pk for run in unfinished if _withdraw(run, actor=actor, now=now))
    try:
        nodes = list(slurm.read_nodes().values())
        error = ""
    except SlurmError as refusal:
        nodes, error = [], str(refusal)
    named = [number for state in nodes if (number := ownership.parse_incident(state.reason))]
    next_incident = _move_numbers_on(named)
    audit.record_person(actor, "restored", REASON, now=now)
    drains_found = None if error else tuple(_find_unknown_drains(nodes))
    return Restored(withdrawn, next_incident, drains_found, error)


def _withdraw(run: Run, *, actor: str, now: datetime) -> bool:
    """False when it ended meanwhile."""
    ask = f"Look at {run.place}: this run had drained it. Resume it when it is well."
    return ended_runs.withdraw(run, act="restored", reason=REASON, ask=ask, actor=actor, now=now)


def _find_unknown_drains(nodes: Sequence[NodeState]) -> list[UnknownDrain]:
    written: dict[int, list[ownership.Written]] = {}
    numbers = {number for state in nodes if (number := ownership.parse_incident(state.reason))}
    for incident, facts in Run.objects.filter(incident__in=numbers).values_list(
        "incident", "facts"
    ):
        written.setdefault(incident, []).extend(ownership.load_written(facts))
    found = []
    for state in sorted(nodes, key=lambda state: state.name):
        number = ownership.parse_incident(state.reason)
        is_out = state.is_draining or state.base == "DOWN"
        if number is None or not is_out:
            continue
        if not any(known.stands_in(state) for known in written.get(number, ())):
            found.append(
                UnknownDrain(state.name, state.reason, state.reason_set_by, state.reason_changed_at)
            )
    return found


# Numbers
# ---------------------------------------------------------------------------


def _move_numbers_on(named: Sequence[int]) -> int:
    """Of all tables: runs, messages and tasks of the lost time named them as well. `named`:
    incidents that Slurm shows."""
    above = max([Incident.objects.aggregate(most=Max("pk"))["most"] or 0, *named])
    next_incident = 0
    for model in apps.get_models():
        if model._meta.app_label in _APPS and isinstance(model._meta.pk, AutoField):
            least = above if model is Incident else 0
            number = _move_sequence_on(model, least)
            next_incident = number if model is Incident else next_incident
    return next_incident


def _move_sequence_on(model: type[Model], least: int) -> int:
    """The first number that it gives from now on."""
    table = model._meta.db_table
    used = max(model._default_manager.aggregate(most=Max("pk"))["most"] or 0, least)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_get_serial_sequence(%s, %s)", [table, "id"])
            sequence = _read_first_value(cursor)
            name = connection.ops.quote_name(_SCHEMA_OR_QUOTE.sub("", str(sequence)))
            cursor.execute(f"SELECT last_value FROM {name}")  # noqa: S608  (its own name)
            last = max(used, int(_read_first_value(cursor))) + NUMBERS_LEFT_OUT
            cursor.execute("SELECT setval(%s, %s)", [sequence, last])
        else:
            cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
            last = max(used, int(_read_first_value(cursor) or 0)) + NUMBERS_LEFT_OUT
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
            cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, last])
    return last + 1


def _read_first_value(cursor: Any) -> Any:
    row = cursor.fetchone()
    return row[0] if row else None
