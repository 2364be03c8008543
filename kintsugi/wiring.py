"""The doors to the world, built from the settings: Slurm, node access, people. One of each per process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from detectors import registry
from detectors.detector import Detector, NotConfigured, OneByOne, Output, Shell, Target, Transports
from detectors.transport import LocalShell, SshShell
from incidents.notify import choice
from incidents.notify.notifier import Notifier
from kintsugi.polling import Watch
from runbooks.policy import Policy
from runbooks.slurm import Access, Job, NodeState, ScontrolSlurm, Slurm, SlurmRefusal, controller
from runbooks.step import World


def world() -> World:
    """What runbooks act and look through. Raises DetectorError when a configured key cannot be read."""
    shell = node_shell()
    return World(
        slurm=slurm(shell),
        shell=shell,
        detectors=detectors(),
        policy=Policy.from_settings(settings.KINTSUGI | {"KINTSUGI_DATA_DIR": settings.DATA_DIR}),
    )


def watch() -> Watch:
    """What polls look at and through which doors."""
    values = settings.KINTSUGI
    return Watch(via=Transports(shell=node_shell()), detectors=detectors(), shortest=values["KINTSUGI_POLL_EVERY"])


def detectors() -> tuple[Detector, ...]:
    """Those that the site wants, all by default."""
    wanted = settings.KINTSUGI["KINTSUGI_DETECTORS"]
    return tuple(detector for detector in registry.DETECTORS if not wanted or detector.name in wanted)


def notifier() -> Notifier:
    return choice.chosen()


def has_node_access() -> bool:
    return bool(settings.KINTSUGI["KINTSUGI_SSH_KEY"])


def node_shell() -> Shell:
    """SSH with the configured key, or a shell that says what is not configured."""
    values = settings.KINTSUGI
    if not has_node_access():
        return NoShell()
    known_hosts = values["KINTSUGI_SSH_KNOWN_HOSTS"] or Path.home() / ".ssh" / "known_hosts"
    return SshShell(
        user=values["KINTSUGI_SSH_USER"], key_file=Path(values["KINTSUGI_SSH_KEY"]), known_hosts=Path(known_hosts)
    )


def slurm(shell: Shell) -> Slurm:
    """Slurm's programs on this machine or, over `shell`, on another; or a client that refuses everything."""
    values = settings.KINTSUGI
    access: str = values["KINTSUGI_SLURM"]
    if access == "off":
        return NoSlurm()
    return ScontrolSlurm(
        LocalShell() if access == "local" else shell,
        controller(access),
        cluster_name=values["KINTSUGI_CLUSTER_NAME"] or "",
        conf=values["KINTSUGI_SLURM_CONF"] or "",
    )


class NoShell(OneByOne):
    """A site without node access: every look says so."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise NotConfigured(f"{argv[0]} on {target.name}: KINTSUGI_SSH_KEY is unset, so there is no node access")


class NoSlurm:
    """A site without Slurm access: every verb says so. Nothing is ever acted on."""

    def config(self) -> Mapping[str, str]:
        self._refuse()

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        self._refuse()

    def jobs(self, node: str) -> list[Job]:
        self._refuse()

    def drain(self, node: str, reason: str) -> None:
        self._refuse()

    def resume(self, node: str) -> None:
        self._refuse()

    def reboot(self, node: str) -> None:
        self._refuse()

    def requeue(self, job_id: str) -> None:
        self._refuse()

    def access(self) -> Access:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SlurmRefusal("KINTSUGI_SLURM is off: set it to local or ssh:HOST to let Kintsugi see Slurm")
