"""A worker that dies at any statement of a poll: the rise of a counter is told once, neither lost
nor doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import connection, transaction

from incidents.models import Fault, Incident, Node, Poll
from incidents.polling.polling import LEASE
from tests.kintsugi.periodic.test_polling import MINUTE, TICK, House, Told

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """What no handler catches, like the signal."""


@contextmanager
def killed_at(statement: int) -> Iterator[None]:
    """Dies in place of the statement of that number, counted from 0. Roll-backs are the database's
    own then."""
    count = 0

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal count
        count += 1
        if count == statement + 1:
            raise Killed
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield


class _Undone(Exception):
    """Ends one try, and takes back what it wrote."""


def counted(statement: int) -> bool:
    """One try: what a poll that dies there leaves is made good. False when the poll was over
    before."""
    told = Told({"gn001": [("told.errors", 100)]})
    house = House(told, nodes=2)
    house.rounds(2)
    told.seen["gn001"] = [("told.errors", 107)]
    house.now += MINUTE
    house.pipeline.poll_due(TICK)
    was_killed = False
    try:
        with killed_at(statement):
            for chunk in house.ring.polls:
                house.pipeline.poll(chunk)
    except Killed:
        was_killed = True
    house.start()
    house.now += LEASE + MINUTE
    house.rounds(2)
    fault = Fault.objects.get()
    assert (fault.fault_type, fault.owner, fault.count) == ("gpu.count_mismatch", "node/gn001", 1)
    assert Incident.objects.count() == 1
    assert not Poll.objects.filter(leased_until__gt=house.now).exists()
    return was_killed


def test_a_poll_that_is_killed_at_any_statement_is_made_good() -> None:
    statement, was_killed = 0, True
    while was_killed:
        with suppress(_Undone), transaction.atomic():
            was_killed = counted(statement)
            raise _Undone
        assert not Node.objects.exists()
        statement += 1
    assert statement > 15
