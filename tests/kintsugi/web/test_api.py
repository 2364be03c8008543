"""What nodes' own checks send and ask: a node speaks of itself alone, and what it says goes the way
of a poll."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from incidents.models import Fault, Gpu, Incident, Node
from kintsugi import tasks
from kintsugi.web import api

pytestmark = pytest.mark.django_db
READINGS, LEASES = "/api/v1/readings/", "/api/v1/leases/"
GPU = "node/gn001/gpu/0000:19:00.0"


@pytest.fixture(autouse=True)
def node() -> Iterator[Node]:
    node = Node.objects.create(
        name="gn001", partitions=["gpu"], in_service_since=datetime(2025, 1, 1, tzinfo=UTC)
    )
    Gpu.objects.create(node=node, index=0, pci_address="0000:19:00.0")
    Node.objects.create(name="gn002")
    tasks.pipeline.cache_clear()
    yield node
    tasks.pipeline.cache_clear()


def post(url: str, body: Any, *, token: str | None = None) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Authorization": f"Bearer {api.token('gn001') if token is None else token}"}
    response = Client().post(url, text, content_type="application/json", headers=headers)
    return response.status_code, json.loads(response.content)


def said(
    *observations: tuple[str, str, Any], detector: str = "gpu", **changes: Any
) -> dict[str, Any]:
    rows = [
        {"resource": r, "metric": m, "value": v, "attributes": {"text": "GPU is lost"}}
        for r, m, v in observations
    ]
    body = {
        "version": 1,
        "node": "gn001",
        "taken_at": datetime.now(UTC).isoformat(),
        "boot_id": "b",
    }
    return {**body, "readings": [{"detector": detector, "observations": rows}], **changes}


LOST = said((GPU, "gpu.present", False), ("node/gn001", "target.reachable", True))


def test_a_lost_gpu_that_a_node_reports_is_an_incident() -> None:
    assert post(READINGS, LOST) == (202, {"accepted": 2})
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.root_resource, incident.channels) == (
        "gpu.lost",
        GPU,
        ["platform"],
    )


def test_the_same_report_again_is_the_same_fault() -> None:
    post(READINGS, LOST)
    post(READINGS, LOST)
    assert (Fault.objects.count(), Incident.objects.count()) == (1, 1)


def test_a_report_that_sees_it_well_clears_the_fault() -> None:
    post(READINGS, LOST)
    post(READINGS, said((GPU, "gpu.present", True)))
    assert not Fault.objects.get().is_active


@pytest.mark.parametrize("token", ["", "wrong", "gn002", "übel"])
def test_a_token_of_another_node_is_refused(token: str) -> None:
    status, answer = post(READINGS, LOST, token=api.token(token) if token == "gn002" else token)
    assert status == 401
    assert "kintsugi node token gn001" in answer["error"]
    assert not Fault.objects.exists()


@pytest.mark.parametrize("resource", ["node/gn002", "node/gn0011", "switch/leaf-01", "", None, 3])
def test_a_node_may_not_speak_of_another_machine(resource: Any) -> None:
    status, answer = post(READINGS, said((resource, "gpu.present", False)))
    assert status == 403
    assert "may not speak of" in answer["error"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("{", "no JSON"),
        ("[]", '"version": 1'),
        ({**LOST, "version": 2}, '"version": 1'),
        ({**LOST, "taken_at": "yesterday"}, "ISO 8601"),
        ({**LOST, "taken_at": "2026-11-21T04:00:00"}, "ISO 8601"),
        ({**LOST, "readings": {}}, '"readings"'),
        (said((GPU, "gpu.present", False), detector="switch_snmp"), "runs on nodes"),
        (said((GPU, "gpu.present", {"a": 1})), "an observation has"),
        ({**LOST, "readings": [{"detector": "gpu", "observations": [1]}]}, '"observations"'),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_what_was_expected(body: Any, complaint: str) -> None:
    status, answer = post(READINGS, body)
    assert status == 400
    assert complaint in answer["error"]
    assert not Fault.objects.exists()


def test_a_body_that_is_too_long_is_not_read() -> None:
    assert post(READINGS, "x" * (2 * 1024 * 1024 + 1))[0] == 413


def test_only_posts_are_taken() -> None:
    assert Client().get(READINGS).status_code == 405


@pytest.mark.parametrize("off", [timedelta(hours=-3), timedelta(hours=3)])
def test_a_clock_that_is_far_off_is_replaced_by_ours(off: timedelta) -> None:
    before = datetime.now(UTC)
    post(READINGS, {**LOST, "taken_at": (before + off).isoformat()})
    assert before <= Fault.objects.get().raised_at <= datetime.now(UTC)


def test_a_lease_says_why_it_is_not_granted() -> None:
    status, answer = post(
        LEASES, {"version": 1, "node": "gn001", "faults": [{"fault_type": "gpu.lost"}]}
    )
    assert (status, answer["is_granted"]) == (200, False)
    assert "KINTSUGI_SLURM is off" in answer["reason"]


def test_a_lease_needs_the_nodes_token_too() -> None:
    assert post(LEASES, {"version": 1, "node": "gn002", "faults": []})[0] == 401


def test_the_command_prints_the_token_of_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("node_token", "gn[001-002]")
    assert capsys.readouterr().out == f"gn001 {api.token('gn001')}\ngn002 {api.token('gn002')}\n"


@pytest.mark.parametrize("name", ["gn003", "gn[1-"])
def test_the_command_refuses_a_node_that_it_does_not_know(name: str) -> None:
    with pytest.raises(CommandError):
        call_command("node_token", name)
