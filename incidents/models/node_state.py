"""Slurm's nodes as they were looked at: the state of each as intervals, and when the last look was.

Data and constraints only; `incidents.inventory.node_states` alone writes.
"""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q


class NodeIntervals(models.QuerySet["NodeInterval"]):
    def current(self) -> Self:
        """The one of each node that has not ended."""
        return self.filter(until__isnull=True)


class NodeInterval(models.Model):
    """One node in one state, from the look that saw it first to the look that saw another one.

    Which jobs a node in service works on is no state of its own: `state` is then written in place.
    """

    node = models.CharField(max_length=64)
    state = models.CharField(max_length=255, help_text="Slurm's words: IDLE+DRAIN")
    is_serving = models.BooleanField(help_text="takes jobs of users")
    holder = models.CharField(
        max_length=64, blank=True, help_text="who keeps it from taking jobs; empty: nobody"
    )
    reason = models.CharField(max_length=255, blank=True)
    reason_set_by = models.CharField(max_length=64, blank=True)
    reason_set_at = models.DateTimeField(null=True, blank=True, help_text="by Slurm's clock")
    resume_after = models.DateTimeField(
        null=True, blank=True, help_text="when Slurm takes it back by itself, as its owner asked"
    )
    boot_time = models.DateTimeField(null=True, blank=True)
    slurmd_started_at = models.DateTimeField(null=True, blank=True)
    gpus = models.PositiveSmallIntegerField(default=0, help_text="as its slurmd registered them")
    jobs = models.PositiveIntegerField(
        default=0, help_text="that worked on it when it began, by the last list of jobs"
    )
    since = models.DateTimeField(help_text="the look that saw it first")
    until = models.DateTimeField(
        null=True, blank=True, help_text="the look that saw another state; empty: it is so now"
    )
    seen_at = models.DateTimeField(
        help_text="the look that wrote this row last; once it has ended, the last that saw it"
    )

    objects = NodeIntervals.as_manager()

    class Meta:
        ordering: ClassVar = ["-since", "-id"]
        _is_current = Q(until__isnull=True)
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node"], condition=_is_current, name="one_current_state_per_node"
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["node", "since"], name="node_interval_by_node"),
            models.Index(
                fields=["until"],
                condition=Q(until__isnull=False),
                name="node_interval_by_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node} {self.state} since {self.since:%Y-%m-%d %H:%M}"


class FleetLook(models.Model):
    """The last look at all of Slurm's nodes. One row: a fleet in which nothing has changed costs
    one UPDATE a look."""

    cluster = models.CharField(max_length=64, primary_key=True)
    asked_at = models.DateTimeField(help_text="when Slurm was asked last, whether it answered")
    answered_at = models.DateTimeField(
        null=True, blank=True, help_text="when the last look began that was answered"
    )
    silent_since = models.DateTimeField(
        null=True, blank=True, help_text="the first look without an answer; empty: it answers"
    )
    complaint = models.CharField(max_length=255, blank=True)
    took_ms = models.PositiveIntegerField(default=0, help_text="how long Slurm took to answer")
    nodes = models.PositiveIntegerField(default=0, help_text="how many it showed")
    slurm_user = models.CharField(
        max_length=64, blank=True, help_text="whom Slurm's daemons run as; empty: not known yet"
    )
    digest = models.CharField(max_length=64, blank=True, help_text="of all that it showed")

    def __str__(self) -> str:
        return self.cluster
