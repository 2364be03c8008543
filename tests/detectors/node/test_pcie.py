"""Rules of the pcie detector: what a link is measured against, which ends are looked at, and errors
by their rise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Output, Reading, Target, Transports
from detectors.evaluation import classify, judge
from detectors.expected import Expected, ExpectedNic
from detectors.faults import FaultEvent, Observation
from detectors.node.pcie import PcieDetector
from detectors.transports.local import LocalShell
from tests.work import calls_of

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
ROOT = "/sys/bus/pci/devices"
BRIDGE, GPU, NIC, DISK, SCREEN = "0x060400", "0x030200", "0x020000", "0x010802", "0x030000"
PORT = "0000:16:00.0"


@dataclass(frozen=True)
class Part:
    pci: str
    kind: str
    vendor: str = "0x15b3"
    width: str = "16"
    best_width: str = "16"
    speed: str = "32.0 GT/s PCIe"
    best_speed: str = "32.0 GT/s PCIe"
    below: str = ""

    @property
    def text(self) -> str:
        values = {
            "class": self.kind,
            "vendor": self.vendor,
            "current_link_width": self.width,
            "max_link_width": self.best_width,
            "current_link_speed": self.speed,
            "max_link_speed": self.best_speed,
        }
        if self.below:
            values["secondary_bus_number"] = self.below
        return "".join(f"{ROOT}/{self.pci}/{name}\0{value}\n" for name, value in values.items())


UP = Part("0000:15:01.0", BRIDGE, below=str(0x16))
CARD = Part(PORT, NIC)


def reading(
    links: str = "", aer: str = "", *, at: datetime = NOW, expected: Expected | None = None
) -> Reading:
    outputs = {
        name: Output(0, text.encode(), b"", timedelta(0))
        for name, text in (("links", links), ("aer", aer))
        if text
    }
    return Reading(
        "pcie", Target("gn001", "127.0.0.1", expected=expected or Expected()), at, outputs
    )


def raised(found: list[Observation]) -> list[FaultEvent]:
    return [event for each in found for event in classify.classify(each, (), catalog.load())]


def degraded(*parts: Part, expected: Expected | None = None) -> list[str]:
    text = "".join(part.text for part in parts)
    return [
        event.resource
        for event in raised(list(PcieDetector().parse(reading(text, expected=expected))))
    ]


@pytest.mark.parametrize(
    ("card", "is_degraded"),
    [
        (CARD, False),
        (replace(CARD, width="8"), True),
        (replace(CARD, speed="16.0 GT/s PCIe"), True),
        (replace(CARD, width="8", best_width="8"), False),
        (replace(CARD, width="0", speed="Unknown"), False),
        (replace(CARD, width="63"), False),
        (replace(CARD, speed="Unknown speed"), False),
        (replace(CARD, kind=GPU, vendor="0x10de", speed="2.5 GT/s PCIe"), False),
        (replace(CARD, kind=GPU, vendor="0x10de", width="8", speed="2.5 GT/s PCIe"), True),
        (replace(CARD, kind=SCREEN, vendor="0x1a03", width="1"), False),
        (replace(CARD, pci="0000:16:00.1", width="8"), False),
    ],
)
def test_link_is_measured_against_its_device(card: Part, is_degraded: bool) -> None:
    assert bool(degraded(UP, card)) is is_degraded


def test_link_is_measured_against_its_slot() -> None:
    disk = Part(PORT, DISK, width="2", best_width="4", speed="16.0 GT/s PCIe")
    assert degraded(replace(UP, best_width="2", best_speed="16.0 GT/s PCIe"), disk) == []
    assert degraded(UP, disk) == [f"node/gn001/pci/{PORT}"]


def test_slot_of_a_guest_is_not_known() -> None:
    assert degraded(replace(CARD, width="8")) == []


def test_upper_end_of_a_switch_is_a_link_and_its_lower_ports_are_none() -> None:
    upper = Part(PORT, BRIDGE, below=str(0x17))
    lower = Part(
        "0000:17:00.0", BRIDGE, below=str(0x18), width="8"
    )  # the link of the card below, which tells itself
    card = Part("0000:18:00.0", NIC)
    assert degraded(UP, upper, lower, card) == []
    assert degraded(UP, replace(upper, width="8"), lower, card) == [f"node/gn001/pci/{PORT}"]


def test_parts_are_named_as_the_inventory_names_them() -> None:
    known = Expected(nics=(ExpectedNic("mlx5_0", pci=PORT),))
    assert degraded(UP, replace(CARD, width="8"), expected=known) == ["node/gn001/nic/mlx5_0"]
    assert degraded(UP, replace(CARD, kind=GPU, vendor="0x10de", width="8")) == [
        f"node/gn001/gpu/{PORT}"
    ]


def counters(corrected: int = 0, nonfatal: int = 0, fatal: int = 0) -> str:
    rows = (
        ("correctable", "COR", corrected),
        ("nonfatal", "NONFATAL", nonfatal),
        ("fatal", "FATAL", fatal),
    )
    return "".join(
        f"{ROOT}/{PORT}/aer_dev_{kind}\0TOTAL_ERR_{word} {count}\n" for kind, word, count in rows
    )


def rounds(*texts: str) -> list[list[tuple[str, str]]]:
    """The events of each round of one memory, two minutes apart: (fault type, severity)."""
    memory, told, detector = judge.Memory(), [], PcieDetector()
    for number, text in enumerate(texts):
        seen = list(
            detector.parse(
                reading(UP.text + CARD.text, text, at=NOW + number * timedelta(seconds=120))
            )
        )
        judged = judge.judge_round(detector, seen, memory, active=(), catalog=catalog.load())
        memory = judged.memory
        told.append([(event.fault_type, str(event.severity)) for event in judged.events])
    return told


def test_errors_are_a_baseline_at_first_sight_and_told_when_they_rise() -> None:
    assert rounds(counters(9, 1, 1), counters(9, 1, 1)) == [[], []]
    assert rounds(counters(), counters(nonfatal=1))[-1] == [("pcie.aer.nonfatal", "major")]
    assert rounds(counters(), counters(fatal=1))[-1] == [("pcie.aer.fatal", "critical")]


def test_corrected_errors_ask_for_a_look_only_when_they_are_many() -> None:
    assert rounds(counters(), counters(16))[-1] == [("pcie.aer.corrected", "warning")]
    assert rounds(counters(), counters(18))[-1] == [
        ("pcie.aer.corrected", "warning"),
        ("pcie.aer.corrected", "minor"),
    ]


def test_counters_that_a_boot_reset_are_a_new_baseline() -> None:
    assert rounds(counters(900, 3), counters(2), counters(2)) == [[], [], []]


def test_reading_grows_with_the_number_of_devices_and_no_faster() -> None:
    def work(devices: int) -> int:
        pairs = [
            (f"0000:{n:02x}:00.0", f"0000:{n + 1:02x}:00.0", str(n + 1))
            for n in range(0, devices, 2)
        ]
        parts = [
            part
            for up, down, bus in pairs
            for part in (Part(up, BRIDGE, below=bus), Part(down, NIC))
        ]
        links = "".join(part.text for part in parts)
        aer = "".join(counters().replace(PORT, part.pci) for part in parts)
        seen = reading(links, aer)
        return calls_of(lambda: list(PcieDetector().parse(seen)))

    assert work(250) < 11 * work(26)


def test_this_machine_is_read_without_rights_or_faults_of_the_reading() -> None:
    """The commands themselves, by the real find and grep: whatever is plugged in here, they
    answer."""
    target = Target("here", "127.0.0.1")
    found = list(
        PcieDetector().parse(PcieDetector().collect(target, Transports(shell=LocalShell()), NOW))
    )
    assert sum(each.metric == "detector.answered" for each in found) == 1


def test_reading_that_was_cut_off_says_nothing_of_what_it_had_read() -> None:
    cut = Output(
        None, (UP.text + replace(CARD, width="8").text).encode(), b"", timedelta(seconds=10)
    )
    seen = list(
        PcieDetector().parse(Reading("pcie", Target("gn001", "127.0.0.1"), NOW, {"links": cut}))
    )
    assert [event.fault_type for event in raised(seen)] == ["detector.silent"]


LSPCI = """16:00.0 3D controller{kind}: NVIDIA Corporation GH100 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x{width}
"""


@pytest.mark.parametrize("kind", ["", " [0302]"])
@pytest.mark.parametrize(("width", "is_degraded"), [(16, False), (8, True)])
def test_lspci_is_read_with_and_without_numbers(kind: str, width: int, is_degraded: bool) -> None:
    output = Output(0, LSPCI.format(kind=kind, width=width).encode(), b"", timedelta(0))
    seen = PcieDetector().parse(
        Reading("pcie", Target("gn001", "127.0.0.1"), NOW, {"lspci": output})
    )
    assert bool(raised(list(seen))) is is_degraded


@given(
    st.text(alphabet="0123456789abcdef:./x\0\n GT", max_size=400),
    st.sampled_from(["links", "aer", "lspci"]),
)
def test_any_text_is_read(text: str, name: str) -> None:
    output = Output(0, f"{ROOT}/0000:16:00.0/{text}".encode(), b"", timedelta(0))
    found = PcieDetector().parse(Reading("pcie", Target("gn001", "127.0.0.1"), NOW, {name: output}))
    assert sum(each.metric == "detector.answered" for each in found) == 1
