"""Rules of the nvlink detector: what a link is measured against, and which counters say
something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Output, Reading, Target
from detectors.evaluation import classify, judge
from detectors.expected import Expected
from detectors.faults import ClearRule, EventKind, FaultEvent, Observation, fingerprint
from detectors.node.nvlink import NvlinkDetector

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
H100, A100_CARD, V100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe", "Tesla V100-SXM2-32GB"


def reading(at: datetime, **texts: str) -> Reading:
    names = {
        "status": "nvlink-s",
        "errors": "nvlink-e",
        "lanes": "nvlink-ec",
        "topo": "topo",
        "gpus": "gpus",
    }
    outputs = {
        names[name]: Output(0, text.encode(), b"", timedelta(0)) for name, text in texts.items()
    }
    return Reading("nvlink", Target("gn001", "127.0.0.1"), at, outputs)


def gpu(index: int, product: str, lines: Sequence[str]) -> str:
    return f"GPU {index}: {product} (UUID: GPU-{index})\n" + "".join(
        f"\t {line}\n" for line in lines
    )


def links(index: int, product: str, up: int, of: int) -> str:
    return gpu(
        index, product, [f"Link {n}: {'25 GB/s' if n < up else '<inactive>'}" for n in range(of)]
    )


def parsed(**texts: str) -> list[Observation]:
    return list(NvlinkDetector().parse(reading(NOW, **texts)))


def raised(found: list[Observation]) -> list[FaultEvent]:
    return [event for each in found for event in classify.classify(each, (), catalog.load())]


def short(**texts: str) -> list[str]:
    return [event.resource.rpartition("/")[2] for event in raised(parsed(**texts))]


def test_module_is_measured_against_the_number_of_its_kind() -> None:
    assert short(status=links(0, H100, 18, 18) + links(1, H100, 17, 18)) == ["GPU-1"]
    assert short(status=links(0, H100, 17, 18) + links(1, H100, 17, 18)) == ["GPU-0", "GPU-1"]


def test_module_of_unknown_number_is_measured_against_its_neighbours() -> None:
    assert short(status=links(0, V100, 4, 6) + links(1, V100, 4, 6)) == []
    assert short(status=links(0, V100, 6, 6) + links(1, V100, 5, 6)) == ["GPU-1"]


def test_cards_need_not_have_links() -> None:
    assert (
        short(
            status=links(0, A100_CARD, 12, 12)
            + links(1, A100_CARD, 12, 12)
            + links(2, A100_CARD, 0, 12)
        )
        == []
    )


ALL_INACTIVE = "NVML: Unable to retrieve Nvlink information as all links are inActive"


def test_module_without_any_link_is_at_fault_unless_it_is_a_guests_only_one() -> None:
    assert short(status=gpu(6, H100, [ALL_INACTIVE])) == ["GPU-6"]
    assert short(status=gpu(0, H100, [ALL_INACTIVE])) == []


@pytest.mark.parametrize(
    "words",
    [
        "Nvlink queries are not supported for Devices in MIG mode",
        "Device does not have or support Nvlink",
    ],
)
def test_gpu_that_has_no_say_on_links_is_well(words: str) -> None:
    found = parsed(status=gpu(0, H100, [words]))
    assert [each.value for each in found] == [True]


def test_gpus_are_named_by_address_where_it_is_known() -> None:
    address = "0, GPU-0, 00000000:19:00.0\n1, GPU-1, 00000000:3B:00.0\n"
    assert short(gpus=address, status=links(0, H100, 18, 18) + links(1, H100, 17, 18)) == [
        "0000:3b:00.0"
    ]


def test_matrix_shows_the_one_gpu_that_the_others_do_not_reach() -> None:
    rows = [
        ["SYS" if 2 in (a, b) else "X" if a == b else "NV18" for b in range(4)] for a in range(4)
    ]
    matrix = "\n".join("\t".join([f"GPU{number}", *row, "0-55"]) for number, row in enumerate(rows))
    assert short(topo=f"\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n{matrix}\n") == ["index:2"]


def test_matrix_of_cards_with_bridges_shows_no_fault() -> None:
    rows = [
        ["X" if a == b else "NV4" if a // 2 == b // 2 else "SYS" for b in range(4)]
        for a in range(4)
    ]
    matrix = "\n".join("\t".join([f"GPU{number}", *row]) for number, row in enumerate(rows))
    assert short(topo=matrix) == []


def rounds(*texts: dict[str, str]) -> list[list[tuple[str, str]]]:
    """The events of each round of one memory, a minute apart: (fault type, raised or cleared)."""
    memory, active, told, detector = judge.Memory(), set[str](), [], NvlinkDetector()
    for number, each in enumerate(texts):
        seen = list(detector.parse(reading(NOW + number * timedelta(seconds=60), **each)))
        judged = judge.judge_round(detector, seen, memory, active=active, catalog=catalog.load())
        memory = judged.memory
        told.append([(event.fault_type, str(event.event)) for event in judged.events])
        for event in judged.events:
            mark = fingerprint(event.resource, event.fault_type, event.qualifier)
            (active.add if event.event is EventKind.RAISED else active.discard)(mark)
    return told


def counts(label: str, count: int) -> dict[str, str]:
    return {"errors": gpu(0, H100, [f"Link 3: {label}: {count}"])}


@pytest.mark.parametrize(
    "label",
    [
        "Replay Errors",
        "Recovery Errors",
        "Link recovery failed events",
        "Malformed packet Errors",
        "Rx Errors",
    ],
)
def test_counter_that_rises_is_told_and_one_that_stands_is_not(label: str) -> None:
    told = rounds(counts(label, 2353), counts(label, 2353), counts(label, 2354))
    assert told == [[], [], [("nvlink.errors", "raised")]]


@pytest.mark.parametrize(
    "label", ["Link recovery successful events", "Total link recovery events", "Symbol Errors"]
)
def test_counter_of_normal_work_is_not_told(label: str) -> None:
    assert rounds(counts(label, 1), counts(label, 900)) == [[], []]


def test_counter_that_was_reset_is_a_new_baseline() -> None:
    assert rounds(
        counts("Replay Errors", 9), counts("Replay Errors", 0), counts("Replay Errors", 0)
    ) == [[], [], []]


def test_failed_checks_are_a_warning_below_a_hundred_a_second_and_a_fault_above() -> None:
    few = rounds(counts("CRC Errors", 0), counts("CRC Errors", 600))[-1]
    many = rounds(counts("CRC Errors", 0), counts("CRC Errors", 6000))[-1]
    assert few == [("nvlink.errors", "raised")]
    assert many == [("nvlink.errors", "raised"), ("nvlink.crc_storm", "raised")]


def test_errors_that_end_are_left_to_the_quiet_period_of_their_type() -> None:
    told = rounds(counts("Replay Errors", 0), *[counts("Replay Errors", 5)] * 3)
    assert told == [[], [("nvlink.errors", "raised")], [], []]
    assert catalog.load()["nvlink.errors"].clears is ClearRule.AFTER_QUIET


def test_bridge_that_loses_links_is_told_until_it_has_them_again() -> None:
    def cards(up: int) -> dict[str, str]:
        return {"status": links(0, A100_CARD, up, 12)}

    told = rounds(cards(12), cards(8), cards(8), cards(12))
    assert told == [
        [],
        [],
        [("nvlink.link_inactive", "raised")],
        [("nvlink.link_inactive", "cleared")],
    ]


@pytest.mark.parametrize(
    ("status", "text", "types"),
    [
        (None, "", ["gpu.unresponsive"]),
        (
            255,
            "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
            ["gpu.lost"],
        ),
        (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            ["gpu.driver.unavailable"],
        ),
        (2, "Invalid combination of input arguments.", ["detector.silent"]),
    ],
)
def test_what_nvidia_smi_says_instead_is_the_same_fault_as_elsewhere(
    status: int | None, text: str, types: list[str]
) -> None:
    target = Target("gn001", "127.0.0.1", expected=Expected(gpus=(("0", "0000:3b:00.0"),)))
    output = Output(status, text.encode(), b"", timedelta(0))
    found = NvlinkDetector().parse(Reading("nvlink", target, NOW, {"nvlink-s": output}))
    assert [event.fault_type for event in raised(list(found))] == types


@pytest.mark.parametrize(("vendor", "is_silent"), [("0x8086", False), ("0x10de", True)])
def test_node_without_gpus_is_no_silence(vendor: str, is_silent: bool) -> None:
    now = reading(NOW, status="", errors="", lanes="")
    line = f"/sys/bus/pci/devices/0000:19:00.0/vendor\0{vendor}\n"
    outputs = {**now.outputs, "devices": Output(0, line.encode(), b"", timedelta(0))}
    assert bool(raised(list(NvlinkDetector().parse(replace(now, outputs=outputs))))) is is_silent


def test_output_that_breaks_off_is_silence() -> None:
    found = parsed(status=links(0, H100, 18, 18), errors="")
    assert [event.fault_type for event in raised(found)] == ["detector.silent"]


@given(
    st.text(alphabet="GPU Link0123456789:,NVX<inactive>/s.()-\n\t errorscl", max_size=600),
    st.booleans(),
)
def test_any_text_is_read(text: str, is_matrix: bool) -> None:
    found: list[Any] = parsed(**{"topo" if is_matrix else "status": text})
    assert sum(each.metric == "detector.answered" for each in found) == 1
