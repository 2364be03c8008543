"""What the text of an Xid changes: at most what the vendor's own words say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import decode
from detectors.catalog.catalog import load
from detectors.faults import Action, Component, Severity

NO_REGISTERS = "0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0"


def xid(code, text):
    return decode.xid(load().xid(code), text)


def changed(word, before="None"):
    return f"GPU recovery action changed from 0x0 ({before}) to 0x1 ({word})"


@pytest.mark.parametrize(
    ("word", "action", "severity"),
    [
        ("None", Action.NONE, Severity.WARNING),
        ("GPU Reset Required", Action.RESET_GPU, Severity.MAJOR),
        ("PF FLR", Action.RESET_GPU, Severity.MAJOR),
        ("Drain and Reset", Action.RESET_GPU, Severity.MAJOR),
        ("Drain P2P", Action.WATCH, Severity.WARNING),
        ("Node Reboot Required", Action.REBOOT, Severity.MAJOR),
        ("OS  Reboot", Action.REBOOT, Severity.MAJOR),
        ("node reboot required", Action.REBOOT, Severity.MAJOR),
    ],
)
def test_the_recovery_action_of_xid_154_is_what_its_text_says(word, action, severity):
    row = xid(154, changed(word)).fault_type
    assert (row.action, row.severity) == (action, severity)


@pytest.mark.parametrize(
    "text",
    [changed("Replace The Flux Capacitor"), "", "changed from to", "changed from 0x0 (None)"],
)
def test_an_unknown_recovery_word_is_a_warning_to_look_at(text):
    row = xid(154, text).fault_type
    assert (row.action, row.severity) == (Action.WATCH, Severity.WARNING)


def test_the_recovery_word_travels_with_the_fact():
    assert dict(xid(154, changed("Drain and Reset", before="Something Else")).attributes) == {
        "recovery_action": "Drain and Reset"
    }


def registers(*, first=0, third=0, fourth=0, fifth=0, sixth=0):
    words = (first, 0, third, fourth, fifth, sixth, 0)
    return f"NVLink: fatal error detected on link 6({', '.join(hex(word) for word in words)})"


@pytest.mark.parametrize(
    ("text", "action", "severity"),
    [
        (registers(first=1 << 0), Action.NONE, Severity.WARNING),
        (registers(first=1 << 23 | 1 << 30), Action.NONE, Severity.WARNING),
        (registers(fifth=1 << 20), Action.WATCH, Severity.WARNING),
        (registers(first=1 << 20), Action.WATCH, Severity.MINOR),
        (registers(third=1 << 16), Action.WATCH, Severity.MINOR),
        (registers(first=1 << 16), Action.CHECK_CABLE, Severity.MAJOR),
        (registers(first=1 << 21), Action.CHECK_CABLE, Severity.MAJOR),
        (registers(first=1 << 4), Action.RESET_GPU, Severity.MAJOR),
        (registers(third=1 << 6), Action.RESET_GPU, Severity.MAJOR),
        (registers(fourth=1 << 18), Action.RESET_GPU, Severity.MAJOR),
        (registers(fifth=1 << 28), Action.RESET_GPU, Severity.MAJOR),
        (registers(first=1 << 0 | 1 << 5), Action.RESET_GPU, Severity.MAJOR),
        (registers(first=1 << 31), Action.WATCH, Severity.MINOR),
        (registers(sixth=1), Action.WATCH, Severity.MINOR),
    ],
)
def test_the_registers_of_xid_74_say_what_to_do(text, action, severity):
    row = xid(74, text).fault_type
    assert (row.action, row.severity) == (action, severity)


@pytest.mark.parametrize(
    "text", ["NVLink: fatal error detected on link 6", f"link 6({NO_REGISTERS})", ""]
)
def test_xid_74_without_registers_keeps_its_row(text):
    assert xid(74, text).fault_type == load().xid(74)


def test_the_link_and_the_bits_of_xid_74_are_kept():
    decoded = xid(74, registers(first=1 << 4, fifth=1 << 20))
    assert decoded.qualifier == "link 6"
    assert dict(decoded.attributes) == {"register_bits": "1:4 5:20"}


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlink_5_without_registers_is_reset_only_where_the_line_says_fatal(code):
    fatal = xid(code, "NEW_UNIT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0)")
    assert (fatal.fault_type.action, fatal.fault_type.severity) == (
        Action.RESET_GPU,
        Severity.CRITICAL,
    )
    assert fatal.qualifier == "link 1"
    for text in ("RLW_RXPIPE Nonfatal XC0 i0 Link 13", "SAW_MVB Non-fatal", ""):
        assert xid(code, text).fault_type == load().xid(code)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("SAW_MVB Nonfatal XC0 i0 Link 7 (0x00000021 0x00000020 0x0)", Action.NONE),
        ("SAW_MVB Fatal XC0 i0 Link 7 (0x00000021 0x00000010 0x0)", Action.RESET_GPU),
        ("SAW_MVB Fatal XC0 i0 Link 7 (0x00000021 0x00000012 0x0)", Action.RESET_GPU),
        ("RLW_REMAP Nonfatal XC0 i0 Link 7 (0x00000082 0x00000008 0x0)", Action.WATCH),
        ("RLW_RXPIPE Nonfatal XC0 i0 Link 7 (0x000000c2 0x00000002 0x0)", Action.NONE),
        ("RLW_RXPIPE Fatal XC0 i0 Link 7 (0x000004c2 0x00000002 0x0)", Action.RESET_GPU),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x025001c6 0x00000000 0x0)", Action.RESET_GPU),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x026001c6 0x00000000 0x0)", Action.NONE),
        ("NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 7 (0x00000246 0x00000003 0x0)", Action.NONE),
        ("MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000 0x0)", Action.RESET_GPU),
        ("RLW_REMAP Nonfatal XC0 i0 Link 7 (0x00000082 0x00100000 0x0)", Action.WATCH),
    ],
)
def test_nvlink_5_is_judged_by_unit_and_bits(text, action):
    assert xid(145, text).fault_type.action is action


def test_a_copy_engine_code_about_an_nvlink_is_of_the_link():
    decoded = xid(71, "NVLink: fatal error detected on link 6")
    assert (decoded.fault_type.component, decoded.qualifier) == (Component.NVLINK, "link 6")
    assert decoded.fault_type.action is Action.RESET_GPU
    assert xid(71, "NVLink: link 6 recovered").fault_type.action is load().xid(71).action
    assert xid(79, "NVLink: fatal error detected on link 6").fault_type.action is Action.REBOOT
    assert xid(71, "Ch 00000008").fault_type.component is Component.GPU


@pytest.mark.parametrize(
    ("text", "word"),
    [("Fatal, Link 30", True), ("Non-fatal, Link 4", False), ("nonfatal", False), ("Link 4", None)],
)
def test_fatal_or_not_is_the_lines_own_word(text, word):
    assert decode.is_fatal(text) is word


@given(
    code=st.integers(0, 200),
    text=st.text(max_size=80) | st.text("0123456789abcdefx, ()Link", max_size=120),
)
def test_any_text_is_decoded_without_error_and_never_condemns_a_sympathetic_code(code, text):
    decoded = xid(code, text)
    assert decoded.fault_type.id == f"gpu.xid.{code}"
    if load().xid(code).is_sympathetic:
        assert not decoded.fault_type.opens_incident


def test_xid_155_asks_for_a_reset_of_its_gpu_by_link_and_keeps_its_meaning():
    found = xid(155, "NVLINK: SW_Defined Error, Link 04")
    assert (found.fault_type.action, found.qualifier) == (Action.RESET_GPU, "link 4")
    assert found.fault_type.meaning == load().xid(155).meaning


@pytest.mark.parametrize("code", [23009, 23017])
def test_a_parity_error_that_is_fatal_to_the_fabric_restarts_the_host(code):
    assert load().sxid(code).action is Action.REBOOT
