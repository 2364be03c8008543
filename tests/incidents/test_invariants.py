"""Whatever happens in whatever order, these things hold of faults and incidents."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Count
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from detectors.faults import EventKind, FaultEvent
from incidents import services
from incidents.models import Evidence, Fault, Incident, IncidentFault, TimelineEntry
from incidents.vocabulary.changes import ChangeKind
from incidents.vocabulary.lifecycle import CLOSED, State, Trigger
from tests.builders import NOW, a_node, an_event

pytestmark = pytest.mark.django_db

# Every way of clearing, sympathetic and not, on two GPUs of one node and one of another.
TYPES = (
    "gpu.xid.79",
    "gpu.lost",
    "gpu.xid.45",
    "gpu.xid.154",
    "nic.link.down",
    "nvlink.sxid.20034",
)
PARTS = (
    "node/gn042/gpu/0000:19:00.0",
    "node/gn042/gpu/0000:3b:00.0",
    "node/gn043/gpu/0000:19:00.0",
)
BY_PEOPLE = (
    Trigger.ACKNOWLEDGE,
    Trigger.CONFIRM,
    Trigger.REPAIR_STARTED,
    Trigger.REPAIR_SUCCEEDED,
    Trigger.REPAIR_FAILED,
    Trigger.HANDED_TO_VENDOR,
    Trigger.RESOLVE,
    Trigger.MARK_FALSE_POSITIVE,
    Trigger.MARK_DUPLICATE,
)


class Operations(RuleBasedStateMachine):
    """Events, clears, redeliveries, people, restarts and the passing of time, against one
    database."""

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.now = NOW
        self.delivered: list[FaultEvent] = []
        self.timeline: dict[int, tuple[Any, ...]] = {}

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    @initialize()
    def site(self) -> None:
        for name in ("gn042", "gn043"):
            a_node(name)

    def _ingest(self, events: list[FaultEvent]) -> None:
        changes = services.ingest(events, now=self.now)
        assert not [change for change in changes if change.kind is ChangeKind.QUARANTINED]
        self.delivered += events

    @rule(
        seconds=st.sampled_from([0, 1, 30, 90, 900, 4000]),
        batch=st.lists(
            st.tuples(
                st.sampled_from(TYPES), st.sampled_from(PARTS), st.booleans(), st.integers(1, 5)
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def events_come(self, seconds: int, batch: list[tuple[str, str, bool, int]]) -> None:
        self.now += timedelta(seconds=seconds)
        self._ingest(
            [
                an_event(
                    fault_type,
                    part,
                    at=self.now - timedelta(milliseconds=20),
                    kind=EventKind.RAISED if is_raised else EventKind.CLEARED,
                    count=count,
                )
                for fault_type, part, is_raised, count in batch
            ]
        )

    @rule(data=st.data())
    def a_delivery_is_repeated(self, data: st.DataObject) -> None:
        if self.delivered:
            before = Counter(dict(Fault.objects.values_list("pk", "count")))
            services.ingest([data.draw(st.sampled_from(self.delivered))], now=self.now)
            assert Counter(dict(Fault.objects.values_list("pk", "count"))) == before

    @rule(data=st.data(), trigger=st.sampled_from(BY_PEOPLE))
    def a_person_acts(self, data: st.DataObject, trigger: Trigger) -> None:
        ids = list(Incident.objects.order_by("pk").values_list("pk", flat=True))
        if ids:
            chosen, other = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))
            extra = {"duplicate_of_id": other} if trigger is Trigger.MARK_DUPLICATE else {}
            services.act(chosen, trigger, actor="ada", note="seen", now=self.now, **extra)

    @rule(node=st.sampled_from(["gn042", "gn043"]))
    def a_user_reports(self, node: str) -> None:
        services.report(
            author="kim",
            text="It hangs.",
            resource=f"node/{node}",
            occurred_at=self.now,
            now=self.now,
        )

    @rule(node=st.sampled_from(["gn042", "gn043"]))
    def a_node_restarts(self, node: str) -> None:
        services.record_node_restart(
            node, booted_at=self.now, boot_id=str(self.now.timestamp()), now=self.now
        )

    @rule(minutes=st.sampled_from([0, 2, 31, 24 * 60]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        services.sweep(now=self.now)

    @invariant()
    def one_active_fault_stands_per_fingerprint(self) -> None:
        doubled = (
            Fault.objects.filter(is_active=True)
            .values("fingerprint")
            .annotate(n=Count("pk"))
            .filter(n__gt=1)
        )
        assert not doubled.exists()

    @invariant()
    def every_incident_has_one_root_and_it_is_its_own(self) -> None:
        roots = dict(
            IncidentFault.objects.filter(role="root").values_list("incident_id", "fault_id")
        )
        # One that became part of another incident has none: its faults are there.
        own = Incident.objects.exclude(root_fault=None, state=State.DUPLICATE.value)
        assert roots == dict(own.values_list("pk", "root_fault_id"))
        assert IncidentFault.objects.filter(role="root").count() == len(roots)

    @invariant()
    def the_timeline_only_grows(self) -> None:
        now = {
            row[0]: row[1:]
            for row in TimelineEntry.objects.values_list("pk", "kind", "actor", "text")
        }
        assert {pk: now.get(pk) for pk in self.timeline} == self.timeline
        self.timeline = now

    @invariant()
    def times_and_states_agree(self) -> None:
        for incident in Incident.objects.all():
            assert (State(incident.state) in CLOSED) == (incident.closed_at is not None)
            assert (incident.state == "duplicate") == (incident.duplicate_of_id is not None)
            assert incident.state != "monitoring" or incident.restored_at is not None
            assert incident.timeline.exists()

    @invariant()
    def a_resolved_incident_leaves_no_fault_standing(self) -> None:
        assert not Fault.objects.filter(
            is_active=True, membership__incident__state="resolved"
        ).exists()

    @invariant()
    def faults_tell_when_they_ended_and_keep_ten_excerpts(self) -> None:
        assert not Fault.objects.filter(is_active=True, cleared_at__isnull=False).exists()
        assert not Fault.objects.filter(is_active=False, cleared_at__isnull=True).exists()
        assert (
            not Evidence.objects.values("fault").annotate(n=Count("pk")).filter(n__gt=10).exists()
        )


def test_operations_in_any_order_keep_the_invariants() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Operations,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_counts_add_up_to_what_was_raised() -> None:
    """Nothing clears here, so every event that is not a redelivery counts on some fault."""
    at: datetime = NOW
    total = 0
    for number in range(60):
        at += timedelta(seconds=7)
        event = an_event("gpu.xid.79", PARTS[number % 3], at=at, count=number % 4 + 1)
        services.ingest([event, event], now=at)
        total += event.count
    assert sum(Fault.objects.values_list("count", flat=True)) == total
