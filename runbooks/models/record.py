"""Tables of what was done and by whom, and of what would have been done beside what people did.

Data and constraints only: `runbooks.engine.audit` and `runbooks.shadow.shadow_log` alone write.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import models
from django.db.models import Q

from incidents.models import Incident, Node


class AppendOnly(Exception):
    """An entry of the audit log was to be changed or removed."""


class AuditQuerySet(models.QuerySet["AuditEntry"]):
    """Rows are read and appended; nothing else."""

    def update(self, **values: Any) -> NoReturn:
        raise AppendOnly("entries of the audit log are not changed")

    def delete(self) -> NoReturn:
        raise AppendOnly("entries of the audit log are not removed")

    def remove_exported(self) -> None:
        """Rows past KINTSUGI_KEEP that stand in a file by now: the one way out of the table."""
        self._raw_delete(self.db)


class AuditEntry(models.Model):
    """One line about one act, by names rather than references: it outlives what it names."""

    class Phase(models.TextChoices):
        BEGUN = "begun"
        DONE = "done"
        FAILED = "failed"
        UNKNOWN = "unknown"

    at = models.DateTimeField()
    actor = models.CharField(max_length=150, help_text="kintsugi, or who did it")
    act = models.CharField(
        max_length=64, help_text="a step that acts, or what a person did: approve, set_mode, stop"
    )
    phase = models.CharField(max_length=8, choices=Phase.choices)
    node = models.CharField(max_length=64, blank=True)
    incident = models.PositiveBigIntegerField(null=True, blank=True)
    run = models.PositiveBigIntegerField(null=True, blank=True)
    key = models.CharField(
        max_length=96, blank=True, help_text="of the step: its lines belong together"
    )
    text = models.TextField(blank=True)

    objects = AuditQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [models.Index(fields=["node", "at"], name="audit_by_node")]

    def __str__(self) -> str:
        return f"{self.act} {self.phase} by {self.actor}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise AppendOnly("entries of the audit log are not changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly("entries of the audit log are not removed")


class SeenNode(models.Model):
    """What Slurm showed of a node when it was last looked at: the next look tells what somebody
    did."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="seen")
    is_out = models.BooleanField(help_text="drained or down")
    is_ours = models.BooleanField(default=False, help_text="the reason is Kintsugi's")
    reason = models.CharField(max_length=255, blank=True)
    persons_reason = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        help_text="why a person took it out, kept while it is out: Slurm may write over it",
    )
    boot_time = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.node.name} as seen at {self.seen_at:%Y-%m-%d %H:%M}"


class SeenAct(models.Model):
    """What somebody other than Kintsugi did to a node, as Slurm shows it."""

    class Kind(models.TextChoices):
        DRAIN = "drain"
        REBOOT = "reboot"
        RESUME = "resume"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="seen_acts")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    at = models.DateTimeField(help_text="by Slurm where it says, else when it was seen")
    by = models.CharField(max_length=64, blank=True)
    text = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering: ClassVar = ["-at", "-id"]
        indexes: ClassVar = [models.Index(fields=["node", "kind", "at"], name="seen_act_by_node")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.node.name}"


class ShadowAct(models.Model):
    """What 0.1 compared: each act of a run in shadow, or of people without it. Nothing writes it
    any more, since acts are not what a site arms by; the table goes with 0.3."""

    class Verdict(models.TextChoices):
        OPEN = "open"
        AGREED = "agreed"
        DIFFERED = "differed"

    class Side(models.TextChoices):
        KINTSUGI = "kintsugi"
        PEOPLE = "people"

    class Judgement(models.TextChoices):
        NONE = ""
        KINTSUGI = "kintsugi"
        PEOPLE = "people"

    side = models.CharField(
        max_length=8, choices=Side.choices, help_text="who wanted the act first"
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="shadow_acts")
    incident = models.ForeignKey(
        Incident, null=True, blank=True, on_delete=models.CASCADE, related_name="shadow_acts"
    )
    run = models.ForeignKey(
        "runbooks.Run", null=True, blank=True, on_delete=models.CASCADE, related_name="shadow_acts"
    )
    runbook = models.CharField(max_length=64, blank=True)
    kind = models.CharField(max_length=8, choices=SeenAct.Kind.choices)
    at = models.DateTimeField(help_text="when Kintsugi would have begun, or people did it")
    settles_at = models.DateTimeField(help_text="what people did until then counts as the same act")
    verdict = models.CharField(max_length=8, choices=Verdict.choices, default=Verdict.OPEN)
    seen = models.OneToOneField(
        SeenAct, null=True, blank=True, on_delete=models.SET_NULL, related_name="shadow_act"
    )
    judged = models.CharField(
        max_length=8, choices=Judgement.choices, blank=True, default=Judgement.NONE
    )
    judged_by = models.CharField(max_length=150, blank=True)
    judged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-at", "-id"]
        permissions: ClassVar = [("judge_shadow", "Can judge where Kintsugi and people differed")]
        indexes: ClassVar = [models.Index(fields=["verdict", "settles_at"], name="shadow_act_due")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["run", "kind"],
                condition=Q(run__isnull=False),
                name="one_shadow_act_of_a_kind_per_run",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.node.name}: {self.verdict}"


class PreflightReport(models.Model):
    """What arming needs, as the process that acts found it. The console, which holds no key, reads
    the last one."""

    at = models.DateTimeField()
    by = models.CharField(max_length=150, help_text="who asked for it")
    checks = models.JSONField(default=list, help_text="name, is_ok, found and todo of each point")

    class Meta:
        ordering: ClassVar = ["-at", "-id"]

    def __str__(self) -> str:
        return f"preflight of {self.at:%Y-%m-%d %H:%M}"
