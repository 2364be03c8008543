"""The pipeline as Celery tasks, in order. What each does stands in `kintsugi.pipeline`; here it
gets its queue.

a line or a value  ->  ingest  ->  advance (one step of a repair)  ->  notify (one message)

The beat (CELERY_BEAT_SCHEDULE) calls sweep, which finds what a lost task left undone, and poll_due,
which enqueues the polls whose time has come; and in a queue of their own the tasks that may wait
for Slurm, so that a slurmctld that hangs holds up nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from celery import Task, shared_task
from celery.signals import beat_init, task_prerun, worker_process_init, worker_ready
from django.conf import settings
from django.db import Error, transaction
from kombu.exceptions import OperationalError

from detectors.catalog import catalog
from detectors.transports import error_text
from incidents.checks import own_health, periodic_tasks
from incidents.polling.polling import LEASE, Chunk
from incidents.triage import inbox
from kintsugi import celery as _app  # noqa: F401  (the app that the tasks belong to)
from kintsugi import clock
from kintsugi.clients import wiring
from kintsugi.health import broker, outside_ping, pager, reporter
from kintsugi.health.beat_scheduler import make_beat_part
from kintsugi.history import retention
from kintsugi.periodic import periods
from kintsugi.periodic.own_pace import OwnPace
from kintsugi.pipeline import Pipeline
from runbooks import services as runbooks

_log = logging.getLogger(__name__)
# A message due later than this is left to the sweep: Redis redelivers an ETA that outlives its
# visibility timeout.
_LONGEST_COUNTDOWN = timedelta(seconds=60)
# So long one task works the inbox off: far below the time limit of tasks, so that none is killed.
_GIVE_WAY_S = 10.0


@lru_cache(maxsize=1)
def pipeline() -> Pipeline:
    """One per process: connections to nodes and to Slack are kept."""
    world = wiring.build_world()
    watch = wiring.build_watch(world.shell)
    return Pipeline(
        world,
        wiring.build_notifier(),
        CeleryQueue(),
        clock=clock.now,
        catalog=catalog.load(),
        watch=watch,
        pace=OwnPace().measure,
    )


@worker_process_init.connect
def _open_doors(**_: Any) -> None:
    """Before the first task, so that the first fault does not wait for what every fault needs."""
    pipeline()


@task_prerun.connect
def _synchronise_clock(**_: Any) -> None:
    """A child of a worker has no reporter that does. A database that is away is met by the task."""
    if clock.is_old():
        with contextlib.suppress(Error):
            clock.synchronise()


@worker_ready.connect
def _report_worker(sender: Any, **_: Any) -> None:
    broker.keep_to_one_line()
    reporter.start([reporter.make_worker_part(list(sender.app.amqp.queues.consume_from))])


@beat_init.connect
def _report_beat(**_: Any) -> None:
    """`kintsugi up`, whose beat is one part of several, has started its reporter before."""
    broker.keep_to_one_line()
    reporter.start([make_beat_part()])


# 1. Events in the inbox become faults and incidents; repairs start at once.
@shared_task
def ingest(wires: Sequence[Mapping[str, Any]] = (), extent: Sequence[Any] | None = None) -> None:
    """Works until the inbox is empty, but not for ever: the rest is for the next task.

    `wires` come from a receiver of version 0.1, while a site is being upgraded.
    """
    if wires:
        pipeline().ingest(wires)
    if extent is not None:
        inbox.mark_counted(*extent)
    give_way_at = time.monotonic() + _GIVE_WAY_S
    while pipeline().ingest_waiting():
        if time.monotonic() > give_way_at:
            CeleryQueue().ingest()
            return


# 2. One detector looks at a chunk of targets. What waited until its lease has run out is no longer
#   asked.
@shared_task(expires=LEASE.total_seconds())
def poll(detector: str, targets: Sequence[str], lease: str, number: int | None = None) -> None:
    held_until = datetime.fromisoformat(lease)
    pipeline().poll(Chunk(detector, tuple(targets), held_until, number))


# 3. One step of one repair. A process that only looks leaves it to one that acts, unless it would
#   do nothing anyway.
@shared_task
def advance(run_id: int) -> None:
    if wiring.may_act() or runbooks.is_shadow(run_id):
        pipeline().advance(run_id)
    else:
        _log.warning(
            "run %s is left to the runbook worker: this process does not act (KINTSUGI_ACTS=no)",
            run_id,
        )


# What arming needs, looked at with the keys for acts; the console reads the report.
@shared_task
def preflight(by: str) -> None:
    if wiring.may_act():
        runbooks.report_preflight(pipeline().world, by=by, now=clock.now())


def ask_preflight(by: str) -> None:
    """Rings the process that acts."""
    _on_commit(preflight, by)


# 4. One message to one channel.
@shared_task
def notify(notification_id: int) -> None:
    pipeline().notify(notification_id)


# 5. Whatever is due and was not enqueued. It waits for nobody but the database.
@shared_task
def sweep() -> None:
    """In this order, and then the world outside is told that it was done:

    1. what no single machine tells becomes faults: our own overload, the management network, a
       blind detector, what many faults show together, a window whose review is due, the breaker,
       periodic work that is late, parts of Kintsugi that fell silent;
    2. people are asked where nothing moves: what asks is not settled by its faults' end;
    3. quiet, hold-downs and quiet periods end; windows begin and end;
    4. vendor cases and lent spares remind people; what became of cures is judged;
    5. repairs that are called for start, and runs whose time has come are enqueued;
    6. people are told.
    """
    pipeline().sweep()
    if settings.KINTSUGI["KINTSUGI_PING_URL"]:
        periodic_tasks.run_once(
            outside_ping.TASK,
            lambda: _on_commit(ping),
            clock=clock.now,
            every=outside_ping.EVERY,
        )
    if settings.KINTSUGI["KINTSUGI_ALERTMANAGER_URL"]:
        periodic_tasks.run_once(
            pager.TASK, lambda: _on_commit(page), clock=clock.now, every=pager.EVERY
        )


@shared_task(expires=outside_ping.EVERY.total_seconds())
def ping() -> None:
    """In the queue of messages: who is pinged learns that a sweep and they get on."""
    outside_ping.send(settings.KINTSUGI["KINTSUGI_PING_URL"])


@shared_task(expires=pager.EVERY.total_seconds())
def page() -> None:
    """What nobody has taken, to the site's Alertmanager. In the queue of messages: an address that
    does not answer holds up nothing else."""
    pager.page(settings.KINTSUGI["KINTSUGI_ALERTMANAGER_URL"], clock.now())


def evaluate_own_health() -> None:
    """By a process that no beat calls. While sweeps do it, it costs one question.

    While Redis takes nothing no worker can be rung for the message that says so: it is sent here.
    """
    if not own_health.is_done(clock.now()):
        pipeline().evaluate_own_health()
        if broker.find_trouble():
            pipeline().send_due_messages()


# 6. The polls that are due.
@shared_task
def poll_due() -> None:
    pipeline().poll_due(periods.POLL_DUE)


# 7. What may wait for Slurm: one process at a time does each, once a period.
@shared_task
def ask_reach() -> None:
    """Which of many silent nodes Slurm still hears."""
    pipeline().ask_reach()


@shared_task
def compare() -> None:
    """Cables by both ends, rails by several nodes."""
    pipeline().compare()


@shared_task
def update_jobs() -> None:
    """Slurm's jobs, and what open incidents cost them."""
    pipeline().update_jobs()


@shared_task
def look_at_nodes() -> None:
    """All of Slurm's nodes, for whoever shows or counts them."""
    pipeline().look_at_nodes()


@shared_task
def record_acts() -> None:
    """What people did to nodes, for the dry-run report."""
    pipeline().record_acts()


@shared_task
def follow_reservations() -> None:
    """Slurm's maintenance reservations as windows."""
    pipeline().follow_reservations()


# 8. What ended longer ago than KINTSUGI_KEEP, an hour's share at a time.
@shared_task
def prune_history() -> None:
    """To files, and out of the database."""
    keep: timedelta | None = settings.KINTSUGI["KINTSUGI_KEEP"]
    if keep is None:
        return

    def work() -> None:
        now = clock.now()
        most = retention.MOST_AT_ONCE
        retention.prune(settings.HISTORY_DIR, now - keep, now=now, most=most)

    every = periods.PRUNE_HISTORY
    periodic_tasks.run_once("prune_history", work, clock=clock.now, every=every)


class CeleryQueue:
    """Sends once the transaction is committed. A broker that is down costs time: the sweep sends
    again."""

    def ingest(self) -> None:
        _on_commit(ingest)

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        """A run in shadow goes to the workers that look at Slurm: a site without keys for acts has
        no others."""
        queue = "slurm" if runbooks.is_shadow(run_id) else "runbook"
        _on_commit(advance, run_id, countdown=_get_wait(at), queue=queue)

    def notify(self, notification_id: int, at: datetime | None = None) -> None:
        wait = _get_wait(at)
        if wait <= _LONGEST_COUNTDOWN:
            _on_commit(notify, notification_id, countdown=wait)

    def poll(self, chunk: Chunk) -> None:
        lease = chunk.lease.isoformat()
        _on_commit(poll, chunk.detector, list(chunk.targets), lease, chunk.number)


def _get_wait(at: datetime | None) -> timedelta:
    return max(timedelta(0), at - clock.now()) if at is not None else timedelta(0)


def _on_commit(
    task: Task[Any, Any],
    *arguments: Any,
    countdown: timedelta = timedelta(0),
    queue: str | None = None,
) -> None:
    transaction.on_commit(lambda: _send(task, arguments, countdown, queue))


def _send(
    task: Task[Any, Any], arguments: tuple[Any, ...], countdown: timedelta, queue: str | None
) -> None:
    route: dict[str, Any] = {"queue": queue} if queue else {}
    try:
        task.apply_async(arguments, countdown=countdown.total_seconds(), retry=False, **route)
    except (OperationalError, OSError) as error:
        broker.OUTAGE.begin(error_text.format_reason(error).rstrip("."))
    else:
        broker.OUTAGE.end()
