"""How often runs ask that wait for room: the oldest each minute, the others less often."""

from __future__ import annotations

from datetime import timedelta

from runbooks.guards.table import GuardRefused, Refusal
from runbooks.models import Run, RunState

# Of the runs that wait for room so many ask each minute, the oldest ones; the next as many a minute
# later, and so on. Our choice: places come free one by one, and each asks slurmctld for all nodes.
_ASK_AT_ONCE, _TURN_OF_QUEUE, _LONGEST_TURN = 20, timedelta(minutes=1), timedelta(minutes=10)
_ROOM = frozenset({Refusal.RATE, Refusal.CAP, Refusal.POD_FLOOR, Refusal.JOB_FLOOR})


def get_queue_delay(run: Run, refused: GuardRefused) -> timedelta:
    """How much later it asks, for those who were there first: a thousand runs that all ask each
    minute would keep slurmctld and the database busy with the answer no."""
    if refused.kind not in _ROOM:
        return timedelta(0)
    before = Run.objects.filter(
        state=RunState.RUNNING, claimed_at=None, node__isnull=False, pk__lt=run.pk
    ).count()
    return min(before // _ASK_AT_ONCE * _TURN_OF_QUEUE, _LONGEST_TURN)
