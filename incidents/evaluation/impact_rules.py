"""Which jobs a fault touched, what that cost them, and how severe it makes an incident. Pure; the
rules are tables.

A loss is never guessed: without a checkpoint it is the least that can be said, without GPUs or an
end it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import Severity

# A fault is taken for the reason of a job's end when it began from 10 min before that end until 5
# min after it: the window of arXiv 2410.21680 (section III), there for FAILED and NODE_FAIL. What
# follows the end is found late.
BEFORE_END = timedelta(minutes=10)
AFTER_END = timedelta(minutes=5)
# FAILED and NODE_FAIL: arXiv 2410.21680. TIMEOUT: a job that hangs ends so, at its limit.
# CANCELLED: at the model site 73.5 % of GPU time ends cancelled, some of it because of faults
# (arXiv 2604.13600). BOOT_FAIL and REQUEUED: our choice, as Slurm's words for a job that lost its
# node before it began, and that was put back into the queue.
LOST = frozenset({"FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED", "BOOT_FAIL", "REQUEUED"})
UNKNOWN_END = "UNKNOWN"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class FaultSpan:
    """A fault on machines of a job, or on the job itself. `ended_at` is None while it stands.

    `is_disabling`: the part is unusable at once (critical, by the catalogue), so that what needs it
    cannot get on. `is_between_nodes`: it is of the fabric, which a job on one node does not use.
    """

    began_at: datetime
    ended_at: datetime | None = None
    is_disabling: bool = False
    is_between_nodes: bool = False


@dataclass(frozen=True)
class JobSpan:
    """One start of a job. `gpus` of all nodes together, 0: not known. `state` is Slurm's;
    `ended_at` None: it runs.

    `is_whole`: it has all GPUs of its nodes, so that whichever GPU is lost is its own.
    """

    started_at: datetime
    ended_at: datetime | None
    state: str
    nodes: int
    gpus: int = 0
    checkpoint_at: datetime | None = None
    is_whole: bool = True


@dataclass(frozen=True)
class Touch:
    """What became of a job that a fault met. `outcome` is empty while it runs; hours are None where
    not known."""

    fault_at: datetime
    outcome: str
    is_hanging: bool = False
    is_harmed: bool = False
    gpu_hours: float | None = None
    is_estimate: bool = True


def touch(job: JobSpan, faults: Iterable[FaultSpan], now: datetime) -> Touch | None:
    """What these faults did to the job: the earliest that harmed it, else the earliest that it met;
    None: nothing."""
    met = sorted(
        (fault for fault in faults if _is_met(job, fault, now)), key=lambda fault: fault.began_at
    )
    if not met:
        return None
    harmful = next((fault for fault in met if _is_harmed(job, fault)), None)
    if harmful is None:
        outcome = "" if job.ended_at is None else job.state
        is_unharmed = bool(outcome) and outcome != UNKNOWN_END
        return Touch(
            met[0].began_at,
            outcome,
            gpu_hours=0.0 if is_unharmed else None,
            is_estimate=not is_unharmed,
        )
    hours, is_estimate = compute_loss(job, harmful.began_at, now)
    return Touch(
        harmful.began_at,
        "" if job.ended_at is None else job.state,
        is_hanging=job.ended_at is None,
        is_harmed=True,
        gpu_hours=hours,
        is_estimate=is_estimate,
    )


def compute_loss(job: JobSpan, fault_at: datetime, now: datetime) -> tuple[float | None, bool]:
    """GPU-hours, and whether they are an estimate: with a checkpoint known, all since then; else
    from fault to end.

    The hang (fault to end) and the work since the last checkpoint (checkpoint to fault) make
    checkpoint to end.
    """
    if not job.gpus or job.state == UNKNOWN_END:
        return None, True
    end = max(job.started_at, now if job.ended_at is None else job.ended_at)
    begin = fault_at if job.checkpoint_at is None else job.checkpoint_at
    lost = end - min(max(begin, job.started_at), end)
    return job.gpus * (lost / _HOUR), job.checkpoint_at is None or job.ended_at is None


def _is_met(job: JobSpan, fault: FaultSpan, now: datetime) -> bool:
    """The job ran when the fault began, or ended just before; or it began under one that stood."""
    if fault.is_between_nodes and job.nodes < 2:
        return False
    if fault.began_at < job.started_at:
        return _was_standing(fault, job.started_at) and (fault.is_disabling or _is_near(job, fault))
    return fault.began_at <= (now if job.ended_at is None else job.ended_at) + AFTER_END


def _is_near(job: JobSpan, fault: FaultSpan) -> bool:
    return (
        job.ended_at is not None
        and fault.began_at - AFTER_END <= job.ended_at <= fault.began_at + BEFORE_END
    )


def _is_harmed(job: JobSpan, fault: FaultSpan) -> bool:
    if job.ended_at is None:
        return _is_hanging(job, fault)
    if job.state not in LOST:
        return False
    hung = (
        fault.is_disabling
        and job.is_whole
        and fault.began_at <= job.ended_at
        and _was_standing(fault, job.ended_at)
    )
    return hung or _is_near(job, fault)


def _is_hanging(job: JobSpan, fault: FaultSpan) -> bool:
    """It needs what is unusable now, and has not written a checkpoint since."""
    goes_on = job.checkpoint_at is not None and job.checkpoint_at > fault.began_at
    return fault.is_disabling and fault.ended_at is None and job.is_whole and not goes_on


def _was_standing(fault: FaultSpan, at: datetime) -> bool:
    return fault.ended_at is None or at <= fault.ended_at


@dataclass(frozen=True)
class Harm:
    """What an incident has done so far, as the rules of severity look at it.

    `jobs`, `people` and `largest_nodes` are of jobs that were lost or hang; `out_share` is the
    largest share of a partition's nodes that it took out of service.
    """

    jobs: int = 0
    people: int = 0
    largest_nodes: int = 0
    out_share: float = 0.0


@dataclass(frozen=True)
class LiftRule:
    """Lifts an incident to at least `severity` when each of its limits is reached. `because`
    completes "..., since"."""

    name: str
    severity: Severity
    because: str
    source: str
    people: int = 0
    largest_nodes: int = 0
    out_share: float = 0.0

    def holds(self, harm: Harm) -> bool:
        return (
            harm.people >= self.people
            and harm.largest_nodes >= self.largest_nodes
            and harm.out_share >= self.out_share
        )


# Tried from the top; the first that holds decides, so the most severe stand first.
LIFTS: Sequence[LiftRule] = (
    LiftRule(
        "tenth_of_a_partition",
        Severity.CRITICAL,
        "a tenth of a partition or more is out of service",
        out_share=0.10,
        source=(
            "our choice: twice the share that Kintsugi itself may take out (its cap: 5 %),"
            " so more than all repairs together; ITU-T X.733 calls critical what is"
            " service-affecting and needs action at once"
        ),
    ),
    LiftRule(
        "large_job",
        Severity.MAJOR,
        "a job on 17 nodes or more was lost or hangs",
        largest_nodes=17,
        source=(
            "arXiv 2604.13600: jobs on 17 nodes or more take 73.3 % of GPU time; ITU-T X.733 calls"
            " major what is service-affecting and urgent"
        ),
    ),
    LiftRule(
        "several_people",
        Severity.MAJOR,
        "jobs of three people or more were lost or hang",
        people=3,
        source=(
            "our choice: jobs fail by themselves often (16.9 % of them, arXiv 2604.13600), but"
            " rarely those of three people on the same machines within a quarter of an hour"
        ),
    ),
)


def find_lifted_severity(own: Severity, harm: Harm) -> tuple[Severity, LiftRule] | None:
    """The severity that the harm calls for, and by which rule; None where its own is as high
    already."""
    rule = next((rule for rule in LIFTS if rule.holds(harm)), None)
    return (rule.severity, rule) if rule is not None and rule.severity.rank > own.rank else None


@dataclass(frozen=True)
class ImpactTally:
    """What an incident cost so far, for people. `hours` is None where no loss is known."""

    jobs: int
    harmed: int
    people: int
    nodes: int
    hours: float | None
    is_estimate: bool
    is_over: bool

    def format_words(self) -> str:
        """`3 jobs of 2 people, 64 nodes; 12.5 GPU-hours lost so far, at least`."""
        if not self.jobs:
            return (
                f"no job ran on {'it' if self.nodes == 1 else f'its {self.nodes} nodes'}"
                if self.nodes
                else ""
            )
        jobs = _format_number(self.jobs, "job")
        people = _format_number(self.people, "person", "people")
        nodes = _format_number(self.nodes, "node")
        what = f"{jobs} of {people}, {nodes}"
        if not self.harmed:
            return f"{what}; none of them is known to be lost"
        return f"{what}, {self.harmed} lost or hanging; {self.format_hours()}"

    def format_hours(self) -> str:
        if self.hours is None:
            return "GPU-hours lost not known"
        least = "at least " if self.is_estimate else ""
        if self.is_estimate and self.hours < 0.05:
            return (
                "GPU-hours lost not known: no checkpoint is known and the jobs ended with the fault"
            )
        return f"{least}{self.hours:,.1f} GPU-hours lost{'' if self.is_over else ' so far'}"


def sum_known(hours: Iterable[float | None]) -> float | None:
    """None where not one is known: a sum of what is known is the least that was lost."""
    known = [value for value in hours if value is not None]
    return sum(known) if known else None


def compute_shares(losses: Iterable[tuple[int, int, float]]) -> dict[int, float]:
    """(incident, job, GPU-hours) rows to GPU-hours by incident, such that no job's loss is counted
    twice.

    Where several incidents touched a job they share its loss, the largest that any of them says, in
    equal parts.
    """
    by_job: dict[int, dict[int, float]] = {}
    for incident, job, hours in losses:
        by_job.setdefault(job, {})[incident] = hours
    hours_by_incident: dict[int, float] = {}
    for job_hours in by_job.values():
        share = max(job_hours.values()) / len(job_hours)
        for incident in job_hours:
            hours_by_incident[incident] = hours_by_incident.get(incident, 0.0) + share
    return hours_by_incident


def _format_number(count: int, word: str, several: str = "") -> str:
    return f"{count:,} {word if count == 1 else several or word + 's'}"
