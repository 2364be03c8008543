"""What arming needs, looked at right now: each point with what was found and what to do about it.
Only looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from detectors.detector import DetectorError, Target
from detectors.receivers.senders import Senders
from detectors.slurm import drain_reasons
from detectors.slurm.drain_reasons import Drainer
from incidents.checks import part_statuses
from incidents.inventory import services
from incidents.models import Node
from runbooks.fleet import fleet
from runbooks.library import library
from runbooks.models import Mode, PreflightReport
from runbooks.node import looking
from runbooks.node.looking import KernelLog
from runbooks.people import root_rights
from runbooks.plan.runbook import Runbook
from runbooks.power.protocol import NoController, NoPower, PowerError, PowerState
from runbooks.slurm import ownership
from runbooks.slurm.protocol import NodeState, SlurmError
from runbooks.step import World
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.reset_gpu import ResetGpu
from runbooks.steps.restart_units import RestartUnits

_BOOT_ID = ("cat", "/proc/sys/kernel/random/boot_id")
_TIMEOUT = timedelta(seconds=10)
_SECONDS = re.compile(r"\d{1,9}")
# Enough to see that key, host keys and addresses fit, without a round over ten thousand nodes.
_SAMPLE = 5
# What sites call the role of a machine that gathers the lines of others (our choice).
_LOG_ROLES = ("log", "loghost", "log_host", "log-host", "logserver", "logging", "syslog")
# A point that is told and stands against no runbook.
_NOTHING = ("",)
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


_Point = Callable[[Mapping[str, str], World], Check]


def run_checks(world: World) -> list[Check]:
    """Every point, in order. What cannot be asked for is a problem, never skipped."""
    try:
        config = world.slurm.read_config()
    except SlurmError as error:
        todo = "Set KINTSUGI_SLURM so that `scontrol show config` works from here."
        return [Check("slurm", False, str(error), todo)]
    return [point(config, world) for point in _POINTS]


def create_report(world: World, *, by: str, now: datetime) -> PreflightReport:
    """Looks, and keeps what was found for processes that hold no key for acts."""
    checks = [asdict(check) for check in run_checks(world)]
    return PreflightReport.objects.create(at=now, by=by[:150], checks=checks)


def load_report(now: datetime) -> list[Check] | None:
    """What the process that acts found within the last minutes; None when it has not looked
    since."""
    last = PreflightReport.objects.filter(at__gt=now - _FRESH).first()
    if last is None:
        return None
    return [_parse_check(row) for row in last.checks]


def _parse_check(row: Mapping[str, Any]) -> Check:
    return Check(**{**row, "only_for": tuple(row.get("only_for", ()))})


def check_parts(now: datetime) -> Check:
    """Whether the site's own processes get on. One that does not stands against no runbook: it is
    told by a fault of its own, and what it does may be done elsewhere."""
    troubles = part_statuses.list_part_troubles(now)
    if not troubles:
        text = "No part of Kintsugi that ran within a day is silent or kept from its work."
        return Check("parts", True, text)
    todo = "Start what ended; what is to run there no more is forgotten after a day."
    return Check("parts", False, " ".join(troubles), todo, _NOTHING)


def _check_cluster_name(config: Mapping[str, str], world: World) -> Check:
    found, wanted = config.get("ClusterName", ""), world.policy.cluster_name
    if wanted and found == wanted:
        return Check("cluster_name", True, f"Slurm is cluster {found}.")
    cluster = f"Slurm is cluster {found or 'without a name'}"
    text = f"{cluster}; KINTSUGI_CLUSTER_NAME is {wanted or 'unset'}."
    todo = "Set KINTSUGI_CLUSTER_NAME to the ClusterName of the Slurm to be acted on."
    return Check("cluster_name", False, text, todo)


def _check_reboot_program(config: Mapping[str, str], world: World) -> Check:
    program = config.get("RebootProgram", "")
    if program:
        return Check("reboot_program", True, f"RebootProgram is {program}.")
    todo = (
        "Set RebootProgram in slurm.conf, such as /usr/sbin/reboot, and run scontrol reconfigure."
    )
    text = "RebootProgram is not set: `scontrol reboot` would do nothing."
    return Check("reboot_program", False, text, todo)


def _check_return_to_service(config: Mapping[str, str], world: World) -> Check:
    value = config.get("ReturnToService", "")
    if value in ("0", "1"):
        return Check("return_to_service", True, f"ReturnToService is {value}.")
    todo = (
        "Set ReturnToService=0 or 1: with 2 a node that boots takes jobs unverified, drained or"
        " not."
    )
    return Check("return_to_service", False, f"ReturnToService is {value or 'unknown'}.", todo)


def _check_resume_timeout(config: Mapping[str, str], world: World) -> Check:
    found = _SECONDS.match(config.get("ResumeTimeout", ""))
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


def _check_privileges(config: Mapping[str, str], world: World) -> Check:
    try:
        access = world.slurm.read_access()
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


def _check_accounts(config: Mapping[str, str], world: World) -> Check:
    """Not an obstacle: without them what is written over in that moment is not known afterwards."""
    moment = "in the moment between Kintsugi's look and its update (below 50 ms)"
    if config.get("AccountingStorageType", "").endswith("slurmdbd"):
        text = f"Slurm keeps accounts: a person's drain {moment} is put back."
        return Check("accounts", True, text)
    text = f"Slurm keeps no accounts (slurmdbd): a person's drain {moment} is written over unseen."
    return Check("accounts", True, text)


def _check_nodes(config: Mapping[str, str], world: World) -> Check:
    try:
        in_slurm = world.slurm.read_nodes()
    except SlurmError as error:
        return Check("nodes", False, str(error), "See that `scontrol show node` works.")
    names = services.list_pollable()
    both = [name for name in names if name in in_slurm]
    count = f"{len(both)} of {len(names)} nodes of the inventory"
    text = f"{count} are in Slurm, which has {len(in_slurm)}."
    todo = "Import the inventory (kintsugi inventory import) with the names that Slurm uses."
    return Check("nodes", bool(both), text, "" if both else todo)


def _check_other_drains(config: Mapping[str, str], world: World) -> Check:
    """Nodes that neither Kintsugi nor Slurm has taken out. No obstacle: they are left alone."""
    slurm_user = ownership.parse_slurm_user(config)
    try:
        states = world.slurm.read_nodes().values()
    except SlurmError as error:
        return Check("other_drains", False, str(error), "See that `scontrol show node` works.")
    explained: list[NodeState] = []
    by_drainer: dict[Drainer, list[NodeState]] = {Drainer.PERSON: [], Drainer.TOOL: []}
    for state in sorted(states, key=lambda state: state.name):
        if ownership.find_check(state) is not None:
            explained.append(state)
        else:
            by_drainer.get(drain_reasons.classify_drainer(state, slurm_user), []).append(state)
    persons, tools = by_drainer[Drainer.PERSON], by_drainer[Drainer.TOOL]
    others = [*tools, *persons]
    if not others and not explained:
        return Check("other_drains", True, "No node is drained by anybody else.")
    texts = []
    if explained:
        names = _format_drains(explained)
        texts.append(f"[[drain]] rows of the site explain the drains of {names}.")
    if not others:
        return Check("other_drains", True, " ".join(texts))
    texts.append(
        f"{len(tools)} nodes are drained by health checks and {len(persons)} by people, and left"
        f" alone, since no row of the site explains them: {_format_drains(others)}."
    )
    todo = ""
    if tools:
        todo = "Write a [[drain]] row in KINTSUGI_CATALOG_DIR for each check that drains nodes."
    return Check("other_drains", True, " ".join(texts), todo)


def _format_drains(states: Sequence[NodeState]) -> str:
    shown = ", ".join(f'{state.name} ("{state.reason}")' for state in states[:_SAMPLE])
    return f"{shown} and {len(states) - _SAMPLE} more" if len(states) > _SAMPLE else shown


def _check_node_access(config: Mapping[str, str], world: World) -> Check:
    """SSH to some nodes, spread over the inventory. One that is down does not stop arming; none
    that answers does."""
    targets = _sample_targets()
    answers = {target.name: _find_boot_id_complaint(world, target) for target in targets}
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


def _check_kernel_log(config: Mapping[str, str], world: World) -> Check:
    """Whether our account reads what the kernel itself has written on some nodes: of most faults
    that call for a repair it is the only witness. It stands only against runbooks that need one."""
    targets = _sample_targets()
    with ThreadPoolExecutor(max_workers=_SAMPLE) as at_once:
        logs = list(at_once.map(lambda target: looking.read_journal(world.shell, target), targets))
    reached, refusing = [], []
    for target, log in zip(targets, logs, strict=True):
        if not isinstance(log, KernelLog):
            reached.append(target.name)
        elif log.is_reached:
            reached.append(target.name)
            if log.complaint:
                refusing.append((target.name, log.complaint))
    if not refusing:
        text = f"The kernel log of {len(reached)} nodes looked at can be read."
        return Check("kernel_log", True, text)
    name, complaint = refusing[0]
    text = (
        f"The kernel log of {len(refusing)} of {len(reached)} nodes looked at cannot be read with"
        f" our account, which is the witness of most faults: {name}: {complaint}"
    )
    todo = (
        "Add the account of KINTSUGI_SSH_USER to the group systemd-journal on the nodes, or install"
        " the lines of `kintsugi inventory sudoers`. Until then a person is asked before each"
        " repair."
    )
    books = [book.name for book in library.load().values() if _needs_witness(book)]
    return Check("kernel_log", False, text, todo, books)


def _needs_witness(book: Runbook) -> bool:
    return any(planned.step.name == ConfirmOnNode.name for planned in book.steps)


def _check_log_hosts(config: Mapping[str, str], world: World) -> Check:
    """A log host that is a machine of the inventory speaks for itself alone, unless it is listed:
    what it forwards would be taken for its own. It is a matter of seeing, and stops no runbook."""
    relays: list[str] | None = settings.KINTSUGI["KINTSUGI_SYSLOG_RELAYS"]
    senders = Senders((), relays=relays)
    hosts = list(
        Node.objects.inventoried().filter(role__in=_LOG_ROLES).values_list("name", "address")
    )
    unlisted = [name for name, address in hosts if not senders.is_listed_relay(address)]
    if not unlisted:
        text = f"{len(hosts)} log hosts of the inventory are listed as relays."
        return Check("log_hosts", True, text if hosts else "The inventory names no log host.")
    is_are = "is no listed relay" if len(unlisted) == 1 else "are no listed relays"
    text = (
        f"{', '.join(unlisted[:_SAMPLE])} {is_are}: each line that comes by it counts as its own."
    )
    todo = "Add the addresses to KINTSUGI_SYSLOG_RELAYS, and restart the receivers."
    return Check("log_hosts", False, text, todo, _NOTHING)


def _check_root_rights(config: Mapping[str, str], world: World) -> Check:
    """Whether sudo on some nodes lets runs reset GPUs. It stands only against the runbooks that do
    so."""
    books = _list_runbooks_on(ResetGpu.name)
    if not books:
        text = "No runbook that resets GPUs is on."
        return Check("root_rights", True, text)
    answers = _ask_sudo(world, ResetGpu.name)
    names = ", ".join(books)
    install = "Install the lines of `kintsugi inventory sudoers --acts` on the nodes"
    todo = f"{install}, or set {names} to off."
    refusal = _format_refusal(answers, "reset GPUs")
    if refusal:
        return Check("root_rights", False, refusal, todo, books)
    if not answers:
        return Check("root_rights", False, "No node could be asked what sudo allows.", todo, books)
    text = f"sudo of {len(answers)} nodes looked at lets runs reset GPUs ({names})."
    return Check("root_rights", True, text)


def _check_restart_rights(config: Mapping[str, str], world: World) -> Check:
    """Whether sudo on some nodes lets runs restart services and mount. Without it the node is
    rebooted for what a restart would end: that stops no runbook."""
    books = _list_runbooks_on(RestartUnits.name)
    if not books:
        return Check("restart_rights", True, "No runbook that restarts services is on.")
    answers = _ask_sudo(world, RestartUnits.name)
    names = ", ".join(books)
    todo = (
        "Install the lines of `kintsugi inventory sudoers --acts` on the nodes. Until then"
        f" {names} reboots a node for a service that a restart would mend."
    )
    refusal = _format_refusal(answers, "restart services")
    if refusal or not answers:
        text = refusal or "No node could be asked what sudo allows."
        return Check("restart_rights", False, text, todo, _NOTHING)
    text = f"sudo of {len(answers)} nodes looked at lets runs restart services ({names})."
    return Check("restart_rights", True, text)


def _list_runbooks_on(step: str) -> list[str]:
    return [
        name for name in root_rights.list_runbooks(step) if fleet.get_mode(name) is not Mode.OFF
    ]


def _ask_sudo(world: World, step: str) -> dict[str, list[str]]:
    """What sudo refuses, by node; nodes that could not be asked are left out."""
    units, targets = root_rights.list_units(), _sample_targets()

    def ask(target: Target) -> list[str] | DetectorError:
        commands = root_rights.list_commands(target, step, units)
        return root_rights.list_missing(world.shell, target, commands)

    with ThreadPoolExecutor(max_workers=_SAMPLE) as at_once:
        answers = list(at_once.map(ask, targets))
    pairs = zip(targets, answers, strict=True)
    return {target.name: found for target, found in pairs if isinstance(found, list)}


def _format_refusal(missing_by_node: Mapping[str, Sequence[str]], what: str) -> str:
    """Empty where no node refuses anything."""
    refusing = {name: missing for name, missing in missing_by_node.items() if missing}
    if not refusing:
        return ""
    node, missing = next(iter(refusing.items()))
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    count = f"{len(refusing)} of {len(missing_by_node)} nodes looked at"
    return f"{count} do not let runs {what}: {node} refuses {missing[0]}{more}."


def _check_power(config: Mapping[str, str], world: World) -> Check:
    """Controllers of some nodes, asked at once: one that is away takes its half minute, and none
    stops arming alone."""
    if isinstance(world.power, NoPower):
        return Check(
            "power",
            True,
            "No management controllers are given ([group.bmc]): cold cycles are a person's.",
        )
    targets = _sample_targets()
    with ThreadPoolExecutor(max_workers=_SAMPLE) as at_once:
        answers = list(at_once.map(lambda target: _read_power(world, target), targets))
    given = [answer for answer in answers if not isinstance(answer, NoController)]
    states = [answer for answer in given if isinstance(answer, PowerState)]
    if states or not given:
        without = (
            f"; {len(answers) - len(given)} have no controller given"
            if len(answers) > len(given)
            else ""
        )
        return Check(
            "power",
            True,
            f"{len(states)} of {len(given)} management controllers looked at answer{without}.",
        )
    todo = "Correct [group.bmc] in KINTSUGI_CREDENTIALS, or `bmc` of the nodes in the inventory."
    return Check("power", False, f"No management controller answers: {given[0]}", todo)


def _read_power(world: World, target: Target) -> PowerState | PowerError:
    try:
        return world.power.read_state(target)
    except PowerError as error:
        return error


def _check_verify_command(config: Mapping[str, str], world: World) -> Check:
    command = " ".join(world.policy.verify_command)
    text = (
        f"`{command}` verifies a node."
        if command
        else "No verify command: a person resumes each repaired node."
    )
    return Check("verify_command", True, text)


def _sample_targets() -> list[Target]:
    """Some nodes, spread over the inventory."""
    names = services.list_pollable()
    sample = names[:: max(1, len(names) // _SAMPLE)][:_SAMPLE]
    targets = [services.get_target(name) for name in sample]
    return [target for target in targets if target is not None]


def _find_boot_id_complaint(world: World, target: Target) -> str:
    """The complaint; empty when the node gave a boot id."""
    try:
        output = world.shell.run(target, _BOOT_ID, _TIMEOUT)
    except DetectorError as error:
        return str(error)
    if output.status == 0 and output.stdout.strip():
        return ""
    return f"{target.name} gave no boot id (status {output.status})"


# In the order in which they are shown.
_POINTS: Sequence[_Point] = (
    _check_cluster_name,
    _check_reboot_program,
    _check_return_to_service,
    _check_resume_timeout,
    _check_privileges,
    _check_accounts,
    _check_nodes,
    _check_other_drains,
    _check_node_access,
    _check_kernel_log,
    _check_log_hosts,
    _check_root_rights,
    _check_restart_rights,
    _check_power,
    _check_verify_command,
)
