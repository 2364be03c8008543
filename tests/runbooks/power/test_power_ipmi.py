"""IPMI at its edges: what ipmitool prints, what it is given, and that nobody else reads the
password."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import DetectorError, OneByOne, Output, Target
from detectors.transports.local import LocalShell
from runbooks.power.access import BmcAccess, BmcKind
from runbooks.power.ipmi import IpmiPower
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState
from tests.runbooks.power_doors import machine
from tests.services.ipmi import IpmiSim

ACCESS = BmcAccess(BmcKind.IPMI, "operator", "hunter2", cipher=3)
NODE = machine("gn001", "10.0.9.1")


class Printing(OneByOne):
    """An ipmitool that prints what it is given; keeps how it was called."""

    def __init__(self, stdout: bytes = b"", stderr: bytes = b"", status: int | None = 0) -> None:
        self.output = Output(status, stdout, stderr, timedelta(0))
        self.argv: tuple[str, ...] = ()
        self.environment: Mapping[str, str] = {}

    def made(self, environment: Mapping[str, str]) -> Printing:
        self.environment = environment
        return self

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.argv = argv
        return self.output


def asked(shell: Printing, verb: str = "read_state", node: Target = NODE) -> object:
    return getattr(IpmiPower(ACCESS, shell_of=shell.made), verb)(node)


def test_the_password_stands_in_the_environment_alone() -> None:
    shell = Printing(b"Chassis Power is on\n")
    assert asked(shell) is PowerState.ON
    assert shell.environment == {"IPMI_PASSWORD": "hunter2"}
    assert "hunter2" not in " ".join(shell.argv)
    assert shell.argv[-3:] == ("chassis", "power", "status")
    assert {"-E", "lanplus", "OPERATOR", "3", "10.0.9.1", "623", "operator"} <= set(shell.argv)


def test_what_a_child_is_given_in_its_environment_is_not_on_its_command_line() -> None:
    output = LocalShell(environment={"IPMI_PASSWORD": "hunter2"}).run(
        NODE,
        ("sh", "-c", 'tr "\\0" " " </proc/self/cmdline; echo "$IPMI_PASSWORD"'),
        timedelta(seconds=5),
    )
    assert output.stdout.decode().count("hunter2") == 1


@pytest.mark.parametrize(
    ("stderr", "outcome", "words"),
    [
        (
            "> RAKP 2 HMAC is invalid\nError: Unable to establish IPMI v2 / RMCP+ session",
            PowerRefusal,
            "user and pass",
        ),
        (
            "Set Chassis Power Control to Down/Off failed: Insufficient privilege level",
            PowerRefusal,
            "make it Operator",
        ),
        (
            "Set Chassis Power Control to Down/Off failed: Invalid command",
            PowerRefusal,
            "switch its power by hand",
        ),
        (
            "Set Chassis Power Control to Down/Off failed: Node busy",
            PowerError,
            "did not take `chassis power off`",
        ),
        (
            "Error: Unable to establish IPMI v2 / RMCP+ session",
            PowerError,
            "IPMI over LAN is on there",
        ),
        ("", PowerError, "it said nothing"),
    ],
)
def test_a_complaint_of_ipmitool_says_what_to_do(
    stderr: str, outcome: type[PowerError], words: str
) -> None:
    usual = "Loading IANA PEN Registry...\nInvalid completion code received: Insufficient privilege level\n"
    with pytest.raises(outcome, match=words) as raised:
        asked(Printing(stderr=f"{usual}{stderr}\n".encode(), status=1), "turn_off")
    assert isinstance(raised.value, PowerRefusal) is (outcome is PowerRefusal)


def test_off_that_is_off_already_is_no_error() -> None:
    words = (
        b"Set Chassis Power Control to Down/Off failed: Command not supported in present state\n"
    )
    asked(Printing(stderr=words, status=1), "turn_off")
    with pytest.raises(PowerRefusal):
        asked(Printing(stderr=words, status=1), "read_state")


def test_an_ipmitool_that_hangs_or_is_missing_is_told() -> None:
    with pytest.raises(PowerError, match="has not answered `chassis power status` in time"):
        asked(Printing(status=None))

    class Missing(Printing):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            raise DetectorError("ipmitool on gn001: cannot be started (No such file or directory)")

    with pytest.raises(PowerRefusal, match="install it"):
        asked(Missing())


@pytest.mark.parametrize(
    "address", ["-H", "a b", "10.0.9.1:", "10.0.9.1;reboot", "[::1", "https://10.0.9.1"]
)
def test_an_address_that_is_none_is_refused_and_nothing_is_run(address: str) -> None:
    shell = Printing()
    with pytest.raises(PowerRefusal, match="expected an address"):
        asked(shell, node=machine("gn001", address))
    assert shell.argv == ()


@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from([0, 1, 255, None]))
def test_whatever_ipmitool_prints_ends_in_a_state_or_a_sentence(
    out: bytes, err: bytes, status: int | None
) -> None:
    said = ""
    try:
        assert asked(Printing(out, err, status)) in PowerState
        assert status == 0
    except PowerError as error:
        said = str(error)
    assert not said or "gn001's management controller at 10.0.9.1" in said


def test_a_board_without_main_power_of_its_own_is_refused_by_the_real_program() -> None:
    sim = IpmiSim()
    try:
        node = machine("gn001", f"127.0.0.1:{sim.start().port}")
        with pytest.raises(PowerRefusal, match="switch its power by hand"):
            IpmiPower(BmcAccess(BmcKind.IPMI, "ipmiusr", "test", cipher=3)).turn_off(node)
        with pytest.raises(PowerRefusal, match="does not take cipher suite 17"):
            IpmiPower(BmcAccess(BmcKind.IPMI, "ipmiusr", "test")).turn_off(node)
    finally:
        sim.remove()
