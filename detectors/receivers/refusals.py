"""Who sends from outside the accepted networks: kept until somebody takes it, so that people learn
of a closed port."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from detectors.faults import FaultEvent
from detectors.resources import UNKNOWN_HOST

# Addresses between two looks. Whoever forges more fills nothing: further ones count in the
# receiver's counters alone.
_MOST = 200


@dataclass
class RefusedInput:
    """Since the last `take`: what one address sent by one transport (TCP: connections, UDP:
    datagrams)."""

    address: str
    transport: str
    count: int
    last_at: datetime


class Refusals:
    """In the receiver's own thread alone."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], RefusedInput] = {}

    def add(self, address: str, transport: str, count: int, at: datetime) -> None:
        seen = self._seen.get((address, transport))
        if seen is not None:
            seen.count += count
            seen.last_at = at
        elif len(self._seen) < _MOST:
            self._seen[(address, transport)] = RefusedInput(address, transport, count, at)

    def take(self) -> list[RefusedInput]:
        seen, self._seen = self._seen, {}
        return list(seen.values())


# What RefusedInput.transport says of events that were read and left out.
NAMES, EVENTS = "names", "events"
# Machines that no inventory knows, in whose name one sender may state faults within a day, and all
# senders together. Our choice: enough for a rack that is new, a screenful for people.
_MOST_NAMES, _MOST_NAMES_OF_ALL = 20, 100
_DAY_S = 86400.0
# Faults that one sender may state at once, and each second: ingest counts some 10,000 a second, so
# another's waits for a tenth of a second. Our choice; a log host in the list of relays has none.
_BURST, _PER_SECOND = 1000, 50.0
_SENDERS = 20_000


@dataclass
class _Account:
    """What one sender has left."""

    events: float
    at_s: float


class Quotas:
    """Which events are left out, so that no sender makes many machines up or crowds others out. In
    the receiver's own thread alone; `now` is of a monotonic clock."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._all_names: set[str] = set()
        self._began_s = 0.0
        self._accounts: dict[str, _Account] = {}

    def find_refusal(
        self, event: FaultEvent, known: Collection[str] | None, *, is_limited: bool, now: float
    ) -> str:
        """NAMES, EVENTS, or empty for an event that is taken. `known`: the machines of the
        inventory, None where they are not known; `is_limited`: the sender is no listed relay."""
        sender = event.provenance.sender
        if known is not None and not self._is_named(event, sender, known, now):
            return NAMES
        return EVENTS if is_limited and not self._has_room(sender, now) else ""

    def _is_named(self, event: FaultEvent, sender: str, known: Collection[str], now: float) -> bool:
        name = event.resource.split("/", 2)[1]
        if name in known or name == UNKNOWN_HOST:
            return True
        if now - self._began_s > _DAY_S:
            self._names, self._all_names, self._began_s = {}, set(), now
        names = self._names.get(sender, set())
        if name in names:
            return True
        is_full = len(names) >= _MOST_NAMES or len(self._all_names) >= _MOST_NAMES_OF_ALL
        if is_full and name not in self._all_names:
            return False
        self._names.setdefault(sender, names).add(name)
        self._all_names.add(name)
        return True

    def _has_room(self, sender: str, now: float) -> bool:
        account = self._accounts.get(sender)
        if account is None:
            if len(self._accounts) >= _SENDERS:
                self._accounts.clear()
            account = self._accounts[sender] = _Account(_BURST, now)
        gained = (now - account.at_s) * _PER_SECOND
        account.events, account.at_s = min(_BURST, account.events + gained), now
        if account.events < 1.0:
            return False
        account.events -= 1.0
        return True
