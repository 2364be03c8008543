"""What the operator allows, and which fault calls for which runbook. Decisions as tables; no I/O."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from detectors.faults import Action, Component

DRAIN_REBOOT_VERIFY = "drain_reboot_verify"
DRAIN_AND_ASK = "drain_and_ask"

# What an action class calls for. What is not here starts nothing by itself.
RUNBOOK_FOR: dict[Action, str] = {
    Action.RESET_GPU: DRAIN_REBOOT_VERIFY,
    Action.REBOOT: DRAIN_REBOOT_VERIFY,
    Action.COLD_CYCLE: DRAIN_AND_ASK,
    Action.VENDOR: DRAIN_AND_ASK,
}
# Taking a node away heals no switch, no cable and no file system; and a report is a person's word, not evidence.
COMPONENTS = frozenset({Component.GPU, Component.NVLINK, Component.NODE})


@dataclass(frozen=True)
class Policy:
    """The operator's limits. `verify_command` empty: a person resumes. `stop_file` is looked for at each guard."""

    cluster_name: str
    boot_time: timedelta
    verify_command: tuple[str, ...]
    verify_timeout: timedelta
    requeue_dead_jobs: bool
    stop_file: Path

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Policy:
        """From the values of `kintsugi.config`."""
        stop_file = settings["KINTSUGI_STOP_FILE"] or settings["KINTSUGI_DATA_DIR"] / "stop"
        return cls(
            cluster_name=settings["KINTSUGI_CLUSTER_NAME"] or "",
            boot_time=settings["KINTSUGI_BOOT_TIME"],
            verify_command=tuple(shlex.split(settings["KINTSUGI_VERIFY_COMMAND"] or "")),
            verify_timeout=settings["KINTSUGI_VERIFY_TIMEOUT"],
            requeue_dead_jobs=settings["KINTSUGI_REQUEUE_DEAD_JOBS"],
            stop_file=Path(stop_file),
        )


@dataclass(frozen=True)
class NoRunbook:
    """Nothing is started; `reason` is for people."""

    reason: str


def choose(action: Action, component: Component, *, is_node: bool, is_provisional: bool) -> str | NoRunbook:
    """The runbook for an incident, by its action class and where it is."""
    if not is_node:
        return NoRunbook("it is on no node of the inventory")
    if is_provisional:
        return NoRunbook("its node is not in the inventory, and what is not in the inventory is never acted upon")
    if component not in COMPONENTS:
        return NoRunbook(f"taking the node away does not help against a fault of class {component}")
    if action not in RUNBOOK_FOR:
        return NoRunbook(f"action class {action} calls for no runbook")
    return RUNBOOK_FOR[action]
