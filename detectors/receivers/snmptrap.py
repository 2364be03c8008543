"""Receives SNMP traps and informs over UDP, and hands what they mean to the receiver that owns the
spool.

One thread of its own: a notification costs about 0.5 ms to decode, which must not hold up the lines
of syslog. What is not from an accepted network, not readable, not by known credentials or not of a
switch is counted and dropped.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from detectors import resources
from detectors.catalog.catalog import Catalog
from detectors.detector import Reading, Target, TargetKind
from detectors.evaluation.classify import classify
from detectors.faults import Action, FaultEvent
from detectors.provenance import Provenance, Transport
from detectors.receivers.counters import Counters
from detectors.receivers.senders import Senders
from detectors.receivers.trap_engine import OwnEngine, Taken, TrapEngine, TrapKeys
from detectors.switch import traps

_log = logging.getLogger(__name__)
_WAKE_S = 0.5
# So many at a time, and then a rest: a storm of notifications takes 40 % of a core at most, as one
# costs 0.7 ms and the lines of syslog share the interpreter with it. What comes faster waits in the
# kernel, and is lost there at last.
_PER_WAKE = 250
_REST_S = 0.25
_ASK_AGAIN_S = 60.0
_LARGEST = 65535
# Some 4,000 notifications wait in the kernel; what comes beyond is lost there and counted by it.
_BUFFER_BYTES = 4 * 1024 * 1024
# Handed over and not yet taken by the receiver.
_MOST_WAITING = 2000
SOURCE = "snmptrap"
Deliver = Callable[[Sequence[FaultEvent]], None]


@dataclass(frozen=True)
class TrapSenders:
    """What the inventory says: whom to believe, which senders are nodes, which ports a switch
    has."""

    keys: TrapKeys = field(default_factory=TrapKeys)
    nodes: frozenset[str] = frozenset()
    ports: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def find_port_name(self, switch: str, index: str) -> str:
        """SONiC numbers a port EthernetN as N + 1 (sonic-snmpagent, mibs/__init__.py): if the
        switch has that port."""
        name = f"Ethernet{int(index) - 1}" if index.isdecimal() and int(index) > 0 else ""
        return name if name in self.ports.get(switch, frozenset()) else ""


class _Everything:
    """A clear is always told: whether anything stands is ingest's to know."""

    def __contains__(self, item: object) -> bool:
        return True


_ALL = _Everything()


def build_events(
    trap: traps.TrapNotification, host: str, known: TrapSenders, catalog: Catalog, now: datetime
) -> list[FaultEvent]:
    """What one notification of a switch raises and clears. Never more than a look is asked for."""
    reading = Reading(SOURCE, Target(host, "", kind=TargetKind.SWITCH), now)
    observations = traps.observe_trap(
        reading, trap, lambda index: known.find_port_name(resources.short_host(host), index)
    )
    found: list[FaultEvent] = []
    for observation in observations:
        for event in classify(observation, _ALL, catalog):
            action = event.action if Action.WATCH.at_least(event.action) else Action.WATCH
            found.append(
                replace(
                    event,
                    event_id="",
                    source=SOURCE,
                    action=action,
                    excerpt=trap.summary,
                    provenance=Provenance(host, Transport.SNMP_TRAP),
                )
            )
    return found


class TrapListener:
    """Holds its socket from the first; `start` reads it, `stop` ends that. `known` is asked again
    every minute.

    Raises OSError when the address cannot be had.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        directory: Path,
        known: Callable[[], TrapSenders],
        catalog: Catalog,
        now: Callable[[], datetime],
    ) -> None:
        self._ask_known = known
        self._catalog = catalog
        self._now = now
        self._directory = directory
        self._is_stopping = threading.Event()
        self._is_held_back = False
        self._waiting = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="snmptrap", daemon=True)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        try:
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._bell, self._ringer = socket.socketpair()
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._counters = Counters()
        self._senders: Callable[[], Senders] = Senders
        self._deliver: Deliver | None = None
        self._known = TrapSenders()
        self._engine: TrapEngine | None = None
        self._own: OwnEngine | None = None

    def start(self, deliver: Deliver, senders: Callable[[], Senders], counters: Counters) -> None:
        """`deliver` is called in this thread and says with `taken` when the events are taken."""
        self._deliver, self._senders, self._counters = deliver, senders, counters
        self._own = OwnEngine.load_from(self._directory)
        self._learn()
        self._thread.start()

    def hold_back(self, is_held_back: bool) -> None:
        self._is_held_back = is_held_back

    def count_taken(self, count: int) -> None:
        """The receiver has so many events less to take."""
        with self._counting:
            self._waiting -= count

    def stop(self) -> None:
        """What has arrived is decoded first."""
        self._is_stopping.set()
        self._ringer.send(b".")
        if self._thread.is_alive():
            self._thread.join(10.0)
        for each in (self._socket, self._bell, self._ringer):
            each.close()

    def _run(self) -> None:
        asked_s = time.monotonic()
        while not self._is_stopping.is_set():
            if self._is_held_back:
                self._is_stopping.wait(_WAKE_S)
            elif self._has_come() and self._drain(_PER_WAKE):
                self._is_stopping.wait(_REST_S)
            if self._engine is not None:
                self._engine.forget_unfinished_exchanges()
            if time.monotonic() - asked_s > _ASK_AGAIN_S:
                asked_s = time.monotonic()
                self._learn()
        self._drain(_PER_WAKE)

    def _has_come(self) -> bool:
        """Waits for a datagram, or for the bell that ends it all."""
        return self._socket in select.select([self._socket, self._bell], [], [], _WAKE_S)[0]

    def _drain(self, most: int) -> bool:
        """Up to so many; True when there may be more."""
        for _ in range(most):
            try:
                datagram, address = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                return False
            except OSError as error:  # an ICMP error of an answer that nobody took
                _log.debug("the trap socket: %s", error)
                continue
            self.take(datagram, (str(address[0]), int(address[1])))
        return True

    def take(self, datagram: bytes, address: tuple[str, int]) -> None:
        """One datagram: counted, and where it means something, delivered."""
        counters, senders = self._counters, self._senders()
        counters.traps += 1
        if not senders.accepts(address[0]):
            if not counters.refused_traps:
                _log.warning(
                    "refused a notification from %s: it is outside the accepted networks",
                    address[0],
                )
            counters.refused_traps += 1
            return
        if self._engine is None:
            counters.unbelieved_traps += 1
            return
        taken, pairs = self._engine.take(datagram, address)
        if taken is Taken.MALFORMED:
            counters.malformed_traps += 1
        elif taken is Taken.TURNED_AWAY:
            if not counters.unbelieved_traps:
                _log.warning(
                    "a notification from %s has credentials that are not known here", address[0]
                )
            counters.unbelieved_traps += 1
        elif taken is Taken.NOTIFICATION:
            self._get_meaning(pairs, senders.get_host(address[0]))

    def _get_meaning(self, pairs: Sequence[tuple[str, object]], host: str) -> None:
        trap = traps.parse_oids(pairs)
        if (
            trap is None
            or not traps.is_known(trap)
            or resources.short_host(host) in self._known.nodes
        ):
            self._counters.unknown_traps += 1
            return
        found = build_events(trap, host, self._known, self._catalog, self._now())
        if self._waiting + len(found) > _MOST_WAITING:
            self._counters.lost_traps += len(found)
        elif found and self._deliver is not None:
            with self._counting:
                self._waiting += len(found)
            self._deliver(found)

    def _learn(self) -> None:
        """A new engine only where whom to believe has changed: it forgets the clocks of all
        senders."""
        known = self._ask_known()
        if (self._engine is None or known.keys != self._known.keys) and self._own is not None:
            if self._engine is not None:
                self._engine.close()
            self._engine = (
                None if known.keys.is_empty else TrapEngine(self._own, known.keys, self._answer)
            )
        self._known = known

    def _answer(self, message: bytes, address: tuple[str, int]) -> None:
        try:
            self._socket.sendto(message, address)
        except OSError as error:
            _log.debug("no answer could be sent to %s: %s", address[0], error)
