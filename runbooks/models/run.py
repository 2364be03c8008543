"""Tables of what is done. Models hold data and constraints only; `runbooks.services` alone
writes."""

from __future__ import annotations

from typing import ClassVar, Self

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
    NOT_CURED = "not_cured"


UNFINISHED = (RunState.RUNNING, RunState.AWAITING_APPROVAL, RunState.PAUSED)


class RunQuerySet(models.QuerySet["Run"]):
    """Runs."""

    def unfinished(self) -> Self:
        return self.filter(state__in=UNFINISHED)


_ONE_PER_NODE = models.UniqueConstraint(
    fields=["node"],
    condition=Q(state__in=UNFINISHED),
    name="one_unfinished_run_per_node",
)
_ONE_PER_INCIDENT_BESIDE_NODES = models.UniqueConstraint(
    fields=["incident"],
    condition=Q(state__in=UNFINISHED, node__isnull=True),
    name="one_unfinished_run_beside_nodes_per_incident",
)


class Run(models.Model):
    """One execution of a runbook for one incident: on one node, or beside it where it acts on
    none."""

    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="runs")
    node = models.ForeignKey(
        Node,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="runs",
        help_text="empty: it acts on none, as where a switch is watched",
    )
    runbook = models.CharField(max_length=64)
    version = models.CharField(
        max_length=32, blank=True, help_text="of the runbook, when the run started"
    )
    plan = models.JSONField(
        default=list,
        help_text='the steps as they were then: [{"step": name, "with": {parameter: value}}]',
    )
    fault_type = models.CharField(max_length=96)
    mode = models.CharField(
        max_length=16, choices=Mode.choices, help_text="the mode when the run started"
    )
    state = models.CharField(max_length=24, choices=RunState.choices, default=RunState.RUNNING)
    step = models.PositiveSmallIntegerField(default=0, help_text="index into the runbook's steps")
    wake_at = models.DateTimeField(null=True, blank=True)
    waiting_for = models.TextField(blank=True, help_text="one sentence for people")
    leased_until = models.DateTimeField(null=True, blank=True)
    fence = models.PositiveIntegerField(
        default=0, help_text="raised with each lease; a late worker is refused"
    )
    claimed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="when it was allowed to take the node out: it counts against the cap",
    )
    facts = models.JSONField(
        default=dict, help_text="what steps must remember, such as boot_id_before"
    )
    outcome = models.TextField(blank=True)
    approved_by = models.CharField(max_length=150, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-started_at", "-id"]
        permissions: ClassVar = [("control_run", "Can approve, pause, resume and abort runs")]
        constraints: ClassVar = [_ONE_PER_NODE, _ONE_PER_INCIDENT_BESIDE_NODES]
        indexes: ClassVar = [models.Index(fields=["state", "wake_at"], name="run_due")]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.runbook} on {self.place}"

    @property
    def place(self) -> str:
        """The node's name, else that of the machine that its incident is on."""
        return self.node.name if self.node is not None else self.incident.owner.rpartition("/")[2]


class StepRun(models.Model):
    """One attempt at one step. Stored with outcome `attempted` before the act: what stays so is
    unknown."""

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
    key = models.CharField(
        max_length=96, blank=True, help_text="what the step leaves in the world carries it"
    )
    evidence = models.JSONField(
        default=dict, blank=True, help_text="what was seen, by what it is called"
    )
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [
            models.Index(fields=["name", "outcome", "started_at"], name="step_by_name")
        ]

    def __str__(self) -> str:
        return f"{self.name} of run {self.run_id}: {self.outcome}"


class CureAttempt(models.Model):
    """One rung of the ladder tried on one part for one fault type. Stored with the attempt, before
    the act.

    `serial` is the part's, where it is known: a new part begins at the foot of the ladder.
    """

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="cures")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="cures")
    resource = models.CharField(max_length=160, help_text="the part: node/gn001/gpu/0000:19:00.0")
    serial = models.CharField(max_length=64, blank=True)
    fault_type = models.CharField(max_length=96)
    rung = models.CharField(max_length=24, help_text="a Recovery of RUNGS")
    tried_at = models.DateTimeField()
    has_cured = models.BooleanField(null=True, blank=True, help_text="empty: not known yet")
    judged_at = models.DateTimeField(null=True, blank=True)
    why = models.CharField(max_length=255, blank=True, help_text="how it was judged")

    class Meta:
        ordering: ClassVar = ["-tried_at", "-id"]
        indexes: ClassVar = [
            models.Index(fields=["resource", "fault_type", "tried_at"], name="cure_by_part")
        ]

    def __str__(self) -> str:
        return f"{self.rung} of {self.resource} for {self.fault_type}"


class Approval(models.Model):
    """A person's leave for one step of one run, tied to the state that was shown when it was asked
    for."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="approvals")
    index = models.PositiveSmallIntegerField(help_text="the step, as in the run's plan")
    asked_at = models.DateTimeField()
    why = models.CharField(max_length=255, help_text="why a person is asked")
    shown = models.JSONField(default=dict, help_text="what the person was shown, by name")
    given_by = models.CharField(max_length=150, blank=True)
    given_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_why = models.CharField(
        max_length=255, blank=True, help_text="used, expired, or what had moved"
    )

    class Meta:
        ordering: ClassVar = ["-asked_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["run", "index"],
                condition=Q(ended_at__isnull=True),
                name="one_standing_approval_per_step",
            )
        ]

    def __str__(self) -> str:
        return f"approval of step {self.index} of run {self.run_id}"


class RunbookMode(models.Model):
    """How far a runbook may go. No row: shadow."""

    runbook = models.CharField(max_length=64, unique=True)
    mode = models.CharField(max_length=16, choices=Mode.choices, default=Mode.SHADOW)
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()
    stepped_back_at = models.DateTimeField(
        null=True, blank=True, help_text="when it went down a rung by itself, since a person set it"
    )
    stepped_back_why = models.CharField(max_length=255, blank=True, default="", db_default="")

    class Meta:
        permissions: ClassVar = [("set_mode", "Can arm and disarm runbooks")]

    def __str__(self) -> str:
        return f"{self.runbook}: {self.mode}"


class FleetLock(models.Model):
    """One row, locked while a run asks to take a node out: the cap holds however many ask at
    once."""

    name = models.CharField(max_length=16, unique=True)

    def __str__(self) -> str:
        return self.name


class Installation(models.Model):
    """One row, made by the first migration: what tells this installation's drains from those of
    another that speaks to the same Slurm, and from those of a database that was lost."""

    name = models.CharField(max_length=16, unique=True, default="site")
    site_id = models.CharField(max_length=8)

    def __str__(self) -> str:
        return self.site_id


class JobStop(models.Model):
    """A leave given to a node's own check to stop a job's start: the drain that follows counts
    against the cap."""

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


class ReturnStop(models.Model):
    """Beside a stop switch: while that stands, no node is given back either. A table of its own, so
    that the switch alone can be engaged in the middle of an upgrade."""

    switch = models.OneToOneField(StopSwitch, on_delete=models.CASCADE, related_name="return_stop")

    def __str__(self) -> str:
        return f"nothing is given back: {self.switch}"
