"""What ends the process that counts it is found and put aside; a storm is sorted by pod, so that
workers share it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.db.models import F

from detectors.faults import to_wire
from incidents import services
from incidents.models import Fault, InboxBatch, QuarantinedEvent
from incidents.triage import inbox
from tests.builders import NOW, a_clear, a_node, an_event
from tests.services.patience import patient

LINK = "nic.link.down"
PODS = {"gn001": "a", "gn002": "a", "gn003": "b", "login": ""}
POISON, HARMLESS = "gpu.xid.48", "gpu.xid.79"
ROOT = Path(__file__).parents[3]
# A worker in a process of its own. The statement that stores the poison kills it as a fault in
# compiled code would: no exception, nothing rolled back by us.
WORKER = f"""
import os, signal
from datetime import datetime
import django
django.setup()
from django.db import connection
from incidents.triage import inbox

def kill(execute, sql, params, many, context):
    if sql.startswith('INSERT INTO "incidents_fault"') and {POISON!r} in str(params):
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(sql, params, many, context)

now = datetime.fromisoformat({NOW.isoformat()!r})
with connection.execute_wrapper(kill):
    while inbox.ingest_waiting(now) is not None:
        pass
"""
MOST_LIVES = 12


def put(*types: str, number: int = 0) -> None:
    """One batch with a fault of each of these types."""
    wires = []
    for gpu, fault_type in enumerate(types):
        wires.append(to_wire(an_event(fault_type, f"node/gn042/gpu/0000:{gpu:02x}:00.0")))
    put_wires(wires, number)


def put_wires(wires: Sequence[Mapping[str, object]], number: int) -> None:
    """As a receiver hands a batch over."""
    payload = json.dumps(wires).encode()
    InboxBatch.objects.create(
        receiver="r1",
        segment=1,
        start=number,
        rank=1,
        payload=payload,
        size=len(payload),
        recorded_at=NOW,
    )


def database_environment() -> dict[str, str]:
    """The test's own database, for another process."""
    database = connection.settings_dict
    user, host, port = database["USER"], database["HOST"], database["PORT"]
    return {"DATABASE_URL": f"postgresql://{user}@{host}:{port}/{database['NAME']}"}


def run_worker(folder: Path) -> int:
    """How it ended: 0, or minus the signal that killed it."""
    environment = {
        "KINTSUGI_DATA_DIR": str(folder),
        "DJANGO_SETTINGS_MODULE": str(settings.SETTINGS_MODULE),
    }
    worker = subprocess.run(
        [sys.executable, "-c", WORKER],
        check=False,
        cwd=ROOT,
        env=os.environ | environment | database_environment(),
    )
    return worker.returncode


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
def test_an_event_that_kills_each_worker_is_put_aside_and_the_others_count(tmp_path: Path) -> None:
    a_node()
    put(HARMLESS, POISON, HARMLESS)
    put(HARMLESS, number=1)
    ends = []
    while InboxBatch.objects.exists() and len(ends) < MOST_LIVES:
        ends.append(run_worker(tmp_path))
    assert set(ends[:-1]) == {-signal.SIGKILL}
    assert ends[-1] == 0
    aside = QuarantinedEvent.objects.get()
    assert aside.wire["fault_type"] == POISON
    assert "ended 5 times" in aside.error
    counted = Fault.objects.filter(fault_type=HARMLESS).values_list("resource", "count")
    assert sorted(counted) == [
        ("node/gn042/gpu/0000:00:00.0", 2),
        ("node/gn042/gpu/0000:02:00.0", 1),
    ]


@pytest.mark.django_db
def test_a_database_that_fails_is_not_held_against_the_batch() -> None:
    def fail(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if sql.startswith('INSERT INTO "incidents_fault"'):
            raise OperationalError("the server closed the connection")
        return execute(sql, params, many, context)

    put(HARMLESS)
    for _ in range(2 * MOST_LIVES):
        with pytest.raises(OperationalError), connection.execute_wrapper(fail):
            inbox.ingest_waiting(NOW)
    assert InboxBatch.objects.get().attempts == 0
    assert inbox.ingest_waiting(NOW) is not None
    assert Fault.objects.get().count == 1


@pytest.mark.django_db
def test_a_batch_that_may_kill_takes_no_other_with_it() -> None:
    put(HARMLESS)
    put(HARMLESS, number=1)
    InboxBatch.objects.filter(start=0).update(attempts=F("attempts") + 2)
    inbox.ingest_waiting(NOW)
    assert InboxBatch.objects.get().start == 1


def ingest_elsewhere() -> None:
    """Another worker's look at the inbox."""

    def work() -> None:
        try:
            inbox.ingest_waiting(NOW)
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(patient(30))
    assert not worker.is_alive()


def put_storm(batches: int) -> None:
    """So many batches, two of which are more than one transaction counts: links of each node go
    down and come back, by turns."""
    for number in range(batches):
        at = NOW + timedelta(seconds=number)
        wires = []
        for node in PODS:
            resource = f"node/{node}/nic/mlx5_0"
            is_down = number % 2 == 0
            event = an_event(LINK, resource, at=at) if is_down else a_clear(LINK, resource, at=at)
            wires.append({**to_wire(event), "excerpt": "x" * 60_000})
        put_wires(wires, number)


@pytest.fixture
def _two_pods() -> None:
    for node, pod in PODS.items():
        a_node(node, pod=pod)


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.usefixtures("_two_pods")
def test_a_storm_is_sorted_by_pod_and_each_event_counts_once() -> None:
    put_storm(batches=5)
    assert inbox.ingest_waiting(NOW) == []
    parts = InboxBatch.objects.values_list("pod", "is_part")
    assert set(parts) == {("a", True), ("b", True), ("", True)}
    while inbox.ingest_waiting(NOW + timedelta(minutes=1)) is not None:
        pass
    standing = Fault.objects.active().filter(fault_type=LINK).values_list("owner", "returns")
    assert sorted(standing) == [(f"node/{node}", 2) for node in sorted(PODS)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.usefixtures("_two_pods")
def test_a_worker_passes_over_a_pod_at_which_another_works() -> None:
    put_storm(batches=2)
    inbox.ingest_waiting(NOW)
    InboxBatch.objects.filter(pod="").delete()

    with ExitStack() as at_work:
        assert inbox.take_pod("a", at_work)
        ingest_elsewhere()
    assert set(InboxBatch.objects.values_list("pod", flat=True)) == {"a"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.usefixtures("_two_pods")
def test_what_comes_after_parts_does_not_overtake_them() -> None:
    put_storm(batches=2)
    inbox.ingest_waiting(NOW)
    InboxBatch.objects.filter(pod="").delete()
    put(HARMLESS, number=9)
    with ExitStack() as at_work:
        assert inbox.take_pod("a", at_work)
        assert inbox.take_pod("b", at_work)
        ingest_elsewhere()
    assert not Fault.objects.exists()
    assert not InboxBatch.objects.filter(is_part=False).exists()


@pytest.mark.django_db
def test_each_line_that_waited_over_a_reboot_counts_or_is_told_as_older_than_it() -> None:
    """A backlog worked off after a repair: nothing is lost without a word."""
    a_node()
    booted_at = NOW + timedelta(minutes=5)
    services.record_node_restart("gn042", booted_at=booted_at, boot_id="b2", now=booted_at)
    before = [NOW + timedelta(seconds=second) for second in range(20)]
    after = [booted_at + timedelta(seconds=second) for second in range(1, 8)]
    wires = []
    for at in (*before, *after):
        seconds = (at - NOW).total_seconds()
        key = f"gn042||{seconds:.6f}|{at}"
        wires.append(to_wire(an_event(HARMLESS, at=at, source_key=key)))
    put_wires(wires, 0)
    changes = inbox.ingest_waiting(booted_at + timedelta(minutes=5))
    assert changes is not None
    left_out = [change.text for change in changes if "before the node's last boot" in change.text]
    assert sum(int(text.partition(" x ")[0]) for text in left_out) == len(before)
    assert Fault.objects.get(fault_type=HARMLESS).count == len(after)
