"""How often runs ask that wait for room: the gravest and then the oldest each minute, the others
less often."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q

from detectors.faults import Severity
from runbooks.fleet import fleet
from runbooks.guards.table import GuardRefused
from runbooks.guards.verdicts import ROOM
from runbooks.models import Run, RunState

# Of the runs that wait for room so many ask each minute, the first ones; the next as many a minute
# later, and so on. Our choice: places come free one by one, and each asks slurmctld for all nodes.
_ASK_AT_ONCE, _TURN_OF_QUEUE, _LONGEST_TURN = 20, timedelta(minutes=1), timedelta(minutes=10)


def get_queue_delay(run: Run, refused: GuardRefused) -> timedelta:
    """How much later it asks, for those who go first: a thousand runs that all ask each minute
    would keep slurmctld and the database busy with the answer no."""
    if refused.kind not in ROOM:
        return timedelta(0)
    severity = Severity(run.incident.severity)
    is_graver = Q(incident__severity__in=fleet.list_graver(severity))
    is_older = Q(incident__severity=severity, pk__lt=run.pk)
    waiting = Run.objects.filter(state=RunState.RUNNING, claimed_at=None, node__isnull=False)
    before = waiting.filter(is_graver | is_older).count()
    return min(before // _ASK_AT_ONCE * _TURN_OF_QUEUE, _LONGEST_TURN)
