"""Many machines fall silent at once while Slurm hears them: one fault of the management network.
Reads only.

A silent machine says nothing of its health; a dead management switch silences a whole pod of
healthy ones. One fault of its own gathers them, and nobody is sent to fifty nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors import resources
from detectors.faults import EventKind, FaultEvent
from incidents.checks import overload
from incidents.checks.overload import Asked
from incidents.correlation.conclusions import make_conclusion
from incidents.faults.fault_views import MANAGEMENT, MANAGEMENT_NETWORK, SILENT_TARGET
from incidents.models import Fault, Node, Switch

# Our choice: a third of a pod or of all nodes is more than its usual trouble (the model site lost
# one node a week), fewer than three are a coincidence, and one switch takes its machines away
# within two periods of polls.
SHARE = 1 / 3
FEWEST = 3
AT_ONCE = timedelta(minutes=5)
_SHOWN = 5
_SWITCH = "switch/"


@dataclass(frozen=True)
class SilentNodes:
    """Nodes that fell silent at about one time, of how many, and where."""

    nodes: tuple[str, ...]
    of: int
    where: str

    @property
    def needed(self) -> int:
        return needed(self.of)


def needed(nodes: int) -> int:
    """How many of so many nodes have to be silent."""
    return max(FEWEST, math.ceil(nodes * SHARE))


def silences(silent: Sequence[str], pods: dict[str, str]) -> list[SilentNodes]:
    """What is silent as a whole: everything, or single pods. `pods` has the pod of each node, empty
    for none. Pure."""
    known = [name for name in silent if name in pods]
    if len(known) >= needed(len(pods)):
        return [SilentNodes(tuple(sorted(known)), len(pods), "all nodes")]
    sizes = Counter(pods.values())
    by_pod = Counter(pods[name] for name in known)
    return [
        SilentNodes(
            tuple(sorted(name for name in known if pods[name] == pod)),
            sizes[pod],
            f"the nodes of {pod}",
        )
        for pod, count in sorted(by_pod.items())
        if pod and count >= needed(sizes[pod])
    ]


def evaluate_management_network(now: datetime, *, hears: Asked) -> list[FaultEvent]:
    """The beginning or the end of the fault, if this is either. One query while no machine is
    silent."""
    faults = list(
        Fault.objects.active()
        .filter(fault_type__in=(SILENT_TARGET, MANAGEMENT_NETWORK))
        .values_list("fault_type", "owner", "observed_at")
    )
    if not faults:
        return []
    silent = {
        host: at
        for kind, owner, at in faults
        if kind == SILENT_TARGET and (host := resources.host_of(owner))
    }
    mute = {
        owner: at
        for kind, owner, at in faults
        if kind == SILENT_TARGET and owner.startswith(_SWITCH)
    }
    stands = any(kind == MANAGEMENT_NETWORK for kind, _, _ in faults)
    if not stands and max(len(silent), len(mute)) < FEWEST:
        return []
    pods = dict(Node.objects.inventoried().values_list("name", "pod"))
    switches = Switch.objects.inventoried().count()
    if stands:
        lasts = _lasts(list(silent), pods) or len(mute) * 2 >= needed(switches)
        return (
            [] if lasts else [_event(EventKind.CLEARED, "most of the machines answer again", now)]
        )
    if overload.suspends(now):
        return []
    if len(gone := sorted(name for name, at in mute.items() if at > now - AT_ONCE)) >= needed(
        switches
    ):
        return [_event(EventKind.RAISED, _said_of_switches(gone, switches), now)]
    lately = [name for name, at in silent.items() if at > now - AT_ONCE]
    for silence in silences(lately, pods):
        heard = hears(silence.nodes)
        if heard is not None and len(set(heard) & set(silence.nodes)) >= silence.needed:
            return [_event(EventKind.RAISED, _said(silence, set(heard)), now)]
    return []


def _lasts(silent: Sequence[str], pods: dict[str, str]) -> bool:
    """Half of what raises it keeps it standing."""
    counts = Counter(pods[name] for name in silent if name in pods)
    sizes = Counter(pods.values())
    return sum(counts.values()) * 2 >= needed(len(pods)) or any(
        pod and count * 2 >= needed(sizes[pod]) for pod, count in counts.items()
    )


def _said(silence: SilentNodes, heard: set[str]) -> str:
    names = ", ".join(silence.nodes[:_SHOWN]) + (" ..." if len(silence.nodes) > _SHOWN else "")
    return (
        f"{len(silence.nodes)} of {silence.of} ({silence.where}) stopped answering Kintsugi within"
        f" {AT_ONCE.seconds // 60} min, and Slurm hears {len(heard & set(silence.nodes))} of them:"
        f" {names}. Look at the management switch or Kintsugi's own link to it; the nodes are left"
        " alone."
    )


def _said_of_switches(gone: Sequence[str], of: int) -> str:
    names = ", ".join(name.removeprefix(_SWITCH) for name in gone[:_SHOWN]) + (
        " ..." if len(gone) > _SHOWN else ""
    )
    return (
        f"{len(gone)} of {of} switches stopped answering Kintsugi within {AT_ONCE.seconds // 60}"
        f" min: {names}. Look at the management switch, Kintsugi's own link to it, and the"
        " credentials that they are asked with."
    )


def _event(kind: EventKind, text: str, now: datetime) -> FaultEvent:
    return make_conclusion(kind, MANAGEMENT_NETWORK, MANAGEMENT, text=text, now=now)
