"""Rules of the gpu detector that no single capture shows: forms side by side, generations, and any
text at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Command, Output, Reading, Target, Transports
from detectors.evaluation import classify, judge
from detectors.expected import Expected
from detectors.faults import EventKind, FaultEvent, Observation, fingerprint
from detectors.node.gpu import GpuDetector
from detectors.node.outputs import nvidia_smi

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
PCI = "0000:3b:00.0"
GPU = f"node/gn001/gpu/{PCI}"
ONE = Expected(gpus=(("0", PCI),))


def reading(
    text: str, *, status: int | None = 0, expected: Expected = ONE, at: datetime = NOW
) -> Reading:
    output = Output(status, text.encode(), b"", timedelta(0))
    return Reading(
        "gpu", Target("gn001", "127.0.0.1", expected=expected), at, {"nvidia-smi": output}
    )


def xml(body: str, *, pci: str = "00000000:3B:00.0") -> str:
    return (
        "<nvidia_smi_log><driver_version>570.86.15</driver_version>"
        f'<gpu id="{pci}"><product_name>NVIDIA H100 80GB HBM3</product_name>{body}</gpu></nvidia_smi_log>'
    )


def parsed(text: str, **options: Any) -> list[Observation]:
    return list(GpuDetector().parse(reading(text, **options)))


def values(found: list[Observation]) -> dict[str, Any]:
    return {each.metric: each.value for each in found}


def raised(found: list[Observation]) -> list[FaultEvent]:
    return [event for each in found for event in classify.classify(each, (), catalog.load())]


@pytest.mark.parametrize(
    ("table", "sram", "dram"),
    [
        (
            "<sram_uncorrectable>2</sram_uncorrectable><dram_uncorrectable>1</dram_uncorrectable>",
            2,
            1,
        ),
        (
            (
                "<sram_uncorrectable_parity>1</sram_uncorrectable_parity>"
                "<sram_uncorrectable_secded>4</sram_uncorrectable_secded><dram_uncorrectable>0</dram_uncorrectable>"
            ),
            5,
            0,
        ),
        (
            (
                "<double_bit><device_memory>3</device_memory><register_file>1</register_file><l2_cache>2</l2_cache>"
                "<texture_memory>N/A</texture_memory><total>6</total></double_bit>"
            ),
            3,
            3,
        ),
        (
            "<sram_uncorrectable>N/A</sram_uncorrectable><dram_uncorrectable>N/A</dram_uncorrectable>",
            None,
            None,
        ),
    ],
    ids=["ampere", "hopper", "volta", "without ecc"],
)
def test_errors_are_counted_alike_in_every_generation_of_the_table(
    table: str, sram: int, dram: int
) -> None:
    found = values(parsed(xml(f"<ecc_errors><volatile>{table}</volatile></ecc_errors>")))
    assert (found.get("gpu.ecc.sram_uncorrected"), found.get("gpu.ecc.dram_uncorrected")) == (
        sram,
        dram,
    )


@pytest.mark.parametrize("group", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_slowdowns_have_the_same_meaning_under_both_of_their_names(group: str) -> None:
    reasons = "".join(
        f"<{group[:-1]}_{name}>{state}</{group[:-1]}_{name}>"
        for name, state in (
            ("hw_slowdown", "Active"),
            ("hw_thermal_slowdown", "Not Active"),
            ("hw_power_brake_slowdown", "Not Active"),
            ("sw_power_cap", "Active"),
        )
    )
    assert [event.fault_type for event in raised(parsed(xml(f"<{group}>{reasons}</{group}>")))] == [
        "gpu.slowdown.hardware"
    ]


@pytest.mark.parametrize(
    "said",
    [
        "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown\nError",
        "Unable to determine the device handle for gpu 000:3B:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU0: 0000:3B:00.0: Not Found",
        "Unable to determine the device\nhandle for GPU 0000:3B:00.0: Unknown Error",
    ],
)
def test_gpu_without_a_handle_is_lost_however_its_line_is_broken(said: str) -> None:
    lost = [event for event in raised(parsed(said, status=255)) if event.fault_type == "gpu.lost"]
    assert [event.resource for event in lost] == [GPU]


@pytest.mark.parametrize(
    ("action", "severity", "wanted"),
    [
        ("None", None, None),
        ("N/A", None, None),
        ("Drain P2P", "minor", "watch"),
        ("Reset", "major", "reset_gpu"),
        ("Drain and Reset", "major", "reset_gpu"),
        ("Reboot", "critical", "reboot"),
        ("Something New", "minor", "watch"),
    ],
)
def test_recovery_action_is_asked_for_at_its_own_grade(
    action: str, severity: str | None, wanted: str | None
) -> None:
    events = raised(parsed(xml(f"<gpu_recovery_action>{action}</gpu_recovery_action>")))
    assert [(str(event.severity), str(event.action)) for event in events] == (
        [(severity, wanted)] if severity else []
    )


def test_gpu_that_requires_a_reset_says_so_in_place_of_its_values() -> None:
    events = raised(
        parsed(xml("<temperature><gpu_temp>GPU requires reset</gpu_temp></temperature>"))
    )
    assert [(event.fault_type, str(event.action)) for event in events] == [
        ("gpu.recovery_action", "reset_gpu")
    ]


def test_gpu_that_requires_a_reset_says_so_in_a_query_too() -> None:
    said = "index, uuid, pci.bus_id, utilization.gpu [%]\n0, GPU-0, 00000000:3B:00.0, [GPU requires reset]\n"
    assert [str(event.action) for event in raised(parsed(said))] == ["reset_gpu"]


def test_corrupted_information_rom_is_told_of_the_gpu_that_the_warning_names() -> None:
    said = xml("<serial>1</serial>") + "\nWARNING: infoROM is corrupted at gpu 0000:3B:00.0\n"
    found = raised(parsed(said, status=14))
    assert [(event.fault_type, event.resource) for event in found] == [("gpu.inforom_corrupt", GPU)]


@pytest.mark.parametrize(
    ("state", "health", "types"),
    [
        ("Completed", "<summary>Healthy</summary><bandwidth>Full</bandwidth>", []),
        ("Completed", "<bandwidth>False</bandwidth><route_unhealthy>False</route_unhealthy>", []),
        (
            "Completed",
            "<summary>N/A</summary><incorrect_configuration>None</incorrect_configuration>",
            [],
        ),
        ("Completed", "<bandwidth>Degraded</bandwidth>", ["nvlink.fabric_degraded"]),
        (
            "Completed",
            "<bandwidth>Full</bandwidth><route_unhealthy>True</route_unhealthy>",
            ["nvlink.fabric_degraded"],
        ),
        ("Not Started", "<summary>N/A</summary>", ["nvlink.fabric_not_joined"]),
        ("N/A", "<summary>N/A</summary>", []),
    ],
)
def test_fabric_is_told_by_its_words(state: str, health: str, types: list[str]) -> None:
    found = raised(parsed(xml(f"<fabric><state>{state}</state><health>{health}</health></fabric>")))
    assert [event.fault_type for event in found] == types


LINK = (
    "<gpu_virtualization_mode><virtualization_mode>{mode}</virtualization_mode></gpu_virtualization_mode>"
    "<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>{gen}</current_link_gen>"
    "</pcie_gen><link_widths><max_link_width>16x</max_link_width><current_link_width>{width}x</current_link_width>"
    "</link_widths></pci_gpu_link_info></pci><performance_state>{state}</performance_state>"
    "<utilization><gpu_util>{busy}</gpu_util></utilization>"
)


@pytest.mark.parametrize(
    ("gen", "width", "state", "busy", "mode", "is_full"),
    [
        (5, 16, "P0", "100 %", "None", True),
        (3, 16, "P0", "100 %", "None", False),
        (5, 8, "P2", "3 %", "None", False),
        (1, 16, "P8", "0 %", "None", None),
        (1, 16, "P0", "0 %", "None", None),
        (5, 8, "P0", "100 %", "Pass-Through", None),
        (3, 16, "P0", "N/A", "None", None),
    ],
)
def test_link_is_judged_only_of_a_gpu_at_work_on_bare_metal(
    gen: int, width: int, state: str, busy: str, mode: str, is_full: bool | None
) -> None:
    body = LINK.format(gen=gen, width=width, state=state, busy=busy, mode=mode)
    assert values(parsed(xml(body))).get("pcie.full_link") is is_full


def test_unknown_error_under_the_addressing_mode_is_no_fault() -> None:
    assert raised(parsed(xml("<addressing_mode>Unknown Error</addressing_mode>"))) == []


MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124"
)


@pytest.mark.parametrize(
    ("vendor", "expected", "status", "text", "types"),
    [
        ("0x10de", ONE, 18, MISMATCH, ["gpu.driver.mismatch"]),
        ("0x10de", Expected(), 18, MISMATCH, ["gpu.driver.mismatch"]),
        ("0x8086", ONE, 18, MISMATCH, ["gpu.driver.mismatch"]),
        ("0x8086", Expected(), 18, MISMATCH, []),
        ("", Expected(), 18, MISMATCH, ["detector.silent"]),
        ("0x8086", Expected(), 127, "", []),
        ("0x10de", Expected(), 127, "", ["detector.silent"]),
        ("0x8086", ONE, 127, "", ["detector.silent"]),
        ("0x8086", Expected(), 4, "Insufficient permissions", ["detector.silent"]),
    ],
)
def test_driver_is_missed_only_where_gpus_are_known_or_on_the_bus(
    vendor: str, expected: Expected, status: int, text: str, types: list[str]
) -> None:
    now = reading(text, status=status, expected=expected)
    line = f"/sys/bus/pci/devices/{PCI}/vendor\0{vendor}\n" if vendor else ""
    outputs = {**now.outputs, "devices": Output(0, line.encode(), b"", timedelta(0))}
    found = raised(list(GpuDetector().parse(replace(now, outputs=outputs))))
    assert [event.fault_type for event in found] == types


def test_nothing_is_said_of_the_others_when_nvidia_smi_gives_up_at_one() -> None:
    two = Expected(gpus=(("0", PCI), ("1", "0000:9b:00.0")))
    said = "Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost\nNo devices were found"
    found = {
        (event.fault_type, event.resource) for event in raised(parsed(said, status=6, expected=two))
    }
    assert found == {("gpu.lost", "node/gn001/gpu/0000:9b:00.0")}


def test_all_expected_gpus_are_lost_when_no_devices_are_found() -> None:
    types = [event.fault_type for event in raised(parsed("No devices were found", status=6))]
    assert types == ["gpu.count_mismatch", "gpu.lost"]


def rounds(*texts: str) -> list[list[tuple[str, str]]]:
    """The events of each round of one memory, a minute apart: (fault type, raised or cleared)."""
    memory, active, told = judge.Memory(), set[str](), []
    for number, text in enumerate(texts):
        seen = parsed(text, at=NOW + number * timedelta(seconds=60))
        judged = judge.judge_round(
            GpuDetector(), seen, memory, active=active, catalog=catalog.load()
        )
        memory = judged.memory
        told.append([(event.fault_type, str(event.event)) for event in judged.events])
        for event in judged.events:
            mark = fingerprint(event.resource, event.fault_type, event.qualifier)
            (active.add if event.event is EventKind.RAISED else active.discard)(mark)
    return told


def aggregate(count: int) -> str:
    return xml(
        f"<ecc_errors><aggregate><dram_uncorrectable>{count}</dram_uncorrectable></aggregate></ecc_errors>"
    )


def test_lifetime_counter_is_a_baseline_at_first_sight_and_raises_when_it_rises() -> None:
    new = ("gpu.ecc.uncorrectable_new", "raised")
    assert rounds(aggregate(7), aggregate(7), aggregate(9), aggregate(9)) == [[], [], [new], []]


def test_errors_since_the_last_reset_are_judged_at_first_sight_and_end_with_the_reset() -> None:
    def volatile(count: int) -> str:
        return xml(
            f"<ecc_errors><volatile><dram_uncorrectable>{count}</dram_uncorrectable></volatile></ecc_errors>"
        )

    told = rounds(volatile(1), volatile(1), volatile(0))
    assert told == [[("gpu.ecc.uncorrectable", word)] for word in ("raised", "raised", "cleared")]


def test_slowdown_is_raised_after_three_polls_and_a_shorter_one_never() -> None:
    def slow(state: str) -> str:
        name = "clocks_event_reason_hw_thermal_slowdown"
        return xml(f"<clocks_event_reasons><{name}>{state}</{name}></clocks_event_reasons>")

    hot, cool = slow("Active"), slow("Not Active")
    assert rounds(hot, hot, cool, cool, hot, hot, hot)[-3:] == [
        [],
        [],
        [("gpu.slowdown.thermal", "raised")],
    ]


def test_replays_are_told_by_their_rate_alone() -> None:
    def replays(count: int) -> str:
        return xml(f"<pci><replay_counter>{count}</replay_counter></pci>")

    assert rounds(replays(900), replays(908), replays(917)) == [
        [],
        [],
        [("pcie.replays", "raised")],
    ]


@given(st.text(alphabet="GPU 0123456789:ABCabc|/%!.-\n\t\0<>[],", max_size=600))
def test_forms_are_total_on_any_text(text: str) -> None:
    for start in (
        "",
        "==============NVSMI LOG==============\n",
        "|   0  X  On | 00000000:3B:00.0 Off | ",
        "pci.bus_id, ",
    ):
        printed = nvidia_smi.read((start + text).encode())
        assert printed.cards is None or all(isinstance(card.pci, str) for card in printed.cards)


@pytest.mark.parametrize("filler", ["|", " ", "GPU ", "a:", "GPU 0: ", "Unable to determine ", '"'])
def test_long_output_is_read_in_linear_time(filler: str) -> None:
    """A megabyte of one repeated word: what is quadratic would take hours, and the suite's time
    limit ends it."""
    text = ("==NVSMI LOG==\nGPU 00000000:3B:00.0\n" + filler * (1_000_000 // len(filler))).encode()
    assert nvidia_smi.read(text).cards is not None
    assert nvidia_smi.read(text[20:]).lost == {}


# Settings that the inventory declares
# ---------------------------------------------------------------------------

SET = (
    "<persistence_mode>Enabled</persistence_mode><compute_mode>Exclusive_Process</compute_mode>"
    "<mig_mode><current_mig>Disabled</current_mig></mig_mode>"
    "<gpu_power_readings><current_power_limit>500.00 W</current_power_limit></gpu_power_readings>"
    "<applications_clocks><graphics_clock>1980 MHz</graphics_clock></applications_clocks>"
)
DEPRECATED = SET.replace("1980 MHz", "Requested functionality has been deprecated")


def find_settings(body: str, **declared: str) -> dict[str, tuple[object, str]]:
    expected = replace(ONE, settings=declared)
    seen = GpuDetector().parse(reading(xml(body), expected=expected))
    return {
        observation.attributes["qualifier"]: (observation.value, observation.attributes["text"])
        for observation in seen
        if observation.metric == "gpu.setting_fits"
    }


@pytest.mark.parametrize(
    ("name", "declared", "fits"),
    [
        ("gpu_mig", "Disabled", True),
        ("gpu_mig", "Enabled", False),
        ("gpu_persistence_mode", "Enabled", True),
        ("gpu_persistence_mode", "Disabled", False),
        ("gpu_compute_mode", "exclusive process", True),
        ("gpu_compute_mode", "Default", False),
        ("gpu_power_limit_w", "500", True),
        ("gpu_power_limit_w", "700", False),
        ("gpu_application_clock_mhz", "1980", True),
        ("gpu_application_clock_mhz", "1410", False),
    ],
)
def test_a_setting_is_compared_with_what_the_inventory_declares(
    name: str, declared: str, fits: bool
) -> None:
    found = find_settings(SET, **{name: declared})
    assert {key: value for key, (value, _) in found.items()} == {name: fits}


def test_the_text_names_both() -> None:
    found = find_settings(SET, gpu_power_limit_w="700")
    assert found["gpu_power_limit_w"][1] == "power limit is 500.00 W, declared is 700 W"


def test_nothing_is_said_of_what_is_not_declared_or_not_printed() -> None:
    assert find_settings(SET) == {}
    assert find_settings("", gpu_mig="Disabled", gpu_power_limit_w="700") == {}
    assert find_settings(DEPRECATED, gpu_application_clock_mhz="1980") == {}
    assert find_settings(SET.replace("Disabled", "N/A"), gpu_mig="Disabled") == {}


# MIG devices
# ---------------------------------------------------------------------------

LISTED = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n"
    "  MIG 1c.3g.20gb  Device  1: (UUID: MIG-2)\n"
    "MIG 1g.5gb+me   Device  2: (UUID: MIG-GPU-a/7/0)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n"
)
TWO = "".join(
    f"<mig_device><device_attributes><shared><multiprocessor_count>{count}</multiprocessor_count>"
    "</shared></device_attributes></mig_device>"
    for count in (42, 14)
)


def with_list(body: str, listed: str, declared: str, status: int = 0) -> list[Observation]:
    taken = reading(xml(body), expected=replace(ONE, settings={"gpu_mig_devices": declared}))
    output = Output(status, listed.encode(), b"", timedelta(seconds=1))
    outputs = {**taken.outputs, "nvidia-smi-list": output}
    return list(GpuDetector().parse(replace(taken, outputs=outputs)))


def find_fit(listed: str, declared: str, status: int = 0) -> list[tuple[object, str]]:
    seen = with_list("<uuid>GPU-a</uuid>", listed, declared, status)
    return [(one.value, one.attributes["text"]) for one in seen if one.metric == "gpu.setting_fits"]


def test_the_list_names_the_profile_of_each_mig_device_by_its_gpu() -> None:
    found = nvidia_smi.read_mig_profiles(LISTED.encode())
    assert found == {"GPU-a": ("3g.20gb", "1c.3g.20gb", "1g.5gb+me"), "GPU-b": ()}
    assert nvidia_smi.read_mig_profiles(b"No devices were found\n\xff  MIG 1g.5gb Device 0:") == {}


@pytest.mark.parametrize(
    ("declared", "fits"),
    [
        ("3g.20gb,1c.3g.20gb,1g.5gb+me", True),
        ("1g.5gb+ME:1, 3g.20gb:1, 1c.3g.20gb", True),
        ("3g.20gb:2,1g.5gb+me", False),
        ("1g.5gb:7", False),
        ("none", False),
    ],
)
def test_mig_devices_are_compared_with_those_declared(declared: str, fits: bool) -> None:
    ((value, text),) = find_fit(LISTED, declared)
    assert value is fits
    shown = "1c.3g.20gb:1,1g.5gb+me:1,3g.20gb:1"
    assert text == f"MIG devices are {shown}, declared is {declared}"


def test_a_gpu_without_mig_devices_has_none() -> None:
    bare = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n"
    assert find_fit(bare, "1g.5gb:7") == [(False, "MIG devices are none, declared is 1g.5gb:7")]
    assert find_fit(bare, "none") == [(True, "MIG devices are none, declared is none")]


def test_nothing_is_said_of_mig_devices_where_the_list_gives_no_answer() -> None:
    assert find_fit("", "1g.5gb:7") == []
    assert find_fit(LISTED, "1g.5gb:7", status=255) == []
    assert find_fit(LISTED.replace("GPU-a", "GPU-c"), "1g.5gb:7") == []


class AskedShell:
    """Remembers what it is asked, and answers nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise AssertionError(argv)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        self.asked += [command.argv for command in commands]
        return {}


@pytest.mark.parametrize(
    ("declared", "is_asked"), [({}, False), ({"gpu_mig_devices": "none"}, True)]
)
def test_the_list_is_asked_only_where_the_inventory_declares_mig_devices(
    declared: dict[str, str], is_asked: bool
) -> None:
    shell = AskedShell()
    target = Target("gn001", "127.0.0.1", expected=replace(ONE, settings=declared))
    GpuDetector().collect(target, Transports(shell=shell), NOW)
    assert (("nvidia-smi", "-L") in shell.asked) is is_asked


def test_how_many_mig_devices_there_are_is_recorded_where_there_are_any() -> None:
    def count(devices: str) -> list[object]:
        body = f"<mig_devices>{devices}</mig_devices>"
        seen = GpuDetector().parse(reading(xml(body), expected=ONE))
        return [one.value for one in seen if one.metric == "gpu.mig_devices"]

    assert count(TWO) == ["2 of 14, 42 multiprocessors"]
    assert count("<mig_device/>") == ["1 of ? multiprocessors"]
    assert count("None") == []
