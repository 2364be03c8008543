"""The doors to the world, built from the settings: Slurm, node access, people. One of each per
process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from detectors import registry
from detectors.detector import (
    Command,
    Detector,
    NotConfigured,
    Output,
    Shell,
    Target,
    TargetKind,
    Transports,
)
from detectors.expected import Expected
from detectors.metrics import promql
from detectors.slurm import queries
from detectors.transports.http import HttpTransport
from detectors.transports.local import LocalShell
from detectors.transports.ssh_access import SshAccess
from incidents.notify import choice
from incidents.notify.notifier import Notifier
from kintsugi.clients.credentials import Credentials
from kintsugi.clients.credentials import load as load_credentials
from kintsugi.clients.doors import NoShell, NoSlurmShell
from kintsugi.periodic.polling import Watch
from runbooks.guards.policy import Policy
from runbooks.people import open_requests
from runbooks.power.protocol import NoPower, Power
from runbooks.power.site import SitePower
from runbooks.slurm.client import ScontrolReader, ScontrolWriter, parse_controller
from runbooks.step import World


def build_world() -> World:
    """What runbooks act and look through. Raises DetectorError when a configured key cannot be
    read.

    A process that does not act (KINTSUGI_ACTS=no) gets a reader of Slurm, no writer and no power.
    """
    shell = build_node_shell()
    writer = build_slurm_writer(shell) if may_act() else None
    values = settings.KINTSUGI | {"KINTSUGI_DATA_DIR": settings.DATA_DIR}
    return World(
        slurm=writer or build_slurm_reader(shell),
        writer=writer,
        shell=shell,
        detectors=list_detectors(),
        policy=Policy.from_settings(values),
        power=build_power(),
    )


def build_power() -> Power:
    """Main power by each group's controllers; their credentials are read here alone, and only where
    we act."""
    path = settings.KINTSUGI["KINTSUGI_CREDENTIALS"]
    if not path or not may_act():
        return NoPower()
    with_bmc = load_credentials(path, with_bmc=True)
    has_bmc = any(group.bmc for group in with_bmc.groups)
    return SitePower(with_bmc.find_bmc) if has_bmc else NoPower()


def may_act() -> bool:
    """Whether this process may act: only then does it get at power, and at Slurm's acting verbs."""
    return bool(settings.KINTSUGI["KINTSUGI_ACTS"])


def build_watch(shell: Shell | None = None) -> Watch:
    """What polls look at and through which doors; `shell` is the world's, so that connections are
    kept once."""
    return Watch(
        via=build_transports(shell or build_node_shell()),
        detectors=list_detectors(),
        shortest=settings.KINTSUGI["KINTSUGI_POLL_EVERY"],
        sites=tuple(list_sites()),
    )


def build_transports(shell: Shell) -> Transports:
    """SSH, and SNMP and HTTP with the credentials of each target's group."""
    loaded = read_credentials()
    via = Transports(shell=SiteShell(shell), http=HttpTransport(loaded.find_http))
    if not any(group.snmp for group in loaded.groups):
        return via
    from detectors.transports import snmp_fast  # noqa: PLC0415  (pysnmp: only a site with SNMP switches pays)

    is_fast = settings.KINTSUGI["KINTSUGI_FAST_SNMP"]
    return replace(via, snmp=snmp_fast.choose(loaded.get_snmp, is_fast=is_fast))


def read_credentials() -> Credentials:
    """Raises ImproperlyConfigured."""
    path = settings.KINTSUGI["KINTSUGI_CREDENTIALS"]
    return load_credentials(path) if path else Credentials()


def list_sites() -> list[Target]:
    """What speaks for many machines. What is declared of them (their settings) is the
    inventory's."""
    values = settings.KINTSUGI
    address = values["KINTSUGI_PROMETHEUS_URL"]
    urls = {promql.URL: address} if address else {}
    targets: list[Target] = []
    if values["KINTSUGI_SLURM"] != "off":
        conf = values["KINTSUGI_SLURM_CONF"]
        # Jobs that stand still are seen by Slurm and the metrics together.
        expected = Expected(settings={"slurm_conf": conf} if conf else {}, urls=urls)
        slurm = parse_controller(values["KINTSUGI_SLURM"])
        targets.append(replace(slurm, name=queries.SITE, kind=TargetKind.SITE, expected=expected))
    if address:
        host = urlsplit(address).hostname or ""
        expected = Expected(urls=urls)
        targets.append(Target(promql.URL, host, kind=TargetKind.SITE, expected=expected))
    return targets


def list_detectors() -> tuple[Detector, ...]:
    """Those that the site wants, all by default."""
    wanted = settings.KINTSUGI["KINTSUGI_DETECTORS"]
    if not wanted:
        return tuple(registry.DETECTORS)
    return tuple(detector for detector in registry.DETECTORS if detector.name in wanted)


def build_notifier() -> Notifier:
    """With buttons where clicks are taken (SLACK_SIGNING_SECRET)."""
    if settings.KINTSUGI["SLACK_SIGNING_SECRET"]:
        return choice.choose(open_requests.find_message_ask)
    return choice.choose()


def has_node_access() -> bool:
    if settings.KINTSUGI["KINTSUGI_SSH_KEY"]:
        return True
    return any(group.ssh for group in read_credentials().groups)


def build_node_shell() -> Shell:
    """SSH with the key of each target's group, or a shell that says what is not configured."""
    values, loaded = settings.KINTSUGI, read_credentials()
    if not has_node_access():
        return NoShell()
    from detectors.transports.ssh import SshShell  # noqa: PLC0415  (paramiko: only with node access)

    key = values["KINTSUGI_SSH_KEY"]

    def get_access(target: Target) -> SshAccess | None:
        access = loaded.find_ssh(target)
        if access is None and not key:
            raise NotConfigured(
                f"{target.name}: no group gives it an SSH key, and KINTSUGI_SSH_KEY is unset"
            )
        return access

    known_hosts = values["KINTSUGI_SSH_KNOWN_HOSTS"] or Path.home() / ".ssh" / "known_hosts"
    shell = SshShell(
        user=values["KINTSUGI_SSH_USER"],
        key_file=Path(key) if key else None,
        known_hosts=Path(known_hosts),
        group_of=get_access,
    )
    for group in loaded.groups:
        if group.ssh is not None:
            shell.check(group.ssh)
    return shell


def get_public_key(target: Target) -> str:
    """That of the key with which we enter it, as it stands in authorized_keys, without its kind;
    empty where an agent holds it. Raises OSError and ValueError."""
    access = read_credentials().find_ssh(target)
    path = access.key_file if access is not None else settings.KINTSUGI["KINTSUGI_SSH_KEY"]
    if not path:
        return ""
    import paramiko  # noqa: PLC0415  (only with node access)

    return str(paramiko.PKey.from_path(path).get_base64())


def build_slurm_reader(shell: Shell) -> ScontrolReader:
    """Slurm's programs on this machine or, over `shell`, on another; each says so where Slurm is
    off."""
    values = settings.KINTSUGI
    access: str = values["KINTSUGI_SLURM"]
    conf = values["KINTSUGI_SLURM_CONF"] or ""
    return ScontrolReader(_choose_slurm_shell(shell), parse_controller(access), conf=conf)


def build_slurm_writer(shell: Shell) -> ScontrolWriter:
    """For the process that may act, and no other."""
    values = settings.KINTSUGI
    access: str = values["KINTSUGI_SLURM"]
    incidents_at = _get_incidents_address() if values["KINTSUGI_NODE_COMMENT"] else ""
    return ScontrolWriter(
        _choose_slurm_shell(shell),
        parse_controller(access),
        cluster_name=values["KINTSUGI_CLUSTER_NAME"] or "",
        conf=values["KINTSUGI_SLURM_CONF"] or "",
        incidents_at=incidents_at,
    )


def _get_incidents_address() -> str:
    return f"{settings.KINTSUGI['KINTSUGI_BASE_URL'].rstrip('/')}/incidents/"


def _choose_slurm_shell(shell: Shell) -> Shell:
    access = settings.KINTSUGI["KINTSUGI_SLURM"]
    if access == "off":
        return NoSlurmShell()
    return LocalShell() if access == "local" else shell


class SiteShell:
    """Slurm's programs run where KINTSUGI_SLURM says: on this machine, if it says `local`."""

    def __init__(self, shell: Shell) -> None:
        self._shell, self._local = shell, LocalShell()

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self._choose(target).run(target, argv, timeout)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        return self._choose(target).run_all(target, name, commands)

    def _choose(self, target: Target) -> Shell:
        is_here = target.kind is TargetKind.SITE and settings.KINTSUGI["KINTSUGI_SLURM"] == "local"
        return self._local if is_here else self._shell
