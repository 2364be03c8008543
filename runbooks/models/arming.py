"""The table of armings. Data and constraints only: `runbooks.people.controls` begins and ends them,
`runbooks.fleet.armings` counts their runs, `runbooks.fleet.step_backs` takes a rung from them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from runbooks.models.run import Mode


class Arming(models.Model):
    """How far one runbook may go on some nodes, until a time, for so many runs. Where it holds no
    more, the runbook's own mode counts again."""

    class Scope(models.TextChoices):
        ALL = "all"
        NODES = "nodes"
        RACK = "rack"
        PARTITION = "partition"
        POD = "pod"

    runbook = models.CharField(max_length=64)
    mode = models.CharField(max_length=16, choices=Mode.choices)
    scope = models.CharField(max_length=16, choices=Scope.choices)
    place = models.CharField(
        max_length=255, blank=True, help_text="as it was named: gn[001-004], rack-3"
    )
    nodes = models.JSONField(default=list, blank=True, help_text="of the scope nodes: their names")
    until = models.DateTimeField()
    runs = models.PositiveIntegerField(
        null=True, blank=True, help_text="how many may take a node out by it; empty: no limit"
    )
    used = models.PositiveIntegerField(default=0, help_text="how many have")
    stepped_back_at = models.DateTimeField(
        null=True, blank=True, help_text="when its mode went down a rung by itself"
    )
    stepped_back_why = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=255)
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()
    ended_by = models.CharField(max_length=150, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_why = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering: ClassVar = ["-set_at", "-id"]
        _is_unended = Q(ended_at__isnull=True)
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(runs__isnull=True) | Q(used__lte=F("runs")),
                name="no_more_runs_than_an_arming_allows",
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["until"], condition=_is_unended, name="unended_arming_by_end")
        ]

    def __str__(self) -> str:
        return f"arming {self.pk} of {self.runbook}: {self.mode}"
