"""The Celery app; its settings are Django's, its tasks stand in `kintsugi.tasks`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")

app = Celery("kintsugi")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["kintsugi"])
