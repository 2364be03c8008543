"""What a rule of correlation may lack by one condition, and how people read it. Pure; decides
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Miss(StrEnum):
    """A condition that does not hold."""

    PEERS = "peers"
    WINDOW = "window"
    DIRECTION = "direction"
    STATE = "state"
    REPORTED = "reported"
    MACHINES = "machines"
    FIXED = "fixed"
    WATCHED = "watched"
    DOUBTED = "doubted"


@dataclass(frozen=True)
class Nearly:
    """A rule that all but joined a fault to this incident."""

    incident: int
    rule: str
    reason: str


# Ends the sentence "14 min after switch.rebooted on leaf-01: ...". Empty: nothing that a person
# could use.
WORDS: dict[Miss, str] = {
    Miss.PEERS: "each could be the cause of the other, so neither is taken for it",
    Miss.WINDOW: "too far apart in time for this rule",
    Miss.DIRECTION: "they came in the wrong order for this rule",
    Miss.STATE: "the incident is in another state than this rule asks for",
    Miss.REPORTED: "",
    Miss.MACHINES: "that incident spans several machines, so its cause lies elsewhere",
    Miss.FIXED: "a person chose the root of that incident",
    Miss.WATCHED: (
        "that incident is watched after its repair, and this fault calls for a repair of its own"
    ),
    Miss.DOUBTED: "a text alone has told of that cause, and what was measured is not put behind it",
}
