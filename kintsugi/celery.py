"""The Celery app; its settings are Django's, its tasks stand in `kintsugi.tasks`."""

import gc
import os
from functools import cache
from typing import Any

from celery import Celery
from celery.signals import beat_init, task_postrun, task_prerun, worker_init
from django.conf import settings
from django.db import close_old_connections

from kintsugi import startup

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")

# Celery's own run of Django's checks drops the answer and loads every page of the console.
os.environ.setdefault("CELERY_SKIP_CHECKS", "yes")

# When Redis goes away while a task is under way, kombu 5.7 tries to put its message back through
# the connection that it has just closed, and the worker ends with "Unrecoverable error: 'NoneType'
# object has no attribute 'hostname'". The database is the queue of record, so the message need not
# be put back: its work stands in the inbox and in the rows that the sweep looks at.
if settings.KINTSUGI["REDIS_URL"] is not None:
    from kombu.transport.redis import Channel

    Channel.do_restore = False


def build_app() -> Celery:
    """One more, for a worker among others in one process: an app knows one choice of queues."""
    made = Celery("kintsugi", set_as_current=False)
    made.config_from_object("django.conf:settings", namespace="CELERY")
    made.autodiscover_tasks(["kintsugi"])
    return made


app = build_app()
app.set_current()
app.set_default()  # for tasks that are sent from any thread of a process, such as the web's


@worker_init.connect
@beat_init.connect
def _require_checks(**_: Any) -> None:
    """A worker that cannot read its runbooks must not act, and nobody reads the journal of one that
    started."""
    _require_checks_once()


@cache
def _require_checks_once() -> None:
    """`kintsugi up` has several workers and a beat in one process."""
    startup.require(startup.CONFIGURATION, startup.SERVING)


@worker_init.connect
def _keep_memory_shared(**_: Any) -> None:
    """Before a worker forks: what it has read so far, the catalogue above all, is looked through by
    no child's garbage collection, which would copy it (`gc.freeze` in Python's documentation)."""
    gc.collect()
    gc.freeze()


@task_prerun.connect
@task_postrun.connect
def _look_after_connections(**_: Any) -> None:
    """As between two requests: what is too old or broken is closed, what is left is tried before it
    is used."""
    close_old_connections()
