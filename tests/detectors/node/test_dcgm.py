"""Exporters' pages: the text format, DCGM's fields, and a simulated exporter over real HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import DetectorError, Output, Reading, Target, Transports, Unreachable
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import FaultEvent
from detectors.metrics import dcgm_fields, exposition
from detectors.metrics.exposition import Metric
from detectors.node.dcgm import DcgmDetector
from detectors.polling import observe_one
from detectors.transports.http import HttpTransport
from fixtures.cluster.http import dcgm_url, served
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = DcgmDetector()


def target(url: str) -> Target:
    return Target("gn001", "127.0.0.1", expected=Expected(urls={"dcgm": url}))


def parsed(body: str) -> list[tuple[str, object]]:
    reading = Reading(
        "dcgm", target(""), START, {"metrics": Output(0, body.encode(), b"", timedelta(0))}
    )
    return [(o.metric, o.value) for o in DETECTOR.parse(reading)]


# The text format.


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("up 1", "up", {}, 1),
        ("up{} 1", "up", {}, 1),
        ('x{a="1",b="2"} 3.5e2', "x", {"a": "1", "b": "2"}, 350),
        ('x{ a = "1" , b="2", } -1', "x", {"a": "1", "b": "2"}, -1),
        ('x{a="{,}=\\"\\\\\\n"} 1', "x", {"a": '{,}="\\\n'}, 1),
        ('x{a="\u30e9\u30c3\u30af 3"} 1', "x", {"a": "\u30e9\u30c3\u30af 3"}, 1),
        ("x 1 1795233600123", "x", {}, 1),
        ('x_total{a="1"} 17 1795233600.1 # {trace_id="ab"} 0.3', "x_total", {"a": "1"}, 17),
        ("x +Inf", "x", {}, math.inf),
        ("x -Inf", "x", {}, -math.inf),
        ('{"name.with.dots", a="1"} 2', "name.with.dots", {"a": "1"}, 2),
        ("  x\t1", "x", {}, 1),
        ("x 1\r", "x", {}, 1),
    ],
)
def test_a_sample_is_read(line: str, name: str, labels: dict[str, str], value: float) -> None:
    [found] = exposition.read(f"{line}\n".encode()).metrics
    assert (found.name, found.labels, found.value) == (name, labels, value)


def test_a_value_may_be_no_number() -> None:
    [found] = exposition.read(b"x NaN\n").metrics
    assert math.isnan(found.value)


@pytest.mark.parametrize(
    "line",
    [
        "$ curl localhost:9400/metrics",
        "...",
        "x",
        "x{",
        'x{a="1} 2',
        "x one",
        "x 1_000",
        "x 0x10",
        "<html>",
        "x 1 2 3",
    ],
)
def test_a_line_that_is_no_sample_is_counted_and_passed_over(line: str) -> None:
    page = exposition.read(f"a 1\n{line}\nb 2\n".encode())
    assert [metric.name for metric in page.metrics] == ["a", "b"]
    assert page.unread == 1


def test_help_and_type_may_name_another_metric() -> None:
    page = exposition.read(b"# HELP other words\n# TYPE other gauge\nx 1\n# EOF\n")
    assert [metric.name for metric in page.metrics] == ["x"]


def test_the_last_value_of_a_page_without_a_line_end_is_not_believed() -> None:
    page = exposition.read(b"a 1\nb 123")
    assert [metric.name for metric in page.metrics] == ["a"]
    assert page.is_cut


@given(st.binary(max_size=500))
def test_any_bytes_are_a_page(body: bytes) -> None:
    page = exposition.read(body)
    assert len(page.metrics) + page.unread <= body.count(b"\n") + 1


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30),
    st.floats(),
)
def test_what_an_exporter_escapes_comes_back(text: str, value: float) -> None:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    [found] = exposition.read(f'x{{a="{escaped}"}} {value!r}\n'.encode()).metrics
    assert found.labels == {"a": text}
    assert found.value == value or math.isnan(value)


def test_a_page_of_open_braces_takes_no_time() -> None:
    begun = datetime.now(UTC)
    exposition.read(b"x{" * 200_000 + b'\nx{a="' + b"\\" * 16_000 + b"\n" + b'x{a="1",' * 1500)
    assert datetime.now(UTC) - begun < timedelta(seconds=2)


# DCGM's fields.


@pytest.mark.parametrize(
    "value", [2**63 - 16, 2**63 - 14, 2147483632, 2147483634, 140737488355328.0, math.nan, math.inf]
)
def test_dcgms_words_for_no_value_are_no_values(value: float) -> None:
    metric = Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", {"gpu": "0"}, value)
    assert list(dcgm_fields.list_facts("gn001", [metric])) == []


@pytest.mark.parametrize(
    ("labels", "resource"),
    [
        (
            {"gpu": "3", "UUID": "GPU-ab", "pci_bus_id": "00000000:5D:00.0"},
            "node/gn001/gpu/0000:5d:00.0",
        ),
        ({"gpu": "3", "UUID": "GPU-ab"}, "node/gn001/gpu/GPU-ab"),
        ({"gpu": "3"}, "node/gn001/gpu/index:3"),
        ({"gpu": "3", "pci_bus_id": "00000000:5D:00.0", "GPU_I_ID": "2"}, ""),
        ({"nvswitch": "0"}, ""),
        ({"gpu": "3/../../x"}, ""),
    ],
)
def test_a_gpu_is_named_by_the_surest_label(labels: dict[str, str], resource: str) -> None:
    assert dcgm_fields.get_gpu_resource("gn001", labels) == resource


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (0x0, set()),
        (0x1, set()),
        (0x4, set()),
        (0x20, set()),
        (0x48, {"thermal"}),
        (0x88, {"power_brake"}),
        (0xC8, {"thermal", "power_brake"}),
        (0x8, {"unexplained"}),
    ],
)
def test_only_the_hardwares_own_slowdowns_are_told(reasons: int, expected: set[str]) -> None:
    metric = Metric("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", {"gpu": "0"}, float(reasons))
    found = {
        fact.metric for fact in dcgm_fields.list_facts("gn001", [metric]) if fact.value is True
    }
    assert found == {f"gpu.slowdown.{name}" for name in expected}


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ('dcgm_retired_pages_pending{gpu="0"} 1', ("gpu.ecc.retirement_pending", True)),
        ('dcgm_pcie_replay_counter{gpu="0"} 7', ("pcie.replays", 7)),
        ('DCGM_FI_DEV_BOARD_POWER_WATTS{gpu="0"} 512.5', ("gpu.power_w", 512.5)),
        ('DCGM_FI_DEV_XID_ERROR{gpu="0"} 31', ("gpu.last_xid", 31)),
    ],
)
def test_older_and_newer_names_of_a_field_say_the_same(line: str, fact: tuple[str, object]) -> None:
    assert fact in parsed(f"{line}\n")


def test_the_last_xid_is_recorded_and_is_never_a_fault() -> None:
    """It stays for ever and hides repeats: dcgm-exporter goes on to show it after the repair."""
    rules = catalog.load().rules
    assert ("gpu.last_xid", 79) in parsed('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 79\n')
    assert "gpu.last_xid" not in rules
    assert "gpu.xids_in_window" not in rules


def test_a_page_without_a_gpu_is_never_healthy() -> None:
    for body in (
        "",
        "up 1\n",
        "# HELP x y\n",
        "<html></html>\n",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} NaN\n',
    ):
        assert parsed(body) == [("detector.answered", False)]


def test_a_node_without_an_exporter_is_not_wanted_and_cannot_be_asked() -> None:
    bare = Target("gn001", "127.0.0.1")
    assert not DETECTOR.wants(bare)
    with pytest.raises(DetectorError, match=r"urls\.dcgm"):
        DETECTOR.collect(bare, simulated_transports(SimulatedWorld.sakuraone()), START)


# The simulated exporter.


def rounds(world: SimulatedWorld, via: Transports, url: str, *, count: int) -> Iterator[FaultEvent]:
    memory = judge.Memory()
    gpus = tuple((str(gpu.index), gpu.pci) for gpu in world.node("gn001").gpus)
    node = Target("gn001", "127.0.0.1", expected=Expected(gpus=gpus, urls={"dcgm": url}))
    for number in range(count):
        seen = observe_one(node, DETECTOR, via, START + number * DETECTOR.every)
        judged = judge.judge_round(DETECTOR, seen, memory, active=(), catalog=catalog.load())
        memory = judged.memory
        yield from judged.events


def test_a_simulated_exporter_is_read_over_real_http_and_its_values_drift() -> None:
    now = START
    world = SimulatedWorld.sakuraone(clock=lambda: now)
    with served(world, "gn001") as base:
        via = Transports(shell=SimulatedShell(world), http=HttpTransport())
        assert list(rounds(world, via, f"{base}/metrics", count=3)) == []
        pages = set()
        for number in range(3):
            now = START + number * timedelta(minutes=1)
            pages.add(via.http.get(target(""), f"{base}/metrics", timedelta(seconds=5)).stdout)
        assert len(pages) == 3
        world.node("gn001").gpu(3).is_remap_failed = True
        [event] = rounds(world, via, f"{base}/metrics", count=1)
        assert (event.fault_type, event.resource) == (
            "gpu.ecc.row_remap_failure",
            "node/gn001/gpu/0000:5d:00.0",
        )
        [answered, _] = observe_one(target(f"{base}/nothing"), DETECTOR, via, START)
        assert (answered.metric, answered.value) == ("detector.answered", False)
        assert "404" in answered.attributes["text"]


def test_memory_and_network_give_the_same_page() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: START)
    inside = simulated_transports(world).http.get(
        target(""), dcgm_url("gn001"), timedelta(seconds=5)
    )
    with served(world, "gn001") as base:
        outside = HttpTransport().get(target(""), f"{base}/metrics", timedelta(seconds=5))
    assert (inside.status, inside.stdout) == (outside.status, outside.stdout)


def test_a_node_that_boots_is_unreachable() -> None:
    now = START
    world = SimulatedWorld.sakuraone(clock=lambda: now, boot_takes=timedelta(minutes=5))
    world.reboot("gn001")
    with pytest.raises(Unreachable, match="gn001"):
        DETECTOR.collect(target(dcgm_url("gn001")), simulated_transports(world), START)
