"""What arming needs, looked at right now: each point with what was found and what to do about it.
Only looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from detectors.detector import DetectorError, Target
from incidents.inventory import services
from runbooks.fleet import fleet
from runbooks.models import Mode, PreflightReport
from runbooks.people import root_rights
from runbooks.power.protocol import NoController, NoPower, PowerError, PowerState
from runbooks.slurm.protocol import SlurmError
from runbooks.step import World

_BOOT_ID = ("cat", "/proc/sys/kernel/random/boot_id")
_TIMEOUT = timedelta(seconds=10)
# Enough to see that key, host keys and addresses fit, without a round over ten thousand nodes.
_SAMPLE = 5
# Keys and hosts change by the day, not by the minute; long enough for a person to come back to the
# page (our choice).
_FRESH = timedelta(minutes=15)


@dataclass(frozen=True)
class Check:
    """One point. `todo` is empty when it is well. `only_for`: the runbooks that it stands against;
    empty: all."""

    name: str
    is_ok: bool
    found: str
    todo: str = ""
    only_for: Sequence[str] = ()

    def stands_against(self, runbook: str) -> bool:
        return not self.is_ok and (not self.only_for or runbook in self.only_for)


def check(world: World) -> list[Check]:
    """Every point, in order. What cannot be asked for is a problem, never skipped."""
    try:
        config = world.slurm.config()
    except SlurmError as error:
        return [
            Check(
                "slurm",
                False,
                str(error),
                "Set KINTSUGI_SLURM so that `scontrol show config` works from here.",
            )
        ]
    points: list[Callable[[Mapping[str, str], World], Check]] = [
        _cluster_name,
        _reboot_program,
        _return_to_service,
        _resume_timeout,
        _privileges,
        _nodes_known,
        _node_access,
        _root_rights,
        _power,
        _verify_command,
    ]
    return [point(config, world) for point in points]


def report(world: World, *, by: str, now: datetime) -> PreflightReport:
    """Looks, and keeps what was found for processes that hold no key for acts."""
    return PreflightReport.objects.create(
        at=now, by=by[:150], checks=[asdict(point) for point in check(world)]
    )


def reported(now: datetime) -> list[Check] | None:
    """What the process that acts found within the last minutes; None when it has not looked
    since."""
    last = PreflightReport.objects.filter(at__gt=now - _FRESH).first()
    if last is None:
        return None
    return [
        Check(**{**point, "only_for": tuple(point.get("only_for", ()))}) for point in last.checks
    ]


def _cluster_name(config: Mapping[str, str], world: World) -> Check:
    found, wanted = config.get("ClusterName", ""), world.policy.cluster_name
    if wanted and found == wanted:
        return Check("cluster_name", True, f"Slurm is cluster {found}.")
    text = (
        f"Slurm is cluster {found or 'without a name'}; KINTSUGI_CLUSTER_NAME is"
        f" {wanted or 'unset'}."
    )
    return Check(
        "cluster_name",
        False,
        text,
        "Set KINTSUGI_CLUSTER_NAME to the ClusterName of the Slurm to be acted on.",
    )


def _reboot_program(config: Mapping[str, str], world: World) -> Check:
    program = config.get("RebootProgram", "")
    if program:
        return Check("reboot_program", True, f"RebootProgram is {program}.")
    todo = (
        "Set RebootProgram in slurm.conf, such as /usr/sbin/reboot, and run scontrol reconfigure."
    )
    return Check(
        "reboot_program",
        False,
        "RebootProgram is not set: `scontrol reboot` would do nothing.",
        todo,
    )


def _return_to_service(config: Mapping[str, str], world: World) -> Check:
    value = config.get("ReturnToService", "")
    if value in ("0", "1"):
        return Check("return_to_service", True, f"ReturnToService is {value}.")
    todo = (
        "Set ReturnToService=0 or 1: with 2 a node that boots takes jobs unverified, drained or"
        " not."
    )
    return Check("return_to_service", False, f"ReturnToService is {value or 'unknown'}.", todo)


def _resume_timeout(config: Mapping[str, str], world: World) -> Check:
    found = re.match(r"\d+", config.get("ResumeTimeout", ""))
    limit = timedelta(seconds=int(found[0])) if found else timedelta(0)
    boot = world.policy.boot_time
    text = (
        f"ResumeTimeout is {limit.total_seconds():.0f} s, KINTSUGI_BOOT_TIME"
        f" {boot.total_seconds():.0f} s."
    )
    if limit > boot:
        return Check("resume_timeout", True, text)
    todo = (
        "Set ResumeTimeout above the longest boot: past it Slurm sets a rebooting node down and"
        " drops its drain."
    )
    return Check("resume_timeout", False, text, todo)


def _privileges(config: Mapping[str, str], world: World) -> Check:
    try:
        access = world.slurm.access()
    except SlurmError as error:
        return Check(
            "privileges", False, str(error), "See that `id` and `sacctmgr` run where scontrol runs."
        )
    todo = (
        f"Give {access.user} the level: sacctmgr modify user {access.user} set AdminLevel=Operator"
    )
    return Check(
        "privileges", access.is_operator, f"{access.reason}.", "" if access.is_operator else todo
    )


def _nodes_known(config: Mapping[str, str], world: World) -> Check:
    try:
        known = world.slurm.nodes()
    except SlurmError as error:
        return Check("nodes", False, str(error), "See that `scontrol show node` works.")
    ours = services.pollable()
    both = [name for name in ours if name in known]
    text = (
        f"{len(both)} of {len(ours)} nodes of the inventory are in Slurm, which has {len(known)}."
    )
    todo = "Import the inventory (manage.py inventory import) with the names that Slurm uses."
    return Check("nodes", bool(both), text, "" if both else todo)


def _node_access(config: Mapping[str, str], world: World) -> Check:
    """SSH to some nodes, spread over the inventory. One that is down does not stop arming; none
    that answers does."""
    targets = [
        target
        for name in _spread(services.pollable())
        if (target := services.target(name)) is not None
    ]
    answers = {target.name: _boot_id(world, target) for target in targets}
    well = [name for name, complaint in answers.items() if not complaint]
    if well:
        return Check(
            "node_access",
            True,
            f"{len(well)} of {len(answers)} nodes looked at give their boot id over SSH.",
        )
    complaint = next(iter(answers.values()), "there is no node with an address in the inventory")
    todo = (
        "Set KINTSUGI_SSH_USER, KINTSUGI_SSH_KEY and KINTSUGI_SSH_KNOWN_HOSTS, and the nodes'"
        " addresses."
    )
    return Check("node_access", False, f"No node gives its boot id over SSH: {complaint}.", todo)


def _root_rights(config: Mapping[str, str], world: World) -> Check:
    """Whether sudo on some nodes lets runs reset GPUs. It stands only against the runbooks that do
    so."""
    books = [name for name in root_rights.runbooks() if fleet.mode_of(name) is not Mode.OFF]
    if not books:
        return Check(
            "root_rights",
            True,
            "No runbook that resets GPUs is on: nothing is done as root on nodes.",
        )
    units = root_rights.units()
    targets = [
        target
        for name in _spread(services.pollable())
        if (target := services.target(name)) is not None
    ]
    with ThreadPoolExecutor(max_workers=_SAMPLE) as at_once:
        answers = list(
            at_once.map(lambda target: root_rights.missing(world.shell, target, units), targets)
        )
    told = {
        target.name: found
        for target, found in zip(targets, answers, strict=True)
        if isinstance(found, list)
    }
    short = {name: found for name, found in told.items() if found}
    named = ", ".join(books)
    todo = (
        f"Install the lines of `manage.py inventory sudoers --acts` on the nodes, or set {named} to"
        " off."
    )
    if short:
        name, found = next(iter(short.items()))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        text = (
            f"{len(short)} of {len(told)} nodes looked at do not let runs reset GPUs: {name}"
            f" refuses {found[0]}{more}."
        )
        return Check("root_rights", False, text, todo, books)
    if not told:
        return Check("root_rights", False, "No node could be asked what sudo allows.", todo, books)
    return Check(
        "root_rights", True, f"sudo of {len(told)} nodes looked at lets runs reset GPUs ({named})."
    )


def _power(config: Mapping[str, str], world: World) -> Check:
    """Controllers of some nodes, asked at once: one that is away takes its half minute, and none
    stops arming alone."""
    if isinstance(world.power, NoPower):
        return Check(
            "power",
            True,
            "No management controllers are given ([group.bmc]): cold cycles are a person's.",
        )
    targets = [
        target
        for name in _spread(services.pollable())
        if (target := services.target(name)) is not None
    ]
    with ThreadPoolExecutor(max_workers=_SAMPLE) as at_once:
        answers = list(at_once.map(lambda target: _power_of(world, target), targets))
    asked = [answer for answer in answers if not isinstance(answer, NoController)]
    states = [answer for answer in asked if isinstance(answer, PowerState)]
    if states or not asked:
        without = (
            f"; {len(answers) - len(asked)} have no controller given"
            if len(answers) > len(asked)
            else ""
        )
        return Check(
            "power",
            True,
            f"{len(states)} of {len(asked)} management controllers looked at answer{without}.",
        )
    todo = "Correct [group.bmc] in KINTSUGI_CREDENTIALS, or `bmc` of the nodes in the inventory."
    return Check("power", False, f"No management controller answers: {asked[0]}", todo)


def _power_of(world: World, target: Target) -> PowerState | PowerError:
    try:
        return world.power.state(target)
    except PowerError as error:
        return error


def _verify_command(config: Mapping[str, str], world: World) -> Check:
    command = " ".join(world.policy.verify_command)
    text = (
        f"`{command}` verifies a node."
        if command
        else "No verify command: a person resumes each repaired node."
    )
    return Check("verify_command", True, text)


def _spread(names: list[str]) -> list[str]:
    return names[:: max(1, len(names) // _SAMPLE)][:_SAMPLE]


def _boot_id(world: World, target: Target) -> str:
    """The complaint; empty when the node gave a boot id."""
    try:
        output = world.shell.run(target, _BOOT_ID, _TIMEOUT)
    except DetectorError as error:
        return str(error)
    if output.status == 0 and output.stdout.strip():
        return ""
    return f"{target.name} gave no boot id (status {output.status})"
