"""The table of the breaker. Data and constraints only: `runbooks.fleet.breaker` and
`runbooks.people.controls` alone write."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Breaker(models.Model):
    """One time the breaker tripped: nothing is taken out of service until a person closes it."""

    name = models.CharField(max_length=16, default="fleet")
    why = models.CharField(max_length=255)
    tripped_at = models.DateTimeField()
    closed_by = models.CharField(max_length=150, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_why = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering: ClassVar = ["-tripped_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(closed_at__isnull=True), name="one_open_breaker"
            )
        ]

    def __str__(self) -> str:
        return f"tripped at {self.tripped_at:%Y-%m-%d %H:%M %Z}: {self.why}"
