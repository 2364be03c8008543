"""Wire: settings, Celery, tasks, pages that see incidents and runs together. Never a decision."""
