"""What detectors ask Slurm: the command lines, and where the answers come from. Questions only,
nothing is changed.

Python 3.9, standard library alone.
"""

from __future__ import annotations

from datetime import timedelta

from detectors.detector import Command, Output, Target, TargetKind
from detectors.slurm import output as slurm_output
from detectors.slurm.job_records import TOTALS_WIDTHS

SITE = "slurm"
# slurmctld's own MessageTimeout is 10 s by default, and its programs retry: past this they hang.
_TIMEOUT = timedelta(seconds=30)
_ACCOUNTING_TIMEOUT = timedelta(seconds=60)
_NO_CONTROLLER = b"Unable to contact slurm controller"
_LONGEST_COMPLAINT = 200


def is_slurm_site(target: Target) -> bool:
    """Whether the target is the machine that Slurm's programs are run on: the site named
    `slurm`."""
    return target.kind is TargetKind.SITE and target.name == SITE


def build_nodes_query(target: Target) -> Command:
    """All nodes with reasons and times. `scontrol show node` exists in every version and has every
    flag.

    It prints about 1 KB a node, so past some 7,000 nodes it outgrows what a transport takes in.
    There the setting `slurm_form = "sinfo"` asks for one line a node instead, without boot times.
    """
    if target.expected.settings.get("slurm_form") == "sinfo":
        return Command(
            "nodes",
            (*_get_prefix(target), "sinfo", "--all", "-N", "-h", "-o", "%N|%T|%u|%E"),
            _TIMEOUT,
        )
    return Command("nodes", (*_get_prefix(target), "scontrol", "--all", "show", "node"), _TIMEOUT)


def build_running_jobs_query(target: Target) -> Command:
    """As `detectors.slurm.output.parse_jobs` reads them."""
    form = _make_form("%A", "%T", "%u", "%N", "%b", "%j")
    argv = ("squeue", "--all", "--noheader", "--states=RUNNING", form)
    return Command("jobs", (*_get_prefix(target), *argv), _TIMEOUT)


# A job stays in slurmctld for MinJobAge after its end (300 s by default), so that a look each
# minute sees how it ended at sites without accounts too.
_SHOWN_STATES = (
    "RUNNING,COMPLETING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT,CONFIGURING,RESIZING,"
    "CANCELLED,COMPLETED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,OUT_OF_MEMORY,DEADLINE,BOOT_FAIL"
)
_ENDED_STATES = "CA,CD,F,TO,NF,PR,OOM,DL,BF,RQ"
_SQUEUE = ("squeue", "--all", "--noheader", f"--states={_SHOWN_STATES}")
# What a job was given where AccountingStorageTRES names GPUs, else what it asked for as a whole or
# for each task; what it asked for on each node stands in `jobs`.
_TOTALS = ("JobID", "tres-alloc", "tres-per-job", "tres-per-task", "NumTasks")
JOB_TOTALS = (
    *_SQUEUE,
    "--Format=" + ",".join(f"{name}:{width}" for name, width in zip(_TOTALS, TOTALS_WIDTHS)),
)


def build_jobs_command(between: str) -> tuple[str, ...]:
    """As `detectors.slurm.job_records.parse_listed_jobs` reads them, with JOB_TOTALS; each cell
    ends with `between`."""
    return (
        *_SQUEUE,
        _make_form("%A", "%T", "%u", "%P", "%S", "%e", "%b", "%N", "%j", "%k", between=between),
    )


def _make_form(*columns: str, between: str = "") -> str:
    """Names hold what users like: what parts the cells is drawn anew (`slurm_output.rows_of`)."""
    parts = between or slurm_output.create_separator()
    return "--format=" + "".join(f"{column}{parts}" for column in columns)


def build_accounts_command(hours: int, between: str) -> tuple[str, ...]:
    """Every start of a job that ended in the last hours, as
    `detectors.slurm.job_records.parse_ended_jobs` reads them."""
    return (
        *(
            "sacct",
            "--allusers",
            "--allocations",
            "--duplicates",
            "--noheader",
            "--parsable",
            f"--delimiter={between}",
        ),
        f"--starttime=now-{hours}hours",
        "--endtime=now",
        f"--state={_ENDED_STATES}",
        "--format=JobIDRaw,State,User,Partition,Start,End,AllocTRES,NodeList,JobName,Comment",
    )


def has_no_accounts(output: Output) -> bool:
    """The site keeps none, or this machine has no `sacct`: no error."""
    return output.is_missing or b"accounting storage is disabled" in output.stderr + output.stdout


def build_ended_jobs_query(target: Target, hours: int) -> Command:
    """Jobs that ended in the last hours, from the accounting: as `detectors.slurm.slurm_jobs` reads
    them."""
    argv = (
        *("sacct", "--allusers", "--allocations", "--noheader", "--parsable"),
        f"--delimiter={slurm_output.create_separator()}",
        f"--starttime=now-{hours}hours",
        "--endtime=now",
        "--state=COMPLETED,FAILED,NODE_FAIL,BOOT_FAIL",
        "--format=JobIDRaw,State,End,User,NodeList,JobName",
    )
    return Command("ended", (*_get_prefix(target), *argv), _ACCOUNTING_TIMEOUT)


def build_lately_ended_jobs_query(target: Target) -> Command:
    """What slurmctld itself still remembers (MinJobAge, 300 s by default), for sites without
    accounting."""
    form = _make_form("%A", "%T", "%e", "%u", "%N", "%j")
    argv = ("squeue", "--all", "--noheader", "--states=NODE_FAIL", form)
    return Command("lately", (*_get_prefix(target), *argv), _TIMEOUT)


def get_complaint(output: Output) -> str:
    """Why there is no answer, for people, with what to do."""
    reason = output.complaint[:_LONGEST_COMPLAINT]
    if _NO_CONTROLLER in output.stderr + output.stdout:
        advice = "`scontrol ping` shows when it is back"
        return f"{reason}. slurmctld is down or cannot be reached: {advice}"
    return reason


def _get_prefix(target: Target) -> tuple[str, ...]:
    """Times are printed in the zone of the caller: only UTC has no hour that comes twice."""
    conf = target.expected.settings.get("slurm_conf", "")
    return (
        "env",
        "LC_ALL=C",
        "TZ=UTC",
        "SLURM_TIME_FORMAT=standard",
        *((f"SLURM_CONF={conf}",) if conf else ()),
    )
