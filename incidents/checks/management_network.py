"""Many machines fall silent at once while Slurm hears them: one fault of the management network.
Reads only.

A silent machine says nothing of its health; a dead management switch groups a whole pod of
healthy ones. One fault of its own gathers them, and nobody is sent to fifty nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors import resources
from detectors.faults import EventKind, FaultEvent
from incidents.checks import overload
from incidents.checks.overload import Asked
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Prepared
from incidents.faults.fault_views import MANAGEMENT, MANAGEMENT_NETWORK, SILENT_TARGET
from incidents.models import Fault, Node, Switch

# Our choice: a third of a pod or of all nodes is more than its usual trouble (the model site lost
# one node a week), fewer than three are a coincidence, and one switch takes its machines away
# within two periods of polls.
SHARE = 1 / 3
FEWEST = 3
AT_ONCE = timedelta(minutes=5)
_MINUTES = AT_ONCE.seconds // 60
_SHOWN = 5
_SWITCH = "switch/"
# While one stands, silence of a node says nothing of that node.
_WIDER = (MANAGEMENT_NETWORK, "facility.nodes_down")
_STANDING = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(fault_type__in=(SILENT_TARGET, MANAGEMENT_NETWORK))
        .values_list("fault_type", "owner", "observed_at", "membership__incident__fault_type")
    )
)
# Roots of incidents in which silence has no other cause yet.
_UNEXPLAINED = (None, SILENT_TARGET, MANAGEMENT_NETWORK)


@dataclass(frozen=True)
class SilentGroup:
    """Nodes or switches that fell silent at about one time, of how many, and where."""

    names: tuple[str, ...]
    total: int
    where: str

    @property
    def threshold(self) -> int:
        return get_silence_threshold(self.total)


def get_silence_threshold(total: int) -> int:
    """How many of so many machines have to be silent."""
    return max(FEWEST, math.ceil(total * SHARE))


def find_silent_groups(
    silent: Sequence[str], pods: Mapping[str, str], machines: str = "nodes"
) -> list[SilentGroup]:
    """What is silent as a whole: everything, or single pods. `pods` has the pod of each machine,
    empty for none. Pure."""
    known = sorted(name for name in silent if name in pods)
    if len(known) >= get_silence_threshold(len(pods)):
        return [SilentGroup(tuple(known), len(pods), f"all {machines}")]
    by_pod: dict[str, list[str]] = {}
    for name in known:
        by_pod.setdefault(pods[name], []).append(name)
    sizes = Counter(pods.values())
    groups = []
    for pod, names in sorted(by_pod.items()):
        if pod and len(names) >= get_silence_threshold(sizes[pod]):
            groups.append(SilentGroup(tuple(names), sizes[pod], f"the {machines} of {pod}"))
    return groups


def explain_silence(node: str) -> str:
    """What groups more than this node, as the end of a sentence; empty where nothing known does.
    Such a node may run on, and be well."""
    wider = Fault.objects.active().filter(fault_type__in=_WIDER).order_by("pk").first()
    if wider is not None:
        return f"{wider.fault_type} stands on {wider.resource}"
    silent = Fault.objects.active().filter(fault_type=SILENT_TARGET)
    hosts = map(resources.host_of, silent.values_list("owner", flat=True))
    names = {node, *(host for host in hosts if host is not None)}
    if len(names) < FEWEST:
        return ""
    pods = dict(Node.objects.inventoried().values_list("name", "pod"))
    for group in find_silent_groups(sorted(names), pods):
        if node in group.names:
            return f"{len(group.names)} of {group.total} ({group.where}) are silent as well"
    return ""


def evaluate_management_network(now: datetime, *, hears: Asked) -> list[FaultEvent]:
    """The beginning or the end of the fault, if this is either. One query while no machine is
    silent."""
    faults = _STANDING.rows()
    if not faults:
        return []
    silent_nodes: dict[str, datetime] = {}
    silent_switches: dict[str, datetime] = {}
    is_active = False
    for fault_type, owner, at, root_type in faults:
        if fault_type == MANAGEMENT_NETWORK:
            is_active = True
        elif root_type not in _UNEXPLAINED:
            continue  # such as that of nodes that lost their power
        elif owner.startswith(_SWITCH):
            silent_switches[owner.removeprefix(_SWITCH)] = at
        elif host := resources.host_of(owner):
            silent_nodes[host] = at
    if not is_active and max(len(silent_nodes), len(silent_switches)) < FEWEST:
        return []
    pods = dict(Node.objects.inventoried().values_list("name", "pod"))
    switch_pods = dict(Switch.objects.inventoried().values_list("name", "pod"))
    if is_active:
        if _is_lasting(silent_switches, switch_pods) or _is_lasting(silent_nodes, pods):
            return []
        return [_make_event(EventKind.CLEARED, "most of the machines answer again", now)]
    if overload.is_suspending(now):
        return []
    gone = _list_recently_silent(silent_switches, now)
    for group in find_silent_groups(gone, switch_pods, "switches"):
        return [_make_event(EventKind.RAISED, _format_switches(group), now)]
    for group in find_silent_groups(_list_recently_silent(silent_nodes, now), pods):
        heard = set(hears(group.names) or ()) & set(group.names)
        if len(heard) >= group.threshold:
            return [_make_event(EventKind.RAISED, _format_nodes(group, len(heard)), now)]
    return []


def _list_recently_silent(silent: Mapping[str, datetime], now: datetime) -> list[str]:
    return [name for name, at in silent.items() if at > now - AT_ONCE]


def _is_lasting(silent: Iterable[str], pods: Mapping[str, str]) -> bool:
    """Whether all machines of one kind or those of a pod are silent still."""
    counts = Counter(pods[name] for name in silent if name in pods)
    if _is_half(counts.total(), len(pods)):
        return True
    sizes = Counter(pods.values())
    return any(pod and _is_half(count, sizes[pod]) for pod, count in counts.items())


def _is_half(silent: int, total: int) -> bool:
    """Half of what raises the fault keeps it active."""
    return silent * 2 >= get_silence_threshold(total)


def _format_nodes(group: SilentGroup, heard: int) -> str:
    return (
        f"{len(group.names)} of {group.total} ({group.where}) stopped answering Kintsugi"
        f" within {_MINUTES} min, and Slurm hears {heard} of them: {_format_names(group.names)}."
        " Look at the management switch or Kintsugi's own link to it; the nodes are left alone."
    )


def _format_switches(group: SilentGroup) -> str:
    return (
        f"{len(group.names)} of {group.total} ({group.where}) stopped answering Kintsugi"
        f" within {_MINUTES} min: {_format_names(group.names)}. Look at the management switch,"
        " Kintsugi's own link to it, and the credentials that they are asked with."
    )


def _format_names(names: Sequence[str]) -> str:
    ellipsis = " ..." if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + ellipsis


def _make_event(kind: EventKind, text: str, now: datetime) -> FaultEvent:
    # Our own polls have found them silent: no text has a part in it.
    return make_conclusion(
        kind, MANAGEMENT_NETWORK, MANAGEMENT, text=text, now=now, is_believed=True
    )
