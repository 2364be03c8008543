"""The runbooks: which steps, in which order, for what. Data in `library/*.yaml` and in a site's own
folder.

A site's file of the same name takes the place of a shipped one, where it declares a higher version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings

from detectors.catalog import catalog
from runbooks.plan import runbook_file
from runbooks.plan.limits import NO_LIMITS, Limits
from runbooks.plan.runbook import Planned, Runbook
from runbooks.plan.runbook_file import LibraryError
from runbooks.step import Parameter, Step
from runbooks.steps.ask_person import AskPerson
from runbooks.steps.await_part import AwaitPart
from runbooks.steps.burn_in import BurnIn
from runbooks.steps.cold_cycle import ColdCycle
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.diagnose import Diagnose, Where
from runbooks.steps.diagnose_in_job import DiagnoseInJob
from runbooks.steps.drain import AdoptDrain, Drain
from runbooks.steps.notify import Notify
from runbooks.steps.open_vendor_case import OpenVendorCase
from runbooks.steps.pause_pollers import PausePollers
from runbooks.steps.quarantine import QuarantineNode
from runbooks.steps.reboot import Reboot
from runbooks.steps.requeue_dead_jobs import RequeueDeadJobs
from runbooks.steps.reset_gpu import ResetGpu
from runbooks.steps.restart_units import RestartUnits
from runbooks.steps.resume import Resume
from runbooks.steps.swap_hot_spare import SwapHotSpare
from runbooks.steps.verify import Verify
from runbooks.steps.wait_for_boot import WaitForBoot
from runbooks.steps.wait_for_jobs import WaitForJobs
from runbooks.steps.wait_for_neighbours import WaitForNeighbours
from runbooks.steps.watch import WatchStep

__all__ = [
    "STEPS",
    "LibraryError",
    "Planned",
    "Runbook",
    "get_limits",
    "load",
    "load_plan",
    "plan_step",
    "read",
    "read_folders",
]

# One line each: a new step is one class, its tests, and its line here.
STEPS: tuple[Step, ...] = (
    Drain(),
    AdoptDrain(),
    RequeueDeadJobs(),
    WaitForJobs(),
    ConfirmOnNode(),
    RestartUnits(),
    PausePollers(),
    ResetGpu(),
    Reboot(),
    ColdCycle(),
    WaitForBoot(),
    Verify(),
    Diagnose(),
    BurnIn(),
    Resume(),
    OpenVendorCase(),
    AwaitPart(),
    SwapHotSpare(),
    QuarantineNode(),
    Notify(),
    AskPerson(),
    WaitForNeighbours(),
    WatchStep(),
)
# What `where` makes of a step.
_ELSEWHERE: Mapping[Where, Step] = {Where.JOB: DiagnoseInJob()}
_FOLDER = Path(__file__).parent


@lru_cache(maxsize=4)
def read_folders(own: Path | None) -> dict[str, Runbook]:
    """The shipped runbooks and those of a site's own folder, by name. Raises LibraryError naming
    every problem."""
    problems: list[str] = []
    books = {
        path.stem: book
        for path in _list_files(_FOLDER)
        if (book := _read_or_note(path, problems)) is not None
    }
    if own is not None and not _list_files(own):
        problems.append(f"{own}: no folder with *.yaml files")
    for path in _list_files(own) if own is not None else ():
        book = _read_or_note(path, problems, is_sites_own=True)
        shipped = books.get(path.stem)
        if book is not None and shipped is not None and book.number <= shipped.number:
            expected = (
                f"expected {shipped.number + 1} or more, since it takes the place of the shipped"
                f" {book.name}"
            )
            problems.append(f"{path.name}:1: version is {book.number}; {expected}")
        elif book is not None:
            books[book.name] = book
    if problems:
        raise LibraryError("\n".join(problems))
    return dict(sorted(books.items()))


def load() -> dict[str, Runbook]:
    """All runbooks by name, read once per process. Raises LibraryError."""
    return read_folders(settings.KINTSUGI["KINTSUGI_RUNBOOKS"])


def get_limits(runbook: str) -> Limits:
    """As its file says now: limits hold for the present, not for the time when a run started."""
    return getattr(load().get(runbook), "limits", NO_LIMITS)


def read(path: Path, *, is_sites_own: bool = False) -> Runbook:
    """One file. Raises LibraryError with a line for each problem."""
    return runbook_file.read_runbook(path, catalog.load(), plan_step, is_sites_own=is_sites_own)


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.yaml") if path.is_file())


def _read_or_note(path: Path, problems: list[str], *, is_sites_own: bool = False) -> Runbook | None:
    try:
        return read(path, is_sites_own=is_sites_own)
    except LibraryError as error:
        problems.append(str(error))
        return None


def load_plan(plan: Sequence[Mapping[str, Any]]) -> tuple[Planned, ...]:
    """The steps as a run's own plan holds them, whatever the library says by now. Raises
    LibraryError."""
    return tuple(
        plan_step(str(row["step"]), row["with"], needs_approval=bool(row.get("approval", False)))
        for row in plan
    )


def plan_step(name: str, given: Mapping[str, Any], *, needs_approval: bool = False) -> Planned:
    """A step by name with what is given to it. Raises LibraryError naming step, parameter and what
    was expected."""
    step = next((step for step in STEPS if step.name == name), None)
    if step is None:
        raise LibraryError(
            f"no step {name}; expected one of {', '.join(sorted(step.name for step in STEPS))}"
        )
    unknown = sorted(set(given) - set(step.parameters))
    if unknown:
        known = ", ".join(step.parameters) or "none"
        raise LibraryError(f"{name}: no parameter {', '.join(unknown)}; expected {known}")
    params = {key: _parse_value(name, key, step.parameters[key], given) for key in step.parameters}
    chosen = _ELSEWHERE.get(params.get("where", Where.SSH), step)
    return Planned(chosen, params, given, needs_approval or chosen.needs_approval)


def _parse_value(step: str, key: str, parameter: Parameter, given: Mapping[str, Any]) -> Any:
    if key not in given:
        if parameter.is_needed:
            raise LibraryError(f"{step}: {key} is missing; expected {parameter.expected}")
        return parameter.default
    try:
        return parameter.read(given[key])
    except (ValueError, TypeError) as error:
        raise LibraryError(
            f"{step}: {key} is {given[key]!r}; expected {parameter.expected}"
        ) from error
