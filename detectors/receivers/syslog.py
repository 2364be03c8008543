"""Receives syslog over UDP, TCP and RELP, and hands folded fault events to the spool. Never parses
a line itself.

Other doors, such as that of SNMP notifications, hand it events.

One event loop in one thread; delivery to the database and the disk's syncs run beside it. What
a full disk or a full spool cannot take holds the senders back: reading stops, and their queues fill
instead of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from detectors.faults import FaultEvent, Severity
from detectors.logs.unread import UnreadLine
from detectors.provenance import Transport
from detectors.receivers.connections import Connection, Connections, LineConnection, listen
from detectors.receivers.counters import Counters
from detectors.receivers.datagrams import Datagrams
from detectors.receivers.delivery import Delivery, Inbox
from detectors.receivers.folding import Folder, fold_event
from detectors.receivers.intake import Intake, Sender, Signatures, UnreadSource, Zones
from detectors.receivers.refusals import (
    NAMES,
    Quotas,
    Refusals,
    RefusedInput,
    Shares,
)
from detectors.receivers.relp.sessions import RelpConnection
from detectors.receivers.senders import RefusedCertificates, Senders
from detectors.receivers.spool import Batch, Extent, Spool, SpoolFull, Turn
from detectors.resources import short_host

_log = logging.getLogger(__name__)
BATCH_EVENTS = 500
# Of sources that have had their share: so much does ingest count before it looks for others again.
_LAST_EVENTS = 25
GROUP_S = 0.1
# Lines that wait to be acknowledged are spooled at once when there are so many: half of librelp's
# window of 128, so that no sender stands still until a tenth of a second is over.
ACKNOWLEDGE_LINES = 64
_TICK_S = 1.0
_TOLD_EVERY_S = 60.0
_REPORT_EVERY_S = 10.0
# Our choice: nothing in the loop takes a second; what waits for disk or database runs beside it.
_HANGS_AFTER_S = 30.0
# Past this the database has been away for long: hold the senders back rather than fill the disk.
MAX_SPOOL_BYTES = 2 * 1024**3
MAX_SPOOL_TEXT = "2 GiB that the database has not taken"
_HELD_BACK = (
    "Senders are held back until then: RELP and TCP keep what they have, UDP loses what comes."
)
_ORDER = (Turn.URGENT, Turn.ORDINARY, Turn.LAST)
# Events in memory while the disk takes none.
_BACKLOG = 20_000


class CannotListen(Exception):
    """The address of syslog cannot be had: says why."""


@dataclass(frozen=True)
class _Admitted:
    """An event that goes to the spool, and when its turn is."""

    event: FaultEvent
    turn: Turn


@dataclass(frozen=True)
class Listen:
    """Where to listen; port 0 takes a free one. UDP and TCP share the number.

    `stream` and `datagram` are sockets at this address that somebody else keeps open: these are
    read instead of own ones.
    """

    host: str = "127.0.0.1"
    port: int = 5514
    stream: socket.socket | None = None
    datagram: socket.socket | None = None


@dataclass(frozen=True)
class TlsDoor:
    """Where syslog over TLS comes in, and whose certificates are taken: those that the context
    takes, but for `refused`."""

    listener: socket.socket
    context: ssl.SSLContext
    refused: RefusedCertificates | None = None


class Door(Protocol):
    """Another way in, with a thread of its own. What it delivers and `taken` does not count yet is
    in memory."""

    def start(
        self,
        deliver: Callable[[Sequence[FaultEvent]], None],
        senders: Callable[[], Senders],
        counters: Counters,
    ) -> None: ...

    def hold_back(self, is_held_back: bool) -> None: ...

    def count_taken(self, count: int) -> None: ...

    def stop(self) -> None:
        """Everything that has arrived is delivered when it returns."""
        ...


class Receiver:
    """`run` blocks until `stop`, which any thread may call. `senders` and `matcher` are asked again
    every minute; another matcher than before is used from then on.

    `tls` is the port for syslog over TLS, `relp` a listening socket for senders that want their
    lines acknowledged. `report_refusals`
    is called in a thread, at most every ten seconds, when senders were refused; so is
    `report_unread` with lines that no signature takes; where it returns False they come again.
    """

    def __init__(
        self,
        *,
        matcher: Callable[[], Signatures],
        spool: Spool,
        inbox: Inbox,
        listen: Listen,
        senders: Callable[[], Senders],
        zones: Zones,
        now: Callable[[], datetime],
        relp: socket.socket | None = None,
        tls: TlsDoor | None = None,
        doors: Sequence[Door] = (),
        report_refusals: Callable[[Sequence[RefusedInput]], None] = lambda refusals: None,
        unread_reader: Callable[[], UnreadSource | None] = lambda: None,
        report_unread: Callable[[Sequence[UnreadLine]], bool] = lambda lines: True,
    ) -> None:
        self.counters = Counters()
        self.ready = threading.Event()
        self.address = (listen.host, listen.port)
        self.spool = spool
        self._make_matcher = matcher
        self._matcher: Signatures | None = None
        self._listen = listen
        self._ask_senders = senders
        self._senders = senders()
        self._zones = zones
        self._now = now
        self._folder = Folder()
        self._refusals = Refusals()
        self._quotas = Quotas()
        self._shares = Shares()
        self._report_refusals = report_refusals
        self._make_unread_reader = unread_reader
        self._report_unread = report_unread
        self._relp_listener = relp
        self._relp: Connections | None = None
        self._tls_door = tls
        self._tls: Connections | None = None
        # Who is told of lines whose events are in the folder, and of those that left it.
        self._folded_for: list[Callable[[], None]] = []
        self._folded_lines = 0
        self._spooled_for: list[Callable[[], None]] = []
        self._doors = tuple(doors)
        self._delivery = Delivery(spool, inbox, counters=self.counters, clock=time.monotonic)
        self._backlog: list[_Admitted] = []
        self._flushed_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_held_back = False
        self._held_back_s = 0.0
        self._is_disk_full = False
        self._is_stopping = False
        self._turned_s: float | None = None
        self.undelivered_bytes = 0  # on disk and not known to be in the inbox; counted each second
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- life

    def run(self) -> None:
        """Receives until `stop`. Raises CannotListen when the address cannot be had."""
        delivery = threading.Thread(target=self._delivery.run, name="delivery", daemon=True)
        delivery.start()
        try:
            asyncio.run(self._serve())
        finally:
            self._delivery.stop()
            delivery.join(10.0)
            self.spool.close()

    @property
    def is_receiving(self) -> bool:
        """Whether its loop turns: what is sent is read, or held back on purpose."""
        return self._turned_s is not None and time.monotonic() - self._turned_s < _HANGS_AFTER_S

    @property
    def delivered(self) -> Extent | None:
        """The last batch that is known to be in the inbox."""
        return self._delivery.position

    def stop(self) -> None:
        self._is_stopping = True
        loop, stopped = self._loop, self._stopped
        if loop is not None and stopped is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(stopped.set)

    def _bind(self) -> None:
        """Raises CannotListen."""
        address = (self._listen.host, self._listen.port)
        try:
            stream = self._listen.stream or listen(address)
        except OSError as error:
            raise CannotListen(error.strerror or str(error)) from error
        self._connections = self._read(
            stream, Transport.TCP, partial(LineConnection, take=self.take)
        )
        self.address = self._connections.address
        try:
            self._datagrams = Datagrams(
                self.address, self.counters, self._take_datagrams, passed=self._listen.datagram
            )
        except OSError as error:
            self._connections.close_listener()
            raise CannotListen(error.strerror or str(error)) from error

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        # Bound before the signatures are compiled, which takes seconds: the kernel keeps what comes
        # meanwhile.
        self._bind()
        self._matcher = self._make_matcher()
        self._intake = Intake(
            self._matcher,
            zones=self._zones,
            counters=self.counters,
            folder=self._folder,
            unread_reader=self._make_unread_reader(),
        )
        self._connections.start(self._loop)
        self._datagrams.start(self._loop)
        if self._relp_listener is not None:
            connect = partial(RelpConnection, take=self.take_acknowledged)
            self._relp = self._read(self._relp_listener, Transport.RELP, connect)
            self._relp.start(self._loop)
        if self._tls_door is not None:
            lines = partial(LineConnection, take=self.take)
            listener = self._tls_door.listener
            self._tls = self._read(listener, Transport.TLS, lines, self._tls_door)
            self._tls.start(self._loop)
        for door in self._doors:
            # In a thread: it asks the database whom to believe, which no event loop may wait for.
            await asyncio.to_thread(
                door.start, partial(self._deliver, door), lambda: self._senders, self.counters
            )
        turning = asyncio.create_task(self._mark_turns())
        housekeeping = asyncio.create_task(self._keep_house())
        _log.info(
            "receiver %s listens on %s port %d, UDP and TCP", self.spool.receiver, *self.address
        )
        self._turned_s = time.monotonic()
        self.ready.set()
        try:
            if not self._is_stopping:  # asked before there was a loop to tell
                await self._stopped.wait()
        finally:
            turning.cancel()
            housekeeping.cancel()
            for door in self._doors:
                await asyncio.to_thread(door.stop)
            await asyncio.sleep(0)  # what the doors delivered last is taken in this turn
            await self._connections.drain_and_close(is_held_back=self._is_held_back)
            if self._tls is not None:
                await self._tls.drain_and_close(is_held_back=self._is_held_back)
            self._datagrams.drain_and_close(is_held_back=self._is_held_back)
            self._flush(everything=True)
            if self._relp is not None:
                await self._relp.tell_end_and_close()
            self._write_counters()
            if self._backlog:
                _log.error(
                    "%d events could not be written to the spool before the stop and are lost",
                    len(self._backlog),
                )

    # -- the way in

    def _read(
        self,
        listener: socket.socket,
        transport: Transport,
        connect: Callable[[Connections], Connection],
        tls: TlsDoor | None = None,
    ) -> Connections:
        accept = partial(self._accept, transport=transport)
        if tls is None:
            return Connections(listener, self.counters, accept, connect)
        return Connections(listener, self.counters, accept, connect, tls.context, tls.refused)

    def _accept(self, address: str, proof: str, *, transport: Transport) -> Sender | None:
        """The sender of a new connection; None refuses it."""
        if not self._senders.accepts(address):
            if not self.counters.refused_connections:
                _log.warning(
                    "refused a connection from %s: it is outside the accepted networks", address
                )
            self._refusals.add(address, "TCP", 1, self._now())
            return None
        if transport is Transport.TLS:
            proved = self._senders.build_proved_provenance(address, proof)
            return Sender(short_host(proof), provenance=proved) if proof else None
        provenance = self._senders.build_provenance(address, transport)
        return Sender(self._senders.get_host(address), provenance=provenance)

    def take(self, block: bytes, sender: Sender, surplus: int = 0) -> None:
        """Whole lines of one sender, and how many of the line feeds in them are between no two."""
        now = time.monotonic()
        self._intake.take(block, sender, observed_at=self._now(), now=now, surplus=surplus)
        if self._folder.is_waiting:
            self._schedule(now)

    def take_acknowledged(
        self, block: bytes, sender: Sender, acknowledge: Callable[[], None]
    ) -> None:
        """Whole lines of one sender, who is told once their events are in the spool: within some
        100 ms, or at once where no line states a fault."""
        now = time.monotonic()
        hits = self.counters.hits
        self._intake.take(block, sender, observed_at=self._now(), now=now)
        if self.counters.hits == hits:
            acknowledge()
            return
        self._folded_for.append(acknowledge)
        self._folded_lines += block.count(b"\n") + 1
        self._schedule(now)

    def _take_datagrams(self, blocks: dict[str, bytes]) -> None:
        for address, block in blocks.items():
            if self._senders.accepts_datagrams(address):
                self.take(block, self._datagrams.get_sender(address, self._senders))
            else:
                if not self.counters.refused_datagrams:
                    _log.warning(
                        "refused datagrams from %s: it is outside the accepted networks", address
                    )
                refused = block.count(b"\n") + 1
                self.counters.refused_datagrams += refused
                self._refusals.add(address, "UDP", refused, self._now())

    def _deliver(self, door: Door, events: Sequence[FaultEvent]) -> None:
        """In the door's own thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._take_events, door, events)

    def _take_events(self, door: Door, events: Sequence[FaultEvent]) -> None:
        now = time.monotonic()
        for event in events:
            same = (
                event.source,
                event.fault_type,
                event.event,
                event.resource,
                event.qualifier,
                event.excerpt,
            )
            self._folder.add(same, fold_event(event), now=now)
        door.count_taken(len(events))
        self._schedule(now)

    # -- the way out

    def _schedule(self, now: float) -> None:
        """At once after idle; within 100 ms under load; held repeats when they are due, or when
        their sender waits for it."""
        if self._folder.ready or self._folded_for:
            due: float | None = self._flushed_s + GROUP_S
            is_much = self._folder.ready >= BATCH_EVENTS or self._folded_lines >= ACKNOWLEDGE_LINES
            if now >= self._flushed_s + GROUP_S or is_much:
                self._flush()
                return
        else:
            due = self._folder.get_next_due() if self._timer is None else None
        if (
            self._loop is not None
            and due is not None
            and (self._timer is None or self._timer.when() > due)
        ):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._flush)

    def _flush(self, *, everything: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        taken = self._folder.take(now, everything=everything or bool(self._folded_for))
        self._spooled_for += self._folded_for
        self._folded_for, self._folded_lines = [], 0
        if taken:
            self._flushed_s = now
            observed_at = self._now()
            events = [folded.build_event(observed_at) for folded in taken]
            self._backlog += self._list_admitted(events, now)
        waited = self._quotas.take_due(now, everything=everything)
        self._backlog += [_Admitted(event, Turn.LAST) for event in waited]
        self._spool_backlog()
        if self._folder.is_waiting:
            self._schedule(now)

    def _list_admitted(self, events: Sequence[FaultEvent], now: float) -> list[_Admitted]:
        """Those for which the quotas of their senders have room. What is left out is told to
        people."""
        admitted = []
        for event in events:
            sender, transport = event.provenance.sender, event.provenance.transport
            if not self._quotas.may_name(event, self._senders.names, now):
                self.counters.refused_names += 1
                self._refusals.add(sender, NAMES, 1, self._now())
                continue
            # RELP holds its senders back by itself, and may not be told "taken" of what waits.
            is_free = transport is Transport.RELP or self._senders.is_listed_relay(sender)
            taken = event if is_free else self._quotas.take(event, now)
            if taken is not None:
                is_over = self._shares.is_over(event, now, is_free=is_free)
                admitted.append(_Admitted(taken, Turn.LAST if is_over else _get_turn(taken)))
        for (sender, why), count in self._quotas.take_refused().items():
            self.counters.refused_events += count
            self._refusals.add(sender, why, count, self._now())
        return admitted

    def _spool_backlog(self) -> None:
        """In batches of one turn, the urgent first. Events of one fault are of one severity, so
        that their order in time stays but where their source begins or ends to be over its
        share."""
        self._backlog.sort(key=_get_order)  # stable
        while self._backlog:
            turn = self._backlog[0].turn
            first = self._backlog[: _LAST_EVENTS if turn is Turn.LAST else BATCH_EVENTS]
            events = [admitted.event for admitted in first if admitted.turn is turn]
            batch = self._append(events, turn)
            if batch is None:
                break
            del self._backlog[: len(events)]
            self.counters.batches += 1
            self.counters.events += len(events)
            self.counters.occurrences += sum(event.count for event in events)
            self._delivery.post(batch)
        if not self._backlog:
            self._acknowledge_spooled()
        self._hold_back_or_go_on()

    def _acknowledge_spooled(self) -> None:
        spooled_for, self._spooled_for = self._spooled_for, []
        for acknowledge in spooled_for:
            acknowledge()

    def _append(self, events: list[FaultEvent], turn: Turn) -> Batch | None:
        try:
            batch = self.spool.append(events, turn=turn)
        except SpoolFull as error:
            if not self._is_disk_full:
                _log.error("%s %s", error, _HELD_BACK)
            self._is_disk_full = True
            self.counters.spool_failures += 1
            return None
        self._is_disk_full = False
        return batch

    def _hold_back_or_go_on(self) -> None:
        is_full = bool(self._backlog) or self.spool.size >= MAX_SPOOL_BYTES
        if is_full is self._is_held_back:
            return
        self._is_held_back = is_full
        self._connections.hold_back(is_full)
        self._datagrams.hold_back(is_full)
        if self._relp is not None:
            self._relp.hold_back(is_full)
        if self._tls is not None:
            self._tls.hold_back(is_full)
        for door in self._doors:
            door.hold_back(is_full)
        if is_full:
            self._held_back_s = time.monotonic()
            why = "the disk takes nothing" if self._backlog else f"the spool has {MAX_SPOOL_TEXT}"
            _log.warning("senders are held back: %s", why)
        else:
            held_s = time.monotonic() - self._held_back_s
            _log.warning("senders are read again, after %.0f s", held_s)

    # -- once a second

    async def _mark_turns(self) -> None:
        while True:
            self._turned_s = time.monotonic()
            await asyncio.sleep(_TICK_S)

    async def _keep_house(self) -> None:
        logged_s, logged = time.monotonic(), self.counters.copy_counts()
        reported_s = 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            await asyncio.to_thread(self._sync)
            if self._quotas.is_holding:
                self._flush()
            else:
                self._spool_backlog()
            self._datagrams.count_lost()
            self._write_counters()
            if time.monotonic() - reported_s >= _REPORT_EVERY_S:
                reported_s = time.monotonic()
                await self._report()
            if time.monotonic() - logged_s < _TOLD_EVERY_S:
                continue
            logged_s, before, logged = time.monotonic(), logged, self.counters.copy_counts()
            self._senders = await asyncio.to_thread(self._ask_senders)
            await self._renew_matcher()
            if logged != before:
                _log.info(
                    "%s", " ".join(f"{name}={logged[name]}" for name in logged if logged[name])
                )

    async def _renew_matcher(self) -> None:
        """Where the catalogue has changed since."""
        matcher = await asyncio.to_thread(self._make_matcher)
        if matcher is self._matcher:
            return
        unread_reader = await asyncio.to_thread(self._make_unread_reader)
        self._matcher = matcher
        self._intake.replace_matcher(matcher, unread_reader)
        _log.info("lines are read by the catalogue as it is now")

    async def _report(self) -> None:
        refused, unread = self._refusals.take(), self._intake.unread.take()
        if refused:
            await asyncio.to_thread(self._report_refusals, refused)
        if unread and not await asyncio.to_thread(self._report_unread, unread):
            for line in unread:
                self._intake.unread.add(line)

    def _sync(self) -> None:
        try:
            self.spool.sync()
        except OSError as error:
            _log.error("the spool %s cannot be synced: %s", self.spool.directory, error)

    def _write_counters(self) -> None:
        """For people and monitoring: `counters.json` beside the segments, replaced whole."""
        path: Path = self.spool.directory / "counters.json"
        self.undelivered_bytes = self._delivery.undelivered_bytes
        values = {
            **self.counters.copy_counts(),
            "folded": self._folder.folded,
            "undelivered_bytes": self.undelivered_bytes,
        }
        values |= {
            "damaged_records": self.spool.damaged_records,
            "torn_bytes": self.spool.torn_bytes,
        }
        with contextlib.suppress(OSError):  # a full disk is told by spool_failures in the log
            path.with_suffix(".new").write_text(json.dumps(values))
            path.with_suffix(".new").replace(path)


def _get_turn(event: FaultEvent) -> Turn:
    return Turn.URGENT if event.severity is Severity.CRITICAL else Turn.ORDINARY


def _get_order(admitted: _Admitted) -> int:
    return _ORDER.index(admitted.turn)
