"""The table of who is alive among Kintsugi's own processes.

Data and constraints only; `incidents.checks.heartbeats` alone writes.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Heartbeat(models.Model):
    """A part of Kintsugi that a process does the work of, as the process itself last said.
    `kintsugi up` does several parts and has a row for each."""

    part = models.CharField(
        max_length=64, help_text="receiver, beat, web, or worker and its queues"
    )
    host = models.CharField(max_length=64)
    pid = models.PositiveIntegerField()
    version = models.CharField(max_length=32)
    queues = models.JSONField(default=list, help_text="of a worker: the queues that it serves")
    began_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    unbroken_since = models.DateTimeField(
        help_text="since when it has written without a gap: earlier the database may have been away"
    )
    backlog_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="of a receiver: spooled and not delivered"
    )
    backlog_since = models.DateTimeField(
        null=True, blank=True, help_text="since when its delivery stands still; empty: it does not"
    )
    directory = models.CharField(max_length=255, blank=True, help_text="where it writes files")
    disk_free = models.BigIntegerField(
        null=True, blank=True, help_text="bytes that it may still write there"
    )
    disk_size = models.BigIntegerField(null=True, blank=True, help_text="bytes of that file system")
    clock_ahead_s = models.FloatField(
        null=True, blank=True, help_text="its machine's clock before the database's, in seconds"
    )
    write_s = models.FloatField(
        null=True, blank=True, help_text="seconds that the quickest of its last writes took"
    )
    trouble = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="what keeps it from its work though it runs",
    )
    trouble_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["part", "host", "pid"], name="one_heartbeat_per_part_of_a_process"
            )
        ]

    def __str__(self) -> str:
        return f"{self.part} on {self.host}"
