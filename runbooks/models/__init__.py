"""Tables of what is done. Models hold data and constraints only; `runbooks.services` alone
writes."""

from __future__ import annotations

from runbooks.models.arming import Arming
from runbooks.models.breaker import Breaker
from runbooks.models.questions import Question
from runbooks.models.record import AuditEntry, PreflightReport, SeenAct, SeenNode, ShadowAct
from runbooks.models.run import (
    UNFINISHED,
    Approval,
    CureAttempt,
    FleetLock,
    Installation,
    JobStop,
    Mode,
    ReturnStop,
    Run,
    RunbookMode,
    RunState,
    StepRun,
    StopSwitch,
)
from runbooks.models.second_person import SecondPersonRequest

__all__ = [
    "UNFINISHED",
    "Approval",
    "Arming",
    "AuditEntry",
    "Breaker",
    "CureAttempt",
    "FleetLock",
    "Installation",
    "JobStop",
    "Mode",
    "PreflightReport",
    "Question",
    "ReturnStop",
    "Run",
    "RunState",
    "RunbookMode",
    "SecondPersonRequest",
    "SeenAct",
    "SeenNode",
    "ShadowAct",
    "StepRun",
    "StopSwitch",
]
