"""The Celery app; its settings are Django's, its tasks stand in `kintsugi.tasks`."""

import os
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun
from django.db import close_old_connections
from kombu.transport.redis import Channel

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")

# When Redis goes away while a task is under way, kombu 5.7 tries to put its message back through the connection that
# it has just closed, and the worker ends with "Unrecoverable error: 'NoneType' object has no attribute 'hostname'".
# The database is the queue of record, so the message need not be put back: spool and sweep offer its work again.
Channel.do_restore = False

app = Celery("kintsugi")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["kintsugi"])


@task_prerun.connect
@task_postrun.connect
def _look_after_connections(**_: Any) -> None:
    """As between two requests: what is too old or broken is closed, what is left is tried before it is used."""
    close_old_connections()
