"""What is wrong with an inventory: each finding says what, where, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from incidents.inventory import check, services
from incidents.inventory.check import Heard, InventoryFinding
from incidents.models import Gpu, Nic, Node, Rack, Switch
from tests.builders import NOW, a_cable

SAKURAONE = Path(__file__).resolve().parents[3] / "fixtures" / "topology" / "sakuraone.toml"
pytestmark = pytest.mark.django_db


@pytest.fixture
def site(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        '[[nodes]]\nnames = "n[1-3]"\npod = "a"\npartitions = ["gpu"]\naddresses = "10.0.0.[1-3]"\n'
        'gpus = ["19:00.0", "3b:00.0"]\nnics = [{device = "mlx5_0", role = "fabric"}, "mlx5_1"]\n'
        '[[switches]]\nnames = "l1"\nrole = "leaf"\npod = "a"\nrail = 0\naddresses = "10.0.1.1"\n'
        '[[cables]]\nnodes = "n[1-3]"\nnics = ["mlx5_0"]\nswitches = "l1"\nports = {name = "Ethernet{}", step = 4}\n'
    )
    services.apply(services.load(path), NOW)


def one(**asked: object) -> InventoryFinding:
    found = check.list_findings(**asked)  # type: ignore[arg-type]
    assert len(found) == 1, [str(finding) for finding in found]
    assert found[0].todo
    return found[0]


def test_model_site_has_no_finding() -> None:
    services.apply(services.load(SAKURAONE), NOW)
    assert [str(finding) for finding in check.list_findings()] == []


@pytest.mark.usefixtures("site")
def test_whole_site_has_no_finding() -> None:
    assert check.list_findings(gpus_by_slurm={"n1": 2, "n2": 2, "n3": 2}, heard=[]) == []


@pytest.mark.usefixtures("site")
def test_one_address_of_two_machines_is_found() -> None:
    Node.objects.filter(name="n2").update(address="10.0.1.1")
    found = one()
    assert found.what == "10.0.1.1 is the address of node/n2 and switch/l1"


@pytest.mark.usefixtures("site")
def test_one_controller_of_two_nodes_is_found_unless_their_serials_tell_them_apart() -> None:
    Node.objects.filter(name__in=["n1", "n2"]).update(bmc_address="10.0.9.1")
    assert one().what == "10.0.9.1 is the management controller of n1 and n2"
    for name in ("n1", "n2"):
        Node.objects.filter(name=name).update(serial=f"S-{name}")
    assert check.list_findings() == []


@pytest.mark.usefixtures("site")
def test_one_name_of_two_machines_is_found() -> None:
    Switch.objects.create(name="n1", role="leaf", pod="a")
    assert one().where == "node/n1"


@pytest.mark.usefixtures("site")
def test_one_serial_in_two_places_is_found() -> None:
    Gpu.objects.filter(index=0).exclude(node__name="n3").update(serial="1650001")
    found = one()
    assert "GPU serial 1650001 stands in 2 places" in found.what
    assert found.where == "node/n1/gpu/0000:19:00.0"


@pytest.mark.usefixtures("site")
def test_missing_gpu_is_found_by_count_by_peers_and_by_slurm() -> None:
    Gpu.objects.filter(node__name="n2", index=1).delete()
    assert "1 GPUs are known, 2 of 3 compute nodes alike have 2" in one().what
    Node.objects.filter(name="n2").update(gpu_count=2)
    assert "the places of 1 GPUs are known, 2 are declared" in one().what
    found = check.list_findings(gpus_by_slurm={"n1": 2, "n2": 2, "n3": 2})
    assert any("GRES counts 2 GPUs, the inventory 1" in finding.what for finding in found)


@pytest.mark.usefixtures("site")
def test_node_that_one_side_alone_has_is_found() -> None:
    assert one(gpus_by_slurm={"n1": 2, "n2": 2}).where == "node/n3"
    assert one(gpus_by_slurm={"n1": 2, "n2": 2, "n3": 2, "n4": 2}).where == "node/n4"


@pytest.mark.usefixtures("site")
def test_cable_to_an_unknown_machine_or_port_is_found() -> None:
    a_cable("node/n1/nic/mlx5_9", "switch/l9/port/Ethernet0")
    found = {finding.where: finding.what for finding in check.list_findings()}
    assert "there is no such port" in found["node/n1/nic/mlx5_9"]
    assert "there is no such machine" in found["switch/l9/port/Ethernet0"]


@pytest.mark.usefixtures("site")
def test_nic_without_rail_and_rail_without_leaf_are_found() -> None:
    Nic.objects.filter(node__name="n1", device="mlx5_1").update(role="fabric")
    assert one().what == "a NIC of the fabric has neither cable nor rail"
    Nic.objects.filter(node__name="n1", device="mlx5_1").update(rail=7)
    assert (one().what, one().where) == ("rail 7 of a has no leaf", "pod/a")


@pytest.mark.usefixtures("site")
def test_rack_without_its_feed_or_switch_is_found() -> None:
    Rack.objects.create(name="r1", feeds=["feed-9"], management_switch="m9")
    assert sorted(finding.what for finding in check.list_findings()) == [
        "management switch m9 is not known",
        "power feed feed-9 is not known",
    ]


@pytest.mark.usefixtures("site")
def test_wrong_cable_is_told_once_though_both_ends_hear_it() -> None:
    own, far = "node/n1/nic/mlx5_0", "switch/l1/port/Ethernet8"
    found = one(heard=[Heard(own, far, "l1"), Heard(far, own, "n1")])
    assert found.where == own
    assert found.what == f"the cable goes to {far}, the inventory says switch/l1/port/Ethernet0"


@pytest.mark.usefixtures("site")
def test_neighbour_of_whom_the_machine_alone_is_known_agrees_with_its_cable() -> None:
    assert check.list_findings(heard=[Heard("switch/l1/port/Ethernet0", "node/n1", "n1")]) == []
    found = one(heard=[Heard("switch/l1/port/Ethernet0", "node/n2", "n2")])
    assert "goes to node/n2, the inventory says node/n1/nic/mlx5_0" in found.what


@pytest.mark.usefixtures("site")
def test_stranger_at_a_port_and_cable_that_nobody_declared_are_found() -> None:
    assert (
        "its neighbour x9 is not in the inventory"
        in one(heard=[Heard("switch/l1/port/Ethernet0", "", "x9")]).what
    )
    own, far = "node/n1/nic/mlx5_1", "switch/l1/port/Ethernet20"
    assert "the inventory has none" in one(heard=[Heard(own, far, "l1")]).what
