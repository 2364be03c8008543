"""Many workers at once, each with its own connection: what counts, counts once, and nothing
breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction

from detectors.faults import Observation, to_wire
from detectors.receivers.delivery import PositionMoved
from detectors.receivers.spool import Batch, Extent
from incidents import services
from incidents.inventory import services as inventory
from incidents.models import (
    Fault,
    InboxBatch,
    Incident,
    IncidentFault,
    InService,
    Poll,
    SeenEvent,
)
from incidents.reserve import renames
from incidents.triage import inbox
from incidents.vocabulary.changes import Acted
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event, an_incident
from tests.services.locks import count_waiting
from tests.services.patience import patient
from tests.services.ports import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("database_on_disk")]

SECOND = timedelta(seconds=1)
HUNDRED = 100
SOME = 20


def at_once(jobs: list[Callable[[], object]]) -> list[object]:
    """Runs all jobs in threads that start together. Raises the first error of any."""
    gate = threading.Barrier(len(jobs))
    results: list[object] = [None] * len(jobs)
    errors: list[BaseException] = []

    def work(number: int, job: Callable[[], object]) -> None:
        try:
            gate.wait(patient(30))
            results[number] = job()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number, job)) for number, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(120))
    if errors:
        raise errors[0]
    return results


def test_first_event_told_by_a_hundred_workers_is_one_fault_that_counts_a_hundred() -> None:
    a_node()
    events = [an_event() for _ in range(HUNDRED)]
    at_once([lambda event=event: services.ingest([event], now=NOW) for event in events])  # type: ignore[misc]
    fault = Fault.objects.get()
    assert fault.count == HUNDRED
    assert Incident.objects.count() == 1
    assert SeenEvent.objects.count() == HUNDRED


def test_one_delivery_given_to_many_workers_counts_once() -> None:
    event = an_event(count=7, source_key="gn042|b|1.5|text")
    at_once([lambda: services.ingest([event], now=NOW) for _ in range(SOME)])
    assert Fault.objects.get().count == 7


def test_many_workers_count_each_batch_of_the_inbox_once() -> None:
    a_node()
    for number in range(HUNDRED):
        wire = to_wire(an_event(f"gpu.xid.{48 if number % 2 else 79}"))
        payload = json.dumps([wire]).encode()
        InboxBatch.objects.create(
            receiver="r1",
            segment=1,
            start=number,
            rank=number % 2,
            payload=payload,
            size=len(payload),
            recorded_at=NOW,
        )

    def work() -> int:
        counted = 0
        while services.ingest_waiting(NOW) is not None:
            counted += 1
        return counted

    at_once([work for _ in range(SOME)])
    assert not InboxBatch.objects.exists()
    assert sum(Fault.objects.values_list("count", flat=True)) == HUNDRED


def test_a_receiver_that_runs_twice_delivers_once() -> None:
    batch = Batch("r1", Extent(1, 0, 400), b"[]")

    def deliver() -> bool:
        try:
            inbox.put("r1", [batch], None, now=NOW)
        except PositionMoved:
            return False
        return True

    outcomes = at_once([deliver for _ in range(SOME)])
    assert sorted(outcomes, key=bool)[-2:] == [False, True]
    assert InboxBatch.objects.count() == 1


def test_faults_of_one_node_told_at_once_are_one_incident() -> None:
    a_node()
    paths = [f"node/gn042/gpu/0000:{number:02x}:00.0" for number in range(SOME)]
    at_once(
        [lambda path=path: services.ingest([an_event(resource=path)], now=NOW) for path in paths]
    )  # type: ignore[misc]
    assert Incident.objects.count() == 1
    assert IncidentFault.objects.filter(role="root").count() == 1
    assert IncidentFault.objects.count() == SOME


def test_batches_that_share_faults_in_other_orders_do_not_block_each_other() -> None:
    paths = [f"node/gn{number:03}/gpu/0000:19:00.0" for number in range(20)]
    batches = [
        [an_event(resource=path) for path in (paths if n % 2 else reversed(paths))]
        for n in range(16)
    ]
    at_once([lambda batch=batch: services.ingest(batch, now=NOW) for batch in batches])  # type: ignore[misc]
    assert set(Fault.objects.values_list("count", flat=True)) == {16}
    assert Incident.objects.count() == 20


def test_raises_clears_sweeps_and_restarts_at_once_leave_whole_incidents() -> None:
    a_node()
    jobs: list[Callable[[], object]] = []
    for number in range(8):
        at = NOW + number * SECOND
        jobs.append(lambda at=at: services.ingest([an_event("gpu.lost", GPU, at=at)], now=at))  # type: ignore[misc]
        jobs.append(lambda at=at: services.ingest([a_clear("gpu.lost", GPU, at=at)], now=at))  # type: ignore[misc]
        jobs.append(lambda at=at: services.ingest([an_event(resource=OTHER_GPU, at=at)], now=at))  # type: ignore[misc]
        jobs.append(lambda at=at: services.sweep(now=at))  # type: ignore[misc]
        jobs.append(
            lambda at=at, n=number: services.record_node_restart(
                "gn042", booted_at=at, boot_id=f"b{n}", now=at
            )  # type: ignore[misc]
        )
    at_once(jobs)
    assert Fault.objects.filter(is_active=True).count() == len(
        set(Fault.objects.filter(is_active=True).values_list("fingerprint", flat=True))
    )
    for incident in Incident.objects.all():
        assert incident.members.filter(role="root").count() == 1
        assert incident.members.get(role="root").fault_id == incident.root_fault_id


def test_one_of_two_people_wins_when_both_close_an_incident() -> None:
    incident = an_incident()
    outcomes = at_once(
        [
            lambda: services.act(incident.pk, Trigger.RESOLVE, actor="ada", now=NOW),
            lambda: services.act(
                incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="bob", note="test", now=NOW
            ),
        ]
        * 4
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, Acted)]
    # Resolved first, it may still be found to be a false positive; never the other way round.
    assert len(won) in (1, 2)
    incident.refresh_from_db()
    assert incident.timeline.count() == len(won)
    assert incident.state == "false_positive"


def test_one_replacement_seen_by_many_workers_is_one_row() -> None:
    a_node()
    inventory.store_observations([Observation(GPU, "gpu.serial", "1650001", NOW)], NOW)
    seen = [Observation(GPU, "gpu.serial", "1650002", NOW)]
    at_once([lambda: inventory.store_observations(seen, NOW + SECOND) for _ in range(SOME)])
    rows = InService.objects.order_by("id").values_list("serial", "to_at")
    assert list(rows) == [("1650001", NOW + SECOND), ("1650002", None)]


@pytest.mark.parametrize(
    "other",
    [
        lambda: services.ingest([an_event("gpu.xid.48", OTHER_GPU)], now=NOW),
        lambda: services.record_node_restart("gn042", booted_at=NOW, boot_id="b2", now=NOW),
        lambda: renames.rename("gn042", "gn420", actor="ada", why="moved", now=NOW),
    ],
    ids=["ingest", "a restart", "a new name"],
)
def test_a_round_of_polls_that_brings_parts_and_faults_waits_for_nobody_who_waits_for_it(
    other: Callable[[], object],
) -> None:
    a_node()
    inventory.store_observations([Observation(GPU, "gpu.serial", "1650001", NOW)], NOW)
    Poll.objects.create(detector="gpu_health", kind="node", target="gn042")
    parts_are_stored = threading.Event()

    def work_as_a_round_does() -> None:
        with transaction.atomic():
            list(Poll.objects.select_for_update())
            seen = [Observation(GPU, "gpu.serial", "1650002", NOW + SECOND)]
            inventory.store_observations(seen, NOW + SECOND)
            parts_are_stored.set()
            if connection.vendor == "postgresql":
                wait_until(count_waiting, within_s=30, what="the other waits for the round")
            services.ingest([an_event()], now=NOW + SECOND)

    def work_beside_it() -> None:
        parts_are_stored.wait(patient(30))
        with transaction.atomic():
            other()

    at_once([work_as_a_round_does, work_beside_it])
    assert InService.objects.filter(serial="1650002", to_at=None).exists()
    assert Fault.objects.filter(fault_type=an_event().fault_type).exists()


def test_a_link_that_many_workers_tell_of_ends_as_its_last_line_says() -> None:
    """Down, up, down, up, each by several paths: whichever comes first, the last by its own date
    decides."""
    a_node()
    link = "node/gn042/nic/mlx5_5"
    lines = [
        (an_event if number % 2 == 0 else a_clear)(
            "nic.link.down", link, at=NOW + number * SECOND, observed_at=NOW
        )
        for number in range(4)
    ]
    at_once(
        [
            lambda line=line: services.ingest([line], now=NOW + 5 * SECOND)
            for line in reversed(lines * 5)
        ]
    )  # type: ignore[misc]
    assert not Fault.objects.filter(is_active=True).exists()
    at_once(
        [
            lambda: services.ingest(
                [an_event("nic.link.down", link, at=NOW + 6 * SECOND)], now=NOW + 6 * SECOND
            )
        ]
        * 3
    )
    assert Fault.objects.get(is_active=True).count >= 3
