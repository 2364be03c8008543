"""Tables of what is known. Models hold data and constraints only; `incidents.services` alone
writes."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Exists, Index, OuterRef, Q

from detectors import resources
from detectors.faults import Action, Channel, ClearRule, Component, Recovery, Role, Severity
from incidents.models.inventory import (
    Node,
)
from incidents.models.node_state import NodeInterval
from incidents.models.triage import Silence
from incidents.vocabulary.lifecycle import CLOSED, OPEN, State

# Conditions of partial indexes: a query that names these states reads what is open, however
# much has been closed.
_OPEN_STATES = sorted(state.value for state in OPEN)
_IS_OPEN = Q(state__in=_OPEN_STATES)
_IS_UNSENT = Q(state__in=["failed", "sending", "unknown", "waiting"])


def _list_words(enum: type) -> list[tuple[str, str]]:
    return [(str(word), str(word).replace("_", " ")) for word in enum]  # type: ignore[attr-defined]


class FaultQuerySet(models.QuerySet["Fault"]):
    """Faults, by the words that people use for them."""

    def active(self) -> Self:
        return self.filter(is_active=True)

    def of_node(self, name: str) -> Self:
        return self.filter(owner=resources.node(name))


class Fault(models.Model):
    """A standing condition (an alarm in RFC 8632): active until it clears by its type's own
    rule."""

    fingerprint = models.CharField(max_length=32)
    fault_type = models.CharField(max_length=96)
    resource = models.CharField(max_length=160)
    qualifier = models.CharField(max_length=96, blank=True)
    owner = models.CharField(max_length=96, help_text="the machine: node/gn001, switch/leaf-03")
    component = models.CharField(max_length=32, choices=_list_words(Component))
    severity = models.CharField(max_length=16, choices=_list_words(Severity))
    action = models.CharField(max_length=16, choices=_list_words(Action))
    clears = models.CharField(max_length=16, choices=_list_words(ClearRule))
    code = models.PositiveIntegerField(null=True, blank=True)
    is_active = models.BooleanField(default=True)
    is_flapping = models.BooleanField(default=False)
    count = models.PositiveBigIntegerField(default=1)
    raised_at = models.DateTimeField(help_text="occurred_at of the first event: the device's clock")
    last_known_good_at = models.DateTimeField(null=True, blank=True)
    observed_at = models.DateTimeField(help_text="our clock when the first event was seen")
    recorded_at = models.DateTimeField(help_text="the database's clock")
    last_seen_at = models.DateTimeField()
    cleared_at = models.DateTimeField(null=True, blank=True)
    cleared_reason = models.CharField(max_length=255, blank=True)
    returns = models.PositiveIntegerField(
        default=0, help_text="how often it came back while its incident was open"
    )
    clock = models.CharField(
        max_length=8, default="device", help_text="whose time raised_at is: device, or ours"
    )
    lag_s = models.FloatField(
        default=0.0, help_text="how long before our sight of it the device dated its first event"
    )
    changes_at = models.JSONField(
        default=list, blank=True, help_text="its last changes of state, for flapping"
    )
    flap_percent = models.FloatField(
        default=0.0, help_text="weighted share of looks that changed its state"
    )
    excerpts = models.PositiveBigIntegerField(
        default=0, help_text="excerpts seen, of which ten are kept"
    )
    forger = models.CharField(
        max_length=8,
        blank=True,
        default="",
        db_default="",
        help_text="who could have written the best of what tells of it; empty: not known",
    )
    best_provenance = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="of the event that the fewest could have forged",
    )
    last_provenance = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="of the event by which it was seen last",
    )
    held_until = models.DateTimeField(
        null=True, blank=True, help_text="no incident before: the type's hold-down"
    )
    clears_at = models.DateTimeField(
        null=True, blank=True, help_text="clears by itself then, if it stays quiet"
    )

    objects = FaultQuerySet.as_manager()

    class Meta:
        _is_active = Q(is_active=True)
        _of_owner = (
            Index(fields=["owner", "is_active"], name="fault_by_owner"),
            Index(fields=["owner", "raised_at"], name="fault_by_onset"),
            Index(fields=["owner", "observed_at"], name="fault_by_sight"),
        )
        _of_fingerprint = (
            Index(fields=["fingerprint", "-id"], name="fault_by_fingerprint"),
            Index(fields=["fingerprint", "cleared_at"], name="fault_by_end"),
        )
        _of_active = (
            Index(fields=["clears_at"], condition=_is_active, name="fault_clears_at"),
            Index(fields=["held_until"], condition=_is_active, name="fault_held_until"),
        )
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["fingerprint"],
                condition=_is_active,
                name="one_active_fault_per_fingerprint",
            )
        ]
        indexes: ClassVar = [
            *_of_owner,
            Index(fields=["fault_type", "is_active"], name="fault_by_type"),
            *_of_fingerprint,
            Index(fields=["is_active", "id"], name="fault_list"),
            *_of_active,
        ]

    def __str__(self) -> str:
        return f"{self.fault_type} on {self.resource}"


class Evidence(models.Model):
    """An excerpt of what a fault was judged by: the first five and the last five of each fault."""

    fault = models.ForeignKey(Fault, on_delete=models.CASCADE, related_name="evidence")
    position = models.CharField(max_length=8, choices=[("first", "first"), ("last", "last")])
    slot = models.PositiveSmallIntegerField(
        help_text="0 to 4: the first five; 5 to 9: the last five, written in turn"
    )
    source = models.CharField(max_length=64)
    occurred_at = models.DateTimeField()
    excerpt = models.TextField()

    class Meta:
        ordering: ClassVar = ["occurred_at", "id"]
        verbose_name_plural = "evidence"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["fault", "slot"], name="one_excerpt_per_slot")
        ]

    def __str__(self) -> str:
        return self.excerpt[:80]


class SeenEvent(models.Model):
    """An event already counted, kept seven days. `key` is an event_id, or `k:` and the hash of a
    source_key; with `c:` and a fingerprint it is an end that found nothing standing, and
    `recorded_at` is when that was.
    """

    key = models.CharField(max_length=40, primary_key=True)
    recorded_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key


class SpoolMark(models.Model):
    """A range of a receiver's spool whose events are counted: what receivers of 0.1 ask for, which
    may run beside ours while a site is upgraded. The table goes with 0.3."""

    receiver = models.CharField(max_length=64)
    segment = models.BigIntegerField()
    start = models.BigIntegerField()
    end = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["receiver", "segment", "start"], name="one_mark_per_range"
            )
        ]

    def __str__(self) -> str:
        return f"{self.receiver} {self.segment}:{self.start}-{self.end}"


class InboxBatch(models.Model):
    """Events that a receiver has handed over and ingest has not counted yet; taken by `rank`
    (0, then 1, then 2: of a source over its share), then in order of arrival.

    Receiver, segment and start say where they lay in the receiver's spool: that makes the events'
    ids. A part of a batch (`is_part`) has the batch's key as its segment, no receiver, and events
    with their ids.
    """

    receiver = models.CharField(max_length=64)
    segment = models.BigIntegerField()
    start = models.BigIntegerField()
    rank = models.PositiveSmallIntegerField(help_text="0 is urgent: events of critical severity")
    payload = models.BinaryField(help_text="a JSON list of events in wire form, without their ids")
    size = models.PositiveIntegerField(help_text="bytes of the payload")
    recorded_at = models.DateTimeField()
    attempts = models.PositiveSmallIntegerField(
        db_default=0, help_text="how often a process began to count it and did not live to end it"
    )
    is_part = models.BooleanField(db_default=False)
    pod = models.CharField(
        max_length=32, db_default="", help_text="of a part: the pod that all of it is of"
    )

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["receiver", "segment", "start"], name="one_batch_of_a_place_in_a_spool"
            )
        ]
        indexes: ClassVar = [Index(fields=["rank", "id"], name="inbox_order")]

    def __str__(self) -> str:
        return f"{self.receiver} {self.segment}:{self.start}"


class SpoolPosition(models.Model):
    """The last batch of a receiver's spool that the inbox took: all before it may be removed
    there."""

    receiver = models.CharField(max_length=64, primary_key=True)
    segment = models.BigIntegerField()
    start = models.BigIntegerField()
    end = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.receiver} {self.segment}:{self.end}"


class QuarantinedEvent(models.Model):
    """An event that broke ingest, kept whole for a person to look at."""

    event_id = models.CharField(max_length=64, unique=True)
    wire = models.JSONField()
    error = models.TextField()
    recorded_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.event_id


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Incidents, by the words that people use for them."""

    def open(self) -> Self:
        return self.filter(state__in=_OPEN_STATES)

    def closed(self) -> Self:
        return self.filter(state__in=CLOSED)

    def out_of_service(self) -> Self:
        """Open ones that took their node out, unless Slurm was seen to give it jobs again since: a
        person may resume a node and leave the incident open."""
        serving = NodeInterval.objects.current().filter(is_serving=True)
        given_back = serving.filter(
            node=OuterRef("node__name"), since__gt=OuterRef("out_of_service_at")
        )
        out = self.open().filter(out_of_service_at__isnull=False, restored_at=None)
        return out.exclude(Exists(given_back))


class Incident(models.Model):
    """One response to one root cause."""

    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value.replace("_", " ")) for s in State],
        default=State.OPEN.value,
    )
    title = models.CharField(max_length=255)
    component = models.CharField(max_length=32, choices=_list_words(Component))
    fault_type = models.CharField(max_length=96)
    severity = models.CharField(max_length=16, choices=_list_words(Severity))
    action = models.CharField(max_length=16, choices=_list_words(Action))
    root_resource = models.CharField(max_length=160)
    owner = models.CharField(
        max_length=96, help_text="the root's machine: node/gn001, switch/leaf-03"
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="incidents"
    )
    root_fault = models.OneToOneField(
        Fault, null=True, blank=True, on_delete=models.PROTECT, related_name="rooted_incident"
    )
    duplicate_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="duplicates"
    )
    follows = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="followers",
        help_text="the earlier incident of the same fault",
    )
    is_confirmed = models.BooleanField(default=False)
    has_platform_signal = models.BooleanField(default=False)
    has_user_report = models.BooleanField(default=False)
    needs_human = models.TextField(
        blank=True, help_text="what a person is asked to do; empty: nothing"
    )
    held_until = models.DateTimeField(
        null=True, blank=True, help_text="no repair starts before: a wider cause is suspected"
    )
    held_reason = models.CharField(max_length=255, blank=True)
    silence = models.ForeignKey(
        Silence, null=True, blank=True, on_delete=models.SET_NULL, related_name="incidents"
    )
    announced_at = models.DateTimeField(
        null=True, blank=True, help_text="empty while a silence keeps it from people"
    )
    own_severity = models.CharField(
        max_length=16,
        choices=_list_words(Severity),
        blank=True,
        help_text="of its faults alone; severity may rise by impact",
    )
    nodes_touched = models.PositiveIntegerField(default=0)
    jobs_touched = models.PositiveIntegerField(default=0)
    gpu_hours_lost = models.FloatField(null=True, blank=True, help_text="empty: not known")
    impact_at = models.DateTimeField(
        null=True, blank=True, help_text="when its jobs were last counted; empty: not yet"
    )
    repaired_at = models.DateTimeField(
        null=True,
        blank=True,
        db_index=True,
        help_text="a run verified it, or a person resolved: older events are stale",
    )
    is_root_by_person = models.BooleanField(
        default=False, help_text="a person chose the root: rules leave it"
    )
    recovery = models.CharField(
        max_length=24, choices=_list_words(Recovery), default=str(Recovery.NONE)
    )
    onset_at = models.DateTimeField(help_text="first known bad, the device's clock")
    last_known_good_at = models.DateTimeField(null=True, blank=True)
    opened_at = models.DateTimeField(help_text="detected: our clock")
    recorded_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    out_of_service_at = models.DateTimeField(null=True, blank=True)
    restored_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField()

    objects = IncidentQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-opened_at", "-id"]
        permissions: ClassVar = [
            ("act_on_incident", "Can acknowledge, confirm, resolve and otherwise act on incidents")
        ]
        _of_open = (
            Index(fields=["node"], condition=_IS_OPEN, name="open_incident_by_node"),
            Index(fields=["owner"], condition=_IS_OPEN, name="open_incident_by_owner"),
        )
        _by_time = (
            Index(fields=["onset_at"], name="incident_by_onset"),
            Index(fields=["closed_at"], name="incident_by_end"),
        )
        indexes: ClassVar = [
            Index(fields=["state", "-opened_at"], name="incident_by_state"),
            Index(fields=["owner", "state"], name="incident_by_owner"),
            *_of_open,
            *_by_time,
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.title}"

    @property
    def is_open(self) -> bool:
        return State(self.state) not in CLOSED

    @property
    def channels(self) -> list[str]:
        seen = ((self.has_platform_signal, Channel.PLATFORM), (self.has_user_report, Channel.USER))
        return [str(channel) for has, channel in seen if has]


class IncidentFault(models.Model):
    """A fault's part in an incident, with the rule that joined it and the sentence that says
    why."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="members")
    fault = models.OneToOneField(Fault, on_delete=models.PROTECT, related_name="membership")
    role = models.CharField(max_length=8, choices=_list_words(Role))
    rule = models.CharField(max_length=64)
    reason = models.CharField(max_length=255)
    placed_by = models.CharField(
        max_length=150, default="kintsugi", help_text="a person's placing is kept by the rules"
    )
    joined_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["joined_at", "id"]

    def __str__(self) -> str:
        return f"{self.fault} ({self.role})"


class TimelineEntry(models.Model):
    """What happened, in order; only ever appended. `actor` is `kintsugi` or a person's user
    name."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="timeline")
    kind = models.CharField(max_length=32)
    actor = models.CharField(max_length=150)
    text = models.TextField()
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["id"]
        verbose_name_plural = "timeline entries"

    def __str__(self) -> str:
        return self.text


class KeptPeriod(models.Model):
    """One row, once something has been removed: since when the database knows of all that has
    ended. `incidents.statistics.kept_period` writes."""

    begins_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"kept since {self.begins_at:%Y-%m-%d}"


class UserReport(models.Model):
    """What a person told us, in their own words, and the incident it became part of."""

    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="reports")
    author = models.CharField(max_length=150)
    text = models.TextField()
    resource = models.CharField(max_length=160)
    reported_at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.author}: {self.text[:60]}"


class Notice(models.Model):
    """What people are told or asked of Kintsugi itself, which is of no incident: one message,
    written anew in place as it goes on."""

    kind = models.CharField(max_length=32)
    title = models.CharField(max_length=150)
    text = models.TextField(help_text="who asks what, where, until when")
    doing = models.TextField(help_text="what Kintsugi does now, or what became of it")
    asked = models.TextField(help_text="what a person can do")
    path = models.CharField(max_length=100, help_text="its page of the console")
    is_open = models.BooleanField(help_text="whether a person is asked still")
    written_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.title


class Notification(models.Model):
    """One message to one channel, written before it is sent, with the reason it is sent.

    `thread` rows follow their incident's `incident` row. Outcome unknown is a state of its own.
    A message of no incident has a notice in its place, and follows nothing.
    """

    class SendState(models.TextChoices):
        WAITING = "waiting"
        SENDING = "sending"
        UNKNOWN = "unknown"
        SENT = "sent"
        FAILED = "failed"

    incident = models.ForeignKey(
        Incident, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications"
    )
    notice = models.OneToOneField(
        Notice, null=True, blank=True, on_delete=models.CASCADE, related_name="notification"
    )
    channel = models.CharField(max_length=64, help_text="slack:C0123456, console")
    reason = models.CharField(
        max_length=32, help_text="card (the incident's own message) or the kind of a timeline entry"
    )
    sequence = models.PositiveIntegerField(help_text="0 is the card; its rows follow")
    entry = models.ForeignKey(TimelineEntry, null=True, blank=True, on_delete=models.CASCADE)
    state = models.CharField(max_length=8, choices=SendState.choices, default=SendState.WAITING)
    due_at = models.DateTimeField()
    leased_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    attempted_at = models.DateTimeField(
        null=True, blank=True, help_text="when a post of unknown outcome began"
    )
    message_ts = models.CharField(max_length=32, blank=True, help_text="Slack's id of the message")
    permalink = models.URLField(max_length=255, blank=True, help_text="card: where people read it")
    revision = models.PositiveIntegerField(
        default=0, help_text="card: raised with each change of its incident"
    )
    sent_revision = models.PositiveIntegerField(
        default=0, help_text="card: the revision that was last sent"
    )
    error = models.CharField(max_length=255, blank=True)
    recorded_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["incident", "channel", "sequence"], name="one_notification_per_sequence"
            )
        ]
        indexes: ClassVar = [
            Index(fields=["state", "due_at"], name="notification_due"),
            Index(fields=["channel", "due_at"], condition=_IS_UNSENT, name="unsent_by_channel"),
        ]

    def __str__(self) -> str:
        about = "no incident" if self.incident_id is None else f"incident {self.incident_id}"
        return f"{self.reason} of {about} to {self.channel}"


class NotificationChannel(models.Model):
    """When a channel takes its next message: its pace, a rate limit, or a refusal a person must
    mend."""

    name = models.CharField(max_length=64, primary_key=True)
    open_at = models.DateTimeField(help_text="nothing is sent there before")
    error = models.CharField(
        max_length=255, blank=True, help_text="what a person can do; empty: it works"
    )

    def __str__(self) -> str:
        return self.name
