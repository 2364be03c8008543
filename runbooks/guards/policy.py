"""What the operator allows, from the settings. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from runbooks.guards.verdicts import DEFAULT_BOUNDS, Bounds

# Two shipped runbooks by name, for those who arm them.
DRAIN_REBOOT_VERIFY = "drain_reboot_verify"
DRAIN_AND_ASK = "drain_and_ask"


@dataclass(frozen=True)
class Policy:
    """The operator's limits. `verify_command` empty: a person resumes. `stop_file` is looked for at
    each guard.

    `shadow_window`: what people did within it after an act in shadow counts as the same act.
    `bounds`: how many nodes may be out, how often, and how far without a person's leave.
    """

    cluster_name: str
    boot_time: timedelta
    verify_command: tuple[str, ...]
    verify_timeout: timedelta
    requeue_dead_jobs: bool
    stop_file: Path
    shadow_window: timedelta = timedelta(hours=24)
    bounds: Bounds = DEFAULT_BOUNDS

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Policy:
        """From the values of `kintsugi.configuration.config`."""
        stop_file = settings["KINTSUGI_STOP_FILE"] or settings["KINTSUGI_DATA_DIR"] / "stop"
        return cls(
            cluster_name=settings["KINTSUGI_CLUSTER_NAME"] or "",
            boot_time=settings["KINTSUGI_BOOT_TIME"],
            verify_command=tuple(shlex.split(settings["KINTSUGI_VERIFY_COMMAND"] or "")),
            verify_timeout=settings["KINTSUGI_VERIFY_TIMEOUT"],
            requeue_dead_jobs=settings["KINTSUGI_REQUEUE_DEAD_JOBS"],
            stop_file=Path(stop_file),
            shadow_window=settings["KINTSUGI_SHADOW_WINDOW"],
            bounds=_bounds(settings),
        )


def _bounds(settings: Mapping[str, Any]) -> Bounds:
    return Bounds(
        cap_nodes=settings["KINTSUGI_CAP_NODES"],
        cap_share=settings["KINTSUGI_CAP_SHARE"],
        pod_floor=settings["KINTSUGI_POD_FLOOR"],
        per_hour=settings["KINTSUGI_RATE_PER_HOUR"],
        breaker_share=settings["KINTSUGI_BREAKER_SHARE"],
        breaker_window=settings["KINTSUGI_BREAKER_WINDOW"],
        approval_above=settings["KINTSUGI_APPROVAL_ABOVE"],
        approval_time=settings["KINTSUGI_APPROVAL_TIME"],
    )
