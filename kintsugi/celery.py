"""The Celery app; its settings are Django's, its tasks stand in `kintsugi.tasks`."""

import os

from celery import Celery
from kombu.transport.redis import Channel

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")

# When Redis goes away while a task is under way, kombu 5.7 tries to put its message back through the connection that
# it has just closed, and the worker ends with "Unrecoverable error: 'NoneType' object has no attribute 'hostname'".
# The database is the queue of record, so the message need not be put back: spool and sweep offer its work again.
Channel.do_restore = False

app = Celery("kintsugi")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["kintsugi"])
