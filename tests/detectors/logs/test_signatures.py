"""From raw lines of nodes to facts. The lines are our own, in the shapes that kernels and drivers
print."""

import re
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.catalog.catalog import load
from detectors.faults import Action, Component, EventKind, Severity
from detectors.logs.matcher import ENGINES
from detectors.logs.signatures import Matcher, to_event
from tests.matching import get_shipped_matcher
from tests.services.patience import deadline_in

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RAISED, CLEARED = EventKind.RAISED, EventKind.CLEARED
LOST = (
    b"NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
GPU = "node/gn042/gpu/0000:9b:00.0"


@cache
def matcher(engine=""):
    return get_shipped_matcher(engine=engine)


def facts(line, *, host="gn042", zone=UTC, engine=""):
    raw = line if isinstance(line, bytes) else line.encode()
    return matcher(engine).facts(raw, default_host=host, observed_at=NOW, zone=zone)


def fact(line, **options):
    (only,) = facts(line, **options)
    return only


CAPTURES = Path(__file__).parents[1] / "captures" / "nodes.tsv"
NODE_LINES = [
    tuple(line.split("\t", 3))
    for line in CAPTURES.read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("fault_type", "event", "resource", "line"), NODE_LINES)
def test_a_nodes_line_is_the_fault_it_speaks_of(fault_type, event, resource, line):
    first = facts(line)[0]
    assert (first.fault_type, first.event, first.resource) == (fault_type, event, resource)
    assert first.component is load()[fault_type].component


@pytest.mark.parametrize(
    "framed",
    [
        b"%s",
        b"[ 8123.617543] %s",
        b"[   T77] %s",
        b"<6>[ 8123.617543] %s",
        b"6,3973,8123617543,-;%s",
        b"Nov 21 03:59:58 gn042 kernel: %s",
        b"<4>Nov 21 03:59:58 gn042 kernel: [ 8123.617543] %s",
        b"<4>1 2026-11-21T03:59:58.123456+00:00 gn042.cluster.example kernel - - - [ 8123.617543] %s",
        b"2026-11-21T12:59:58+0900 gn042 kernel: %s",
        b"[Sat Nov 21 03:59:58 2026] %s",
        b"kernel: message repeated 3 times: [ %s]",
        b"kernel: message repeated 3 times: [%s]",
        b"<4>1 2026-11-21T03:59:58Z gn042 kernel - - - \xef\xbb\xbf%s",
        b"<4>Nov 21 03:59:58 gn042 kernel:%s",
        b"<4>1 2026-11-21T03:59:58+00:00 gn042 kernel - - -  [ 8123.617543] %s",
        b"<4>Nov 21 03:59:58 gn042 kernel:  %s",
        b"\x00%s\x00",
        b"gn042: [ 8123.617543] %s",
        b"20261121 03:59:58 gn042 kernel: %s",
        b'{"MESSAGE":"%s","_TRANSPORT":"kernel","_HOSTNAME":"gn042"}',
    ],
)
def test_the_fact_is_the_same_in_every_frame(framed):
    found = fact(framed % LOST)
    assert (found.fault_type, found.resource, found.code) == ("gpu.xid.79", GPU, 79)


def test_an_entry_of_the_journal_is_found_in_a_block_whatever_stands_last_in_it():
    entry = (
        b'{"MESSAGE":"error: Unable to register: Zero Bytes were transmitted or received",'
        b'"SYSLOG_IDENTIFIER":"slurmd","_TRANSPORT":"stdout","_HOSTNAME":"gn042"}'
    )
    block = b"it is well\n%s\nNov 21 03:59:58 gn042 kernel: %s\n" % (entry, LOST)
    hits = [line for line in matcher().find_lines(block) if matcher().is_hit(line)]
    assert [fact(line).fault_type for line in hits] == ["slurm.daemon.error", "gpu.xid.79"]


def test_a_fact_carries_what_ingest_needs():
    found = fact(
        b"<4>1 2026-11-21T03:59:58.5+00:00 gn042.cluster.example kernel - - - [ 8123.617543] "
        + LOST
    )
    assert found.host == "gn042"
    assert found.occurred_at == datetime(2026, 11, 21, 3, 59, 58, 500000, tzinfo=UTC)
    assert (found.severity, found.action, found.component) == (
        Severity.CRITICAL,
        Action.REBOOT,
        Component.GPU,
    )
    assert found.source_key.startswith("gn042|")
    assert "8123.617543" in found.source_key
    assert found.excerpt.endswith("GPU has fallen off the bus.")
    event = to_event(found, event_id="e1", observed_at=NOW, source="syslog")
    assert (event.event_id, event.fault_type, event.source, event.code) == (
        "e1",
        "gpu.xid.79",
        "syslog",
        79,
    )


def test_a_line_by_two_paths_has_one_source_key():
    by_syslog = fact(b"Nov 21 03:59:58 gn042 kernel: [ 8123.617543] " + LOST)
    by_dmesg = fact(b"[ 8123.617543] " + LOST)
    assert by_syslog.source_key == by_dmesg.source_key != ""


def test_a_repeat_counts_as_often_as_it_says():
    assert (
        fact(b"Nov 21 03:59:58 gn042 kernel: message repeated 9 times: [ " + LOST + b"]").count == 9
    )


def test_the_host_in_the_line_outranks_the_sender_and_is_shortened():
    line = b"Nov 21 03:59:58 gn007.pod-a.example kernel: " + LOST
    assert fact(line, host="relay").resource == "node/gn007/gpu/0000:9b:00.0"
    assert fact(LOST, host="gn008.pod-a.example").host == "gn008"
    assert fact(LOST, host="-").resource == "node/-/gpu/0000:9b:00.0"


def test_a_stamp_without_a_zone_is_read_in_the_sources_zone():
    found = fact(b"Nov 21 12:59:58 gn042 kernel: " + LOST, zone=ZoneInfo("Asia/Tokyo"))
    assert found.occurred_at == NOW - timedelta(seconds=2)


def test_process_and_instance_are_kept():
    found = fact(
        "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid=4711, name=python3, Contained: SM (0x1)"
    )
    assert found.attributes["pid"] == "4711"
    assert found.attributes["process"] == "python3"
    assert found.qualifier == "05"


def test_links_of_one_switch_are_faults_of_their_own():
    lines = [
        f"nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link {n} LTSSM Fault Up"
        for n in (30, 31)
    ]
    assert {fact(line).qualifier for line in lines} == {"link 30", "link 31"}


def test_a_link_that_is_up_proves_that_its_module_is_there():
    up = facts("mlx5_core 0000:9a:00.0 ens4np0: Link up")
    assert {(found.fault_type, found.event) for found in up} == {
        ("nic.link.down", CLEARED),
        ("nic.module.unplugged", CLEARED),
        ("nic.module.error", CLEARED),
    }


@pytest.mark.parametrize(
    "line",
    [
        "eth0: RTL8168h/8111h at 0xffffc900, 00:11:22:33:44:55, XID 541 IRQ 28",
        "r8169 0000:02:00.0 eth0: RTL8125B, XID 641, IRQ 130",
        "# To test: echo 'NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus' > /dev/kmsg",
        'logger.info("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus")',
        "`NVRM: Xid (PCI:0000:9b:00): 79, pid=1`",
        r"XID = re.compile('NVRM: Xid \((PCI:\S+)\): (\d+)')",
        "Nov 21 03:59:58 gn042 sudo: root : TTY=pts/0 ; COMMAND=/bin/sh -c dmesg | grep NVRM: Xid",
        "Nov 21 03:59:58 gn042 bash[77]: root ran logger NVRM: Xid (PCI:0000:9b:00): 79, test",
        "An Xid 79 means that the GPU has fallen off the bus.",
        "GpuFallenOffTheBus = alerts.Xid79 # NVRM Xid 79",
        'DCGM_FI_DEV_XID_ERRORS{gpu="3"} 79',
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "nvidia-nvswitch0: open (major=238)",
        "pcieport 0000:97:01.0: pciehp: Slot(8): Link Down/Up ignored (recovered by DPC)",
        "pcieport 0000:97:01.0: pciehp: Slot(8): Link Down/Up ignored",
        "pcieport 0000:97:01.0: pciehp: Slot(8): Link Down event ignored; already powering off",
        "pciehp 0000:97:01.0:pcie004: Slot(8): Link Down event ignored; already powering off",
        "nvidia-peermem nv_get_p2p_free_callback:126 ERROR detected invalid context, skipping",
        "mlx5_core 0000:9a:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:9a:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
        "pci 0000:9a:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:97:01.0",
        "IPv6: ADDRCONF(NETDEV_UP): ens4np0: link is not ready",
        "ata3: SATA link down (SStatus 0 SControl 300)",
        "Lustre: Skipped 4 previous similar messages",
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
        "",
        " ",
        "\x00\x00",
    ],
)
def test_what_only_looks_like_a_fault_is_benign(line):
    assert facts(line) == []


def test_a_truncated_line_is_still_its_fault():
    assert (
        fact("gn042 kernel: NVRM: Xid (PCI:0000:9b:00): 119, pid='<unkno").fault_type
        == "gpu.xid.119"
    )


def test_an_unknown_number_is_a_warning_for_a_person():
    found = fact("NVRM: Xid (PCI:0000:9b:00): 4242, from a driver of the future")
    assert (found.fault_type, found.severity, found.action) == (
        "gpu.xid.4242",
        Severity.WARNING,
        Action.WATCH,
    )


def test_a_long_line_leaves_a_bounded_excerpt():
    assert len(fact(LOST + b" x" * 40_000).excerpt) == 1000


@pytest.mark.parametrize("engine", [name for name, module in ENGINES.items() if module is not None])
def test_every_engine_states_the_same_facts(engine):
    switches = [
        line.rpartition("\t")[2]
        for name in ("sonic.tsv", "other_switches.tsv")
        for line in (CAPTURES.parent / name).read_text().splitlines()
    ]
    for line in [*(line for *_, line in NODE_LINES), *switches]:
        assert facts(line, engine=engine) == facts(line)


@pytest.mark.parametrize("lines_a_block", [1, 7, 100])
def test_no_captured_line_is_missed_in_a_block(lines_a_block):
    matcher = get_shipped_matcher()
    lines = [
        line.rpartition("\t")[2].encode()
        for path in sorted(CAPTURES.parent.glob("*.tsv"))
        for line in path.read_text().splitlines()
    ]
    hits = [line for line in lines if matcher.is_hit(line)]
    blocks = [lines[at : at + lines_a_block] for at in range(0, len(lines), lines_a_block)]
    found = [line for block in blocks for line in matcher.find_lines(b"\n".join(block))]
    assert [line for line in found if matcher.is_hit(line)] == hits
    assert len(hits) > 500


def test_a_node_without_re2_states_the_same_facts(monkeypatch):
    lines = [
        line.rpartition("\t")[2].encode()
        for path in sorted(CAPTURES.parent.glob("*.tsv"))
        for line in path.read_text().splitlines()
    ]
    expected = [_read(get_shipped_matcher(), line) for line in lines]
    monkeypatch.setattr("detectors.catalog.line_patterns.re2", None)
    on_node = Matcher(load())
    assert [_read(on_node, line) for line in lines] == expected


def _read(reader, line):
    return reader.facts(line, default_host="gn001", observed_at=NOW, zone=UTC)


@given(line=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_without_error(line):
    for found in facts(line):
        assert found.occurred_at.tzinfo is not None


# Words of everyday logs, none of which makes a fault however they are strung together.
CALM = "kernel: systemd[1]: Started Session of user root sshd[7]: session opened GPU NVRM link up to date at PCI mlx5_core"


@given(
    words=st.lists(
        st.sampled_from(CALM.split()) | st.text("abcdefgh 0123456789:.[]()", max_size=12),
        max_size=20,
    )
)
@settings(max_examples=300, deadline=None)
def test_everyday_words_never_make_a_fault(words):
    assert facts(" ".join(words)) == []


@given(
    pci=st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]", fullmatch=True),
    code=st.integers(0, 99999),
)
@settings(max_examples=200, deadline=None)
def test_every_xid_line_is_a_fault_of_its_number_on_its_gpu(pci, code):
    found = fact(f"NVRM: Xid (PCI:{pci}): {code}, pid=1, name=x, text")
    assert (found.fault_type, found.code, found.resource) == (
        f"gpu.xid.{code}",
        code,
        f"node/gn042/gpu/{pci}.0",
    )


def test_a_pattern_stays_quick_on_a_long_line_of_its_own_words():
    """A search that grows with the square of the line would let one sender stop a receiver."""
    for signature in load().signatures:
        words = re.findall(
            r"[A-Za-z_%:. -]{4,}",
            re.sub(r"\\[a-zA-Z]|\(\?P<\w+>|\(\?[:i]\)?", "\0", signature.pattern),
        )
        for word in words[:3]:
            line = (word * (8000 // len(word) + 1)).encode()
            deadline = deadline_in(10)
            re.search(signature.pattern.encode(), line)
            assert time.monotonic() < deadline, (signature.where, word)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04",
        "NVRM: GPU 0000:9b:00.0: RmInitAdapter succeeded!",
        "NVRM: Persistence mode is deprecated and will be removed in a future release",
        "NVRM: objClInitPcieChipset: *** Chipset Setup Function Error!",
        "NVRM: GPU3 kgspInitLogging: Failed to load gsp_log_*.bin, no GSP-RM logs will be printed (non-fatal)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 508",
        "nvidia-nvswitch0: using MSI",
        "nvidia-peermem nv_get_p2p_free_callback:9 ERROR detected invalid context, skipping further processing",
        "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  595.45.04",
        "nvidia 0000:9b:00.0: enabling device (0140 -> 0142)",
        "pcieport 0000:98:01.0: pciehp: Slot(7): Link Down/Up ignored (recovered by DPC)",
        "pcieport 0000:98:01.0: pciehp: Slot(7): Link Up",
        "pci 0000:9b:00.0: not ready 1ms after FLR",
        "mlx5_core 0000:5e:00.0: firmware version: 28.41.1000",
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:5e:00.0: E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)",
        "mlx5_core 0000:5e:00.0: health recovery succeeded",
        "bnxt_en 0000:5e:00.0 ens9np0: Error recovery is enabled",
        "bnxt_en 0000:5e:00.0 ens9np0: Driver recovery watchdog, role: primary, firmware status: 0x8000 (healthy)",
        "ice 0000:5e:00.0: The DDP package was successfully loaded: ICE OS Default Package version 1.3.36.0",
        "i40e 0000:5e:00.0: fw 9.120.73026 api 1.15 nvm 9.20 0x8000d8c5",
        "bond0: (slave ens9np0): Enslaving as a backup interface with an up link",
        "LNet: 77:0:(o2iblnd_cb.c:3391:kiblnd_check_conns()) Skipped 9 previous similar messages",
        "Lustre: Mounted scr-client",
        "NFS: Registering the id_resolver key type",
        "nvme nvme3: 16/0/0 default/read/poll queues",
        "nvme nvme3: Shutdown timeout set to 10 seconds",
        "EXT4-fs (dm-7): mounted filesystem with ordered data mode",
        "XFS (dm-7): Ending clean mount",
        "md: md7: resync done.",
        "EDAC MC7: Giving out device to module i10nm_edac controller Intel",
        "mce: CPU supports 22 MCE banks",
        "rcu: Hierarchical RCU implementation.",
        "thermal_sys: Registered thermal governor 'step_wise'",
        "NVRM: GPU0 kgspCheckGspRmCcCleanup_GH100: CC secret cleanup successful!",
        "NVRM: Continuing with GPU removal for device 0000:9b:00.0",
        "ahci 0000:5e:00.0: AHCI 0001.0301 32 slots 8 ports 6 Gbps 0xff impl SATA mode",
        "pciehp 0000:16:02.0:pcie004: Slot(7): Link Up event",
        "pcieport 0000:16:02.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
        "bnxt_en 0000:5e:00.0 ens7np0: Firmware reset request successful.",
        "bnxt_en 0000:5e:00.0: QPLIB: cmdq[0x77]=0x11 status 0x0",
        "atlantic 0000:5e:00.0 ens7: atlantic: link change old 0 new 10000",
        "mptscsih: ioc7: task abort: SUCCESS (rv=2002) (sc=ffff88801234a000)",
        "sd 0:2:7:0: [sdz] tag#777 task abort SUCCESS!! scmd(0x00000000d51e7777)",
        "sd 0:2:7:0: [sdz] tag#777 target reset SUCCESS!!",
        "sd 0:2:7:0: [sdz] tag#7 Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s",
        "rbd: rbd7: capacity 10737418240 features 0x3d",
        "Adding 4194300k swap on /dev/sdz7.  Priority:-2 extents:1 across:4194300k",
        "pci 0000:5e:00.0: Relaxed Ordering disabled because the Root Port didn't support it",
        "mpi3mr7: ready timeout: 510 seconds",
        "sas: ex 500e004aaaaaaa1f phys DID NOT change",
        "scsi 7:0:0:0: scsi scan: INQUIRY result too short (5), using 36",
        "amdgpu 0000:5e:00.0: amdgpu: Capping GTT to 77M to not exceed available system memory",
        "XFS (dm-7): Found unrecovered unlinked inode 0x7f in AG 0x7.  Initiating list recovery.",
        "DMAR: Invalidation Queue Error (IQE) cleared",
        "ixgbe 0000:5e:00.0 ens7: rx-usecs set too low, disabling RSC",
        "nvme nvme7: creating 63 I/O queues.",
        "nvme nvme7: mapped 63/0/0 default/read/poll queues.",
        "LDISKFS-fs (dm-7): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "NVRM: loading NVIDIA UNIX aarch64 Kernel Module  595.45.04  Release Build",
        "ixgbe 0000:5e:00.0: Multiqueue Enabled: Rx Queue count = 63, Tx Queue count = 63 XDP Queue count = 0",
        "cxgb4 0000:5e:00.4: Direct firmware load disabled, using adapter's own",
        "scsi host7: iSCSI Initiator over TCP/IP",
        " connection4:0: detected operational parameters",
        "md: bind<sdb1>",
        "md: resync of RAID array md7",
        "md/raid1:md7: active with 2 out of 2 mirrors",
        "md/raid1:md7: not clean -- starting background reconstruction",
        "JBD2: Clearing recovery information on journal",
        "XFS (dm-7): Starting recovery (logdev: internal)",
        "XFS (dm-7): Unmounting Filesystem",
        "rdma_rxe: loaded",
        "rdma_rxe: set rxe7 active",
        "EXT4-fs (dm-7): re-mounted filesystem read-write. Quota mode: none.",
        "ata5: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
        "bnxt_en 0000:01:00.0: Unable to read VPD",
        "bnxt_en 0000:01:00.0 (unnamed net_device) (uninitialized): Unable to read VPD",
        "beegfs: enabling unloading of module",
        "beegfs: mount(99): BeeGFS mount ready.",
        "beegfs: mount(99): Built without NVFS RDMA support.",
        "beegfs-storage[77]: (1) Nov21 03:59:58 Main [App] >> Version: 7.7.7",
        "beegfs-meta[77]: (2) Nov21 03:59:58 Main [App] >> LocalNode: beegfs-meta gn042 [ID: 7]",
        "beegfs-meta[77]: (3) Nov21 03:59:58 XNodeSync [DGramLis] >> Connection timed out: 10.7.7.7",
        "sshd[77]: Main [App] >> Unable to reach the mirror: 7",
        "rcu: RCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=192.",
        "i40e 0000:01:00.0: IWARP disabled, not enough MSI-X vectors",
        "i40e 0000:01:00.0 eno1: DCB is not enabled for adapter",
        "i40e 0000:01:00.0: DCB init failed -7, disabled",
        "mlx5_core 0000:01:00.0: invalid VPD tag 0x77 at offset 177",
        "nvme 0000:01:00.0: invalid VPD tag 0x00 (size 0) at offset 0; assume missing optional EEPROM",
        (
            "2026-11-01T12:00:00.777+0000 7f777777 0 log_channel(cluster) log [WRN] : OSD bench result"
            " of 77777.7 IOPS exceeded the threshold limit of 777.0 IOPS for osd.7."
        ),
        "tsc: Fast TSC calibration failed",
        "smpboot: CPU 77 is now offline",
        "x86/tme: not enabled by BIOS",
        "GHES: HEST is not enabled!",
        "software IO TLB: tearing down default memory pool",
        "megaraid_sas 0000:01:00.0: firmware crash dump\t: no",
        "ata7.00: ACPI cmd ef/10:06:00:00:00:00(SET FEATURES) rejected by device (Stat=0x51 Err=0x04)",
        "ahci 0000:01:00.0: controller can't do DEVSLP, turning off",
        "iTCO_wdt iTCO_wdt: initialized. heartbeat=30 sec (nowayout=0)",
        "pci 0000:01:00.0: bridge configuration invalid ([bus 00-00]), reconfiguring",
        "ata7: SATA link down (SStatus 0 SControl 300)",
        "megaraid_sas 0000:07:00.0: firmware crash dump#011: no",
        "NVRM: GPU7 gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
        (
            "[2026-11-01T12:00:00.777] [7.0] error: *** STEP 7.0 ON gn042 CANCELLED AT"
            " 2026-11-01T12:00:00 ***"
        ),
        "sas: --- Exit sas_scsi_recover_host: busy: 0 failed: 0 tries: 1",
        "HEST: Enabling Firmware First mode for corrected errors.",
        "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
        "  31 | 11/15/2019 | 18:50:44 | Power Unit Pwr Unit Status | Power off/down | Deasserted",
        "   4 | 01/01/2000 | 00:17:05 | System Firmware Progress #0x05 | System boot initiated | Asserted",
        "ice 0000:5e:00.0 ens7: Cannot set channels since ADq is enabled.",
        "i40e 0000:5e:00.0 ens7: TX interrupt moderation cannot be changed if adaptive-tx is enabled.",
        "ixgbe 0000:5e:00.0 ens7: Autoneg did not complete so changing settings may not result in an actual change.",
        "i40e 0000:5e:00.0 ens7: Descriptors requested (Tx: 7 / Rx: 9000) out of range [64-8160]",
        "ice 0000:5e:00.0 ens7: Invalid value, rx-usecs-high valid values are 0 (disabled), 4-236",
        "ice 0000:5e:00.0: MAC 00:11:22:33:44:55 does not exist for VF 7",
        "bnxt_en 0000:5e:00.0 ens7np0: Too many traffic classes requested: 7. Max supported is 3.",
        "bnxt_en 0000:5e:00.0 ens7np0: TS query for TX timer failed rc = fffffff5",
        "mlx5_core 0000:5e:00.0 ens7: mlx5e_xfrm_validate_state:77:(pid 7): Cannot offload xfrm states with tfc padding",
        "mlx5_core 0000:5e:00.0: is_dpll_supported:77:(pid 7): Missing SyncE capability",
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:77:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3), syndrome (0x77), err(-22)",
        "{7}[Hardware Error]: It has been corrected by h/w and requires no further action",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found [NV_ERR_OBJECT_NOT_FOUND] (0x00000057) returned from gisubscriptionGetGPUInstanceSubscription(pRsClient, 7) @ kernel_mig_manager.c:77",
        "ixgbe 0000:5e:00.0 ens7: offline testing starting",
        "mpt3sas_cm7: performance mode: iops with coalescing timeout: 0x7",
        "megaraid_sas 0000:5e:00.0: FW provided TM TaskAbort/Reset timeout\t: 7 secs/7 secs",
        "EDAC MC: If you find incorrect reports, please contact your hardware vendor",
        "WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks, data leaks possible!",
        "WARNING: You are running an unsupported configuration",
        "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 7 wd_nsec: 7",
        "tsc: Marking TSC unstable due to clocksource=hpet",
        "INFO: NMI handler (perf_event_nmi_handler) took too long to run: 7.777 msecs",
        "CPU: 7 PID: 77 Comm: mover Tainted: P           OE     5.15.0-77-generic #77",
        "Disabling lock debugging due to kernel taint",
        "---[ end trace 0000000000000000 ]---",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.77.07  Release Build  (builder@host)",
        "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
        "amdgpu 0000:c7:00.0: amdgpu: GPU reset(7) succeeded!",
        "WARNING: CPU: 7 PID: 0 at net/sched/sch_generic.c:477 dev_watchdog+0x277/0x280",
        "oom_reaper: reaped process 7777 (mover), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "CMCI storm subsided: switching to interrupt mode",
        "clocksource: Switched to clocksource tsc",
        "clocksource: Checking clocksource tsc synchronization from CPU 7 to CPUs 0,3.",
        "rcu: Adjusting geometry for rcu_fanout_leaf=16, nr_cpu_ids=77",
        "FIX kmalloc-77: Object at 0x0000000077777777 not freed",
        "amd_pstate: driver load is disabled, boot with specific mode to enable this",
        "pstore: Using crash dump compression: deflate",
        "kexec: Bye!",
        "Losing some ticks... checking if CPU frequency changed.",
        "mover[777]: segfault at 7 ip 0000000000400777 sp 00007fff77777777 error 6 in mover[400000+7000]",
        "i915 0000:00:02.0: [drm] *ERROR* CPU pipe A FIFO underrun",
        "xe 0000:4d:00.0: [drm] Found battlemage (device ID e20b) discrete display version 14.01",
        "habanalabs hl7: Found GAUDI2 device with 96GB DRAM",
        "amdgpu 0000:c7:00.0: amdgpu: GPU smu mode1 reset",
        "amdgpu: HMM registered 65520MB device memory",
        "[drm:nv_drm_master_set [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00007700] Failed to grab modeset ownership",
    ],
)
def test_a_drivers_everyday_line_is_benign(text):
    assert facts(f"Nov 21 03:59:58 gn042 kernel: [ 77.123456] {text}") == []


@pytest.mark.parametrize(
    "text",
    [
        "nv-fabricmanager[77]: Connected to 1 node.",
        "nv-fabricmanager[77]: Successfully configured all the available NVSwitches to route NVLink traffic.",
        "nvidia-imex[77]: Successfully connected to all peers",
        "nvidia-persistenced: Started (77)",
        "systemd[1]: slurmd.service: Deactivated successfully.",
        "systemd[1]: Failed to start Process Core Dump.",
        "systemd[1]: man-db.service: Failed with result 'exit-code'.",
        "slurmctld[77]: slurmctld version 25.05.0 started on cluster gn",
        "slurmctld[77]: error: _slurm_rpc_submit_batch_job: Invalid account or account/partition combination specified",
        "slurmd[77]: slurmd started on Sat, 21 Nov 2026 03:59:58 +0000",
        "munged[77]: Notice: Running on gn042 (10.9.0.7)",
        "chronyd[77]: Selected source 10.9.0.7",
        "smartd[77]: Device: /dev/sdh [SAT], SMART Usage Attribute: 194 Temperature_Celsius changed from 70 to 69",
        "multipathd[77]: mpathc: remaining active paths: 2",
    ],
)
def test_what_a_daemon_of_nvidia_says_of_its_work_is_benign(text):
    assert facts(f"Nov 21 03:59:58 gn042 {text}") == []


@pytest.mark.parametrize(
    "text",
    [
        "systemd[1]: Started slurmd.service - Slurm node daemon.",
        "systemd[1]: Failed to start user@1007.service - User Manager for UID 1007.",
        "systemd[1]: boot-efi.mount: Deactivated successfully.",
        "iscsid[811]: Connection1:0 to [target: iqn.2026-11.org.example:a, portal: 192.0.2.7,3260] through [iface: default] is shutdown.",
        "mdadm[733]: RebuildStarted event detected on md device /dev/md7",
        "mdadm[733]: DeviceDisappeared event detected on md device /dev/md7, component device Wrong-Level",
        "multipathd[604]: sdd: add path (uevent)",
        "multipathd[604]: mpatha: event checker started",
        "slurmstepd[9]: pyxis: imported docker image: docker://ubuntu",
        "slurmstepd[9]: pyxis:     [INFO] Extracting squashfs filesystem...",
        "slurmd[902]: error: Domain socket directory /run/slurm: already there",
        "corosync[77]:   [TOTEM ] A new membership (1.7) was formed. Members joined: 2",
        "ganesha.nfsd[77]: [main] nfs_start_grace :STATE :EVENT :NFS Server Now IN GRACE, duration 90",
        "slurmstepd[9]: error: pyxis: --container-mounts: invalid format: /data",
        "slurmctld[902]: error: _slurm_rpc_allocate_resources: Requested node configuration is not available",
        "slurmctld[902]: error: Invalid nodes (gn04[2-9]) for JobId=77",
        "ipmiseld[641]:  1e | 11/21/26 | 03:59:58 | Power Supply PS1 | Presence detected | Asserted",
        "ipmievd: Fan sensor FAN1 Lower Critical going low  Deasserted (Reading 4000 > Threshold 500 RPM)",
        "sssd_be[712]: Starting up",
        "sssd_be[712]: Backend is online",
        "systemd-networkd[641]: veth0a1b2c3: Lost carrier",
        "NetworkManager[641]: <info>  [1700000009.9999] device (docker0): carrier: link disconnected",
        "multipathd[641]: sda: failed to get udev uid: Invalid argument",
        "multipathd[641]: sdc: add missing path",
        "tcmu-runner: 2026-11-21 03:59:58.794 9 [WARN] tcmu_rbd_lock:9 rbd/a.b: Acquired exclusive lock",
        "kernel: libceph: osd2 (1)10.0.0.9:6801 socket closed (con state OPEN)",
        "kernel: sd 0:0:11:0: [sdl] Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE",
        "kernel: mlx4_en: eth1: mlx4_get_module_info i(0) offset(255) bytes_to_read(1) - FAILED (0x9)",
        "kernel: ena 0000:00:05.0 ens5: queue_0_tx_linearize_failed: 0",
        "kernel: amdgpu 0000:0c:00.0: amdgpu: GPU reset succeeded, trying to resume",
        "Severity: Informational, Category: Audit, MessageID: USR0030, Message: Signed in as root.",
        "Severity: Critical, Category: Audit, MessageID: RAC0182, Message: The iDRAC was restarted.",
        "Server Administrator: Storage Service EventID: 2094 No disks to be exchanged",
        "hp-ams[77]: NOTICE: hp-ams: Power Supply 1 repaired",
        "na07: [na07: config: raid.rg.scrub.done:notice]: /aggr7/plex0/rg7: scrub done in 7:07",
        "mmsysmon[77]: [I] Event raised: Disk nsd77 is up.",
        "minio[77]: API: http://10.7.7.7:9000  http://127.0.0.1:9000",
        "libfabric:77:1777::efa:core:rxr_info():7<warn> FI_HMEM is not supported by this device.",
        "kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_7,oom_memcg=/slurm/job_77,task=mover,pid=77,uid=1077",
        "kernel: memory: usage 7340032kB, limit 7340032kB, failcnt 777",
        "ibwarn: [777] mad_rpc: redirected to lid 7, qp 0x1, qkey 0x80010000, sl 0x0",
        "kernel: EEH: PowerNV platform initialized",
        "kernel: EEH: Notify device driver to resume",
        "[rank0]: RuntimeError: shape '[7, 7]' is invalid for input of size 77",
        "rshim[77]: rshim0 attached",
        "sshd[77]: [na07: na: raid.rg.gone:ALERT]: what a user may type",
        "minio[77]: Status: 77 Online, 0 Offline.",
        "mmfs: [I] VERBS RDMA connected to 10.7.7.7 (gn077) on mlx5_7 port 1 index 0 timeout 0",
        "kernel: gdrdrv:gdrdrv_ioctl:invalid ioctl code 77",
        "kernel: hpsa 0000:03:00.0: can't disable ASPM; OS doesn't have ASPM control",
        "kernel: hpsa can't handle SMP requests",
        "kernel: nvidia-uvm: Loaded the UVM driver, major device number 507.",
        "slurmstepd[77]: error: Detected 7 oom_kill events in StepId=7.batch. Some of the step tasks have been OOM Killed.",
        "systemd[1]: munge.service: State 'stop-sigterm' timed out. Killing.",
        "systemd-udevd[77]: nvidia: Process '/usr/bin/logger nvidia' failed with exit code 7.",
        "singularity[77]: WARNING: container creation failed before, trying again",
        "systemd[1]: Started User Login Management.",
        "systemd[1]: Failed to start Network Manager Wait Online.",
        "systemd-coredump[77]: Process 777 (python3) of user 1077 dumped core.",
        "nhc[77]: Node Health Check starting.",
        "systemd[1]: Started Rule-based Manager for Device Events and Files.",
        "prolog[77]: GPU 7: OK",
        "prolog[77]: [2026-11-21 03:59:58.777 Control  77] Starting new server 777 for user 1077",
        "slurmstepd: error: *** STEP 77.7 ON gn042 CANCELLED AT 2026-11-21T03:59:58 DUE TO TIME LIMIT ***",
        "nhc: SUCCESS:  nhc:  Health check passed:  check_gpu_count: Expected 8 and found 8",
        'prolog[77]: CUDA error at matmul.cu:77 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&d, 7)"',
        "prolog[77]: cudaGetDeviceCount returned 0",
        "prolog[77]: RuntimeError: CUDA error: device-side assert triggered",
        "prolog[77]: CUDA failure common.cu:77 'out of memory'",
        "prolog[77]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB.",
        "prolog[77]: RuntimeError: CUDA error: invalid argument",
        "prolog[77]: 2026-11-21 03:59:58.777777: I tensorflow/core/common_runtime/gpu/gpu_device.cc:77] Created device",
        "prolog[77]: Detected 0 volatile double-bit ECC error(s) in GPU 7.",
        "nv-hostengine[77]: DCGM initialized",
        "nvidia-device-plugin-ctr[77]: I1121 03:59:58.777777       1 health.go:77] Starting health checker",
        "nvidia-smi[77]: GPU 00000000:9B:00.0: Persistence mode is already Enabled.",
        "munged[77]: Unauthorized credential for client UID=1077 GID=1077",
        "chronyd[77]: Source 10.7.7.7 replaced with 10.7.7.8",
        "ntpd[77]: kernel time sync status change 2001",
        "ntpd[77]: time reset +0.777777 s",
        "corosync[77]:   [KNET  ] link: Resetting MTU for link 0 because host 7 joined",
        "systemd-oomd[77]: Swap is currently not detected; memory pressure usage will be degraded",
        "mcelog[77]: mcelog server already running",
        'kubelet[77]: I1121 03:59:58.777777      77 kubelet.go:77] "SyncLoop ADD" source="api"',
        'kubelet[77]: E1121 03:59:58.777777      77 pod_workers.go:77] "Error syncing pod" err="back-off"',
        'dockerd[77]: time="2026-11-21T03:59:58Z" level=error msg="Handler for POST /v1 returned error"',
        'dockerd[77]: time="2026-11-21T03:59:58Z" level=info msg="Loading containers: done."',
        "I1121 03:59:58.777777       1 main.go:77] Loaded NVML",
        "W1121 03:59:58.777777       1 factory.go:77] No valid resources detected, GPU is missing",
        'ts=2026-11-21T03:59:58Z caller=exporter.go:77 level=info msg="GPU 7 failed no check"',
        "dbus-daemon[77]: [system] Successfully activated service 'org.freedesktop.login1'",
        "slurmctld[77]: Node gn077 now responding",
        "slurmctld[77]: node gn077 returned to service",
        "smartd[77]: Device: /dev/sdh, is SMART capable. Adding to monitor list.",
        "gn042:77:777 [7] misc/socket.cc:77 UCX  WARN  transport not available",
        "slurmctld[77]: error: Security violation, REQUEST_TOP_JOB for JobId=77 from uid=1077",
        "slurmctld[77]: error: REQUEST_SUBMIT_BATCH_JOB lacks alloc_node from uid=1077",
        "slurmctld[77]: error: _update_job: Attempt to modify priority for JobId=77",
        "slurmstepd[77]: error: --mem-bind value is empty for local task 7",
        "slurmdbd[77]: error: Only admins/coordinators can look at account usage",
        "slurmctld[77]: No job state file (/var/spool/slurmctld/job_state) to recover",
        "slurmctld[77]: error: Rounding requested frequency 7 up to lowest available 1000",
        "[2026-11-21T03:59:58.777] slurmctld version 26.11.0 started on cluster gn",
        "[2026-11-21T03:59:58.777] [77.batch] done with step",
        "[2026-11-21T03:59:58.777] debug:  Incomplete job state save file",
        "[2026-11-21T03:59:58.777] error: _slurm_rpc_submit_batch_job: Unspecified error",
        "smartd[77]: Device: /dev/sdh [SAT], previous self-test completed without error",
        "smartd[77]: Device: /dev/sdh [SAT], self-test in progress, 70% remaining",
        "smartd[77]: Device: /dev/sdh [SAT], SMART Usage Attribute: 194 Temperature_Celsius changed from 64 to 63",
        "smartd[77]: smartd is exiting (exit status 0)",
        "kernel: SPL: Large kmem_alloc(77777, 0x1000), please file an issue at:",
        'kernel: ZFS: Unable to set "noop" scheduler for /dev/sdh (sdh): 256',
        "kernel: WARNING: Pool 'pool7' was suspended and is being resumed. Failed I/O will be retried.",
        "zed[77]: eid=77 class=scrub_finish pool='pool7'",
        "zed[77]: eid=77 class=statechange pool='pool7' vdev=sdh1 vdev_state=ONLINE",
        "mdadm[77]: NewArray event detected on md device /dev/md7",
        "mdadm[77]: mdadm: /dev/md7 has been started with 4 drives.",
        "dmeventd[77]: Thin pool vg7-pool7-tpool data is now 80.07% full.",
        "lvm[77]: raid1 array, vg7-lv7, is now in-sync.",
        "lvm[77]: 7 logical volume(s) in volume group vg7 now active",
        "7 | 11/21/2026 | 03:59:58 | Boot Error | No bootable media | Deasserted",
        "ipmievd[77]: Processor sensor CPU7 - Presence detected Asserted",
        "mmfs: Error=MMFS_QUOTA, ID=0x77777777, Tag=777: Disk quota exceeded",
        "kernel: rbd: rbd7: capacity 77777777 features 0x3d",
        "kernel: libceph: osd7 weight 0x0 (out)",
        "mcelog[77]: mcelog: ERROR: AMD Processor family 25: mcelog does not support this processor.  Please use the edac_mce_amd module instead.",
        "mcelog[77]: CPU is unsupported",
        "mount[77]: mount.lustre: mount 10.4.0.7@o2ib:/work at /work",
        "prolog[77]: E1121 03:59:58.777777       1 leaderelection.go:77] error retrieving resource lock gpu-operator/777.nvidia.com: deadline exceeded",
        'prolog[77]: E1121 03:59:58.777777      77 pod_workers.go:77] "Error syncing pod, skipping" err="failed to start gpu-test: CrashLoopBackOff"',
        'prolog[77]: {"level":"error","ts":"2026-11-21T03:59:58Z","msg":"Reconciler error","error":"conflict on clusterpolicies.nvidia.com"}',
        "prolog[77]: | Memory Bandwidth          | Skip - All                                     |",
        "prolog[77]: [W socket.cpp:77] [c10d] The client socket has failed to connect to [localhost]:29777 (errno: 99 - Cannot assign requested address).",
        "prolog[77]: ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        "prolog[77]: [CUDA_ERROR_OUT_OF_MEMORY] out of memory in expression cuMemAlloc(&p, 7) in main() : nvbandwidth.cpp:77",
        "prolog[77]: numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        'containerd[77]: time="2026-11-21T03:59:58Z" level=error msg="OCI runtime exec failed: exec: nvidia-smi: executable file not found in $PATH"',
        "prolog[77]: E1121 03:59:58.777777 777 nvc.c:77] could not load kernel module nvidia_modeset",
        "prolog[77]: W1121 03:59:58.777777 777 nvc_info.c:77] missing library libnvidia-nscq.so",
        "prolog[77]: I1121 03:59:58.777777 777 rpc.c:77] driver rpc service terminated with signal 15",
        "kernel: NVRM: gpumgrCheckRmFirmwarePolicy: Disabling GSP offload -- GPU not supported",
        "prolog[77]: libibverbs: Warning: couldn't load driver 'libefa-rdmav34.so': cannot open shared object file",
        "prolog[77]: librdmacm: Fatal: no RDMA devices found",
        "prolog[77]: THCudaCheck FAIL file=THCGeneral.cpp line=77 error=11 : invalid argument",
        "prolog[77]: :3:hip_module.cpp :77  : 0077777777 us: hipModuleLoad failed",
        'prolog[77]: time=2026-11-21T03:59:58.777Z level=WARN msg="Failed to watch metrics: GPU 7"',
        'prolog[77]: {"time":"2026-11-21T03:59:58Z","level":"INFO","msg":"GPU 7: no error"}',
        "prolog[77]: [gn042:00777] pml_ucx.c:77  Warning: no ODP",
        "prolog[77]: [1795233598.777777] [gn042:777  :0]  parser.c:77   UCX  WARN  unused environment variable: UCX_SEVEN",
        "prolog[77]: E1121 03:59:58.777777     777 daemon.go:77] nodeStateSyncHandler(): got latest VF state",
        "openibd[77]: Loading HCA driver and Access Layer:                        [  OK  ]",
        "kernel: mlx5_core.rdma mlx5_core.rdma.7: bound",
        "kernel: beegfs: rm(77): Remoting (stat): No such file or directory; failed lookup",
        "s3fs[77]: s3fs.cpp:s3fs_init(777): init v1.95(commit:unknown) with OpenSSL",
        'automount[77]: key "nobody" not found in map source(s).',
        "automount[77]: attempting to mount entry /home/seven",
        "mount[77]: mount.nfs: timeout set for Sat Nov 21 04:01:58 2026",
        "kernel: [ 8123.617543] sd 7:0:7:0: [sdg] tag#77 Sense Key : 0x5 [current]",
        "kernel: [ 8123.617543] 3w-9xxx: scsi7: AEN: INFO (0x04:0x0029): Verify started:unit=7.",
        "kernel: [ 8123.617543] 3w-9xxx: scsi7: ERROR: (0x03:0x0101): Invalid command opcode:opcode=0x85.",
        "kernel: [ 8123.617543] 3w-xxxx: scsi7: AEN: INFO: Verify complete: Unit #7.",
        "kernel: [ 8123.617543] lpfc 0000:3b:00.0: 0:1303 Link Up Event x7 received Data: x7 x0 x80 x0 x0 x0 0",
        "kernel: [ 8123.617543] md/raid1:md7: active with 2 out of 2 mirrors",
        "kernel: [ 8123.617543] LNet: 77:0:(o2iblnd_cb.c:77:kiblnd_passive_connect()) Detecting race between accepting and reconnecting",
        "openibd[77]: Unloading HCA driver: \x1b[60G[  \x1b[1;32mOK\x1b[0;39m  ]",
        "kernel: [ 8123.617543] md/raid:md7: raid level 6 active with 10 out of 10 devices, algorithm 2",
        "kernel: [ 8123.617543] md/raid10:md7: active with 12 out of 12 devices",
        "kernel: [ 8123.617543] hpsa 0000:07:00.0: scsi 7:1:0:7: added Direct-Access HP LOGICAL VOLUME",
        "sshd[77]: error: kex_exchange_identification: Connection closed by remote host",
        "sshd[77]: error: PAM: Authentication failure for fatal: no hostkeys from 10.0.0.7",
        "sshd[77]: Invalid user error: Bind to port 22 on 10.0.0.7 failed from 10.0.0.7 port 77",
        "CROND[77]: (seven) CMD (echo '(CRON) OPENDIR FAILED (/seven)')",
        "rsyslogd[77]: action 'seven' resumed (module 'seven') [v8.26 try https://www.rsyslog.com/e/2359 ]",
        "kea-dhcp4[77]: INFO  [kea-dhcp4.dhcp4/77.17] DHCP4_STARTED Kea DHCPv4 server started",
        "kea-dhcp4[77]: ERROR [kea-dhcp4.dhcp4/77.17] DHCP4_PACKET_PROCESS_EXCEPTION malformed",
        "mariadbd[77]: 2026-11-21  3:59:58 7 [Warning] Aborted connection 7 to db: 'slurm'",
        "dhcpd[77]: DHCPACK on 10.0.0.7 to 00:00:5e:00:53:07 (no free leases) via seven0",
        "ntpd[77]: error resolving pool seven.example: Temporary failure in name resolution (-3)",
        "kernel: [    0.617543] Initramfs unpacking failed: Decoding failed",
        "kernel: [ 8123.617543] sd 7:0:7:0: [sdg] Add. Sense: Power on, reset, or bus device reset",
        "systemd[1]: user@1777.service: Failed with result 'exit-code'.",
        "systemd[1]: seven.service: Succeeded.",
        "cloud-init[77]: 2026-11-21 03:59:58,717 - util.py[WARNING]: Deprecated key seven",
        "docker[77]: Error response from daemon: No such container: seven",
        "sssd[77]: (2026-11-21  3:59:58): [nss] [seven] (0x0400): request failed",
    ],
)
def test_what_a_daemon_of_a_node_says_of_its_work_is_benign(text):
    found = facts(f"Nov 21 03:59:58 gn042 {text}")
    assert [fact for fact in found if fact.event is EventKind.RAISED] == []


@pytest.mark.parametrize(
    "line",
    [
        "Sat Nov 21 03:59:58.777 2026: [W] The TLS handshake with node 10.4.0.7 failed with error 410 (client side).",
        "Sat Nov 21 03:59:58.777 2026: [N] mmfsd is shutting down.",
        "Sat Nov 21 03:59:58 2026: Close connection to 10.4.0.7 gn042",
        "11/21-03:59:58.77 gn042 DAOS[77/78/0] object WARN src/object/cli_obj.c:77 obj_refresh() target is being rebuilt",
        "11/21-03:59:58.77 gn042 DAOS[77/78/0] mgmt INFO src/mgmt/srv.c:77 ds_mgmt_init() successfull init call",
        "[WRN] POOL_NO_REDUNDANCY: 1 pool(s) have no replicas configured",
        "[WRN] OSDMAP_FLAGS: noout flag(s) set",
        "[ERR] OSD_UNREACHABLE: 7 osds(s) are not reachable",
        "[WRN] CEPHADM_PAUSED: cephadm background work is paused",
        "HEALTH_WARN noout flag(s) set",
        "HEALTH_OK",
        "2026-11-21T03:59:58.777+0000 mon.c (mon.2) 77 : cluster [INF] Health check cleared: OSD_DOWN (was: 1 osds down)",
        "2026/11/21 03:59:58.777777 juicefs[77] <WARNING>: slow request: PUT chunks/0/0/7 (req, 1, cost: 10s) [cached_store.go:77]",
        "2026/11/21 03:59:58.777777 juicefs[77] <INFO>: OK, work is ready at /jfs [mount_unix.go:77]",
        " state: ONLINE",
        "    sdg     ONLINE       0     0     0",
        "errors: No known data errors",
        "slurm_load_jobs error: Invalid job id specified",
        "SMART overall-health self-assessment test result: PASSED",
        "SMART Health Status: OK",
        "Critical Warning:                   0x00",
    ],
)
def test_what_a_storage_system_says_of_its_work_in_its_own_file_is_benign(line):
    assert [fact for fact in facts(line) if fact.event is EventKind.RAISED] == []


@pytest.mark.parametrize(
    "line",
    [
        "7   | Nov-21-2026 | 03:59:58 | PS7 Status       | Power Supply             | Presence detected",
        "7   | Nov-21-2026 | 03:59:58 | PS7 Status       | Power Supply             | Predictive Failure deasserted",
        "7   | Nov-21-2026 | 03:59:58 | CPU1 DIMM A7     | Memory                   | Uncorrectable memory error ; Deassertion Event",
        "Nov 21 03:59:58 gn042 ipmid[77]: SEL Entry: FRU: 7, Record: Standard (0x02), Time: 2026-11-21 03:59:58, Sensor: SYSTEM_STATUS (0x10), Event Data: (07FFFF) Platform_Reset Deassertion",
        "Nov 21 03:59:58 gn042 ipmid[77]: SEL Entry: FRU: 7, Record: Standard (0x02), Time: 2026-11-21 03:59:58, Sensor: ME_POWER_STATE (0x16), Event Data: (00FFFF) RUNNING Assertion",
        "Nov 21 03:59:58 gn042 ipmid[77]: SEL Entry: FRU: 7, Record: Facebook Unified SEL (0xFB), GeneralInfo: POST(0x28), POST Failure Event: System PXE boot fail, Fail Type: IPv4 fail, Error Code: 0x07",
        "Nov 21 03:59:58 gn042 sensord[77]: DEASSERT: Upper Critical threshold - settled - FRU: 7, num: 0x7 curr_val: 77.00 C, thresh_val: 87.00 C, snr: CPU0_TEMP",
        "Nov 21 03:59:58 gn042 seven[77]: SEL Entry: FRU: 7, Record: Standard (0x02), Time: 2026-11-21 03:59:58, Sensor: MACHINE_CHK_ERR (0x40), Event Data: (AB0707) Uncorrected Assertion",
        "Job for webapp.service failed because the control process exited with error code.",
        "srun: error: gn042: task 7: Exited with exit code 1",
    ],
)
def test_what_a_controllers_log_says_of_its_work_is_benign(line):
    assert [fact for fact in facts(line) if fact.event is EventKind.RAISED] == []


def test_a_loss_told_in_three_lines_keeps_the_gpus_address():
    lines = [
        "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:9b:00.0: GPU is on Board 165.",
    ]
    assert {fact(line).resource for line in lines} == {GPU}


def test_the_time_since_the_line_before_is_no_stamp_of_the_kernel():
    found = fact("[  +0.000008] pcieport 0000:98:01.0: AER: device recovery failed")
    assert (found.fault_type, found.source_key) == ("pcie.recovery_failed", "")


@pytest.mark.parametrize(
    "message",
    [
        "mlx5_core 0000:1a:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps",
        "mlx5_core 0000:1a:00.0: firmware version: 20.35.1012",
        "ixgbe 0000:01:00.0: Multiqueue Enabled: Rx Queue count = 63, Tx Queue count = 63",
        "nvme 0000:41:00.0: platform quirk: setting simple suspend",
        "pcieport 0000:98:01.0: PME: Signaling with IRQ 40",
    ],
)
def test_an_ordinary_line_of_a_driver_costs_no_closer_look(message):
    """That it comes of a driver and names a device is no reason: a boot prints hundreds of them."""
    line = f"<6>Nov 21 03:59:58 gn042 kernel: {message}".encode()
    assert get_shipped_matcher().find_lines(b"\n".join([line] * 100)) == []
    assert not get_shipped_matcher().is_hit(line)


def test_what_a_signature_matches_is_found_by_the_engine_too():
    """A row's own `scan` may name the program as well, and is left aside."""
    lines = [
        line.encode()
        for path in sorted(CAPTURES.parent.glob("*.tsv"))
        for line in path.read_text().splitlines()
    ]
    patterns = {
        number: re.compile(row.pattern.encode())
        for number, row in enumerate(load().signatures)
        if not row.scan
    }
    matcher = get_shipped_matcher()
    found = 0
    for line in lines:
        matching = {number for number, pattern in patterns.items() if pattern.search(line)}
        assert matching <= set(matcher._match(line)), line
        found += len(matching)
    assert found > len(lines) / 4
