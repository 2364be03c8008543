"""A walk of many columns at once, GETBULK by GETBULK, whichever protocol version carries it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Protocol

from pyasn1.type import univ

from detectors.detector import DetectorError, SnmpValue
from detectors.transports.snmp_credentials import SnmpLimits

Oid = tuple[int, ...]


class SnmpTimeout(Exception):
    """Nothing came back to one request, all tries over."""


class SnmpRefused(Exception):
    """The agent, or the security layer, turned a request down; `hint` says what to check."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


Bound = tuple[Oid, Any]


class Session(Protocol):
    """Requests to one agent. Raises SnmpTimeout or SnmpRefused."""

    async def get(self, oids: Sequence[Oid]) -> list[Bound]: ...

    async def bulk(self, after: Sequence[Oid], repetitions: int) -> list[Bound]: ...


class Walk:
    """One walk of several columns, GETBULK by GETBULK. A column that has come to its end drops out.

    `rows`: how long the longest column was the last time, so that the last answer brings little
    past the end.
    """

    def __init__(
        self,
        session: Session,
        columns: Sequence[str],
        limits: SnmpLimits,
        *,
        rows: int | None = None,
    ) -> None:
        self._session, self._limits = session, limits
        self._rows_before, self.rows = rows, 0
        self._cursors = {parse_oid(column): parse_oid(column) for column in columns}
        self._lengths = dict.fromkeys(self._cursors, 0)
        self._found: dict[str, SnmpValue] = {}
        self._most = limits.objects_per_answer

    async def run(self) -> dict[str, SnmpValue]:
        deadline = asyncio.get_running_loop().time() + self._limits.walk_s
        active = list(self._cursors)
        while active:
            if asyncio.get_running_loop().time() > deadline:
                raise DetectorError(
                    f"not done within {self._limits.walk_s:g} s, {len(self._found)} objects read"
                )
            answer = await self._ask(active)
            done = self._take(active, answer)
            active = [column for column in active if column not in done]
            if len(self._found) > self._limits.objects:
                below = format_oid(active[0])
                raise DetectorError(
                    f"more than {self._limits.objects} objects below {below}: given up"
                )
        self.rows = max(self._lengths.values(), default=0)
        return self._found

    async def _ask(self, active: Sequence[Oid]) -> list[Bound]:
        while True:
            repetitions = max(self._most // len(active), 1)
            left = 0 if self._rows_before is None else self._rows_before - self.rows + 1
            if left > 0:
                repetitions = math.ceil(left / math.ceil(left / repetitions))
            try:
                return await self._session.bulk(
                    [self._cursors[column] for column in active], repetitions
                )
            except SnmpTimeout:
                if not self._found:
                    raise
                raise DetectorError(
                    f"it stopped answering after {len(self._found)} objects"
                ) from None
            except SnmpRefused as error:
                if str(error) != "tooBig" or self._most <= len(active):
                    raise
                self._most = max(self._most // 2, 1)

    def _take(self, active: Sequence[Oid], answer: Sequence[Bound]) -> set[Oid]:
        """Objects come row by row, one of each column; a row cut short is gone on with in the next
        request."""
        done: set[Oid] = set()
        before = len(self._found)
        for place, (oid, value) in enumerate(answer):
            column = active[place % len(active)]
            if column in done:
                continue
            if oid[: len(column)] != column or isinstance(value, _NOTHING):
                done.add(column)
            elif oid <= self._cursors[column]:
                last = format_oid(self._cursors[column])
                raise DetectorError(f"the agent went back to {format_oid(oid)} after {last}")
            else:
                self._cursors[column] = oid
                self._lengths[column] += 1
                self._found[format_oid(oid)] = to_plain(value)
        self.rows += math.ceil(len(answer) / len(active))
        if not done and len(self._found) == before:
            raise DetectorError(f"an empty answer after {format_oid(self._cursors[active[0]])}")
        return done


# noSuchObject, noSuchInstance and endOfMibView are kinds of it.
_NOTHING = univ.Null


def to_plain(value: Any) -> SnmpValue:
    """pysnmp's value as detectors take it; addresses as bytes."""
    if isinstance(value, _NOTHING):
        return None
    if isinstance(value, univ.Integer):
        return int(value)
    if isinstance(value, univ.OctetString):
        return bytes(value)
    return str(value) if isinstance(value, univ.ObjectIdentifier) else None


def parse_oid(oid: str) -> Oid:
    return tuple(int(part) for part in oid.strip(".").split("."))


def format_oid(oid: Oid) -> str:
    return ".".join(map(str, oid))
