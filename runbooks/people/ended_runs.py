"""Ends runs from outside their turns, where they are: whoever works on one stores nothing more."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from incidents.polling import poll_pauses
from incidents.state import transitions
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import Trigger
from runbooks.engine import audit
from runbooks.models import Run, RunState
from runbooks.steps.pause_pollers import get_holder


def withdraw(run: Run, *, act: str, reason: str, ask: str, actor: str, now: datetime) -> bool:
    """False when it ended meanwhile. `act` is its word in the audit log; `ask` is what a person is
    asked about a node that it had drained."""
    text = f"Run {run.pk} on {run.place} is withdrawn. {reason}"
    needs_human = ask if "drained_at" in run.facts else ""
    with transaction.atomic():
        live = Run.objects.unfinished().filter(pk=run.pk, fence=run.fence)
        ended = live.update(
            state=RunState.WITHDRAWN,
            outcome=reason,
            waiting_for="",
            finished_at=now,
            wake_at=None,
            leased_until=None,
            fence=F("fence") + 1,
        )
        if not ended:
            return False
        poll_pauses.end(get_holder(run.pk))
        audit.record_person(actor, act, text, now=now, run=run)
        acted = transitions.act(
            run.incident_id,
            Trigger.REPAIR_WITHDRAWN,
            actor=actor,
            note=text,
            now=now,
            needs_human=needs_human,
        )
        if isinstance(acted, Refused):
            transitions.record(
                run.incident_id,
                kind="run_withdrawn",
                text=text,
                actor=actor,
                now=now,
                needs_human=needs_human,
            )
    return True
