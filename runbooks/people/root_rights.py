"""What runs do as root on nodes, and whether sudo lets them: asked of sudo itself, which runs
nothing for it."""

from __future__ import annotations

from datetime import timedelta

from detectors.detector import Command, DetectorError, Shell, Target
from runbooks.library import library
from runbooks.node import gpu_reset
from runbooks.plan.runbook import Runbook
from runbooks.steps.reset_gpu import ResetGpu

_LIMIT = timedelta(seconds=5)
_WHO = "id"


def list_runbooks() -> list[str]:
    """The runbooks that need root on a node. Raises LibraryError."""
    return [name for name, book in library.load().items() if _has_reset(book)]


def list_units() -> tuple[str, ...]:
    """The units that runbooks have stopped for a reset, beside the usual ones. Raises
    LibraryError."""
    steps = [planned for book in library.load().values() for planned in book.steps]
    resets = [planned for planned in steps if _is_reset(planned.step.name)]
    return tuple(sorted({unit for planned in resets for unit in planned.params["units"]}))


def list_commands(target: Target, more_units: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All that runs do as root on this node."""
    return gpu_reset.list_commands([address for _, address in target.expected.gpus], more_units)


def list_missing(
    shell: Shell, target: Target, more_units: tuple[str, ...]
) -> list[str] | DetectorError:
    """What the node's sudo does not let us do; the error where it cannot be asked.

    `sudo -n -l COMMAND` ends with 0 for what is allowed and 1 for what is not, and runs nothing
    (sudo 1.9.13p3). What is allowed with a password alone counts as allowed where another line asks
    for none: the run meets that.
    """
    argvs = {f"c{index}": argv for index, argv in enumerate(list_commands(target, more_units))}
    bundle = [Command(name, ("sudo", "-n", "-l", *argv), _LIMIT) for name, argv in argvs.items()]
    try:
        outputs = shell.run_all(target, "preflight", [Command(_WHO, ("id", "-u"), _LIMIT), *bundle])
    except DetectorError as error:
        return error
    if outputs[_WHO].stdout.strip() == b"0":
        return []
    return [" ".join(argv) for name, argv in argvs.items() if outputs[name].status != 0]


def _has_reset(book: Runbook) -> bool:
    return any(_is_reset(planned.step.name) for planned in book.steps)


def _is_reset(step: str) -> bool:
    return step == ResetGpu.name
