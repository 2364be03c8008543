"""Log lines that no signature takes, as templates: what people look at to widen the catalogue."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class UnreadTemplate(models.Model):
    """One form of a line of one program. `incidents.checks.unread_lines` writes."""

    key = models.CharField(max_length=12, unique=True, help_text="by which people name it")
    program = models.CharField(max_length=80)
    template = models.CharField(max_length=400, help_text="the message; what varies is <*>")
    severity = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="syslog's 0 to 7, the worst seen"
    )
    count = models.PositiveBigIntegerField(help_text="lines")
    first_at = models.DateTimeField(help_text="when Kintsugi first heard one")
    last_at = models.DateTimeField(help_text="when it last did")
    samples = models.JSONField(default=list, help_text="whole lines, the first and the last ones")
    told_at = models.DateTimeField(
        null=True, blank=True, help_text="when the site's maintainers were told"
    )

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["last_at"], name="unread_template_by_time"),
            models.Index(fields=["program"], name="unread_template_by_program"),
        ]

    def __str__(self) -> str:
        return f"{self.program}: {self.template}"


class UnreadOnMachine(models.Model):
    """That lines of a template came from a machine. `incidents.checks.unread_lines` writes."""

    template = models.ForeignKey(UnreadTemplate, on_delete=models.CASCADE, related_name="machines")
    machine = models.CharField(max_length=64, help_text="short host name")
    count = models.PositiveBigIntegerField(help_text="lines")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    sample = models.TextField(help_text="the last line")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["template", "machine"], name="one_row_per_template_and_machine"
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["machine", "last_at"], name="unread_by_machine_and_time")
        ]

    def __str__(self) -> str:
        return f"{self.template_id} on {self.machine}"
