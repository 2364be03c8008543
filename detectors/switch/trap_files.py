"""Files that snmptrapd wrote, as captures: what the receiver makes of the same notifications over
the wire.

Never polls: notifications come by themselves, to detectors/receivers/snmptrap.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.detector import (
    DetectorError,
    NothingToCompare,
    Reading,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.provenance import Forger, Transport
from detectors.switch import traps


class SnmptrapDetector(NothingToCompare):
    """Text of snmptrapd, one or more notifications."""

    name: ClassVar[str] = "snmptrap"
    kind: ClassVar[TargetKind] = TargetKind.SWITCH
    transport: ClassVar[Transport] = Transport.SNMP_TRAP
    forger: ClassVar[Forger] = Forger.ANYONE
    every: ClassVar[timedelta] = timedelta(days=1)

    def wants(self, target: Target) -> bool:
        return False

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Raises DetectorError: there is nothing to ask."""
        raise DetectorError(
            f"{target.name}: notifications come by themselves; nothing can be asked for"
        )

    def sniff(self, text: bytes) -> str:
        return "snmptrapd"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        notifications = [
            notification
            for output in reading.outputs.values()
            for notification in traps.parse_text(output.stdout.decode("utf-8", "replace"))
        ]
        yield (
            reading.answered()
            if notifications
            else reading.silent("no notification in this text: it needs an snmpTrapOID")
        )
        for notification in notifications:
            yield from traps.observe_trap(reading, notification)
