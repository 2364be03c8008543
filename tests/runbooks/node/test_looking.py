"""What of a look speaks against putting a node back: grave faults of its own parts, and blindness
where it matters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from detectors.catalog import catalog
from detectors.detector import Detector, Target
from detectors.faults import FaultEvent, Severity
from detectors.slurm.output import NodeState
from runbooks.node import looking
from runbooks.node.looking import NodeInspection
from runbooks.step import Context
from tests.builders import NOW, an_event
from tests.kintsugi.periodic.test_polling import SiteTold, Told
from tests.runbooks.site import Site

NODE, GPU, NIC = "node/gn042", "node/gn042/gpu/0000:19:00.0", "node/gn042/nic/mlx5_0"


def seen(fault_type: str, resource: str = NODE, **values: Any) -> FaultEvent:
    return an_event(fault_type, resource, **values)


@pytest.mark.parametrize(
    ("fault_type", "resource"),
    [("gpu.lost", GPU), ("gpu.unresponsive", NODE), ("nic.link.down", NIC)],
)
def test_a_grave_fault_of_the_nodes_own_parts_speaks_against_it(
    fault_type: str, resource: str
) -> None:
    event = seen(fault_type, resource, severity=Severity.MAJOR)
    assert NodeInspection((event,), "").get_grave_events(("gpu",)) == (event,)


def test_a_link_that_flaps_once_while_it_trains_does_not() -> None:
    assert (
        NodeInspection((seen("nic.link.down", NIC, severity=Severity.MINOR),), "").get_grave_events(
            ("gpu",)
        )
        == ()
    )


@pytest.mark.parametrize(
    "fault_type",
    [
        "gpu.count_mismatch",
        "storage.filesystem.full",
        "config.clock_unsynchronised",
        "clock.skewed",
    ],
)
def test_a_warning_or_a_trouble_of_many_nodes_does_not(fault_type: str) -> None:
    assert NodeInspection((seen(fault_type),), "").get_grave_events(("gpu",)) == ()


def test_what_leaves_it_unfit_for_jobs_does_whatever_its_class() -> None:
    event = seen("storage.mount.missing")
    assert NodeInspection((event,), "").get_grave_events(("gpu",)) == (event,)


def test_silence_of_the_detector_that_has_to_confirm_speaks_against_it() -> None:
    look = NodeInspection((seen("detector.silent", qualifier="gpu", excerpt="truncated XML"),), "")
    assert look.get_grave_events(("gpu",)) == look.raised
    assert look.get_grave_events(("nic",)) == ()


def test_a_fault_is_confirmed_by_the_detectors_that_its_type_names() -> None:
    rows = catalog.load()
    named = next(row for row in rows.types.values() if row.confirmed_by)
    assert looking.get_confirming_detectors(named.id) == tuple(named.confirmed_by)
    assert looking.get_confirming_detectors("report.user") == ("gpu",)


class Slow(Told):
    name: ClassVar[str] = "slow"
    every: ClassVar[timedelta] = timedelta(minutes=5)


def a_context(*detectors: Detector) -> Context:
    world = replace(Site(nodes=0).world, detectors=detectors)
    state = NodeState("gn042", "IDLE", frozenset(), "", "", None, None, ("gpu",))
    return Context(
        1,
        1,
        "gpu.xid.79",
        GPU,
        "gn042",
        lambda: Target("gn042", "h"),
        state,
        facts={},
        world=world,
        now=NOW,
    )


@pytest.mark.django_db
def test_only_detectors_of_the_node_that_answer_at_once_look() -> None:
    faulty: dict[str, Any] = {"gn042": [("gpu.present", False)]}
    quick, slow, of_slurm = Told(dict(faulty)), Slow(dict(faulty)), SiteTold()
    look = looking.inspect_node(a_context(slow, of_slurm))
    assert (look.raised, look.is_reachable) == ((), True)
    assert [event.fault_type for event in looking.inspect_node(a_context(quick, slow)).raised] == [
        "gpu.lost"
    ]


@pytest.mark.django_db
def test_a_slow_detector_looks_where_it_is_the_one_that_confirms() -> None:
    faulty: dict[str, Any] = {"gn042": [("gpu.present", False)]}
    assert looking.inspect_node(a_context(Slow(faulty)), only=("slow",)).raised
    assert not looking.inspect_node(a_context(Told(faulty)), only=("slow",)).raised
