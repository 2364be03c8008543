"""What runs do as root on nodes, and whether sudo lets them: asked of sudo itself, which runs
nothing for it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from detectors.detector import Command, DetectorError, Shell, Target
from runbooks.library import library
from runbooks.node import gpu_reset, systemd_units
from runbooks.plan.runbook import Runbook
from runbooks.steps.reset_gpu import ResetGpu
from runbooks.steps.restart_units import RestartUnits

# The steps that do something as root on nodes.
STEPS = (ResetGpu.name, RestartUnits.name)

_LIMIT = timedelta(seconds=5)
_WHO = "id"


def list_runbooks(step: str) -> list[str]:
    """The runbooks with this step of `STEPS`. Raises LibraryError."""
    books = library.load().items()
    return [name for name, book in books if _has_step(book, step)]


def _has_step(book: Runbook, step: str) -> bool:
    return any(planned.step.name == step for planned in book.steps)


def list_units() -> tuple[str, ...]:
    """The units that runbooks have stopped for a reset, beside the usual ones. Raises
    LibraryError."""
    steps = [planned for book in library.load().values() for planned in book.steps]
    resets = [planned for planned in steps if planned.step.name == ResetGpu.name]
    return tuple(sorted({unit for planned in resets for unit in planned.params["units"]}))


def list_commands(
    target: Target, step: str, more_units: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    """All that this step of `STEPS` does as root on this node. `more_units` are those that a reset
    stops beside the usual ones."""
    if step == RestartUnits.name:
        return systemd_units.list_commands(target.expected)
    return gpu_reset.list_commands([address for _, address in target.expected.gpus], more_units)


def list_missing(
    shell: Shell, target: Target, commands: Iterable[tuple[str, ...]]
) -> list[str] | DetectorError:
    """Which of these the node's sudo does not let us do; the error where it cannot be asked.

    `sudo -n -l COMMAND` ends with 0 for what is allowed and 1 for what is not, and runs nothing
    (sudo 1.9.13p3). What is allowed with a password alone counts as allowed where another line asks
    for none: the run meets that.
    """
    argvs = {f"c{index}": argv for index, argv in enumerate(commands)}
    bundle = [Command(name, ("sudo", "-n", "-l", *argv), _LIMIT) for name, argv in argvs.items()]
    try:
        outputs = shell.run_all(target, "preflight", [Command(_WHO, ("id", "-u"), _LIMIT), *bundle])
    except DetectorError as error:
        return error
    if outputs[_WHO].stdout.strip() == b"0":
        return []
    return [" ".join(argv) for name, argv in argvs.items() if outputs[name].status != 0]
