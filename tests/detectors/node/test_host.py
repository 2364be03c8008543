"""A node's system and storage: what is due, what is read, and that no shared file system is ever
asked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import OneByOne, Output, Reading, Target, Transports
from detectors.evaluation import judge
from detectors.evaluation.classify import classify
from detectors.expected import Expected
from detectors.node.disks import DisksDetector
from detectors.node.host import HostDetector
from detectors.node.outputs import host_storage, host_system
from detectors.transports import bundle
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.services.patience import deadline_in

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
HOST, DISKS = HostDetector(), DisksDetector()
_NAMES = sorted(
    {c.name for c in [*host_system.build_commands(()), *host_storage.build_commands()]}
    | {"smart", "lustre"}
)


def reading(expected: Expected | None = None, **texts: str) -> Reading:
    outputs = {name: Output(0, text.encode(), b"", timedelta(0)) for name, text in texts.items()}
    return Reading(
        "host", Target("gn001", "127.0.0.1", expected=expected or Expected()), NOW, outputs
    )


def values(taken: Reading, metric: str) -> dict[str, Any]:
    """By qualifier, else by the last part of the resource."""
    found = [seen for seen in HOST.parse(taken) if seen.metric == metric]
    return {
        seen.attributes.get("qualifier") or seen.resource.rpartition("/")[2]: seen.value
        for seen in found
    }


class Asked(OneByOne):
    """Answers nothing and remembers what was asked."""

    def __init__(self) -> None:
        self.argvs: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.argvs.append(argv)
        return Output(1, b"", b"", timedelta(0))


def test_no_command_touches_a_shared_file_system() -> None:
    asked = Asked()
    expected = Expected(mounts=("/lustre", "/home"), services=("slurmd",))
    HOST.collect(Target("gn001", "127.0.0.1", expected=expected), Transports(shell=asked), NOW)
    words = [word for argv in asked.argvs for word in argv]
    assert not {"/lustre", "/home", "stat", "ls", "findmnt"} & set(words)
    (df,) = (argv for argv in asked.argvs if argv[0] == "df")
    assert "-l" in df
    assert not [word for word in df[2:] if word.startswith("/")], (
        "df of no path: it may be on Lustre"
    )
    assert {df[at + 1] for at, word in enumerate(df) if word == "-t"} == set(
        host_storage.LOCAL_TYPES
    )
    assert not {"lustre", "nfs", "nfs4", "fuse", "autofs", "beegfs"} & set(host_storage.LOCAL_TYPES)


def test_one_round_is_one_script_of_a_few_commands() -> None:
    commands = [*host_system.build_commands(()), *host_storage.build_commands()]
    assert len({command.name for command in commands}) == len(commands)
    assert len(bundle.build_script(commands, "ab12", is_root=False)) < 4000
    assert [command.name for command in commands if command.as_root] == []


@pytest.mark.parametrize(("kind", "asked"), [("lustre", ["lctl"]), ("nfs4", [])])
def test_lctl_is_asked_as_root_only_where_lustre_is_mounted(kind: str, asked: list[str]) -> None:
    """A site without Lustre, and without sudo, is not told that it must have either."""
    mounted = Output(0, f"srv:/fs /home {kind} rw 0 0\n".encode(), b"", timedelta(0))
    found = host_storage.build_lustre_commands(mounted)
    assert [command.argv[0] for command in found if command.as_root] == asked


def unit(
    name: str,
    active: str = "active",
    file: str = "enabled",
    load: str = "loaded",
    sub: str = "running",
) -> str:
    return f"Id={name}.service\nLoadState={load}\nActiveState={active}\nSubState={sub}\nUnitFileState={file}\n"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (unit("slurmd"), {"slurmd": True}),
        (unit("slurmd", "failed", sub="failed"), {"slurmd": False}),
        (unit("slurmd", "activating", sub="auto-restart"), {"slurmd": False}),
        (unit("slurmd", "activating", sub="start"), {"slurmd": True}),
        (unit("munge", "inactive", "disabled"), {}),
        (unit("nvidia-fabricmanager", "inactive", "", "not-found"), {}),
        (
            unit("slurmd") + "\n" + unit("munge", "inactive", sub="dead"),
            {"slurmd": True, "munge": False},
        ),
    ],
)
def test_a_unit_is_due_when_it_is_enabled(shown: str, expected: dict[str, bool]) -> None:
    assert values(reading(services=shown), "service.active") == expected


@pytest.mark.parametrize("name", ["slurmd", "slurmd.service"])
def test_a_unit_that_the_inventory_names_is_due_even_when_it_is_not_installed(name: str) -> None:
    shown = unit("slurmd", "inactive", "", "not-found")
    assert values(reading(Expected(services=(name,)), services=shown), "service.active") == {
        "slurmd": False
    }


def test_services_of_the_inventory_are_asked_in_place_of_the_usual_ones() -> None:
    (asked,) = (c for c in host_system.build_commands(("ddn-agent",)) if c.name == "services")
    assert asked.argv[-1] == "ddn-agent"


@pytest.mark.parametrize("difference", [-400.0, 0.0, 3.5, 1e6])
def test_the_clock_is_compared_with_ours_either_way(difference: float) -> None:
    shown = f"{NOW.timestamp() + difference:.9f}\n"
    assert values(reading(date=shown), "clock.difference_s") == {
        "kintsugi": pytest.approx(abs(difference), abs=1e-3)
    }


def test_an_offset_counts_for_a_synchronised_clock_alone() -> None:
    text = "System time     : 9.000000000 seconds fast of NTP time\nLeap status     : Not synchronised\n"
    assert values(reading(chrony=text), "clock.offset_s") == {}
    assert values(reading(chrony=text), "clock.synchronised") == {"gn001": False}
    text = "associd=0 status=0615 leap_none, sync_ntp, 1 event,\noffset=-73.500, stratum=3\n"
    assert values(reading(ntpq=text), "clock.offset_s") == {"ntp": pytest.approx(0.0735)}


def test_a_daemon_that_is_not_there_says_nothing_of_the_clock() -> None:
    taken = Reading(
        "host",
        Target("gn001", ""),
        NOW,
        {"chrony": Output(1, b"506 Cannot talk to daemon\n", b"", timedelta(0))},
    )
    assert [o for o in HOST.parse(taken) if o.metric.startswith("clock")] == []


MOUNTS = (
    "/dev/sda2 / ext4 {root},relatime 0 0\n/dev/sda1 /boot/efi vfat ro 0 0\n/dev/loop0 /snap squashfs ro 0 0\n"
    "10.0.0.1@o2ib:/fs /home\\040dirs lustre ro,flock 0 0\n"
)
FSTAB = "# a comment\nUUID=1 / ext4 defaults 0 1\nUUID=2 /boot/efi vfat ro,umask=077 0 0\n"


@pytest.mark.parametrize(("root", "is_writable"), [("rw", True), ("ro", False)])
def test_a_file_system_meant_to_be_written_that_is_read_only_is_a_fault(
    root: str, is_writable: bool
) -> None:
    taken = reading(mounts=MOUNTS.format(root=root), fstab=FSTAB)
    assert values(taken, "filesystem.writable") == {"sda2": is_writable}


def test_what_fstab_does_not_name_is_not_judged() -> None:
    assert values(reading(mounts=MOUNTS.format(root="ro")), "filesystem.writable") == {}


def test_a_mount_is_looked_up_in_the_table_with_its_blanks() -> None:
    taken = reading(Expected(mounts=("/home dirs/", "/scratch")), mounts=MOUNTS.format(root="rw"))
    assert values(taken, "mount.present") == {"/home dirs": True, "/scratch": False}


def test_without_a_mount_table_no_mount_is_missing() -> None:
    assert values(reading(Expected(mounts=("/home",)), mounts=""), "mount.present") == {}


def test_room_is_read_of_disks_and_of_the_tmpfs_that_a_node_needs() -> None:
    rows = [
        "Filesystem Type Use% IUse% Mounted on",
        "/dev/sda2 ext4 96% 3% /",
        "tmpfs tmpfs 99% 1% /dev/shm",
    ]
    rows += ["tmpfs tmpfs 40% 1% /tmp", "/dev/sda1 vfat 2% - /boot/efi"]
    taken = reading(df="\n".join(rows) + "\n")
    assert {
        o.resource.rpartition("/storage/")[2]
        for o in HOST.parse(taken)
        if o.metric == "filesystem.used_percent"
    } == {
        "sda2",
        "tmpfs:/tmp",
        "sda1",
    }


@pytest.mark.parametrize(
    ("body", "is_redundant"),
    [
        ("active raid1 sdb1[1] sda1[0]\n      1000 blocks [2/2] [UU]", True),
        ("active raid1 sda1[0]\n      1000 blocks [2/1] [U_]", False),
        ("active raid1 sdb1[2](F) sda1[0]\n      1000 blocks [2/1] [U_]", False),
        (
            "active raid5 sdc1[3] sdb1[1] sda1[0]\n      1000 blocks [4/3] [UU_U]\n      [=>...]  recovery = 5.0%",
            False,
        ),
        ("active raid0 sdb1[1] sda1[0]\n      1000 blocks super 1.2 512k chunks", None),
    ],
)
def test_a_mirror_is_whole_when_all_members_are_in_it(body: str, is_redundant: bool | None) -> None:
    taken = reading(mdstat=f"Personalities : [raid1]\nmd0 : {body}\n\nunused devices: <none>\n")
    assert values(taken, "raid.redundant") == (
        {} if is_redundant is None else {"md0": is_redundant}
    )


def test_an_array_that_never_ran_here_is_no_fault_and_one_that_did_is() -> None:
    def look(state: str) -> Reading:
        return reading(mdstat=f"Personalities : [raid1]\nmd9 : {state} raid1 sda1[0]\n\n")

    never, memory = list(HOST.parse(look("inactive"))), judge.Memory()
    assert list(HOST.compare(never, memory.samples)) == []
    ran = list(HOST.parse(look("active")))
    memory = judge.judge_round(HOST, ran, memory, active=(), catalog=catalog.load()).memory
    raised = judge.judge_round(HOST, never, memory, active=(), catalog=catalog.load()).events
    assert [(e.fault_type, e.resource) for e in raised] == [
        ("storage.raid.failed", "node/gn001/storage/md9")
    ]


@pytest.mark.parametrize(
    ("state", "is_connected", "is_evicted"),
    [
        ("FULL", True, False),
        ("IDLE", True, False),
        ("DISCONN", False, False),
        ("CONNECTING", False, False),
        ("EVICTED", True, True),
    ],
)
def test_an_import_of_lustre_is_well_when_full_or_at_rest(
    state: str, is_connected: bool, is_evicted: bool
) -> None:
    taken = reading(
        lustre=f"import:\n    name: l-OST0001-osc-ff\n    target: l-OST0001_UUID\n    state: {state}\n"
    )
    assert values(taken, "lustre.connected") == {"l-OST0001": is_connected}
    assert values(taken, "lustre.evicted") == {"l-OST0001": is_evicted}


def test_errors_of_all_memory_controllers_are_one_counter_and_the_text_names_the_module() -> None:
    root = "/sys/devices/system/edac/mc"
    files = {
        "mc0/ce_count": 2,
        "mc1/ce_count": 5,
        "mc1/dimm3/dimm_ce_count": 5,
        "mc1/dimm3/dimm_label": "P2_DIMMC1",
    }
    text = "".join(f"{root}/{path}\0{value}\n" for path, value in files.items())
    (seen,) = (o for o in HOST.parse(reading(edac=text)) if o.metric == "memory.corrected")
    assert seen.value == 7
    assert "P2_DIMMC1 has had 5" in seen.attributes["text"]


def smart(log: Mapping[str, Any]) -> dict[str, Any]:
    taken = reading(smart=json.dumps(log))
    return {o.metric: o.value for o in HOST.parse(taken) if o.metric.startswith("disk.")}


def test_the_names_of_nvme_cli_and_smartctl_are_one_fact() -> None:
    old = {
        "critical_warning": 0,
        "avail_spare": 90,
        "spare_thresh": 10,
        "percent_used": 3,
        "media_errors": 1,
    }
    new = {
        "critical_warning": 0,
        "available_spare": 90,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "media_errors": 1,
    }
    assert smart(old) == smart({"nvme_smart_health_information_log": new}) != {}


def test_the_disks_own_threshold_goes_before_the_catalogues() -> None:
    def raised(spare: int, own: int) -> bool:
        taken = reading(smart=json.dumps({"avail_spare": spare, "spare_thresh": own}))
        found = [
            event for seen in HOST.parse(taken) for event in classify(seen, (), catalog.load())
        ]
        return any(event.fault_type == "storage.disk.failing" for event in found)

    assert raised(40, 50)
    assert not raised(8, 5)


class DiskShell(OneByOne):
    """A node with these files and programs."""

    def __init__(
        self, files: Mapping[str, str], programs: Mapping[str, bytes], *volumes: str
    ) -> None:
        self.files, self.programs = files, programs
        self.volumes = [
            {"name": "sda", "type": "disk", "vendor": "DELL", "model": model} for model in volumes
        ]
        self.asked: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.asked.append(argv)
        if argv[0] == "find":
            text = "".join(
                f"{path}\0{value}\n"
                for path, value in self.files.items()
                if path.startswith(argv[2])
            )
            return Output(0, text.encode(), b"", timedelta(0))
        if argv[0] == "lsblk":
            return Output(0, json.dumps({"blockdevices": self.volumes}).encode(), b"", timedelta(0))
        given = self.programs.get(argv[0])
        return (
            Output(127, b"", b"", timedelta(0))
            if given is None
            else Output(0, given, b"", timedelta(0))
        )


def test_smartctl_is_asked_where_nvme_cli_is_missing() -> None:
    log = json.dumps({"nvme_smart_health_information_log": {"critical_warning": 1}}).encode()
    shell = DiskShell({"/sys/class/nvme/nvme0/state": "live"}, {"smartctl": log})
    taken = DISKS.collect(Target("gn001", ""), Transports(shell=shell), NOW)
    assert [(o.resource, o.value) for o in DISKS.parse(taken) if o.metric == "disk.passed"] == [
        ("node/gn001/storage/nvme0", False)
    ]
    assert [argv[0] for argv in shell.asked] == ["find", "lsblk", "nvme", "smartctl"]


def test_a_node_without_disks_of_its_own_is_well() -> None:
    taken = DISKS.collect(Target("gn001", ""), Transports(shell=DiskShell({}, {})), NOW)
    assert [(o.metric, o.value) for o in DISKS.parse(taken)] == [("detector.answered", True)]


def test_disks_that_nobody_can_be_asked_about_are_not_well() -> None:
    taken = DISKS.collect(
        Target("gn001", ""),
        Transports(shell=DiskShell({"/sys/class/nvme/nvme0/state": "live"}, {})),
        NOW,
    )
    assert [o.value for o in DISKS.parse(taken) if o.metric == "detector.answered"] == [False]


def test_a_volume_of_a_raid_controller_is_not_asked() -> None:
    shell = DiskShell({}, {"smartctl": b"{}"}, "PERC H755 Front")
    DISKS.collect(Target("gn001", ""), Transports(shell=shell), NOW)
    assert [argv[0] for argv in shell.asked] == ["find", "lsblk"]


def test_a_restart_gives_a_new_boot_and_heals_what_it_can() -> None:
    at = NOW
    world = SimulatedWorld.sakuraone(clock=lambda: at)
    world.node("gn001").facet(HostFacet).down.add("slurmd")

    def look() -> dict[str, Any]:
        taken = HOST.collect(Target("gn001", ""), Transports(shell=SimulatedShell(world)), at)
        found = {o.metric: o.value for o in HOST.parse(taken)}
        return {
            **found,
            "is_well": all(o.value for o in HOST.parse(taken) if o.metric == "service.active"),
        }

    before = look()
    world.reboot("gn001", now=at)
    at += timedelta(seconds=90)
    after = look()
    assert before["node.boot_id"] != after["node.boot_id"]
    assert (before["is_well"], after["is_well"]) == (False, True)
    assert after["node.uptime_s"] == pytest.approx(90)


@pytest.mark.parametrize(
    "repeated",
    [" ", "\n", "a ", "/ ", "md0 : active ", "import:\n", "\n x: ", "{", "1 | ", "Id=a\n"],
)
def test_reading_takes_linear_time(repeated: str) -> None:
    """A backtracking pattern would take minutes over this."""
    text = repeated * 60_000
    deadline = deadline_in(30)
    list(HOST.parse(reading(Expected(mounts=("/a",)), **dict.fromkeys(_NAMES, text))))
    HOST.sniff(text.encode())
    assert time.monotonic() < deadline


@given(st.sampled_from(_NAMES), st.binary(max_size=300))
def test_every_reader_is_total(name: str, text: bytes) -> None:
    taken = Reading("host", Target("gn001", ""), NOW, {name: Output(0, text, b"", timedelta(0))})
    assert sum(o.metric == "detector.answered" for o in HOST.parse(taken)) == 1
    HOST.sniff(text)


def test_a_sniffed_file_is_the_output_that_it_is() -> None:
    texts = {
        "chrony": "Leap status     : Normal\n",
        "services": unit("slurmd"),
        "mdstat": "Personalities : [raid1]\n",
        "lustre": "import:\n    target: a_UUID\n    state: FULL\n",
        "smart": '{"critical_warning": 0}',
        "df": "Filesystem Type Use% IUse% Mounted on\n/dev/sda2 ext4 96% 3% /\n",
        "mounts": MOUNTS.format(root="rw"),
        "sel": "   1 | 01/15/2025 | 02:01:00 UTC | Fan FAN1 | Lower Critical going low | Asserted\n",
        "sensors": "FAN2             | 42h | lcr | 29.2 | 300 RPM\n",
        "redfish": '{"@odata.id": "/redfish/v1"}',
    }
    assert {name: HOST.sniff(text.encode()) for name, text in texts.items()} == {
        name: name for name in texts
    }


def faults(taken: Reading) -> set[tuple[str, str]]:
    found = [event for seen in HOST.parse(taken) for event in classify(seen, (), catalog.load())]
    return {
        (e.fault_type, e.resource.removeprefix("node/gn001"))
        for e in found
        if e.fault_type != "detector.silent"
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, set()),
        ({"operstate": "DOWN"}, {("nic.link.down", "/nic/bond-a")}),
        ({"mtu": 1500}, {("config.nic.mtu", "/nic/bond-a")}),
        ({"ifname": "other"}, {("nic.missing", "/nic/bond-a")}),
    ],
)
def test_a_snapshot_of_interfaces_is_held_against_its_own_configuration(
    change: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    status = [
        {"ifname": "bond-a", "operstate": "UP", "mtu": 9000, **change},
        {"ifname": "spare", "operstate": "DOWN"},
    ]
    document = {
        "intf_status": status,
        "intf_ifcfg": {"bond-a": {"MTU": "9000"}},
        "phys_macaddr": None,
    }
    assert faults(reading(snapshot=json.dumps(document))) == expected


def test_a_snapshot_of_sysfs_shows_ports_that_are_down_and_cards_below_their_peers() -> None:
    files = {}
    for number, (state, speed) in enumerate(
        [("4: ACTIVE", "16"), ("2: INIT", "16"), ("4: ACTIVE", "8")]
    ):
        pci = f"0000:0{number}:00.0"
        files[f"/sys/bus/pci/devices/{pci}/infiniband/mlx5_{number}/ports/1/state"] = f"{state}\n"
        files[f"/sys/bus/pci/devices/{pci}/net/ib{number}/operstate"] = "up\n"
        files[f"/sys/class/pci_bus/0000:0{number}/device/{pci}/current_link_speed"] = (
            f"{speed} GT/s\n"
        )
    assert HOST.sniff(json.dumps(files).encode()) == "snapshot"
    assert faults(reading(snapshot=json.dumps(files))) == {
        ("nic.link.down", "/nic/mlx5_1"),
        ("pcie.link_degraded", "/pci/0000:02:00.0"),
    }
