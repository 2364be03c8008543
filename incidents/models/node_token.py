"""The table of the tokens with which nodes' own checks speak. `incidents.inventory.node_tokens`
alone writes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from incidents.models.inventory import Node


class NodeToken(models.Model):
    """The token itself is known to the node alone: here is its SHA-256. Rows are never deleted."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="tokens")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=150)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.CharField(max_length=150, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="to the minute")
    last_address = models.CharField(
        max_length=45, blank=True, help_text="where its last use came from"
    )

    class Meta:
        ordering: ClassVar = ["node__name", "-pk"]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="node_token_by_expiry")]

    def __str__(self) -> str:
        return f"token {self.pk} of {self.node.name}"
