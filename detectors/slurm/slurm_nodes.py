"""Nodes as Slurm sees them: not responding, down, drained and by whom, restarting, in planned work.

A person's drain is a fact, never a fault. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors import resources
from detectors.catalog import catalog
from detectors.catalog.catalog import DRAINED_FOR
from detectors.catalog.check_drains import CheckDrain
from detectors.detector import NothingToCompare, Reading, Target, TargetKind, Transports
from detectors.faults import Observation
from detectors.provenance import Forger, Transport
from detectors.slurm import drain_reasons, output_formats, queries
from detectors.slurm.drain_reasons import Drainer
from detectors.slurm.output import NodeState

_REBOOTING = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})
_POWER_SAVING = frozenset(
    {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "CLOUD_DOWN"}
)
_NOT_THERE = frozenset({"FUTURE", "UNKNOWN", ""})
_LONGEST_REASON = 200


class SlurmNodesDetector(NothingToCompare):
    """Observes of each node `slurm.responding`, `slurm.up`, `slurm.drained_by_slurm`,
    `slurm.drained_by_tool`, `slurm.reboot_timed_out`, and as facts `slurm.state`,
    `slurm.drained_by`, `slurm.is_planned`, `slurm.booted_at`; for each fault type of a
    [[drain]] row of the site `slurm.drained_for.TYPE`.
    """

    name: ClassVar[str] = "slurm_nodes"
    kind: ClassVar[TargetKind] = TargetKind.SITE
    transport: ClassVar[Transport] = Transport.SLURM
    forger: ClassVar[Forger] = Forger.NOBODY
    every: ClassVar[timedelta] = timedelta(seconds=60)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "slurm.booted_at",
            "slurm.drained_by",
            "slurm.is_planned",
            "slurm.state",
        }
    )

    def wants(self, target: Target) -> bool:
        return queries.is_slurm_site(target)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        outputs = via.shell.run_all(target, self.name, [queries.build_nodes_query(target)])
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        return "nodes"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        output = reading.outputs["nodes"]
        found = output_formats.parse_nodes(output.stdout.decode("utf-8", "replace"))
        slurm_user = reading.target.expected.settings.get("slurm_user", "slurm")
        checks = catalog.load().drains
        for node in found.nodes.values():
            check = drain_reasons.find_check(node, checks)
            by = (
                Drainer.TOOL
                if check is not None
                else drain_reasons.classify_drainer(node, slurm_user)
            )
            yield from _observe_node(reading, node, by, is_explained=check is not None)
            yield from _observe_check(reading, node, by, check, checks)
        if output.status != 0:
            yield reading.silent(f"Slurm's nodes: {queries.get_complaint(output)}")
        elif not found.nodes:
            yield reading.silent(
                f"Slurm's nodes: {found.complaint or queries.get_complaint(output)}"
            )
        elif found.unread or not _is_whole(output.stdout):
            text = (
                f"the answer is cut off or holds {found.unread} nodes that cannot be read;"
                f" {len(found.nodes)} can"
            )
            yield reading.silent(f"Slurm's nodes: {text}")
        else:
            yield reading.answered()


def _is_whole(stdout: bytes) -> bool:
    """A text that was cut does not end with its line; JSON that was cut is not read at all."""
    return stdout.endswith((b"\n", b"}", b"}\r"))


def _observe_check(
    reading: Reading,
    node: NodeState,
    by: Drainer,
    check: Optional[CheckDrain],
    checks: Sequence[CheckDrain],
) -> Iterator[Observation]:
    """Of each fault that a check's drain may tell of, whether one does so here. Once somebody else
    has written a reason over the check's, it cannot be told."""
    hides = by in (Drainer.KINTSUGI, Drainer.SLURM, Drainer.PERSON)
    for fault_type in sorted({row.type for row in checks}):
        is_so = None if hides else check is not None and check.type == fault_type
        attributes = {"qualifier": "drain"}
        if is_so:
            attributes |= {"text": _format_words(node, by), "reason": node.reason[:_LONGEST_REASON]}
        where = resources.node(node.name)
        yield reading.saw(f"{DRAINED_FOR}{fault_type}", is_so, where, **attributes)


def _observe_node(
    reading: Reading, node: NodeState, by: Drainer, *, is_explained: bool
) -> Iterator[Observation]:
    where = resources.node(node.name)
    planned = _get_planned_work(node)
    attributes = {"text": _format_words(node, by), "state": _format_state(node)}
    if node.reason:
        attributes |= {"reason": node.reason[:_LONGEST_REASON], "set_by": node.reason_set_by}
    yield reading.saw("slurm.state", _format_state(node), where)
    yield reading.saw("slurm.is_planned", bool(planned), where, why=planned or "")
    yield reading.saw("slurm.drained_by", str(by), where, **attributes)
    if node.boot_time is not None:
        yield reading.saw("slurm.booted_at", node.boot_time.isoformat(), where)
    judgements = _judge(node, by, is_planned=bool(planned), is_explained=is_explained)
    for metric, value in judgements.items():
        has_words = value is not True or "by" in metric
        yield reading.saw(metric, value, where, **(attributes if has_words else {}))


def _judge(
    node: NodeState, by: Drainer, *, is_planned: bool, is_explained: bool
) -> dict[str, Optional[bool]]:
    """None: it cannot be told, so that nothing is raised and nothing cleared. A drain that a row of
    the site explains is the fault that the row names, and no other."""
    unknown = is_planned or node.base in _NOT_THERE
    is_machines = by in (Drainer.SLURM, Drainer.NOBODY)
    is_responding = "NOT_RESPONDING" not in node.flags
    is_up = not (node.base in ("DOWN", "ERROR") and is_machines)
    is_drained = (node.is_draining and by is Drainer.SLURM) or "INVALID_REG" in node.flags
    timed_out = "reboot_timed_out" in drain_reasons.list_causes(node.reason) and node.is_out
    return {
        "slurm.responding": None if unknown else is_responding,
        "slurm.up": None if unknown else is_up,
        "slurm.drained_by_slurm": is_drained,
        "slurm.drained_by_tool": by is Drainer.TOOL and not is_explained,
        "slurm.reboot_timed_out": timed_out,
    }


def _get_planned_work(node: NodeState) -> str:
    """What is being done to the node on purpose. PLANNED is none: the scheduler keeps it for a
    larger job."""
    if "MAINTENANCE" in node.flags:
        return "maintenance reservation"
    if node.flags & _REBOOTING:
        return "reboot"
    return "power saving" if node.flags & _POWER_SAVING else ""


def _format_state(node: NodeState) -> str:
    return "+".join((node.base, *sorted(node.flags)))


def _format_words(node: NodeState, by: Drainer) -> str:
    shown = f"Slurm shows {node.name} as {_format_state(node)}"
    if by is Drainer.NOBODY or not node.reason:
        return shown
    who = {
        Drainer.SLURM: "Slurm itself",
        Drainer.TOOL: "a health check",
        Drainer.KINTSUGI: "Kintsugi",
        Drainer.PERSON: node.reason_set_by or "a person",
    }[by]
    return f'{shown}; {who} wrote "{node.reason[:_LONGEST_REASON]}"'
