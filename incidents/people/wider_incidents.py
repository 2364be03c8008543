"""Open incidents of what a node hangs on: its switches, rack, feeds, file systems, the site, its
jobs. Reads only.

Correlation has placed what it could place; this is for what came later than its rules allow and may
have the same cause all the same. What a wider cause cannot bring about waits for none: no switch
takes a GPU off its bus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import Action, ClearRule, Component, EventType, Severity
from incidents.correlation import relations
from incidents.correlation.relations import Surroundings
from incidents.db.prepared import Given, Prepared
from incidents.faults.fault_views import MANAGEMENT, ROUTING, SILENCES, FaultView, is_one_of
from incidents.jobs import jobs
from incidents.models import Fault, Incident, IncidentFault
from incidents.state import site_rules
from incidents.state.batch import get_join_window
from incidents.state.cases import FaultCase
from incidents.topology.graph import ALL_NODES, Graph
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Relation, Side

# What waits for the vendor or is quiet again is known, and stands for weeks: it is suspected of
# nothing new.
_SUSPECT = [state.value for state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)]
_GRAVE = [severity.value for severity in (Severity.MAJOR, Severity.CRITICAL)]
# As where jobs are told apart by faults: Slurm lists a job for minutes after its end
# (incidents.triage.aggregation).
_AROUND = timedelta(minutes=2)
_TELLS_ITS_END = (str(ClearRule.BY_POLL), str(ClearRule.BY_EVENT))
_TELLS_A_MOMENT = str(ClearRule.AFTER_QUIET)


@dataclass(frozen=True)
class Above:
    """An open incident of a place, a switch or a job as a whole."""

    incident_id: int
    title: str
    resource: str


def _get_suspects() -> QuerySet[Incident]:
    is_grave_above = Q(root_resource__among=Given("above"), severity__in=_GRAVE)
    is_suspect = is_grave_above | Q(root_resource__among=Given("own_jobs"))
    return Incident.objects.filter(is_suspect, state__in=_SUSPECT).order_by("pk")


_SUSPECTS = Prepared(_get_suspects)


def list_wider_incidents(
    node: str, fault_type: str, part: str, graph: Graph, now: datetime
) -> list[Above]:
    """Those of which this node is a part, that are not restored, and that may have brought about
    such a fault there. `graph` is the inventory's.

    Two or three queries of jobs, one of incidents, and where there are any one of faults.
    """
    machine = resources.node(node)
    jobs_by_machine, machines_by_job = jobs.get_running_on({machine}, at=now, around=_AROUND)
    facility = {ALL_NODES, *graph.get_feeds(machine), graph.find_rack(machine) or ALL_NODES}
    others = {MANAGEMENT, *graph.get_switches(machine)}
    others |= graph.get_management_switches(machine)
    others |= graph.get_file_systems(machine)
    # A job that fails on many nodes is a warning, since it harms nobody else: it is suspected all
    # the same.
    suspects = _SUSPECTS.objects(
        above=sorted(facility | others), own_jobs=sorted(jobs_by_machine.get(machine, ()))
    )
    candidates = [incident for incident in suspects if not is_one_of(incident.fault_type, ROUTING)]
    members = _load_members(candidates)
    effect = _make_view_of_type(fault_type, part, now)
    around = Surroundings(graph, jobs=jobs_by_machine, machines=machines_by_job)
    wider = []
    for incident in candidates:
        faults = members[incident.pk]
        if _is_restored(faults, now):
            continue
        is_of_facility = incident.root_resource in facility
        reaches_all = is_of_facility and _reaches_every_part(incident.fault_type)
        if reaches_all or _may_bring(incident, faults, effect, around):
            wider.append(Above(incident.pk, incident.title, incident.root_resource))
    return wider


def _load_members(incidents: Sequence[Incident]) -> dict[int, list[Fault]]:
    """The faults of each; those of its duplicates are its own."""
    members: dict[int, list[Fault]] = defaultdict(list)
    if not incidents:
        return members
    ids = [incident.pk for incident in incidents]
    links = IncidentFault.objects.filter(Q(incident__in=ids) | Q(incident__duplicate_of__in=ids))
    for link in links.select_related("fault", "incident"):
        key = link.incident_id if link.incident_id in ids else link.incident.duplicate_of_id
        members[key or 0].append(link.fault)
    return members


def _is_restored(members: Iterable[Fault], now: datetime) -> bool:
    """Whether none of its faults stands. One that tells of a moment, such as a reboot, stands until
    quiet has passed: it is over when what tells its own end has ended, else when what one cause
    brings would have come.
    """
    standing = [fault for fault in members if fault.is_active]
    if any(fault.clears != _TELLS_A_MOMENT for fault in standing):
        return False
    if any(fault.clears in _TELLS_ITS_END for fault in members):
        return True
    return all(fault.last_seen_at <= now - get_join_window() for fault in standing)


def _reaches_every_part(fault_type: str) -> bool:
    """Whether a fault of the site, a rack or a feed may bring about any other there: loss of power,
    cooling and of the machines themselves. What is wrong with a service or a setting that many
    share takes no GPU off its bus. Of a type that left the catalogue nobody knows."""
    known = catalog.load().get(fault_type)
    return known is None or known.event_type is EventType.ENVIRONMENTAL


def _may_bring(
    incident: Incident, members: Iterable[Fault], effect: FaultView, around: Surroundings
) -> bool:
    """Whether a row of correlation says so, however long ago the cause came. Silence is brought
    about by anything that stands between; what reaches every part is not asked about here.
    """
    if effect.fault_type in SILENCES:
        return True
    rules = site_rules.load_joining_rules()
    causes = [_make_view(fault) for fault in members if fault.is_active]
    for rule, side in rules.get_sides(effect):
        if side is not Side.EFFECT or rule.is_of_peers:
            continue
        if rule.states and State(incident.state) not in rule.states:
            continue
        for cause in causes:
            is_cause = rules.is_on(rule, Side.CAUSE, cause)
            if is_cause and _are_related(rule.relations, cause, effect, around):
                return True
    return False


def _are_related(
    by: Iterable[Relation], cause: FaultView, effect: FaultView, around: Surroundings
) -> bool:
    for relation in by:
        cause_keys = relations.get_keys(relation, Side.CAUSE, cause, around)
        effect_keys = relations.get_keys(relation, Side.EFFECT, effect, around)
        if cause_keys & effect_keys:
            return True
    return False


def _make_view(fault: Fault) -> FaultView:
    known = catalog.load().get(fault.fault_type)
    opens_incident = known is None or known.opens_incident
    is_sympathetic = known is not None and known.is_sympathetic
    case = FaultCase(fault, opens_incident=opens_incident, is_sympathetic=is_sympathetic)
    return case.view()


def _make_view_of_type(fault_type: str, part: str, now: datetime) -> FaultView:
    """A fault of this type that comes now. One that left the catalogue says nothing of its
    class."""
    unknown = FaultView(
        fault_type=fault_type,
        resource=part,
        component=Component.UNKNOWN,
        severity=Severity.INDETERMINATE,
        action=Action.NONE,
        occurred_at=now,
        observed_at=now,
        opens_incident=True,
        is_sympathetic=False,
    )
    known = catalog.load().get(fault_type)
    if known is None:
        return unknown
    return replace(
        unknown,
        component=known.component,
        severity=known.severity,
        action=known.action,
        opens_incident=known.opens_incident,
        is_sympathetic=known.is_sympathetic,
    )
