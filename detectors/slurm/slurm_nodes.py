"""Nodes as Slurm sees them: not responding, down, drained and by whom, restarting, in planned work.

A person's drain is a fact, never a fault. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors import resources
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
    `slurm.drained_by`, `slurm.is_planned`, `slurm.booted_at`.
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
        outputs = via.shell.run_all(target, self.name, [queries.nodes(target)])
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        return "nodes"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        output = reading.outputs["nodes"]
        found = output_formats.parse_nodes(output.stdout.decode("utf-8", "replace"))
        slurm_user = reading.target.expected.settings.get("slurm_user", "slurm")
        for node in found.nodes.values():
            yield from _observe_node(reading, node, drain_reasons.drainer(node, slurm_user))
        if output.status != 0:
            yield reading.silent(f"Slurm's nodes: {queries.complaint(output)}")
        elif not found.nodes:
            yield reading.silent(f"Slurm's nodes: {found.complaint or queries.complaint(output)}")
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


def _observe_node(reading: Reading, node: NodeState, by: Drainer) -> Iterator[Observation]:
    where = resources.node(node.name)
    planned = _planned_work(node)
    attributes = {"text": _words(node, by), "state": _state(node)}
    if node.reason:
        attributes |= {"reason": node.reason[:_LONGEST_REASON], "set_by": node.reason_set_by}
    yield reading.saw("slurm.state", _state(node), where)
    yield reading.saw("slurm.is_planned", bool(planned), where, why=planned or "")
    yield reading.saw("slurm.drained_by", str(by), where, **attributes)
    if node.boot_time is not None:
        yield reading.saw("slurm.booted_at", node.boot_time.isoformat(), where)
    for metric, value in _judgements(node, by, is_planned=bool(planned)).items():
        is_explained = value is not True or "by" in metric
        yield reading.saw(metric, value, where, **(attributes if is_explained else {}))


def _judgements(node: NodeState, by: Drainer, *, is_planned: bool) -> dict[str, Optional[bool]]:
    """None: it cannot be told, so that nothing is raised and nothing cleared."""
    unknown = is_planned or node.base in _NOT_THERE
    is_machines = by in (Drainer.SLURM, Drainer.NOBODY)
    is_responding = "NOT_RESPONDING" not in node.flags
    is_up = not (node.base in ("DOWN", "ERROR") and is_machines)
    is_drained = (node.is_draining and by is Drainer.SLURM) or "INVALID_REG" in node.flags
    timed_out = "reboot_timed_out" in drain_reasons.causes(node.reason) and node.is_out
    return {
        "slurm.responding": None if unknown else is_responding,
        "slurm.up": None if unknown else is_up,
        "slurm.drained_by_slurm": is_drained,
        "slurm.drained_by_tool": by is Drainer.TOOL,
        "slurm.reboot_timed_out": timed_out,
    }


def _planned_work(node: NodeState) -> str:
    """What is being done to the node on purpose. PLANNED is none: the scheduler keeps it for a
    larger job."""
    if "MAINTENANCE" in node.flags:
        return "maintenance reservation"
    if node.flags & _REBOOTING:
        return "reboot"
    return "power saving" if node.flags & _POWER_SAVING else ""


def _state(node: NodeState) -> str:
    return "+".join((node.base, *sorted(node.flags)))


def _words(node: NodeState, by: Drainer) -> str:
    if by is Drainer.NOBODY or not node.reason:
        return f"Slurm shows {node.name} as {_state(node)}"
    who = {
        Drainer.SLURM: "Slurm itself",
        Drainer.TOOL: "a health check",
        Drainer.KINTSUGI: "Kintsugi",
        Drainer.PERSON: node.reason_set_by or "a person",
    }[by]
    return (
        f'Slurm shows {node.name} as {_state(node)}; {who} wrote "{node.reason[:_LONGEST_REASON]}"'
    )
