"""Who works on a run: a lease with a fence. A worker that comes late, after its lease was taken over, is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from runbooks import withdrawing
from runbooks.models import Run, RunState, StepRun
from runbooks.steps.reboot import Reboot

# Longer than the longest step: four commands at 30 s each, which is also Celery's time limit for a task.
LEASE = timedelta(seconds=150)
# A person may pause a run while a step of it is under way: what the step did is stored all the same.
_LIVE = (RunState.RUNNING, RunState.PAUSED)


class LateWorker(Exception):
    """The run was taken over, aborted or finished meanwhile: nothing of this turn is stored."""


def due(now: datetime) -> QuerySet[Run]:
    """Runs whose time has come, or whose incident no longer wants them, and on which nobody works any more."""
    free = Q(leased_until=None) | Q(leased_until__lt=now)
    called = Q(wake_at__lte=now) | Q(incident__state__in=withdrawing.STATES) | _rooted_elsewhere()
    return Run.objects.filter(free & called, state=RunState.RUNNING)


def _rooted_elsewhere() -> Q:
    """The incident's root is on another machine now, and the run has rebooted nothing: it ends without waiting."""
    rebooted = StepRun.objects.filter(run=OuterRef("pk"), name=Reboot.name)
    return (Q(incident__node=None) | ~Q(incident__node=F("node"))) & ~Q(Exists(rebooted))


def take(run_id: int, now: datetime) -> Run | None:
    """The run, leased to the caller; None when it is not due or somebody else was quicker."""
    fence = due(now).filter(pk=run_id).values_list("fence", flat=True).first()
    if fence is None:
        return None
    # By the fence alone: `due` joins the incident, and PostgreSQL does not look at a joined condition again after
    # it has waited for the row.
    mine = Run.objects.filter(pk=run_id, fence=fence, state=RunState.RUNNING)
    if mine.update(leased_until=now + LEASE, fence=fence + 1) != 1:
        return None
    return Run.objects.select_related("incident", "node").get(pk=run_id)


def keep(run: Run, **values: Any) -> None:
    """Stores values under the lease and goes on. Raises LateWorker."""
    if Run.objects.filter(pk=run.pk, fence=run.fence, state__in=_LIVE).update(**values) != 1:
        raise LateWorker(f"run {run.pk}, fence {run.fence}")
    for name, value in values.items():
        setattr(run, name, value)


def give_back(run: Run, *, wake_at: datetime | None, **values: Any) -> None:
    """Stores values and ends the lease; the run is due again at `wake_at`. Raises LateWorker."""
    keep(run, leased_until=None, wake_at=wake_at, facts=run.facts, **values)
