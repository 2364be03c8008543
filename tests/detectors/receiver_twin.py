"""A receiver in a thread with an in-memory inbox, for the tests that speak to it over real
sockets."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadLine, UnreadReader
from detectors.receivers.delivery import Backlog, InboxAway, PositionMoved
from detectors.receivers.intake import Zones
from detectors.receivers.refusals import RefusedInput
from detectors.receivers.senders import Senders
from detectors.receivers.spool import Batch, Extent, Spool
from detectors.receivers.syslog import Door, Listen, Receiver, TlsDoor
from tests.matching import get_shipped_matcher
from tests.services.ports import wait_until

AT = datetime(2025, 1, 12, 3, 4, 5, tzinfo=UTC)


class MemoryInbox:
    """The inbox of the database, as the receiver knows it."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.positions: dict[str, Extent] = {}
        self.backlog = Backlog(0, 0, timedelta(0))
        self.rung = 0
        self.is_up = True
        self.loses_next_answer = False
        self.goes_after_next_put = False

    def read_position(self, receiver: str) -> Extent | None:
        self._answer()
        return self.positions.get(receiver)

    def put(self, receiver: str, batches: Sequence[Batch], after: Extent | None) -> None:
        self._answer()
        if self.positions.get(receiver) != after:
            raise PositionMoved(receiver)
        self.batches += batches
        self.positions[receiver] = batches[-1].extent
        if self.goes_after_next_put:
            self.goes_after_next_put = self.is_up = False
        if self.loses_next_answer:
            self.loses_next_answer = False
            raise InboxAway("the server closed the connection")

    def read_backlog(self) -> Backlog:
        self._answer()
        return self.backlog

    def wake_worker(self) -> None:
        self.rung += 1

    def _answer(self) -> None:
        if not self.is_up:
            raise InboxAway("the database is away")

    def counts(self) -> Counter[tuple[str, int | None]]:
        """Occurrences by resource and code, each event id once, as ingest counts."""
        seen: dict[str, dict[str, object]] = {
            str(wire["event_id"]): wire for batch in list(self.batches) for wire in batch.wires
        }
        total: Counter[tuple[str, int | None]] = Counter()
        for wire in seen.values():
            total[str(wire["resource"]), wire["code"]] += wire["count"]  # type: ignore[index,operator]
        return total


class RunningReceiver:
    """A real receiver on a free loopback port."""

    def __init__(
        self,
        home: Path,
        *,
        inbox: MemoryInbox | None = None,
        senders: Senders | None = None,
        zones: Zones | None = None,
        doors: Sequence[Door] = (),
        matcher: Callable[[], Matcher] = get_shipped_matcher,
        listen: Listen | None = None,
        relp: socket.socket | None = None,
        tls: TlsDoor | None = None,
        report_refusals: Callable[[Sequence[RefusedInput]], None] = lambda refusals: None,
        report_unread: Callable[[Sequence[UnreadLine]], bool] = lambda lines: True,
    ) -> None:
        self.inbox = inbox or MemoryInbox()
        self.receiver = Receiver(
            matcher=matcher,
            unread_reader=lambda: UnreadReader(get_shipped_matcher()),
            spool=Spool(home / "spool"),
            inbox=self.inbox,
            listen=listen or Listen(port=0),
            relp=relp,
            tls=tls,
            senders=lambda: senders or Senders(),
            zones=zones or Zones(),
            now=lambda: AT,
            doors=doors,
            report_refusals=report_refusals,
            report_unread=report_unread,
        )
        self._thread = threading.Thread(target=self.receiver.run)

    def start(self) -> None:
        """Without waiting until it serves."""
        self._thread.start()

    def __enter__(self) -> RunningReceiver:
        self.start()
        assert self.receiver.ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.receiver.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.receiver.address)

    def send(self, *lines: bytes) -> None:
        """Each line LF-framed on one connection."""
        with self.connect() as connection:
            connection.sendall(b"".join(line + b"\n" for line in lines))

    def send_datagrams(self, *lines: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for line in lines:
                sender.sendto(line, self.receiver.address)

    def wait_for_lines(self, count: int) -> None:
        counters = self.receiver.counters
        wait_until(lambda: counters.lines >= count, within_s=20, what=f"{count} lines received")

    def wait_for_occurrences(self, count: int) -> None:
        counts = self.inbox.counts
        wait_until(
            lambda: counts().total() >= count, within_s=20, what=f"{count} occurrences delivered"
        )
