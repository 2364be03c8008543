"""Wire: settings, Celery, tasks, pages that see incidents and runs together. Never a decision."""

from kintsugi.celery import app as celery_app

__all__ = ["celery_app"]
