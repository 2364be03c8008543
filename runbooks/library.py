"""The runbooks: which steps, in which order. Data in `library/*.toml`; loading checks every name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runbooks.step import Step
from runbooks.steps.ask_person import AskPerson
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.drain import Drain
from runbooks.steps.reboot import Reboot
from runbooks.steps.requeue_dead_jobs import RequeueDeadJobs
from runbooks.steps.resume import Resume
from runbooks.steps.verify import Verify
from runbooks.steps.wait_for_boot import WaitForBoot
from runbooks.steps.wait_for_jobs import WaitForJobs

# One line each: a new step is one class, its tests, and its line here.
STEPS: tuple[Step, ...] = (
    Drain(),
    RequeueDeadJobs(),
    WaitForJobs(),
    ConfirmOnNode(),
    Reboot(),
    WaitForBoot(),
    Verify(),
    Resume(),
    AskPerson(),
)
_FOLDER = Path(__file__).parent / "library"


class LibraryError(Exception):
    """A runbook that cannot be: its file and what is wrong with it."""


@dataclass(frozen=True)
class Runbook:
    """`title` and `meaning` are for people."""

    name: str
    title: str
    meaning: str
    steps: tuple[Step, ...]


@lru_cache(maxsize=1)
def load() -> dict[str, Runbook]:
    """All runbooks by name. Raises LibraryError."""
    return {path.stem: read(path) for path in sorted(_FOLDER.glob("*.toml"))}


def read(path: Path) -> Runbook:
    """One file: `title`, `meaning`, `steps`. Raises LibraryError naming file and reason."""
    by_name = {step.name: step for step in STEPS}
    try:
        row = tomllib.loads(path.read_text())
        title, meaning, names = str(row["title"]), str(row["meaning"]), list(row["steps"])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise LibraryError(f"{path.name}: needs title, meaning and steps ({error})") from error
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        raise LibraryError(f"{path.name}: no step {', '.join(unknown)}; there are {', '.join(sorted(by_name))}")
    return Runbook(name=path.stem, title=title, meaning=meaning, steps=tuple(by_name[name] for name in names))
