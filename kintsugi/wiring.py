"""The doors to the world, built from the settings: Slurm, node access, people. One of each per process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from django.conf import settings

from detectors import promql, registry, slurm_queries, snmp_fast
from detectors.detector import (
    Command,
    Detector,
    NotConfigured,
    OneByOne,
    Output,
    Shell,
    Target,
    TargetKind,
    Transports,
)
from detectors.expected import Expected
from detectors.http import HttpTransport
from detectors.transport import LocalShell, SshAccess, SshShell
from incidents.notify import choice
from incidents.notify.notifier import Notifier
from kintsugi.credentials import Credentials
from kintsugi.credentials import load as load_credentials
from kintsugi.polling import Watch
from runbooks.policy import Policy
from runbooks.slurm import (
    Access,
    Job,
    NodeState,
    RecentJobs,
    Reservation,
    ScontrolSlurm,
    Slurm,
    SlurmRefusal,
    controller,
)
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


def watch(shell: Shell | None = None) -> Watch:
    """What polls look at and through which doors; `shell` is the world's, so that connections are kept once."""
    return Watch(
        via=transports(shell or node_shell()),
        detectors=detectors(),
        shortest=settings.KINTSUGI["KINTSUGI_POLL_EVERY"],
        sites=tuple(sites()),
    )


def transports(shell: Shell) -> Transports:
    """SSH, and SNMP and HTTP with the credentials of each target's group."""
    given = credentials()
    via = Transports(shell=SiteShell(shell), http=HttpTransport(given.http))
    if not any(group.snmp for group in given.groups):
        return via
    return replace(via, snmp=snmp_fast.choose(given.snmp, is_fast=settings.KINTSUGI["KINTSUGI_FAST_SNMP"]))


def credentials() -> Credentials:
    """Raises ImproperlyConfigured."""
    path = settings.KINTSUGI["KINTSUGI_CREDENTIALS"]
    return load_credentials(path) if path else Credentials()


def sites() -> list[Target]:
    """What speaks for many machines. What is declared of them (their settings) is the inventory's."""
    values = settings.KINTSUGI
    address = values["KINTSUGI_PROMETHEUS_URL"]
    urls = {promql.URL: address} if address else {}
    found: list[Target] = []
    if values["KINTSUGI_SLURM"] != "off":
        conf = values["KINTSUGI_SLURM_CONF"]
        # Jobs that stand still are seen by Slurm and the metrics together.
        told = Expected(settings={"slurm_conf": conf} if conf else {}, urls=urls)
        where = controller(values["KINTSUGI_SLURM"])
        found.append(replace(where, name=slurm_queries.SITE, kind=TargetKind.SITE, expected=told))
    if address:
        told = Expected(urls=urls)
        found.append(Target(promql.URL, urlsplit(address).hostname or "", kind=TargetKind.SITE, expected=told))
    return found


def detectors() -> tuple[Detector, ...]:
    """Those that the site wants, all by default."""
    wanted = settings.KINTSUGI["KINTSUGI_DETECTORS"]
    return tuple(detector for detector in registry.DETECTORS if not wanted or detector.name in wanted)


def notifier() -> Notifier:
    return choice.chosen()


def has_node_access() -> bool:
    return bool(settings.KINTSUGI["KINTSUGI_SSH_KEY"]) or any(group.ssh for group in credentials().groups)


def node_shell() -> Shell:
    """SSH with the key of each target's group, or a shell that says what is not configured."""
    values, given = settings.KINTSUGI, credentials()
    if not has_node_access():
        return NoShell()
    key = values["KINTSUGI_SSH_KEY"]

    def entry(target: Target) -> SshAccess | None:
        access = given.ssh(target)
        if access is None and not key:
            raise NotConfigured(f"{target.name}: no group gives it an SSH key, and KINTSUGI_SSH_KEY is unset")
        return access

    known_hosts = values["KINTSUGI_SSH_KNOWN_HOSTS"] or Path.home() / ".ssh" / "known_hosts"
    shell = SshShell(
        user=values["KINTSUGI_SSH_USER"],
        key_file=Path(key) if key else None,
        known_hosts=Path(known_hosts),
        group_of=entry,
    )
    for group in given.groups:
        if group.ssh is not None:
            shell.check(group.ssh)
    return shell


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


class SiteShell:
    """Slurm's programs run where KINTSUGI_SLURM says: on this machine, if it says `local`."""

    def __init__(self, shell: Shell) -> None:
        self._shell, self._local = shell, LocalShell()

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._of(target).run(target, argv, timeout)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        return self._of(target).run_all(target, name, commands)

    def _of(self, target: Target) -> Shell:
        is_here = target.kind is TargetKind.SITE and settings.KINTSUGI["KINTSUGI_SLURM"] == "local"
        return self._local if is_here else self._shell


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

    def requeue(self, job_id: str) -> None:
        self._refuse()

    def access(self) -> Access:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SlurmRefusal("KINTSUGI_SLURM is off: set it to local or ssh:HOST to let Kintsugi see Slurm")
