"""What ./script/gpu-captures keeps of a machine, and what it says where there is no driver."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.cli import captures, gpu_captures
from detectors.detector import Target
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


def test_machine_without_a_driver_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_captures.main([str(tmp_path / "out")]) == 1
    assert "no NVIDIA driver here: nvidia-smi is not installed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_captures_tell_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.node("gn001").gpu(3).is_remap_pending = True
    assert (
        gpu_captures.take_capture(tmp_path, SimulatedShell(world), Target("gn001", "127.0.0.1"))
        == 0
    )
    for name in gpu_captures.DETECTORS:
        (folder,) = (tmp_path / name).iterdir()
        again = captures.read_capture(registry.get_by_name(name), folder, catalog.load(), NOW)
        assert captures.to_json(again) == json.loads((folder / "expected.json").read_text())
        assert [event.fault_type for event in again.events] == ["gpu.ecc.row_remap_pending"] * (
            name == "gpu"
        )
        assert "gn001" in (folder / "origin.md").read_text()


def test_machine_that_does_not_answer_is_kept_and_ends_with_one(tmp_path: Path) -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.node("gn001").gpu(3).is_hung = True
    assert (
        gpu_captures.take_capture(tmp_path, SimulatedShell(world), Target("gn001", "127.0.0.1"))
        == 1
    )
    (folder,) = (tmp_path / "gpu").iterdir()
    assert json.loads((folder / "input.json").read_text())["status"]["nvidia-smi"] is None
