"""How far a runbook may go before it is held back or asks: what its file says under `limits`.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Limits:
    """None: the general limits alone.

    `per_hour`: runs begun within an hour for one fault type. `approval_above`: with so many nodes
    taken out by this runbook already, a person approves the next. `window`: how long after a run a
    fault that comes back counts as not cured.
    """

    per_hour: int | None = None
    approval_above: int | None = None
    window: timedelta | None = None


NO_LIMITS = Limits()
