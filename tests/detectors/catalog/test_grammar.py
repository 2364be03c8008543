"""What a row of subject and words makes of the vendors' messages. The messages are our own, in the
shapes that the vendors' guides give."""

from datetime import UTC, datetime
from functools import cache

import pytest

from detectors.catalog import grammar
from detectors.catalog.catalog import CatalogError, read
from detectors.faults import EventKind
from tests.matching import get_shipped_matcher

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RAISED, CLEARED = EventKind.RAISED, EventKind.CLEARED
ROW = {
    "type": "switch.fan",
    "subject": ["FAN"],
    "fails": ["FAIL"],
    "clears": ["OK"],
    "says_fails": ["failed"],
    "says_clears": ["is ok"],
    "source": "tests",
}


@cache
def matcher():
    return get_shipped_matcher()


def facts(message):
    line = f"<186>Nov 21 03:59:58 leaf-03 {message}".encode()
    return matcher().facts(line, default_host="leaf-03", observed_at=NOW, zone=UTC)


@pytest.mark.parametrize(
    ("fault_type", "event", "message"),
    [
        ("switch.power", RAISED, "%PLATFORM-2-PS_ABSENT: PS 2 is not there"),
        ("switch.power", RAISED, "%$ VDC-1 %$ %PFMA-2-PS_FAIL: supply 2 stopped"),
        ("switch.power", RAISED, "%%01DEVM/2/POWER_FAULT(l)[77]: supply 2 stopped"),
        ("switch.power", RAISED, "%POWERSUP-3-INPUT_LOST: supply 2"),
        ("switch.power", CLEARED, "%PLATFORM-2-PS_OK: PS 2 is fine"),
        ("switch.power", CLEARED, "%POWERSUP-6-INSERTED: supply 2"),
        ("switch.fan", RAISED, "%FRU-4-FAN_REMOVED: fan tray 3"),
        ("switch.fan", CLEARED, "%FRU-6-FAN_INSERTED: fan tray 3"),
        ("switch.fan", RAISED, "%PLATFORM-2-FANMOD_FAN_FAILED: module 3"),
        ("switch.temperature", RAISED, "%PLATFORM-2-MOD_TEMPMAJALRM: sensor 4 of module 3"),
        ("switch.temperature", CLEARED, "%PLATFORM-2-MOD_TEMP_OK: sensor 4 of module 3"),
        ("switch.transceiver.power", RAISED, "%XCVR_DOM-4-RXPOWER_LOW_ALARM: Ethernet7/1 lane 2"),
        ("switch.transceiver.power", CLEARED, "%XCVR_DOM-6-RXPOWER_NORMAL: Ethernet7/1 lane 2"),
        (
            "switch.transceiver.error",
            RAISED,
            "%ETHPORT-3-IF_UNSUPPORTED_SFP: Ethernet1/7 holds one",
        ),
        ("switch.mlag.failed", RAISED, "%VPC-2-PEER_KEEP_ALIVE_RECV_FAIL: domain 7"),
        ("switch.mlag.failed", CLEARED, "%VPC-6-PEER_KEEP_ALIVE_RECV_SUCCESS: domain 7"),
        (
            "switch.routing.adjacency_down",
            RAISED,
            "%BFD-5-SESSION_STATE_DOWN: session 7 to 10.9.0.7",
        ),
        (
            "switch.routing.adjacency_down",
            CLEARED,
            "%BFD-5-SESSION_STATE_UP: session 7 to 10.9.0.7",
        ),
        ("switch.port.error", RAISED, "%STP-2-LOOPGUARD_BLOCK: Loop guard on Ethernet1/7"),
        ("switch.port.error", CLEARED, "%STP-2-LOOPGUARD_UNBLOCK: Loop guard on Ethernet1/7"),
        ("switch.alarm", RAISED, "%MODULE-2-MOD_DIAG_FAIL: module 3 of ours"),
        ("switch.alarm", RAISED, "%KERNEL-1-WIDGET_FATAL: nobody knows what a widget is"),
        ("config.mtu_mismatch", RAISED, "%ETHPORT-3-IF_MTU_MISMATCH: the ends differ"),
        ("config.duplicate_ip", RAISED, "%%10ARP/4/DUPLICATE_IP: 10.9.0.7 answers twice"),
        (
            "config.peer_mismatch",
            RAISED,
            "%DCBX-3-PFC_MISMATCH: the neighbour has other priorities",
        ),
        ("config.peer_mismatch", CLEARED, "%DCBX-6-PFC_CONSISTENT: the neighbour has the same"),
        ("config.clock_unsynchronised", RAISED, "%NTP-4-SYNC_LOST: no peer is left"),
        ("switch.routing.adjacency_down", RAISED, "bfdd[77]: BFDD_STATE_DOWN: session 7"),
        (
            "switch.fan",
            RAISED,
            "chassisd[77]: CHASSISD_SNMP_TRAP7: SNMP trap generated: Fan/Blower Failed",
        ),
        (
            "switch.subnet_manager.error",
            RAISED,
            "opensm[77]: osm_vendor_send: ERR 5430: Send failed",
        ),
    ],
)
def test_a_message_is_read_by_subject_and_word(fault_type, event, message):
    assert {(found.fault_type, found.event) for found in facts(message)} == {(fault_type, event)}


@pytest.mark.parametrize(
    "message",
    [
        "%SYS-5-CONFIG_I: Configured from console by admin",
        "%AUTHPRIV-2-SYSTEM_MSG: login failed for user admin",
        "%AAA-1-AUTH_FAILED: user admin",
        "%USER-2-SYSTEM_MSG: CLIS: loading cmd files begin - clis",
        "%VSHD-5-VSHD_SYSLOG_CONFIG_I: Configured from vty by admin",
        "%PLATFORM-5-MOD_STATUS: Module 3 current-status is MOD_STATUS_ONLINE",
        "%SPANTREE-6-INTERFACE_ADD: Interface Ethernet7 has been added to instance Vl7",
        "%LLDP-5-NEIGHBOR_NEW: a neighbor on Ethernet7",
        "%BGP-5-ADJCHANGE: peer 10.9.0.7 old state OpenConfirm event Established new state Established",
    ],
)
def test_an_everyday_message_raises_nothing(message):
    assert [found for found in facts(message) if found.event is RAISED] == []


def test_a_port_that_the_sentence_names_is_the_resource():
    (found,) = facts("%STP-2-LOOPGUARD_BLOCK: Loop guard blocks port Ethernet1/7 on VLAN0009")
    assert found.resource == "switch/leaf-03/port/Ethernet1/7"


def test_the_mnemonic_decides_before_the_sentence_and_the_end_before_the_begin():
    events = [row["event"] for row in grammar.expand(ROW)]
    assert events == ["cleared", "raised"] * 3
    (found,) = facts("%PLATFORM-2-FAN_FAIL: fan 3 is far from its normal speed")
    assert found.event is RAISED


def test_a_row_without_words_is_refused(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('[[grammar]]\ntype = "switch.fan"\nsubject = ["FAN"]\nshape = "round"\n')
    with pytest.raises(CatalogError) as refused:
        read([path])
    assert "site.toml:1: switch.fan: unknown field shape" in str(refused.value)
    assert "missing fails" in str(refused.value)
