"""Slurm by its own programs: the client that drives scontrol, squeue, sbatch and scancel.

Exit codes are not believed: after each act the state is read back (`scontrol update` may return 1
and have acted, and 0 and have not). Nothing is done to a cluster of another name.
"""

from __future__ import annotations

import copy
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from detectors.detector import DetectorError, Output, Shell, Target
from detectors.slurm import drain_reasons, job_records, queries
from detectors.slurm import output as slurm_output
from detectors.slurm.job_records import Accounts
from detectors.slurm.reservations import SHOW, parse_reservations
from runbooks.slurm import answers, demands, node_comments, node_events
from runbooks.slurm import jobs as slurm_jobs
from runbooks.slurm.ownership import Written
from runbooks.slurm.protocol import (
    MAINTENANCE,
    Access,
    Demand,
    NodeChanged,
    NodeEvent,
    NodeState,
    RecentJobs,
    Reservation,
    SlurmError,
    SlurmJob,
    SlurmRefusal,
    check_unchanged,
    do_nothing,
    format_own_name,
    format_state,
)

# slurmctld's own MessageTimeout is 10 s by default, and scontrol retries: past this it hangs.
_TIMEOUT = timedelta(seconds=30)
_ACCOUNTING_TIMEOUT = timedelta(seconds=60)
# How long it is believed which cluster Slurm's programs speak to, and its version (our choice):
# whoever points them to another one stops Kintsugi first, or waits so long.
_CLUSTER_KEPT_S = 60.0
_JOB_ID = re.compile(r"\d{1,10}(_\d{1,10})?")
_SSH_ACCESS = re.compile(r"ssh:(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+)(?::(?P<port>\d{1,5}))?")
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}")
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,100}")
_SIGNAL = re.compile(r"USR1|USR2|HUP|URG")
_LONGEST_REASON = 240


class ScontrolReader:
    """What Slurm's programs show, run by `shell` on `host` (LocalShell, or SshShell to the
    controller). It has no verb that acts."""

    def __init__(self, shell: Shell, host: Target, *, conf: str = "") -> None:
        self._shell = shell
        self._host = host
        # Times are printed in the zone of the caller: only UTC has no hour that comes twice.
        self._prefix = (
            "env",
            "TZ=UTC",
            "SLURM_TIME_FORMAT=standard",
            *((f"SLURM_CONF={conf}",) if conf else ()),
        )

    def read_config(self) -> Mapping[str, str]:
        return slurm_output.parse_config(self._ask("scontrol", "show", "config"))

    def read_nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        chosen = (",".join(_check_node_name(name) for name in names),) if names else ()
        output = self._run("scontrol", "--all", "show", "node", *chosen)
        text = output.stdout.decode(errors="replace")
        found = slurm_output.parse_nodes(text)
        unknown = [name for name in names if name not in found]
        if output.status != 0 and not (unknown and "not found" in text):
            raise answers.build_error(("scontrol", "show", "node"), output)
        if unknown:
            raise SlurmRefusal(
                f"{', '.join(unknown)}: Slurm knows no such node. Compare the inventory with `sinfo"
                " -N`."
            )
        return found

    def list_jobs(self, node: str) -> list[SlurmJob]:
        return self._list_jobs(f"--nodelist={_check_node_name(node)}")

    def list_demands(self) -> list[Demand]:
        return demands.parse_demands(self._ask(*demands.SQUEUE))

    def read_nodes_beside(self, beside: Callable[[], None]) -> dict[str, NodeState]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="slurm") as threads:
            nodes = threads.submit(self.read_nodes)
            beside()
            return nodes.result()

    def read_nodes_and_demands(
        self, beside: Callable[[], None] = do_nothing
    ) -> tuple[dict[str, NodeState], list[Demand]]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="slurm") as threads:
            demands = threads.submit(self.list_demands)
            return self.read_nodes_beside(beside), demands.result()

    def read_recent_jobs(self, lately: timedelta) -> RecentJobs:
        between = slurm_output.create_separator()
        listed = self._ask(*queries.build_jobs_command(between))
        totals = self._run(*queries.JOB_TOTALS).stdout.decode(errors="replace")
        records = job_records.parse_listed_jobs(listed, totals, between=between)
        hours = math.ceil(lately / timedelta(hours=1))
        try:
            output = self._run(
                *queries.build_accounts_command(hours, between), timeout=_ACCOUNTING_TIMEOUT
            )
        except SlurmError as error:
            return RecentJobs(records, Accounts.SILENT, str(error))
        if queries.has_no_accounts(output):
            return RecentJobs(records, Accounts.NONE_KEPT)
        if output.status != 0:
            return RecentJobs(records, Accounts.SILENT, answers.explain_no_accounts(output))
        return RecentJobs(
            records
            + job_records.parse_ended_jobs(output.stdout.decode(errors="replace"), between=between)
        )

    def list_node_events(self, node: str) -> list[NodeEvent] | None:
        output = self._run(*node_events.SHOW, f"nodes={_check_node_name(node)}")
        if node_events.has_no_accounts(output):
            return None
        if output.status != 0:
            raise answers.build_error(node_events.SHOW, output)
        return node_events.parse_events(output.stdout.decode(errors="replace"))

    def list_reservations(self) -> list[Reservation]:
        return parse_reservations(self._ask(*SHOW))

    def find_job(self, key: str) -> SlurmJob | None:
        name = _format_checked_name(key)
        found = self._list_jobs("--states=all", "--me", f"--name={name}")
        if not found:
            output = self._run(
                *slurm_jobs.SACCT,
                f"--name={name}",
                f"--user={self._read_user()}",
                timeout=_ACCOUNTING_TIMEOUT,
            )
            if output.status != 0 and not queries.has_no_accounts(output):
                raise answers.build_error(("sacct", f"--name={name}"), output)
            found = (
                slurm_jobs.parse_sacct(output.stdout.decode(errors="replace"), name)
                if output.status == 0
                else []
            )
        return found[-1] if found else None

    def read_partitions(self) -> dict[str, tuple[str, ...]]:
        return slurm_output.parse_partitions(self._ask("scontrol", "--all", "show", "partition"))

    def read_access(self) -> Access:
        """Root and SlurmUser may do all; others need the level Operator or Administrator in the
        accounting."""
        user = self._read_user()
        owner = self.read_config().get("SlurmUser", "").partition("(")[0]
        if user in {"root", owner}:
            return Access(user, is_operator=True, reason=f"{user} runs Slurm")
        output = self._run(
            "sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel"
        )
        level = output.stdout.decode(errors="replace").strip() or "none"
        is_operator = output.status == 0 and level.lower() in {"operator", "administrator"}
        return Access(user, is_operator=is_operator, reason=f"{user} has the admin level {level}")

    def _read_user(self) -> str:
        return self._ask("id", "-un").strip()

    def _list_jobs(self, *options: str) -> list[SlurmJob]:
        between = slurm_output.create_separator()
        return slurm_jobs.parse_squeue(
            self._ask(*slurm_jobs.build_squeue(between), *options), between
        )

    def _ask(self, *argv: str) -> str:
        output = self._run(*argv)
        if output.status != 0:
            raise answers.build_error(argv, output)
        return output.stdout.decode(errors="replace")

    def _run(self, *argv: str, timeout: timedelta = _TIMEOUT) -> Output:
        try:
            output = self._shell.run(self._host, (*self._prefix, *argv), timeout)
        except DetectorError as error:
            raise SlurmError(f"{argv[0]} could not be run on {self._host.name}: {error}") from error
        if output.status is None:
            raise SlurmError(
                f"`{' '.join(argv)}` gave no answer within {timeout.seconds} s. Is slurmctld up"
                " (`scontrol ping`)?"
            )
        return output


_SBATCH = (
    "sbatch",
    "--parsable",
    "--no-requeue",
    "--chdir=/",
    "--output=/dev/null",
    "--ntasks-per-node=1",
    # Each value but ALL and NIL, which 22.05 does not know, has slurmd read the login files of the
    # account on the node first, for up to 120 s (sbatch(1), --get-user-env): a node whose home is
    # on a dead file system would start no job. Of our own environment LocalShell keeps the secrets.
    "--export=ALL",
)


@dataclass
class _CheckedCluster:
    """slurm.conf of the cluster that may be acted upon, and until when (time.monotonic) it is not
    asked for again."""

    until: float = -math.inf
    config: Mapping[str, str] = field(default_factory=dict)


def _check_nothing() -> None:
    """Whoever acts has no lease that may be over."""


class ScontrolWriter(ScontrolReader):
    """Acts through Slurm's programs as well. `cluster_name` is the one cluster that may be acted
    upon; looking is free. `incidents_at`: the address below which incidents are shown, which is
    left in the comments of nodes that are drained for one; empty: no comment is written."""

    def __init__(
        self,
        shell: Shell,
        host: Target,
        *,
        cluster_name: str,
        conf: str = "",
        incidents_at: str = "",
    ) -> None:
        super().__init__(shell, host, conf=conf)
        self._cluster_name = cluster_name
        self._incidents_at = incidents_at
        self._cluster = _CheckedCluster()
        self._check_before_act: Callable[[], None] = _check_nothing

    def with_check(self, check: Callable[[], None]) -> ScontrolWriter:
        other = copy.copy(self)
        other._check_before_act = check
        return other

    def read_nodes_beside(self, beside: Callable[[], None]) -> dict[str, NodeState]:
        """Who asks so is about to act: where it has to be seen anew which cluster this is, that is
        asked meanwhile. What stands in the way of an act is raised by the act."""
        if time.monotonic() < self._cluster.until:
            return super().read_nodes_beside(beside)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="cluster") as threads:
            threads.submit(self._check_cluster)
            return super().read_nodes_beside(beside)

    def drain(self, node: str, reason: str, *, as_seen: NodeState | None = None) -> NodeState:
        self._check_cluster()
        return self._write_drain(self._look_unchanged(node, as_seen), reason)

    def _write_drain(self, before: NodeState, reason: str) -> NodeState:
        node, words = before.name, _format_one_line(reason)
        config = self._check_cluster()
        comment = node_comments.get_words(before, words, self._incidents_at, config)
        update = ("scontrol", "update", f"NodeName={node}", "State=DRAIN")
        output = self._run(*update, f"Reason={words}", *comment)
        after = self._look(node)
        # What a person has added meanwhile is theirs: only Slurm's own words may follow ours.
        if not (after.is_draining and Written(words).is_continued_by(after.reason)):
            raise answers.build_mismatch(
                f"{node} is {format_state(after)} after a drain was asked for", output
            )
        return after

    def resume(self, node: str, *, as_seen: NodeState | None = None) -> None:
        config = self._check_cluster()
        before = self._look_unchanged(node, as_seen)
        comment = node_comments.get_words(before, "", "", config)
        output = self._run("scontrol", "update", f"NodeName={node}", "State=RESUME", *comment)
        after = self._look(node)
        if after.is_draining or after.base == "DOWN":
            raise answers.build_mismatch(
                f"{node} is {format_state(after)} after a resume was asked for", output
            )

    def remove_comment(self, node: str) -> None:
        config = self._check_cluster()
        comment = node_comments.get_words(self._look(node), "", "", config)
        if not comment:
            return
        output = self._run("scontrol", "update", f"NodeName={node}", *comment)
        after = self._look(node)
        if node_comments.is_ours(after.comment):
            raise answers.build_mismatch(f"{node} keeps the comment {after.comment}", output)

    def reboot(self, node: str, *, as_seen: NodeState | None = None) -> NodeState:
        before = self._require_unchanged(node, as_seen)
        output = self._run("scontrol", "reboot", node)
        after = self._look(node)
        has_booted = after.boot_time != before.boot_time
        if not (after.is_rebooting or has_booted or after.reason != before.reason):
            raise answers.build_mismatch(
                f"{node} is {format_state(after)} after a reboot was asked for", output
            )
        return after

    def cancel_reboot(
        self, node: str, reason: str, *, as_seen: NodeState | None = None
    ) -> NodeState:
        before = self._require_unchanged(node, as_seen)
        if not before.is_rebooting:
            return before
        output = self._run("scontrol", "cancel_reboot", node)
        self._check_still_unclaimed(node, before)
        # Whoever has lost the lease by now leaves no node undrained.
        after = self._write_drain(self._look(node), reason)
        if after.is_rebooting and b"Invalid node state" in output.stderr + output.stdout:
            raise SlurmRefusal(
                f"Slurm cancels no reboot of {node}, which is {format_state(after)}:"
                f" {answers.format_output(output)}"
            )
        if after.is_rebooting:
            raise answers.build_mismatch(
                f"{node} is {format_state(after)} after its reboot was cancelled", output
            )
        return after

    def _check_still_unclaimed(self, node: str, before: NodeState) -> None:
        """A reboot that is cancelled takes the drain away on some Slurms, and a person may have
        drained the node in that moment. Raises NodeChanged."""
        found = self._look(node)
        own = Written(drain_reasons.strip_appended(before.reason))
        is_persons = found.is_draining and not own.is_continued_by(found.reason)
        if found.is_failing or is_persons:
            raise NodeChanged(f"{node} is {format_state(found)} since its reboot was cancelled.")

    def withdraw_reboot(self, node: str, *, as_seen: NodeState | None = None) -> None:
        before = self._require_unchanged(node, as_seen)
        if before.is_draining or before.is_failing:  # of a FAIL Slurm takes the reason away
            raise SlurmRefusal(f"{node} is {format_state(before)}: that would go with the reboot")
        output = self._run("scontrol", "cancel_reboot", node)
        after = self._look(node)
        if after.is_rebooting:
            raise answers.build_mismatch(
                f"{node} is {format_state(after)} after its reboot was cancelled", output
            )

    def requeue(self, job_id: str) -> None:
        before = self._require_job(job_id)
        if not before.is_requeueable:
            raise SlurmRefusal(f"job {job_id} of {before.user} may not be started anew (Requeue=0)")
        output = self._act("requeue", before.named)
        after = self._find_job_by_id(job_id)
        if after is not None and after.state == "RUNNING" and after.started_at == before.started_at:
            raise answers.build_mismatch(
                f"job {job_id} still runs after a requeue was asked for", output
            )

    def exclude_node(self, job_id: str, node: str) -> bool:
        job = self._require_job(job_id)
        lists = self._read_node_lists(job)
        if node in lists.wanted or node in lists.excluded:
            return False
        return self._set_excluded(job, ",".join(filter(None, (lists.text, node))))

    def admit_node(self, job_id: str, node: str) -> None:
        job = self._find_job_by_id(job_id)
        if job is None or job.has_ended:
            return
        lists = self._read_node_lists(job)
        if node in lists.excluded and lists.is_whole:
            self._set_excluded(job, ",".join(name for name in lists.excluded if name != node))

    def _set_excluded(self, job: SlurmJob, text: str) -> bool:
        """False: Slurm takes it of jobs that wait alone, and this one has begun or is over."""
        argv = ("update", f"JobId={job.named}", f"ExcNodeList={text}")
        output = self._act(*argv)
        if output.status != 0 and b"no longer pending" in output.stderr + output.stdout:
            return False
        if output.status != 0:
            raise answers.build_error(("scontrol", *argv), output)
        after = self._read_node_lists(job)
        if set(after.excluded) != set(slurm_output.iterate_hosts(text)):
            raise answers.build_mismatch(f"job {job.named} excludes {after.text}", output)
        return True

    def _read_node_lists(self, job: SlurmJob) -> slurm_jobs.NodeLists:
        between = slurm_output.create_separator()
        columns = f"--format=%n{between}%x{between}"
        text = self._ask("squeue", "--noheader", "--states=all", f"--jobs={job.named}", columns)
        return slurm_jobs.parse_node_lists(text, between)

    def notify_job(self, job_id: str, text: str) -> None:
        job = self._require_job(job_id)
        output = self._act("notify", job.named, _format_one_line(text))
        if output.status != 0:
            raise answers.build_error(("scontrol", "notify", job.named), output)

    def signal_job(self, job_id: str, signal: str, *, is_batch: bool) -> None:
        job = self._require_job(job_id)
        if not _SIGNAL.fullmatch(signal):
            raise SlurmRefusal(f"{signal!r} is no signal that a job is sent")
        batch = ("--batch",) if is_batch else ()
        argv = ("scancel", f"--signal={signal}", *batch, job.named)
        output = self._act_by(*argv)
        if output.status != 0:
            raise answers.build_error(argv, output)

    def reserve(
        self,
        key: str,
        nodes: Sequence[str],
        *,
        duration: timedelta,
        starts_at: datetime | None = None,
        flags: Sequence[str] = MAINTENANCE,
    ) -> None:
        if self._is_reserved(key, nodes):
            return
        start = "now"
        if starts_at is not None:
            start = f"{starts_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
        name, minutes = _format_checked_name(key), _format_minutes(duration)
        node_list, user = _format_node_list(nodes), self._read_user()
        options = (
            f"ReservationName={name}",
            f"StartTime={start}",
            f"Duration={minutes}",
            f"Nodes={node_list}",
            f"Users={user}",
            f"Flags={','.join(flags)}",
        )
        output = self._act("create", "reservation", *options)
        if not self._is_reserved(key, nodes):
            raise answers.build_mismatch(
                f"there is no reservation {format_own_name(key)} after it was asked for", output
            )

    def unreserve(self, key: str) -> None:
        if not self._find_reservation(key):
            return
        output = self._act("delete", f"ReservationName={_format_checked_name(key)}")
        if self._find_reservation(key):
            raise answers.build_mismatch(
                f"the reservation {format_own_name(key)} still stands after it was to be deleted",
                output,
            )

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
        submitted = self.find_job(key)
        if submitted is not None:
            return submitted.job_id
        partition = self._get_common_partition(nodes)
        name, minutes = _format_checked_name(key), _format_minutes(time_limit)
        options = [
            f"--job-name={name}",
            f"--partition={partition}",
            f"--nodes={len(nodes)}",
            f"--nodelist={_format_node_list(nodes)}",
            f"--time={minutes}",
        ]
        if gpus:
            options.append(f"--gres=gpu:{gpus}")
        if reservation:
            options.append(f"--reservation={_format_checked_name(reservation)}")
        output = self._act_by(*_SBATCH, *options, f"--wrap={shlex.join(argv)}")
        job = self.find_job(key)
        if job is None:
            what = f"there is no job {format_own_name(key)} after it was submitted"
            raise answers.build_mismatch(what, output)
        return job.job_id

    def cancel(self, job_id: str) -> None:
        before = self._find_job_by_id(job_id)
        if before is None or before.has_ended or before.is_completing:
            return
        output = self._act_by("scancel", job_id)
        after = self._find_job_by_id(job_id)
        if after is not None and not (after.has_ended or after.is_completing):
            raise answers.build_mismatch(
                f"job {job_id} is {after.state} after it was cancelled", output
            )

    def set_partitions(self, node: str, partitions: Sequence[str]) -> None:
        """22.05 has no `Nodes+=`: each list is written whole, and what others have is looked at
        again afterwards."""
        before = self.read_partitions()
        self._look(node)
        unknown = [name for name in partitions if name not in before]
        if unknown:
            raise SlurmRefusal(f"{', '.join(unknown)}: Slurm knows no such partition")
        wanted: dict[str, tuple[str, ...]] = {}
        for name, members in before.items():
            wanted[name] = _update_members(members, node, is_in=name in partitions)
        changed = [name for name, members in wanted.items() if members != before[name]]
        outputs = []
        for name in changed:
            node_list = ",".join(wanted[name])
            partition = _check_partition_name(name)
            outputs.append(self._act("update", f"PartitionName={partition}", f"Nodes={node_list}"))
        after = self.read_partitions()
        wrong = [name for name in changed if set(after.get(name, ())) != set(wanted[name])]
        if wrong:
            what = f"partition {', '.join(wrong)} has other nodes than it was given for {node}"
            raise answers.build_mismatch(what, outputs[changed.index(wrong[0])])

    def _act(self, *argv: str) -> Output:
        return self._act_by("scontrol", *argv)

    def _act_by(self, *argv: str) -> Output:
        """An act on jobs, reservations or partitions."""
        self._check_cluster()
        self._check_before_act()
        return self._run(*argv)

    def _check_cluster(self) -> Mapping[str, str]:
        """slurm.conf as it was within a minute. Raises SlurmRefusal where this is another cluster
        than the one to be acted upon."""
        now = time.monotonic()
        if now < self._cluster.until:
            return self._cluster.config
        config = self.read_config()
        name = config.get("ClusterName", "")
        if not self._cluster_name or name != self._cluster_name:
            raise SlurmRefusal(
                f"this is cluster {name or 'without a name'}, and KINTSUGI_CLUSTER_NAME is"
                f" {self._cluster_name or 'unset'}: nothing is done to it"
            )
        self._cluster.config, self._cluster.until = config, now + _CLUSTER_KEPT_S
        return config

    def _look(self, node: str) -> NodeState:
        return self.read_nodes((node,))[node]

    def _require_unchanged(self, node: str, as_seen: NodeState | None) -> NodeState:
        """The node directly before an act: what is asked between this look and the act is the time
        in which a person's word can be written over. Raises NodeChanged."""
        self._check_cluster()
        return self._look_unchanged(node, as_seen)

    def _look_unchanged(self, node: str, as_seen: NodeState | None) -> NodeState:
        found = self._look(node)
        check_unchanged(node, as_seen, found)
        self._check_before_act()
        return found

    def _require_job(self, job_id: str) -> SlurmJob:
        found = self._find_job_by_id(job_id)
        if found is None:
            raise SlurmRefusal(f"{job_id}: Slurm knows no such job")
        return found

    def _find_job_by_id(self, job_id: str) -> SlurmJob | None:
        if not _JOB_ID.fullmatch(job_id):
            raise SlurmRefusal(f"{job_id}: no job id")
        between = slurm_output.create_separator()
        argv = (*slurm_jobs.build_squeue(between), "--states=all", f"--jobs={job_id}")
        output = self._run(*argv)
        if output.status != 0 and b"Invalid job id" in output.stderr + output.stdout:
            return None  # slurmctld has forgotten it, MinJobAge after its end
        if output.status != 0:
            raise answers.build_error(argv[:1], output)
        # Of an array all tasks are shown.
        found = slurm_jobs.parse_squeue(output.stdout.decode(errors="replace"), between)
        return next((job for job in found if job_id in (job.job_id, job.task)), None)

    def _find_reservation(self, key: str) -> Reservation | None:
        name = _format_checked_name(key)
        return next((found for found in self.list_reservations() if found.name == name), None)

    def _is_reserved(self, key: str, nodes: Sequence[str]) -> bool:
        found = self._find_reservation(key)
        if found is not None and set(found.nodes) != set(nodes):
            raise SlurmRefusal(
                f"the reservation {found.name} is there with other nodes: {', '.join(found.nodes)}"
            )
        return found is not None

    def _get_common_partition(self, nodes: Sequence[str]) -> str:
        """One that has them all: the default partition may not."""
        states = list(self.read_nodes(nodes).values())
        in_all = set(states[0].partitions).intersection(*(state.partitions for state in states))
        common = [name for name in states[0].partitions if name in in_all]
        if not common:
            raise SlurmRefusal(
                f"{', '.join(nodes)}: no partition has them all, so no job can run there"
            )
        return _check_partition_name(common[0])


def parse_controller(access: str) -> Target:
    """Where Slurm's programs run, from KINTSUGI_SLURM: `local` or `ssh:[USER@]HOST[:PORT]`."""
    found = _SSH_ACCESS.fullmatch(access)
    if found is None:
        return Target(name="localhost", address="localhost")
    return Target(
        name=found["host"],
        address=found["host"],
        port=int(found["port"] or 22),
        user=found["user"] or "",
    )


def _check_node_name(node: str) -> str:
    """A host list or `ALL` in place of a name would act on many nodes."""
    if not _NODE_NAME.fullmatch(node) or node.upper() == "ALL":
        raise SlurmRefusal(f"{node!r} is no node name")
    return node


def _format_node_list(nodes: Sequence[str]) -> str:
    return ",".join(_check_node_name(node) for node in nodes)


def _format_minutes(span: timedelta) -> str:
    return str(math.ceil(span / timedelta(minutes=1)))


def _format_checked_name(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise SlurmRefusal(f"{key!r} cannot name a reservation or a job")
    return format_own_name(key)


def _check_partition_name(name: str) -> str:
    if not _PARTITION.fullmatch(name):
        raise SlurmRefusal(f"{name!r} is no partition's name")
    return name


def _update_members(members: Sequence[str], node: str, *, is_in: bool) -> tuple[str, ...]:
    others = tuple(name for name in members if name != node)
    if not is_in:
        return others
    return tuple(members) if node in members else (*others, node)


def _format_one_line(reason: str) -> str:
    """scontrol drops a quote at either end, and a line feed would fake a field in its own
    output."""
    return " ".join(reason.replace('"', "'").split())[:_LONGEST_REASON].strip()
