"""A person takes a node away for good: runs under way on it stop before their next step, and none
begins.

Writes rows alone; Slurm has the node as it had it.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from incidents.reserve import decommissions
from incidents.state import transitions
from incidents.vocabulary.changes import Refused
from runbooks.models import Run
from runbooks.outcomes import Controlled, ControlRefused, Outcome
from runbooks.people import controls


def begin(node: str, *, actor: str, why: str, now: datetime) -> Outcome:
    """Refused, with who set it and when, for a node that is being decommissioned already."""
    with transaction.atomic():
        text = decommissions.begin(node, actor=actor, why=why, now=now)
        if isinstance(text, Refused):
            return ControlRefused(text.reason)
        for run in Run.objects.unfinished().filter(node__name=node).order_by("pk"):
            note = f"{node} is being decommissioned."
            if isinstance(controls.abort(run.pk, actor=actor, note=note, now=now), Controlled):
                text = f"{text} Run {run.pk} is stopped."
                ask = f"{node} is being decommissioned: resolve its incident once it is gone."
                entry = f"{node} is left as it is."
                transitions.record(
                    run.incident_id, kind="run_note", text=entry, now=now, needs_human=ask
                )
    return Controlled(text)


def end(node: str, *, actor: str, why: str, now: datetime) -> Outcome:
    """It stays after all: what calls for a repair is repaired again. A run that was stopped stays
    stopped."""
    text = decommissions.end(node, actor=actor, why=why, now=now)
    return ControlRefused(text.reason) if isinstance(text, Refused) else Controlled(text)
