"""What machines tell of their parts and neighbours: forms of outputs, and how they join what is
known."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import Output, Target
from detectors.expected import Expected, ExpectedNic, ExpectedPort
from incidents.topology import discovery
from incidents.topology.discovery import Neighbour
from incidents.topology.topology import NicPlace


def said(text: str | bytes, status: int = 0, stderr: bytes = b"") -> Output:
    return Output(status, text if isinstance(text, bytes) else text.encode(), stderr, timedelta(0))


def sysfs(**files: str) -> Output:
    return said(
        "".join(f"{path}\0{line}\n" for path, text in files.items() for line in text.splitlines())
    )


def files(rows: dict[str, str]) -> Output:
    return sysfs(**rows)


GPUS = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.90.07</driver_version>
  <gpu id="00000000:19:00.0">
    <uuid>GPU-a</uuid><serial>1650001</serial>
    <pci><pci_bus_id>00000000:19:00.0</pci_bus_id></pci>
  </gpu>
  <gpu id="00000000:9B:00.0">
    <uuid>GPU-b</uuid><serial>N/A</serial>
    <pci><pci_bus_id>00000000:9B:00.0</pci_bus_id></pci>
  </gpu>
</nvidia_smi_log>
"""


def test_gpu_keeps_the_index_that_the_inventory_has_for_its_address() -> None:
    target = Target(
        "gn001", "127.0.0.1", expected=Expected(gpus=(("4", "0000:9b:00.0"), ("3", "0000:5d:00.0")))
    )
    place = discovery.parse_node(target, {"nvidia-smi": said(GPUS)}).place
    assert [(gpu.index, gpu.pci, gpu.uuid, gpu.serial) for gpu in place.gpus] == [
        (0, "0000:19:00.0", "GPU-a", "1650001"),
        (4, "0000:9b:00.0", "GPU-b", ""),
    ]
    assert place.given == frozenset({"gpus"})


def test_nics_join_rdma_devices_interfaces_and_firmware() -> None:
    outputs = {
        "net": files(
            {
                "/sys/class/net/rail0/device/uevent": "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:18:00.0",
                "/sys/class/net/eno1/device/uevent": "DRIVER=igb\nPCI_SLOT_NAME=0000:02:00.0",
                "/sys/class/net/lo/operstate": "unknown",
            }
        ),
        "infiniband": files(
            {
                "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "rail0",
                "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
            }
        ),
        "infiniband-device": files(
            {"/sys/class/infiniband/mlx5_0/device/uevent": "PCI_SLOT_NAME=0000:18:00.0"}
        ),
        "ip-link": said(
            json.dumps(
                [{"ifname": "rail0", "address": "94:6d:ae:00:00:01", "flags": [], "mtu": 9000}]
            )
        ),
        "ethtool-i.rail0": said(
            "driver: mlx5_core\nfirmware-version: 28.39.1002 (MT_0000000838)\n"
        ),
    }
    assert [command.name for command in discovery.build_further_commands(outputs)] == [
        "ethtool-i.eno1",
        "ethtool-i.rail0",
    ]
    nics = {
        nic.device: nic
        for nic in discovery.parse_node(Target("gn001", "127.0.0.1"), outputs).place.nics
    }
    assert sorted(nics) == ["eno1", "mlx5_0"]
    rail = nics["mlx5_0"]
    assert (rail.pci, rail.netdev, rail.mac) == ("0000:18:00.0", "rail0", "94:6d:ae:00:00:01")
    assert rail.firmware == "28.39.1002"


def test_interface_that_the_inventory_calls_by_another_name_keeps_that_name() -> None:
    target = Target(
        "gn001",
        "127.0.0.1",
        expected=Expected(nics=(ExpectedNic("management", pci="0000:02:00.0"),)),
    )
    outputs = {"net": files({"/sys/class/net/eno1/device/uevent": "PCI_SLOT_NAME=0000:02:00.0"})}
    assert [nic.device for nic in discovery.parse_node(target, outputs).place.nics] == [
        "management"
    ]


def test_nvswitches_are_nvidias_bridges() -> None:
    rows = {}
    for pci, vendor, kind in (
        ("0000:07:00.0", "0x10de", "0x068000"),
        ("0000:19:00.0", "0x10de", "0x030200"),
        ("0000:00:1f.0", "0x8086", "0x068000"),
    ):
        rows[f"/sys/bus/pci/devices/{pci}/vendor"] = vendor
        rows[f"/sys/bus/pci/devices/{pci}/class"] = kind
    place = discovery.parse_node(Target("gn001", "127.0.0.1"), {"pci": files(rows)}).place
    assert [item.pci for item in place.nvswitches] == ["0000:07:00.0"]


PORT = {"id": {"type": "ifname", "value": "Ethernet0"}, "descr": "Ethernet0"}


@pytest.mark.parametrize(
    "interface",
    [
        {
            "rail0": {
                "chassis": {"leaf-01.site.example": {"id": {"type": "mac", "value": "aa"}}},
                "port": PORT,
            }
        },
        [{"rail0": {"chassis": {"leaf-01": {"id": {"type": "mac", "value": "aa"}}}, "port": PORT}}],
        [
            {
                "rail0": {
                    "chassis": {"id": {"type": "mac", "value": "aa"}, "name": "leaf-01"},
                    "port": PORT,
                }
            }
        ],
        [
            {
                "rail0": {
                    "chassis": [{"id": {"type": "mac"}, "name": [{"value": "leaf-01"}]}],
                    "port": [PORT],
                }
            }
        ],
    ],
    ids=["one interface", "several", "chassis without name as key", "lists everywhere"],
)
def test_neighbours_are_read_from_every_form_of_lldpctl(interface: Any) -> None:
    outputs = {"lldp": said(json.dumps({"lldp": {"interface": interface}}))}
    found = discovery.parse_node(Target("gn001", "127.0.0.1"), outputs)
    assert found.neighbours == {"rail0": Neighbour("leaf-01", ("Ethernet0", "Ethernet0"))}


def test_look_that_came_to_nothing_is_told() -> None:
    outputs = {
        "nvidia-smi": said("", 127, b"bash: nvidia-smi: command not found"),
        "lldp": said("", 1, b"sudo: a password is required"),
        **{name: said("x") for name in ("net", "infiniband", "ip-link", "pci")},
    }
    failed = discovery.parse_node(Target("gn001", "127.0.0.1"), outputs).failed
    assert failed == ("nvidia-smi: not installed", "lldp: status 1: sudo: a password is required")


LEAF = Target(
    "leaf-01",
    "127.0.0.1",
    expected=Expected(ports=(ExpectedPort("Ethernet0"), ExpectedPort("Ethernet4"))),
)


def test_switch_tells_its_own_port_by_alias_and_its_neighbour_by_name_or_hardware_address() -> None:
    values = {
        "1.3.6.1.2.1.2.2.1.2.1": b"Ethernet0",
        "1.3.6.1.2.1.31.1.1.1.1.1": b"etp1a",
        "1.3.6.1.2.1.2.2.1.2.5": b"Ethernet4",
        "1.3.6.1.2.1.31.1.1.1.1.5": b"etp1b",
        "1.0.8802.1.1.2.1.3.7.1.3.1": b"etp1a",
        "1.0.8802.1.1.2.1.4.1.1.9.100.1.1": b"gn001.site.example",
        "1.0.8802.1.1.2.1.4.1.1.7.100.1.1": bytes.fromhex("946dae000001"),
        "1.0.8802.1.1.2.1.4.1.1.9.100.5.1": b"gn002",
        "1.0.8802.1.1.2.1.4.1.1.8.100.5.1": b"rail0",
    }
    found = discovery.parse_switch_neighbours(LEAF, values)
    assert found == {
        "Ethernet0": Neighbour("gn001", ("94:6d:ae:00:00:01",)),
        "Ethernet4": Neighbour("gn002", ("rail0",)),
    }
    nics = {
        "gn001": (NicPlace("mlx5_0", mac="94:6d:ae:00:00:01"),),
        "gn002": (NicPlace("mlx5_0", netdev="rail0"),),
    }
    ends = [
        discovery.find_far_end(found[port], switches={}, nodes=nics)
        for port in ("Ethernet0", "Ethernet4")
    ]
    assert ends == ["node/gn001/nic/mlx5_0", "node/gn002/nic/mlx5_0"]


def test_port_of_a_switch_is_the_name_that_the_inventory_has() -> None:
    heard = Neighbour("leaf-01", ("etp1", "Ethernet0"))
    assert (
        discovery.find_far_end(heard, switches={"leaf-01": ["Ethernet0"]}, nodes={})
        == "switch/leaf-01/port/Ethernet0"
    )
    assert (
        discovery.find_far_end(heard, switches={"leaf-01": []}, nodes={})
        == "switch/leaf-01/port/Ethernet0"
    )
    assert discovery.find_far_end(heard, switches={}, nodes={}) == ""


@given(
    st.binary(max_size=300),
    st.sampled_from([command.name for command in discovery.build_commands()]),
)
def test_any_bytes_give_a_place_and_never_an_error(text: bytes, name: str) -> None:
    found = discovery.parse_node(Target("gn001", "127.0.0.1"), {name: said(text)})
    assert found.place.name == "gn001"
    discovery.build_further_commands({name: said(text)})


@given(
    st.recursive(
        st.none() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["id", "name", "port", "chassis", "rail0"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_table_of_neighbours_is_read_without_error(table: Any) -> None:
    outputs = {"lldp": said(json.dumps({"lldp": {"interface": table}}))}
    for neighbour in discovery.parse_node(
        Target("gn001", "127.0.0.1"), outputs
    ).neighbours.values():
        assert neighbour.machine
