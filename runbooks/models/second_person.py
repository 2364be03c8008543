"""The table of what waits for a second person. Data and constraints only: `runbooks.second_person`
writes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class SecondPersonRequest(models.Model):
    """What one person asked for, to the word, and what became of it: nothing is done before a
    second person confirms just this."""

    class Kind(models.TextChoices):
        ARMING = "arming"
        WIDENING = "widening"
        COLD_CYCLE = "cold_cycle"

    class Order(models.TextChoices):
        MODE = "mode"
        ARMING = "arming"
        END_ARMING = "end_arming"
        APPROVAL = "approval"

    class Ending(models.TextChoices):
        CONFIRMED = "confirmed"
        REJECTED = "rejected"
        EXPIRED = "expired"
        OUTDATED = "outdated"

    kind = models.CharField(max_length=16, choices=Kind.choices)
    order = models.CharField(max_length=16, choices=Order.choices)
    runbook = models.CharField(max_length=64, help_text="* is the site")
    run = models.PositiveBigIntegerField(null=True, blank=True, help_text="of a step that waits")
    terms = models.JSONField(default=dict, help_text="the order as it was given, by name")
    what = models.TextField(help_text="the same as a sentence for people")
    mark = models.CharField(max_length=16, help_text="names the order and its terms")
    state = models.CharField(
        max_length=16, help_text="names the modes, armings and nodes that it was asked about"
    )
    notice = models.OneToOneField(
        "incidents.Notice",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        help_text="the message that asks for it; none where an incident asks",
    )
    asked_by = models.CharField(max_length=150)
    asked_at = models.DateTimeField()
    until = models.DateTimeField(help_text="nobody confirms it later")
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=150, blank=True)
    ending = models.CharField(max_length=16, choices=Ending.choices, blank=True)

    class Meta:
        ordering: ClassVar = ["-asked_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["mark"],
                condition=Q(ended_at__isnull=True),
                name="one_standing_request_per_order",
            )
        ]

    def __str__(self) -> str:
        return f"request {self.pk} of {self.asked_by}: {self.what}"
