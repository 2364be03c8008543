"""Who waits for whom in PostgreSQL."""

from __future__ import annotations

from django.db import connection


def count_waiting() -> int:
    """Sessions that wait for what this one has locked."""
    query = (
        "SELECT count(DISTINCT pid) FROM pg_locks"
        " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0])
