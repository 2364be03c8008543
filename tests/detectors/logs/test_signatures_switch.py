"""From raw lines of switches to facts. The lines are our own, in the shapes that SONiC and other
vendors print."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from detectors.catalog.catalog import load
from detectors.faults import Component, EventKind
from detectors.logs.signatures import Matcher

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RAISED, CLEARED = EventKind.RAISED, EventKind.CLEARED
CAPTURES = Path(__file__).parents[1] / "captures"
SONIC = "Nov 21 03:59:58.123456 leaf-03 "


@cache
def matcher():
    return Matcher(load())


def facts(line):
    return matcher().facts(line.encode(), default_host="leaf-03", observed_at=NOW, zone=UTC)


def fact(line):
    (only,) = facts(line)
    return only


def captured(name):
    lines = (CAPTURES / name).read_text().splitlines()
    return [tuple(line.split("\t", 2)) for line in lines if not line.startswith("#")]


SONIC_LINES = captured("sonic.tsv")
VENDOR_LINES = captured("other_switches.tsv")


@pytest.mark.parametrize(("fault_type", "event", "line"), SONIC_LINES)
def test_a_sonic_line_is_the_fault_it_speaks_of(fault_type, event, line):
    found = fact(line)
    assert (found.fault_type, found.event) == (fault_type, event)
    assert found.component is Component.INTERCONNECT_SWITCH
    assert found.resource.startswith("switch/leaf-03")


@pytest.mark.parametrize(("fault_type", "event", "line"), VENDOR_LINES)
def test_another_vendors_line_is_the_fault_it_speaks_of(fault_type, event, line):
    found = fact(line)
    assert (found.fault_type, found.event) == (fault_type, event)


@pytest.mark.parametrize(
    "text",
    [
        "%ETHPORT-5-IF_DOWN_ADMIN_DOWN: Interface Ethernet1/9 is down (Administratively down)",
        "%LINK-5-CHANGED: Interface Ethernet1/9, changed state to administratively down",
        "%SYS-5-CONFIG_I: Configured from console by admin on vty0",
        "%SPANTREE-6-INTERFACE_STATE: Interface Ethernet9 instance Vl9 moving from discarding to forwarding",
        "%PROCMGR-6-PROCESS_STARTED: 'Bgp' starting with PID=99",
        "NOTICE bgp#bgpd[45]: 10.0.3.1 went from OpenSent to OpenConfirm",
        "INFO systemd[1]: Started BGP container.",
        "INFO bgp#supervisord 2026-11-21 03:59:57,385 INFO stopped: rsyslogd (exit status 0)",
        "INFO bgp#supervisord 2026-11-21 03:59:57,385 INFO success: bgpd entered RUNNING state",
        "NOTICE swss#orchagent: :- addNeighbor: Created neighbor 00:11:22:33:44:55 on Vlan9",
        "NOTICE pmon#xcvrd[38]: Ethernet64: Got SFP inserted event",
        "NOTICE pmon#xcvrd[38]: CMIS: Ethernet64: READY",
        "INFO systemd[1]: syncd.service: Succeeded.",
        "INFO kernel: [  812.331200] EXT4-fs (sda3): mounted filesystem with ordered data mode. Opts: (null)",
        "INFO kernel: [  812.331200] pcieport 0000:00:01.0: AER: enabled with IRQ 24",
        "INFO smond: Fan1(Fan Tray 1, Fan 1): state changed from UNKNOWN to OK",
        "last message repeated 5 times",
    ],
)
def test_a_switchs_everyday_line_is_benign(text):
    assert facts(SONIC + text) == []


@pytest.mark.parametrize(
    "end",
    [
        "%PLATFORM_ENV-2-TEMP_ALARM_CLEAR: sensor 4",
        "%PLATFORM_ENV-2-TEMP_HIGH_CLEARED: sensor 4",
        "%ENVIRONMENT-2-TEMP_MAJOR_RECOVERED: sensor 4",
        "%ENVMON-2-TEMP_WARN: sensor 4 returned to normal",
        "%ENVMON-2-FAN_SPEED: fan 2 is back to normal",
        "%ENVMON-2-PS_DOWN: input power returned on supply 1",
        "%PLATFORM-2-PS_FAIL: alarm condition cleared on supply 1",
        "%SFF8472-3-THRESHOLD_VIOLATION: Te1/1/1: Rx power returned within limits",
    ],
)
def test_an_alarm_that_is_over_never_begins_a_fault(end):
    assert fact("<189>Nov 21 03:59:58 leaf-03 " + end).event is CLEARED


def test_a_call_that_returned_an_error_ends_nothing():
    text = "ERR swss#orchagent: :- handleSaiSetStatus: the call returned SAI_STATUS_FAILURE"
    assert fact(SONIC + text).event is RAISED


def test_what_syncd_alone_logs_as_an_error_opens_no_incident():
    found = fact(SONIC + "ERR syncd#SDK: [PORT.ERR] port 12 has no such counter")
    assert not load()[found.fault_type].opens_incident


@pytest.mark.parametrize(
    "fault_type", sorted({row[0] for row in SONIC_LINES if row[1] == "cleared"})
)
def test_a_clear_names_the_very_fault_that_was_raised(fault_type):
    of_type = [fact(line) for name, _, line in SONIC_LINES if name == fault_type]
    cleared = {(found.resource, found.qualifier) for found in of_type if found.event is CLEARED}
    assert cleared <= {
        (found.resource, found.qualifier) for found in of_type if found.event is RAISED
    }


def test_a_port_is_named_as_the_switch_names_it():
    assert fact(SONIC_LINES[0][2]).resource == "switch/leaf-03/port/Ethernet64"
    line = "<189>Nov 21 03:59:58 leaf-03 %INTERFACE_VLAN-5-UPDOWN: Line Protocol on Interface vlan 9, changed state to up"
    assert fact(line).resource == "switch/leaf-03/port/vlan9"


def test_two_neighbours_are_two_faults():
    lines = [
        f"{SONIC}INFO bgp#bgpd[45]: %ADJCHANGE: neighbor 10.0.3.{n} in vrf default Down"
        for n in (1, 2)
    ]
    assert {fact(line).qualifier for line in lines} == {"10.0.3.1", "10.0.3.2"}


def test_a_duplicate_address_on_a_node_is_the_nodes():
    text = (
        "Nov 21 03:59:58 mt001 NetworkManager[9]: <warn>  [17.9] device (eno1): IP address 10.9.9.9 cannot be "
        "configured because it is already in use in the network by host 9C:05:91:00:00:09"
    )
    found = fact(text)
    assert (found.fault_type, found.resource, found.qualifier) == (
        "config.duplicate_ip",
        "node/mt001",
        "10.9.9.9",
    )
    assert found.component is Component.MISCONFIGURATION
