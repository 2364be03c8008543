"""What the turn that drains a node asks the database: each statement keeps the drain waiting."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.provenance import Provenance, Transport
from runbooks.engine import turn
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE = "gn001"
ANYBODY = Provenance("10.66.6.6", Transport.UDP, program="kernel", facility=0)
_KINDS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def count_statements(asked: CaptureQueriesContext) -> int:
    """Those that read or write rows."""
    return sum(query["sql"].lstrip("(").startswith(_KINDS) for query in asked)


def test_a_lost_gpu_that_a_text_has_told_of_drains_its_node_with_few_statements() -> None:
    site = Site()
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    run = site.begin(site.raise_fault(NODE, told_by=ANYBODY))
    before_the_act: list[int] = []

    def count(point: str) -> None:
        if point == "attempted":
            before_the_act.append(count_statements(asked))

    with CaptureQueriesContext(connection) as asked:
        turn.advance(run.pk, now=site.now, world=site.world, at=count)
    assert site.slurm.read_nodes((NODE,))[NODE].is_draining
    assert before_the_act == [43]
