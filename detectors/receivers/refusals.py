"""Who sends from outside the accepted networks: kept until somebody takes it, so that people learn
of a closed port."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from detectors.provenance import Provenance
from detectors.resources import UNKNOWN_HOST, owner

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


# What RefusedInput.transport says of events that were read and left out: for machines that no
# inventory knows, too many at once, too many faults of one machine in a day.
NAMES, EVENTS, FAULTS = "names", "events", "faults"
# Machines that no inventory knows, in whose name one sender may state faults within a day, and all
# senders together. Our choice: enough for a rack that is new, a screenful for people.
_MOST_NAMES, _MOST_NAMES_OF_ALL = 20, 100
_DAY_S = 86400.0
# Faults that one sender may state at once, and each second; another sender's fault may wait for
# them. Of new ones ingest took 0.2 to 0.3 s for 250, for 1,000 of as many nodes 0.8 s and of one
# 2 s (two cores, PostgreSQL). A machine speaks for its own parts, a relay for many machines; where
# the site has listed none, strangers are taken for relays. Our choice; a listed relay has no quota.
_BURST, _BURST_OF_RELAY, _PER_SECOND = 250, 1000, 50.0
_SENDERS = 20_000


# Faults over that are kept until the sender has room again, one event for each; more are left out.
_MOST_HELD, _MOST_HELD_OF_ALL = 5_000, 20_000

_FaultKey = tuple[str, str, str]


# New faults of one machine that one sender may state within a day: each further one makes ingest
# slower for those that share its pod. 25 more of one machine took ingest 0.2 s of CPU beside 1,000
# active ones and 0.6 s beside 3,000 (PostgreSQL, one core). Our choice, several times what the
# places of a node can show at once. What is remembered for it is bounded too.
_MOST_FAULTS, _MOST_REMEMBERED = 1000, 200_000


@dataclass
class _Account:
    """What one sender has left, and what waits for room: by fault, the kinds of event in order."""

    burst: float
    events: float
    at_s: float
    held: dict[_FaultKey, dict[EventKind, FaultEvent]] = field(default_factory=dict)

    def takes(self, now: float) -> bool:
        gained = (now - self.at_s) * _PER_SECOND
        self.events, self.at_s = min(self.burst, self.events + gained), now
        if self.events < 1.0:
            return False
        self.events -= 1.0
        return True


class Quotas:
    """How many events are taken of each sender, so that none makes many machines up or crowds
    others out. In the receiver's own thread alone; `now` is of a monotonic clock."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._all_names: set[str] = set()
        self._began_s = 0.0
        self._accounts: dict[str, _Account] = {}
        self._held = 0
        self._refused: dict[tuple[str, str], int] = {}
        self._faults: dict[tuple[str, str], set[_FaultKey]] = {}
        self._remembered = 0

    @property
    def is_holding(self) -> bool:
        return self._held > 0

    def may_name(self, event: FaultEvent, known: Collection[str] | None, now: float) -> bool:
        """Whether its machine is one of the inventory (`known`; None: not known), or one of the few
        others that its sender may name."""
        name = event.resource.split("/", 2)[1]
        if known is None or name in known or name == UNKNOWN_HOST:
            return True
        self._begin_day(now)
        sender = event.provenance.sender
        names = self._names.get(sender, set())
        if name in names:
            return True
        is_full = len(names) >= _MOST_NAMES or len(self._all_names) >= _MOST_NAMES_OF_ALL
        if is_full and name not in self._all_names:
            return False
        self._names.setdefault(sender, names).add(name)
        self._all_names.add(name)
        return True

    def take(self, event: FaultEvent, now: float) -> FaultEvent | None:
        """The event while its sender has room. None: it waits, or was left out (`refused`)."""
        key = (event.fault_type, event.resource, event.qualifier)
        if not self._may_state(key, event, now):
            self._refuse(event, FAULTS)
            return None
        account = self._get_account(event.provenance, now)
        if key not in account.held and account.takes(now):
            return event
        self._hold(account, key, event)
        return None

    def take_due(self, now: float, *, everything: bool = False) -> list[FaultEvent]:
        """What waited and has room now; everything when the receiver stops."""
        due: list[FaultEvent] = []
        for account in self._accounts.values() if self._held else ():
            while account.held and (everything or account.takes(now)):
                events = account.held.pop(next(iter(account.held)))
                self._held -= 1
                due += events.values()
        return due

    def take_refused(self) -> dict[tuple[str, str], int]:
        """By sender and why (EVENTS, FAULTS), how many events were left out since the last call."""
        refused, self._refused = self._refused, {}
        return refused

    def _begin_day(self, now: float) -> None:
        if now - self._began_s > _DAY_S or self._remembered >= _MOST_REMEMBERED:
            self._names, self._all_names, self._began_s = {}, set(), now
            self._faults, self._remembered = {}, 0

    def _may_state(self, key: _FaultKey, event: FaultEvent, now: float) -> bool:
        """Whether it is a fault that its sender has stated today, or one of the few more of its
        machine that it may state."""
        if event.event is EventKind.CLEARED:
            return True
        self._begin_day(now)
        machine = owner(event.resource)
        stated = self._faults.setdefault((event.provenance.sender, machine), set())
        if key in stated:
            return True
        if len(stated) >= _MOST_FAULTS:
            return False
        stated.add(key)
        self._remembered += 1
        return True

    def _refuse(self, event: FaultEvent, why: str) -> None:
        key = (event.provenance.sender, why)
        self._refused[key] = self._refused.get(key, 0) + 1

    def _get_account(self, told_by: Provenance, now: float) -> _Account:
        sender = told_by.sender
        account = self._accounts.get(sender)
        if account is None:
            if len(self._accounts) >= _SENDERS:
                idle = [name for name, other in self._accounts.items() if not other.held]
                for name in idle:
                    del self._accounts[name]
            burst = _BURST_OF_RELAY if told_by.is_relay else _BURST
            account = self._accounts[sender] = _Account(burst, burst, now)
        return account

    def _hold(self, account: _Account, key: _FaultKey, event: FaultEvent) -> None:
        """A repeat joins what waits of its fault; an end after a beginning, and the reverse, stays
        after it."""
        waiting = account.held.get(key)
        if waiting is None:
            if len(account.held) >= _MOST_HELD or self._held >= _MOST_HELD_OF_ALL:
                self._refuse(event, EVENTS)
                return
            waiting = account.held[key] = {}
            self._held += 1
        before = waiting.pop(event.event, None)
        if before is None:
            waiting[event.event] = event
            return
        latest = event if waiting else before
        count = before.count + event.count
        waiting[event.event] = replace(latest, count=count, source_key="")


# Events of one source at once that are taken in their turn, and each second; the rest of them waits
# behind those of all other sources. Our choice: a tenth of what a sender may state at once; more
# than the GPUs and links that a node loses in a moment.
_SHARE, _SHARE_OF_RELAY, _SHARE_PER_SECOND = 25, 100, 5.0


@dataclass
class _Share:
    """What a source has left of its share. Over it, it stays over until it has all again: its
    events overtake each other no more often than that."""

    whole: float
    left: float
    at_s: float
    is_over: bool = False

    def takes(self, now: float) -> bool:
        gained = (now - self.at_s) * _SHARE_PER_SECOND
        self.left, self.at_s = min(self.whole, self.left + gained), now
        self.is_over = self.left < 1.0 or (self.is_over and self.left < self.whole)
        self.left = max(0.0, self.left - 1.0)
        return not self.is_over


class Shares:
    """Whose events go before those of others. A source is a sender, or of one that may tell of all
    machines each of these. In the receiver's own thread alone; `now` is of a monotonic clock."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    def is_over(self, event: FaultEvent, now: float, *, is_free: bool) -> bool:
        """Whether its source has had its share, so that this one waits behind those of others.
        `is_free`: its sender has no quota."""
        source = event.provenance.sender
        is_relay = event.provenance.is_relay and not is_free
        if is_free:
            source = f"{source} {owner(event.resource)}"
        share = self._shares.get(source)
        if share is None:
            if len(self._shares) >= _SENDERS:
                self._shares.clear()
            whole = float(_SHARE_OF_RELAY if is_relay else _SHARE)
            share = self._shares[source] = _Share(whole, whole, now)
        return not share.takes(now)
