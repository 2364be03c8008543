"""What real Slurms printed, read by our parser: nodes of several versions, and text that is no node at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors import slurm_output

FOLDER = "outputs/slurm"


@pytest.mark.parametrize(
    ("capture", "name", "base", "flags", "reason"),
    [
        (
            "hyperpod__scontrol_node_fail_notresp_2302.txt",
            "ip-10-1-232-95",
            "DOWN",
            {"CLOUD", "FAIL", "NOT_RESPONDING"},
            "Action:Replace : Not responding",
        ),
        ("openhpcdoc__scontrol_node_mixed_2311.txt", "cn-1001", "MIXED", set(), ""),
        ("sirepo2136__scontrol_node_down_1905.txt", "localhost", "DOWN", set(), None),
    ],
)
def test_node_of_a_real_slurm_is_read(
    shared: Path, capture: str, name: str, base: str, flags: set[str], reason: str | None
) -> None:
    node = slurm_output.nodes((shared / FOLDER / capture).read_text())[name]
    assert node.base == base
    assert node.flags == flags
    assert node.partitions
    assert reason is None or node.reason == reason


def test_no_capture_breaks_the_parsers(shared: Path) -> None:
    captures = sorted((shared / FOLDER).iterdir())
    assert len(captures) > 50
    for capture in captures:
        text = capture.read_bytes().decode(errors="replace")
        slurm_output.nodes(text)
        slurm_output.jobs(text)
        slurm_output.config(text)
        list(slurm_output.hosts(text[:2000]))


def test_configuration_of_a_real_slurm_is_read(shared: Path) -> None:
    texts = [path.read_text(errors="replace") for path in (shared / FOLDER).glob("*config-output.txt")]
    for text in texts:
        values = slurm_output.config(text)
        assert {"ClusterName", "RebootProgram", "ResumeTimeout"} & set(values) or "PartitionName" in text
