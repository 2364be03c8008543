"""Builds docs/reference/what-runs.md: all that Kintsugi ever runs on a site's machines, read from
the code that runs it."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors import registry
from detectors.detector import (
    Command,
    Detector,
    DetectorError,
    OneByOne,
    Output,
    Shell,
    Target,
    TargetKind,
    Transports,
)
from detectors.expected import Expected
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell
from incidents.topology import discovery
from incidents.vendor import inspection
from runbooks.engine import turn
from runbooks.library import library
from runbooks.node import diagnostics, gpu_holders, gpu_reset, looking, systemd_units, traces
from runbooks.node.diagnostics import Diagnosis, Wanted
from runbooks.people import preflight
from runbooks.power import ipmi
from runbooks.slurm.client import ScontrolWriter
from runbooks.slurm.protocol import SlurmError, SlurmRefusal

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "what-runs.md"
NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
_PACKAGES = ("detectors", "incidents", "runbooks", "kintsugi")
# What the commands name on the model site's nodes, by what the page calls it.
_NAMES = (
    (r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", "PCI"),
    (r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", "PCI"),
    (r"\bmlx5_\d+\b", "CARD"),
    (r"\b(rail|resv|sto|eno)\d+\b", "INTERFACE"),
    (r"\bnvme\d+(n\d+)?\b", "DISK"),
    (r"\b[0-9a-f]{16,64}\b", "RANDOM"),
    (r"\bgn\d{3}\b", "NODE"),
    (r"/dev/sd[a-z]\b", "/dev/DISK"),
)


@dataclass(frozen=True)
class Row:
    """One command with what it asks: `right` is root's or nobody's, `limit` its time."""

    command: str
    right: str
    limit: str


class Recording(OneByOne):
    """A shell that keeps what it is asked to run, and has it answered."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.rows: list[Row] = []
        self.argvs: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.argvs.append(argv)
        self.rows.append(Row(format_argv(argv), "", format_limit(timeout)))
        return self._shell.run(target, argv, timeout)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        self.rows += [format_command(command) for command in commands]
        return self._shell.run_all(target, name, commands)


def format_command(command: Command) -> Row:
    right = "root" if command.as_root else ""
    return Row(format_argv(command.argv), right, format_limit(command.timeout))


def format_argv(argv: Sequence[str]) -> str:
    """Names of the model site's parts in capitals, scripts by the name that `ps` shows."""
    words = list(argv)
    if words[:2] == ["sh", "-c"] and len(words) > 3:
        words = ["sh", "-c", "SCRIPT", *words[3:]]
    text = " ".join(word if word else "''" for word in words)
    for pattern, name in _NAMES:
        text = re.sub(pattern, name, text)
    return " ".join(text.replace("|", "\\|").replace("`", "'").split())


def format_limit(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"


def build_page() -> str:
    tables = (
        (_HEAD, _list_steps()),
        (_ACTS, _list_acts()),
        (_SLURM, _list_slurm_acts()),
        (_LOOKS, _list_looks()),
        (_DETECTORS, _list_detectors()),
    )
    parts = ["\n".join((head, *rows)) for head, rows in tables]
    return "\n\n".join((*parts, _FILES)) + "\n"


ACTS = "## Commands that act on a node"
SLURM = "## Commands that act through Slurm"
LOOKS = "## Commands of runs and people that only look"
_HEAD = """# What Kintsugi runs on your machines

All of it: each command, with which right, on which occasion, and what it costs. Generated from the code
(`pytest tests/security/test_what_runs.py --update-golden`), and a test keeps it so: a place in the code that runs something
and is not here fails it. Names of parts stand in capitals. *root* is `sudo -n`, by the lines of `kintsugi inventory sudoers`
(looks) and `--acts` (resets of GPUs, restarts of services and mounts); everything else runs as the user that Kintsugi signs
in as. The time is where a command is cut off.

## What runs do

In this order of harm: what is read-only changes nothing, what is reversible is taken back, what is disruptive costs jobs or
a restart. Guards, modes and approvals come before each ([guards](../guards.md)), and the node's own root
([never](../security.md#a-nodes-own-root-may-refuse)).

| step | what it does | harm | asked before |
|---|---|---|---|"""

_ACTS = f"""{ACTS}

Over SSH, for runs that are armed or approved alone. They run apart from the connection, once, below a script named
`kintsugi-apart` that keeps their output (the last section says where). `kintsugi leave` is a person's, and runs in the
connection.

| command | right | occasion | cost |
|---|---|---|---|"""

_SLURM = f"""{SLURM}

On the machine of `KINTSUGI_SLURM`, as a user of level Operator, each directly after `scontrol show node` or `squeue` have shown
that the node is as it was when it was decided, and within a minute of a `scontrol show config` that has shown the cluster's
name. After a drain and a resume `sacctmgr show event nodes=NODE` is read.

| command | occasion |
|---|---|"""

_LOOKS = f"""{LOOKS}

| command | right | occasion | time |
|---|---|---|---|"""

_DETECTORS = """## Commands of detectors, which only look

Beside these: SNMP GET and GETBULK to switches, HTTP GET to exporters and Prometheus ([detectors](detectors.md)), and Redfish or
IPMI to management controllers ([power](power.md)). Each round of one detector is one SSH channel, and one round at a time
runs on a node.

| detector | every | command | right | time |
|---|---|---|---|---|"""

_FILES = """## What stays on a node

* `/run/kintsugi/USER/` (else a folder of our own user below `/dev/shm` or `/tmp`): locks of rounds, outputs of tests and resets.
* A job of ours that tests a node writes below the same folder, and its reservation is removed after it.
* Kintsugi installs nothing, changes no file of yours, and opens no port on a node. The [node check](node-check.md), where you
  install it, is yours to start."""


def _list_steps() -> Iterator[str]:
    order = ("read_only", "reversible", "disruptive")
    steps = sorted(library.STEPS, key=lambda step: order.index(step.effect.value))
    for step in steps:
        asked = ["guards"] if step.act is not None else []
        asked += ["a person, each time"] if step.needs_approval else []
        asked += ["the node's root"] if turn.acts_on_node(step) else []
        plan = step.plan.format(node="the node")
        harm = step.effect.value.replace("_", "-")
        yield f"| `{step.name}` | {plan} | {harm} | {', '.join(asked) or 'nobody'} |"


def _list_acts() -> Iterator[str]:
    for argv in gpu_reset.list_commands(["0000:19:00.0"]):
        cost = "some 10 s, no job is on the node"
        if argv[0] == "systemctl":
            cost = "where it runs: stopped meanwhile, started again however it ends"
        yield f"| `{format_argv(argv)}` | root | `reset_gpu` | {cost} |"
    for argv in systemd_units.list_commands(Expected(mounts=("/MOUNT",))):
        what = "mounts what fstab says there" if argv[1] == "start" else "the one that is dead"
        yield (
            f"| `{format_argv(argv)}` | root | `restart_units` | {what}; no job is on the node and"
            " no process on its GPUs |"
        )
    yield (
        "| `KINTSUGI_VERIFY_COMMAND` | | `verify`, once per boot | up to"
        " `KINTSUGI_VERIFY_TIMEOUT`, no job is on the node |"
    )
    for test in Diagnosis:
        argv = diagnostics.build_command(Wanted(test, devices=("mlx5_0",)))
        yield (
            f"| `{format_argv(argv)}` | | `diagnose`, over SSH or as a job of ours | minutes, all"
            " GPUs or cards of a drained node |"
        )
    burn_in = diagnostics.build_burn_in_command(3600, level=3, gpus=8)
    yield f"| `{format_argv(burn_in)}` | | `burn_in` | hours, all GPUs of a drained node |"
    for verb in ("status", "off", "on"):
        argv = ("ipmitool", *ipmi._WAY, "-H", "BMC", "-U", "USER", "-E", "chassis", "power", verb)
        occasion = "before and after `cold_cycle`" if verb == "status" else "`cold_cycle`"
        cost = "none" if verb == "status" else "the node loses power for `off_for`"
        yield f"| `{format_argv(argv)}`, from our machine | Operator | {occasion} | {cost} |"
    yield (
        "| Redfish `GET` of the system, `POST .../ComputerSystem.Reset` with `ForceOff` and `On`,"
        " from our machine | Operator | `cold_cycle` | the node loses power for `off_for` |"
    )
    for removes in (False, True):
        argv = traces.build_command("KEY", removes=removes)
        occasion = "`kintsugi leave`" + (" `--yes`" if removes else "")
        cost = "nothing is changed"
        if removes:
            cost = "its crontab's lines of the node check, our folders and our key go"
        yield f"| `{format_argv(argv)}` | | {occasion}, on each node | {cost} |"


OCCASIONS: Mapping[str, str] = {
    "scontrol update NodeName State=DRAIN": "`drain`, `quarantine`; a drain that Slurm dropped",
    "scontrol update NodeName State=RESUME": "`resume`; a withdrawn run hands its node back",
    "scontrol update NodeName Comment=": "a person has taken the node over: our comment goes",
    "scontrol update PartitionName": "`swap_hot_spare`, where spares stand in no partition",
    "scontrol reboot": "`reboot`",
    "scontrol cancel_reboot": "a reboot that Slurm has not sent in time, or that nobody wants",
    "scontrol requeue": "`requeue_dead_jobs`; `wait_for_jobs` for jobs whose owner has agreed",
    "scontrol update JobId=": "a job that was requeued keeps away from the node; its own list stays"
    " and is all that is left when the node is given back",
    "scontrol notify": "`wait_for_jobs`, where the site's job policy tells owners",
    "scancel --signal=": "`wait_for_jobs`, where the site's job policy names a signal",
    "scontrol create reservation": "`diagnose` as a job; `swap_hot_spare`; `drain`, while a minor repair waits for an idle"
    " moment; a maintenance",
    "scontrol delete": "the end of these",
    "sbatch": "`diagnose` as a job, inside our reservation",
    "scancel": "such a job of ours that nobody waits for any more",
}


def record_slurm_acts() -> dict[str, str]:
    """What the writer sends for each of its verbs, by the beginning that names it."""
    slurm = MemorySlurm({"gn001": ["gpu"], "gn002": ["gpu"]}, cluster_name="c", now=lambda: NOW)
    recording = Recording(CommandShell(slurm))
    writer = ScontrolWriter(
        recording,
        Target("slurm", "slurm"),
        cluster_name="c",
        incidents_at="https://CONSOLE/incidents/",
    )
    slurm.add_job("4711", nodes=["gn001"])
    acts = (
        lambda: writer.notify_job("4711", "Kintsugi: gn001, where job 4711 runs, is broken"),
        lambda: writer.signal_job("4711", "USR1", is_batch=True),
        lambda: writer.requeue("4711"),
        lambda: writer.exclude_node("4711", "gn001"),
        lambda: writer.drain(
            "gn001", "kintsugi:7/1a2b3c4d-5e6f70 gpu.xid.79: GPU has fallen off the bus"
        ),
        lambda: writer.reboot("gn002"),
        lambda: writer.cancel_reboot("gn002", "kintsugi:7/1a2b3c4d-5e6f70 gpu.xid.79: ..."),
        lambda: writer.resume("gn001"),
        lambda: writer.drain("gn001", "kintsugi:7/1a2b3c4d-5e6f70 gpu.xid.79: ..."),
        lambda: writer.remove_comment("gn001"),
        lambda: writer.reserve("7-1-diagnose", ["gn001"], duration=timedelta(hours=1)),
        lambda: writer.submit(
            "7-1-diagnose",
            ["dcgmi", "diag"],
            nodes=["gn001"],
            gpus=8,
            time_limit=timedelta(hours=1),
            reservation="7-1-diagnose",
        ),
        lambda: writer.cancel(slurm_job_of(writer)),
        lambda: writer.unreserve("7-1-diagnose"),
        lambda: writer.set_partitions("gn001", []),
    )
    for act in acts:
        try:
            act()
        except (SlurmError, SlurmRefusal):
            continue
    found: dict[str, str] = {}
    for argv in recording.argvs:
        name = next((name for name in OCCASIONS if _is_of(argv, name)), None)
        if name is not None:
            found.setdefault(name, format_argv(argv[3:]))
    return found


def slurm_job_of(writer: ScontrolWriter) -> str:
    found = writer.find_job("7-1-diagnose")
    return found.job_id if found is not None else "0"


def _is_of(argv: Sequence[str], name: str) -> bool:
    words, wanted = argv[3:], name.split()
    return all(any(word.startswith(part) for word in words[:4]) for part in wanted)


def _list_slurm_acts() -> Iterator[str]:
    recorded = record_slurm_acts()
    for name, occasion in OCCASIONS.items():
        yield f"| `{recorded.get(name, name)}` | {occasion} |"


def _list_looks() -> Iterator[str]:
    limit = format_limit
    for argv, occasion, timeout in (
        (
            ("sh", "-c", "", looking.NEVER, looking.NEVER_FILE),
            "just before each act there",
            looking._NEVER_TIMEOUT,
        ),
        (looking._BOOT, "`confirm_on_node`, `reboot`, `wait_for_boot`", looking._TIMEOUT),
        (gpu_holders.COMMAND, "`reset_gpu`, `restart_units`", gpu_holders.TIMEOUT),
        (("tail", "-c", "BYTES", "FILE"), "a job's report; field diagnostics", looking._TIMEOUT),
        (preflight._BOOT_ID, "`kintsugi preflight`, on five nodes", preflight._TIMEOUT),
        (("sudo", "-n", "-l", "COMMAND"), "`kintsugi preflight`, runs nothing", preflight._TIMEOUT),
        (("id", "-u"), "`kintsugi preflight`", preflight._TIMEOUT),
        (("ls", "-1d", "PATHS"), "`kintsugi inventory sudoers`", preflight._TIMEOUT),
    ):
        yield f"| `{format_argv(argv)}` | | {occasion} | {limit(timeout)} |"
    row = format_command(looking.KERNEL_LOG)
    occasion = "a fault that a text told of; `confirm_on_node`"
    right = "root, where our user may not read the journal"
    yield f"| `{row.command}` | {right} | {occasion} | {row.limit} |"
    yield "| the commands of detectors below | | `confirm_on_node`, `verify`, `requeue_dead_jobs` | |"
    for command in (*discovery.build_commands(), Command("x", ("ethtool", "-i", "rail0"))):
        row = format_command(command)
        yield f"| `{row.command}` | {row.right} | `kintsugi inventory discover` | {row.limit} |"
    for command in inspection.LOOKS.values():
        row = format_command(command)
        yield f"| `{row.command}` | {row.right} | *Take the evidence* of a case | {row.limit} |"


def _list_detectors() -> Iterator[str]:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    node = world.nodes["gn001"]
    gpus = tuple((str(gpu.index), gpu.pci) for gpu in node.gpus)
    targets = {
        TargetKind.NODE: Target("gn001", "gn001", expected=Expected(gpus=gpus)),
        TargetKind.SWITCH: Target("leaf-01", "leaf-01", kind=TargetKind.SWITCH),
        TargetKind.SITE: Target("slurm", "slurm", kind=TargetKind.SITE),
    }
    for detector in registry.DETECTORS:
        every = format_limit(detector.every)
        for row in dict.fromkeys(_record(detector, targets[detector.kind], world)):
            yield f"| `{detector.name}` | {every} | `{row.command}` | {row.right} | {row.limit} |"


def _record(detector: Detector, target: Target, world: SimulatedWorld) -> list[Row]:
    recording = Recording(SimulatedShell(world))
    with contextlib.suppress(DetectorError):  # it asks by SNMP or HTTP
        detector.collect(target, Transports(shell=recording), NOW)
    return recording.rows


def find_places() -> set[str]:
    """Where the code runs something on a machine: `file:function` of each call of a shell."""
    found = set()
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in ast.walk(tree):
                if not isinstance(function, ast.FunctionDef):
                    continue
                if any(_is_of_shell(node) for node in ast.walk(function)):
                    found.add(f"{path.relative_to(ROOT)}:{function.name}")
    return found


def _is_of_shell(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr not in ("run", "run_all", "Popen"):
        return False
    return "shell" in ast.unparse(node.func.value) or "subprocess" in ast.unparse(node.func.value)
