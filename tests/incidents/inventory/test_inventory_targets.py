"""What polls are told of each machine, and that it costs a few queries for any number of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from detectors.detector import Target, TargetKind
from incidents.inventory import services
from incidents.models import Node, Switch
from tests.builders import NOW

SAKURAONE = Path(__file__).resolve().parents[3] / "fixtures" / "topology" / "sakuraone.toml"
pytestmark = pytest.mark.django_db
FABRIC = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_11"]


@pytest.fixture
def model_site() -> None:
    services.apply(services.load(SAKURAONE), NOW)


def of(kind: TargetKind, name: str) -> Target:
    found = services.list_targets(kind, [name])
    assert len(found) == 1
    return found[0]


@pytest.mark.usefixtures("model_site")
def test_node_has_the_nics_of_the_model_site_by_role_and_rail() -> None:
    nics = of(TargetKind.NODE, "gn007").expected.nics
    assert [nic.device for nic in nics if nic.role == "fabric"] == FABRIC
    assert [nic.rail for nic in nics if nic.role == "fabric"] == list(range(8))
    assert [nic.device for nic in nics if nic.role == "storage"] == ["mlx5_8", "mlx5_bond_0"]
    assert [nic.device for nic in nics if nic.role == "reserved"] == ["mlx5_3"]
    seventh = next(nic for nic in nics if nic.device == "mlx5_11")
    assert (seventh.peer, seventh.speed_gbps, seventh.mtu) == (
        "switch/leaf-08/port/Ethernet24",
        400,
        9000,
    )
    assert next(nic for nic in nics if nic.device == "mlx5_3").peer == ""


@pytest.mark.usefixtures("model_site")
def test_node_has_what_its_role_declares() -> None:
    expected = of(TargetKind.NODE, "gn007").expected
    assert expected.role == "compute"
    assert len(expected.gpus) == 8
    assert expected.mounts == ("/lustre",)
    assert "slurmd" in expected.services
    assert expected.urls == {"dcgm": "http://10.40.1.7:9400/metrics"}
    assert expected.addresses == ("10.40.1.7",)
    assert of(TargetKind.NODE, "mt001").expected.services == ()


@pytest.mark.usefixtures("model_site")
def test_two_host_ports_share_one_module_of_a_leaf_and_uplinks_have_their_own() -> None:
    leaf = of(TargetKind.SWITCH, "leaf-03")
    ports = {port.name: port for port in leaf.expected.ports}
    assert ports["Ethernet0"].module == ports["Ethernet4"].module == "switch/leaf-03/module/1"
    assert ports["Ethernet8"].module == "switch/leaf-03/module/2"
    assert (ports["Ethernet0"].peer, ports["Ethernet0"].speed_gbps) == (
        "node/gn001/nic/mlx5_2",
        400,
    )
    assert (ports["Ethernet256"].peer, ports["Ethernet256"].speed_gbps) == (
        "switch/spine-01/port/Ethernet64",
        800,
    )
    assert ports["Ethernet256"].module == "switch/leaf-03/module/33"
    assert leaf.expected.settings["ecn_min_bytes"] == "2000000"
    assert leaf.kind is TargetKind.SWITCH
    assert of(TargetKind.SWITCH, "sto-01").expected.settings == {}


@pytest.mark.usefixtures("model_site")
def test_a_few_queries_tell_all_targets_of_a_kind(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    services.list_targets(TargetKind.NODE)  # reads the cables, which are kept
    with django_assert_num_queries(6):
        assert len(services.list_targets(TargetKind.NODE)) == 101
    with django_assert_num_queries(5):
        assert len(services.list_targets(TargetKind.SWITCH)) == 27


@pytest.mark.usefixtures("model_site")
def test_machines_that_only_spoke_to_us_are_no_targets() -> None:
    Node.objects.create(name="stranger", is_provisional=True)
    Switch.objects.create(name="strange-switch", role="leaf", is_provisional=True)
    assert services.get_target("stranger") is None
    assert "strange-switch" not in [
        target.name for target in services.list_targets(TargetKind.SWITCH)
    ]
    assert services.list_targets(TargetKind.NODE, ["nobody"]) == []


def test_role_and_rail_follow_from_the_cable_where_the_file_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        '[[nodes]]\nnames = "n1"\nnics = ["mlx5_0", "mlx5_1", "mlx5_2"]\n'
        '[[switches]]\nnames = "l1"\nrole = "leaf"\nrail = 5\n[[switches]]\nnames = "s1"\nrole = "storage"\n'
        '[[cables]]\na = "node/n1/nic/mlx5_0"\nb = "switch/l1/port/Ethernet0"\nspeed_gbps = 200\n'
        '[[cables]]\na = "node/n1/nic/mlx5_1"\nb = "switch/s1/port/Ethernet0"\n'
    )
    services.apply(services.load(path), NOW)
    nics = of(TargetKind.NODE, "n1").expected.nics
    assert [(nic.role, nic.rail, nic.speed_gbps) for nic in nics] == [
        ("fabric", 5, 200),
        ("storage", None, None),
        ("", None, None),
    ]


def test_what_speaks_for_many_machines_is_declared_by_its_role(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        '[[expect]]\nkind = "site"\nroles = ["prometheus"]\nurls = { query = "http://prom:9090" }\n'
    )
    services.apply(services.load(path), NOW)
    assert [(t.resource, t.expected.urls) for t in services.list_targets(TargetKind.SITE)] == [
        ("site/prometheus", {"query": "http://prom:9090"})
    ]


def test_a_nodes_controller_is_where_the_inventory_says_and_stays_there_when_a_file_leaves_it_out(
    tmp_path: Path,
) -> None:
    site = tmp_path / "bmc.toml"
    site.write_text(
        '[[nodes]]\nnames = "bn[1-2]"\nbmcs = "10.0.9.[1-2]"\n'
        '[[node]]\nname = "bn2"\nbmc = "https://bmc-bn2:8443"\nserial = "S2"\n'
    )
    services.apply(services.load(site), NOW)
    site.write_text('[[nodes]]\nnames = "bn[1-2]"\n')
    services.apply(services.load(site), NOW)
    assert [of(TargetKind.NODE, name).expected.bmc for name in ("bn1", "bn2")] == [
        "10.0.9.1",
        "https://bmc-bn2:8443",
    ]
    assert of(TargetKind.NODE, "bn2").expected.serial == "S2"
