"""Tables of triage: why each fault is where it is, what is silenced, which jobs ran where and what
a fault cost them.

Data and constraints only. `Decision` is written with the change that it explains.
`incidents.maintenance.planning` (people), `following` (Slurm) and `silencing` (time) alone write
`Silence`; `incidents.jobs.jobs` alone `Job` and `JobNode`, `incidents.impact.impact` alone
`IncidentJob`.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Decision(models.Model):
    """One judgement about one fault, with its rule and the sentence that explains it; only ever
    appended."""

    class Kind(models.TextChoices):
        OPENED = "opened"
        JOINED = "joined"
        RECORDED = "recorded"
        HELD = "held"
        NEARLY = "nearly"
        REROOTED = "rerooted"
        MERGED = "merged"
        SPLIT = "split"
        WITHDRAWN = "withdrawn"
        CONCLUDED = "concluded"
        SILENCED = "silenced"
        ANNOUNCED = "announced"

    fault = models.ForeignKey(
        "Fault", null=True, blank=True, on_delete=models.CASCADE, related_name="decisions"
    )
    incident = models.ForeignKey(
        "Incident", null=True, blank=True, on_delete=models.CASCADE, related_name="decisions"
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    rule = models.CharField(
        max_length=64, blank=True, help_text="of the correlation rules; empty: none decided"
    )
    text = models.CharField(max_length=500)
    until = models.DateTimeField(null=True, blank=True, help_text="held: until when")
    actor = models.CharField(max_length=150, default="kintsugi")
    recorded_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.text


class Silence(models.Model):
    """What is not told for a time: a silence, a maintenance window, or a shelf (RFC 8632). Faults
    are recorded all the same. Empty `resource` or `fault_type` patterns match everything; one of
    the two is always given.
    """

    class Kind(models.TextChoices):
        SILENCE = "silence"
        MAINTENANCE = "maintenance"
        SHELF = "shelf"

    kind = models.CharField(max_length=16, choices=Kind.choices)
    resource = models.CharField(
        max_length=160, blank=True, help_text="a path or a pattern such as node/gn0*"
    )
    machines = models.JSONField(
        default=list, blank=True, help_text="maintenance: owners, such as node/gn001"
    )
    fault_type = models.CharField(
        max_length=96, blank=True, help_text="an id or a pattern such as nic.*"
    )
    reason = models.CharField(max_length=255)
    author = models.CharField(max_length=150, help_text="a person, or slurm for a reservation")
    origin = models.CharField(
        max_length=128, blank=True, help_text="the reservation it follows; empty: made by hand"
    )
    starts_at = models.DateTimeField()
    began_at = models.DateTimeField(
        null=True, blank=True, help_text="when open incidents were first held against it"
    )
    ends_at = models.DateTimeField(
        null=True, blank=True, help_text="empty: until its review, which is then required"
    )
    review_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="when it ended, by time or by a person"
    )
    ended_by = models.CharField(max_length=150, blank=True)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-starts_at", "-id"]
        permissions: ClassVar = [("silence", "Can silence faults and plan maintenance")]
        indexes: ClassVar = [
            models.Index(fields=["ended_at", "starts_at"], name="silence_in_force")
        ]
        _has_end_or_review = Q(ends_at__isnull=False) | Q(review_at__isnull=False)
        _is_unended_with_origin = Q(ended_at__isnull=True) & ~Q(origin="")
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=_has_end_or_review,
                name="no_silence_without_end_or_review",
            ),
            models.UniqueConstraint(
                fields=["origin"],
                condition=_is_unended_with_origin,
                name="one_window_per_reservation",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.resource or self.fault_type or 'machines'}: {self.reason}"


class Job(models.Model):
    """A job as Slurm last showed it. `resource` paths of jobs are `site/<cluster>/job/<job_id>`."""

    job_id = models.CharField(max_length=64)
    cluster = models.CharField(max_length=64, default="slurm")
    name = models.CharField(max_length=255, blank=True)
    user = models.CharField(max_length=150, blank=True)
    partition = models.CharField(max_length=64, blank=True)
    state = models.CharField(
        max_length=32, help_text="Slurm's own word, such as RUNNING, NODE_FAIL, CANCELLED"
    )
    node_count = models.PositiveIntegerField(default=0)
    gpus = models.PositiveIntegerField(
        default=0, help_text="of all its nodes together; 0: not known"
    )
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    checkpoint_at = models.DateTimeField(
        null=True, blank=True, help_text="its last checkpoint, where known"
    )
    seen_at = models.DateTimeField(help_text="when Slurm last showed it")

    class Meta:
        ordering: ClassVar = ["-started_at", "-id"]
        indexes: ClassVar = [models.Index(fields=["ended_at", "started_at"], name="job_by_time")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["cluster", "job_id", "started_at"], name="one_row_per_start_of_a_job"
            )
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} of {self.user}"


class JobNode(models.Model):
    """One node of one job."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="nodes")
    node = models.CharField(max_length=64)
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="as of its job: looked up by node and time"
    )

    class Meta:
        indexes: ClassVar = [models.Index(fields=["node", "ended_at"], name="job_by_node")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "node"], name="one_place_of_a_job_on_a_node")
        ]

    def __str__(self) -> str:
        return f"{self.job} on {self.node}"


class IncidentJob(models.Model):
    """What an incident cost one job. GPU-hours lost: the hang, and the work since its last
    checkpoint where known."""

    incident = models.ForeignKey("Incident", on_delete=models.CASCADE, related_name="jobs")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="incidents")
    nodes = models.PositiveIntegerField(
        default=1, help_text="of the job's nodes, those that the incident touches"
    )
    fault_at = models.DateTimeField(
        null=True, blank=True, help_text="when the fault that touched it began"
    )
    outcome = models.CharField(
        max_length=32, blank=True, help_text="how the job ended near the fault; empty: it runs"
    )
    is_harmed = models.BooleanField(
        default=False, help_text="it was lost to the fault; while it runs: it hangs"
    )
    gpu_hours_lost = models.FloatField(null=True, blank=True, help_text="empty: not known")
    is_estimate = models.BooleanField(
        default=True, help_text="without a checkpoint's time it is a lower bound"
    )
    owner_told_at = models.DateTimeField(null=True, blank=True)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-gpu_hours_lost", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["incident", "job"], name="one_impact_per_job")
        ]

    def __str__(self) -> str:
        return f"{self.job} in incident {self.incident_id}"


class JobSource(models.Model):
    """What is known of one cluster's jobs, and since when: without an answer of Slurm an impact is
    not known."""

    cluster = models.CharField(max_length=64, unique=True)
    asked_at = models.DateTimeField(null=True, blank=True)
    answered_at = models.DateTimeField(
        null=True, blank=True, help_text="when Slurm last listed its jobs"
    )
    accounts_at = models.DateTimeField(
        null=True, blank=True, help_text="when the accounting last told ended jobs"
    )
    accounts_back_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="since when it tells again after a long silence; empty: it was not silent",
    )
    has_accounts = models.BooleanField(
        null=True, blank=True, help_text="no: the site keeps no accounts"
    )
    complaint = models.CharField(
        max_length=255, blank=True, help_text="why there was no answer; empty: it works"
    )

    def __str__(self) -> str:
        return f"jobs of {self.cluster}"
