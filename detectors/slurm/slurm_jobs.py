"""Jobs that Slurm says failed: those lost with their node, and nodes on which different scripts
keep failing.

Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import ClassVar, Optional

from detectors import resources
from detectors.detector import NothingToCompare, Reading, Target, TargetKind, Transports
from detectors.faults import Observation
from detectors.provenance import Forger, Transport
from detectors.slurm import failure_rate, output_formats, queries
from detectors.slurm import output as slurm_output
from detectors.slurm.failure_rate import EndedJob
from detectors.slurm.output import NodeState

# What is told of a node's failing jobs looks back for a day: long enough for several scripts, short
# enough that a repair shows. A lost job is told for an hour, so that no poll misses it.
_HOURS = 24
_LOST_LATELY = timedelta(hours=1)
# slurmctld notices a dead node after SlurmdTimeout, 300 s by default: its job may end after the
# node came up again.
_NOTICED_WITHIN = timedelta(minutes=10)
_LOST = "NODE_FAIL"
_FAILED = frozenset({"FAILED", "BOOT_FAIL", _LOST})
_CALLED = {"nodes": "nodes", "ended": "accounts of ended jobs", "lately": "lost jobs"}
_NAMED = 3


class SlurmJobsDetector(NothingToCompare):
    """Observes `job.node_fail` and, where Slurm keeps accounts, `job.failure_excess` of each
    node."""

    name: ClassVar[str] = "slurm_jobs"
    kind: ClassVar[TargetKind] = TargetKind.SITE
    transport: ClassVar[Transport] = Transport.SLURM
    forger: ClassVar[Forger] = Forger.USER
    every: ClassVar[timedelta] = timedelta(minutes=10)

    def wants(self, target: Target) -> bool:
        return queries.is_slurm_site(target)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        questions = (
            queries.build_nodes_query(target),
            queries.build_ended_jobs_query(target, _HOURS),
            queries.build_lately_ended_jobs_query(target),
        )
        outputs = via.shell.run_all(target, self.name, questions)
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        return "nodes" if b"NodeName=" in text else "ended"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        nodes = _parse_nodes(reading)
        accounts = reading.outputs.get("ended")
        ended = (
            parse_jobs(accounts.stdout) if accounts is not None and accounts.status == 0 else None
        )
        lately = reading.outputs.get("lately")
        remembered = parse_jobs(lately.stdout) if lately is not None and lately.status == 0 else []
        lost = {job.job_id: job for job, state in [*(ended or []), *remembered] if state == _LOST}
        fresh = [job for job in lost.values() if job.ended_at > reading.taken_at - _LOST_LATELY]
        yield from _observe_lost_jobs(reading, fresh, nodes)
        if ended is not None:
            yield from _observe_excess(reading, [job for job, _ in ended], nodes)
        yield _observe_answer(reading, nodes)


def _observe_answer(reading: Reading, nodes: Mapping[str, NodeState]) -> Observation:
    """Accounts are optional: a site without them says so in its own words, and a client without
    `sacct` too."""
    for name, is_needed in (("nodes", bool(nodes)), ("lately", True), ("ended", True)):
        output = reading.outputs.get(name)
        if output is None or (output.status == 0 and is_needed):
            continue
        if name != "ended" or not queries.has_no_accounts(output):
            return reading.silent(f"Slurm's {_CALLED[name]}: {queries.get_complaint(output)}")
    return reading.answered()


def _parse_nodes(reading: Reading) -> dict[str, NodeState]:
    output = reading.outputs.get("nodes")
    return {} if output is None else output_formats.parse_nodes(output.text).nodes


def parse_jobs(text: bytes) -> list[tuple[EndedJob, str]]:
    """Rows of id, state, end, user, nodes and name, and each one's state."""
    found: list[tuple[EndedJob, str]] = []
    places = 0
    for cells in slurm_output.iterate_rows_of(text.decode("utf-8", "replace"), 6):
        ended_at = _parse_moment(cells[2])
        words = cells[1].split(" ", 1) if ended_at is not None else []
        if ended_at is None or words[0] not in _FAILED | {"COMPLETED"}:
            continue
        nodes = tuple(slurm_output.iterate_hosts(cells[4]))
        places += len(nodes)
        if places > slurm_output.MOST_PLACES:
            break
        state, is_failed = words[0], words[0] in _FAILED
        job_id, user, name = cells[0].strip(), cells[3].strip(), cells[5].strip()
        found.append((EndedJob(job_id, is_failed, ended_at, user, nodes, name), state))
    return found


def _parse_moment(text: str) -> Optional[datetime]:
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _observe_lost_jobs(
    reading: Reading, lost: Sequence[EndedJob], nodes: Mapping[str, NodeState]
) -> Iterator[Observation]:
    """On the node that failed where that can be told; else on the site, with the job's nodes in
    words."""
    by_node: dict[str, list[EndedJob]] = {}
    untold: list[EndedJob] = []
    for job in lost:
        culprits = list(job.nodes)
        if len(culprits) > 1:
            culprits = [name for name in culprits if _has_failed(nodes.get(name), job)]
        for name in culprits:
            by_node.setdefault(name, []).append(job)
        if not culprits:
            untold.append(job)
    for name in {**dict.fromkeys(nodes), **dict.fromkeys(by_node)}:
        its = by_node.get(name, [])
        text = {"text": _format_words(its)} if its else {}
        yield reading.saw("job.node_fail", bool(its), resources.node(name), **text)
    text = (
        {"text": f"{_format_words(untold)}; Slurm does not say which of their nodes failed"}
        if untold
        else {}
    )
    yield reading.saw("job.node_fail", bool(untold), **text)


def _has_failed(node: Optional[NodeState], job: EndedJob) -> bool:
    """It is down now, or has booted since about the time that the job was lost."""
    if node is None:
        return False
    has_booted = node.boot_time is not None and node.boot_time > job.ended_at - _NOTICED_WITHIN
    return node.base == "DOWN" or "NOT_RESPONDING" in node.flags or has_booted


def _format_words(lost: Sequence[EndedJob]) -> str:
    named = [f"job {job.job_id} of {job.user} ({len(job.nodes)} nodes)" for job in lost[:_NAMED]]
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return f"{', '.join(named)}{more} ended in state NODE_FAIL"


def _observe_excess(
    reading: Reading, ended: Sequence[EndedJob], nodes: Mapping[str, NodeState]
) -> Iterator[Observation]:
    booted = {name: node.boot_time for name, node in nodes.items() if node.boot_time is not None}
    found = failure_rate.compute_excess(ended, booted)
    for name in {**dict.fromkeys(nodes), **dict.fromkeys(found)}:
        one = found.get(name)
        if one is None:  # nothing has ended there since its boot: nothing speaks against it
            yield reading.saw("job.failure_excess", 0.0, resources.node(name))
            continue
        text = (
            f"{one.failed} of {one.tried} different scripts failed there within {_HOURS} h or since"
            f" its boot; elsewhere {one.rate:.1%} do"
        )
        yield reading.saw("job.failure_excess", one.value, resources.node(name), text=text)
