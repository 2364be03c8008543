"""A cause that many nodes share is found before any of them is taken out: from events to Slurm,
rung by rung."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from detectors.faults import to_wire
from detectors.provenance import Forger, Provenance, Transport
from incidents.models import Incident
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.library import library
from runbooks.models import Mode, Run, RunbookMode
from tests.builders import an_event
from tests.kintsugi.test_pipeline import START, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def armed(tmp_path: Path) -> House:
    for runbook in library.load():
        mode = Mode.ARMED if runbook in (DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY) else Mode.OFF
        RunbookMode.objects.create(runbook=runbook, mode=mode, set_by="test", set_at=START)
    return House(tmp_path)


def happen(house: House, fault_type: str, *resources: str) -> None:
    """Told by what no user of the node could have forged, so that no node is asked about it: what
    is simulated here shows nothing of it."""
    house.now += timedelta(seconds=1)
    at = house.now - timedelta(milliseconds=500)
    wires = []
    for resource in resources:
        _, node, *_ = resource.split("/")
        record = Provenance(node, Transport.SSH, program="kernel", forger=Forger.ROOT)
        wires.append(to_wire(an_event(fault_type, resource, at=at, provenance=record)))
    house.pipeline.ingest(wires)
    house.answer()


def drained(house: House) -> list[str]:
    return [act[1] for act in house.stage.slurm.journal if act[0] == "drain"]


def test_no_node_is_drained_when_the_supplies_of_many_fail_one_after_the_other(
    armed: House,
) -> None:
    for number in range(1, 26):
        happen(armed, "node.power_supply.failed", f"node/gn{number:03}")
        armed.let_pass(timedelta(seconds=10))
    armed.let_pass(timedelta(minutes=20))

    incident = Incident.objects.exclude(state="duplicate").get()
    assert incident.fault_type == "facility.power.degraded"
    assert drained(armed) == []
    assert not Run.objects.exists()


def test_a_node_is_drained_when_its_supply_alone_failed_and_the_hold_is_over(armed: House) -> None:
    happen(armed, "node.power_supply.failed", "node/gn007")
    armed.let_pass(timedelta(minutes=9))
    assert drained(armed) == []

    armed.let_pass(timedelta(minutes=2))
    assert drained(armed) == ["gn007"]


def test_no_node_is_drained_when_a_leaf_dies_in_silence(armed: House) -> None:
    happen(armed, "nic.link.down", *(f"node/gn{number:03}/nic/mlx5_4" for number in range(1, 51)))
    happen(armed, "gpu.xid.79", "node/gn012/gpu/0000:19:00.0")
    assert drained(armed) == []

    roots = set(Incident.objects.exclude(state="duplicate").values_list("root_resource", flat=True))
    assert roots == {"switch/leaf-04", "node/gn012/gpu/0000:19:00.0"}
    armed.let_pass(timedelta(minutes=3))
    assert drained(armed) == [
        "gn012"
    ]  # it waited while the links were counted, and not for the leaf
    assert Incident.objects.get(root_resource="switch/leaf-04").state == "open"
