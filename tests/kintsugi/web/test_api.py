"""What nodes' own checks send and ask: a node speaks of itself alone, and what it says goes the way
of a poll."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import Client

from detectors import registry
from detectors.detector import TargetKind
from incidents.inventory import node_tokens as stored
from incidents.models import Fault, Gpu, Incident, Node, QuarantinedEvent
from kintsugi import tasks
from kintsugi.clients import node_tokens
from runbooks import services as runbooks
from runbooks.models import AuditEntry, Breaker
from tests.detectors.test_golden import SIGNALS, metrics_of


def registry_names() -> list[str]:
    nodes = [found for found in registry.DETECTORS if found.kind is TargetKind.NODE]
    return [detector.name for detector in nodes]


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


def token_of(name: str) -> str:
    node = Node.objects.get(name=name)
    return stored.create(node, lasts=timedelta(days=1), actor="ada", now=datetime.now(UTC))


def post(url: str, body: Any, *, token: str | None = None) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Authorization": f"Bearer {token_of('gn001') if token is None else token}"}
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
    status, answer = post(READINGS, LOST, token=token_of(token) if token == "gn002" else token)
    assert status == 401
    assert "kintsugi node token" in answer["error"]
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


def test_the_command_prints_a_token_of_each_node_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("node_token", "create", "gn[001-002]")
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert sorted(printed) == ["gn001", "gn002"]
    assert post(READINGS, LOST, token=printed["gn001"])[0] == 202
    assert post(READINGS, LOST, token=printed["gn002"])[0] == 401


def test_a_rotation_leaves_the_token_of_before_a_week(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    node = Node.objects.get(name="gn001")
    before = stored.create(
        node, lasts=timedelta(days=90), actor="ada", now=now - timedelta(minutes=1)
    )
    call_command("node_token", "rotate", "gn001")
    new = capsys.readouterr().out.split()[1]
    assert post(READINGS, LOST, token=before)[0] == 202
    assert post(READINGS, LOST, token=new)[0] == 202
    row = stored.find(before)
    assert row is not None
    assert timedelta(days=6) < row.expires_at - now < timedelta(days=8)


def test_the_list_shows_who_created_a_token_and_where_it_was_last_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    post(READINGS, LOST)
    token_of("gn002")
    call_command("node_token", "list")
    used, unused = capsys.readouterr().out.splitlines()
    assert "gn001" in used
    assert "by ada" in used
    assert "from 127.0.0.1" in used
    assert "never used" in unused
    call_command("node_token", "list", "gn002", "--json")
    assert [row["node"] for row in json.loads(capsys.readouterr().out)] == ["gn002"]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_revoked_token_is_refused_and_the_audit_log_says_who_revoked_it(*, by_id: bool) -> None:
    token = token_of("gn001")
    row = stored.find(token)
    assert row is not None
    words = ("--id", str(row.pk)) if by_id else ("gn001",)
    call_command("node_token", "revoke", *words, actor="omar")
    status, answer = post(READINGS, LOST, token=token)
    assert status == 401
    assert "revoked" in answer["error"]
    assert "by omar" in answer["error"]
    entry = AuditEntry.objects.get(text=f"Token {row.pk} of gn001 is revoked.")
    assert entry.actor == "omar"


def test_a_token_that_is_revoked_twice_says_by_whom() -> None:
    row = stored.find(token_of("gn001"))
    assert row is not None
    call_command("node_token", "revoke", "--id", str(row.pk), actor="omar")
    with pytest.raises(CommandError, match="by omar"):
        call_command("node_token", "revoke", "--id", str(row.pk))


def test_a_token_that_has_ended_is_refused() -> None:
    node, ended = Node.objects.get(name="gn001"), datetime.now(UTC) - timedelta(days=2)
    token = stored.create(node, lasts=timedelta(days=1), actor="ada", now=ended)
    status, answer = post(READINGS, LOST, token=token)
    assert status == 401
    assert "ended at" in answer["error"]


def test_only_the_digest_of_a_token_is_stored() -> None:
    token = token_of("gn001")
    row = stored.find(token)
    assert row is not None
    assert token not in [str(getattr(row, field.name)) for field in row._meta.fields]


def test_a_token_of_the_form_before_is_taken_for_a_quarter_and_can_be_revoked() -> None:
    token = node_tokens.compute_derived_token("gn001")
    assert post(READINGS, LOST, token=token)[0] == 202
    row = stored.find(token)
    assert row is not None
    assert row.expires_at - row.created_at == timedelta(days=90)
    call_command("node_token", "revoke", "gn001")
    assert post(READINGS, LOST, token=token)[0] == 401


def test_a_token_of_the_form_before_that_was_never_used_is_revoked_with_its_node() -> None:
    call_command("node_token", "revoke", "gn001")
    assert post(READINGS, LOST, token=node_tokens.compute_derived_token("gn001"))[0] == 401


def test_a_body_of_a_stranger_is_not_parsed() -> None:
    assert post(READINGS, "{", token="kintsugi_x")[0] == 401


@pytest.mark.parametrize(
    ("value", "status", "complaint"),
    [
        ("x" * 8193, 413, "longer than 8192"),
        (10**400, 400, "64 bits"),
        (float("inf"), 400, "64 bits"),
        (float("nan"), 400, "64 bits"),
    ],
)
def test_a_value_that_is_too_large_is_refused_with_its_metric(
    value: Any, status: int, complaint: str
) -> None:
    answered, answer = post(READINGS, said((GPU, "gpu.name", value)))
    assert answered == status
    assert complaint in answer["error"]
    assert "gpu.name" in answer["error"]


def test_all_readings_of_a_request_together_have_a_limit() -> None:
    rows = [{"resource": "node/gn001", "metric": "gpu.x", "value": 1}] * 10_001
    twice = [{"detector": name, "observations": rows} for name in ("gpu", "gpu")]
    status, answer = post(READINGS, {**LOST, "readings": twice})
    assert status == 400
    assert "at most 9999" in answer["error"]


@pytest.mark.parametrize("name", registry_names())
def test_a_detector_may_say_all_that_its_captures_say(name: str) -> None:
    detector = registry.get_by_name(name)
    families = {metric.partition(".")[0] for metric in metrics_of(SIGNALS / name)}
    assert families <= {"detector", "target", name, *detector.families}


@pytest.mark.parametrize("name", ["gn003", "gn[1-"])
def test_the_command_refuses_a_node_that_it_does_not_know(name: str) -> None:
    with pytest.raises(CommandError):
        call_command("node_token", "create", name)


DRAINS = "/api/v1/drain-requests/"
UNFIT = {"version": 1, "node": "gn001", "check": "nhc", "because": "scratch is read-only"}


def test_a_nodes_own_check_asks_for_its_drain_and_withdraws_it() -> None:
    status, answer = post(DRAINS, UNFIT)
    incident = Incident.objects.get()
    assert (status, answer["incident"]) == (202, incident.pk)
    fault = Fault.objects.get()
    assert (fault.fault_type, fault.resource, fault.qualifier) == (
        "site.unfit",
        "node/gn001",
        "nhc",
    )
    assert post(DRAINS, {**UNFIT, "end": True})[0] == 202
    assert not Fault.objects.get().is_active


def test_who_asks_for_a_drain_is_told_what_is_in_its_way_and_what_lifts_it() -> None:
    _, in_shadow = post(DRAINS, UNFIT)
    assert "drain_on_request is in shadow there" in in_shadow["doing"]
    assert "kintsugi arming add drain_on_request approval" in in_shadow["doing"]

    breaker = Breaker.objects.create(tripped_at=datetime.now(UTC), why="12 of 100 nodes")
    _, behind_it = post(DRAINS, UNFIT)
    assert "12 of 100 nodes" in behind_it["doing"]
    assert "kintsugi breaker close" in behind_it["doing"]
    breaker.delete()

    runbooks.stop("row 3 burns", actor="ada", now=datetime.now(UTC))
    _, stopped = post(DRAINS, UNFIT)
    assert "row 3 burns" in stopped["doing"]
    assert "kintsugi stop --release" in stopped["doing"]


def test_a_node_asks_for_no_other_nodes_drain() -> None:
    status, _ = post(DRAINS, {**UNFIT, "node": "gn002"})
    assert status == 401
    assert not Fault.objects.exists()


@pytest.mark.parametrize(
    ("changes", "status", "complaint"),
    [
        ({"check": None}, 400, '"check" and "because"'),
        ({"because": 3}, 400, '"check" and "because"'),
        ({"end": "yes"}, 400, '"end" as true or false'),
        ({"check": "nhc\x1b[2J"}, 400, "name of the check"),
        ({"because": ""}, 400, "in a sentence why"),
        ({"because": "w" * 501}, 400, "500 at most"),
        ({"check": "other", "end": True}, 409, "No request stands"),
        ({"node": "\ud800"}, 400, '"node"'),
        ({"node": "gn001\0"}, 400, '"node"'),
        ({"node": " "}, 400, '"node"'),
        ({"node": "g" * 254}, 400, '"node"'),
    ],
)
def test_a_drain_request_that_is_wrong_is_refused_with_what_was_expected(
    changes: dict[str, Any], status: int, complaint: str
) -> None:
    answered, answer = post(DRAINS, UNFIT | changes)
    assert answered == status
    assert complaint in answer["error"]
    assert not Fault.objects.exists()


def test_a_request_that_is_withdrawn_twice_says_that_nothing_is_left() -> None:
    assert post(DRAINS, UNFIT)[0] == 202
    assert post(DRAINS, {**UNFIT, "end": True})[0] == 202
    status, answer = post(DRAINS, {**UNFIT, "end": True})
    assert status == 409
    assert "nothing is left to withdraw" in answer["error"]


@pytest.mark.parametrize("url", [READINGS, LEASES, DRAINS])
class TestEveryAddress:
    def test_anything_but_a_post_is_answered_in_words(self, url: str) -> None:
        response = Client().get(url)
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")
        assert json.loads(response.content) == {"error": "POST was expected"}

    def test_without_the_slash_at_its_end_nothing_is_lost(self, url: str) -> None:
        assert post(url.rstrip("/"), "{")[0] == 400

    @pytest.mark.parametrize(
        ("length", "status"), [("abc", 400), ("-5", 400), ("9" * 5000, 413), ("3000000", 413)]
    )
    def test_a_length_that_cannot_be_is_refused(self, url: str, length: str, status: int) -> None:
        response = Client().post(
            url, "{}", content_type="application/json", headers={"Content-Length": length}
        )
        assert response.status_code == status
        assert json.loads(response.content)["error"]

    def test_a_token_of_the_form_before_with_a_name_that_is_none_is_refused(self, url: str) -> None:
        status, answer = post(url, {"version": 1, "node": "\ud800"}, token="a" * 64)
        assert status == 400
        assert '"node"' in answer["error"]

    def test_a_database_that_is_away_says_to_send_it_again(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise OperationalError("could not connect to db1.internal as kintsugi")

        token = token_of("gn001")
        monkeypatch.setattr(connection, "close", lambda: None)
        with connection.execute_wrapper(refuse):
            status, answer = post(url, UNFIT, token=token)
        assert status == 503
        assert answer["error"].startswith("the database does not answer: send it again")


@pytest.mark.parametrize("faults", [[], [{}], [{"fault_type": 3}], [{"fault_type": None}]])
def test_a_lease_without_a_fault_is_refused_with_what_was_expected(faults: list[Any]) -> None:
    status, answer = post(LEASES, {"version": 1, "node": "gn001", "faults": faults})
    assert status == 400
    assert '"fault_type" as text' in answer["error"]


@pytest.mark.parametrize("sign", ["\0", "\ud800", "\x1b"])
def test_what_no_database_takes_in_a_name_is_shown_in_its_place(sign: str) -> None:
    status, answer = post(READINGS, said((f"{GPU}{sign}", "gpu.present", False)))
    assert (status, answer["accepted"]) == (202, 1)
    assert not QuarantinedEvent.objects.exists()


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("gpu.serial", "\0\0"),
        ("gpu.serial", "x" * 2000),
        ("gpu.uuid", "GPU-\0"),
        ("gpu.driver_version", "550\0"),
    ],
)
def test_a_value_that_no_column_takes_costs_nothing_else_of_its_report(
    metric: str, value: str
) -> None:
    status, _ = post(READINGS, said((GPU, metric, value), (GPU, "gpu.present", False)))
    assert status == 202
    assert Fault.objects.active().filter(fault_type="gpu.lost").exists()


@pytest.mark.parametrize(
    ("boot_id", "uptime_s"),
    [("b" * 200, 60.0), ("7c1e", 1e18), ("7c1e", -1e18), ("7c1e", 10**18)],
)
def test_a_boot_that_cannot_be_is_none_and_costs_nothing_else_of_its_report(
    boot_id: str, uptime_s: float
) -> None:
    own = "node/gn001"
    body = said((own, "node.boot_id", boot_id), (own, "node.uptime_s", uptime_s), detector="host")
    body["readings"] += LOST["readings"]
    status, _ = post(READINGS, body)
    assert status == 202
    assert Fault.objects.active().filter(fault_type="gpu.lost").exists()
    known = Node.objects.get(name="gn001")
    assert (known.boot_id, known.boot_seen_at) == ("", None)


def test_the_name_of_an_attribute_that_no_database_takes_costs_nothing_of_its_report() -> None:
    body = said((GPU, "gpu.serial", "1652"), (GPU, "gpu.present", False))
    body["readings"][0]["observations"][0]["attributes"] = {"key": "driver\0", "a\0": "b\0"}
    assert post(READINGS, body)[0] == 202
    assert Fault.objects.active().filter(fault_type="gpu.lost").exists()
