"""What Slurm is to Kintsugi: the Protocols that it is read and acted upon through, its errors, and
what it answers with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from detectors.slurm.job_records import RecentJobs
from detectors.slurm.output import NodeState
from detectors.slurm.reservations import Reservation
from runbooks.errors import WorldError, WorldRefusal
from runbooks.slurm.demands import Demand
from runbooks.slurm.jobs import SlurmJob

__all__ = [
    "MAINTENANCE",
    "Access",
    "Demand",
    "NodeChanged",
    "NodeEvent",
    "NodeState",
    "RecentJobs",
    "Reservation",
    "SlurmError",
    "SlurmJob",
    "SlurmReader",
    "SlurmRefusal",
    "SlurmWriter",
    "check_unchanged",
    "format_own_name",
    "format_state",
    "is_ours",
]

# scontrol(1), reservations: taken whatever runs there, and no fault of the node's availability.
MAINTENANCE = ("MAINT", "IGNORE_JOBS")


_OWN = "kintsugi_"
_OWN_NAME = re.compile(rf"{_OWN}\d+-\d+-\w+")


def format_own_name(key: str) -> str:
    """What a reservation or a job of ours is called."""
    return f"{_OWN}{key}"


def check_unchanged(node: str, before: NodeState | None, found: NodeState) -> None:
    """Raises NodeChanged where somebody has written or done something to the node since."""
    if before is not None and _get_comparable_state(before) != _get_comparable_state(found):
        change = f"{node} was {format_state(before)} and is {format_state(found)}"
        raise NodeChanged(f"{change}: nothing was done to it.")


def _get_comparable_state(state: NodeState) -> tuple[object, ...]:
    """What people, and Slurm itself, say of a node. Jobs that come and go are left out."""
    reason = (state.reason, state.reason_set_by, state.reason_changed_at)
    return *reason, state.is_draining, state.is_failing, state.is_rebooting, state.base == "DOWN"


def format_state(node: NodeState) -> str:
    """A node's state and reason, for sentences."""
    return "+".join((node.base, *sorted(node.flags))) + (f" ({node.reason})" if node.reason else "")


def is_ours(name: str) -> bool:
    """Whether a job of this name tests a node for us: of one that fails, nobody loses any work."""
    return _OWN_NAME.fullmatch(name) is not None


class SlurmError(WorldError):
    """Slurm did not do, or did not answer, what was asked: the command, its status, its words, what
    to do.

    What was asked may have been done all the same: look before asking again.
    """


class NodeChanged(SlurmError):
    """Nothing was done: the node is not as it was when that was decided on. Look at it anew, and
    decide anew."""


class SlurmRefusal(SlurmError, WorldRefusal):
    """It was not asked, or cannot be had by asking again: another cluster, an unknown node, a
    person's drain."""


@dataclass(frozen=True)
class Access:
    """Who we are to Slurm. `is_operator`: may drain, reboot and resume nodes."""

    user: str
    is_operator: bool
    reason: str


@dataclass(frozen=True)
class NodeEvent:
    """A row of Slurm's accounts: the node was out for this reason, by whom, since when. `ended_at`
    is None while it is; times are slurmctld's, in whole seconds.

    Measured in 22.05.8: nothing is written of a node on which jobs are, and of two drains within
    one second there is one row, with the second's reason and the first's user.
    """

    reason: str
    by: str
    began_at: datetime
    ended_at: datetime | None


def do_nothing() -> None:
    """The caller has nothing to do while Slurm is asked."""


class SlurmReader(Protocol):
    """What Slurm shows: all that a process may ask that never acts. Every method raises
    SlurmError."""

    def read_config(self) -> Mapping[str, str]:
        """slurm.conf as slurmctld runs it."""
        ...

    def read_nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        """All nodes, or those named; SlurmRefusal for a name that Slurm does not know."""
        ...

    def list_jobs(self, node: str) -> list[SlurmJob]:
        """Those that work on the node or whose end it has not finished: state COMPLETING, since
        `ended_at`."""
        ...

    def list_demands(self) -> list[Demand]:
        """How many nodes each job needs that runs, or waits for nodes."""
        ...

    def read_nodes_beside(self, beside: Callable[[], None]) -> dict[str, NodeState]:
        """All nodes. The caller's thread does what is to be done `beside` while Slurm is asked, and
        what that raises is raised."""
        ...

    def read_nodes_and_demands(
        self, beside: Callable[[], None] = do_nothing
    ) -> tuple[dict[str, NodeState], list[Demand]]:
        """As `read_nodes_beside`, and what jobs need: both are asked at once, since each answer
        takes its time."""
        ...

    def read_recent_jobs(self, lately: timedelta) -> RecentJobs:
        """All jobs that run, and those that ended lately; accounts that do not answer are said, not
        raised."""
        ...

    def list_node_events(self, node: str) -> list[NodeEvent] | None:
        """What the accounts hold of the node's last day, the oldest first; None where none are
        kept. What slurmctld has seen comes there some tenths of a second later."""
        ...

    def list_reservations(self) -> list[Reservation]:
        """All of them, also those whose time has not come."""
        ...

    def find_job(self, key: str) -> SlurmJob | None:
        """The job `ours(key)`, waiting, working or ended; None where Slurm knows none (any
        more)."""
        ...

    def read_partitions(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each partition."""
        ...

    def read_access(self) -> Access: ...


class SlurmWriter(SlurmReader, Protocol):
    """Slurm's verbs that act as well: given to the process that may act, and to no other.

    Every method raises SlurmError; none returns before the state was read back. `as_seen` is the
    node as it was when the act was decided on: it is looked at once more, directly before the act,
    and NodeChanged is raised where somebody has said or done something else since. Without it
    nothing is compared.
    """

    def with_check(self, check: Callable[[], None]) -> SlurmWriter:
        """The same, which calls `check` between the last look at a node and the act on it, and
        before each act on jobs, reservations or partitions. What that raises is raised, and nothing
        was done."""
        ...

    def drain(self, node: str, reason: str, *, as_seen: NodeState | None = None) -> NodeState:
        """Take the node out for new jobs; the node as it is then. What its reason was is
        overwritten.

        In the same update the node's comment says which incident it is for, where there is none yet
        or one of ours, and Kintsugi's address is known. A drain with other words than ours, and a
        resume, take that away.
        """
        ...

    def resume(self, node: str, *, as_seen: NodeState | None = None) -> None: ...

    def remove_comment(self, node: str) -> None:
        """What we have left in its comment, where nobody has written anything else since."""
        ...

    def reboot(self, node: str, *, as_seen: NodeState | None = None) -> NodeState:
        """Plain `scontrol reboot`: a drained node comes back drained. Past ResumeTimeout it does
        not. The node as it is then."""
        ...

    def cancel_reboot(
        self, node: str, reason: str, *, as_seen: NodeState | None = None
    ) -> NodeState:
        """What Slurm has not sent yet (REBOOT_REQUESTED) it sends no more. That drops the drain
        (seen in 22.05), so the node is drained again at once. The node as it is then.

        SlurmRefusal of a reboot that it has sent (REBOOT_ISSUED): 22.05 says `Invalid node state
        specified`.
        """
        ...

    def withdraw_reboot(self, node: str, *, as_seen: NodeState | None = None) -> None:
        """The same for a node in service, which stays there. SlurmRefusal of a drained one: its
        drain would go."""
        ...

    def requeue(self, job_id: str) -> None:
        """End the job and let it wait for other nodes. SlurmRefusal for one that may not be started
        anew."""
        ...

    def exclude_node(self, job_id: str, node: str) -> bool:
        """Add the node to those on which a waiting job is not started; its own list stays. False:
        the list had it, the job asks for the node by name, or it does not wait any more."""
        ...

    def admit_node(self, job_id: str, node: str) -> None:
        """Take the node from that list again, if the job waits still."""
        ...

    def notify_job(self, job_id: str, text: str) -> None:
        """A line in the output of the job's script, srun or salloc. Slurm keeps no trace of it."""
        ...

    def signal_job(self, job_id: str, signal: str, *, is_batch: bool) -> None:
        """To the job's steps, or with `is_batch` to its script's shell alone. Slurm keeps no trace
        of it."""
        ...

    def reserve(
        self,
        key: str,
        nodes: Sequence[str],
        *,
        duration: timedelta,
        starts_at: datetime | None = None,
        flags: Sequence[str] = MAINTENANCE,
    ) -> None:
        """A reservation `ours(key)` for our own user, from now where no time is given. There
        already: nothing."""
        ...

    def unreserve(self, key: str) -> None:
        """The reservation `ours(key)` ends. There is none: nothing. SlurmError while a job runs in
        it."""
        ...

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
        """A job `ours(key)` that runs argv once, on the first of the nodes, with so many GPUs of
        each; its id.

        There already, or ended: nothing, the id of that one. `reservation` is the key of one of
        ours. Output goes nowhere: the command keeps what is to be read. A drained node takes no
        job, in a reservation neither.
        """
        ...

    def cancel(self, job_id: str) -> None: ...

    def set_partitions(self, node: str, partitions: Sequence[str]) -> None:
        """The node is in these partitions and no other. Holds until slurmctld reads slurm.conf
        anew."""
        ...
