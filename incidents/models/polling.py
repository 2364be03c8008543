"""Tables of polling: when each detector looks at each target next, what it remembers, and which
nodes are worked on.

Data and constraints only; `incidents.polling.polling` and, where a table says so, the module that
it names alone write.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class PollChunks(models.QuerySet["PollChunk"]):
    def of_target(self, target: str, kind: str) -> PollChunks:
        """The chunk of each detector that looks at this target."""
        return self.filter(kind=kind, targets__contains=f"\n{target}\n")


class PollChunk(models.Model):
    """Targets that one detector polls together. A round under way holds the row until
    `leased_until`.

    Three times a period the row is written; nothing that changes is indexed, so PostgreSQL writes
    it in place. The times stand before the names for the same reason: of a row that is written in
    place its log holds what lies between the first and the last byte that changed.
    """

    detector = models.CharField(max_length=64)
    kind = models.CharField(max_length=8, help_text="node, switch or site")
    number = models.PositiveIntegerField(help_text="counted from 0, within the detector")
    next_poll_at = models.DateTimeField()
    leased_until = models.DateTimeField(null=True, blank=True)
    polled_at = models.DateTimeField(
        null=True, blank=True, help_text="when its last round began, which all in step took part in"
    )
    size = models.PositiveIntegerField(help_text="how many targets")
    targets = models.TextField(help_text="names, each between line feeds")

    objects = PollChunks.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["detector", "kind", "number"], name="one_poll_chunk_per_number"
            )
        ]

    def __str__(self) -> str:
        return f"{self.detector}, chunk {self.number}"

    @property
    def names(self) -> list[str]:
        return self.targets.split()


class Poll(models.Model):
    """One detector on one target: what it remembers, written when that has changed, and how long
    the target has been silent.

    A target is in step while it has no `next_poll_at`: its chunk's rounds look at it. Who is
    silent, was late or is paused has a time and a lease of its own, and delays no other.
    """

    detector = models.CharField(max_length=64)
    kind = models.CharField(max_length=8, help_text="node, switch or site")
    target = models.CharField(max_length=64)
    next_poll_at = models.DateTimeField(null=True, blank=True, help_text="empty: with its chunk")
    leased_until = models.DateTimeField(null=True, blank=True)
    polled_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="when this row was written; in step, its chunk's may be later",
    )
    failures = models.PositiveIntegerField(
        default=0, help_text="polls in a row that the target did not answer"
    )
    memory = models.BinaryField(
        default=bytes, help_text="detectors.evaluation.judge.Memory as zlib-packed JSON"
    )

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["detector", "kind", "target"], name="one_poll_per_detector_and_target"
            )
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["detector", "next_poll_at"],
                name="poll_out_of_step",
                condition=models.Q(next_poll_at__isnull=False),
            ),
            models.Index(fields=["kind", "target"], name="poll_by_target"),
        ]

    def __str__(self) -> str:
        return f"{self.detector} on {self.kind}/{self.target}"


class NodeReport(models.Model):
    """When a node was last looked at out of turn (it posts what its own check saw, or a run
    looks), and by which detectors. Whoever looks so holds the row meanwhile."""

    node = models.CharField(max_length=64, primary_key=True)
    looked_at = models.DateTimeField(null=True, blank=True)
    detectors = models.JSONField(default=list, help_text="by name")

    def __str__(self) -> str:
        return self.node


class PollPause(models.Model):
    """Detectors that leave a node alone for a while, because its holder (a run) resets or tests its
    GPUs."""

    node = models.CharField(max_length=64)
    holder = models.CharField(max_length=64, help_text="who asked for it: run 17")
    detectors = models.JSONField(default=list, help_text="by name")
    why = models.CharField(max_length=255)
    since = models.DateTimeField()
    until = models.DateTimeField(help_text="ends then by itself, whoever died")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "holder"], name="one_pause_per_node_and_holder")
        ]

    def __str__(self) -> str:
        return f"{', '.join(self.detectors)} on {self.node}: {self.why}"


class RefusedSender(models.Model):
    """An address outside the accepted networks whose syslog a receiver refuses.
    `incidents.checks.refused_senders` writes."""

    address = models.CharField(max_length=64)
    transport = models.CharField(max_length=8, help_text="TCP or UDP")
    count = models.PositiveBigIntegerField(help_text="connections over TCP, datagrams over UDP")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["address", "transport"], name="one_refused_sender_per_address"
            )
        ]
        indexes: ClassVar = [models.Index(fields=["last_at"], name="refused_sender_by_time")]

    def __str__(self) -> str:
        return f"{self.address} over {self.transport}"


class PlannedWork(models.Model):
    """A node that Slurm says is worked on as planned. Its faults are recorded, and kept from people
    for that time."""

    node = models.CharField(max_length=64, primary_key=True)
    why = models.CharField(
        max_length=32, help_text="maintenance reservation, reboot or power saving"
    )
    since = models.DateTimeField()
    seen_at = models.DateTimeField(help_text="when Slurm last said so")
    until = models.DateTimeField(help_text="counts until then, unless Slurm says so again")

    class Meta:
        verbose_name_plural = "planned work"

    def __str__(self) -> str:
        return self.node


class PeriodicTask(models.Model):
    """Work with a period of its own: when it last began, and until when a process holds it.
    `incidents.checks.periodic_tasks` writes."""

    name = models.CharField(max_length=64, primary_key=True)
    began_at = models.DateTimeField(null=True, blank=True)
    leased_until = models.DateTimeField(
        null=True, blank=True, help_text="taken over by another process then; empty: not under way"
    )

    def __str__(self) -> str:
        return self.name


class SlurmReach(models.Model):
    """Which of the silent nodes Slurm hears, as it last answered.
    `incidents.checks.slurm_reach` writes."""

    cluster = models.CharField(max_length=64, primary_key=True)
    asked_at = models.DateTimeField()
    is_answering = models.BooleanField(help_text="no: Slurm itself could not be asked")
    heard = models.JSONField(default=list, help_text="names of the nodes that it hears")

    class Meta:
        verbose_name_plural = "Slurm reach"

    def __str__(self) -> str:
        return self.cluster
