"""Rounds of several detectors that end at once."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from detectors.detector import Unreachable
from incidents.db import upsert
from incidents.models import Poll
from tests.kintsugi.periodic.test_polling import TICK, House, Told
from tests.services.locks import count_waiting
from tests.services.patience import patient
from tests.services.ports import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]


class ToldBeside(Told):
    name: ClassVar[str] = "told_beside"


def test_two_detectors_of_a_node_that_is_back_wait_for_each_other_at_no_row() -> None:
    """Each has its own row locked, and lets the other one, which had given the node up as well,
    look soon."""
    silent = Unreachable("gn001 (10.0.0.1:22): timed out")
    told, beside = Told({"gn001": silent}), ToldBeside({"gn001": silent})
    house = House(told, beside, nodes=1)
    house.rounds(5)
    assert Poll.objects.filter(failures__gt=0).count() == 2
    told.seen["gn001"] = beside.seen["gn001"] = [("node.serial", "4711")]
    Poll.objects.update(next_poll_at=house.now)
    house.pipeline.poll_due(TICK)
    chunks = list(house.ring.polls)
    assert {chunk.detector for chunk in chunks} == {"told", "told_beside"}
    errors: list[BaseException] = []

    def poll(number: int) -> None:
        try:
            house.pipeline.poll(chunks[number])
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=poll, args=(number,)) for number in range(2)]
    with transaction.atomic():
        upsert.lock_placement()
        for thread in threads:
            thread.start()
        wait_until(lambda: count_waiting() == 2, within_s=30, what="both have locked their rows")
    for thread in threads:
        thread.join(patient(60))
    assert errors == []
    assert not Poll.objects.filter(failures__gt=0).exists()


def test_a_round_writes_its_own_rows_before_it_takes_the_lock_of_placement() -> None:
    """Who holds that lock may wait for none of them."""
    house = House(Told({"gn001": [("node.serial", "4711"), ("told.errors", 7)]}), nodes=1)
    with CaptureQueriesContext(connection) as sent:
        house.rounds(2)
    statements = [query["sql"] for query in sent.captured_queries]
    locks = [number for number, sql in enumerate(statements) if "pg_advisory_xact_lock" in sql]
    writes = [number for number, sql in enumerate(statements) if 'INTO "incidents_poll"' in sql]
    assert writes
    assert writes[-1] < locks[-1]
