"""Sense: what a fault is, and how to see one. Plain Python: no Django, no Celery, no database."""
