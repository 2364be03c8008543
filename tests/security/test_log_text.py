"""What a user can get into a log line neither makes a fault nor hides one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.catalog import catalog
from detectors.logs.signatures import Fact
from detectors.provenance import Forger, Provenance, Transport
from tests.matching import get_shipped_matcher

_AT = datetime(2026, 11, 23, 8, tzinfo=UTC)
_XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=1, name=python3, GPU has fallen off the bus."
_SEL = "7 | 11/23/2026 | 07:59:58 | Memory #0x53 | Uncorrectable ECC | Asserted"
_UE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"


def facts(line: str) -> list[Fact]:
    return get_shipped_matcher().facts(
        line.encode(), default_host="gn001", observed_at=_AT, zone=UTC
    )


@pytest.mark.parametrize(
    "words", [_XID, _UE, "Kernel panic - not syncing: x", "nvme nvme0: I/O 1 timeout"]
)
@pytest.mark.parametrize(
    "line",
    [
        "<86>1 2026-11-23T08:00:00Z gn042 sshd 123 - - Invalid user {} from 10.1.1.1 port 22",
        "<86>Nov 23 08:00:00 gn042 sshd[123]: Invalid user {} from 10.1.1.1 port 22",
        "<86>Nov 23 08:00:00 gn042 sshd[123]: {}",
        "<14>1 2026-11-23T08:00:00Z gn042 kernel - - - {}",
        "<14>Nov 23 08:00:00 gn042 kernel: {}",
        "<13>Nov 23 08:00:00 gn042 ada: {}",
        "<3>1 2026-11-23T08:00:00Z gn042 kernel - - - overlayfs: failed to resolve '/tmp/{}': -2",
        "<4>1 2026-11-23T08:00:00Z gn042 kernel - - - EXT4-fs ({}): mounted filesystem",
        '<6>Nov 23 08:00:00 gn042 kernel: [ 12.345678] audit: type=1400 comm="{}"',
        "Nov 23 08:00:00 gn042 CRON[12]: (ada) CMD (echo {})",
        "Nov 23 08:00:00 gn042 sudo: ada : COMMAND=/bin/echo {}",
    ],
)
def test_the_words_of_a_driver_within_another_message_are_no_fault(line: str, words: str) -> None:
    assert facts(line.format(words)) == []


@pytest.mark.parametrize(
    "name", ["sudo: ", "sshd[1]: ", "CRON: ", "grep NVRM:", "echo ", "logger", "bash: ", "su: "]
)
@pytest.mark.parametrize(
    "head",
    [
        "<3>1 2026-11-23T08:00:00Z gn042 kernel - - - ",
        "<3>Nov 23 08:00:00 gn042 kernel: [  390.306117] ",
        "[  390.306117] ",
    ],
)
def test_the_name_of_a_process_hides_no_fault(head: str, name: str) -> None:
    line = f"{head}NVRM: Xid (PCI:0000:19:00): 79, pid=1, name={name}, GPU has fallen off the bus."
    assert [fact.fault_type for fact in facts(line)] == ["gpu.xid.79"]


@pytest.mark.parametrize(
    ("line", "forger"),
    [
        (f"<3>1 2026-11-23T08:00:00Z gn001 kernel - - - {_XID}", Forger.ROOT),
        (f"<3>1 2026-11-23T08:00:00Z gn001 kernel - - - {_UE}", Forger.ROOT),
        (_XID, Forger.USER),  # nobody says whose words they are
        # `logger -t kernel` names the program, and may choose any facility but the kernel's.
        (f"<9>Nov 23 08:00:00 gn001 kernel: {_SEL}", Forger.USER),
        (f"<129>Nov 23 08:00:00 gn001 kernel: {_SEL}", Forger.USER),
        (
            "<131>Nov 23 08:00:00 gn001 kernel: md/raid1:md7: Disk failure on sdh, disabling device",
            Forger.USER,
        ),
    ],
)
def test_a_kernels_record_that_we_read_ourselves_takes_root(line: str, forger: Forger) -> None:
    by_ssh = Provenance("gn001", Transport.SSH, forger=Forger.ROOT)
    (fact,) = facts(line)
    assert fact.provenance(by_ssh).forger is forger


def test_every_row_says_who_writes_it_and_where_it_begins() -> None:
    for signature in catalog.load().signatures:
        assert signature.programs, signature.where
        # SONiC's syslog server names a switch's kernel in facilities of its own.
        is_of_switch = (
            signature.where.startswith("kernel_of_switch.toml:") or signature.on == "switch"
        )
        if signature.programs == ("kernel",) and not is_of_switch:
            assert signature.facilities == {0}, signature.where
