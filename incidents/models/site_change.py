"""What was changed at the site, as people or their tools told it.
`incidents.maintenance.site_changes` alone writes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class SiteChange(models.Model):
    """A commit of the site's settings, a playbook that ran, a hand's work. Never changed; one that
    is told again under its reference is the same."""

    at = models.DateTimeField(help_text="when it took effect")
    author = models.CharField(max_length=100)
    summary = models.CharField(max_length=300)
    reference = models.CharField(
        max_length=200,
        unique=True,
        null=True,
        blank=True,
        help_text="a commit, a ticket, the address of a run; empty: none",
    )
    machines = models.JSONField(
        default=list, help_text="paths of nodes and switches; empty: the whole site"
    )
    recorded_at = models.DateTimeField()
    recorded_by = models.CharField(max_length=150)

    class Meta:
        ordering: ClassVar = ["-at", "-pk"]
        indexes: ClassVar = [models.Index(fields=["at"], name="site_change_by_time")]

    def __str__(self) -> str:
        return f"{self.author}: {self.summary}"
