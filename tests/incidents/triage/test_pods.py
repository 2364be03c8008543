"""Batches of two pods are placed at the same time; whatever concerns both waits for both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from detectors.faults import FaultEvent
from incidents import services
from incidents.inventory import services as inventory
from incidents.models import Fault, Incident, IncidentFault
from incidents.topology.topology import NodePlace, StoragePlace, Topology
from incidents.triage.ingest import ingest
from tests.builders import NOW, a_clear, a_node, an_event
from tests.services.patience import patient
from tests.services.ports import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

GPU, OTHER_GPU = "0000:19:00.0", "0000:3b:00.0"


@pytest.fixture(autouse=True)
def _three_pods() -> None:
    a_node("gn001", pod="a")
    a_node("gn002", pod="b")
    a_node("gn003", pod="c")
    a_node("login", pod="")


def lost(node: str, gpu: str = GPU) -> FaultEvent:
    return an_event("gpu.xid.79", f"node/{node}/gpu/{gpu}")


def place(event: FaultEvent) -> None:
    ingest([event], now=NOW, by_pod=True)


@contextmanager
def while_placing(event: FaultEvent) -> Iterator[None]:
    """Another transaction has placed this and has not ended."""
    with transaction.atomic():
        place(event)
        yield


def start(job: Callable[[], object]) -> threading.Thread:
    def work() -> None:
        try:
            job()
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def is_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(cursor.fetchone()[0])


def has_locked_all_pods() -> bool:
    """Whether this transaction holds the one lock whose key is a single number, against all."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
            " AND mode = 'ExclusiveLock' AND pid = pg_backend_pid()"
        )
        return bool(cursor.fetchone()[0])


def test_a_batch_of_another_pod_is_placed_meanwhile() -> None:
    with while_placing(lost("gn001")):
        other = start(lambda: place(lost("gn002")))
        other.join(patient(30))
        assert not other.is_alive()
    assert Incident.objects.count() == 2


@pytest.mark.parametrize(
    "event",
    [
        lost("gn001", OTHER_GPU),
        lost("login"),
        an_event("switch.asic.error", "switch/spine-01"),
    ],
    ids=["of the same pod", "of no pod", "of what all pods share"],
)
def test_another_batch_waits(event: FaultEvent) -> None:
    with while_placing(lost("gn001")):
        other = start(lambda: place(event))
        wait_until(is_waiting_for_a_lock, within_s=30, what="the other batch to wait")
        assert Fault.objects.count() == 1
    other.join(patient(30))
    assert Fault.objects.count() == 2


def test_what_people_and_the_sweep_do_waits_for_every_pod() -> None:
    with while_placing(lost("gn001")):
        other = start(lambda: services.ingest([lost("gn002")], now=NOW))
        wait_until(is_waiting_for_a_lock, within_s=30, what="the other batch to wait")
    other.join(patient(30))
    assert Incident.objects.count() == 2


def test_two_batches_of_one_machine_at_once_make_one_incident() -> None:
    with while_placing(lost("gn001")):
        other = start(lambda: place(lost("gn001", OTHER_GPU)))
        wait_until(is_waiting_for_a_lock, within_s=30, what="the other batch to wait")
    other.join(patient(30))
    assert Incident.objects.get().members.count() == 2


def make_one_incident_of(first: FaultEvent, second: FaultEvent) -> None:
    place(first)
    place(second)
    incident, other = Incident.objects.order_by("pk")
    IncidentFault.objects.filter(incident=other).update(incident=incident, role="symptom")
    Incident.objects.filter(pk=other.pk).update(state="duplicate", root_fault=None)


def test_an_incident_that_reaches_into_another_pod_changes_under_the_locks_of_both() -> None:
    make_one_incident_of(lost("gn001"), lost("gn002"))
    with while_placing(a_clear("gpu.xid.79", f"node/gn001/gpu/{GPU}", at=NOW)):
        assert not has_locked_all_pods()
        of_a_third = start(lambda: place(lost("gn003")))
        of_a_third.join(patient(30))
        assert not of_a_third.is_alive()
        of_the_second = start(lambda: place(lost("gn002", OTHER_GPU)))
        wait_until(is_waiting_for_a_lock, within_s=30, what="the batch of the second pod to wait")
    of_the_second.join(patient(30))
    active = Fault.objects.active().order_by("owner").values_list("owner", flat=True)
    assert list(active) == ["node/gn002", "node/gn002", "node/gn003"]


def test_an_incident_that_reaches_to_no_pod_changes_under_the_lock_of_all() -> None:
    make_one_incident_of(lost("gn001"), lost("login"))
    with while_placing(a_clear("gpu.xid.79", f"node/gn001/gpu/{GPU}", at=NOW)):
        assert has_locked_all_pods()
    assert list(Fault.objects.active().values_list("owner", flat=True)) == ["node/login"]


def test_a_fault_of_one_machine_locks_its_pod_alone() -> None:
    with while_placing(lost("gn001")):
        assert not has_locked_all_pods()


def lost_by(pod: str, count: int) -> list[FaultEvent]:
    """So many clients of a pod lose the file system that all pods share."""
    names = [f"{pod}{number}" for number in range(count)]
    return [an_event("storage.lustre.connection_lost", f"node/{name}") for name in names]


@pytest.fixture
def _file_system_of_two_pods() -> None:
    """Ten of its clients are enough to conclude that it is lost."""
    names = [f"{pod}{number}" for pod in ("d", "e") for number in range(10)]
    nodes = tuple(NodePlace(name, pod=name[0]) for name in names)
    inventory.apply(Topology(nodes=nodes, storage=(StoragePlace("/lustre"),)), NOW)


@pytest.mark.usefixtures("_file_system_of_two_pods")
@pytest.mark.parametrize(("count", "locks_all"), [(1, False), (2, False), (3, True), (10, True)])
def test_symptoms_of_a_shared_place_lock_all_pods_where_those_on_their_way_may_be_enough(
    count: int, locks_all: bool
) -> None:
    with transaction.atomic():
        ingest(lost_by("d", count), now=NOW, by_pod=True)
        assert has_locked_all_pods() is locks_all


@pytest.mark.usefixtures("_file_system_of_two_pods")
@pytest.mark.parametrize(("before", "locks_all"), [(3, False), (4, True)])
def test_one_symptom_of_a_shared_place_locks_all_pods_once_half_of_what_is_needed_is_there(
    before: int, locks_all: bool
) -> None:
    *earlier, event = lost_by("d", before + 1)
    ingest(earlier, now=NOW, by_pod=True)
    with while_placing(event):
        assert has_locked_all_pods() is locks_all


@pytest.mark.usefixtures("_file_system_of_two_pods")
def test_two_batches_at_once_conclude_what_only_both_show() -> None:
    with transaction.atomic():
        ingest(lost_by("d", 5), now=NOW, by_pod=True)
        other = start(lambda: ingest(lost_by("e", 5), now=NOW, by_pod=True))
        wait_until(is_waiting_for_a_lock, within_s=30, what="the other batch to wait")
    other.join(patient(30))
    concluded = Fault.objects.filter(fault_type="storage.service_lost")
    assert [fault.resource for fault in concluded] == ["storage/lustre"]
