"""What runs ask people, and what people answer. Data and constraints only."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Question(models.Model):
    """A question that one step of one run asks people; the run waits for the answer."""

    run = models.ForeignKey("runbooks.Run", on_delete=models.CASCADE, related_name="questions")
    key = models.CharField(max_length=96, unique=True, help_text="the step of the run that asks")
    text = models.CharField(max_length=255)
    asked_at = models.DateTimeField()
    answer = models.CharField(max_length=255, blank=True)
    answered_by = models.CharField(max_length=150, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-asked_at", "-id"]

    def __str__(self) -> str:
        return self.text
