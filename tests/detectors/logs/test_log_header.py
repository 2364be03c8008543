"""Headers: each form that devices write gives the same five answers, and no bytes break it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.logs.header import Header, LineRepeat, parse_header, source_key

NOW = datetime(2025, 1, 12, 3, 5, 0, tzinfo=UTC)
TOKYO = ZoneInfo("Asia/Tokyo")
BERLIN = ZoneInfo("Europe/Berlin")
XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=811, GPU has fallen off the bus."
AT = datetime(2025, 1, 12, 3, 4, 5, tzinfo=UTC)
AT_MINUTE = AT.replace(second=0)
AT_MICROS = AT.replace(microsecond=123456)
AT_MILLIS = AT.replace(microsecond=123000)


def header(
    line: str | bytes, now: datetime = NOW, zone: timezone | ZoneInfo = UTC, year: int | None = None
) -> Header:
    raw = line.encode() if isinstance(line, str) else line
    return parse_header(raw, observed_at=now, zone=zone, year=year)


# line, host, occurred_at, kernel_seconds, program
FORMS = [
    (f"ptp4l[4711.123]: {XID}", None, NOW, "", "ptp4l"),
    (f"slurmd-gn042: {XID}", None, NOW, "", "slurmd"),
    (f"[  390.306117 <    0.000123>] {XID}", None, NOW, "390.306117", ""),
    (f"4711:Jan 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"4711-Jan 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"/var/log/messages-4711-Jan 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (
        f"2025-01-12T03:04:05.123456789Z stderr F nvidia-persistenced: {XID}",
        None,
        AT_MICROS,
        "",
        "nvidia-persistenced",
    ),
    (
        f"2025-01-12T03:04:09.1+00:00 stdout F Jan 12 03:04:05 gn042 kernel: {XID}",
        "gn042",
        AT,
        "",
        "kernel",
    ),
    (f"Jan 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"Jan 12 03:04:05 gn042 kernel: [  390.306117] {XID}", "gn042", AT, "390.306117", "kernel"),
    (f"<4>Jan 12 03:04:05 gn042 kernel: [  390.306117] {XID}", "gn042", AT, "390.306117", "kernel"),
    (f"Jan 12 03:04:05 2025 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"1月 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (
        f"2025 Jan 12 03:04:05.123456 leaf-03 INFO kernel: [1.204511] {XID}",
        "leaf-03",
        AT_MICROS,
        "1.204511",
        "kernel",
    ),
    (
        f"Jan 12 03:04:05.123456 leaf-03 ERR swss#orchagent: {XID}",
        "leaf-03",
        AT_MICROS,
        "",
        "swss#orchagent",
    ),
    (
        f"2025-01-12 03:04:05.123456 leaf-03 <local2.err> ERR pmon#xcvrd: {XID}",
        "leaf-03",
        AT_MICROS,
        "",
        "pmon#xcvrd",
    ),
    (
        f"2025-01-12 03:04:05.123456 <local0.info> leaf-03 INFO bgp#bgpd[31]: {XID}",
        "leaf-03",
        AT_MICROS,
        "",
        "bgp#bgpd",
    ),
    (f"2025-01-12T03:04:05.123456Z gn042 kernel: {XID}", "gn042", AT_MICROS, "", "kernel"),
    (f"Jan 12 03:04:05 gn042 kern.err kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"Jan 12 03:04:05 gn042 local3.notice: xcvrd[7]: {XID}", "gn042", AT, "", "xcvrd"),
    (f"12-Jan-2025 03:04:05 :{XID}", None, AT, "", ""),
    (f"12-Jan-2025 03:04:05.123 general: {XID}", None, AT_MILLIS, "", "general"),
    (f"leaf-03 ERR swss#orchagent: {XID}", "leaf-03", NOW, "", "swss#orchagent"),
    (f"slurmctld-1  | munged: {XID}", None, NOW, "", "munged"),
    (f"2025-01-12 03:04:05,123 - train.main - ERROR - {XID}", None, AT_MILLIS, "", "job"),
    (f"Sun Jan 12 03:04:05 UTC 2025 {XID}", None, AT, "", ""),
    (f"2025-01-11 19:04:05.123 PST {XID}", None, AT_MILLIS, "", ""),
    (f"mx960-04:rpd[77]: {XID}", "mx960-04", NOW, "", "rpd"),
    (f"4    slot4    2025-01-12 03:04:05    ipmid            {XID}", None, AT, "", "ipmid"),
    (f"Jan 12 03:04:05 gn042 (udev-worker)[77]: {XID}", "gn042", AT, "", "(udev-worker)"),
    (f"Jan 12 03:04:05 (sd-mkdcreds)[77]: {XID}", None, AT, "", "(sd-mkdcreds)"),
    (f"2025-01-12T12:04:05.123456+09:00 gn042 kernel: {XID}", "gn042", AT_MICROS, "", "kernel"),
    (f"2025-01-12T12:04:05+0900 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (
        f"<4>1 2025-01-12T03:04:05Z gn042.site.example kernel - - - {XID}",
        "gn042.site.example",
        AT,
        "",
        "kernel",
    ),
    (
        f'<4>1 2025-01-12T03:04:05Z gn042 kernel - - [a@1 x="\\"]"][b y="2"] \ufeff{XID}',
        "gn042",
        AT,
        "",
        "kernel",
    ),
    (f"<4>1 - - - - - - {XID}", None, NOW, "", ""),
    (f"[  390.306117] {XID}", None, NOW, "390.306117", ""),
    (f"[  390.306117][ T1234] {XID}", None, NOW, "390.306117", ""),
    (f"[  390.306117] [  T1234] {XID}", None, NOW, "390.306117", ""),
    (f"[Sun Jan 12 03:04:05 2025] [     C7] {XID}", None, AT, "", ""),
    (f"[390.306117] gn042 kernel: {XID}", "gn042", NOW, "390.306117", "kernel"),
    (f"6,3973,390306117,-;{XID}", None, NOW, "390.306117", "kernel"),
    (f"[Sun Jan 12 03:04:05 2025] {XID}", None, AT, "", ""),
    (f"[Sun Jan 12 03:04:05 UTC 2025] {XID}", None, AT, "", ""),
    (f"[Sun Jan 12 03:04:05 2025] gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"2025-01-12T03:04:05,123456+00:00 {XID}", None, AT_MICROS, "", ""),
    (f"gn042 kernel: {XID}", "gn042", NOW, "", "kernel"),
    (f"kernel: [   66.816635] {XID}", None, NOW, "66.816635", "kernel"),
    (f"[   66.816635] kernel: {XID}", None, NOW, "66.816635", "kernel"),
    (f"[Jan12 03:04] {XID}", None, AT_MINUTE, "", ""),
    (f"ene 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"janv. 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"[Dom Jan 12 03:04:05 2025] {XID}", None, AT, "", ""),
    (
        f"<187>May  3 13:20:50 10.9.0.34 60315: Jan 12 03:04:05.123456 UTC: {XID}",
        "10.9.0.34",
        AT_MICROS,
        "",
        "",
    ),
    (f"<187>sw-7: 2025 Jan 12 13:04:05 AEST: {XID}", "sw-7", AT, "", ""),
    (f"<187>: 2025 Jan 12 03:04:05 UTC: {XID}", None, AT, "", ""),
    (
        f"<187>9430: gw-1 LC/0/2/CPU0:Jan 12 03:04:05.123456 : ifmgr[214]: {XID}",
        "gw-1",
        AT_MICROS,
        "",
        "ifmgr",
    ),
    (f"022702: Jan 12 03:04:05: {XID}", None, AT, "", ""),
    (f"*Jan 12 03:04:05.123456: {XID}", None, AT_MICROS, "", ""),
    (f"Jan 12 03:04:05 admin@gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    # `journalctl --output=short-unix`.
    (f"1736651045.123456 gn042 kernel: {XID}", "gn042", AT_MICROS, "", "kernel"),
    # Junos' `explicit-priority`, behind a program and before a line card.
    (f"Jan 12 03:04:05  sw-7 craftd[7]: %DAEMON-4:  {XID}", "sw-7", AT, "", "craftd"),
    (f"Jan 12 03:04:05  sw-7 : %PFE-3: fpc7 {XID}", "sw-7", AT, "", "fpc7"),
    # pdsh and clush put the node's name before each line, whatever form that has.
    (f"gn042: [  390.306117] {XID}", "gn042", NOW, "390.306117", ""),
    (f"gn042: [Sun Jan 12 03:04:05 2025] {XID}", "gn042", AT, "", ""),
    (f"gn042: Jan 12 03:04:05 gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"loghost1: Jan 12 03:04:05 gn042 nvidia-x[7]: {XID}", "gn042", AT, "", "nvidia-x"),
    (f"gn042: Jan 12 03:04:05 gn042 slurmd: {XID}", "gn042", AT, "", "slurmd"),
    (f"gn042: 2025-01-12T03:04:05Z gn042 kernel: {XID}", "gn042", AT, "", "kernel"),
    (f"gn042: kern  :err   : [  390.306117] {XID}", "gn042", NOW, "390.306117", ""),
    (f"gn042: slurmd: {XID}", "gn042", NOW, "", "slurmd"),
    (f"gn042: systemd[1]: {XID}", "gn042", NOW, "", "systemd"),
    (f"gn042: kernel: {XID}", "gn042", NOW, "", "kernel"),
    (f"gn042: {XID}", "gn042", NOW, "", ""),
    # Dates in one piece, and with slashes.
    (f"20250112 03:04:05 {XID}", None, AT, "", ""),
    (f"20250112 03:04:05.123 gn042 kernel: {XID}", "gn042", AT_MILLIS, "", "kernel"),
    (f"20250112-03:04:05 gn042 slurmd[7]: {XID}", "gn042", AT, "", "slurmd"),
    (f"2025/01/12 03:04:05.123 gn042 kernel: {XID}", "gn042", AT_MILLIS, "", "kernel"),
    (XID, None, NOW, "", ""),
]


@pytest.mark.parametrize(
    ("line", "host", "at", "body"),
    [
        # How long IOS has run stands before a message, behind its number and the switch's name.
        ("<187>45: leaf-03: 1y3w: %FAN-3-FAILED: fan 7", "leaf-03", NOW, "%FAN-3-FAILED: fan 7"),
        ("*00:07:07: %FAN-3-FAILED: fan 7", None, NOW, "%FAN-3-FAILED: fan 7"),
        # OpenSM's microseconds and thread are no machine, Huawei's mnemonic is no program.
        ("Jan 12 03:04:05 1234 [7A7B7C7D] 0x01 -> it", None, AT, "1234 [7A7B7C7D] 0x01 -> it"),
        # Nor is Ceph's thread, or who of Ceph said it.
        ("2025-01-12T03:04:05Z 7f7777777777 -1 osd.7 it", None, AT, "7f7777777777 -1 osd.7 it"),
        ("2025-01-12T03:04:05Z mon.b (mon.0) 7 : it", None, AT, "mon.b (mon.0) 7 : it"),
        ("ALML/4/FAN_FAIL: fan 7", None, NOW, "ALML/4/FAN_FAIL: fan 7"),
        # Comware's console and log file: the milliseconds behind a colon, then the year.
        ("%Jan 12 03:04:05:123 2025 leaf-03 DEV/2/FAN: it", "leaf-03", AT_MILLIS, "DEV/2/FAN: it"),
        ("<7>*Jan 12 03:04:05:123 2025 leaf-03 PS/7/A: it", "leaf-03", AT_MILLIS, "PS/7/A: it"),
        # Nor is a level, in a file of a platform's own.
        ("2025-01-12 03:04:05 ERROR: it failed", None, AT, "ERROR: it failed"),
    ],
)
def test_what_devices_put_before_a_message_is_no_program(
    line: str, host: str | None, at: datetime, body: str
) -> None:
    found = header(line)
    assert (found.host, found.occurred_at, found.program, found.body) == (host, at, "", body)


@pytest.mark.parametrize(
    ("line", "host", "at", "seconds", "program"), FORMS, ids=[form[0][:44] for form in FORMS]
)
def test_every_form_gives_host_time_and_message(
    line: str, host: str | None, at: datetime, seconds: str, program: str
) -> None:
    found = header(line)
    assert (found.host, found.occurred_at, found.kernel_seconds, found.program) == (
        host,
        at,
        seconds,
        program,
    )
    assert found.body == XID


@pytest.mark.parametrize(
    "message",
    [
        "BUG: soft lockup - CPU#7 stuck for 77s! [quux:77]",
        "INFO: task quux:77 blocked for more than 77 seconds.",
        "CPU7: Core temperature is above threshold",
    ],
)
def test_what_the_kernels_ring_holds_without_a_stamp_is_all_message(message: str) -> None:
    """`dmesg --raw` of a kernel that prints no times (`printk.time=0`), and its consoles."""
    found = header(f"<3>{message}")
    assert (found.program, found.body, found.severity, found.facility) == ("", message, 3, 0)
    tagged = header(f"<3>kernel: {message}")
    assert (tagged.program, tagged.body) == ("kernel", message)


_SEL = "Memory #0x53 | Uncorrectable ECC | Asserted"


@pytest.mark.parametrize(
    ("line", "at", "body"),
    [
        (f"   1 | 01/12/2025 | 03:04:05 | {_SEL}", AT, f"1 | 01/12/2025 | 03:04:05 | {_SEL}"),
        (f"  1c | 01/12/25 | 03:04:05 UTC | {_SEL}", AT, f"1c | 01/12/2025 | 03:04:05 | {_SEL}"),
        (
            "1,01/12/2025,03:04:05,Memory #0x53,Uncorrectable ECC,Asserted",
            AT,
            f"1 | 01/12/2025 | 03:04:05 | {_SEL}",
        ),
        (f"   1 |  Pre-Init  |0000000011| {_SEL}", NOW, f"1 | Pre-Init | 00000011 | {_SEL}"),
    ],
)
@pytest.mark.parametrize(("head", "host"), [("", None), ("gn042: ", "gn042")])
def test_a_row_of_a_controllers_event_log_tells_its_time_when_it_stands_in_a_file(
    head: str, host: str | None, line: str, at: datetime, body: str
) -> None:
    found = header(head + line)
    assert (found.host, found.occurred_at, found.program, found.body) == (host, at, "", body)


ENTRY = {
    "__CURSOR": "s=1",
    "__REALTIME_TIMESTAMP": "1736651045123456",
    "_BOOT_ID": "0123456789abcdef0123456789abcdef",
    "_HOSTNAME": "gn042",
    "PRIORITY": "3",
    "MESSAGE": XID,
}


def journal_entry(**fields: object) -> bytes:
    return json.dumps({**ENTRY, **fields}).encode()


def test_an_entry_of_the_journal_is_the_kernels_line_when_journald_had_it_of_the_kernel() -> None:
    found = header(
        journal_entry(
            _TRANSPORT="kernel",
            SYSLOG_IDENTIFIER="kernel",
            _SOURCE_MONOTONIC_TIMESTAMP="390306117",
        )
    )
    assert (found.host, found.occurred_at, found.program, found.body) == (
        "gn042",
        AT_MICROS,
        "kernel",
        XID,
    )
    assert (found.facility, found.severity, found.boot) == (0, 3, ENTRY["_BOOT_ID"])
    assert source_key("gn042", found) == source_key(
        "gn042", header(f"6,1,390306117,-;{XID}")
    ).replace("||", f"|{ENTRY['_BOOT_ID']}|", 1)


@pytest.mark.parametrize(
    ("fields", "program", "facility"),
    [
        (
            {"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "slurmd", "SYSLOG_FACILITY": "3"},
            "slurmd",
            3,
        ),
        ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "slurmd"}, "slurmd", 1),
        ({"_TRANSPORT": "journal", "_COMM": "munged"}, "munged", 1),
        (
            {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "systemd", "SYSLOG_FACILITY": "3"},
            "systemd",
            3,
        ),
        # Whoever names himself the kernel is none, nor is one of whom nothing is said.
        ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "_COMM": "logger"}, "logger", 1),
        ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0"}, "", 1),
        ({"_TRANSPORT": "journal", "SYSLOG_IDENTIFIER": "kernel", "_COMM": "kernel"}, "", 1),
        ({"_TRANSPORT": ["kernel", "syslog"], "SYSLOG_IDENTIFIER": "kernel"}, "", 1),
        ({"SYSLOG_IDENTIFIER": "kernel"}, "", 1),
        ({"TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}, "", 1),
    ],
)
def test_who_said_an_entry_is_told_by_the_fields_of_journald(
    fields: dict[str, object], program: str, facility: int
) -> None:
    found = header(journal_entry(**fields))
    assert (found.program, found.facility, found.body) == (program, facility, XID)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (list(b"it \xff failed"), "it \ufffd failed"),
        (["it failed", "it did not"], "it failed"),
        ("it\nkernel: failed", "it kernel: failed"),
        ("<0>it failed", "<0>it failed"),
    ],
)
def test_a_message_is_one_line_whatever_the_journal_holds(message: object, body: str) -> None:
    assert header(journal_entry(_TRANSPORT="journal", MESSAGE=message)).body == body


@pytest.mark.parametrize(
    "line",
    [
        b"<13>%s",
        b"<13>1 2025-01-12T03:04:05Z gn042 job - - - %s",
        b"<13>Jan 12 03:04:05 gn042 job: %s",
        b"Jan 12 03:04:05 gn042 job: %s",
        b"  %s",
    ],
)
def test_what_looks_like_an_entry_within_a_message_is_text(line: bytes) -> None:
    entry = journal_entry(_TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel")
    found = header(line % entry)
    assert found.program != "kernel"
    assert found.body == entry.decode()


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (f"<13>gn042: {XID}", "gn042"),
        (f"<13>Jan 12 03:04:05 gn001 gn042: [  390.306117] {XID}", "gn042"),
        (f"Jan 12 03:04:05 gn001 sshd[7]: gn042: kernel: {XID}", "sshd"),
        (f"   gn042: kernel: {XID}", "gn042"),
        (f"sshd: kernel: {XID}", "sshd"),
        (f"python3.12: {XID}", "python3.12"),
        (f"base64: {XID}", "base64"),
    ],
)
def test_a_nodes_name_within_a_message_says_nothing_of_who_said_it(line: str, program: str) -> None:
    found = header(line)
    assert found.program == program
    assert found.host in (None, "gn001")


@pytest.mark.parametrize(
    "label",
    [
        "[1,3]<stderr>:",
        "[prterun-gn001-99@1,3]<stdout>: ",
        "[1,3][gn001:4711]<stderr>:",
        "[3]<stdout>: ",
        "[default0]:[rank12]:",
        "[rank12]: ",
        "(RayTrainWorker pid=4711, ip=10.0.0.3) ",
        "\x1b[36m(EngineCore_0 pid=4711)\x1b[0m ",
        "(VllmWorker rank=3 pid=4711) ",
    ],
)
def test_a_line_that_a_launcher_labels_is_a_jobs_and_not_the_kernels(label: str) -> None:
    found = header(label + XID)
    assert (found.program, found.body) == ("job", XID)


def test_the_number_of_a_task_before_what_a_step_says_is_a_label() -> None:
    found = header("17: slurmstepd: error: it failed")
    assert (found.program, found.body) == ("job", "slurmstepd: error: it failed")


def test_a_step_that_names_its_node_is_slurmstepd() -> None:
    found = header("slurmstepd-gn042: error: it failed")
    assert (found.program, found.body) == ("slurmstepd", "error: it failed")


def test_a_number_before_anything_else_is_no_label() -> None:
    found = header("2: eth0: it failed")
    assert (found.program, found.body) == ("", "2: eth0: it failed")


def test_a_launchers_stamp_ends_before_its_label() -> None:
    found = header("Sun Jan 12 03:04:05 2025[1,3]<stderr>:it failed")
    assert (found.occurred_at, found.program, found.body) == (AT, "job", "it failed")


def test_what_looks_like_a_label_behind_the_kernels_stamp_is_the_kernels_own() -> None:
    found = header("[  390.306117] [drm0]: it failed")
    assert (found.program, found.body) == ("", "[drm0]: it failed")


@pytest.mark.parametrize("name", ["JBD2", "ata1.00", "INFO", "bnx2x", "ib0", "DMAR"])
def test_what_the_kernel_names_is_no_program_when_nothing_stands_before_it(name: str) -> None:
    bare = header(f"{name}: something failed")
    assert (bare.program, bare.body) == ("", f"{name}: something failed")
    of_a_program = header(f"Jan 12 03:04:05 gn042 {name}: something failed")
    assert (of_a_program.program, of_a_program.body) == (name, "something failed")


@pytest.mark.parametrize(
    ("line", "program", "body"),
    [
        # Junos, behind a program; Arista's mnemonic, and NX-OS' without a program, stay.
        (
            "Jan 12 03:04:05  sw-7 rpd[7]: %DAEMON-4-RPD_OSPF_NBRDOWN: it",
            "rpd",
            "RPD_OSPF_NBRDOWN: it",
        ),
        ("Jan 12 03:04:05 sw-7 Fru: %FRU-6-FAN_REMOVED: it", "Fru", "%FRU-6-FAN_REMOVED: it"),
        ("Jan 12 03:04:05 sw-7 %DAEMON-3-SYSTEM_MSG: it", "", "%DAEMON-3-SYSTEM_MSG: it"),
    ],
)
def test_the_priority_before_a_tag_is_taken_off_where_junos_writes_it(
    line: str, program: str, body: str
) -> None:
    found = header(line)
    assert (found.program, found.body) == (program, body)


def test_a_word_that_is_no_month_begins_no_stamp() -> None:
    found = header("link 12 03:04:05 went away")
    assert not found.has_stamp


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("<187>Jan 12 03:04:05 leaf-03 x: y", 3),
        ("2025 Jan 12 03:04:05.1 leaf-03 WARNING x: y", 4),
        ("2025-01-12 03:04:05.1 leaf-03 <local2.crit> x: y", 2),
        ("<999>Jan 12 03:04:05 leaf-03 x: y", None),
        ("Jan 12 03:04:05 leaf-03 x: y", None),
    ],
)
def test_severity_comes_from_the_priority_or_its_word(line: str, severity: int | None) -> None:
    assert header(line).severity == severity


@pytest.mark.parametrize(
    "line",
    [
        "[  390.306117] systemd[1]: slurmd.service: quux",
        "Jan 12 03:04:05 gn042 kernel: [  390.306117] systemd[1]: slurmd.service: quux",
        "[Sun Jan 12 03:04:05 2025] systemd[1]: slurmd.service: quux",
    ],
)
def test_what_systemd_writes_into_the_kernels_ring_is_its_own(line: str) -> None:
    seen = header(line)
    assert (seen.program, seen.body) == ("systemd", "slurmd.service: quux")


@pytest.mark.parametrize("name", ["systemd[1]", "python3[77]"])
def test_what_the_kernel_says_of_a_program_that_ended_is_the_kernels(name: str) -> None:
    line = f"[  390.306117] {name}: segfault at 0 ip 7f sp 7f error 4"
    assert header(line).program == ""
    assert header(line).body == f"{name}: segfault at 0 ip 7f sp 7f error 4"


@pytest.mark.parametrize(
    "place",
    ["messages:", "/var/log/syslog.7.gz:", "kern.log:77:", "var/dmesg-77:", "slurmd.log:7-"],
)
def test_the_file_that_a_line_was_copied_from_is_no_part_of_it(place: str) -> None:
    line = f"Jan 12 03:04:05 gn042 kernel: {XID}"
    assert header(place + line) == header(line)


@pytest.mark.parametrize("line", ["messages:7 were lost", "quux.log:77: it failed"])
def test_what_names_a_file_within_a_message_stays(line: str) -> None:
    assert line.endswith(header(line).body)
    assert header(line).occurred_at == NOW


def test_what_a_daemon_of_ceph_puts_before_its_lines_in_a_container_is_taken_off() -> None:
    line = "2025-01-12T03:04:05.123+0000 7f7777777777 -1 osd.7 77 quux failed"
    assert header(f"debug {line}") == header(line)


def test_capnslog_tells_its_level_and_package() -> None:
    seen = header('2025-01-12 03:04:05.123456 E | op-mon: failed to quux "f"')
    assert (seen.program, seen.severity, seen.host) == ("op-mon", 3, None)
    assert (seen.occurred_at, seen.body) == (AT_MICROS, 'failed to quux "f"')


@pytest.mark.parametrize(
    "line",
    [
        f"03:04:05 {XID}",
        f"03:04:05.123456 gn042 kernel: {XID}",
        f"[03:04:05] {XID}",
        f"12/01/2025 03:04:05 gn042 kernel: {XID}",
    ],
)
def test_a_time_of_day_alone_is_no_part_of_the_message(line: str) -> None:
    found = header(line)
    assert (found.body, found.occurred_at, found.has_stamp) == (XID, NOW, False)
    assert found.program in ("", "kernel")


@pytest.mark.parametrize(
    ("line", "facility", "severity"),
    [
        (f"kern  :err   : [  390.306117] {XID}", 0, 3),
        (f"kern  :warn  : [Sun Jan 12 03:04:05 2025] {XID}", 0, 4),
        (f"daemon:notice: [  390.306117] {XID}", 3, 5),
        (f"local7:info  : [  390.306117] {XID}", 23, 6),
        # What comes with a priority has said its facility.
        (f"<14>kern  :err   : {XID}", 1, 6),
    ],
)
def test_dmesg_tells_facility_and_level_before_a_message(
    line: str, facility: int, severity: int
) -> None:
    found = header(line)
    assert (found.facility, found.severity) == (facility, severity)


def test_a_level_told_many_times_is_read_once() -> None:
    assert header("kern  :err   : " * 3000 + XID).facility == 0


def test_a_date_with_slashes_names_no_machine() -> None:
    found = header("2025/01/12 03:04:05 Failed to do it")
    assert (found.host, found.body, found.occurred_at) == (None, "Failed to do it", AT)


def test_driver_before_its_address_is_no_host_when_dmesg_prints_iso_stamps() -> None:
    found = header("2025-01-12T03:04:05Z mlx5_core 0000:9b:00.0: Link down")
    assert (found.host, found.body) == (None, "mlx5_core 0000:9b:00.0: Link down")


def test_year_is_the_nearest_when_the_stamp_has_none() -> None:
    after = datetime(2025, 1, 1, 0, 0, 30, tzinfo=UTC)
    before = datetime(2024, 12, 31, 23, 59, 30, tzinfo=UTC)
    assert header("Dec 31 23:59:59 gn001 kernel: x", now=after).occurred_at.year == 2024
    assert header("Jan  1 00:00:01 gn001 kernel: x", now=before).occurred_at.year == 2025
    assert header("Feb 29 12:00:00 gn001 kernel: x", now=NOW).occurred_at.year == 2024
    assert header("Feb 29 12:00:00 gn001 kernel: x", now=NOW, year=2023).has_stamp is False


def test_a_stamp_without_a_year_is_not_of_the_future_when_an_old_log_is_read() -> None:
    november = datetime(2026, 11, 21, tzinfo=UTC)
    assert header("Mar  4 03:04:05 gn001 kernel: x", now=november).occurred_at.year == 2026
    assert header("Dec  4 03:04:05 gn001 kernel: x", now=november).occurred_at.year == 2025


def test_year_is_the_one_given_when_old_logs_are_read() -> None:
    assert header("Mar  4 03:04:05 gn001 kernel: x", year=2019).occurred_at == datetime(
        2019, 3, 4, 3, 4, 5, tzinfo=UTC
    )


def test_zone_of_the_source_reads_stamps_that_name_none() -> None:
    assert header("Jan 12 12:04:05 gn001 kernel: x", zone=TOKYO).occurred_at == AT
    assert header("2025-01-12T03:04:05Z gn001 kernel: x", zone=TOKYO).occurred_at == AT


def test_time_is_total_in_the_hours_that_clocks_skip_or_repeat() -> None:
    skipped = header(
        "Mar 30 02:30:00 gn001 kernel: x", now=datetime(2025, 3, 30, 1, 30, tzinfo=UTC), zone=BERLIN
    )
    assert skipped.occurred_at == datetime(2025, 3, 30, 1, 30, tzinfo=UTC)
    for hour in (0, 1):
        now = datetime(2025, 10, 26, hour, 30, 2, tzinfo=UTC)
        assert header(
            "Oct 26 02:30:00 gn001 kernel: x", now=now, zone=BERLIN
        ).occurred_at == now.replace(second=0)


@pytest.mark.parametrize(
    ("line", "repeat", "repeats", "host"),
    [
        ("Jan 12 03:04:05 gn042 last message repeated 5 times", LineRepeat.LAST, 5, "gn042"),
        ("Jan 12 03:04:05 last message repeated 3 times", LineRepeat.LAST, 3, None),
        (
            "<187>10.9.0.32: 2025 Jan 12 03:04:05 UTC: last message repeated 2 times",
            LineRepeat.LAST,
            2,
            "10.9.0.32",
        ),
        (
            f"Jan 12 03:04:05 gn042 kernel: message repeated 4 times: [ {XID}]",
            LineRepeat.QUOTED,
            4,
            "gn042",
        ),
        (
            f"Jan 12 03:04:05 gn042 kernel: message repeated 4 times: [ [  1.500000] {XID}]",
            LineRepeat.QUOTED,
            4,
            "gn042",
        ),
        (
            f"2025 Jan 12 03:04:05 leaf-03 {XID} (message repeated 2 times)",
            LineRepeat.QUOTED,
            2,
            "leaf-03",
        ),
    ],
)
def test_repeats_are_counted(line: str, repeat: LineRepeat, repeats: int, host: str | None) -> None:
    found = header(line)
    assert (found.repeat, found.repeats, found.host) == (repeat, repeats, host)
    assert found.body == XID or repeat is LineRepeat.LAST


PATHS = [
    f"Jan 12 03:04:05 gn042 kernel: [  390.306117] {XID}",
    f"<4>1 2025-01-12T03:04:05.223Z gn042.site.example kernel - - - [  390.306117] {XID}",
    f"[390.306117] gn042 kernel: {XID}",
    f"[  390.306117] {XID}",
    f"6,3973,390306117,-;{XID}",
]


def test_key_is_the_same_when_one_line_comes_by_several_paths() -> None:
    keys = {source_key(found.host or "gn042", found) for found in map(header, PATHS)}
    assert keys == {f"gn042||390.306117|{XID}"}


@pytest.mark.parametrize(
    "line",
    [
        f"Jan 12 03:04:05 gn042 kernel: {XID}",
        f"Jan 12 03:04:05 gn042 kernel: message repeated 1 times: [[  390.306117] {XID}]",
    ],
)
def test_key_is_empty_when_nothing_tells_two_prints_apart(line: str) -> None:
    assert source_key("gn042", header(line)) == ""


TALOS_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warning": 4, "notice": 5, "info": 6}


@given(
    st.sampled_from(["", "10.0.0.17: ", "fd00::17: ", "gn042.example.org: "]),
    st.sampled_from(["kern", "user", "daemon"]),
    st.sampled_from(sorted(TALOS_LEVELS)),
)
def test_talos_dmesg_tells_node_facility_level_and_time(node: str, facility: str, level: str):
    """`%s: %7s: [%s]: %s`, with the node before it."""
    found = header(f"{node}{facility}: {level:>7}: [2025-01-12T03:04:05.123456789Z]: {XID}")
    assert found.host == (node.removesuffix(": ") or None)
    assert found.facility == {"kern": 0, "user": 1, "daemon": 3}[facility]
    assert (found.severity, found.occurred_at) == (TALOS_LEVELS[level], AT_MICROS)
    assert (found.program, found.body) == ("", XID)


@given(st.binary(max_size=300), st.sampled_from(FORMS), st.integers(0, 120))
def test_any_bytes_give_a_header(noise: bytes, form: tuple[str, ...], cut: int) -> None:
    for line in (noise, form[0].encode()[:cut] + noise, noise + form[0].encode()[cut:]):
        found = header(line, zone=BERLIN)
        assert found.occurred_at.tzinfo is not None
        assert found.repeats >= 0


@given(
    st.from_regex(
        r"[\[*<0-9: ]{0,6}[A-Z][a-z]{2} [ 0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[ .,0-9A-Z:+-]{0,12}"
    )
)
def test_any_digits_in_a_stamp_give_a_time(text: str) -> None:
    assert header(text, zone=TOKYO).occurred_at.tzinfo is not None


def test_a_repeat_that_says_over_how_long_counts_too() -> None:
    assert (
        header(
            "%ETH-4-HOST_FLAPPING: Host is flapping (message repeated 12 times in 60.5 secs)"
        ).repeats
        == 12
    )


# Around these moments wall time is not what it seems: years end, 29 February, clocks set forward
# and back. Lord Howe sets its clocks by half an hour, and the Chatham Islands are 12:45 ahead.
ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Chatham",
    )
]
EDGES = [
    datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, tzinfo=UTC),
    datetime(2024, 12, 30, 12, 0, 0, tzinfo=UTC),
    *(datetime(2025, month, day, hour, tzinfo=UTC) for month, day, hour in (
        (3, 30, 1), (10, 26, 1), (3, 9, 7), (11, 2, 6), (4, 5, 15), (10, 4, 15), (4, 5, 14), (9, 27, 14),
    )),
]  # fmt: skip
MOMENTS = st.one_of(
    st.builds(
        lambda edge, off: edge + timedelta(seconds=off),
        st.sampled_from(EDGES),
        st.integers(-10_800, 10_800),
    ),
    st.integers(0, 4 * 365 * 86_400).map(
        lambda off: datetime(2023, 1, 1, tzinfo=UTC) + timedelta(seconds=off)
    ),
)


def without_year(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%b %d %H:%M:%S} gn001 kernel: x"


@given(MOMENTS, st.sampled_from(ZONES), st.integers(-60, 600))
def test_a_stamp_without_year_and_zone_is_the_moment_it_was_written_when_it_comes_at_once(
    at: datetime, zone: ZoneInfo, delay_s: int
) -> None:
    """At New Year, on 29 February, and in the hour that comes twice: both times."""
    found = header(without_year(at, zone), now=at + timedelta(seconds=delay_s), zone=zone)
    assert found.occurred_at == at


@given(MOMENTS, st.sampled_from(ZONES), st.integers(1, 300))
def test_a_stamp_without_year_is_right_to_the_hour_when_it_comes_months_late(
    at: datetime, zone: ZoneInfo, days: int
) -> None:
    found = header(without_year(at, zone), now=at + timedelta(days=days), zone=zone)
    assert abs(found.occurred_at - at) <= timedelta(hours=1)


@given(MOMENTS, st.sampled_from(ZONES), st.integers(1, 86_000))
def test_a_stamp_without_year_keeps_its_order_when_the_clock_is_ahead(
    at: datetime, zone: ZoneInfo, ahead_s: int
) -> None:
    """A clock up to a day ahead is no line of last year: ingest then takes our time for it."""
    found = header(without_year(at, zone), now=at - timedelta(seconds=ahead_s), zone=zone)
    assert abs(found.occurred_at - at) <= timedelta(hours=1)


@given(st.integers(0, 59), st.integers(0, 59))
def test_a_time_that_daylight_saving_skips_is_read_as_before_the_change(
    minute: int, second: int
) -> None:
    """A device that was not told of the change: 02:30 that never was is 01:30 UTC, as its clock
    meant it."""
    now = datetime(2025, 3, 30, 2, 0, tzinfo=UTC)
    found = header(f"Mar 30 02:{minute:02}:{second:02} gn001 kernel: x", now=now, zone=BERLIN)
    assert found.occurred_at == datetime(2025, 3, 30, 1, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    "stamp", ["Feb 30 12:00:00", "Feb 29 12:00:00", "Apr 31 00:00:00", "Jan 00 00:00:00"]
)
def test_a_date_that_no_year_near_has_is_no_stamp(stamp: str) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    found = header(f"{stamp} gn001 kernel: x", now=now)
    assert (found.has_stamp, found.occurred_at) == (False, now)


@pytest.mark.parametrize(
    ("line", "host", "program", "body"),
    [
        ("gn042: Job for munge.service failed.", "gn042", "", "Job for munge.service failed."),
        (
            "7 2025-01-12 03:04:05 +0000 error: Corrected error, CPU 7",
            None,
            "rasdaemon",
            "error: Corrected error, CPU 7",
        ),
        (
            "7 2025-01-12 03:04:05 +0000 0000:17:00.0 Uncorrected (Fatal) error: Poisoned TLP",
            None,
            "rasdaemon",
            "0000:17:00.0 Uncorrected (Fatal) error: Poisoned TLP",
        ),
        (
            "Memory #0x07 | Correctable ECC | Asserted",
            None,
            "",
            "0 | Pre-Init | 00000000 | Memory #0x07 | Correctable ECC | Asserted",
        ),
    ],
)
def test_a_row_of_a_tools_list_is_what_its_program_says(
    line: str, host: str | None, program: str, body: str
) -> None:
    found = header(line)
    assert (found.host, found.program, found.body) == (host, program, body)


def test_a_daemon_of_junos_is_named_by_its_tag_where_it_names_itself_nowhere_else() -> None:
    found = header("Jan 12 03:04:05 CHASSISD_FRU_EVENT: it failed")
    assert (found.host, found.program, found.body) == (
        None,
        "chassisd",
        "CHASSISD_FRU_EVENT: it failed",
    )


def test_facility_and_level_behind_the_host_are_told_as_busybox_writes_them() -> None:
    found = header(f"Jan 12 03:04:05 bmc-7 local3.err ipmid[7]: {XID}")
    assert (found.facility, found.severity, found.program) == (19, 3, "ipmid")


def test_a_facility_and_level_within_a_message_are_text() -> None:
    assert header("Jan 12 03:04:05 gn042 job: user.err kernel: it failed").program == "job"


def test_the_name_that_a_switch_gives_itself_is_its_own_behind_a_relays_header() -> None:
    found = header("Jan 12 03:04:07 relay-1 leaf-03: 2025 Jan 12 03:04:05 UTC: %A-3-B: it failed")
    assert (found.host, found.occurred_at, found.body) == ("leaf-03", AT, "%A-3-B: it failed")


def test_nobody_names_another_machine_behind_a_header_with_a_priority() -> None:
    line = "<14>Jan 12 03:04:07 gn042 leaf-03: 2025 Jan 12 03:04:05 UTC: %A-3-B: it failed"
    assert header(line).host == "gn042"


def test_a_program_before_its_own_stamp_is_no_name_of_a_switch() -> None:
    found = header("Jan 12 03:04:05 leaf-03 syncd: 2025-01-12 03:04:05 it failed")
    assert (found.host, found.program) == ("leaf-03", "syncd")


@pytest.mark.parametrize("level", ["ERROR", "WARNING", "INFO"])
def test_the_level_of_pythons_logging_is_told(level: str) -> None:
    found = header(f"2025-01-12T03:04:05+00:00 - worker.loop - {level} - it failed")
    assert (found.host, found.program, found.body) == (None, "job", "it failed")
    assert found.severity == {"ERROR": 3, "WARNING": 4, "INFO": 6}[level]
