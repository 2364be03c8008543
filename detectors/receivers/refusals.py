"""Who sends from outside the accepted networks: kept until somebody takes it, so that people learn
of a closed port."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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
