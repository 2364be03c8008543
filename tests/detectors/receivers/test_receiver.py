"""The receiver over real sockets: what counts as one, what as two, who is heard, and what bad input
costs."""

from __future__ import annotations

import fcntl
import socket
import termios
import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.faults import FaultEvent
from detectors.logs.signatures import Fact, Matcher, to_event
from detectors.logs.unread import UnreadLine, UnreadReader
from detectors.provenance import Forger, Provenance, Transport
from detectors.receivers import syslog
from detectors.receivers.counters import Counters
from detectors.receivers.folding import Folder
from detectors.receivers.intake import Intake, Sender, Zones
from detectors.receivers.refusals import Refusals, RefusedInput
from detectors.receivers.senders import Senders
from detectors.receivers.syslog import Listen
from tests.detectors.receiver_twin import AT, MemoryInbox, RunningReceiver
from tests.matching import get_shipped_matcher
from tests.services.ports import free_port, wait_until

CATALOG = catalog.load()
GPU = "node/gn042/gpu/0000:19:00.0"
BENIGN = b"<30>Jan 12 03:04:05 gn042 systemd[1]: Started Session 7 of user root."


def xid(
    code: int = 79, *, seconds: str = "", host: str = "gn042", clock: str = "03:04:05", pid: int = 8
) -> bytes:
    kernel = f"[{seconds:>12}] " if seconds else ""
    text = f"NVRM: Xid (PCI:0000:19:00): {code}, pid={pid}, name=python3, Ch 00000008"
    return f"<4>Jan 12 {clock} {host} kernel: {kernel}{text}".encode()


def counted(*lines: bytes) -> bytes:
    return b"".join(b"%d %b" % (len(line), line) for line in lines)


def is_closed(connection: socket.socket) -> bool:
    """Whether the receiver closes it within ten seconds, in order or by a reset."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningReceiver]:
    with RunningReceiver(tmp_path) as receiver:
        yield receiver


# -- what counts as one


def test_two_identical_lines_in_one_second_count_two(running: RunningReceiver) -> None:
    running.send(xid(), BENIGN, xid())
    running.wait_for_occurrences(2)
    assert running.inbox.counts() == {(GPU, 79): 2}


def test_one_line_counts_once_when_it_comes_by_syslog_and_by_the_journal(
    running: RunningReceiver,
) -> None:
    line = xid(seconds="390.306117")
    journal = line.replace(
        b"<4>Jan 12 03:04:05 gn042", b"<4>1 2025-01-12T03:04:05.431Z gn042.site.example"
    )
    journal = journal.replace(b"kernel: [", b"kernel - - - [")
    running.send(line)
    running.send_datagrams(journal)
    running.send(xid(seconds="391.000000"))
    running.wait_for_lines(3)
    running.wait_for_occurrences(2)
    running.stop()
    assert running.inbox.counts() == {(GPU, 79): 2}
    assert running.receiver.counters.duplicates == 1


def test_repeats_count_when_a_sender_folds_them(running: RunningReceiver) -> None:
    running.send(
        xid(),
        b"<4>Jan 12 03:04:06 gn042 last message repeated 5 times",
        b"<4>Jan 12 03:04:07 gn042 kernel: message repeated 3 times: ["
        + xid(48).split(b"kernel: ")[1]
        + b"]",
        BENIGN,
        b"<4>Jan 12 03:04:08 gn042 last message repeated 9 times",
        b"<4>Jan 12 03:04:08 gn043 last message repeated 9 times",
    )
    running.wait_for_lines(6)
    running.stop()
    assert running.inbox.counts() == {(GPU, 79): 6, (GPU, 48): 3}
    assert running.receiver.counters.repeats_unresolved == 1


def test_last_message_is_found_when_another_packet_held_it(running: RunningReceiver) -> None:
    repeated = b"<4>Jan 12 03:04:06 gn042 last message repeated 2 times"
    with running.connect() as connection:
        connection.sendall(xid(host="gn043") + b"\n" + xid() + b"\n" + xid(host="gn041") + b"\n")
        running.wait_for_lines(3)
        connection.sendall(repeated + b"\n")
        running.wait_for_lines(4)
    running.send_datagrams(xid(), repeated)
    running.wait_for_lines(6)
    running.stop()
    assert running.inbox.counts()[GPU, 79] == 1 + 2 + 1 + 2


def test_a_flood_of_one_line_becomes_few_events_and_every_line_counts(
    running: RunningReceiver,
) -> None:
    lines = [xid(95, pid=pid) for pid in range(29)]
    with running.connect() as connection:
        for _ in range(40):
            connection.sendall(counted(*(lines * 25)))
    running.wait_for_lines(40 * 25 * 29)
    running.stop()
    counters = running.receiver.counters
    assert running.inbox.counts() == {(GPU, 95): 40 * 25 * 29}
    assert counters.occurrences == 40 * 25 * 29
    assert counters.events < 29 * 20


def test_a_flood_with_kernel_stamps_folds_too(running: RunningReceiver) -> None:
    lines = [xid(95, seconds=f"{1000 + number / 1000:.6f}") for number in range(20_000)]
    running.send(*lines, *lines[:5_000])
    running.wait_for_lines(25_000)
    running.stop()
    assert running.inbox.counts() == {(GPU, 95): 20_000}
    assert running.receiver.counters.duplicates == 5_000
    assert running.receiver.counters.events < 50


# -- how it comes in


@pytest.mark.parametrize("framing", ["octet-counted", "lf", "udp"])
def test_every_line_is_accounted_for(running: RunningReceiver, framing: str) -> None:
    lines = [BENIGN] * 500 + [xid(), xid(48)] + [BENIGN] * 500
    if framing == "udp":
        running.send_datagrams(*lines)
    else:
        with running.connect() as connection:
            connection.sendall(
                counted(*lines) if framing == "octet-counted" else b"\n".join(lines) + b"\n"
            )
    running.wait_for_occurrences(2)
    running.wait_for_lines(1002)
    counters = running.receiver.counters
    assert (counters.lines, counters.hits, counters.lost_datagrams) == (1002, 2, 0)
    assert running.inbox.counts() == {(GPU, 79): 1, (GPU, 48): 1}


def test_a_wrong_count_closes_its_connection_and_keeps_what_came_before(
    running: RunningReceiver,
) -> None:
    with running.connect() as connection:
        connection.sendall(counted(xid()) + b"garbage without a count")
        assert is_closed(connection)
    running.wait_for_occurrences(1)
    assert running.receiver.counters.framing_errors == 1
    running.send(xid(48))
    running.wait_for_occurrences(2)


def test_bad_bytes_cost_a_count_and_nothing_else(running: RunningReceiver) -> None:
    running.send(b"<4>" + b"x" * 200_000, b"\x00" + xid() + b"\xff\xfe\x00", b"", xid(48))
    running.send_datagrams(b"", b"\n\n", b"\xff" * 60_000, xid(31) + b"\n")
    with running.connect() as half_open, running.connect() as slow:
        half_open.sendall(b"123")
        for byte in xid(63) + b"\n":
            slow.sendall(bytes([byte]))
        running.wait_for_occurrences(4)
    running.stop()
    assert {code for _, code in running.inbox.counts()} == {79, 48, 31, 63}
    assert running.receiver.counters.cut_lines == 1


def test_the_last_line_counts_when_its_sender_closes_without_a_line_feed(
    running: RunningReceiver,
) -> None:
    with running.connect() as connection:
        connection.sendall(xid())
    running.wait_for_occurrences(1)


def test_only_listed_networks_are_heard(tmp_path: Path) -> None:
    listed = Senders(networks=["192.0.2.0/24"], hosts={}, accepts_hosts=False)
    with RunningReceiver(tmp_path, senders=listed) as running:
        with running.connect() as connection:
            connection.sendall(xid() + b"\n")
            assert is_closed(connection)
        running.send_datagrams(xid(), xid())
        counters = running.receiver.counters
        wait_until(lambda: counters.refused_datagrams == 2, within_s=10, what="datagrams refused")
        assert (counters.refused_connections, counters.lines) == (1, 0)


@pytest.mark.parametrize(
    ("address", "is_accepted", "host"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("10.1.0.7", True, "gn007"),
        ("::ffff:10.1.0.7", True, "gn007"),
        ("10.1.0.8", False, "10.1.0.8"),
        ("fe80::1%eth0", False, "fe80::1"),
        ("not an address", False, "not an address"),
    ],
)
def test_senders_are_known_by_the_inventory(address: str, is_accepted: bool, host: str) -> None:
    senders = Senders(hosts={"10.1.0.7": "gn007"})
    assert (senders.accepts(address), senders.get_host(address)) == (is_accepted, host)


def test_lines_without_a_host_are_their_senders(tmp_path: Path) -> None:
    with RunningReceiver(tmp_path, senders=Senders(hosts={"127.0.0.1": "gn007"})) as running:
        running.send(
            b"[  390.306117] NVRM: Xid (PCI:0000:19:00): 79, pid=8, GPU has fallen off the bus."
        )
        running.wait_for_occurrences(1)
        assert set(running.inbox.counts()) == {("node/gn007/gpu/0000:19:00.0", 79)}


@pytest.mark.parametrize(
    ("relays", "is_relay"),
    [
        (None, {"10.1.0.7": False, "10.0.0.9": True, "127.0.0.1": True}),
        ([], {"10.1.0.7": False, "10.0.0.9": False, "127.0.0.1": False}),
        (["10.0.0.9/32"], {"10.1.0.7": False, "10.0.0.9": True, "127.0.0.1": False}),
        (["10.1.0.0/16"], {"10.1.0.7": True, "::ffff:10.1.0.7": True, "10.0.0.9": False}),
    ],
)
def test_a_machine_of_the_inventory_speaks_for_itself_unless_it_is_a_relay(
    relays: list[str] | None, is_relay: dict[str, bool]
) -> None:
    senders = Senders(hosts={"10.1.0.7": "gn007", "127.0.0.1": "manager"}, relays=relays)
    assert {address: senders.is_relay(address) for address in is_relay} == is_relay


@pytest.mark.parametrize("is_relay", [True, False])
def test_the_host_in_a_line_counts_where_its_sender_is_a_relay(is_relay: bool) -> None:
    intake = Intake(get_shipped_matcher(), zones=Zones(), counters=Counters(), folder=Folder())
    sender = Sender("gn007", provenance=Provenance("10.1.0.7", Transport.UDP, is_relay=is_relay))
    for number, line in enumerate([xid(host="gn042"), xid(host="gn043"), xid(host="gn044")]):
        intake.take(line, sender, observed_at=AT, now=1.0 + number)
    events = [folded.build_event(AT) for folded in intake.folder.take(9.0, everything=True)]
    hosts = {event.resource.split("/")[1] for event in events}
    assert hosts == ({"gn042", "gn043", "gn044"} if is_relay else {"gn007"})
    (told,) = {event.provenance for event in events}
    assert (told.sender, told.transport, told.is_relay) == ("10.1.0.7", Transport.UDP, is_relay)
    assert (told.program, told.forger) == ("kernel", Forger.ANYONE)


@pytest.mark.parametrize("times", [1, 1000])
def test_line_feeds_that_are_surplus_are_no_lines(times: int) -> None:
    counters = Counters()
    intake = Intake(get_shipped_matcher(), zones=Zones(), counters=counters, folder=Folder())
    sender = Sender("gn007", provenance=Provenance("gn007"))
    block = b"\n".join([b"a\n\n\nb", b"c"] * times)
    intake.take(block, sender, observed_at=AT, now=1.0, surplus=2 * times)
    assert counters.lines == 3 * times


def test_what_two_senders_say_of_one_machine_is_kept_apart() -> None:
    intake = Intake(get_shipped_matcher(), zones=Zones(), counters=Counters(), folder=Folder())
    for address in ("10.0.0.9", "10.66.6.6"):
        sender = Sender(address, provenance=Provenance(address, Transport.UDP, is_relay=True))
        intake.take(xid(host="gn042"), sender, observed_at=AT, now=1.0)
    events = [folded.build_event(AT) for folded in intake.folder.take(9.0, everything=True)]
    assert {event.provenance.sender for event in events} == {"10.0.0.9", "10.66.6.6"}


def test_stamps_are_read_in_the_zone_of_their_source(tmp_path: Path) -> None:
    zones = Zones({"gn042": ZoneInfo("Asia/Tokyo"), "*": ZoneInfo("UTC")})
    with RunningReceiver(tmp_path, zones=zones) as running:
        running.send(xid(clock="12:04:05"), xid(host="gn043"), xid(48, clock="12:04:06"))
        running.wait_for_occurrences(3)
        times = {wire["occurred_at"] for batch in running.inbox.batches for wire in batch.wires}
        assert {datetime.fromisoformat(time) for time in times} == {AT, AT.replace(second=6)}


# -- on its way out


def test_the_first_event_after_idle_is_delivered_at_once(running: RunningReceiver) -> None:
    for number in range(3):
        running.send(xid(80 + number))
        wait_until(lambda: len(running.inbox.batches) > number, within_s=5, what="a batch")  # noqa: B023
    assert [len(batch.wires) for batch in running.inbox.batches] == [1, 1, 1]


def test_nothing_is_lost_when_the_database_is_away_and_the_receiver_starts_again(
    tmp_path: Path,
) -> None:
    inbox = MemoryInbox()
    inbox.is_up = False
    lines = [xid(code) for code in range(1, 60) if CATALOG.xid(code).id != "gpu.xid.unknown"]
    with RunningReceiver(tmp_path, inbox=inbox) as running:
        running.send(*lines)
        running.wait_for_lines(len(lines))
    assert not inbox.batches
    with RunningReceiver(tmp_path, inbox=inbox) as running:
        running.send(xid())
        running.wait_for_lines(1)
        inbox.is_up = True
        running.wait_for_occurrences(len(lines) + 1)
    assert inbox.counts().total() == len(lines) + 1


def test_critical_events_go_before_the_others_that_came_with_them(tmp_path: Path) -> None:
    inbox = MemoryInbox()
    inbox.is_up = False
    codes = [31, 79, 63, 48, 79]
    with RunningReceiver(tmp_path, inbox=inbox) as running:
        running.send(*[xid(code) for code in codes])
        running.wait_for_lines(len(codes))
    inbox.is_up = True
    with RunningReceiver(tmp_path, inbox=inbox) as running:
        running.wait_for_occurrences(len(codes))
    severities = [{wire["severity"] for wire in batch.wires} for batch in inbox.batches]
    assert {"critical"} in severities
    for batch in inbox.batches:
        is_critical = {wire["severity"] == "critical" for wire in batch.wires}
        assert is_critical == {batch.is_urgent}


# -- the short way and the long way


STAMPS = st.sampled_from(
    [
        b"Jan 12 03:04:05",
        b"Jan  2 03:04:05.25",
        b"2025 Jan 12 03:04:05.123456",
        b"2025-01-12T03:04:05.5+09:00",
        b"2025-01-12T03:04:05Z",
        b"2025-01-12 03:04:05",
        b"1 2025-01-12T03:04:05Z",
        b"Feb 31 03:04:05",
        b"[Sun Jan 12 03:04:05 2025]",
    ]
)
LINE = st.tuples(
    st.sampled_from([b"", b"<4>"]),
    STAMPS,
    st.sampled_from(
        [b" gn042 kernel: ", b" ", b" leaf-03 ERR kernel: ", b" gn042 kernel - - - ", b": "]
    ),
    st.sampled_from(
        [b"", b"[  390.306117] ", b"[1.5] ", b"[391.306117] ", b"message repeated 2 times: ["]
    ),
    st.sampled_from(
        [
            xid().split(b"kernel: ")[1],
            b"x: [   1.000000] " + xid(48).split(b"kernel: ")[1],
            b"benign",
        ]
    ),
).map(b"".join)


RELAY = Provenance("10.0.0.9", Transport.TCP, is_relay=True)


def judged(lines: list[bytes]) -> list[FaultEvent]:
    """Events of the lines in order, unfolded, with the shapes of earlier lines remembered."""
    intake = Intake(get_shipped_matcher(), zones=Zones(), counters=Counters(), folder=Folder())
    events = []
    for line in lines:
        intake.folder = Folder()
        intake.take(line, Sender("gn042", provenance=RELAY), observed_at=AT, now=1.0)
        events += [folded.build_event(AT) for folded in intake.folder.take(1.0, everything=True)]
    return events


def said(lines: list[bytes]) -> list[FaultEvent]:
    """What the matcher says of each line, a line that came twice left out."""
    seen: set[str] = set()
    expected: list[FaultEvent] = []
    for line in lines:
        facts = get_shipped_matcher().facts(line, default_host="gn042", observed_at=AT, zone=UTC)
        keys = {fact.source_key for fact in facts} - {""}
        if not keys & seen:
            expected += [
                to_event(fact, event_id="", observed_at=AT, source="syslog", sender=RELAY)
                for fact in facts
            ]
        seen |= keys
    return expected


@settings(max_examples=60)
@given(st.lists(LINE, min_size=1, max_size=12))
@example(
    [
        stamp + b" leaf-03 ERR kernel: " + xid().split(b"kernel: ")[1]
        for stamp in (b"Jan 12 03:04:05", b"Feb 31 03:04:05")
    ]
)
@example(
    [
        b"<4>1 2025-01-12T03:04:05Z " + stamp + xid().split(b"kernel: ")[1]
        for stamp in (b"[  390.306117] ", b"[391.306117] ")
    ]
)
def test_remembered_shapes_say_what_the_matcher_says(lines: list[bytes]) -> None:
    assert judged(lines) == said(lines)


HOSTS = st.sampled_from(
    [b"gn042", b"gn043", b"gn044", b"gn04", b"sto-01", b"GN042", b"gn042.site.example"]
)
TEXTS = st.sampled_from(
    [
        xid().split(b"kernel: ")[1],
        b"[  390.306117] " + xid(48).split(b"kernel: ")[1],
        b"NVRM: GPU at PCI:0000:19:00: GPU-gn043",
        b"NIFF: node gn043 detected a failed network connection on network 0 via interface ib0",
        b"LustreError: 11-0: gn043-OST0001-osc: operation ost_connect to node 10.0.0.9@o2ib failed: rc = -19",
    ]
)
OF_HOSTS = st.tuples(HOSTS, st.sampled_from([b" kernel: ", b" "]), TEXTS).map(
    lambda parts: b"<4>Jan 12 03:04:05 " + b"".join(parts)
)


@settings(max_examples=60)
@given(st.lists(OF_HOSTS, min_size=6, max_size=24))
@example([xid(host=f"gn{number}") for number in range(40, 44)])
@example([xid(host=f"gn{number}", seconds="390.306117") for number in range(40, 44)])
@example(
    [
        b"<4>Jan 12 03:04:05 gn%03d kernel: NIFF: node gn043 detected a failed network connection on network 0 via "
        b"interface ib0" % number
        for number in (43, 44, 42)
    ]
)
def test_a_text_that_many_hosts_send_says_of_each_what_the_matcher_says(lines: list[bytes]) -> None:
    assert judged(lines) == said(lines)


def test_the_matcher_is_asked_for_two_hosts_of_a_thousand_that_send_one_text() -> None:
    asked: list[bytes] = []

    class Asked(Matcher):
        def facts(self, line: bytes, **values: Any) -> list[Fact]:
            asked.append(line)
            return super().facts(line, **values)

    intake = Intake(Asked(CATALOG), zones=Zones(), counters=Counters(), folder=Folder())
    block = b"\n".join(xid(host=f"gn{number:03d}") for number in range(1000))
    intake.take(block, Sender("relay", provenance=RELAY), observed_at=AT, now=1.0)
    resources = {folded.fact.resource for folded in intake.folder.take(1.0, everything=True)}
    assert (len(asked), len(resources)) == (2, 1000)


# -- who is refused


def test_who_is_refused_is_reported_with_the_number_of_tries(tmp_path: Path) -> None:
    reported: list[RefusedInput] = []
    only_others = Senders(networks=["10.0.0.0/8"], accepts_hosts=False)
    with RunningReceiver(tmp_path, senders=only_others, report_refusals=reported.extend) as running:
        running.send_datagrams(xid(), xid(), xid())
        with running.connect() as connection:
            assert is_closed(connection)
        wait_until(
            lambda: sum(each.count for each in reported) >= 4,
            within_s=30,
            what="four refusals reported",
        )
    tries = Counter[tuple[str, str]]()
    for each in reported:
        tries[each.address, each.transport] += each.count
    assert tries == {("127.0.0.1", "UDP"): 3, ("127.0.0.1", "TCP"): 1}


UNREAD = b"<4>Jan 12 03:04:05 gn042 kernel: quux%d: firmware gave no response"


def test_lines_that_nobody_reads_are_reported_with_their_count_and_come_again_when_refused(
    tmp_path: Path,
) -> None:
    tries: list[list[UnreadLine]] = []

    def report(lines: Sequence[UnreadLine]) -> bool:
        tries.append(list(lines))
        return len(tries) > 1

    with RunningReceiver(tmp_path, report_unread=report) as running:
        running.send(UNREAD % 1, xid(), b"<6>Jan 12 03:04:05 gn042 kernel: fine", UNREAD % 2)
        wait_until(lambda: len(tries) > 1, within_s=60, what="a second report")
        assert running.receiver.counters.unread == 2
    for lines in tries[:2]:
        [line] = lines
        assert (line.template, line.count) == ("quux<*>: firmware gave no response", 2)


def test_a_flood_of_unread_lines_is_looked_at_by_a_thousand_a_second_and_counted() -> None:
    counters = Counters()
    intake = Intake(
        get_shipped_matcher(),
        zones=Zones(),
        counters=counters,
        folder=Folder(),
        unread_reader=UnreadReader(get_shipped_matcher()),
    )
    sender = Sender("gn042", provenance=Provenance("gn042"))
    block = b"\n".join(UNREAD % number for number in range(3000))
    intake.take(block, sender, observed_at=AT, now=1.0)
    assert (counters.unread, counters.unread_unexamined) == (1000, 2000)
    intake.take(UNREAD % 1, sender, observed_at=AT, now=1.5)
    [line] = intake.unread.take()
    assert line.count == 1001


def test_unread_lines_of_more_machines_than_are_written_down_are_counted() -> None:
    counters = Counters()
    intake = Intake(
        get_shipped_matcher(),
        zones=Zones(),
        counters=counters,
        folder=Folder(),
        unread_reader=UnreadReader(get_shipped_matcher()),
    )
    sender = Sender("relay", provenance=Provenance("relay", is_relay=True))
    block = b"\n".join((UNREAD % 1).replace(b"gn042", b"gn%03d" % n) for n in range(250))
    intake.take(block, sender, observed_at=AT, now=1.0)
    assert (counters.unread, counters.unread_left_out) == (250, 50)
    assert len(intake.unread.take()) == 200


def test_forged_addresses_fill_no_memory() -> None:
    refusals = Refusals()
    for number in range(10_000):
        refusals.add(f"10.0.{number // 250}.{number % 250}", "UDP", 1, AT)
    assert len(refusals.take()) == 200
    assert refusals.take() == []


# -- stop and start


class Gate:
    """Signatures that take long to compile: until `open`."""

    def __init__(self) -> None:
        self.is_compiling = threading.Event()
        self._is_open = threading.Event()

    def matcher(self) -> Matcher:
        self.is_compiling.set()
        assert self._is_open.wait(30)
        return get_shipped_matcher()

    def open(self) -> None:
        self._is_open.set()


def is_acknowledged(connection: socket.socket) -> bool:
    """Whether the receiver's kernel has all that was sent: a sender's own buffer is empty
    (SIOCOUTQ, tcp(7))."""
    waiting = array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, waiting)
    return waiting[0] == 0


def test_a_stop_takes_what_its_kernel_has_acknowledged_to_senders(running: RunningReceiver) -> None:
    lines = b"".join(xid(95, pid=number) + b"\n" for number in range(10_000))
    with running.connect() as connection:
        connection.sendall(lines)
        wait_until(lambda: is_acknowledged(connection), within_s=30, what="the acknowledgement")
        running.stop()
    assert running.inbox.counts().total() == 10_000


def test_a_stop_takes_the_lines_of_connections_that_nobody_has_accepted_yet(tmp_path: Path) -> None:
    gate = Gate()
    running = RunningReceiver(tmp_path, matcher=gate.matcher, listen=Listen(port=free_port()))
    running.start()
    assert gate.is_compiling.wait(30)
    for _ in range(20):
        running.send(xid())
    running.receiver.stop()
    gate.open()
    running.stop()
    assert running.inbox.counts() == {(GPU, 79): 20}


def test_lines_are_kept_while_a_start_compiles_its_signatures(tmp_path: Path) -> None:
    gate = Gate()
    running = RunningReceiver(tmp_path, matcher=gate.matcher, listen=Listen(port=free_port()))
    running.start()
    assert gate.is_compiling.wait(30)
    running.send(xid())
    running.send_datagrams(xid(48))
    gate.open()
    running.wait_for_occurrences(2)
    running.stop()
    assert running.inbox.counts() == {(GPU, 79): 1, (GPU, 48): 1}


def test_a_stop_closes_its_connections_so_that_senders_keep_what_follows(
    running: RunningReceiver,
) -> None:
    with running.connect() as connection:
        connection.sendall(xid() + b"\n")
        running.stop()
        assert is_closed(connection)


class TestWhatItSaysOfItself:
    def test_a_loop_that_hangs_is_not_receiving(
        self, running: RunningReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(syslog, "_HANGS_AFTER_S", 3.0)
        receiver, may_go_on = running.receiver, threading.Event()
        wait_until(lambda: receiver.is_receiving, within_s=10, what="a loop that turns")
        assert receiver._loop is not None
        receiver._loop.call_soon_threadsafe(may_go_on.wait, 60)
        wait_until(lambda: not receiver.is_receiving, within_s=10, what="a loop that hangs")
        may_go_on.set()
        wait_until(lambda: receiver.is_receiving, within_s=10, what="a loop that turns again")

    def test_one_that_has_not_begun_is_not_receiving(self, tmp_path: Path) -> None:
        waiting = RunningReceiver(tmp_path)
        assert not waiting.receiver.is_receiving
        waiting.receiver.spool.close()

    def test_what_it_could_not_deliver_is_counted_until_it_has(self, tmp_path: Path) -> None:
        inbox = MemoryInbox()
        inbox.is_up = False
        with RunningReceiver(tmp_path, inbox=inbox) as running:
            receiver = running.receiver
            running.send(xid())
            wait_until(lambda: receiver.undelivered_bytes, within_s=10, what="undelivered bytes")
            assert receiver.delivered is None
            inbox.is_up = True
            wait_until(lambda: not receiver.undelivered_bytes, within_s=10, what="a delivery")
            assert receiver.delivered == inbox.positions[receiver.spool.receiver]
