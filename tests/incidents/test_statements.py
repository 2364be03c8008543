"""A batch costs as many statements however large the site is, and however much stands there
already."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.faults import FaultEvent
from incidents import services
from tests.builders import NOW, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db

FAULT = "gpu.xid.79"
HOUR = timedelta(hours=1)
A_FEW, MANY = 6, 60


def a_pod(name: str, nodes: int) -> list[str]:
    """Nodes of one pod; the GPU of each."""
    return [f"node/{a_node(f'{name}{n:03}', pod=name).name}/gpu/0000:19:00.0" for n in range(nodes)]


def faults(gpus: list[str], at: datetime) -> list[FaultEvent]:
    return [an_event(FAULT, gpu, at=at) for gpu in gpus]


def statements(gpus: list[str], at: datetime) -> int:
    """What a batch takes of a third repeats, a third new faults and a third ends, after the first
    two thirds stand."""
    third = len(gpus) // 3
    services.ingest(faults(gpus[: 2 * third], at), now=at)
    ends = [a_clear(FAULT, gpu, at=at + HOUR) for gpu in gpus[third : 2 * third]]
    batch = [*faults(gpus[:third], at + HOUR), *ends, *faults(gpus[2 * third :], at + HOUR)]
    with CaptureQueriesContext(connection) as asked:
        services.ingest(batch, now=at + HOUR)
    return len(asked)


def test_a_batch_takes_no_more_statements_when_the_site_is_larger() -> None:
    before = statements(a_pod("few", A_FEW), NOW)
    a_pod("more", MANY)
    assert statements(a_pod("same", A_FEW), NOW + 3 * HOUR) == before


def test_a_batch_takes_no_more_statements_when_more_faults_stand_elsewhere() -> None:
    before = statements(a_pod("few", A_FEW), NOW)
    services.ingest(faults(a_pod("ill", MANY), NOW + 2 * HOUR), now=NOW + 2 * HOUR)
    assert statements(a_pod("same", A_FEW), NOW + 3 * HOUR) == before


def test_a_larger_batch_takes_more_statements_for_its_ends_alone() -> None:
    """Each incident changes its state by a compare-and-swap of its own."""
    before = statements(a_pod("few", A_FEW), NOW)
    ends = MANY // 3 - A_FEW // 3
    assert statements(a_pod("many", MANY), NOW + 3 * HOUR) == before + ends
