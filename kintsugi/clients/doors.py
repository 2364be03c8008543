"""Doors that stay shut, each saying why: no node access, no Slurm."""

from __future__ import annotations

from datetime import timedelta

from detectors.detector import NotConfigured, OneByOne, Output, Target
from runbooks.slurm.protocol import SlurmRefusal

OFF = "KINTSUGI_SLURM is off: set it to local or ssh:HOST to let Kintsugi see Slurm"


class NoShell(OneByOne):
    """A site without node access: every look says so."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise NotConfigured(
            f"{argv[0]} on {target.name}: KINTSUGI_SSH_KEY is unset, so there is no node access"
        )


class NoSlurmShell(OneByOne):
    """Where Slurm's programs would run on a site that lets Kintsugi see none: nothing is run."""

    def __init__(self, reason: str = OFF) -> None:
        self._reason = reason

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise SlurmRefusal(self._reason)
