"""What the operator allows, from the settings. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from runbooks.guards import job_policy
from runbooks.guards.job_policy import JobPolicy
from runbooks.guards.verdicts import DEFAULT_BOUNDS, Bounds

# Two shipped runbooks by name, for those who arm them.
DRAIN_REBOOT_VERIFY = "drain_reboot_verify"
DRAIN_AND_ASK = "drain_and_ask"


# Fields that hold a setting as it is.
_SETTINGS = {
    "boot_time": "KINTSUGI_BOOT_TIME",
    "verify_timeout": "KINTSUGI_VERIFY_TIMEOUT",
    "requeue_dead_jobs": "KINTSUGI_REQUEUE_DEAD_JOBS",
    "shadow_window": "KINTSUGI_SHADOW_WINDOW",
}
_BOUNDS = {
    "cap_nodes": "KINTSUGI_CAP_NODES",
    "cap_share": "KINTSUGI_CAP_SHARE",
    "pod_floor": "KINTSUGI_POD_FLOOR",
    "per_hour": "KINTSUGI_RATE_PER_HOUR",
    "breaker_share": "KINTSUGI_BREAKER_SHARE",
    "breaker_window": "KINTSUGI_BREAKER_WINDOW",
    "approval_above": "KINTSUGI_APPROVAL_ABOVE",
    "approval_time": "KINTSUGI_APPROVAL_TIME",
}


@dataclass(frozen=True)
class Policy:
    """The operator's limits. `verify_command` empty: a person resumes. `stop_file` is looked for at
    each guard.

    `shadow_window`: how long after a run in shadow its node and the guards are asked again.
    `bounds`: how many nodes may be out, how often, and how far without a person's leave.
    `job_policies`: what may be done about jobs on a broken node, by partition.
    """

    cluster_name: str
    boot_time: timedelta
    verify_command: tuple[str, ...]
    verify_timeout: timedelta
    requeue_dead_jobs: bool
    stop_file: Path
    shadow_window: timedelta = timedelta(hours=24)
    bounds: Bounds = DEFAULT_BOUNDS
    job_policies: tuple[JobPolicy, ...] = ()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Policy:
        """From the values of `kintsugi.configuration.config`. Raises JobPolicyError."""
        jobs_file = settings["KINTSUGI_JOB_POLICY"]
        stop_file = settings["KINTSUGI_STOP_FILE"] or settings["KINTSUGI_DATA_DIR"] / "stop"
        verify_command = shlex.split(settings["KINTSUGI_VERIFY_COMMAND"] or "")
        bounds = {field: settings[key] for field, key in _BOUNDS.items()}
        job_policies = job_policy.load(jobs_file) if jobs_file else ()
        cluster_name = settings["KINTSUGI_CLUSTER_NAME"] or ""
        values = {field: settings[key] for field, key in _SETTINGS.items()}
        return cls(
            cluster_name=cluster_name,
            verify_command=tuple(verify_command),
            stop_file=Path(stop_file),
            bounds=Bounds(**bounds),
            job_policies=job_policies,
            **values,
        )
