"""Lines that no signature takes: which of them people are shown, and as what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.logs import unread
from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadLine, UnreadLines, UnreadReader, make_template
from tests.matching import get_shipped_matcher

_AT = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def reader() -> UnreadReader:
    return UnreadReader(get_shipped_matcher())


def read(reader: UnreadReader, line: str, *, is_own_line: bool = False) -> UnreadLine | None:
    return reader.read(
        line.encode(), default_host="gn001", observed_at=_AT, zone=UTC, is_own_line=is_own_line
    )


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("<4>Nov  1 12:00:00 gn001 kernel: quux0: firmware gave no response", "kernel"),
        ("<11>Nov  1 12:00:00 gn001 slurmd[99]: error: the frobnicator is not there", "slurmd"),
        ("<30>Nov  1 12:00:00 gn001 nv-fabricmanager[7]: partition 3 is unhealthy", None),
        ("Nov  1 12:00:00.1 leaf01 ERR pmon#ledd: doQuux: no such quux", "ledd"),
        ("<187>123: Nov  1 12:00:00.1: %QUUX-3-FROB: board 2 is unhealthy", "%QUUX"),
        ("<189>123: Nov  1 12:00:00.1: %QUUX-5-FROB: fan tray 2 failed to answer", "%QUUX"),
        ("<30>Nov  1 12:00:00 gn001 systemd[1]: Failed to start the NVMe array.", "systemd"),
        # By the mark that its maker puts before an error, whatever the words.
        ("Nov  1 12:00:00 gn001 kernel: NVRM: quuxFrob: leaving the frob as it is", "kernel"),
        ("Nov  1 12:00:00 gn001 kernel: Lustre: 7:0:(quux.c:12:quux_frob()) frobs only", "kernel"),
        ("Nov  1 12:00:00 leaf01 bgpd[9]: [AB12C-3D4E5][EC 33554433] quux: frob of 9", "bgpd"),
        ("gn001:7:9 [0] quux.cc:12 NCCL WARN quux of 9 frobs", "NCCL"),
        ("[1762000000.123456] [gn001:7    :0]  quux.c:12   UCX  ERROR quux of 9 frobs", "UCX"),
        ('Nov  1 12:00:00 gn001 enrootd[9]: level=error msg="quux frobs"', "enrootd"),
        ("Nov  1 12:00:00 gn001 kernel: WARNING: pool 'quux' frobs", "kernel"),
        ("%%01QUUX/3/FROB(l)[12]:Board 2 frobs.", "%QUUX"),
        ("QUUX/4/V15_FROB_FAIL: the voltage of board 7 is 1.7", "%QUUX"),
        ("Nov  1 12:00:00 leaf01 %%01QUUX/4/FROB_FAIL: sensor 7 says 1.7", "%QUUX"),
        ("2026/11/01 12:00:00 BGP: [AB12C-3D4E5][EC 33554433] quux: frob of 9", "BGP"),
        # By the grade that a network system puts before its words, whatever the program.
        ("Nov  1 12:00:00 sw1 quuxd[9]: TID 12: [quuxd.ERR]: frob of 9", "quuxd"),
        ("2026-11-01 12:00:00.1 [7] [9] CRITICAL [Quux] Frob [frob 9]: quux", None),
        # A device by the kernel's form, a driver by its name.
        ("Nov  1 12:00:00 gn001 kernel: quux 0000:3b:00.0: gave up on mailbox 3", "kernel"),
        ("Nov  1 12:00:00 gn001 kernel: sd 0:0:12:0: [sdq] quux is unstable", "kernel"),
        ("Nov  1 12:00:00 gn001 kernel: mpt3sas_cm0: quux is unhealthy", "kernel"),
        # What a program says that has nothing to do but its hardware.
        ("Nov  1 12:00:00 gn001 nv-hostengine[9]: quux 7 is of an unknown kind", "nv-hostengine"),
        (
            "Nov  1 12:00:00.1 leaf01 WARNING swss#orchagent: :- doQuux: quux is unhealthy",
            "orchagent",
        ),
        ("Nov  1 12:00:00 gn001 systemd[1]: dcgm-quux.service: Main process exited", "systemd"),
        ("Nov  1 12:00:00 gn001 kernel: ibacm[99]: segfault at 0 ip 7f sp 7f", "kernel"),
        # Calm by the program's own word, of a part of the machine that failed.
        ("Nov  1 12:00:00 gn001 slurmd[9]: slurmd: quux of GPU 7 failed", "slurmd"),
        ("Nov  1 12:00:00 gn001 slurmd[9]: slurmd: error: quux is unhealthy", "slurmd"),
        ("Nov  1 12:00:00 gn001 pacemakerd[9]:  warning: quux failed", "pacemakerd"),
        # Any driver or subsystem of the kernel, by the form of its messages.
        ("<4>Nov  1 12:00:00 gn001 kernel: quux: bad luck", "kernel"),
        ("Nov  1 12:00:00 gn001 kernel: quux quux7: frob 7 has failed", "kernel"),
        # Ceph's own files name no program; systemd of old writes small letters.
        ("2026-11-01 12:00:00.777 7f7777777777 -1 osd.7 77 quux failed", "ceph"),
        ("2026-11-01T12:00:00.777+0000 mon.b (mon.0) 77 : cluster [SEC] quux failed", "ceph"),
        ("Nov  1 12:00:00 gn001 systemd[1]: dcgm-quux.service: main process exited", "systemd"),
        ("Nov  1 12:00:00 gn001 mount[7]: mount: /quux: mount point busy.", "mount"),
        # AOS-CX grades its events itself.
        ("Nov  1 12:00:00 sw1 hpe-quuxd[7]: Event|7777|LOG_WARN|AMM|-|bad quux", "hpe-quuxd"),
        ("Nov  1 12:00:00 sw1 quuxd[7]: Event|7777|LOG_INFO|AMM|-|fan 7 stuck", "quuxd"),
        ("2026-11-01 12:00:00 ERROR: quux 7 is gone", "kernel"),
        ("Nov  1 12:00:00 gn001 openipmi-helper[7]: quux failed", "openipmi-helper"),
        ("Nov  1 12:00:00  sw1 : %PFE-3: fpc7 quux of frob", "fpc7"),
        # Of no program: a level in its place, what smartd speaks of, logger's own name.
        ("WARNING: quux of GPU 7 failed", "kernel"),
        ("Error: cannot read quux of psu 7", "kernel"),
        ("Device: /dev/quux7 [SAT], quux failed", "kernel"),
        ("Nov  1 12:00:00.1 leaf01 NOTICE root: FanTray7 quux is faulty", "root"),
        ('2026-11-01 12:00:00.777777 E | op-mon: failed to quux mon "f"', "op-mon"),
        # What Slurm's commands call an error.
        ("srun: error: gn007: task 7: Quux error", "srun"),
        # What is lacking, where the kernel itself calls it a warning.
        ("<4>Nov  1 12:00:00 gn001 kernel: quux 0000:3b:00.0: frobs unsupported", "kernel"),
    ],
)
def test_a_failure_of_a_program_that_matters_is_shown(reader, line, program):
    found = read(reader, line)
    assert found is not None
    assert program is None or found.program == program


@pytest.mark.parametrize(
    "line",
    [
        # Programs of users and of logins, whatever they say and however urgently.
        "<11>Nov  1 12:00:00 gn001 python3[99]: error: GPU memory failed, PCIe lost",
        "<83>Nov  1 12:00:00 gn001 sshd[99]: error: PAM: authentication failure of fan",
        "<187>123: Nov  1 12:00:00.1: %AUTHPRIV-3-SYSTEM_MSG: login of link failed - sshd[3]",
        "<187>123: Nov  1 12:00:00.1: %QUUX-2-FROB_ONLINE: frob 1 has come",
        "<187>123: Nov  1 12:00:00.1: %QUUX-2-FROB: Control-Plane is protected with policy strict",
        "<187>123: Nov  1 12:00:00.1: %LICENSE-SMART_LIC-3-COMM_FAILED: link to the licences failed",
        "<187>123: Nov  1 12:00:00.1: %QUUX-2-FROBSET_ACTIVATE: frob set 7 activated",
        "QUUX/4/V15_FROB_RESUME: the voltage of board 7 is back to normal",
        "W1101 12:00:00.260919    9355 frobDevice.go:61] unable to get the link of the device",
        "Nov  1 12:00:00 gn001 slurmctld[9]: slurmctld: No memory enforcing mechanism configured.",
        "[   10.46] systemd[1]: Disk Frob was skipped because of a failed condition check (A=!/).",
        "<187>123: Nov  1 12:00:00.1: %DAEMON-3-SYSTEM_MSG: error: kex failed - dcos_sshd[4]",
        "WARNING: quux 7 failed",
        "srun: job 7 queued and waiting for quux that failed",
        "srun: error: gn007: task 7: Exited with exit code 1",
        # What works.
        "<6>Nov  1 12:00:00 gn001 kernel: quux0: link is up, 400 Gb/s",
        "<4>Nov  1 12:00:00 gn001 kernel: quux0: error reporting enabled on PCI port",
        "<30>Nov  1 12:00:00 gn001 slurmd[99]: launch task StepId=7.0",
        "Nov  1 12:00:00 gn001 chronyd[9]: quux0: received=202, dropped=0, errors: 0",
        # What its own program does not call a warning.
        "Nov  1 12:00:00.1 leaf01 NOTICE mux#linkmgrd: Quux.cpp:12 quux: state of quux: unknown",
        "<189>date=2026-11-01 quux=12 msg=link dropped",
        "<190>1: Nov  1 12:00:00.1: %QUUX-6-ACCESS: list quux Ethernet1 denied tcp 10.1.2.3(7)",
        # Programs of users that were ended, units of others.
        "Nov  1 12:00:00 gn001 systemd[1]: quux.service: Main process exited, status=1/FAILURE",
        "Nov  1 12:00:00 gn001 kernel: python3[99]: segfault at 0 ip 7f sp 7f error 4 in quux",
        # No error by the word of its program, which puts one before each.
        "Nov  1 12:00:00 gn001 slurmctld[9]: quux of JobId=7 failed",
        "Nov  1 12:00:00 gn001 slurmd[9]: debug:  quux: frob failed, retrying",
        "Nov  1 12:00:00 gn001 slurmd[9]: slurmd: debug2: quux of GPU 7 failed",
        "Nov  1 12:00:00 gn001 pacemaker-controld[9]:  notice: Result of quux: unknown, no quorum",
        "Nov  1 12:00:00 gn001 nv-fabricmanager[7]: [Nov 01 2026] [INFO] [tid 9] quux of 7 invalid",
        "2026-11-01 12:00:00.7 INFO  [9:9] quux not found [/quux.cpp:7] [Quux::Frob]",
        'Nov  1 12:00:00 gn001 dockerd[9]: level=info msg="quux failed"',
        "Nov  1 12:00:00.1 leaf01 NOTICE swss#orchagent: :- doQuux: failed to find quux",
        "gn001:7:7 [0] NCCL INFO Call to quux failed with error No such device",
        # What a device does not have.
        "Nov  1 12:00:00 gn001 kernel: quux 0000:3b:00.0: frobs are not supported",
        "<6>Nov  1 12:00:00 gn001 kernel: quux 0000:3b:00.0: optional frob is not available",
        # No part of the machine, and not the form of the kernel's own messages.
        "<4>Nov  1 12:00:00 gn001 kernel: the quux had bad luck",
        "<5>Nov  1 12:00:00 gn001 kernel: audit: type=1400 quux=7 frob=denied",
        "[   10.46] init: quux main process (7) terminated with status 1",
        "2026-11-01 12:00:00.777 7f7777777777 10 osd.7 77 quux failed",
        "2026-11-01 12:00:00.777 mon.b (mon.0) 77 : cluster [INF] quux failed over",
        "Nov  1 12:00:00 gn001 rsyncd[7]: invalid quux",
        "Nov  1 12:00:00 sw1 quuxd[7]: Event|7777|LOG_INFO|AMM|-|bad quux",
        "Nov  1 12:00:00 sw1 quuxd[7]: Event|7777|LOG_WARN|AMM|-|certificate of quux is invalid",
        (
            "Nov  1 12:00:00 sw1 intfd[7]: Event|404|LOG_INFO|AMM|1/1|"
            "Link status for interface 1/1/7 is down - Administratively down"
        ),
        "<187>Nov  1 12:00:00 sw1 last message repeated 3 times",
    ],
)
def test_other_lines_are_not(reader, line):
    assert read(reader, line) is None


@pytest.mark.parametrize(
    "line",
    [
        "Nov  1 12:00:00 gn001 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "Nov  1 12:00:00 gn001 kernel: ACPI Error: no handler for region [IPMI] (20230331/x-261)",
        "Nov  1 12:00:00 gn001 kernel: ADDRCONF(NETDEV_UP): eth0: link is not ready",
        "Nov  1 12:00:00 gn001 kernel: IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
        "[    1.5] ACPI Warning for \\_SB_._OSC: Return type mismatch (20230331/x-261)",
        "[    7.7] nvme nvme0: missing or invalid SUBNQN field.",
        "[    7.7] nvme nvme0: Shutdown timeout set to 10 seconds",
        "[    0.1] On node 0, zone DMA32: 96 pages in unavailable ranges",
        "[    0.9] Scanning for low memory corruption every 60 seconds",
        "[    0.9] acpi PNP0A08:00: FADT indicates ASPM is unsupported, using BIOS configuration",
        "[    0.9] rtc_cmos 00:02: alarms up to one month, y3k, 114 bytes nvram",
        "[    0.9] ehci-pci 0000:00:1a.0: cache line size of 32 is not supported",
        "[    0.9] igc 0000:02:00.0: PCIe PTM not supported by PCIe bus/controller",
        "[    0.9] e1000e 0000:03:00.0: Interrupt Throttling Rate (ints/sec) set to dynamic",
        "[    0.9] platform eisa.0: Cannot allocate resource for EISA slot 3",
        "[    0.9] pci 0000:20:03.2: bridge window [io  size 0x1000]: can't assign; no space",
        "[    0.9] pci 0000:00:1c.0: PCI INT A: not connected",
        "[    9.9] quux: module verification failed: signature and/or required key missing",
        "[    7.7] platform regulatory.0: Direct firmware load for regulatory.db failed",
        "[    7.7] EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro",
        "[    7.7] ERST: Error Record Serialization Table (ERST) support is initialized.",
        "[    0.0] Reserving 130MB of memory at 48MB for crashkernel (System RAM: 17408MB)",
        "[    7.7] crash memory driver: version 1.1",
        "[    7.7] pcieport 0000:ed:00.4: aer_inject: Injecting errors 0000/0040 into device x",
        "[    7.7] NVRM: os_schedule: Attempted to yield the CPU while in atomic or interrupt context",
        "[    7.7] nvidia-modeset: WARNING: GPU:0: Lost display notification (0:0x0); continuing.",
        "Nov  1 12:00:00 gn001 ipmievd: Power Unit sensor PS1 - Power off/down Asserted",
        "Nov  1 12:00:00 gn001 ipmievd: OS Critical Stop sensor OS - OS graceful shutdown Asserted",
        "Nov  1 12:00:00 gn001 ipmievd: Fan sensor F7 Limit Not Exceeded Asserted",
        "[    7.7] watchdog: watchdog0: watchdog did not stop!",
        "[    7.7] EDAC skx: Couldn't find mci handler",
        "[    7.7] perf: interrupt took too long (2777 > 2500), lowering kernel.perf_event_max_sample_rate to 72000",
        "[    7.7] perf interrupt took too long (2777 > 2500), lowering kernel.perf_event_max_sample_rate to 50000",
    ],
)
def test_what_the_catalogue_has_a_word_on_is_read(reader, line):
    assert read(reader, line) is None


def test_a_harmless_row_is_stronger_than_a_signature_and_needs_its_program(tmp_path):
    row = """
[[harmless]]
pattern = 'NVRM: Xid \\(PCI:0000:3b:00\\)'
program = "kernel"
facility = "kern"
reason = "That slot is a test bench."
source = "site"
"""
    (tmp_path / "site.toml").write_text(row)
    paths = [*catalog.files(), tmp_path / "site.toml"]
    matcher = Matcher(catalog.read(paths))

    def facts(line: str) -> list[object]:
        return list(matcher.facts(line.encode(), default_host="h", observed_at=_AT, zone=UTC))

    xid = "kernel: NVRM: Xid (PCI:0000:%s:00): 79, pid=1, GPU has fallen off the bus."
    assert not facts("Nov  1 12:00:00 gn001 " + xid % "3b")
    assert facts("Nov  1 12:00:00 gn001 " + xid % "3c")


def test_a_harmless_row_says_why_and_where_from(tmp_path):
    (tmp_path / "site.toml").write_text('[[harmless]]\npattern = "quux("\nprogram = "kernel"\n')
    with pytest.raises(catalog.CatalogError) as refused:
        catalog.read([tmp_path / "site.toml"])
    text = str(refused.value)
    assert "site.toml:1" in text
    for field in ("reason", "source", "facility"):
        assert f"missing {field}" in text
    assert "does not compile" in text


def test_lines_of_one_form_have_one_template():
    forms = [
        "quux 0000:3b:00.0 eth4: cmd 0x1f(12) at /dev/nvme0 for 'alice' took 3.5 s, 10.1.2.3:22",
        "quux 0000:9c:00.1 eth17: cmd 0xff03(7) at /dev/nvme12/x for 'bob' took 12 s, 10.9.9.9:80",
    ]
    assert len({make_template(form) for form in forms}) == 1
    assert make_template(forms[0]).startswith("quux <*> eth<*>: cmd <*>(<*>) at <*> for <*> took")


def test_templates_that_differ_in_a_word_become_one_and_others_stay_apart():
    one, other = "port lab failed to reach state up", "port office failed to reach state up"
    assert unread.merge(one, other) == "port <*> failed to reach state up"
    assert unread.merge(one, "fan tray does not spin at all now") is None
    assert unread.merge(one, "port lab failed") is None


def test_a_line_is_of_the_machine_that_sent_it_unless_a_relay_did(reader):
    line = "<11>Nov  1 12:00:00 gn042 slurmd[99]: error: the frobnicator is not there"
    relayed, own = read(reader, line), read(reader, line, is_own_line=True)
    assert relayed is not None
    assert own is not None
    assert (relayed.host, own.host) == ("gn042", "gn001")


def test_lines_of_a_template_on_a_machine_are_counted_together_and_the_rest_is_counted_out():
    line = UnreadLine("gn001", "kernel", "a b", 4, _AT, _AT, 2, "a b")
    later = UnreadLine("gn001", "kernel", "a b", 3, _AT, _AT + timedelta(minutes=1), 1, "a b later")
    lines = UnreadLines(most=1)
    lines.add(line)
    lines.add(later)
    lines.add(UnreadLine("gn002", "kernel", "a b", 4, _AT, _AT, 5, "a b"))
    [found] = lines.take()
    assert (found.count, found.severity, found.first_at, found.sample) == (3, 3, _AT, "a b")
    assert found.last_at == _AT + timedelta(minutes=1)
    assert lines.left_out == 5
    assert not lines.take()


@given(st.binary(max_size=400))
def test_any_bytes_are_taken(reader, line):
    found = reader.read(line, default_host="gn001", observed_at=_AT, zone=UTC)
    assert found is None or found.sample


@given(st.text(max_size=400))
@example("0/a")
@example("port 1/49 of <eth0>/x")
def test_a_template_of_a_template_is_itself(text):
    template = make_template(text)
    assert make_template(template) == template


def test_a_drivers_name_keeps_its_number():
    assert make_template("mlx5_core 0000:9a:00.0: cmd 17 failed") == "mlx5_core <*>: cmd <*> failed"
    drafted = unread.make_pattern("mlx5_core <*>: cmd <*> failed <*>, <*> times")
    assert drafted == "mlx5_core .{1,80}: cmd .{1,80} failed .{1,80},"
