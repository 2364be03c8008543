"""The way of CONTRIBUTING.md to a new detector, followed: one file, one row, captures, its line in
the simulated cluster, and nothing listed anywhere."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from detectors import contract, discovery
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import OneByOne, Output, Target, Transports
from detectors.evaluation.judge import Memory, judge_round
from detectors.faults import EventKind, fingerprint
from detectors.polling import observe_one

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
TARGET = Target("gn001", "127.0.0.1")
DETECTOR = '''
"""Fans of a node, as ipmitool counts them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.detector import Command, NothingToCompare, Reading, Target, TargetKind, Transports
from detectors.faults import Observation

_ARGV = ("ipmitool", "sdr", "type", "Fan")


class FansDetector(NothingToCompare):
    name: ClassVar[str] = "fans"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(minutes=1)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        output = via.shell.run(target, _ARGV, timedelta(seconds=10))
        return Reading(self.name, target, now, {"fans": output}, {})

    def parse(self, reading: Reading) -> Iterator[Observation]:
        text = reading.outputs["fans"].stdout.decode("utf-8", "replace")
        rows = [line.split("|") for line in text.splitlines()]
        states = [row[2].strip() for row in rows if len(row) > 2]
        resource = reading.target.resource
        yield Observation(resource, "detector.answered", bool(states), reading.taken_at)
        for state in states:
            yield Observation(resource, "fan.is_well", state == "ok", reading.taken_at)

    def sniff(self, text: bytes) -> str:
        return "fans" if b"FAN" in text else ""
'''
ROW = """
[[type]]
id = "node.fan.stopped"
title = "A fan of the node has stopped"
component = "node"
event_type = "environmental"
severity = "major"
action = "vendor"
clears = "by_poll"
meaning = "A fan does not turn."
source = "https://github.com/ipmitool/ipmitool"

[[rule]]
metric = "fan.is_well"
type = "node.fan.stopped"
when = "false"
source = "https://github.com/ipmitool/ipmitool"
"""
WELL = "FAN1 | 30h | ok | 29.1 | 8400 RPM\n"
STOPPED = "FAN1 | 30h | nc | 29.1 | 0 RPM\n"


class FansFacet:
    """What a simulated node answers."""

    def __init__(self) -> None:
        self.is_stopped = False

    def answer(self, argv: tuple[str, ...]) -> tuple[int, bytes, bytes] | None:
        if argv != ("ipmitool", "sdr", "type", "Fan"):
            return None
        return 0, (STOPPED if self.is_stopped else WELL).encode(), b""


class NodeShell(OneByOne):
    def __init__(self, facet: FansFacet) -> None:
        self._facet = facet

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        status, stdout, stderr = self._facet.answer(argv) or (127, b"", b"not found")
        return Output(status, stdout, stderr, timedelta(0))


@pytest.fixture
def detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """Those that are found in a package which holds the new file, in a folder of its own."""
    folder = tmp_path / "node_detectors_of_a_test" / "host"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "fans.py").write_text(DETECTOR)
    monkeypatch.syspath_prepend(tmp_path)
    yield discovery.list_node_detectors(importlib.import_module("node_detectors_of_a_test"))
    for name in [name for name in sys.modules if name.startswith("node_detectors_of_a_test")]:
        del sys.modules[name]


@pytest.fixture
def fault_types(tmp_path: Path) -> catalog.Catalog:
    (tmp_path / "polled_fans.toml").write_text(ROW)
    return catalog.read([*catalog.files(), tmp_path / "polled_fans.toml"])


def _capture(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "input.json").write_text(json.dumps({"target": "gn001", "status": {"fans": 0}}))
    (folder / "input.fans.stdout").write_text(text)
    return folder


def test_the_file_alone_makes_it_found(detectors: tuple[Any, ...]) -> None:
    assert [detector.name for detector in detectors] == ["fans"]


def test_its_captures_tell_what_they_show(
    detectors: tuple[Any, ...], fault_types: catalog.Catalog, tmp_path: Path
) -> None:
    (fans,) = detectors
    told = {
        name: captures.to_json(
            captures.read_capture(fans, _capture(tmp_path / name, text), fault_types, NOW)
        )
        for name, text in (("healthy", WELL), ("stopped", STOPPED), ("truncated", "FA"))
    }
    assert told["healthy"]["faults"] == []
    assert [fault["fault_type"] for fault in told["stopped"]["faults"]] == ["node.fan.stopped"]
    assert [fault["fault_type"] for fault in told["truncated"]["faults"]] == ["detector.silent"]


def test_without_its_row_the_contract_names_the_metric(
    detectors: tuple[Any, ...], fault_types: catalog.Catalog
) -> None:
    (fans,) = detectors
    metrics = ("detector.answered", "fan.is_well")
    assert contract.list_unused_metrics(fans, metrics, catalog.load()) == ["fan.is_well"]
    assert contract.list_unused_metrics(fans, metrics, fault_types) == []


def test_its_fault_is_raised_and_cleared_on_a_simulated_node(
    detectors: tuple[Any, ...], fault_types: catalog.Catalog
) -> None:
    (fans,) = detectors
    facet = FansFacet()
    via = Transports(shell=NodeShell(facet))
    memory, active, told = Memory(), set[str](), []
    for is_stopped in (False, True, False):
        facet.is_stopped = is_stopped
        observations = observe_one(TARGET, fans, via, NOW)
        judged = judge_round(fans, observations, memory, active=active, catalog=fault_types)
        memory = judged.memory
        told.append([(event.fault_type, event.event.value) for event in judged.events])
        active = {
            fingerprint(event.resource, event.fault_type, event.qualifier)
            for event in judged.events
            if event.event is EventKind.RAISED
        }
    assert told == [[], [("node.fan.stopped", "raised")], [("node.fan.stopped", "cleared")]]


def test_the_file_needs_the_standard_library_alone() -> None:
    imported = {
        (part.module or "").split(".")[0]
        for part in ast.walk(ast.parse(DETECTOR))
        if isinstance(part, ast.ImportFrom)
    }
    assert imported - {"detectors"} <= set(sys.stdlib_module_names)


def test_two_detectors_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "node_detectors_twice"
    folder.mkdir()
    for name in ("__init__", "fans", "fans_again"):
        (folder / f"{name}.py").write_text(DETECTOR if name != "__init__" else "")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(discovery.DiscoveryError, match="both named fans"):
        discovery.list_node_detectors(importlib.import_module("node_detectors_twice"))


def test_the_registry_holds_a_detector_for_each_file_of_the_package() -> None:
    package = importlib.import_module("detectors.node")
    files = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")}
    listed = importlib.import_module("detectors.node_registry").NODE_DETECTORS
    assert {type(detector).__module__.rpartition(".")[2] for detector in listed} == files - {
        "__init__"
    }
