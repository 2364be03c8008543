"""Cables of open incidents judged from both of their ends, by what polls of the node and of the
switch saw last.

A fault says what one end sees; which end, fibre or shared module to look at shows only beside the
other end. What is found becomes a line of the incident's timeline, said once. `evaluate_cables`
reads only, `record_verdicts` writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from django.db import transaction
from django.db.models import Q

from detectors import resources
from detectors.detector import TargetKind
from detectors.evaluation import cable_ends
from detectors.evaluation.cable_ends import Finding, Pair, Suspect
from detectors.expected import ExpectedPort
from detectors.faults import Observation
from incidents.faults.fault_views import LINK
from incidents.inventory import graphs, targets
from incidents.models import Incident, IncidentFault, TimelineEntry
from incidents.polling import polling
from incidents.state.transitions import record
from incidents.vocabulary.lifecycle import CLOSED

KIND = "cable_judged"
# Two periods of links' polls after the first: by then both ends have said how they are.
GATHERED = timedelta(minutes=2)
# Three periods of the detector: `transceiver` and `switch_sensors` look every 5 min, `nic` every 60
# s.
_FRESH_LIGHT, _FRESH_LINK = timedelta(minutes=15), timedelta(minutes=3)
# What came and went is not said again and again.
_SAID_AGAIN_AFTER = timedelta(hours=1)
# More cables than these in one incident have a cause of their own, which is none of them.
_MOST_CABLES = 4
_NODE_DETECTORS = ("nic", "transceiver")
_SWITCH_DETECTORS = ("switch_snmp", "switch_sensors")
_METRICS = cable_ends.OF_NODE_LINK | cable_ends.OF_SWITCH_LINK | {cable_ends.LIGHT}
_HALF = (
    "take a spare port for this cable, or replace the module in the switch once both its nodes can"
    " do without."
)
_DO = " What to do: "
_TO_DO: Mapping[Suspect, str] = {
    Suspect.NODE_END: (
        "replace the module in the node's NIC; the one in the switch stays plugged in."
    ),
    Suspect.SWITCH_END: (
        "replace the module in the switch; the one in the node's NIC stays plugged in."
    ),
    Suspect.SHARED_MODULE: "replace the module in the switch; the nodes' modules and cables stay.",
    Suspect.FIBRE: "clean and look at the fibre before any module is replaced.",
    Suspect.NOT_TOLD: "replace nothing on this alone; look at both ends.",
}

JobsOf = Callable[[Collection[str]], Mapping[str, frozenset[str]] | None]
"""The jobs that run on each of these nodes; None when Slurm cannot be asked."""


@dataclass(frozen=True)
class CableVerdict:
    """What is said of one incident's cable. `about` names what was compared, `found` is what came
    of it."""

    incident: int
    about: str
    found: str
    to_do: str

    @property
    def text(self) -> str:
        return f"{self.about}: {self.found}{_DO}{self.to_do}"


def evaluate_cables(now: datetime, *, jobs: JobsOf) -> list[CableVerdict]:
    """Of every cable that is bad now and at fault in an open incident of a cable. One query where
    there is none."""
    by_switch: dict[str, dict[str, list[int]]] = {}
    for incident, ends in _load_faulty_ends(now).items():
        if len(ends) > _MOST_CABLES:
            continue
        for end in ends:
            incidents_by_end = by_switch.setdefault(end.split("/")[1], {})
            incidents_by_end.setdefault(end, []).append(incident)
    verdicts: dict[tuple[int, str, str], CableVerdict] = {}
    for switch, incidents_by_end in sorted(by_switch.items()):
        for verdict in _evaluate_switch(switch, incidents_by_end, now, jobs=jobs):
            verdicts[verdict.incident, verdict.about, verdict.found] = verdict
    return list(verdicts.values())


def record_verdicts(verdicts: Iterable[CableVerdict], now: datetime) -> int:
    """Writes those that are news; how many that were."""
    count = 0
    for verdict in verdicts:
        with transaction.atomic():
            # Another sweep may be about to say it.
            Incident.objects.select_for_update().get(pk=verdict.incident)
            entries = TimelineEntry.objects.filter(incident_id=verdict.incident, kind=KIND)
            before = entries.order_by("-id").values_list("text", "occurred_at")
            if is_news(verdict, list(before), now):
                record(verdict.incident, kind=KIND, text=verdict.text, now=now)
                count += 1
    return count


def is_news(verdict: CableVerdict, entries: Sequence[tuple[str, datetime]], now: datetime) -> bool:
    """`entries` has the newest first. Jobs that come and go change what to do, and are no news.
    Pure."""
    findings = []
    for text, at in entries:
        judgement, _, _ = text.partition(_DO)
        about, _, finding = judgement.partition(": ")
        if about == verdict.about:
            findings.append((finding, at))
    if findings and findings[0][0] == verdict.found:
        return False
    too_recent = now - _SAID_AGAIN_AFTER
    return all(finding != verdict.found or at <= too_recent for finding, at in findings)


def _load_faulty_ends(now: datetime) -> dict[int, set[str]]:
    """The switch's ends (ports, or a module) of the cables with an active fault, by incident.

    Only of incidents whose root is such a fault: what a dead switch or a booting node takes down is
    no cable's doing.
    """
    rows = IncidentFault.objects.filter(
        fault__is_active=True, incident__opened_at__lte=now - GATHERED
    )
    rows = rows.filter(
        Q(fault__resource__contains="/nic/") | Q(fault__resource__startswith="switch/")
    )
    rows = rows.exclude(incident__state__in=[state.value for state in CLOSED]).order_by("pk")
    ends: dict[int, set[str]] = {}
    columns = ("incident_id", "incident__fault_type", "fault__fault_type", "fault__resource")
    for incident, root_type, fault_type, resource in rows.values_list(*columns):
        if not (_is_link_fault(root_type) and _is_link_fault(fault_type)):
            continue
        end = _find_switch_end(resource)
        if end is not None:
            ends.setdefault(incident, set()).add(end)
    return ends


def _find_switch_end(resource: str) -> str | None:
    """The switch's end of the cable that has this end."""
    if resource.startswith("switch/"):
        return resource
    peer = graphs.get_current().find_peer(resource) or ""
    return peer if peer.startswith("switch/") else None


def _is_link_fault(fault_type: str) -> bool:
    return any(fnmatchcase(fault_type, pattern) for pattern in LINK)


def _evaluate_switch(
    switch: str, incidents_by_end: Mapping[str, list[int]], now: datetime, *, jobs: JobsOf
) -> Iterator[CableVerdict]:
    ports = _list_affected_ports(switch, incidents_by_end)
    ports_by_resource = {resources.port(switch, port.name): port for port in ports}
    nodes = {host for port in ports if (host := resources.host_of(port.peer))}
    names = _get_display_names(switch, ports)
    observations = _load_observations(switch, nodes, now)
    for pair, finding in cable_ends.find_suspects(switch, ports, observations):
        end = pair.switch.resource
        port = ports_by_resource[end]
        incidents = [*incidents_by_end.get(end, ()), *incidents_by_end.get(port.module, ())]
        if not incidents:
            continue
        about, found = _format_finding(pair, finding)
        about, found = _replace_paths(about, names), _replace_paths(found, names)
        disturbed = _list_disturbed_nodes(pair, finding, port, ports)
        to_do = _format_advice(finding) + _format_running_jobs(disturbed, jobs)
        for incident in dict.fromkeys(incidents):
            yield CableVerdict(incident, about, found, to_do)


def _format_advice(finding: Finding) -> str:
    if finding.suspect is Suspect.SWITCH_END and finding.spare:
        return _HALF
    return _TO_DO[finding.suspect]


def _format_finding(pair: Pair, finding: Finding) -> tuple[str, str]:
    """What was compared, and what came of it. What is said of a module is the same whichever cable
    it is found at."""
    if finding.suspect is Suspect.SHARED_MODULE:
        module = finding.resource
        about = f"Both ends of all cables of {module} compared"
        return about, finding.text.removeprefix(f"{module}: ")
    about = f"Both ends of a cable compared, {pair.node.resource} and {pair.switch.resource}"
    return about, finding.text


def _list_affected_ports(switch: str, ends: Mapping[str, object]) -> list[ExpectedPort]:
    """The ports at fault and those that share a module with them, with their far ends."""
    target = targets.get_target(switch, TargetKind.SWITCH)
    ports = list(target.expected.ports) if target is not None else []
    known = {resources.port(switch, port.name) for port in ports}
    for end in ends:
        _, is_port, name = end.partition("/port/")
        if is_port and end not in known:
            ports.append(ExpectedPort(name, peer=graphs.get_current().find_peer(end) or ""))
    faulty = []
    for port in ports:
        if resources.port(switch, port.name) in ends or port.module in ends:
            faulty.append(port)
    modules = {port.module for port in faulty if port.module}
    return [port for port in ports if port in faulty or port.module in modules]


def _load_observations(switch: str, nodes: Collection[str], now: datetime) -> list[Observation]:
    """What both ends' polls remember, where it is fresh enough to speak of now."""
    node_samples = polling.iterate_samples(_NODE_DETECTORS, TargetKind.NODE.value, nodes)
    switch_samples = polling.iterate_samples(_SWITCH_DETECTORS, TargetKind.SWITCH.value, [switch])
    observations = []
    for resource, metric, sample in itertools.chain(node_samples, switch_samples):
        fresh_for = _FRESH_LIGHT if metric == cable_ends.LIGHT else _FRESH_LINK
        if metric in _METRICS and sample.at > now - fresh_for:
            observations.append(Observation(resource, metric, sample.value, sample.at))
    return observations


def _list_disturbed_nodes(
    pair: Pair, finding: Finding, port: ExpectedPort, ports: Sequence[ExpectedPort]
) -> list[str]:
    """Nodes that lose a link when the suspect part is taken out: with a module of the switch, its
    other half's too."""
    if finding.suspect is Suspect.NOT_TOLD:
        return []
    ends = [pair.node.resource]
    if finding.suspect in (Suspect.SWITCH_END, Suspect.SHARED_MODULE) and port.module:
        ends += [neighbour.peer for neighbour in ports if neighbour.module == port.module]
    return sorted({host for end in ends if (host := resources.host_of(end))})


def _format_running_jobs(nodes: Sequence[str], jobs: JobsOf) -> str:
    """Who has to be waited for before a part is taken out."""
    if not nodes:
        return ""
    running = jobs(nodes)
    if running is None:
        return (
            f" Slurm does not say whether jobs run on {' and '.join(nodes)}: ask before anything is"
            " unplugged."
        )
    busy_nodes = [node for node in nodes if running.get(node)]
    if not busy_nodes:
        return ""
    sentences = []
    for node in busy_nodes:
        job_ids = ", ".join(sorted(running[node]))
        sentences.append(f"{node} runs job {job_ids}")
    return f" {'; '.join(sentences)}: wait for the end, or drain first."


def _get_display_names(switch: str, ports: Sequence[ExpectedPort]) -> dict[str, str]:
    """How people call each of these: `gn017 NIC mlx5_4`, `leaf-02 port Ethernet64`, `leaf-02 module
    3`."""
    names = {}
    for port in ports:
        names[resources.port(switch, port.name)] = f"{switch} port {port.name}"
        if port.peer.startswith("node/"):
            _, node, _, device = port.peer.split("/", 3)
            names[port.peer] = f"{node} NIC {device}"
        if port.module:
            path = port.module if "/" in port.module else resources.module(switch, port.module)
            _, _, module = path.rpartition("/")
            names[path] = f"{switch} module {module}"
    return names


def _replace_paths(text: str, names: Mapping[str, str]) -> str:
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text
