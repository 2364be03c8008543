"""`kintsugi inventory`: what each command tells, changes, refuses, and how it ends."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import paramiko
import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from detectors import registry
from detectors.detector import Command, Output, Target, TargetKind, Unreachable
from detectors.slurm.output import parse_nodes as slurm_nodes
from fixtures.cluster.ssh_server import SshServer
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedWorld
from incidents.inventory import services
from incidents.models import Cable, Gpu, InService, Nic, Node
from incidents.topology.discovery import Neighbour
from incidents.topology.topology import expand
from kintsugi.inventory import discover, from_slurm, host_keys, host_lists, sudoers
from kintsugi.inventory.host_keys import KeyState
from runbooks.people import root_rights
from tests.builders import NOW
from tests.services.ports import free_port
from tests.services.sshd import Sshd

SAKURAONE = Path(__file__).resolve().parents[3] / "fixtures" / "topology" / "sakuraone.toml"
SCONTROL = """NodeName=GN001 Arch=x86_64 CoresPerSocket=60
   Gres=gpu:h100:8(S:0-1)
   NodeAddr=10.0.1.1 NodeHostName=gn001 Version=22.05.9
   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,debug
   BootTime=2025-01-01T00:00:00 SlurmdStartTime=2025-01-01T00:00:00

NodeName=gn002 Arch=x86_64 CoresPerSocket=60
   Gres=gpu:h100:8(S:0-1)
   NodeAddr=gn002 NodeHostName=gn002 Version=22.05.9
   State=DOWN* ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,debug

NodeName=login1 Arch=x86_64 CoresPerSocket=60
   Gres=(null)
   NodeAddr=login1 NodeHostName=login1 Version=22.05.9
   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A

"""


def run(*words: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("inventory", *words, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


# From Slurm
# ---------------------------------------------------------------------------


@pytest.mark.django_db
def test_slurm_gives_names_partitions_gpus_and_only_addresses_that_say_something() -> None:
    services.apply(from_slurm.build_topology(slurm_nodes(SCONTROL)), NOW)
    rows = Node.objects.values_list("name", "partitions", "gpu_count", "address")
    assert list(rows) == [
        ("gn001", ["gpu", "debug"], 8, "10.0.1.1"),
        ("gn002", ["gpu", "debug"], 8, ""),
        ("login1", [], None, ""),
    ]
    again = services.apply(from_slurm.build_topology(slurm_nodes(SCONTROL)), NOW)
    assert again.is_empty


@pytest.mark.django_db
def test_slurm_leaves_what_a_file_said_of_a_node() -> None:
    services.apply(services.load(SAKURAONE), NOW)
    services.apply(from_slurm.build_topology(slurm_nodes(SCONTROL)), NOW)
    node = Node.objects.get(name="gn001")
    assert (node.address, node.pod, node.gpus.count(), node.partitions) == (
        "10.40.1.1",
        "pod-a",
        8,
        ["gpu", "debug"],
    )
    assert from_slurm.list_unknown_to_slurm(slurm_nodes(SCONTROL))[0] == "gn003"


def test_file_made_of_slurm_is_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(from_slurm.format_toml(slurm_nodes(SCONTROL), cluster_name="sakuraone"))
    site = services.load(path)
    assert site.site.cluster_name == "sakuraone"
    assert {node.name: (node.gpu_count, node.address) for node in site.nodes} == {
        "gn001": (8, "10.0.1.1"),
        "gn002": (8, ""),
        "login1": (None, ""),
    }


@pytest.mark.parametrize(
    "names",
    [
        ["gn001"],
        ["gn001", "gn002", "gn004", "mt"],
        ["n9", "n10", "n11"],
        ["a1b", "a2b"],
        ["r1n01", "r1n02"],
    ],
)
def test_folded_names_unfold_to_the_same(names: list[str]) -> None:
    assert sorted(expand(host_lists.fold(names))) == sorted(names)


@pytest.mark.django_db
def test_slurm_that_is_off_is_told() -> None:
    with pytest.raises(CommandError, match="KINTSUGI_SLURM is off"):
        run("from-slurm")


# Discovery
# ---------------------------------------------------------------------------


@pytest.fixture
def simulated(db: None) -> SimulatedWorld:
    services.apply(services.load(SAKURAONE), NOW)
    return SimulatedWorld.sakuraone()


def look(world: SimulatedWorld, names: list[str], switches: list[str]) -> discover.Discovered:
    nodes, chosen = (
        services.list_targets(TargetKind.NODE, names),
        services.list_targets(TargetKind.SWITCH, switches),
    )
    return discover.inspect_machines(
        nodes, chosen, simulated_transports(world), report=lambda line: None
    )


def test_machines_tell_serials_and_agree_with_the_cables_of_the_file(
    simulated: SimulatedWorld,
) -> None:
    found = look(simulated, ["gn001", "gn002"], ["leaf-01", "spine-01"])
    assert found.failed == []
    every = [services.list_targets(kind) for kind in (TargetKind.NODE, TargetKind.SWITCH)]
    topology, doubts = discover.build_topology(found, *every)
    assert doubts == ()
    difference = services.apply(topology, NOW)
    assert [
        line for line in difference.added + difference.changed if line.startswith("cable")
    ] == []
    gpu = Gpu.objects.get(node__name="gn001", index=0)
    assert gpu.uuid == simulated.node("gn001").gpu(0).uuid
    assert InService.objects.filter(part="gpu", owner="node/gn001").count() == 8
    assert Nic.objects.get(node__name="gn001", device="mlx5_0").role == "fabric"
    assert services.apply(topology, NOW).is_empty


def test_cable_that_was_moved_is_taken_as_the_machines_tell_it(simulated: SimulatedWorld) -> None:
    Cable.objects.filter(a="node/gn001/nic/mlx5_0").update(b="switch/leaf-01/port/Ethernet500")
    found = look(simulated, ["gn001"], [])
    every = [services.list_targets(kind) for kind in (TargetKind.NODE, TargetKind.SWITCH)]
    services.apply(discover.build_topology(found, *every)[0], NOW)
    cable = Cable.objects.get(a="node/gn001/nic/mlx5_0")
    assert cable.b == "switch/leaf-01/port/Ethernet0"


def test_ends_that_contradict_each_other_are_doubted() -> None:
    found = discover.Discovered(
        switches={
            "a": {"Ethernet0": Neighbour("b", ("Ethernet0",))},
            "b": {"Ethernet0": Neighbour("c", ("Ethernet0",))},
            "c": {},
        }
    )
    targets = [Target(name, "", kind=TargetKind.SWITCH) for name in ("a", "b", "c")]
    wired = discover.compute_wiring(found, [], targets)
    assert [(cable.a, cable.b) for cable in wired.cables] == [
        ("switch/a/port/Ethernet0", "switch/b/port/Ethernet0")
    ]
    assert "look at both ends" in wired.doubts[0]


def test_machine_that_does_not_answer_is_told_and_the_others_go_on(
    simulated: SimulatedWorld,
) -> None:
    simulated.node("gn001").boot_takes = timedelta(minutes=5)
    simulated.reboot("gn001")
    lines: list[str] = []
    nodes = services.list_targets(TargetKind.NODE, ["gn001", "gn002"])
    found = discover.inspect_machines(
        nodes, [], simulated_transports(simulated), report=lines.append
    )
    assert list(found.nodes) == ["gn002"]
    assert len(found.failed) == 1
    assert found.failed[0].startswith("gn001: ")
    assert sorted(line.split("]")[0] for line in lines) == ["[1/2", "[2/2"]


def test_command_asks_over_ssh_and_changes_nothing_in_a_dry_run(
    simulated: SimulatedWorld, settings: Settings, tmp_path: Path
) -> None:
    server = SshServer([simulated.node(name) for name in ("gn001", "gn002")])
    server.start()
    try:
        key, known_hosts = server.write_access(tmp_path)
        for name, endpoint in server.endpoints.items():
            Node.objects.filter(name=name).update(address=endpoint.address, ssh_port=endpoint.port)
        access = {"KINTSUGI_SSH_KEY": str(key), "KINTSUGI_SSH_KNOWN_HOSTS": str(known_hosts)}
        settings.KINTSUGI = {**settings.KINTSUGI, **access}
        told = run("discover", "--node", "gn[001-002]", "--dry-run")
        assert "would be changed: 16 GPUs" in told
        assert not Gpu.objects.exclude(serial="").exists()
        told = run("discover", "--node", "gn[001-002]")
        assert "changed: 16 GPUs" in told
        assert Gpu.objects.exclude(serial="").count() == 16
        assert "The inventory is as the machines say." in run("discover", "--node", "gn[001-002]")
    finally:
        server.stop()


@pytest.mark.django_db
def test_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(CommandError, match="No node gn777 in the inventory"):
        run("discover", "--node", "gn777")


# Check
# ---------------------------------------------------------------------------


def test_check_ends_well_on_the_model_site_and_with_each_finding_otherwise(
    simulated: SimulatedWorld,
) -> None:
    assert "Nothing is wrong with the inventory: 101 nodes, 27 switches." in run(
        "check", "--offline"
    )
    Gpu.objects.filter(node__name="gn007", index=3).delete()
    with pytest.raises(CommandError, match="1 finding"):
        run("check", "--offline")


def test_check_ends_with_what_is_not_known_when_machines_do_not_answer(
    simulated: SimulatedWorld, settings: Settings, tmp_path: Path
) -> None:
    server = SshServer([simulated.node("gn001")])
    server.start()
    try:
        key, known_hosts = server.write_access(tmp_path)
        endpoint = server.endpoints["gn001"]
        Node.objects.filter(name="gn001").update(address=endpoint.address, ssh_port=endpoint.port)
        Node.objects.filter(name="gn002").update(address="127.0.0.1", ssh_port=free_port())
        access = {"KINTSUGI_SSH_KEY": str(key), "KINTSUGI_SSH_KNOWN_HOSTS": str(known_hosts)}
        settings.KINTSUGI = {**settings.KINTSUGI, **access}
        with pytest.raises(
            CommandError, match=r"\b1 of 1 machines did not answer: nothing is known of them"
        ):
            run("check", "--node", "gn002")
        with pytest.raises(CommandError, match=r"\b1 of 2 machines did not answer"):
            run("check", "--node", "gn[001-002]")
        with pytest.raises(CommandError, match="nothing is known, and nothing was changed"):
            run("discover", "--node", "gn002")
    finally:
        server.stop()


# Where nothing listens. scontrol waits a minute for a file that is not there.
SLURM_CONF = """ClusterName=nowhere
SlurmctldHost=localhost
SlurmctldPort={port}
MessageTimeout=2
NodeName=gn001
PartitionName=gpu Nodes=gn001
"""


def test_check_ends_with_what_is_not_known_when_slurm_does_not_answer(
    simulated: SimulatedWorld, settings: Settings, tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(SLURM_CONF.format(port=free_port()))
    settings.KINTSUGI = {
        **settings.KINTSUGI,
        "KINTSUGI_SLURM": "local",
        "KINTSUGI_SLURM_CONF": str(conf),
    }
    with pytest.raises(CommandError, match="Slurm did not answer: nothing is known of its nodes"):
        run("check")


# sudoers
# ---------------------------------------------------------------------------


class Root:
    """A detector of two rounds, each with a command of root's; the second names what the first
    listed."""

    name, kind, every, keeps = "root", TargetKind.NODE, timedelta(minutes=1), frozenset[str]()

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Any, now: Any) -> Any:
        first = via.shell.run_all(
            target,
            self.name,
            [
                Command("list", ("ls", "/dev")),
                Command("clock", ("hwclock",), as_root=True),
                Command("odd", ("x=y", "a,b:c", "*.import", "Power Unit"), as_root=True),
            ],
        )
        disks = first["list"].stdout.decode().split()
        via.shell.run_all(
            target, self.name, [Command(d, ("smartctl", f"/dev/{d}"), as_root=True) for d in disks]
        )


class Disks:
    """A node that lists two disks, knows where smartctl lies, and would be told of anything of
    root's."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        assert argv[0] == "ls"
        return Output(0, b"/usr/local/sbin/smartctl\n", b"", timeout)

    def run_all(self, target: Target, name: str, commands: Any) -> dict[str, Output]:
        assert not any(command.as_root for command in commands)
        return {command.name: Output(0, b"nvme0 sda", b"", command.timeout) for command in commands}


class Dead(Disks):
    def run_all(self, target: Target, name: str, commands: Any) -> dict[str, Output]:
        raise Unreachable("nobody there")


TARGET = Target("gn001", "127.0.0.1")


def test_commands_of_both_rounds_stand_in_the_file_and_are_not_sent() -> None:
    asked = sudoers.find_detector_commands([Root()], [TARGET], Disks(), now=NOW)  # type: ignore[list-item]
    text = sudoers.format_sudoers(asked, "kintsugi")
    assert "kintsugi ALL=(root) NOPASSWD: /usr/local/sbin/smartctl /dev/nvme0" in text
    assert "kintsugi ALL=(root) NOPASSWD: /usr/local/sbin/smartctl /dev/sda" in text
    assert 'kintsugi ALL=(root) NOPASSWD: /usr/sbin/hwclock "", /usr/bin/hwclock ""' in text
    assert any(r"a\,b\:c \*.import Power\ Unit" in line for line in text)


def test_node_that_does_not_answer_still_tells_the_first_round() -> None:
    asked = sudoers.find_detector_commands([Root()], [TARGET], Dead(), now=NOW)  # type: ignore[list-item]
    assert asked.failed == ["gn001: nobody there"]
    assert ("hwclock",) in asked.commands


@pytest.mark.needs("visudo")
def test_visudo_accepts_the_lines_of_every_detector(
    simulated: SimulatedWorld, tmp_path: Path
) -> None:
    via, targets = (
        simulated_transports(simulated),
        services.list_targets(TargetKind.NODE, ["gn001", "mt001"]),
    )
    asked = sudoers.find_detector_commands(registry.DETECTORS, targets, via.shell, now=NOW)
    path = tmp_path / "kintsugi"
    path.write_text("\n".join(sudoers.format_sudoers(asked, "kintsugi")) + "\n")
    path.chmod(0o440)
    checked = subprocess.run(
        ["visudo", "-cf", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "lldpctl -f json" in path.read_text()


def test_acts_stand_in_a_file_apart_and_looks_allow_none_of_them(simulated: SimulatedWorld) -> None:
    via, targets = (
        simulated_transports(simulated),
        services.list_targets(TargetKind.NODE, ["gn001"]),
    )
    looks = "\n".join(
        sudoers.format_sudoers(
            sudoers.find_detector_commands(registry.DETECTORS, targets, via.shell, now=NOW),
            "kintsugi",
        )
    )
    acts = sudoers.format_sudoers(
        sudoers.find_act_commands(targets, None, ["site-exporter"]), "kintsugi", head=sudoers.ACTS
    )
    reset = r"/usr/sbin/nvidia-smi --gpu-reset -i 0000\:19\:00.0, /usr/bin/nvidia-smi --gpu-reset -i 0000\:19\:00.0"
    assert f"kintsugi ALL=(root) NOPASSWD: {reset}" in acts
    assert any("systemctl stop site-exporter" in line for line in acts)
    assert any("systemctl restart munge.service" in line for line in acts)
    assert any("systemctl start lustre.mount" in line for line in acts)
    assert "--gpu-reset" not in looks
    assert "systemctl" not in looks


@pytest.mark.needs("visudo")
def test_visudo_accepts_the_lines_of_acts(simulated: SimulatedWorld, tmp_path: Path) -> None:
    path = tmp_path / "kintsugi-acts"
    asked = sudoers.find_act_commands(
        services.list_targets(TargetKind.NODE, ["gn001"]), None, root_rights.list_units()
    )
    path.write_text("\n".join(sudoers.format_sudoers(asked, "kintsugi", head=sudoers.ACTS)) + "\n")
    path.chmod(0o440)
    checked = subprocess.run(
        ["visudo", "-cf", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


# Host keys
# ---------------------------------------------------------------------------


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    server = Sshd().start()
    yield server
    server.remove()


@pytest.mark.needs("sshd", "ssh-keygen")
def test_new_key_is_shown_pinned_when_accepted_and_then_known(sshd: Sshd, tmp_path: Path) -> None:
    target, known_hosts = Target("gn001", "127.0.0.1", sshd.port), tmp_path / "ssh" / "known_hosts"
    seen = host_keys.scan_host_keys([target], known_hosts)
    assert [each.state for each in seen] == [KeyState.NEW]
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.home / "host.pub")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen[0].fingerprint in shown.stdout
    assert host_keys.add_known_hosts(seen, known_hosts) == 1
    assert known_hosts.read_text() == sshd.known_hosts.read_text()
    assert host_keys.scan_host_keys([target], known_hosts)[0].state is KeyState.KNOWN


@pytest.mark.needs("sshd", "ssh-keygen")
def test_changed_key_is_refused_told_and_never_pinned(sshd: Sshd, tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 {_another_key()}\n# a remark\n")
    seen = host_keys.scan_host_keys([Target("gn001", "127.0.0.1", sshd.port)], known_hosts)
    assert seen[0].state is KeyState.CHANGED
    assert "pinned is ssh-ed25519 SHA256:" in seen[0].text
    before = known_hosts.read_text()
    assert host_keys.add_known_hosts(seen, known_hosts) == 0
    assert known_hosts.read_text() == before


def _another_key() -> str:
    blob = paramiko.Message()
    blob.add_string("ssh-ed25519")
    blob.add_string(bytes(range(32)))
    return paramiko.PKey.from_type_string("ssh-ed25519", blob.asbytes()).get_base64()


@pytest.mark.django_db
@pytest.mark.needs("sshd", "ssh-keygen")
def test_command_says_what_is_new_and_fails_when_a_key_has_changed(
    sshd: Sshd, settings: Settings, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known_hosts"
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SSH_KNOWN_HOSTS": str(known_hosts)}
    Node.objects.create(name="gn001", address="127.0.0.1", ssh_port=sshd.port)
    assert "1 are new" in run("host-keys")
    assert "Pinned 1 new keys" in run("host-keys", "--accept")
    assert "known    gn001" in run("host-keys")
    known_hosts.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 {_another_key()}\n")
    with pytest.raises(CommandError, match="1 changed and were refused"):
        run("host-keys", "--accept")


def test_machine_without_ssh_is_told() -> None:
    seen = host_keys.scan_host_keys(
        [Target("gn001", "127.0.0.1", 1)], Path("/nonexistent/known_hosts")
    )
    assert seen[0].state is KeyState.SILENT
    assert seen[0].text
