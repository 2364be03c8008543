"""What became of something that a person ordered. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Controlled:
    """It is so from now on; `text` says what."""

    text: str


@dataclass(frozen=True)
class AskedSecond:
    """Nothing was changed yet: a second person has to confirm it; `text` says how and until
    when."""

    text: str


@dataclass(frozen=True)
class ControlRefused:
    """Nothing was changed; `reason` says why and what is possible."""

    reason: str

    def __str__(self) -> str:
        return self.reason


Outcome = Controlled | AskedSecond | ControlRefused
