"""Modules in network ports: their own limits go first, what is not in use is no fault, one lane
against the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Command, OneByOne, Output, Reading, Target, Transports
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.node.outputs import optics
from detectors.node.transceiver import TransceiverDetector
from fixtures.cluster.facets.nic import NicFacet, SimulatedPort
from fixtures.cluster.facets.nic_polled import expected
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = TransceiverDetector()
CATALOG = catalog.load()


def of_text(text: str, *, name: str = "ethtool-m.eth0") -> list[str]:
    """The faults of one output handed in by itself."""
    reading = Reading(
        "transceiver",
        Target("gn001", ""),
        START,
        {name: Output(0, text.encode(), b"", timedelta(0))},
    )
    return faults(list(DETECTOR.parse(reading)), judge.Memory())


def faults(observations: list[Observation], memory: judge.Memory) -> list[str]:
    events = judge.judge_round(DETECTOR, observations, memory, active=(), catalog=CATALOG).events
    return [f"{event.severity} {event.fault_type} {event.qualifier}".strip() for event in events]


def of_node(
    change: Callable[[SimulatedPort], None], *, inventory: Expected | None = None
) -> list[str]:
    """The faults of a simulated node after something happened to its fourth rail."""
    world = SimulatedWorld.sakuraone(clock=lambda: START)
    facet = world.node("gn001").facet(NicFacet)
    change(facet.port("rail3"))
    target = Target("gn001", "", expected=expected() if inventory is None else inventory)
    return faults(
        list(
            DETECTOR.parse(DETECTOR.collect(target, Transports(shell=SimulatedShell(world)), START))
        ),
        judge.Memory(),
    )


SFP = """\tIdentifier                                : 0x03 (SFP)
\tConnector                                 : 0x07 (LC)
\tVendor SN                                 : KS0001
\tLaser bias current                        : {bias} mA
\tLaser output power                        : 0.5815 mW / {tx} dBm
\tReceiver signal average optical power     : 0.0001 mW / {rx} dBm
\tModule temperature                        : {celsius} degrees C / 89.83 degrees F
"""
LIMITS = """\tLaser rx power high alarm threshold       : 1.2589 mW / 1.00 dBm
\tLaser rx power low alarm threshold        : 0.0282 mW / -15.50 dBm
\tLaser rx power high warning threshold     : 1.0000 mW / 0.00 dBm
\tLaser rx power low warning threshold      : 0.0355 mW / -14.50 dBm
"""


@pytest.mark.parametrize(
    ("rx", "tx", "limits", "said"),
    [
        ("-2.24", "-2.88", LIMITS, []),
        ("-14.90", "-2.88", LIMITS, []),
        ("-16.00", "-2.88", LIMITS, ["major nic.transceiver.rx_power_low lane 1"]),
        ("-16.00", "-2.88", "", []),
        ("-40.00", "-2.35", "", ["major nic.transceiver.rx_power_low lane 1"]),
        ("-inf", "-2.35", "", ["major nic.transceiver.rx_power_low lane 1"]),
        ("-2.24", "-40.00", "", ["major nic.transceiver.tx_power_low lane 1"]),
        ("-40.00", "-40.00", LIMITS, []),
        ("-inf", "-inf", LIMITS, []),
    ],
    ids=[
        *(
            "well",
            "past its warning alone",
            "past its alarm",
            "no limits and some light",
            "no light",
        ),
        *("no light, as a word", "no light sent", "switched off", "switched off, as a word"),
    ],
)
def test_light_is_judged_by_the_modules_own_limits(
    rx: str, tx: str, limits: str, said: list[str]
) -> None:
    assert of_text(SFP.format(bias="6.7", tx=tx, rx=rx, celsius="40.01") + limits) == said


@pytest.mark.parametrize("words", ["-infdBm", "-inf dBm", "-40.00 dBm", "-60.00 dBm"])
def test_no_light_is_one_value_however_it_is_written(words: str) -> None:
    module = optics.parse_ethtool_module(f"Laser output power : 0.0000 mW / {words}\n".encode())
    assert module is not None
    assert module.values["tx_power_dbm"][1] == optics.DARK_DBM


def test_channels_are_read_with_and_without_a_space() -> None:
    without, with_space = (
        "Rcvr signal avg optical power(Channel 1)  ",
        "Rcvr signal avg optical power (Channel 2) ",
    )
    module = optics.parse_ethtool_module(
        f"{without}: 0.5 mW / -3.01 dBm\n{with_space}: 1 mW / 0 dBm".encode()
    )
    assert module is not None
    assert module.values["rx_power_dbm"] == {1: -3.01, 2: 0.0}


def test_limits_out_of_order_mean_nothing() -> None:
    upside_down = """\tModule temperature low alarm              : On
\tModule temperature high alarm threshold   : 3.02 degrees C / 37.43 degrees F
\tModule temperature low alarm threshold    : 7.06 degrees C / 44.71 degrees F
"""
    assert of_text(SFP.format(bias="6.7", tx="-2.2", rx="-2.2", celsius="30") + upside_down) == []


def test_a_flag_counts_unless_the_value_is_back_within_its_limit() -> None:
    flag = "\tLaser bias current high warning           : On\n"
    limit = "\tLaser bias current high warning threshold : 12.000 mA\n"
    text = SFP.format(bias="{}", tx="-2.2", rx="-2.2", celsius="30")
    seen = [
        DETECTOR.parse(
            Reading(
                "transceiver",
                Target("a", ""),
                START,
                {"ethtool-m.x": Output(0, t.encode(), b"", timedelta(0))},
            )
        )
        for t in (
            text.format("6.1") + flag + limit,
            text.format("12.5") + flag + limit,
            text.format("6.1") + flag,
        )
    ]
    assert [next(o.value for o in found if o.metric == "nic.module.warning") for found in seen] == [
        False,
        True,
        True,
    ]


COPPER = """Module Info
-----------
Rx Power Current [dBm]             : -40,-40,-40,-40 [0..0]
Tx Power Current [dBm]             : 0,0,0,0 [0..0]
Cable Technology                   : Copper cable, passive, unequalized
Vendor Serial Number               : KS0002
Raw Physical BER                   : 15E-255
"""


def test_copper_has_no_light_to_lose() -> None:
    assert of_text(COPPER, name="mlxlink.mlx5_0") == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("15E-255", []),
        ("2E-08", []),
        ("9E-07", []),
        ("2E-06", ["warning nic.link.ber_high"]),
        ("2E-05", ["major nic.link.ber_high"]),
        ("N/A", []),
    ],
)
def test_raw_bit_errors_are_told_long_before_correction_fails(raw: str, said: list[str]) -> None:
    assert (
        of_text(
            f"State : Active\nRaw Physical BER                   : {raw}\n", name="mlxlink.mlx5_0"
        )
        == said
    )


def lower(port: SimulatedPort) -> None:
    port.optics.rx_dbm[0] = -12.0


def test_a_lane_below_the_limit_is_a_fault_of_a_port_in_use() -> None:
    assert of_node(lower) == ["major nic.transceiver.rx_power_low lane 1"]


def uncabled(port: SimulatedPort) -> None:
    lower(port)
    port.is_up = port.was_up = False


def test_a_module_in_a_port_that_nobody_cabled_is_no_fault() -> None:
    assert of_node(uncabled, inventory=Expected()) == []


def test_a_module_in_a_failed_port_is_judged() -> None:
    assert of_node(uncabled) == ["major nic.transceiver.rx_power_low lane 1"]


def test_a_module_in_a_reserved_port_is_no_fault() -> None:
    inventory = expected()
    nics = tuple(
        replace(nic, role="reserved") if nic.device == "mlx5_4" else nic for nic in inventory.nics
    )
    assert of_node(uncabled, inventory=replace(inventory, nics=nics)) == []


def test_a_module_in_low_power_is_no_fault() -> None:
    def sleep(port: SimulatedPort) -> None:
        port.optics.is_low_power = True

    assert of_node(sleep) == []


def mlxlink(errors: list[int], light: list[float]) -> str:
    rows = {
        "State": "Active",
        "Raw Physical Errors Per Lane": ",".join(map(str, errors)),
        "Rx Power Current [dBm]": ",".join(map(str, light)) + " [-8.9..5]",
    }
    return "".join(f"{name} : {value}\n" for name, value in rows.items())


def two_rounds(errors: list[int], light: list[float]) -> list[str]:
    """All lanes had 1,000 errors before."""
    memory = judge.Memory()
    said: list[str] = []
    for number, counts in enumerate(([1000] * 4, errors)):
        output = Output(0, mlxlink(counts, light).encode(), b"", timedelta(0))
        at = START + number * DETECTOR.every
        seen = list(
            DETECTOR.parse(
                Reading("transceiver", Target("gn001", ""), at, {"mlxlink.mlx5_0": output})
            )
        )
        judged = judge.judge_round(DETECTOR, seen, memory, active=(), catalog=CATALOG)
        memory, said = (
            judged.memory,
            [f"{event.fault_type} {event.qualifier}" for event in judged.events],
        )
    return said


@pytest.mark.parametrize(
    ("errors", "light", "said"),
    [
        ([1010, 1011, 1200, 1009], [1.0, 1.1, -1.5, 0.9], ["nic.transceiver.lane_weak lane 3"]),
        ([1010, 1011, 1200, 1009], [1.0, 1.1, 0.2, 0.9], []),
        ([1010, 1011, 1050, 1009], [1.0, 1.1, -1.5, 0.9], []),
        ([1000, 1000, 1005, 1000], [1.0, 1.1, -1.5, 0.9], []),
        ([10, 11, 900, 9], [1.0, 1.1, -1.5, 0.9], []),
    ],
    ids=[
        "ten times and darker",
        "ten times in good light",
        "five times",
        "too few to say",
        "counters were reset",
    ],
)
def test_a_lane_is_weak_by_its_errors_and_its_light_together(
    errors: list[int], light: list[float], said: list[str]
) -> None:
    assert two_rounds(errors, light) == said


class Refusing(OneByOne):
    """sudo asks for a password wherever root is needed; the rest answers as the simulated node
    does."""

    def __init__(self) -> None:
        self.node = SimulatedShell(SimulatedWorld.sakuraone(clock=lambda: START))

    def run_all(self, target: Target, name: str, commands: list[Command]) -> dict[str, Output]:  # type: ignore[override]
        answers = self.node.run_all(target, name, commands)
        refused = Output(1, b"", b"sudo: a password is required\n", timedelta(0))
        return {
            command.name: refused if command.as_root else answers[command.name]
            for command in commands
        }


def test_a_sudo_that_asks_for_a_password_is_said_and_never_healthy() -> None:
    target = Target("gn001", "", expected=expected())
    seen = list(DETECTOR.parse(DETECTOR.collect(target, Transports(shell=Refusing()), START)))
    answers = [o for o in seen if o.metric == "detector.answered"]
    assert [answer.value for answer in answers] == [False]
    assert "sudo: a password is required" in answers[0].attributes["text"]


def test_modules_are_asked_at_most_every_five_minutes() -> None:
    assert timedelta(minutes=5) <= DETECTOR.every


def test_serial_numbers_are_facts_for_the_inventory() -> None:
    reading = Reading(
        "transceiver",
        Target("a", ""),
        START,
        {"ethtool-m.x": Output(0, SFP.encode(), b"", timedelta(0))},
    )
    assert ("module.serial", "KS0001") in {
        (seen.metric, seen.value) for seen in DETECTOR.parse(reading)
    }


lines = st.sampled_from(
    [
        "Laser rx power low alarm threshold : ",
        "Rcvr signal avg optical power (Channel 3) : ",
        "-inf dBm",
        "On",
        "\n",
        "1,2 [",
        "{",
    ]
)
texts = st.binary(max_size=300) | st.lists(lines | st.text(max_size=6), max_size=30).map(
    lambda w: "".join(w).encode()
)


@given(text=texts)
def test_parsers_take_any_text(text: bytes) -> None:
    optics.parse_ethtool_module(text)
    optics.parse_mlxlink(text)


def test_parsers_take_time_in_step_with_the_text() -> None:
    for start in (
        b"Laser bias current ",
        b"State : ",
        b"Rx Power Current [dBm] : 1,",
        b"a (Channel ",
    ):
        optics.parse_ethtool_module(start * 50_000)
        optics.parse_mlxlink(start * 50_000)
