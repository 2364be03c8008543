"""Settings of SONiC switches: the forms that are read, and what counts as declared."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Output, Reading, Target, TargetKind, Transports
from detectors.expected import Expected, ExpectedPort
from detectors.polling import observe_one
from detectors.switch import sonic_outputs, sonic_settings
from detectors.switch.sonic import SonicDetector
from detectors.transports.ssh import SshShell
from fixtures.cluster.config_faults import DECLARED
from fixtures.cluster.sonic_cli import SonicCli
from fixtures.cluster.ssh_server import SshServer
from fixtures.cluster.world import SimulatedWorld

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = SonicDetector()
PORTS = ["Ethernet0", "Ethernet4", "Ethernet256"]


def database(**changed: str) -> dict[str, Any]:
    """`TABLE__key__field=value` changes one field."""
    cli = SonicCli("leaf-01", PORTS)
    cli.changed.update({tuple(name.split("__")): value for name, value in changed.items()})  # type: ignore[misc]
    return cli.database()


def faults(
    settings: dict[str, str], outputs: dict[str, bytes], ports: tuple[ExpectedPort, ...] = ()
) -> set[str]:
    target = Target(
        "leaf-01", "", kind=TargetKind.SWITCH, expected=Expected(settings=settings, ports=ports)
    )
    given = {name: Output(0, text, b"", timedelta(0)) for name, text in outputs.items()}
    seen = list(DETECTOR.parse(Reading("sonic", target, NOW, given)))
    return {
        f"{event.fault_type} {event.qualifier}".strip()
        for event in captures.classify_all(seen, catalog.load())
    }


def config(**changed: str) -> dict[str, bytes]:
    return {"config-db": json.dumps(database(**changed)).encode()}


def test_a_switch_that_is_set_as_declared_has_no_fault() -> None:
    assert faults(DECLARED, config()) == set()


def test_what_is_not_declared_is_not_judged() -> None:
    assert faults({}, config(WRED_PROFILE__ROCE__green_max_threshold="1")) == set()
    assert not DETECTOR.wants(Target("leaf-01", "", kind=TargetKind.SWITCH))
    assert DETECTOR.wants(Target("leaf-01", "", expected=Expected(settings={"evpn": "yes"})))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"WRED_PROFILE__ROCE__green_min_threshold": "1"}, "config.switch.ecn ecn_min_bytes"),
        (
            {"WRED_PROFILE__ROCE__green_drop_probability": "5"},
            "config.switch.ecn ecn_max_probability_percent",
        ),
        (
            {"BUFFER_PROFILE__roce_lossless__xon_offset": "0"},
            "config.switch.pfc pfc_xon_offset_bytes",
        ),
        ({"BUFFER_POOL__ingress_lossless_pool__xoff": "1"}, "config.switch.pfc pfc_headroom_bytes"),
        ({"PORT_QOS_MAP__Ethernet4__pfc_enable": "4"}, "config.switch.pfc pfc_priority"),
        ({"BUFFER_PROFILE__roce_lossless__dynamic_th": "1"}, "config.switch.buffer buffer_alpha"),
        ({"DSCP_TO_TC_MAP__ROCE__48": "0"}, "config.switch.dscp_map dscp_map"),
        (
            {"ARS_OBJECT__default__assign_mode": "fixed"},
            "config.switch.load_balancing load_balancing",
        ),
        ({"VXLAN_TUNNEL__vtep1__src_ip": ""}, "config.switch.overlay evpn"),
        (
            {"VXLAN_TUNNEL_MAP__vtep1|map_1000_Vlan100__vni": "2"},
            "config.switch.overlay vxlan_vnis",
        ),
    ],
)
def test_a_setting_that_differs_is_told_by_its_name(changed: dict[str, str], fault: str) -> None:
    assert faults(DECLARED, config(**changed)) == {fault}


def test_marking_that_is_switched_off_is_not_set_at_all() -> None:
    found = faults({"ecn_min_bytes": "2000000"}, config(WRED_PROFILE__ROCE__ecn="ecn_none"))
    assert found == {"config.switch.ecn ecn_min_bytes"}


@pytest.mark.parametrize(
    ("exponent", "alpha"), [("0", "1"), ("-1", "0.5"), ("3", "8"), ("-6", "0.015625")]
)
def test_alpha_is_two_to_the_dynamic_threshold(exponent: str, alpha: str) -> None:
    tables = database(BUFFER_PROFILE__roce_lossless__dynamic_th=exponent)
    assert sonic_settings.get_observed("buffer_alpha", tables, {}) == alpha


@pytest.mark.parametrize(
    ("name", "declared", "wanted"),
    [
        ("ecn_max_bytes", "10_000_000", "10000000"),
        ("buffer_alpha", "1.0", "1"),
        ("pfc_priority", "4, 3", "3,4"),
        ("dscp_map", "24-26:3", "24:3,25:3,26:3"),
        ("evpn", "true", "yes"),
        ("load_balancing", "Flowlet", "flowlet"),
    ],
)
def test_declared_values_are_compared_in_one_form(name: str, declared: str, wanted: str) -> None:
    assert sonic_settings.get_wanted(name, declared) == wanted


def test_the_three_forms_of_a_database_are_the_same() -> None:
    tables = database()
    flat = {f"{table}|{key}": row for table, rows in tables.items() for key, row in rows.items()}
    dumped = {key: {"type": "hash", "ttl": -0.001, "value": row} for key, row in flat.items()}
    read = [
        sonic_outputs.parse_database(b"banner\n" + json.dumps(form).encode())
        for form in (tables, flat, dumped)
    ]
    assert read[0] == read[1] == read[2] == tables


def test_old_references_to_profiles_are_followed() -> None:
    tables = database()
    for row in tables["QUEUE"].values():
        row["wred_profile"] = "[WRED_PROFILE|ROCE]"
    assert sonic_settings.get_observed("ecn_max_bytes", tables, DECLARED) == "10000000"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"PORT__Ethernet4__mtu": "1500"}, "config.port.mtu"),
        ({"PORT__Ethernet4__speed": "200000"}, "config.port.speed"),
        ({"PORT__Ethernet4__fec": "fc"}, "config.port.fec"),
        ({"PORT__Ethernet4__autoneg": "on"}, "config.port.autonegotiation"),
        ({"PORT__Ethernet4__admin_status": "down"}, "config.port.admin"),
    ],
)
def test_a_port_is_compared_with_the_inventory(changed: dict[str, str], fault: str) -> None:
    ports = (ExpectedPort("Ethernet4", 400, 9100, "rs", is_autonegotiated=False, is_admin_up=True),)
    assert faults(DECLARED, config(**changed), ports) == {fault}
    assert faults(DECLARED, config(**changed)) == set()


def test_ports_are_read_from_the_status_table_where_the_database_is_not_at_hand() -> None:
    status = SonicCli("leaf-01", PORTS).run(("show", "interfaces", "status"))[1]
    ports = (ExpectedPort("Ethernet4", 800, 9216, "rs"),)
    assert faults({}, {"interfaces-status": status}, ports) == {
        "config.port.mtu",
        "config.port.speed",
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"PORT": {}}', "config-db"),
        (SonicCli("leaf-01", PORTS).run(("show", "interfaces", "status"))[1], "interfaces-status"),
        (SonicCli("leaf-01", PORTS).run(("show", "pfcwd", "stats"))[1], "pfcwd"),
        (b"User issued 'reboot' command [User: admin, Time: Mon]", "reboot-cause"),
        (b"Profile: ROCE\n-------------------\ngreen_max_threshold  10\n", "ecn"),
    ],
)
def test_an_output_is_known_by_its_text(text: bytes, name: str) -> None:
    assert DETECTOR.sniff(text) == name


def test_show_ecn_is_compared_too() -> None:
    text = (
        b"Profile: ROCE\n-----------------------  -------\ngreen_max_threshold      2097152\n"
        b"green_min_threshold      2000000\ngreen_drop_probability   1\n-----------------------  -------\n"
    )
    assert faults(DECLARED, {"ecn": text}) == {"config.switch.ecn ecn_max_bytes"}


def test_a_switch_without_a_watchdog_is_no_trouble() -> None:
    target = Target("leaf-01", "", kind=TargetKind.SWITCH, expected=Expected(settings=DECLARED))
    outputs = {
        "config-db": Output(0, config()["config-db"], b"", timedelta(0)),
        "pfcwd": Output(1, b"", b"PFC watchdog is not supported\n", timedelta(0)),
    }
    (answered,) = [
        seen
        for seen in DETECTOR.parse(Reading("sonic", target, NOW, outputs))
        if seen.metric == "detector.answered"
    ]
    assert answered.value is True


@given(text=st.binary(max_size=500))
def test_any_bytes_of_any_output_are_read_without_harm(text: bytes) -> None:
    target = Target("leaf-01", "", kind=TargetKind.SWITCH, expected=Expected(settings=DECLARED))
    for name in (
        "config-db",
        "interfaces-status",
        "pfcwd",
        "fec",
        "autoneg",
        "counters",
        "psu",
        "eeprom",
        "ecn",
    ):
        list(
            DETECTOR.parse(
                Reading("sonic", target, NOW, {name: Output(0, text, b"", timedelta(0))})
            )
        )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["PORT", "value", "a|3", ""]), inner)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["PORT", "QUEUE", "BUFFER_PG", "BUFFER_PROFILE", "PORT|Ethernet0"]), _JSON
    )
)
def test_any_json_is_read_without_harm(whole: dict[str, Any]) -> None:
    faults(DECLARED, {"config-db": json.dumps(whole).encode()})


def test_a_switch_is_read_in_one_session_over_ssh(tmp_path: Path) -> None:
    switch = SimulatedWorld.sakuraone(clock=lambda: NOW).switches["leaf-01"]
    server = SshServer([switch])
    server.start()
    key, known_hosts = server.write_access(tmp_path)
    shell = SshShell(user="kintsugi", key_file=key, known_hosts=known_hosts)
    where = server.endpoints["leaf-01"]
    expected = Expected(settings=DECLARED)
    target = Target("leaf-01", where.address, where.port, kind=TargetKind.SWITCH, expected=expected)
    try:
        well = observe_one(target, DETECTOR, Transports(shell=shell), NOW)
        switch.cli.changed[("WRED_PROFILE", "ROCE", "green_max_threshold")] = "1"
        wrong = observe_one(target, DETECTOR, Transports(shell=shell), NOW)
    finally:
        shell.close()
        server.stop()
    assert captures.classify_all(well, catalog.load()) == []
    assert [event.qualifier for event in captures.classify_all(wrong, catalog.load())] == [
        "ecn_max_bytes"
    ]
    assert len([seen for seen in well if seen.metric == "port.set_mtu"]) == len(switch.ports)
