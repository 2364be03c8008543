"""Doors that stay shut, each saying why: no node access, no Slurm, and a Slurm that may only be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NoReturn

from detectors.detector import NotConfigured, OneByOne, Output, Target
from runbooks.slurm import (
    MAINTENANCE,
    Access,
    Demand,
    Job,
    NodeState,
    RecentJobs,
    Reservation,
    Slurm,
    SlurmRefusal,
)

OFF = "KINTSUGI_SLURM is off: set it to local or ssh:HOST to let Kintsugi see Slurm"
LOOKS_ONLY = (
    "this process only looks (KINTSUGI_ACTS=no): acts are the runbook worker's, which has the keys for them"
    " (docs/deploy.md)"
)


class NoShell(OneByOne):
    """A site without node access: every look says so."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise NotConfigured(f"{argv[0]} on {target.name}: KINTSUGI_SSH_KEY is unset, so there is no node access")


class NoSlurm:
    """Slurm that is not to be had: every verb says why. Nothing is ever acted on."""

    def __init__(self, reason: str = OFF) -> None:
        self._reason = reason

    def config(self) -> Mapping[str, str]:
        self._refuse()

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        self._refuse()

    def jobs(self, node: str) -> list[Job]:
        self._refuse()

    def recent_jobs(self, lately: timedelta) -> RecentJobs:
        self._refuse()

    def reservations(self) -> list[Reservation]:
        self._refuse()

    def drain(self, node: str, reason: str) -> None:
        self._refuse()

    def resume(self, node: str) -> None:
        self._refuse()

    def reboot(self, node: str) -> None:
        self._refuse()

    def cancel_reboot(self, node: str, reason: str) -> None:
        self._refuse()

    def requeue(self, job_id: str) -> None:
        self._refuse()

    def reserve(
        self,
        key: str,
        nodes: Sequence[str],
        *,
        duration: timedelta,
        starts_at: datetime | None = None,
        flags: Sequence[str] = MAINTENANCE,
    ) -> None:
        self._refuse()

    def unreserve(self, key: str) -> None:
        self._refuse()

    def submit(
        self,
        key: str,
        argv: Sequence[str],
        *,
        nodes: Sequence[str],
        gpus: int,
        time_limit: timedelta,
        reservation: str = "",
    ) -> str:
        self._refuse()

    def job(self, key: str) -> Job | None:
        self._refuse()

    def cancel(self, job_id: str) -> None:
        self._refuse()

    def partitions(self) -> dict[str, tuple[str, ...]]:
        self._refuse()

    def set_partitions(self, node: str, partitions: Sequence[str]) -> None:
        self._refuse()

    def demands(self) -> list[Demand]:
        self._refuse()

    def access(self) -> Access:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SlurmRefusal(self._reason)


class LookingSlurm(NoSlurm):
    """Slurm through another client's eyes: every look is passed on, every act is refused."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(LOOKS_ONLY)
        self._slurm = slurm

    def config(self) -> Mapping[str, str]:
        return self._slurm.config()

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        return self._slurm.nodes(names)

    def jobs(self, node: str) -> list[Job]:
        return self._slurm.jobs(node)

    def recent_jobs(self, lately: timedelta) -> RecentJobs:
        return self._slurm.recent_jobs(lately)

    def reservations(self) -> list[Reservation]:
        return self._slurm.reservations()

    def job(self, key: str) -> Job | None:
        return self._slurm.job(key)

    def partitions(self) -> dict[str, tuple[str, ...]]:
        return self._slurm.partitions()

    def demands(self) -> list[Demand]:
        return self._slurm.demands()

    def access(self) -> Access:
        return self._slurm.access()
