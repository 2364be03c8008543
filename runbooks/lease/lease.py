"""Who works on a run: a lease with a fence. A worker that comes late, after its lease was taken
over, is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, DateTimeField, Exists, F, OuterRef, Q, QuerySet, Value, When

from incidents.db.prepared import Given, Moment, Prepared
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.lease import withdrawal_reasons
from runbooks.models import UNFINISHED, Run, RunState, StepRun
from runbooks.plan.escalation_levels import STEPS_THAT_TOUCH

# A killed worker is missed within this and a sweep (10 s is the bar); one that
# lives is kept by its heartbeat for as long as its turn takes.
LEASE = timedelta(seconds=5)
# The fact of a run that opened a vendor case: which one.
VENDOR_CASE = "vendor_case"
SAID_AT = "said_at"
"""The fact that says when a run's `waiting_for` was written."""
REFUSED = "refused"
"""The fact that names the guard's reason while a run is refused."""
# A person may pause a run while a step of it is under way: what the step did is stored all the
# same.
_LIVE = (RunState.RUNNING, RunState.PAUSED)
_ENDED = tuple(state for state in RunState if state not in UNFINISHED)


class LateWorker(Exception):
    """The run was taken over, aborted or finished meanwhile: nothing of this turn is stored."""


def get_due_runs(now: Moment) -> QuerySet[Run]:
    """Runs whose time has come, or whose incident no longer wants them, and on which nobody works
    any more."""
    free = Q(leased_until=None) | Q(leased_until__lt=now)
    called = Q(wake_at__lte=now) | _is_unwanted() | _is_rooted_elsewhere()
    return Run.objects.filter(free & called, state=RunState.RUNNING)


def get_runs_to_check(now: Moment) -> QuerySet[Run]:
    """Ended and paused runs whose node is looked at once more."""
    free = Q(leased_until=None) | Q(leased_until__lt=now)
    return Run.objects.filter(free, wake_at__lte=now, state__in=(*_ENDED, RunState.PAUSED))


def _prepare(queue: Callable[[Moment], QuerySet[Run]]) -> tuple[Prepared, Prepared]:
    """All runs of the queue, and a single run of it."""
    drained_last = Case(When(claimed_at=None, then=Value(0)), default=Value(1))
    all_runs = Prepared(
        lambda: queue(Given("now")).order_by(drained_last, "wake_at").values_list("pk")
    )
    single_run = Prepared(
        lambda: queue(Given("now")).filter(pk=Given("run")).values_list("fence", "state")
    )
    return all_runs, single_run


_ALL_RUNS, _SINGLE_RUN = zip(_prepare(get_due_runs), _prepare(get_runs_to_check), strict=True)


def list_due_runs(now: datetime) -> list[int]:
    """Runs of both queues, those that are looked at once more last, and in each those first whose
    node is not drained yet."""
    return [pk for queue in _ALL_RUNS for pk in queue.values(now=now)]


def is_due(run_id: int, now: datetime) -> bool:
    return any(queue.rows(now=now, run=run_id) for queue in _SINGLE_RUN)


def _is_unwanted() -> Q:
    """What is only watched is watched until its incident is closed."""
    on_node = Q(node__isnull=False, incident__state__in=withdrawal_reasons.STATES)
    on_node &= ~Q(
        incident__state=State.AWAITING_VENDOR, facts__has_key=VENDOR_CASE
    )  # it waits for its part
    return on_node | Q(node__isnull=True, incident__state__in=list(CLOSED))


def _is_rooted_elsewhere() -> Q:
    """The incident's root is on another machine now, and the run has tried no cure: it ends without
    waiting."""
    rebooted = StepRun.objects.filter(run=OuterRef("pk"), name__in=STEPS_THAT_TOUCH)
    elsewhere = Q(incident__node=None) | ~Q(incident__node=F("node"))
    return Q(node__isnull=False) & elsewhere & ~Q(Exists(rebooted))


def move_times_back(step: timedelta, now: datetime) -> None:
    """The clock was set back: what was due by it, or leased, is so as long from now as it was."""
    for name in ("wake_at", "leased_until"):
        Run.objects.filter(**{f"{name}__gt": now}).update(**{name: F(name) - step})


_LEASED = Prepared(
    lambda: Run.objects.select_related("incident", "node").filter(pk=Given("run")).order_by()
)


def acquire(run_id: int, now: datetime) -> Run | None:
    """The run, leased to the caller; None when it is not due or somebody else was quicker."""
    found = (row for queue in _SINGLE_RUN for row in queue.rows(now=now, run=run_id))
    fence, state = next(found, (None, None))
    if fence is None:
        return None
    # By the fence alone: `due` joins the incident, and PostgreSQL does not look at a joined
    # condition again after it has waited for the row.
    unchanged = Run.objects.filter(pk=run_id, fence=fence, state=state)
    if unchanged.update(leased_until=now + LEASE, fence=fence + 1) != 1:
        return None
    (run,) = _LEASED.objects(run=run_id)
    leased: Run = run
    return leased


def update(run: Run, **values: Any) -> None:
    """Stores values under the lease and goes on. Raises LateWorker."""
    if _filter_leased(run).update(**values) != 1:
        raise LateWorker(f"run {run.pk}, fence {run.fence}")
    for name, value in values.items():
        setattr(run, name, value)


_STILL_LEASED = Prepared(
    lambda: Run.objects.filter(
        pk=Given("run"), fence=Given("fence"), state__among=Given("states")
    ).values_list("pk")
)


def check(run: Run) -> None:
    """Raises LateWorker where the lease has gone to another worker, or somebody has ended the run:
    this process stood still for longer than a lease."""
    states = [str(state) for state in _get_live_states(run)]
    if not _STILL_LEASED.rows(run=run.pk, fence=run.fence, states=states):
        raise LateWorker(f"run {run.pk}, fence {run.fence}")


def _filter_leased(run: Run) -> QuerySet[Run]:
    """The run's row, while the lease that this object holds is the last."""
    return Run.objects.filter(pk=run.pk, fence=run.fence, state__in=_get_live_states(run))


def _get_live_states(run: Run) -> Sequence[str]:
    return (run.state,) if run.finished_at is not None else _LIVE


def release(run: Run, *, wake_at: datetime | None, **values: Any) -> None:
    """Stores values and ends the lease; the run is due again at `wake_at`. Raises LateWorker."""
    update(run, leased_until=None, wake_at=wake_at, facts=run.facts, **values)


def release_paused(run: Run, *, wake_at: datetime | None) -> None:
    """As `release`, after a look at a paused run. One that a person has let go on since then is due
    when they have said. Raises LateWorker."""
    looked_at_again = Value(wake_at, output_field=DateTimeField())
    due_at = Case(When(state=RunState.PAUSED, then=looked_at_again), default=F("wake_at"))
    if _filter_leased(run).update(leased_until=None, facts=run.facts, wake_at=due_at) != 1:
        raise LateWorker(f"run {run.pk}, fence {run.fence}")
