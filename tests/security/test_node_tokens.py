"""What the token of gn001 can make us believe: what happens on gn001, and nothing of any other
machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from incidents.inventory import node_tokens, part_history, services
from incidents.inventory.part_history import Sighting
from incidents.models import Fault, Gpu, InService, Node, PlannedWork, Silence, Switch
from incidents.topology.topology import GpuPlace, NodePlace, Topology
from incidents.vocabulary.part_kinds import Part
from kintsugi import tasks

pytestmark = pytest.mark.django_db
_SLOT = "0000:19:00.0"


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    for name in ("gn001", "gn042"):
        node = Node.objects.create(name=name, partitions=["gpu"])
        Gpu.objects.create(node=node, index=0, pci_address=_SLOT)
    Switch.objects.create(name="leaf-03", role="leaf")
    tasks.pipeline.cache_clear()
    yield
    tasks.pipeline.cache_clear()


def post(detector: str, *rows: tuple[str, str, Any, dict[str, str]]) -> tuple[int, dict[str, Any]]:
    """gn001 posts."""
    now = datetime.now(UTC)
    node = Node.objects.get(name="gn001")
    token = node_tokens.create(node, lasts=timedelta(days=1), actor="ada", now=now)
    seen = [{"resource": r, "metric": m, "value": v, "attributes": a} for r, m, v, a in rows]
    readings = [{"detector": detector, "observations": seen}]
    body = {"version": 1, "node": "gn001", "taken_at": now.isoformat(), "readings": readings}
    answer = Client().post(
        "/api/v1/readings/",
        json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, json.loads(answer.content)


def post_lines(*lines: str) -> None:
    """After a first round, as new lines of gn001's journal."""
    answered = ("node/gn001", "detector.answered", True, {"detector": "node_log"})
    shown = [("node/gn001", "log.shown", "x", {"cursor": "t=1"})]
    for number, line in enumerate(("x", *lines), start=1):
        cursor = f"t={number}"
        if number > 1:
            shown.append(("node/gn001", "log.shown", line, {"cursor": cursor}))
        place = ("node/gn001", "log.cursor", cursor, {})
        assert post("node_log", *shown, place, answered)[0] == 202


def test_a_line_that_names_another_host_is_a_line_of_the_node_that_posted_it() -> None:
    post_lines("<3>1 - gn042 kernel - - - NVRM: Xid (PCI:0000:19:00): 79, pid=1, x")
    assert {fault.resource for fault in Fault.objects.all()} == {f"node/gn001/gpu/{_SLOT}"}


def test_a_line_that_names_a_switch_says_nothing_of_the_switch() -> None:
    rebooted = "INFO determine-reboot-cause: Previous reboot cause: Power Loss"
    post_lines(f"<3>1 - leaf-03 x - - - Nov 23 08:36:00 leaf-03 {rebooted}")
    assert not Fault.objects.filter(resource__startswith="switch/leaf-03").exists()


def test_a_serial_of_another_nodes_gpu_moves_no_gpu() -> None:
    theirs = f"node/gn042/gpu/{_SLOT}"
    now = datetime.now(UTC)
    part_history.settle([Sighting(Part.GPU, theirs, serial="SN-42")], now, why="test")
    own = f"node/gn001/gpu/{_SLOT}"
    seen = ((own, "gpu.serial", "SN-42", {}), (own, "gpu.present", True, {}))
    status, answer = post("gpu", *seen)
    assert status == 202
    (sentence,) = answer["not_believed"]
    assert sentence.startswith(
        f"not believed: {own} says that gpu SN-42 is in it, which is in service in node/gn042"
    )
    row = InService.objects.get(serial="SN-42")
    assert (row.slot, row.to_at) == (theirs, None)
    assert Gpu.objects.get(node__name="gn001").serial == ""


def test_a_uuid_of_another_nodes_gpu_moves_no_gpu() -> None:
    theirs = f"node/gn042/gpu/{_SLOT}"
    now = datetime.now(UTC)
    part_history.settle([Sighting(Part.GPU, theirs, uuid="GPU-42")], now, why="test")
    own = f"node/gn001/gpu/{_SLOT}"
    for rows in (("gpu.uuid", "GPU-42"),), (("gpu.uuid", "GPU-42"), ("gpu.serial", "SN-1")):
        post("gpu", *((own, metric, value, {}) for metric, value in rows))
    row = InService.objects.get(slot=theirs)
    assert (row.uuid, row.to_at) == ("GPU-42", None)


def test_a_serial_that_the_inventory_has_in_another_node_moves_no_gpu() -> None:
    theirs = f"node/gn042/gpu/{_SLOT}"
    place = GpuPlace(0, _SLOT, serial="SN-42")
    services.apply(Topology(nodes=(NodePlace("gn042", gpus=(place,)),)), datetime.now(UTC))
    _, answer = post("gpu", (f"node/gn001/gpu/{_SLOT}", "gpu.serial", "SN-42", {}))
    assert len(answer["not_believed"]) == 1
    assert InService.objects.get(serial="SN-42", to_at=None).slot == theirs


def test_a_node_says_which_gpu_came_into_its_own_slot() -> None:
    own = f"node/gn001/gpu/{_SLOT}"
    now = datetime.now(UTC) - timedelta(days=1)
    part_history.settle([Sighting(Part.GPU, own, serial="SN-1")], now, why="test")
    post("gpu", (own, "gpu.serial", "SN-2", {}))
    assert InService.objects.get(slot=own, to_at=None).serial == "SN-2"


@pytest.mark.parametrize("detector", ["gpu", "host", "node_log", "config"])
def test_a_node_opens_no_maintenance_in_the_name_of_slurm(detector: str) -> None:
    status, answer = post(detector, ("node/gn001", "slurm.is_planned", True, {"why": "MAINT"}))
    assert status == 403
    assert "may not say 'slurm.is_planned'" in answer["error"]
    assert not PlannedWork.objects.exists()
    assert not Silence.objects.exists()
