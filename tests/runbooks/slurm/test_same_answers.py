"""The Slurm in memory answers as the real one of this machine, whatever people and we ask of it in
whatever order: the same commands are given to both, and after each a node shows the same state,
flags, reason and setter."""

from __future__ import annotations

import contextlib
import getpass
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import (
    SHORTEST_BOOT,
    SlurmDaemons,
    SlurmDaemonsError,
    SlurmOptions,
)
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell, answer
from fixtures.memory_slurm_nodes import SLURM_USER
from runbooks.slurm.client import ScontrolReader, ScontrolWriter, parse_controller
from runbooks.slurm.protocol import NodeState, format_state
from tests.runbooks.conftest import CLUSTER
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.patience import deadline_in

pytestmark = pytest.mark.needs("slurmctld", "slurmd", "munged")
# Of each version, in a night; sixteen nodes play at a time.
SEQUENCES, NODES, LENGTH = 2016, 16, 8
PLAINLY = 8
# slurmd registers within a second of its start, slurmctld sends a queued reboot within two.
_SOON = 15
# How often a node boots until slurmctld takes the boot for one that nobody asked for.
_BOOTS = 4
# How many commands of the sequence before it a difference is told with.
_KEPT = 4
_BOOT = SHORTEST_BOOT + timedelta(seconds=1)
# The longest that slurm.conf takes, 16 bits of seconds.
_NEVER = timedelta(seconds=65533)
_REASONS = (
    "bob: hands inside",
    "kintsugi:7/1a2b3c4d-5e6f70 gpu.xid.79: GPU has fallen off the bus",
    "Kill task failed",
)
# Flags that come and go with the hour at which slurmctld asks a slurmd or the scheduler looks.
_PASSING = frozenset({"PLANNED", "COMPLETING", "NOT_RESPONDING"})


@dataclass(frozen=True)
class Answer:
    """What is compared. Both run as one user here, so that Slurm's own words are that user's."""

    base: str
    flags: frozenset[str]
    reason: str
    set_by: str

    @classmethod
    def of(cls, state: NodeState) -> Answer:
        flags = state.flags - _PASSING
        user = getpass.getuser()
        by = user if state.reason_set_by == SLURM_USER else state.reason_set_by
        is_working = state.base in {"MIXED", "ALLOCATED"}
        base = "ALLOCATED" if is_working else state.base
        return cls(base, flags, state.reason, by if state.reason else "")


@dataclass
class Sequence:
    """One node's commands; `told` is what was done so far, for the report of a difference.
    `booted_before`: what a boot, or the slurmd that is started after it, is to change."""

    node: str
    dice: random.Random
    left: int
    told: list[str] = field(default_factory=list)
    deadline: float = 0.0
    is_booting: bool = False
    is_registering: bool = False
    boots_left: int = 0
    booted_before: datetime | None = None


class Both:
    """A real Slurm, and one in memory that is told the same. Their RebootProgram switches a node
    off: it boots when the sequence says so."""

    def __init__(self, daemons: SlurmDaemons, version: str, returns: str) -> None:
        self.daemons = daemons
        self.now = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
        self.memory = MemorySlurm(
            {name: ["gpu"] for name in daemons.nodes},
            cluster_name=CLUSTER,
            now=lambda: self.now,
            settings={
                "SLURM_VERSION": version,
                "ReturnToService": returns,
                "ResumeTimeout": f"{_NEVER.total_seconds():.0f} sec",
            },
        )
        self.memory.keeps_accounts = False
        self.memory.user = getpass.getuser()
        self.memory.break_reboot_program()
        shell = CommandShell(self.memory)
        host = parse_controller("local")
        self.in_memory: ScontrolReader = ScontrolWriter(shell, host, cluster_name=CLUSTER)
        self.real: ScontrolReader = real_client(daemons)
        self._jobs: dict[str, str] = {}
        self._booted: set[str] = set()
        self._returns = returns

    def list_acts(self, node: str, shown: NodeState) -> dict[str, Callable[[random.Random], str]]:
        """What can be done to the node as the real Slurm shows it. What a silent slurmd does with a
        reboot or a job is the hour's."""
        acts: dict[str, Callable[[random.Random], str]] = {
            "drain": lambda dice: self._update(node, "State=DRAIN", dice.choice(_REASONS)),
            "fail": lambda dice: self._update(node, "State=FAIL", dice.choice(_REASONS)),
            "down": lambda dice: self._update(node, "State=DOWN", dice.choice(_REASONS)),
            "undrain": lambda dice: self._update(node, "State=UNDRAIN"),
            "resume": lambda dice: self._update(node, "State=RESUME"),
            "append": lambda dice: self._append(node),
            "reboot": lambda dice: self._give("scontrol", "reboot", node),
            "asap": lambda dice: self._give("scontrol", "reboot", "ASAP", node),
            "cancel": lambda dice: self._give("scontrol", "cancel_reboot", node),
            "boot": lambda dice: self._boot(node),
        }
        state = self.in_memory.read_nodes((node,))[node]
        is_off = self.memory.is_off(node)
        is_silent = "NOT_RESPONDING" in shown.flags
        if node in self._jobs:
            acts["end"] = lambda dice: self._end_job(node)
        elif state.is_serving and not is_silent and "REBOOT_REQUESTED" not in state.flags:
            acts["job"] = lambda dice: self._start_job(node)
        # A slurmd that was started as after a boot (-b) counts as booted once more with each
        # registration, and of a node that is down slurmctld wants one at any time.
        is_rebootable = not is_silent and not (state.base == "DOWN" and node in self._booted)
        if node in self._jobs or not (is_off or (is_rebootable and not state.is_out)):
            del acts["boot"]
        if self._returns == "2":
            del acts["down"]  # the next registration, at any time, brings it up again
        if not is_rebootable:
            del acts["reboot"], acts["asap"]
        return acts

    def is_settled(self, node: str, shown: NodeState) -> bool:
        """Whether what slurmctld shows has come about on the node. It shows a reboot as issued before
        the slurmd has run RebootProgram (_queue_reboot_msg in src/slurmctld/controller.c of 22.05
        ends with `agent_queue_request`): a node that boots before that is switched off afterwards,
        for good. And a slurmd whose power goes before it has told of a job's end leaves the node
        COMPLETING for minutes, in which slurmctld sends no reboot."""
        has_same_power = self.daemons.is_on(node) is not self.memory.is_off(node)
        return has_same_power and "COMPLETING" not in shown.flags

    def is_lost(self, node: str) -> bool:
        """Resumed while it is switched off: whether its boot then counts as unexpected depends on
        the second in which slurmctld last heard of it."""
        flags = self.in_memory.read_nodes((node,))[node].flags
        return self.memory.is_off(node) and "REBOOT_ISSUED" not in flags

    def _update(self, node: str, state: str, reason: str = "") -> str:
        words = (f"Reason={reason}",) if reason else ()
        told = self._give("scontrol", "update", f"NodeName={node}", state, *words)
        if state == "State=DOWN":
            self._jobs.pop(node, None)
        return told

    def _append(self, node: str) -> str:
        reason = self.in_memory.read_nodes((node,))[node].reason
        return self._give(
            "scontrol", "update", f"NodeName={node}", f"Reason={reason} -- bob: keep out"
        )

    def _give(self, *argv: str) -> str:
        self._command(*argv)
        answer(self.memory, argv)
        return " ".join(argv)

    def _command(self, *argv: str) -> None:
        """A refusal is seen by what the node shows."""
        with contextlib.suppress(SlurmDaemonsError):
            self.daemons.command(*argv)

    def _boot(self, node: str) -> str:
        self.boot_real(node)
        self.memory.boot(node)
        self._booted.add(node)
        return f"{node} boots"

    def boot_real(self, node: str) -> None:
        self.daemons.switch(node, is_on=False)
        self.daemons.switch(node, is_on=True)

    def restart_slurmd(self, node: str) -> None:
        """By one that tells the machine's own boot. Of a slurmd that was started as after a boot (-b)
        each registration counts as one more: whether slurmctld sets a node that was resumed DOWN
        again depends on the second in which it asks."""
        self.daemons.kill_node(node)
        self.daemons.start_node(node)
        self._booted.discard(node)

    def _start_job(self, node: str) -> str:
        options = ("--exclusive", "--no-requeue", "--output=/dev/null", f"--nodelist={node}")
        job = self.daemons.command("sbatch", "--parsable", *options, "--wrap=sleep 600").strip()
        self.memory.add_job(job, nodes=[node])
        self._jobs[node] = job
        return f"job {job} on {node}"

    def _end_job(self, node: str) -> str:
        job = self._jobs.pop(node, "")
        if job:
            self.daemons.command("scancel", job)
            self.memory.finish_job(job)
        return f"scancel {job}"


def compare(both: Both, waiting: list[int]) -> list[str]:
    """Each seed's sequence on a node of its own, all at once: what differs, with what led there.
    Takes seeds from the list's end for as long as there is a node of which both know the same."""
    differences: list[str] = []
    playing: dict[str, Sequence] = {}
    free = list(both.daemons.nodes)
    after: dict[str, list[str]] = {}
    while playing or (waiting and free):
        while waiting and free:
            node, seed = free.pop(), waiting.pop()
            told = [*after.pop(node, []), f"seed {seed}"]
            playing[node] = Sequence(node, random.Random(seed), LENGTH, told)
            playing[node].deadline = deadline_in(_SOON)
        real = both.real.read_nodes(tuple(playing))
        in_memory = both.in_memory.read_nodes(tuple(playing))
        for node, sequence in list(playing.items()):
            is_same = Answer.of(real[node]) == Answer.of(in_memory[node])
            is_awaited = sequence.is_booting or sequence.is_registering
            is_same &= not is_awaited or sequence.booted_before != real[node].boot_time
            is_same &= both.is_settled(node, real[node])
            is_late = time.monotonic() > sequence.deadline
            if is_confused(real[node]) or (is_same and both.is_lost(node)):
                del playing[node]  # and with it the node
                continue
            is_booted = sequence.is_booting and sequence.booted_before != real[node].boot_time
            is_passed_over = is_booted and is_missed(real[node], in_memory[node])
            if is_passed_over and sequence.boots_left:
                sequence.boots_left -= 1
                sequence.booted_before = real[node].boot_time
                sequence.deadline = deadline_in(_SOON)
                both.boot_real(node)
                continue
            if not is_same and not is_late:
                continue
            if not is_same:
                shown = f"real {_format(real[node])}, in memory {_format(in_memory[node])}"
                differences.append("\n  ".join([*sequence.told, shown]))
            if is_same and sequence.is_booting:
                sequence.is_booting, sequence.is_registering = False, True
                sequence.booted_before = real[node].boot_time
                sequence.deadline = deadline_in(_SOON)
                both.restart_slurmd(node)
                continue
            if not is_same or not sequence.left:
                del playing[node]
                if is_same:  # the next one begins where this one ends
                    free.insert(0, node)
                    after[node] = sequence.told[-_KEPT:]
                continue
            acts = both.list_acts(node, real[node])
            name = sequence.dice.choice(list(acts))
            sequence.told.append(f"{_format(real[node])}: {acts[name](sequence.dice)}")
            sequence.is_booting, sequence.is_registering = name == "boot", False
            sequence.boots_left = _BOOTS - 1
            sequence.booted_before = real[node].boot_time
            sequence.left -= 1
            sequence.deadline = deadline_in(_SOON)
        both.now += timedelta(milliseconds=1)
    return differences


def is_confused(state: NodeState) -> bool:
    """A slurmd that was started as after a boot (-b) counts as booted with each registration: one
    that was under way when slurmctld sent a reboot brings the node up, and the flag stays."""
    return "REBOOT_ISSUED" in state.flags and state.base != "DOWN"


def is_missed(real: NodeState, in_memory: NodeState) -> bool:
    """Whether slurmctld has not seen that a boot was unexpected: it knows that by the seconds of the
    boot and of the slurmd's last answer (validate_node_specs in src/slurmctld/node_mgr.c), and one
    that starts slowly answers a ping before it registers."""
    return in_memory.base == "DOWN" and real.base != "DOWN"


def _format(state: NodeState) -> str:
    return f"{format_state(state)} by {state.reason_set_by}"


@contextlib.contextmanager
def both_with(directory: Path, returns: str) -> Iterator[Both]:
    power_off = directory / "power-off"
    settings = {"RebootProgram": str(power_off), "ReturnToService": returns}
    nodes = [f"gn{number:03d}" for number in range(1, NODES + 1)]
    options = SlurmOptions(
        gpus_per_node=0, resume_timeout=_NEVER, boot_takes=_BOOT, settings=settings
    )
    with SlurmDaemons(directory, nodes=nodes, cluster_name=CLUSTER, options=options) as daemons:
        reboot = (directory / "reboot").read_text()
        power_off.write_text(reboot.replace('"reboot $node"', '"off $node"'))
        power_off.chmod(0o755)
        version = daemons.command("scontrol", "--version").split()[1]
        yield Both(daemons, version, returns)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("returns", ["0", "1", "2"])
def test_the_slurm_in_memory_answers_as_the_real_one(
    returns: str, tmp_path: Path, is_full_length: bool
) -> None:
    count = SEQUENCES // 3 if is_full_length else PLAINLY
    first = SEQUENCES * int(returns)
    waiting = list(range(first, first + count))
    differences: list[str] = []
    while waiting:
        with both_with(tmp_path / str(len(waiting)), returns) as both:
            differences += compare(both, waiting)
    assert differences == []
