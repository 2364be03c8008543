"""Tables of what the vendor replaces, of hot spares, and of machines set aside as lemons. Data and
constraints only."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from incidents.models.inventory import Node
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import CaseState


def _list_states() -> list[tuple[str, str]]:
    return [(state.value, state.value) for state in CaseState]


class VendorCase(models.Model):
    """One part that the vendor replaces, from the call to the verified new part."""

    incident = models.ForeignKey(
        "incidents.Incident", on_delete=models.PROTECT, related_name="vendor_cases"
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="vendor_cases"
    )
    part = models.CharField(max_length=16, choices=[(part.value, part.value) for part in Part])
    resource = models.CharField(max_length=160, help_text="its slot: node/gn001/gpu/0000:19:00.0")
    old_serial = models.CharField(max_length=64, blank=True)
    new_serial = models.CharField(max_length=64, blank=True)
    vendor = models.CharField(max_length=64, blank=True)
    number = models.CharField(
        max_length=64, blank=True, help_text="the vendor's own number of the case"
    )
    state = models.CharField(max_length=16, choices=_list_states(), default=CaseState.OPENED.value)
    is_advance = models.BooleanField(
        default=False, help_text="the new part comes before the old one goes back"
    )
    dead_on_arrival = models.PositiveSmallIntegerField(default=0, help_text="new parts that failed")
    key = models.CharField(
        max_length=96, blank=True, help_text="the step of a run that opened it; empty: a person did"
    )
    opened_by = models.CharField(max_length=150)
    opened_at = models.DateTimeField()
    since_at = models.DateTimeField(help_text="in its state since then")
    reminded_at = models.DateTimeField(
        null=True, blank=True, help_text="when people were last told that it is late"
    )
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-opened_at", "-id"]
        permissions: ClassVar = [
            ("handle_vendor_case", "Can open and move vendor cases and take their evidence")
        ]
        _is_open = ~Q(state="closed")
        _has_key = ~Q(key="")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["part", "resource"],
                condition=_is_open,
                name="one_open_case_per_part",
            ),
            models.UniqueConstraint(fields=["key"], condition=_has_key, name="one_case_per_key"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["state", "since_at"], name="vendor_case_by_state")
        ]

    def __str__(self) -> str:
        return f"vendor case {self.pk}: {self.part} in {self.resource}"

    @property
    def is_open(self) -> bool:
        return self.state != CaseState.CLOSED


class VendorMove(models.Model):
    """One move of a case; only ever appended. `to_state` repeats `from_state` where only facts were
    added."""

    case = models.ForeignKey(VendorCase, on_delete=models.CASCADE, related_name="moves")
    from_state = models.CharField(max_length=16, choices=_list_states(), blank=True)
    to_state = models.CharField(max_length=16, choices=_list_states())
    move = models.CharField(
        max_length=16, help_text="what happened; open and note beside the moves"
    )
    actor = models.CharField(max_length=150)
    note = models.TextField(blank=True)
    serial = models.CharField(max_length=64, blank=True, help_text="of the part that it is about")
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"{self.move} of case {self.case_id} by {self.actor}"


class Spare(models.Model):
    """A machine kept ready to stand in for another: kept out of `partitions` or in `reservation`
    until it is needed."""

    class State(models.TextChoices):
        READY = "ready"
        ENTERING = "entering"
        SERVING = "serving"
        LEAVING = "leaving"

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="spare")
    partitions = models.JSONField(default=list, blank=True, help_text="where it stands in")
    reservation = models.CharField(
        max_length=64, blank=True, help_text="Slurm's reservation that keeps it free"
    )
    state = models.CharField(max_length=16, choices=State.choices, default=State.READY)
    stands_for = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="stand_ins"
    )
    incident = models.ForeignKey(
        "incidents.Incident",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="spares",
    )
    since_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["node__name"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["stands_for"],
                condition=Q(stands_for__isnull=False),
                name="one_spare_per_node",
            )
        ]

    def __str__(self) -> str:
        return f"spare {self.node.name}"


class Quarantine(models.Model):
    """A machine set aside as a lemon: nothing brings it back by itself."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="quarantines")
    incident = models.ForeignKey(
        "incidents.Incident",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="quarantines",
    )
    reason = models.CharField(max_length=255)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=150, blank=True)
    ended_why = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering: ClassVar = ["-began_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(ended_at__isnull=True), name="one_quarantine_per_node"
            )
        ]

    def __str__(self) -> str:
        return f"{self.node.name}: {self.reason}"
