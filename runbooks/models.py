"""Tables of what is done. Models hold data and constraints only; `runbooks.services` alone writes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from incidents.models import Incident, Node


class Mode(models.TextChoices):
    OFF = "off"
    SHADOW = "shadow"
    APPROVAL = "approval"
    ARMED = "armed"


class RunState(models.TextChoices):
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    ABORTED = "aborted"
    SHADOWED = "shadowed"


UNFINISHED = (RunState.RUNNING, RunState.AWAITING_APPROVAL, RunState.PAUSED)


class Run(models.Model):
    """One execution of a runbook for one incident on one node."""

    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="runs")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="runs")
    runbook = models.CharField(max_length=64)
    fault_type = models.CharField(max_length=96)
    mode = models.CharField(max_length=16, choices=Mode.choices, help_text="the mode when the run started")
    state = models.CharField(max_length=24, choices=RunState.choices, default=RunState.RUNNING)
    step = models.PositiveSmallIntegerField(default=0, help_text="index into the runbook's steps")
    wake_at = models.DateTimeField(null=True, blank=True)
    waiting_for = models.CharField(max_length=255, blank=True, help_text="one sentence for people")
    leased_until = models.DateTimeField(null=True, blank=True)
    fence = models.PositiveIntegerField(default=0, help_text="raised with each lease; a late worker is refused")
    claimed_at = models.DateTimeField(
        null=True, blank=True, help_text="when it was allowed to take the node out: it counts against the cap"
    )
    facts = models.JSONField(default=dict, help_text="what steps must remember, such as boot_id_before")
    outcome = models.CharField(max_length=255, blank=True)
    approved_by = models.CharField(max_length=150, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-started_at", "-id"]
        permissions: ClassVar = [("control_run", "Can approve, pause, resume and abort runs")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(state__in=UNFINISHED), name="one_unfinished_run_per_node"
            )
        ]
        indexes: ClassVar = [models.Index(fields=["state", "wake_at"], name="run_due")]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.runbook} on {self.node.name}"


class StepRun(models.Model):
    """One attempt at one step. Stored with outcome `attempted` before the act: what stays so is unknown."""

    class Outcome(models.TextChoices):
        ATTEMPTED = "attempted"
        DONE = "done"
        WAITING = "waiting"
        FAILED = "failed"
        REFUSED = "refused"
        ALREADY_DONE = "already_done"
        WOULD_RUN = "would_run"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    text = models.TextField(blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [models.Index(fields=["name", "outcome", "started_at"], name="step_by_name")]

    def __str__(self) -> str:
        return f"{self.name} of run {self.run_id}: {self.outcome}"


class RunbookMode(models.Model):
    """How far a runbook may go. No row: shadow."""

    runbook = models.CharField(max_length=64, unique=True)
    mode = models.CharField(max_length=16, choices=Mode.choices, default=Mode.SHADOW)
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()

    class Meta:
        permissions: ClassVar = [("set_mode", "Can arm and disarm runbooks")]

    def __str__(self) -> str:
        return f"{self.runbook}: {self.mode}"


class FleetLock(models.Model):
    """One row, locked while a run asks to take a node out: the cap holds however many ask at once."""

    name = models.CharField(max_length=16, unique=True)

    def __str__(self) -> str:
        return self.name


class JobStop(models.Model):
    """A leave given to a node's own check to stop a job's start: the drain that follows counts against the cap."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="job_stops")
    fault_type = models.CharField(max_length=96)
    granted_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-granted_at"]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="job_stop_by_end")]

    def __str__(self) -> str:
        return f"{self.node.name}: {self.fault_type}"


class StopSwitch(models.Model):
    """While a row stands unreleased, nothing disruptive is done anywhere."""

    reason = models.CharField(max_length=255)
    engaged_by = models.CharField(max_length=150)
    engaged_at = models.DateTimeField()
    released_by = models.CharField(max_length=150, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "stop switches"
        permissions: ClassVar = [("use_stop_switch", "Can engage and release the stop switch")]

    def __str__(self) -> str:
        return f"engaged by {self.engaged_by}: {self.reason}"
