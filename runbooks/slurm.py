"""The only file that speaks Slurm: the Protocol, and the client that drives scontrol and squeue.

Exit codes are not believed: after each act the state is read back (`scontrol update` may return 1 and have
acted, and 0 and have not). Nothing is done to a cluster of another name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from detectors import job_records, slurm_output, slurm_queries
from detectors.detector import DetectorError, Output, Shell, Target
from detectors.job_records import Accounts, RecentJobs
from detectors.slurm_output import Job, NodeState
from detectors.slurm_reservations import SHOW, Reservation, reservations

__all__ = [
    "Access",
    "Job",
    "NodeState",
    "RecentJobs",
    "Reservation",
    "ScontrolSlurm",
    "Slurm",
    "SlurmError",
    "SlurmRefusal",
    "controller",
]

# slurmctld's own MessageTimeout is 10 s by default, and scontrol retries: past this it hangs.
_TIMEOUT = timedelta(seconds=30)
_ACCOUNTING_TIMEOUT = timedelta(seconds=60)
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_REASON = 240
_WITHOUT_WORDS = "it said nothing"


class SlurmError(Exception):
    """Slurm did not do, or did not answer, what was asked: the command, its status, its words, what to do.

    What was asked may have been done all the same: look before asking again.
    """


class SlurmRefusal(SlurmError):
    """It was not asked, or cannot be had by asking again: another cluster, an unknown node, a person's drain."""


@dataclass(frozen=True)
class Access:
    """Who we are to Slurm. `is_operator`: may drain, reboot and resume nodes."""

    user: str
    is_operator: bool
    reason: str


class Slurm(Protocol):
    """Slurm's own verbs. Every method raises SlurmError; none returns before the state was read back."""

    def config(self) -> Mapping[str, str]:
        """slurm.conf as slurmctld runs it."""
        ...

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        """All nodes, or those named; SlurmRefusal for a name that Slurm does not know."""
        ...

    def jobs(self, node: str) -> list[Job]: ...

    def recent_jobs(self, lately: timedelta) -> RecentJobs:
        """All jobs that run, and those that ended lately; accounts that do not answer are said, not raised."""
        ...

    def reservations(self) -> list[Reservation]:
        """All of them, also those whose time has not come."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Take the node out for new jobs. What the node's reason was is overwritten: look first."""
        ...

    def resume(self, node: str) -> None: ...

    def reboot(self, node: str) -> None:
        """Plain `scontrol reboot`: a drained node comes back drained. Past ResumeTimeout it does not."""
        ...

    def requeue(self, job_id: str) -> None: ...

    def access(self) -> Access: ...


class ScontrolSlurm:
    """Slurm by its programs, run by `shell` on `host` (LocalShell, or SshShell to the controller).

    `cluster_name` is the one cluster that may be acted upon; looking is free.
    """

    def __init__(self, shell: Shell, host: Target, *, cluster_name: str, conf: str = "") -> None:
        self._shell = shell
        self._host = host
        self._cluster_name = cluster_name
        # Times are printed in the zone of the caller: only UTC has no hour that comes twice.
        self._prefix = ("env", "TZ=UTC", "SLURM_TIME_FORMAT=standard", *((f"SLURM_CONF={conf}",) if conf else ()))

    def config(self) -> Mapping[str, str]:
        return slurm_output.config(self._ask("scontrol", "show", "config"))

    def nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        chosen = (",".join(_checked(name) for name in names),) if names else ()
        output = self._run("scontrol", "--all", "show", "node", *chosen)
        text = output.stdout.decode(errors="replace")
        found = slurm_output.nodes(text)
        unknown = [name for name in names if name not in found]
        if output.status != 0 and not (unknown and "not found" in text):
            raise _error(("scontrol", "show", "node"), output)
        if unknown:
            raise SlurmRefusal(
                f"{', '.join(unknown)}: Slurm knows no such node. Compare the inventory with `sinfo -N`."
            )
        return found

    def jobs(self, node: str) -> list[Job]:
        argv = ("squeue", "--all", "--noheader", f"--nodelist={_checked(node)}", "--format=%A|%T|%u|%N|%b|%j")
        return slurm_output.jobs(self._ask(*argv))

    def recent_jobs(self, lately: timedelta) -> RecentJobs:
        listed = self._ask(*slurm_queries.JOBS)
        totals = self._run(*slurm_queries.JOB_TOTALS).stdout.decode(errors="replace")
        records = job_records.listed(listed, totals)
        hours = math.ceil(lately / timedelta(hours=1))
        try:
            told = self._run(*slurm_queries.job_accounts(hours), timeout=_ACCOUNTING_TIMEOUT)
        except SlurmError as error:
            return RecentJobs(records, Accounts.SILENT, str(error))
        if slurm_queries.has_no_accounts(told):
            return RecentJobs(records, Accounts.NONE_KEPT)
        if told.status != 0:
            return RecentJobs(records, Accounts.SILENT, f"sacct ended with status {told.status}: {_words(told)}")
        return RecentJobs(records + job_records.accounted(told.stdout.decode(errors="replace")))

    def reservations(self) -> list[Reservation]:
        return reservations(self._ask(*SHOW))

    def drain(self, node: str, reason: str) -> None:
        words = _one_line(reason)
        output = self._act("update", f"NodeName={_checked(node)}", "State=DRAIN", f"Reason={words}")
        after = self._look(node)
        if not (after.is_draining and after.reason.startswith(words.rstrip('"'))):
            raise _not_so(f"{node} is {_shown(after)} after a drain was asked for", output)

    def resume(self, node: str) -> None:
        output = self._act("update", f"NodeName={_checked(node)}", "State=RESUME")
        after = self._look(node)
        if after.is_draining or after.base == "DOWN":
            raise _not_so(f"{node} is {_shown(after)} after a resume was asked for", output)

    def reboot(self, node: str) -> None:
        before = self._look(node)
        output = self._act("reboot", _checked(node))
        after = self._look(node)
        if not (after.is_rebooting or after.boot_time != before.boot_time or after.reason != before.reason):
            raise _not_so(f"{node} is {_shown(after)} after a reboot was asked for", output)

    def requeue(self, job_id: str) -> None:
        if not re.fullmatch(r"\d+(_\d+)?", job_id):
            raise SlurmRefusal(f"{job_id}: no job id")
        output = self._act("requeue", job_id)
        if output.status != 0:
            raise _error(("scontrol", "requeue", job_id), output)

    def access(self) -> Access:
        """Root and SlurmUser may do all; others need the level Operator or Administrator in the accounting."""
        user = self._ask("id", "-un").strip()
        owner = self.config().get("SlurmUser", "").partition("(")[0]
        if user in {"root", owner}:
            return Access(user, is_operator=True, reason=f"{user} runs Slurm")
        output = self._run("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel")
        level = output.stdout.decode(errors="replace").strip() or "none"
        is_operator = output.status == 0 and level.lower() in {"operator", "administrator"}
        return Access(user, is_operator=is_operator, reason=f"{user} has the admin level {level}")

    def _act(self, *argv: str) -> Output:
        """An act on nodes or jobs. The cluster's name is asked for right before it."""
        name = self.config().get("ClusterName", "")
        if not self._cluster_name or name != self._cluster_name:
            raise SlurmRefusal(
                f"this is cluster {name or 'without a name'}, and KINTSUGI_CLUSTER_NAME is"
                f" {self._cluster_name or 'unset'}: nothing is done to it"
            )
        return self._run("scontrol", *argv)

    def _look(self, node: str) -> NodeState:
        return self.nodes((node,))[node]

    def _ask(self, *argv: str) -> str:
        output = self._run(*argv)
        if output.status != 0:
            raise _error(argv, output)
        return output.stdout.decode(errors="replace")

    def _run(self, *argv: str, timeout: timedelta = _TIMEOUT) -> Output:
        try:
            output = self._shell.run(self._host, (*self._prefix, *argv), timeout)
        except DetectorError as error:
            raise SlurmError(f"{argv[0]} could not be run on {self._host.name}: {error}") from error
        if output.status is None:
            raise SlurmError(
                f"`{' '.join(argv)}` gave no answer within {timeout.seconds} s. Is slurmctld up (`scontrol ping`)?"
            )
        return output


def controller(access: str) -> Target:
    """Where Slurm's programs run, from KINTSUGI_SLURM: `local` or `ssh:[USER@]HOST[:PORT]`."""
    found = re.fullmatch(r"ssh:(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?", access)
    if found is None:
        return Target(name="localhost", address="localhost")
    return Target(name=found["host"], address=found["host"], port=int(found["port"] or 22), user=found["user"] or "")


def _checked(node: str) -> str:
    """A host list or `ALL` in place of a name would act on many nodes."""
    if not _NODE_NAME.fullmatch(node) or node.upper() == "ALL":
        raise SlurmRefusal(f"{node!r} is no node name")
    return node


def _one_line(reason: str) -> str:
    """scontrol drops a quote at either end, and a line feed would fake a field in its own output."""
    return " ".join(reason.replace('"', "'").split())[:_LONGEST_REASON].strip()


def _shown(node: NodeState) -> str:
    return "+".join((node.base, *sorted(node.flags))) + (f" ({node.reason})" if node.reason else "")


def _words(output: Output) -> str:
    return " ".join((output.stderr or output.stdout).decode(errors="replace").split()) or _WITHOUT_WORDS


def _not_so(what: str, output: Output) -> SlurmError:
    return SlurmError(f"{what}; scontrol ended with status {output.status}: {_words(output)}")


def _error(argv: Sequence[str], output: Output) -> SlurmError:
    words = _words(output)
    advice = ""
    if "Unable to contact slurm controller" in words:
        advice = " slurmctld is down or cannot be reached: Kintsugi looks again, `scontrol ping` shows when it is back."
    elif "permission" in words.lower() or "access denied" in words.lower():
        advice = " This user needs Slurm's admin level Operator: `manage.py preflight` says which user it is."
    return SlurmError(f"`{' '.join(argv)}` ended with status {output.status}: {words}.{advice}")
