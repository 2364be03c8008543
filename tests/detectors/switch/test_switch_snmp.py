"""What the two detectors of switches make of MIB tables, round after round, and over real UDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import (
    DetectorError,
    Output,
    Reading,
    Samples,
    SnmpValue,
    Target,
    TargetKind,
    Transports,
    Unreachable,
)
from detectors.evaluation import judge
from detectors.expected import Expected, ExpectedPort
from detectors.faults import Observation
from detectors.switch import ports, tables, walk_text
from detectors.switch import tables as oids
from detectors.switch.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from detectors.switch.tables import Tables
from detectors.transports.snmp import SnmpLimits, SnmpTransport
from detectors.transports.snmp_credentials import SnmpVersion
from detectors.transports.snmp_fast import FastSnmpTransport
from fixtures.cluster.memory_snmp import SimulatedSnmp
from fixtures.cluster.snmp_agent import SnmpAgents, credentials
from fixtures.cluster.switch_mib import SwitchMib, plain
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
LEAF = Target("leaf-01", "127.0.0.1", kind=TargetKind.SWITCH)
PORTS = ["Ethernet0", "Ethernet4", "Ethernet8", "Ethernet12", "Ethernet256"]
CABLED = Expected(ports=(ExpectedPort("Ethernet0", peer="node/gn001/nic/mlx5_0"),))
Values = dict[str, SnmpValue]


class Rounds:
    """Rounds of one detector over one simulated switch, judged by the catalogue with a memory
    between them."""

    def __init__(self, detector: Any = None, *, expected: Expected | None = None) -> None:
        self.detector = detector or SwitchSnmpDetector()
        self.target = replace(LEAF, expected=expected or Expected())
        self.mib = SwitchMib("leaf-01", "leaf", PORTS)
        self.now = START
        self.memory = judge.Memory()
        self.observations: list[Observation] = []
        self.without: tuple[str, ...] = ()
        self.extra: Values = {}

    def look(self, *, after: timedelta = timedelta(seconds=30)) -> set[tuple[str, str]]:
        """(fault type, end of its resource) of what is raised."""
        self.now += after
        values = {
            oid: v
            for oid, v in plain(self.mib.values(self.now)).items()
            if not oid.startswith(self.without)
        }
        reading = Reading(
            self.detector.name, self.target, self.now, values={**values, **self.extra}
        )
        seen = list(self.detector.parse(reading))
        self.observations = [*seen, *self.detector.compare(seen, self.memory.samples)]
        judged = judge.judge_round(
            self.detector, seen, self.memory, active=(), catalog=catalog.load()
        )
        self.memory = judge.from_json(judge.to_json(judged.memory), UTC)
        return {(event.fault_type, event.resource.rpartition("/")[2]) for event in judged.events}

    def value(self, metric: str, part: str = "leaf-01", **attributes: str) -> Any:
        found = [
            seen.value
            for seen in self.observations
            if seen.metric == metric
            and seen.resource.endswith(part)
            and all(seen.attributes.get(name) == value for name, value in attributes.items())
        ]
        assert found, f"no {metric} of {part}"
        return found[0]


def test_a_healthy_switch_raises_nothing_round_after_round() -> None:
    rounds = Rounds()
    assert [rounds.look() for _ in range(5)] == [set()] * 5


# Restarts.


def test_a_switch_that_started_anew_is_told_from_a_restarted_agent() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.mib.restart_agent(rounds.now + timedelta(seconds=5))
    assert rounds.look() == set()
    assert rounds.value("switch.agent_restarted") is True
    rounds.mib.reboot(rounds.now + timedelta(seconds=5))
    assert rounds.look() == {("switch.rebooted", "leaf-01")}
    assert rounds.look() == set()


@pytest.mark.parametrize(
    ("is_boot", "found"), [(True, {("switch.rebooted", "leaf-01")}), (False, set())]
)
def test_without_a_system_uptime_the_byte_counters_tell_a_boot(
    is_boot: bool, found: set[tuple[str, str]]
) -> None:
    rounds = Rounds()
    rounds.without = (oids.HR_UPTIME,)
    rounds.look()
    (rounds.mib.reboot if is_boot else rounds.mib.restart_agent)(rounds.now + timedelta(seconds=5))
    assert rounds.look() == found


def test_an_uptime_that_comes_round_after_497_days_is_no_restart() -> None:
    rounds = Rounds()
    rounds.mib.booted_at = START - timedelta(seconds=2**32 / 100 - 45)
    assert [rounds.look() for _ in range(4)] == [set()] * 4
    assert rounds.value("switch.uptime")[0] < 100


def test_a_switch_that_was_away_for_hours_and_came_back_older_than_that_was_not_restarted() -> None:
    rounds = Rounds()
    rounds.look()
    assert rounds.look(after=timedelta(hours=9)) == set()


# Ports.


def test_an_unused_port_that_is_down_is_no_fault_until_it_was_up_once() -> None:
    rounds = Rounds()
    rounds.mib.ports["Ethernet8"].oper = 2
    assert [rounds.look() for _ in range(2)] == [set()] * 2
    rounds.mib.ports["Ethernet8"].oper = 1
    rounds.look()
    rounds.mib.ports["Ethernet8"].oper = 2
    assert rounds.look() == {("switch.port.down", "Ethernet8")}


def test_a_cabled_port_that_is_down_is_a_fault_at_first_sight() -> None:
    rounds = Rounds(expected=CABLED)
    rounds.mib.ports["Ethernet0"].oper = 6
    assert rounds.look() == {("switch.port.down", "Ethernet0")}


def test_what_is_not_up_yet_after_a_boot_is_no_fault_until_the_switch_had_its_time() -> None:
    rounds = Rounds(expected=CABLED)
    rounds.look()
    rounds.look()
    rounds.mib.reboot(rounds.now + timedelta(seconds=5))
    rounds.mib.bgp["10.0.0.1"] = 3
    for port in rounds.mib.ports.values():
        port.oper, port.is_learned = 2, False
    assert rounds.look() == {("switch.rebooted", "leaf-01")}
    assert [rounds.look(after=timedelta(minutes=4)) for _ in range(2)] == [set()] * 2
    assert {("switch.port.down", name) for name in PORTS} <= rounds.look(after=timedelta(minutes=4))


def test_a_port_that_is_shut_down_on_purpose_is_no_fault() -> None:
    rounds = Rounds(expected=CABLED)
    rounds.look()
    for port in ("Ethernet0", "Ethernet4"):
        rounds.mib.ports[port].admin = rounds.mib.ports[port].oper = 2
    assert rounds.look() == set()


def test_errors_are_judged_by_their_rate_and_not_by_what_stands() -> None:
    rounds = Rounds()
    errors = rounds.mib.ports["Ethernet4"].flow(oids.IF_IN_ERRORS)
    errors.base = 4_000_000.0
    assert [rounds.look() for _ in range(3)] == [set()] * 3
    errors.change(30.0, rounds.now)
    assert [rounds.look() for _ in range(3)] == [set(), set(), {("switch.port.error", "Ethernet4")}]


def test_a_32_bit_counter_that_wraps_goes_on_and_one_that_falls_begins_anew() -> None:
    rounds = Rounds()
    drops = rounds.mib.ports["Ethernet4"].flow(oids.IF_OUT_DISCARDS)
    drops.base, drops.rate = 2.0**32 - 30, 2.0
    rounds.look()
    rounds.look()
    assert rounds.value("port.out_discards_per_second", "Ethernet4") == 2.0
    drops.base, drops.since = 0.0, rounds.now
    rounds.look()
    assert not [
        seen
        for seen in rounds.observations
        if seen.metric == "port.out_discards_per_second" and seen.value < 0
    ]


@given(
    st.one_of(st.none(), st.integers(), st.text()),
    st.one_of(st.none(), st.integers()),
    st.sampled_from([32, 64]),
)
def test_a_counter_never_rises_by_less_than_nothing(value: Any, old: Any, bits: int) -> None:
    gained = ports.get_increase(value, old, bits)
    assert gained is None or gained >= 0


def test_a_reset_64_bit_counter_gives_no_rate() -> None:
    assert ports.get_increase(5, 2**40, 64) is None
    assert ports.get_increase(5, 2**32 - 5, 32) == 10
    assert ports.get_increase(5, 900, 32) is None


def test_bytes_are_counted_in_64_bits() -> None:
    rounds = Rounds()
    rounds.mib.ports["Ethernet0"].flow(oids.IF_HC_IN_OCTETS).rate = 50e9
    rounds.look()
    rounds.look()
    assert rounds.value("port.in_bytes_per_second", "Ethernet0") == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("descr", "name", "known", "called"),
    [
        ("Ethernet12", "etp4", (), "Ethernet12"),
        ("Ethernet12", "Eth18/3(Port13)", (), "Ethernet12"),
        ("Mellanox Technologies Device cf70", "swp1", (), "swp1"),
        ("Ethernet1/1", "Ethernet1/1", (), "Ethernet1/1"),
        ("hundredGigE 1/25", "hundredGigE 1/25", (), "hundredGigE1/25"),
        ("1/1/33:4", "1/1/33:4", (), "1/1/33:4"),
        ("Ethernet12", "etp4", ("etp4",), "etp4"),
        ("", "", (), "if7"),
    ],
)
def test_a_port_is_called_as_the_switch_logs_it(
    descr: str, name: str, known: tuple[str, ...], called: str
) -> None:
    values: Values = {f"{oids.IF_DESCR}.7": descr.encode(), f"{oids.IF_NAME}.7": name.encode()}
    expected = Expected(ports=tuple(ExpectedPort(each) for each in known))
    assert ports.list_port_names(Tables(values), expected) == {"7": called}


def test_two_ports_never_share_a_name() -> None:
    values: Values = {f"{oids.IF_DESCR}.{row}": b"Ethernet 0/1" for row in (5, 6)}
    assert ports.list_port_names(Tables(values), Expected()) == {
        "5": "Ethernet0/1",
        "6": "Ethernet0/1:6",
    }


def test_vlans_and_loopbacks_are_no_ports() -> None:
    values: Values = {f"{oids.IF_TYPE}.1": 6, f"{oids.IF_TYPE}.2": 136, f"{oids.IF_TYPE}.3": 24}
    values |= {f"{oids.IF_OPER}.{row}": 2 for row in (1, 2, 3)}
    values |= {f"{oids.IF_DESCR}.{row}": f"Ethernet{row}".encode() for row in (1, 2, 3)}
    assert [port.name for port in ports.list_ports(Tables(values), Expected())] == ["Ethernet1"]


# Forwarding.


def test_hosts_that_send_but_are_not_learned_are_a_fault_and_idle_ones_are_not() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.look()
    idle = rounds.mib.ports["Ethernet0"]
    idle.is_learned = False
    for column in (oids.IF_HC_IN_OCTETS, oids.IF_HC_OUT_OCTETS):
        idle.flow(column).change(20.0, rounds.now)
    rounds.look()
    assert [rounds.look() for _ in range(3)] == [set()] * 3
    rounds.mib.ports["Ethernet4"].is_learned = rounds.mib.ports["Ethernet8"].is_learned = False
    assert [rounds.look() for _ in range(2)] == [
        set(),
        {("switch.mac_learning_anomaly", "leaf-01")},
    ]


def test_a_host_whose_port_went_down_is_not_missed_in_the_table() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.mib.ports["Ethernet4"].oper = rounds.mib.ports["Ethernet8"].oper = 2
    raised = rounds.look() | rounds.look()
    assert "switch.mac_learning_anomaly" not in {fault_type for fault_type, _ in raised}


def test_a_table_that_collapses_twice_while_hosts_send_is_a_fault() -> None:
    rounds = Rounds()
    rounds.look()
    seen = []
    for is_learned in (True, False, True, False):
        for port in rounds.mib.ports.values():
            port.is_learned = is_learned
        seen.append(rounds.look())
    assert seen[:3] == [set()] * 3
    assert ("switch.mac_learning_anomaly", "leaf-01") in seen[3]


def test_addresses_are_counted_by_bridge_port_where_the_agent_has_a_table_of_those() -> None:
    rounds = Rounds()
    rounds.without = (oids.FDB_PORT,)
    rounds.extra = {f"{oids.FDB_PORT_OLD}.0.1.2.3.4.{n}": 17 for n in range(3)} | {
        f"{oids.BRIDGE_PORT}.17": 5
    }
    rounds.look()
    assert rounds.value("port.counters", "Ethernet4")[-1] == 3


def test_a_session_that_is_down_is_a_fault_unless_it_is_stopped() -> None:
    rounds = Rounds()
    rounds.extra = {f"{oids.BGP_STATE}.10.9.0.1": 3, f"{oids.BGP_ADMIN}.10.9.0.1": 2}
    rounds.extra |= {f"{oids.BGP_STATE}.10.9.0.2": 1, f"{oids.BGP_ADMIN}.10.9.0.2": 1}
    assert [rounds.look() for _ in range(2)] == [set(), {("switch.bgp.down", "leaf-01")}]
    assert rounds.value("bgp.established", qualifier="10.9.0.1") is False
    assert rounds.value("bgp.established", qualifier="10.9.0.2") is True


def test_an_idle_session_of_a_table_without_its_admin_state_is_a_fault_once_it_was_established() -> (
    None
):
    rounds = Rounds()
    rounds.mib.bgp = {"10.0.0.1": 1, "10.0.1.1": 6}
    assert [rounds.look() for _ in range(3)] == [set()] * 3
    rounds.mib.bgp["10.0.1.1"] = 1
    assert [rounds.look() for _ in range(2)] == [set(), {("switch.bgp.down", "leaf-01")}]


def test_a_session_over_ipv6_is_called_by_its_address() -> None:
    rounds = Rounds()
    rounds.extra = {f"{oids.BGP_STATE_CISCO}.2.16.32.1.13.184{'.0' * 11}.1": 6}
    rounds.look()
    assert rounds.value("bgp.session", qualifier="2001:db8:0:0:0:0:0:1") == "established"


PEERS = {"Ethernet0": "node/gn001/nic/mlx5_0", "Ethernet256": "switch/spine-01/port/Ethernet0"}
WITH_PEERS = Expected(ports=tuple(ExpectedPort(port, peer=peer) for port, peer in PEERS.items()))


@pytest.mark.parametrize(
    ("port", "neighbour", "told"),
    [
        ("Ethernet0", ("gn001.cluster.example", "b8:ce:f6:00:00:01", ""), "node/gn001/nic/mlx5_0"),
        ("Ethernet0", ("gn002", "rail0", ""), "node/gn002"),
        ("Ethernet256", ("spine-01", "etp1", "Ethernet0"), "switch/spine-01/port/Ethernet0"),
        ("Ethernet256", ("spine-01", "etp2", "Ethernet8"), "switch/spine-01/port/Ethernet8"),
        ("Ethernet256", ("spine-02", "etp1", "Ethernet0"), "switch/spine-02"),
        ("Ethernet4", ("gn002", "rail0", ""), "node/gn002"),
    ],
)
def test_a_neighbour_is_told_as_the_inventory_would_call_it(
    port: str, neighbour: tuple[str, str, str], told: str
) -> None:
    rounds = Rounds(SwitchSensorsDetector(), expected=WITH_PEERS)
    rounds.mib.ports[port].neighbour = neighbour
    rounds.look()
    assert rounds.value("lldp.neighbour", port) == told


# Parts.


def test_light_in_milliwatts_is_told_in_dbm_by_lane() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    row = 1_000_000_000 + 100 * 1 + 31
    rounds.extra = {f"{oids.SENSOR_VALUE}.{row}": 5310, f"{oids.SENSOR_VALUE}.{row + 1}": 0}
    rounds.look()
    assert rounds.value("optics.rx_power_dbm", "Ethernet0", lane="1") == -2.75
    assert rounds.value("optics.rx_power_dbm", "Ethernet0", lane="2") == -40.0
    assert rounds.value("optics.bias_ma", "Ethernet0", lane="1") == pytest.approx(7.2, abs=0.1)
    assert rounds.value("optics.temperature_celsius", "Ethernet0") == pytest.approx(41, abs=1)


def test_the_devices_own_limit_goes_before_the_constant() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    row = 200990310
    rounds.extra = {
        f"{oids.ARISTA_HIGH_WARNING}.{row}": 55_000,
        f"{oids.ARISTA_HIGH_CRITICAL}.{row}": 60_000,
    }
    assert rounds.look() == {("switch.temperature", "leaf-01")}
    rounds.extra = {f"{oids.ARISTA_HIGH_CRITICAL}.{row}": 1_000_000_000}
    assert rounds.look() == set()


def test_sensors_of_nx_os_are_read_with_their_limits() -> None:
    kind, scale, precision, value, status = oids.CISCO_SENSORS
    values: Values = {
        f"{kind}.300000013": 14,
        f"{scale}.300000013": 8,
        f"{value}.300000013": -13187,
    }
    values |= {
        f"{oids.ENTITY_DESCR}.300000013": b"Ethernet1/1 Lane 1 Transceiver Receive Power Sensor"
    }
    values |= {
        f"{kind}.9": 8,
        f"{scale}.9": 9,
        f"{precision}.9": 0,
        f"{value}.9": 71,
        f"{status}.300000013": 1,
    }
    values |= {f"{status}.9": 1, f"{oids.ENTITY_DESCR}.9": b"module-1 Front"}
    for number, (severity, limit) in enumerate(((10, 65), (20, 70)), start=1):
        values |= {
            f"{oids.CISCO_LIMIT_SEVERITY}.9.{number}": severity,
            f"{oids.CISCO_LIMIT_RELATION}.9.{number}": 4,
        }
        values |= {f"{oids.CISCO_LIMIT_VALUE}.9.{number}": limit}
    seen = {
        o.metric: o
        for o in SwitchSensorsDetector().parse(
            Reading("switch_sensors", LEAF, START, values=values)
        )
    }
    light, heat = seen["optics.rx_power_dbm"], seen["switch.temperature_celsius"]
    assert (light.resource, light.value, light.attributes["lane"]) == (
        "switch/leaf-01/port/Ethernet1/1",
        -13.19,
        "1",
    )
    assert (heat.value, heat.attributes["raise_at"], heat.attributes["clear_at"]) == (
        71.0,
        "70",
        "65",
    )


def test_a_sensor_that_is_not_operational_says_nothing() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    row = 1_000_000_000 + 100 * 1 + 31
    rounds.extra = {f"{oids.SENSOR_VALUE}.{row}": 0, f"{oids.SENSOR_STATUS}.{row}": 2}
    rounds.look()
    with pytest.raises(AssertionError, match=r"no optics.rx_power_dbm"):
        rounds.value("optics.rx_power_dbm", "Ethernet0", lane="1")


def test_a_power_supply_without_its_sensor_is_judged_by_its_own_state_alone() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    rounds.mib.psus[2] = 8
    assert rounds.look() == {("switch.power", "leaf-01")}
    assert rounds.value("psu.well", qualifier="PSU 2") is False
    assert rounds.value("psu.well", qualifier="PSU 1") is True


@pytest.mark.parametrize(
    ("state", "is_well"), [(2, True), (3, True), (9, True), (8, False), (5, False)]
)
def test_a_supply_that_was_switched_off_on_purpose_or_lost_only_its_fan_is_no_power_fault(
    state: int, is_well: bool
) -> None:
    rounds = Rounds(SwitchSensorsDetector())
    rounds.mib.psus[1] = state
    rounds.look()
    assert rounds.value("psu.well", qualifier="PSU 1") is is_well


def test_parts_that_cannot_do_their_work_are_known_by_entity_state() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    fan = 500020100 + 1_000_000
    rounds.extra = {f"{oids.ENTITY_OPER}.{fan}": 2, f"{oids.ENTITY_OPER}.601000000": 3}
    assert rounds.look() == {("switch.fan", "leaf-01")}


def test_memory_leaves_out_what_the_kernel_would_give_back() -> None:
    rounds = Rounds()
    rounds.look()
    assert rounds.value("switch.memory_percent") == pytest.approx(100 * 9.2 / 32.6, abs=0.1)
    sensors = Rounds(SwitchSensorsDetector())
    sensors.without = (oids.MEMORY_TOTAL,)
    sensors.look()
    assert sensors.value("switch.memory_percent") == rounds.value("switch.memory_percent")


def test_only_disks_that_grow_are_watched() -> None:
    rounds = Rounds(SwitchSensorsDetector())
    rounds.mib.disk_percent = 96
    assert rounds.look() == {("switch.resource_high", "leaf-01")}
    assert {
        seen.attributes["qualifier"]
        for seen in rounds.observations
        if seen.metric == "switch.disk_percent"
    } == {"disk /host"}


# Walks that people hand in.

WALK = rb"""
.1.3.6.1.2.1.1.3.0 = Timeticks: (4200) 0:00:42.00
.1.3.6.1.2.1.2.2.1.2.13 = STRING: Ethernet12
.1.3.6.1.2.1.2.2.1.3.13 = INTEGER: ethernetCsmacd(6)
.1.3.6.1.2.1.2.2.1.8.13 = INTEGER: 1
.1.3.6.1.2.1.31.1.1.1.1.13 = STRING: "etp4"
.1.3.6.1.2.1.31.1.1.1.6.13 = Counter64: 41133394817294
.1.3.6.1.2.1.2.2.1.6.13 = Hex-STRING: D0 77 CE 4B BD 7A
.1.3.6.1.2.1.1.2.0 = OID: .1.3.6.1.4.1.8072.3.2.10
.1.3.6.1.2.1.1.6.0 = ""
.1.3.6.1.2.1.25.1.1.0 = No Such Object available on this agent at this OID
"""


def test_the_text_of_a_walk_is_read_like_a_poll() -> None:
    values = walk_text.parse_walk(WALK)
    assert values["1.3.6.1.2.1.1.3.0"] == 4200
    assert values["1.3.6.1.2.1.2.2.1.3.13"] == 6
    assert values["1.3.6.1.2.1.31.1.1.1.1.13"] == b"etp4"
    assert values["1.3.6.1.2.1.31.1.1.1.6.13"] == 41133394817294
    assert values["1.3.6.1.2.1.2.2.1.6.13"] == b"\xd0w\xceK\xbdz"
    assert values["1.3.6.1.2.1.1.2.0"] == "1.3.6.1.4.1.8072.3.2.10"
    assert values["1.3.6.1.2.1.1.6.0"] == b""
    assert values["1.3.6.1.2.1.25.1.1.0"] is None
    detector = SwitchSnmpDetector()
    output = Output(0, WALK, b"", timedelta(0))
    seen = list(detector.parse(Reading(detector.name, LEAF, START, {detector.sniff(WALK): output})))
    assert ("port.oper", "switch/leaf-01/port/Ethernet12", "up") in {
        (o.metric, o.resource, str(o.value)) for o in seen
    }


@given(st.binary(max_size=300))
def test_any_text_is_read_as_a_walk_without_an_error(text: bytes) -> None:
    walk_text.parse_walk(text)
    walk_text.parse_walk(b".1.3.6.1 = " + text)


# Any bytes.


_values = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.binary(max_size=20), st.text(max_size=20)
)
_rows = st.sampled_from(
    ["1", "2", "0.1.5", "1.4.10.0.0.1", "100.1.2.3.4.5.6", "1000000131", "x", "1..2", ""]
)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from([*oids.COLUMNS, *oids.SYSTEM]), _rows), _values, max_size=60
    )
)
@pytest.mark.parametrize(
    "detector", [SwitchSnmpDetector(), SwitchSensorsDetector()], ids=lambda each: each.name
)
def test_any_values_are_read_and_compared_without_an_error(
    detector: Any, objects: dict[tuple[str, str], SnmpValue]
) -> None:
    values = {
        f"{column}.{row}" if row else column: value for (column, row), value in objects.items()
    }
    reading = Reading(detector.name, LEAF, START, values=values)
    seen = list(detector.parse(reading))
    assert len([each for each in seen if each.metric == "detector.answered"]) == 1
    before = judge.judge_round(
        detector, seen, judge.Memory(), active=(), catalog=catalog.load()
    ).memory.samples
    later = [replace(each, observed_at=START + timedelta(seconds=30)) for each in seen]
    list(detector.compare(later, before))


@given(
    st.dictionaries(
        st.sampled_from(["switch.uptime", "port.counters", "fdb.entries", "bgp.known"]), _values
    )
)
def test_any_memory_is_compared_without_an_error(kept: dict[str, Any]) -> None:
    rounds = Rounds()
    rounds.look()
    samples: Samples = {
        (resource, metric): judge.Sample(value, START)
        for metric, value in kept.items()
        for resource in ("switch/leaf-01", "switch/leaf-01/port/Ethernet0")
    }
    list(rounds.detector.compare(rounds.observations, samples))


# Over UDP.


@pytest.fixture(scope="module")
def agents() -> Iterator[SnmpAgents]:
    started = SnmpAgents(
        SimulatedWorld.sakuraone(clock=lambda: START), ["leaf-01", "mgmt-01"]
    ).start()
    try:
        yield started
    finally:
        started.stop()


@pytest.mark.parametrize("make", [SnmpTransport, FastSnmpTransport], ids=["pysnmp", "fast"])
@pytest.mark.parametrize("version", SnmpVersion)
def test_a_switch_tells_the_same_over_udp_as_in_memory(
    agents: SnmpAgents, make: Callable[..., Any], version: SnmpVersion
) -> None:
    snmp = make(lambda target: credentials(agents.ports[target.name], version))
    shell = SimulatedShell(agents.world)
    detector = SwitchSnmpDetector()
    try:
        found = detector.collect(LEAF, Transports(shell, snmp=snmp), START)
    finally:
        snmp.close()
    twin = detector.collect(LEAF, Transports(shell, snmp=SimulatedSnmp(agents.world)), START)
    assert found.values == twin.values
    assert len(found.values) > 1000


def test_the_parts_of_a_switch_are_read_over_udp(agents: SnmpAgents) -> None:
    snmp = FastSnmpTransport(lambda target: credentials(agents.ports[target.name]))
    reading = SwitchSensorsDetector().collect(
        replace(LEAF, name="mgmt-01"),
        Transports(SimulatedShell(agents.world), snmp=snmp),
        START,
    )
    seen = {observation.metric for observation in SwitchSensorsDetector().parse(reading)}
    assert {"fan.well", "psu.well", "switch.temperature_celsius", "switch.serial"} <= seen


def test_a_switch_that_does_not_answer_is_unreachable(agents: SnmpAgents) -> None:
    agents.world.switches["leaf-02"].mib.is_answering = False
    with pytest.raises(Unreachable):
        SimulatedSnmp(agents.world).get(replace(LEAF, name="leaf-02"), tables.SYSTEM)
    snmp = SnmpTransport(
        lambda target: credentials(9, SnmpVersion.V2C), SnmpLimits(timeout_s=0.2, retries=0)
    )
    with pytest.raises(DetectorError, match=r"leaf-02 .*no answer"):
        snmp.get(replace(LEAF, name="leaf-02"), tables.SYSTEM)
    snmp.close()
