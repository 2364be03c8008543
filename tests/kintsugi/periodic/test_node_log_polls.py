"""Kernel lines that polls read, all the way to faults: once each, and as one with the copy that
syslog brings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from detectors.catalog import catalog
from detectors.detector import Transports
from detectors.logs.signatures import to_event
from detectors.node.node_log import NodeLogDetector
from fixtures.cluster.log_line import Priority
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from incidents import services
from incidents.models import Fault
from incidents.polling.polling import Chunk
from kintsugi.periodic.polling import Watch
from kintsugi.pipeline import Pipeline
from tests.builders import NOW, a_node
from tests.matching import get_shipped_matcher
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Rings:
    def __init__(self) -> None:
        self.polls: list[Chunk] = []

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None: ...

    def notify(self, notification_id: int, at: object = None) -> None: ...

    def poll(self, chunk: Chunk) -> None:
        self.polls.append(chunk)


class House:
    """One node of the simulated cluster whose journal is polled."""

    def __init__(self) -> None:
        self.now = NOW
        a_node("gn001")
        self.world = SimulatedWorld.sakuraone(clock=lambda: self.now)
        self.ring = Rings()
        watch = Watch(Transports(shell=SimulatedShell(self.world)), (NodeLogDetector(),))
        self.pipeline = Pipeline(
            Site(nodes=0).world, None, self.ring, lambda: self.now, catalog.load(), watch
        )  # type: ignore[arg-type]

    def minute(self) -> None:
        for _ in range(12):
            self.now += timedelta(seconds=5)
            self.pipeline.poll_due(timedelta(seconds=5))
            while self.ring.polls:
                self.pipeline.poll(self.ring.polls.pop(0))

    def xid(self) -> bytes:
        """The kernel writes the line; as syslog would send it."""
        return self.world.node("gn001").kernel(XID, at=self.now, priority=Priority.ERR).wire()


def count() -> int:
    return sum(Fault.objects.filter(fault_type="gpu.xid.79").values_list("count", flat=True))


def test_a_line_of_before_the_first_poll_is_no_fault_and_a_later_one_is_one() -> None:
    house = House()
    house.xid()
    house.minute()
    assert count() == 0
    house.xid()
    for _ in range(3):
        house.minute()
    assert count() == 1


def test_the_copy_that_syslog_brings_is_the_same_occurrence() -> None:
    house = House()
    house.minute()
    wire = house.xid()
    house.minute()
    assert count() == 1
    (fact,) = get_shipped_matcher(engine="re").facts(
        wire, default_host="-", observed_at=house.now, zone=UTC
    )
    services.ingest(
        [to_event(fact, event_id="by-syslog", observed_at=house.now, source="syslog")],
        now=house.now,
    )
    assert count() == 1
