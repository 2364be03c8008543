"""What a node shows against the inventory and its peers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Output, Reading, Target, Transports
from detectors.evaluation import judge
from detectors.expected import Expected, ExpectedNic
from detectors.faults import Observation
from detectors.node.config import ConfigDetector
from detectors.node.outputs import config_outputs
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = ConfigDetector()
NICS = tuple(ExpectedNic(f"mlx5_{n}", f"rail{n}", role="fabric") for n in range(4))


def out(text: str | bytes, status: int = 0) -> Output:
    return Output(status, text.encode() if isinstance(text, str) else text, b"", timedelta(0))


def seen(
    outputs: dict[str, Output], expected: Expected | None = None, at: datetime = NOW
) -> list[Observation]:
    target = Target("gn001", "", expected=expected or Expected())
    return list(DETECTOR.parse(Reading("config", target, at, outputs)))


def faults(outputs: dict[str, Output], expected: Expected | None = None) -> set[tuple[str, str]]:
    events = captures.classify_all(seen(outputs, expected), catalog.load())
    return {(event.fault_type, event.resource) for event in events}


def addresses(*rows: tuple[str, int, str]) -> Output:
    return out(
        json.dumps(
            [{"ifname": n, "mtu": m, "addr_info": [{"local": a}] if a else []} for n, m, a in rows]
        )
    )


def neighbours(**macs: str) -> Output:
    rows = [
        {"dst": a.replace("_", "."), "dev": "eno1", "lladdr": m, "state": ["STALE"]}
        for a, m in macs.items()
    ]
    return out(json.dumps(rows))


@pytest.mark.parametrize("said", ["gn001", "gn001.cluster.example", "Authorized use only\ngn001"])
def test_a_host_name_is_compared_without_its_domain_and_behind_a_banner(said: str) -> None:
    assert faults({"hostname": out(f"{said}\n")}) == set()
    assert faults({"hostname": out("gn002\n")}) == {("config.hostname", "node/gn001")}


def test_a_cards_address_must_stand_on_its_own_interface() -> None:
    expected = Expected(nics=(ExpectedNic("mlx5_0", "rail0", address="10.0.0.1/24"),))
    well = {"addresses": addresses(("rail0", 9000, "10.0.0.1"))}
    other = {"addresses": addresses(("rail0", 9000, ""), ("rail1", 9000, "10.0.0.1"))}
    assert faults(well, expected) == set()
    assert faults(other, expected) == {("config.address", "node/gn001/nic/mlx5_0")}


def test_the_nodes_own_address_may_stand_anywhere_and_a_name_is_no_address() -> None:
    expected = Expected(addresses=("10.9.0.1", "gn001.mgmt"))
    assert faults({"addresses": addresses(("bond0", 1500, "10.9.0.1"))}, expected) == set()
    assert faults({"addresses": addresses(("bond0", 1500, ""))}, expected) == {
        ("config.address", "node/gn001")
    }


def test_the_inventory_goes_before_the_peers() -> None:
    rows = addresses(*((f"rail{n}", 1500 if n == 2 else 9000, "") for n in range(4)))
    assert faults({"addresses": rows}, Expected(nics=NICS)) == {
        ("config.nic.mtu", "node/gn001/nic/mlx5_2")
    }
    declared = tuple(ExpectedNic(nic.device, nic.netdev, role="fabric", mtu=1500) for nic in NICS)
    found = faults({"addresses": rows}, Expected(nics=declared))
    assert found == {("config.nic.mtu", f"node/gn001/nic/mlx5_{n}") for n in (0, 1, 3)}


def test_two_cards_are_no_majority() -> None:
    rows = addresses(("rail0", 9000, ""), ("rail1", 1500, ""))
    assert faults({"addresses": rows}, Expected(nics=NICS[:2])) == set()


def link(fec: str, autonegotiation: str = "on", is_up: bool = True) -> dict[str, Output]:
    up = "yes" if is_up else "no"
    return {
        "ethtool": out(
            f"Settings:\n\tAuto-negotiation: {autonegotiation}\n\tLink detected: {up}\n"
        ),
        "ethtool-fec": out(
            f"FEC parameters:\nConfigured FEC encodings: Auto\nActive FEC encoding: {fec}\n"
        ),
    }


def links(last: dict[str, Output]) -> dict[str, Output]:
    """Three cards with RS and negotiation, and the last as given."""
    rows = [*(link("RS") for _ in range(3)), last]
    return {f"{name}.rail{n}": output for n, row in enumerate(rows) for name, output in row.items()}


def test_a_links_settings_are_compared_with_most_of_its_role() -> None:
    nic = "node/gn001/nic/mlx5_3"
    assert faults(links(link("RS")), Expected(nics=NICS)) == set()
    assert faults(links(link("BaseR")), Expected(nics=NICS)) == {("config.nic.fec", nic)}
    assert faults(links(link("RS", "off")), Expected(nics=NICS)) == {
        ("config.nic.autonegotiation", nic)
    }


def test_a_link_that_is_down_says_nothing_of_its_settings() -> None:
    assert faults(links(link("Off", "off", is_up=False)), Expected(nics=NICS)) == set()


def driver(firmware: str) -> Output:
    return out(f"driver: mlx5_core\nversion: 24.04-0.6.6\nfirmware-version: {firmware}\n")


def test_firmware_is_compared_among_cards_of_one_model() -> None:
    outputs = {f"ethtool-i.rail{n}": driver("28.41.1000 (MT_0000000838)") for n in range(3)}
    outputs["ethtool-i.rail3"] = driver("28.39.2048 (MT_0000000838)")
    assert faults(outputs, Expected(nics=NICS)) == {
        ("config.nic.firmware", "node/gn001/nic/mlx5_3")
    }
    outputs["ethtool-i.rail3"] = driver("22.31.1014 (MT_0000000359)")
    assert faults(outputs, Expected(nics=NICS)) == set()


def test_a_nodes_driver_is_compared_with_other_nodes() -> None:
    outputs = {"ethtool-i.rail0": driver("28.41.1000 (MT_0000000838)")}
    assert faults(outputs, Expected(peers={"nic_driver.mlx5_core": "24.04-0.6.6"})) == set()
    found = faults(outputs, Expected(peers={"nic_driver.mlx5_core": "24.10-1.0.0"}))
    assert found == {("config.nic.driver", "node/gn001")}


def conflicts(*rounds: dict[str, str]) -> list[str]:
    """Addresses that are told as doubled, over rounds of neighbour tables."""
    memory, told = judge.Memory(), []
    for number, table in enumerate(rounds):
        found = seen({"neighbours": neighbours(**table)}, at=NOW + number * DETECTOR.every)
        judged = judge.judge_round(DETECTOR, found, memory, active=(), catalog=catalog.load())
        memory = judged.memory
        told += [event.qualifier for event in judged.events]
    return told


def test_a_machine_that_was_replaced_is_no_conflict() -> None:
    assert conflicts({"10_0_0_9": "02:aa"}, {"10_0_0_9": "02:bb"}, {"10_0_0_9": "02:bb"}) == []


def test_an_address_that_goes_back_and_forth_is_held_by_two() -> None:
    assert conflicts({"10_0_0_9": "02:aa"}, {"10_0_0_9": "02:bb"}, {"10_0_0_9": "02:aa"}) == [
        "10.0.0.9"
    ]


def test_a_neighbour_that_does_not_answer_is_passed_over() -> None:
    row = {"dst": "10.0.0.9", "dev": "eno1", "lladdr": "02:aa", "state": ["FAILED"]}
    assert config_outputs.parse_neighbours(json.dumps([row]).encode()) == []


@pytest.mark.parametrize(
    ("status", "is_doubled"), [(0, False), (1, True), (2, False), (127, False), (None, False)]
)
def test_a_probe_tells_a_second_owner_by_its_status_alone(
    status: int | None, is_doubled: bool
) -> None:
    expected = Expected(nics=(ExpectedNic("mlx5_0", "rail0", address="10.0.0.1"),))
    found = faults({"arping.rail0": Output(status, b"", b"", timedelta(0))}, expected)
    assert (("config.duplicate_ip", "node/gn001") in found) is is_doubled


def test_a_probe_is_sent_only_where_the_site_asks_for_it() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    nics = (ExpectedNic("mlx5_0", "rail0", address="10.40.2.1"),)
    for settings, wanted in (({}, False), ({"arping": "yes"}, True)):
        target = Target("gn001", "", expected=Expected(nics=nics, settings=settings))
        reading = DETECTOR.collect(target, Transports(shell=SimulatedShell(world)), NOW)
        assert ("arping.rail0" in reading.outputs) is wanted


def lldp(name: str, port: dict[str, object]) -> Output:
    return out(
        json.dumps(
            {"lldp": {"interface": {"rail0": {"chassis": {name: {"id": {}}}, "port": port}}}}
        )
    )


@pytest.mark.parametrize(
    ("name", "port", "is_wrong"),
    [
        ("leaf-01", {"id": {"type": "ifname", "value": "Ethernet64"}}, False),
        (
            "leaf-01.example",
            {"id": {"type": "local", "value": "etp9a"}, "descr": "Ethernet64"},
            False,
        ),
        ("leaf-01", {"id": {"type": "mac", "value": "02:aa:bb:cc:dd:ee"}}, False),
        ("leaf-01", {"id": {"type": "local", "value": "etp10a"}, "descr": "Ethernet72"}, True),
        ("leaf-02", {"id": {"type": "ifname", "value": "Ethernet64"}}, True),
    ],
)
def test_a_neighbour_is_compared_as_far_as_it_can_be_told(
    name: str, port: dict[str, object], is_wrong: bool
) -> None:
    expected = Expected(
        nics=(ExpectedNic("mlx5_0", "rail0", peer="switch/leaf-01/port/Ethernet64"),)
    )
    found = faults({"lldp": lldp(name, port)}, expected)
    assert found == ({("config.wrong_neighbour", "node/gn001/nic/mlx5_0")} if is_wrong else set())


def test_the_text_forms_of_ip_are_read_as_well() -> None:
    text = (
        "2: rail0: <BROADCAST,MULTICAST,UP> mtu 9000 qdisc mq state UP group default qlen 1000\n"
        "    inet 10.0.0.1/24 brd 10.0.0.255 scope global rail0\n    inet6 fe80::1/64 scope link dadfailed tentative\n"
    )
    found = config_outputs.parse_interfaces(text.encode())["rail0"]
    assert (found.mtu, found.addresses, found.refused) == (9000, ("10.0.0.1",), ("fe80::1",))


@given(text=st.binary(max_size=400))
def test_any_bytes_are_read_without_harm(text: bytes) -> None:
    for name in ("hostname", "addresses", "neighbours", "lldp", "ethtool-i.rail0"):
        seen({name: out(text)}, Expected(nics=NICS))


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["lldp", "interface", "chassis", "port", "id", "ifname", "addr_info"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(_JSON)
def test_any_json_is_read_without_harm(value: object) -> None:
    text = json.dumps(value)
    seen({name: out(text) for name in ("addresses", "neighbours", "lldp")}, Expected(nics=NICS))
