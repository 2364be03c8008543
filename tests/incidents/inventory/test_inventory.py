"""The inventory: its notation, its errors, and taking it into the database."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from incidents.inventory import services
from incidents.models import Alias, Cable, Gpu, Node, Port, Switch
from tests.builders import NOW
from tests.odd_values import ODD_VALUES, format_toml

SAKURAONE = Path(__file__).resolve().parents[3] / "fixtures" / "topology" / "sakuraone.toml"


def a_file(folder: Path, text: str, name: str = "site.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(services.InventoryError) as raised:
        services.load(a_file(folder, text))
    return str(raised.value).splitlines()


def test_model_site_has_what_its_study_counts() -> None:
    site = services.load(SAKURAONE)
    compute = [node for node in site.nodes if node.role == "compute"]
    assert len(compute) == 100
    assert sum(len(node.gpus) for node in compute) == 800
    roles = [switch.role for switch in site.switches]
    assert [roles.count(role) for role in ("leaf", "spine", "storage")] == [16, 8, 2]
    for node in compute:
        leafs = {site.find_peer(f"node/{node.name}/nic/{nic.device}") for nic in node.nics} - {None}
        assert len({end.split("/")[1] for end in leafs if end and "leaf" in end}) == 8
    for leaf in (f"switch/leaf-{number:02}" for number in range(1, 17)):
        assert {f"switch/spine-{number:02}" for number in range(1, 9)} <= site.get_neighbours(leaf)


def test_rail_is_a_cable_and_not_the_number_of_the_device() -> None:
    site = services.load(SAKURAONE)
    assert site.find_peer("node/gn001/nic/mlx5_4") == "switch/leaf-04/port/Ethernet0"
    assert site.find_peer("node/gn052/nic/mlx5_11") == "switch/leaf-16/port/Ethernet4"
    assert site.find_peer("node/gn001/nic/mlx5_3") is None


def test_every_mistake_is_told_in_one_go_with_its_line(tmp_path: Path) -> None:
    text = """
[[nodes]]
names = "gn[001-002]"
addresses = "10.0.0.[1-3]"
gpus = ["19:00.0", "elsewhere"]
colour = "blue"

[[nodes]]
names = "gn[005-003]"

[[switches]]
names = "leaf-01"
role = "leaves"

[[cables]]
a = "node/gn009/nic/mlx5_0"
b = "switch/leaf-09/port/Ethernet0"

[tables]
"""
    found = problems(tmp_path, text)
    for words in (
        "site.toml:2: [[nodes]]: unknown key colour",
        "site.toml:2: [[nodes]]: addresses has 3 entries for 2 names",
        "gpus: 'elsewhere' is no GPU",
        "site.toml:8: [[nodes]]: names: gn[005-003]: the range 005-003 runs backwards",
        "site.toml:11: [[switches]]: role 'leaves' is none of leaf, spine, storage, management",
        "no node gn009",
        "no switch leaf-09",
        "unknown table tables",
    ):
        assert any(words in line for line in found), (words, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not toml", "cannot be read"),
        ('[[nodes]]\nnames = "gn001"\n[[nodes]]\nnames = "gn001"', "stands in an earlier row"),
        (
            '[[nodes]]\nnames = "n1"\n[[switches]]\nnames = "n1"\nrole = "leaf"',
            "is a node and a switch",
        ),
        ('[[nodes]]\nnames = "n[1-2]"\naddresses = "10.0.0.1,10.0.0.1"', "belongs to n1 too"),
        ('[[nodes]]\nnames = "GN001"', "no short host name"),
        ('[[nodes]]\nnames = "n[1-99999999]"', "more than 65536"),
        ('[[nodes]]\npod = "a"', "missing names"),
        ('[site]\ntime_zone = "Mars/Olympus"', "IANA time zone"),
        ('[[aliases]]\nname = "x"\nresource = "gn001"', "no resource path"),
        ('nodes = "gn001"', "written as rows"),
    ],
)
def test_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in line for line in problems(tmp_path, text))


@pytest.mark.django_db
def test_import_fills_the_tables_and_a_second_one_changes_nothing() -> None:
    site = services.load(SAKURAONE)
    first = services.apply(site, NOW)
    assert (Node.objects.count(), Gpu.objects.count(), Switch.objects.count()) == (101, 800, 27)
    assert Cable.objects.count() == 100 * 10 + 16 * 8 * 4
    assert Port.objects.filter(switch__name="leaf-01").count() == 50 + 32
    assert Alias.objects.get(name="node/gn007/nic/0000:18:00.0").resource == "node/gn007/nic/mlx5_0"
    assert first.gone == []
    again = services.apply(site, NOW)
    assert (again.added, again.changed, again.gone) == ([], [], [])


@pytest.mark.django_db
def test_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    path = a_file(tmp_path, '[[nodes]]\nnames = "gn001"')
    told = services.apply(services.load(path), NOW, is_dry_run=True)
    assert told.added == ["node gn001"]
    assert not Node.objects.exists()


@pytest.mark.django_db
def test_what_left_the_file_is_told_and_kept(tmp_path: Path) -> None:
    services.apply(services.load(a_file(tmp_path, '[[nodes]]\nnames = "gn[001-002]"')), NOW)
    told = services.apply(
        services.load(a_file(tmp_path, '[[nodes]]\nnames = "gn001"\npod = "b"')), NOW
    )
    assert told.gone == ["node gn002"]
    assert told.changed == ["node gn001: pod '' -> 'b'"]
    assert Node.objects.count() == 2


@pytest.mark.django_db
def test_row_of_one_node_changes_what_it_gives_and_nothing_else(tmp_path: Path) -> None:
    services.apply(services.load(SAKURAONE), NOW)
    row = '[[node]]\nname = "gn001"\naddress = "127.0.2.1"\nssh_port = 2201\n'
    row += 'gpus = [{index = 0, pci = "19:00.0", uuid = "GPU-1"}]'
    told = services.apply(services.load(a_file(tmp_path, row)), NOW)
    node = Node.objects.get(name="gn001")
    assert (node.address, node.ssh_port, node.pod) == ("127.0.2.1", 2201, "pod-a")
    assert node.gpus.get(index=0).uuid == "GPU-1"
    assert [line for line in told.gone if not line.startswith("node gn001 GPU")] == []


@pytest.mark.django_db
def test_provisional_node_becomes_a_known_one(tmp_path: Path) -> None:
    Node.objects.create(name="gn001", is_provisional=True)
    services.apply(services.load(a_file(tmp_path, '[[nodes]]\nnames = "gn001"')), NOW)
    node = Node.objects.get()
    assert (node.is_provisional, node.in_service_since) == (False, NOW)


@pytest.mark.django_db
def test_moved_cable_replaces_the_old_one(tmp_path: Path) -> None:
    text = '[[nodes]]\nnames = "n1"\n[[switches]]\nnames = "s[1-2]"\nrole = "leaf"\n[[cables]]\na = "node/n1/nic/mlx5_0"\n'
    for switch in ("s1", "s2"):
        services.apply(
            services.load(a_file(tmp_path, f'{text}b = "switch/{switch}/port/Ethernet0"')), NOW
        )
    assert [cable.b for cable in Cable.objects.all()] == ["switch/s2/port/Ethernet0"]


@pytest.mark.django_db
def test_target_is_where_the_node_answers_and_what_should_be_in_it() -> None:
    services.apply(services.load(SAKURAONE), NOW)
    target = services.get_target("gn042")
    assert target is not None
    assert (target.address, target.port) == ("10.40.1.42", 22)
    assert target.expected.gpus[0] == ("0", "0000:19:00.0")
    Node.objects.create(name="stranger", is_provisional=True)
    assert services.get_target("stranger") is None
    assert services.list_pollable()[0] == "gn001"
    assert "stranger" not in services.list_pollable()


@pytest.mark.django_db
def test_command_refuses_a_bad_file_and_imports_nothing(tmp_path: Path) -> None:
    path = a_file(tmp_path, '[[nodes]]\nnames = "gn001"\nracks = "r[1-2]"')
    with pytest.raises(CommandError, match="Nothing was imported"):
        call_command("inventory", "import", str(path))
    assert not Node.objects.exists()


@pytest.mark.django_db
def test_address_and_count_that_a_file_leaves_out_stay_as_they_are_known(tmp_path: Path) -> None:
    row = '[[node]]\nname = "gn001"\naddress = "127.0.2.1"\nssh_port = 2201\ngpu_count = 8\n'
    services.apply(services.load(a_file(tmp_path, row)), NOW)
    services.apply(
        services.load(a_file(tmp_path, '[[nodes]]\nnames = "gn[001-002]"\npod = "a"')), NOW
    )
    node = Node.objects.get(name="gn001")
    assert (node.address, node.ssh_port, node.gpu_count, node.pod) == ("127.0.2.1", 2201, 8, "a")


ONE_LEAF = '[[switches]]\nnames = "s1"\nrole = "leaf"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[[nodes]]\nnames = "n1"\nnics = [{device = "e0", role = "fabrik"}]',
            "role 'fabrik' is none of fabric",
        ),
        ('[[nodes]]\nnames = "n1"\nnics = ["e0", "e0"]', "one device stands twice"),
        (
            '[[nodes]]\nnames = "n[1-2]"\nnics = [{device = "e0", addresses = "10.0.0.1"}]',
            "1 entries for 2 names",
        ),
        ('[[nodes]]\nnames = "n1"\nnvswitches = ["x"]', "'x' is no NVSwitch"),
        (
            '[[modules]]\nswitches = "s1"\nnames = {name = "{}"}\nports = {name = "E{}"}',
            "no switch s1",
        ),
        (
            ONE_LEAF
            + '[[modules]]\nswitches = "s1"\nnames = {name = "{}"}\nports = {name = "E{}"}\nports_each = 3',
            "8 lanes are not shared evenly by 3 ports",
        ),
        ('[[racks]]\nnames = "r1"\nfeeds = ["f1"]', "r1: no feed f1 in [[feeds]]"),
        ('[[storage]]\nmount = "/lustre"\nswitches = "s9"', "/lustre: no switch s9"),
        ('[[expect]]\nkind = "rack"', "kind 'rack' is none of node, switch, site"),
        ('[[expect]]\nkind = "node"\n[[expect]]\nkind = "node"', "stands in an earlier row too"),
        (
            '[[nodes]]\nnames = "n[1-2]"\ngpus = [{index = 0, pci = "19:00.0", serial = "1"}]',
            "the GPU serial 1 belongs to",
        ),
        ('[[nodes]]\nnames = "n1"\ngpus = 8', "gpus is a list, each with its PCI address"),
        ('[[nodes]]\nnames = "n1"\nnvswitches = 4', "nvswitches is a list"),
        ('[[nodes]]\nnames = "n1"\nnics = "mlx5_0"', "nics is a list, each with its device name"),
        ('[[nodes]]\nnames = "n1"\nssh_port = 70000', "ssh_port 70000 is no port: 1 to 65535"),
        ('[[switches]]\nnames = "s1"\nrole = "leaf"\nrail = "0"', "rail '0' is no whole number"),
        (
            ONE_LEAF + '[[ports]]\nswitches = "s1"\nnames = {name = "E{}"}\ncount = 1000000000',
            "count 1000000000 is more than 65536",
        ),
        (
            ONE_LEAF + '[[ports]]\nswitches = "s1"\nnames = {name = "E{}", begin = 1}',
            "names: unknown key begin",
        ),
    ],
)
def test_mistake_in_parts_and_places_is_named(tmp_path: Path, text: str, words: str) -> None:
    found = problems(tmp_path, text)
    assert any(words in line for line in found), found
    assert all(":" in line and "site.toml" in line for line in found)


KEYS_BY_TABLE = {
    "nodes": "names racks addresses bmcs ssh_port role pod partitions gpu_count gpus nvswitches nics",
    "node": "name address role pod rack serial ssh_port partitions gpu_count gpus nvswitches nics bmc",
    "switches": "names role rail rails addresses serials snmp_engine_ids racks pod ssh_port snmp_port",
    "modules": "switches count ports_each names ports kind lanes",
    "ports": "switches name names count speed_gbps mtu fec is_autonegotiated is_admin_up",
    "cables": "a b nodes nics switches ports lower upper links lower_ports upper_ports speed_gbps",
    "racks": "names pod feeds management_switches",
    "feeds": "names source",
    "storage": "mount source servers switches nics roles",
    "expect": "kind roles settings urls mounts services",
    "aliases": "name resource",
}


@given(data=st.data())
def test_any_value_in_any_row_is_read_or_named_with_its_file(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(sorted(KEYS_BY_TABLE)))
    names = ONE_LEAF + '[[nodes]]\nnames = "n1"\n'
    keys = data.draw(st.lists(st.sampled_from(KEYS_BY_TABLE[table].split()), unique=True))
    row = [f"{key} = {format_toml(data.draw(ODD_VALUES))}" for key in keys]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.toml"
        path.write_text("\n".join([names, f"[[{table}]]", *row]))
        reasons = list_reasons(path)
    assert all("site.toml" in line for line in reasons)


def test_ports_may_count_downwards(tmp_path: Path) -> None:
    text = (
        ONE_LEAF
        + '[[ports]]\nswitches = "s1"\nnames = {name = "E{}", first = 8, step = -4}\ncount = 3'
    )
    site = services.load(a_file(tmp_path, text))
    assert [port.name for port in site.ports] == ["E8", "E4", "E0"]


def list_reasons(path: Path) -> list[str]:
    """Why the file is refused, or nothing."""
    try:
        services.load(path)
    except services.InventoryError as error:
        return str(error).splitlines()
    return []


@pytest.mark.django_db
def test_value_that_its_column_does_not_hold_is_named_and_nothing_is_imported(
    tmp_path: Path,
) -> None:
    text = f'[[nodes]]\nnames = "gn[001-002]"\nrole = "{"r" * 40}"\n'
    with pytest.raises(CommandError) as refused:
        call_command("inventory", "import", str(a_file(tmp_path, text)), "--dry-run")
    assert str(refused.value).splitlines() == [
        "Nothing was imported.",
        f"node gn002: role '{'r' * 40}': Ensure this value has at most 32 characters (it has 40).",
    ]
    assert not Node.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("is_dry_run", [True, False])
def test_import_that_changes_nothing_writes_nothing_and_keeps_no_fault_waiting(
    is_dry_run: bool,
) -> None:
    site = services.load(SAKURAONE)
    services.apply(site, NOW)
    with CaptureQueriesContext(connection) as sent:
        assert services.apply(site, NOW, is_dry_run=is_dry_run).is_empty
    assert {query["sql"].split()[0] for query in sent.captured_queries} == {"SELECT"}
    assert not [query for query in sent.captured_queries if "lock" in query["sql"]]


@pytest.mark.django_db
def test_dry_run_of_a_new_site_only_reads() -> None:
    with CaptureQueriesContext(connection) as sent:
        assert services.apply(services.load(SAKURAONE), NOW, is_dry_run=True).added
    assert {query["sql"].split()[0] for query in sent.captured_queries} == {"SELECT"}
    assert not [query for query in sent.captured_queries if "lock" in query["sql"]]


@pytest.mark.django_db
def test_import_of_a_change_reads_again_what_it_compares_once_nobody_else_writes(
    tmp_path: Path,
) -> None:
    """Another process has stored one of the machines since the comparison."""
    topology = services.load(a_file(tmp_path, '[[nodes]]\nnames = "gn[001-002]"\npod = "a"'))
    stored: list[str] = []

    def store_one_meanwhile(execute: Any, sql: str, *others: Any) -> Any:
        if sql.startswith("SAVEPOINT") and not stored:
            stored.append("gn002")
            Node.objects.create(name="gn002", is_provisional=True)
        return execute(sql, *others)

    with connection.execute_wrapper(store_one_meanwhile):
        services.apply(topology, NOW)
    assert [(node.name, node.pod) for node in Node.objects.order_by("name")] == [
        ("gn001", "a"),
        ("gn002", "a"),
    ]


def test_one_wrong_row_is_one_mistake_and_not_one_for_each_cable(tmp_path: Path) -> None:
    text = SAKURAONE.read_text().replace(
        'role = "compute"\npod = "pod-a"', 'roll = "compute"\npod = "pod-a"'
    )
    assert [line.partition(": ")[2] for line in problems(tmp_path, text)] == [
        "[[nodes]]: unknown key roll"
    ]
    without = SAKURAONE.read_text().replace(
        'names = "sto-[01-02]"\nrole', 'names = "sta-[01-02]"\nrole'
    )
    assert len(problems(tmp_path, without)) < 12
