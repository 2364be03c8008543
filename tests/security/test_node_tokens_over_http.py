"""The tokens of nodes at a web that runs: which are taken, until when, and of what they speak."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django.live_server_helper import LiveServer

from incidents.inventory import node_tokens
from incidents.models import (
    Fault,
    Gpu,
    InService,
    Node,
    NodeToken,
    PlannedWork,
    Silence,
    Switch,
)
from kintsugi import tasks
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db(transaction=True)
SLOT = "0000:19:00.0"
GPU = f"node/gn001/gpu/{SLOT}"
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def site(transactional_db: None) -> Iterator[None]:
    for name in ("gn001", "gn042"):
        node = Node.objects.create(name=name, partitions=["gpu"])
        Gpu.objects.create(node=node, index=0, pci_address=SLOT)
    Switch.objects.create(name="leaf-03", role="leaf")
    tasks.pipeline.cache_clear()
    yield
    tasks.pipeline.cache_clear()


def create(*, age: timedelta = timedelta(0), lasts: timedelta = DAY) -> str:
    node = Node.objects.get(name="gn001")
    return node_tokens.create(node, lasts=lasts, actor="ada", now=datetime.now(UTC) - age)


def post(
    server: LiveServer, token: str, resource: str, metric: str, value: Any, *, node: str = "gn001"
) -> tuple[int, str]:
    """The status, and what is said of an error."""
    seen = {"resource": resource, "metric": metric, "value": value, "attributes": {"text": "x"}}
    readings = [{"detector": "gpu", "observations": [seen]}]
    taken_at = datetime.now(UTC).isoformat()
    body = {"version": 1, "node": node, "taken_at": taken_at, "readings": readings}
    request = urllib.request.Request(
        f"{server.url}/api/v1/readings/",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def is_taken(server: LiveServer, token: str) -> bool:
    return post(server, token, GPU, "gpu.present", True)[0] == 202


def test_several_tokens_are_taken_at_once_and_each_ends_by_itself(
    live_server: LiveServer, people: People
) -> None:
    tokens = [create(), create(), create()]
    ended = create(age=2 * DAY, lasts=DAY)
    assert [is_taken(live_server, token) for token in (*tokens, ended)] == [True] * 3 + [False]
    assert "ended at" in post(live_server, ended, GPU, "gpu.present", True)[1]

    row = NodeToken.objects.order_by("pk")[0]
    people.on_call.post(f"/incidents/nodetoken/{row.pk}/revoke/")
    row = NodeToken.objects.order_by("pk")[1]
    call_command("node_token", "revoke", "--id", str(row.pk), actor="omar")

    assert [is_taken(live_server, token) for token in tokens] == [False, False, True]
    for token in tokens[:2]:
        status, error = post(live_server, token, GPU, "gpu.present", True)
        assert status == 401
        assert "revoked" in error
        assert "by omar" in error


def test_a_rotated_token_is_taken_beside_the_new_one_until_its_overlap_ends(
    live_server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before = create(lasts=90 * DAY)
    call_command("node_token", "rotate", "gn001")
    new = capsys.readouterr().out.split()[1]
    assert (is_taken(live_server, before), is_taken(live_server, new)) == (True, True)
    NodeToken.objects.filter(pk=node_tokens.find(before).pk).update(  # type: ignore[union-attr]
        expires_at=datetime.now(UTC) - timedelta(seconds=1)
    )
    assert (is_taken(live_server, before), is_taken(live_server, new)) == (False, True)


REFUSED = {
    "a fault of another node": (f"node/gn042/gpu/{SLOT}", "gpu.present", False, "may not speak of"),
    "a fault of a leaf": ("switch/leaf-03", "gpu.present", False, "may not speak of"),
    "maintenance in Slurm's name": (
        "node/gn001",
        "slurm.is_planned",
        True,
        "may not say 'slurm.is_planned'",
    ),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_a_token_does_not_speak_of_is_refused_with_a_sentence(
    what: str, live_server: LiveServer
) -> None:
    resource, metric, value, sentence = REFUSED[what]
    status, error = post(live_server, create(), resource, metric, value)
    assert status == 403
    assert sentence in error
    assert not Fault.objects.exists()
    assert not PlannedWork.objects.exists()
    assert not Silence.objects.exists()


def test_the_token_of_one_node_is_none_of_another(live_server: LiveServer) -> None:
    theirs = f"node/gn042/gpu/{SLOT}"
    status, error = post(live_server, create(), theirs, "gpu.present", False, node="gn042")
    assert status == 401
    assert "kintsugi node token" in error
    assert not Fault.objects.exists()


def test_a_gpu_of_another_node_stays_where_it_is_in_the_history_of_parts(
    live_server: LiveServer,
) -> None:
    token = create()
    assert post(live_server, token, GPU, "gpu.serial", "SN-1")[0] == 202
    node = Node.objects.get(name="gn042")
    theirs = node_tokens.create(node, lasts=DAY, actor="ada", now=datetime.now(UTC))
    slot = f"node/gn042/gpu/{SLOT}"
    assert post(live_server, theirs, slot, "gpu.serial", "SN-42", node="gn042")[0] == 202
    assert post(live_server, token, GPU, "gpu.serial", "SN-42")[0] == 202
    row = InService.objects.get(serial="SN-42")
    assert (row.slot, row.to_at) == (slot, None)
