"""SNMP notifications: what they mean, who is believed, and net-snmp's own senders against the
running receiver."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.faults import Action, EventKind, FaultEvent
from detectors.receivers.senders import Senders
from detectors.receivers.snmptrap import TrapListener, TrapSenders, build_events
from detectors.receivers.trap_engine import OwnEngine, Taken, TrapEngine, TrapKeys
from detectors.switch import traps
from detectors.transports.snmp import AuthProtocol, PrivProtocol, SnmpCredentials, SnmpVersion
from fixtures.cluster.trap_sender import TrapSender
from tests.detectors.receiver_twin import RunningReceiver
from tests.services.patience import patient
from tests.services.ports import wait_until

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
TRAP = "1.3.6.1.6.3.1.1.4.1.0"
LINK_DOWN, LINK_UP = "1.3.6.1.6.3.1.1.5.3", "1.3.6.1.6.3.1.1.5.4"
INDEX, ADMIN, OPER = "1.3.6.1.2.1.2.2.1.1", "1.3.6.1.2.1.2.2.1.7", "1.3.6.1.2.1.2.2.1.8"
NAME, DESCR = "1.3.6.1.2.1.31.1.1.1.1", "1.3.6.1.2.1.2.2.1.2"
ENGINE = "80001f888011223344"
COMMUNITY = SnmpCredentials(community="from-switches")
USER = SnmpCredentials(
    version=SnmpVersion.V3,
    user="watcher",
    auth_protocol=AuthProtocol.SHA256,
    auth_key="an auth key",
    priv_protocol=PrivProtocol.AES128,
    priv_key="a privacy key",
)
KNOWN = TrapSenders(
    TrapKeys((COMMUNITY, USER), (ENGINE,)),
    nodes=frozenset({"gn001"}),
    ports={"leaf-01": frozenset({"Ethernet0", "Ethernet64"})},
)


def said(name: str, *pairs: tuple[str, object]) -> traps.TrapNotification:
    found = traps.parse_oids([("1.3.6.1.2.1.1.3.0", 4711), (TRAP, name), *pairs])
    assert found is not None
    return found


def told(notification: traps.TrapNotification, host: str = "leaf-01") -> list[FaultEvent]:
    return build_events(notification, host, KNOWN, catalog.load(), NOW)


# -- what they mean


def test_a_link_that_goes_down_raises_the_same_fault_as_the_log_line_but_asks_for_a_look_alone() -> (
    None
):
    (event,) = told(said(LINK_DOWN, (f"{INDEX}.65", 65), (f"{ADMIN}.65", 1), (f"{OPER}.65", 2)))
    assert (event.fault_type, event.event) == ("switch.port.down", EventKind.RAISED)
    assert event.resource == "switch/leaf-01/port/Ethernet64"
    assert (event.source, event.action) == ("snmptrap", Action.WATCH)
    assert catalog.load()["switch.port.down"].action is Action.CHECK_CABLE


def test_a_link_that_comes_up_clears_it() -> None:
    (event,) = told(said(LINK_UP, (f"{INDEX}.65", 65), (f"{ADMIN}.65", 1), (f"{OPER}.65", 1)))
    assert (event.fault_type, event.event) == ("switch.port.down", EventKind.CLEARED)


def test_a_port_that_is_shut_on_purpose_is_no_fault() -> None:
    assert told(said(LINK_DOWN, (f"{INDEX}.65", 65), (f"{ADMIN}.65", 2), (f"{OPER}.65", 2))) == []


@pytest.mark.parametrize(
    ("pairs", "port"),
    [
        ([(f"{INDEX}.13", 13), (f"{NAME}.13", b"Ethernet1/13")], "Ethernet1/13"),
        ([(f"{INDEX}.13", 13), (f"{DESCR}.13", b"etp4a")], "etp4a"),
        ([(f"{INDEX}.1", 1)], "Ethernet0"),
        ([(f"{INDEX}.13", 13)], "ifindex:13"),
        ([(f"{OPER}.13", 2)], "ifindex:13"),
    ],
)
def test_a_port_goes_by_its_name_else_by_the_inventory_else_by_its_index(
    pairs: list[tuple[str, object]], port: str
) -> None:
    (event,) = told(said(LINK_DOWN, *pairs))
    assert event.resource == f"switch/leaf-01/port/{port}"


def test_a_lost_bgp_session_is_told_by_its_neighbour() -> None:
    state = "1.3.6.1.2.1.15.3.1.2.10.0.3.1"
    (lost,) = told(said("1.3.6.1.2.1.15.0.2", (state, 1)))
    assert (lost.fault_type, lost.event, lost.qualifier) == (
        "switch.bgp.down",
        EventKind.RAISED,
        "10.0.3.1",
    )
    (back,) = told(said("1.3.6.1.2.1.15.0.1", (state, 6)))
    assert (back.event, back.qualifier) == (EventKind.CLEARED, "10.0.3.1")


def test_an_agent_that_started_is_recorded_and_no_reboot_of_the_switch() -> None:
    for name in ("1.3.6.1.6.3.1.1.5.1", "1.3.6.1.6.3.1.1.5.2"):
        (event,) = told(said(name))
        assert (event.fault_type, event.action) == ("switch.agent.started", Action.NONE)


def test_wrong_credentials_at_a_switch_are_a_misconfiguration() -> None:
    (event,) = told(said("1.3.6.1.6.3.1.1.5.5"))
    assert (event.fault_type, str(event.component)) == (
        "config.snmp_credentials",
        "misconfiguration",
    )


def test_changed_neighbours_are_recorded() -> None:
    (event,) = told(said("1.0.8802.1.1.2.0.0.1", ("1.0.8802.1.1.2.1.2.2.0", 3)))
    assert (event.fault_type, event.action) == ("switch.neighbours_changed", Action.NONE)


def test_a_sensor_that_stops_working_is_an_alarm_until_it_works_again() -> None:
    status, name = "1.3.6.1.2.1.99.1.1.1.5.2001", "1.3.6.1.2.1.47.1.1.1.1.7.2001"
    (event,) = told(said("1.3.6.1.4.1.30065.3.12.0.1", (status, 3), (name, b"PSU 2 fan")))
    assert (event.fault_type, event.event, event.qualifier) == (
        "switch.alarm",
        EventKind.RAISED,
        "PSU 2 fan",
    )
    (event,) = told(said("1.3.6.1.4.1.30065.3.12.0.1", (status, 1), (name, b"PSU 2 fan")))
    assert event.event is EventKind.CLEARED


def test_no_notification_ever_asks_for_more_than_a_look() -> None:
    rules = [
        rule
        for rows in catalog.load().rules.values()
        for rule in rows
        if rule.metric.startswith("trap.")
    ]
    assert len(rules) >= 10
    assert all(
        Action.WATCH.at_least(rule.action or catalog.load()[rule.type].action) for rule in rules
    )


def test_names_and_numbers_of_one_notification_mean_the_same() -> None:
    text = (
        "leaf-01\nUDP: [127.0.0.1]:40000->[127.0.0.1]:162\nDISMAN-EVENT-MIB::sysUpTimeInstance 0:1:02:03.04\n"
        "SNMPv2-MIB::snmpTrapOID.0 IF-MIB::linkDown\nIF-MIB::ifIndex.65 65\nIF-MIB::ifAdminStatus.65 up\n"
        "IF-MIB::ifOperStatus.65 down\nIF-MIB::ifName.65 Ethernet64\n"
    )
    numbers = (
        ".1.3.6.1.6.3.1.1.4.1.0 .1.3.6.1.6.3.1.1.5.3\n.1.3.6.1.2.1.2.2.1.1.65 65\n.1.3.6.1.2.1.2.2.1.7.65 1\n"
        '.1.3.6.1.2.1.31.1.1.1.1.65 "Ethernet64"\n'
    ).replace(".1.3.6.1.6.3.1.1.4.1.0", "SNMPv2-MIB::snmpTrapOID.0")
    for shape in (text, numbers):
        (event,) = [event for one in traps.parse_text(shape) for event in told(one)]
        assert (event.fault_type, event.resource) == (
            "switch.port.down",
            "switch/leaf-01/port/Ethernet64",
        )


@given(st.text(max_size=600))
def test_any_text_is_read_without_harm(text: str) -> None:
    for one in traps.parse_text("snmpTrapOID.0 IF-MIB::linkDown\n" + text):
        told(one)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"1(\.\d{1,3}){0,12}", fullmatch=True),
            st.one_of(st.integers(), st.binary()),
        )
    )
)
def test_any_variables_are_read_without_harm(pairs: list[tuple[str, object]]) -> None:
    for name in traps.NOTIFICATIONS:
        told(said(name, *pairs))


# -- who is believed


@pytest.fixture(scope="module")
def engine() -> Iterator[TrapEngine]:
    answers: list[bytes] = []
    made = TrapEngine(
        OwnEngine("80004fb8050102030405060708", 3),
        KNOWN.keys,
        lambda message, address: answers.append(message),
    )
    yield made
    made.close()


@given(datagram=st.binary(max_size=300))
def test_bytes_that_are_no_message_are_counted_and_harm_nothing(
    engine: TrapEngine, datagram: bytes
) -> None:
    taken, pairs = engine.take(datagram, ("127.0.0.1", 40000))
    assert taken is not Taken.NOTIFICATION
    assert pairs == ()


def test_our_engine_keeps_its_name_and_counts_its_starts(tmp_path: Path) -> None:
    first, second = OwnEngine.load_from(tmp_path), OwnEngine.load_from(tmp_path)
    assert (second.id, second.boots) == (first.id, first.boots + 1)
    (tmp_path / "snmp_engine.json").write_text("{")
    assert OwnEngine.load_from(tmp_path).boots == 1


# -- senders


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[RunningReceiver, TrapListener]]:
    (tmp_path / "spool").mkdir()
    listener = TrapListener(
        ("127.0.0.1", 0),
        directory=tmp_path / "spool",
        known=lambda: KNOWN,
        catalog=catalog.load(),
        now=lambda: NOW,
    )
    senders = Senders(hosts={"127.0.0.1": "leaf-01"})
    with RunningReceiver(tmp_path, senders=senders, doors=[listener]) as receiver:
        yield receiver, listener


def send(
    listener: TrapListener, *words: str, program: str = "snmptrap"
) -> subprocess.CompletedProcess[bytes]:
    host, port = listener.address
    *options, trap = words[:-1], words[-1]
    argv = [program, "-r", "1", "-t", "3", *options[0], f"{host}:{port}", "", *trap.split()]
    return subprocess.run(
        argv,
        capture_output=True,
        timeout=patient(20),
        env={"MIBS": "", "PATH": "/usr/bin"},
        check=False,
    )


def spooled(receiver: RunningReceiver) -> list[dict[str, Any]]:
    return [wire for batch in list(receiver.inbox.batches) for wire in batch.wires]


def wait_for(
    receiver: RunningReceiver, check: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    wait_until(lambda: check(spooled(receiver)), within_s=15, what="the notification in the spool")
    return spooled(receiver)


V2C = ("-v2c", "-c", "from-switches")
V3 = (
    "-v3",
    "-u",
    "watcher",
    "-l",
    "authPriv",
    "-a",
    "SHA-256",
    "-A",
    "an auth key",
    "-x",
    "AES",
    "-X",
    "a privacy key",
)
DOWN = f"{LINK_DOWN} {INDEX}.65 i 65 {ADMIN}.65 i 1 {OPER}.65 i 2"


def test_a_simulated_switch_is_heard(site: tuple[RunningReceiver, TrapListener]) -> None:
    receiver, listener = site
    sender = TrapSender(listener.address, community="from-switches")
    sender.link("Ethernet64", is_up=False)
    sender.link("Ethernet64", is_up=True)
    sender.session("10.0.3.1", is_up=False)
    sender.cold_start()
    wires = wait_for(receiver, lambda found: len(found) == 4)
    sender.close()
    assert [(wire["fault_type"], wire["event"]) for wire in wires] == [
        ("switch.port.down", "raised"),
        ("switch.port.down", "cleared"),
        ("switch.bgp.down", "raised"),
        ("switch.agent.started", "raised"),
    ]


def test_a_storm_is_folded_and_leaves_the_receiver_at_work(
    site: tuple[RunningReceiver, TrapListener],
) -> None:
    receiver, listener = site
    sender = TrapSender(listener.address, community="from-switches")
    for _ in range(400):
        sender.link("Ethernet64", is_up=False)
    sender.close()
    wait_for(receiver, lambda found: sum(wire["count"] for wire in found) == 400)
    assert len(spooled(receiver)) < 40


@pytest.mark.needs("snmptrap")
def test_a_v2c_trap_reaches_the_spool(site: tuple[RunningReceiver, TrapListener]) -> None:
    receiver, listener = site
    send(listener, *V2C, DOWN)
    (wire,) = wait_for(receiver, bool)
    assert (wire["fault_type"], wire["resource"]) == (
        "switch.port.down",
        "switch/leaf-01/port/Ethernet64",
    )
    assert (wire["source"], wire["action"]) == ("snmptrap", "watch")


@pytest.mark.needs("snmptrap")
def test_a_v3_trap_of_a_known_engine_reaches_the_spool(
    site: tuple[RunningReceiver, TrapListener],
) -> None:
    receiver, listener = site
    send(listener, "-e", f"0x{ENGINE}", *V3, DOWN)
    (wire,) = wait_for(receiver, bool)
    assert wire["resource"] == "switch/leaf-01/port/Ethernet64"


@pytest.mark.needs("snmptrap")
@pytest.mark.parametrize("how", [V2C, V3], ids=["v2c", "v3"])
def test_an_inform_is_acknowledged(
    site: tuple[RunningReceiver, TrapListener], how: tuple[str, ...]
) -> None:
    receiver, listener = site
    sent = send(listener, "-Ci", *how, DOWN)
    # The first of Net-SNMP's programs on a machine says which folders it makes.
    complaints = [
        line for line in sent.stderr.splitlines() if not line.startswith(b"Created directory")
    ]
    assert (sent.returncode, complaints) == (0, [])
    assert wait_for(receiver, bool)[0]["fault_type"] == "switch.port.down"


@pytest.mark.needs("snmptrap")
def test_a_v1_trap_means_the_same(site: tuple[RunningReceiver, TrapListener]) -> None:
    receiver, listener = site
    host, port = listener.address
    argv = [
        "snmptrap",
        "-v1",
        "-c",
        "from-switches",
        f"{host}:{port}",
        "1.3.6.1.4.1.8072",
        "10.0.0.1",
        "2",
        "0",
        "4711",
    ]
    subprocess.run(
        [*argv, f"{INDEX}.65", "i", "65"],
        timeout=patient(20),
        env={"MIBS": "", "PATH": "/usr/bin"},
        check=True,
    )
    assert wait_for(receiver, bool)[0]["resource"] == "switch/leaf-01/port/Ethernet64"


@pytest.mark.needs("snmptrap")
def test_down_and_up_again_arrive_in_their_order(
    site: tuple[RunningReceiver, TrapListener],
) -> None:
    receiver, listener = site
    for trap in (DOWN, f"{LINK_UP} {INDEX}.65 i 65 {ADMIN}.65 i 1 {OPER}.65 i 1"):
        send(listener, "-Ci", *V2C, trap)
    wires = wait_for(receiver, lambda found: len(found) == 2)
    assert [wire["event"] for wire in wires] == ["raised", "cleared"]


@pytest.mark.needs("snmptrap")
def test_what_is_not_believed_is_counted_and_not_spooled(
    site: tuple[RunningReceiver, TrapListener],
) -> None:
    receiver, listener = site
    counters = receiver.receiver.counters
    send(listener, "-v2c", "-c", "public", DOWN)
    send(listener, "-e", "0x80001f8880aabbccdd", *V3, DOWN)
    send(listener, "-e", f"0x{ENGINE}", *V3[:8], "another key", *V3[9:], DOWN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"\x30\x82\xff\xff not a message", listener.address)
    send(listener, *V2C, "1.3.6.1.4.1.318.0.5")
    wait_until(lambda: counters.unknown_traps == 1, within_s=15, what="the last of them counted")
    assert (counters.malformed_traps, counters.traps) == (1, 5)
    assert counters.unbelieved_traps == 3
    assert spooled(receiver) == []


@pytest.mark.needs("snmptrap")
def test_a_sender_outside_the_accepted_networks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    listener = TrapListener(
        ("127.0.0.1", 0),
        directory=tmp_path / "spool",
        known=lambda: KNOWN,
        catalog=catalog.load(),
        now=lambda: NOW,
    )
    with RunningReceiver(
        tmp_path, senders=Senders(networks=("10.0.0.0/8",)), doors=[listener]
    ) as receiver:
        send(listener, *V2C, DOWN)
        counters = receiver.receiver.counters
        wait_until(lambda: counters.refused_traps == 1, within_s=15, what="the refusal counted")
        assert spooled(receiver) == []


@pytest.mark.needs("snmptrap")
def test_a_notification_of_a_node_is_left_to_its_detectors(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    listener = TrapListener(
        ("127.0.0.1", 0),
        directory=tmp_path / "spool",
        known=lambda: KNOWN,
        catalog=catalog.load(),
        now=lambda: NOW,
    )
    with RunningReceiver(
        tmp_path, senders=Senders(hosts={"127.0.0.1": "gn001"}), doors=[listener]
    ) as receiver:
        send(listener, *V2C, DOWN)
        counters = receiver.receiver.counters
        wait_until(
            lambda: counters.unknown_traps == 1, within_s=15, what="the notification counted"
        )
        assert spooled(receiver) == []
