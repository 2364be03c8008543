"""What lies around the faults of a batch: the machines where rules may find others, the jobs there,
planned work.

Reads only; decides nothing. A fault type that no rule of a relation names costs no query for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from detectors.catalog.catalog import Catalog
from detectors.faults import Action, Component, Severity
from incidents.correlation import relations
from incidents.correlation.relations import Surroundings
from incidents.correlation.rules import Rule, RuleSet
from incidents.db.prepared import Given, Prepared
from incidents.faults.fault_views import FaultView
from incidents.jobs import jobs
from incidents.models import Silence
from incidents.state import site_rules
from incidents.topology.graph import Graph
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Relation, Side

_PLANNED = Prepared(
    lambda: (
        Silence.objects.filter(
            kind=Silence.Kind.MAINTENANCE, ended_at=None, starts_at__lte=Given("now")
        )
        .filter(Q(ends_at=None) | Q(ends_at__gt=Given("now")))
        .values_list("pk", "machines")
    )
)

_Asked = tuple[Relation, Side, FaultView]


@dataclass
class Reach:
    """Which faults of open incidents a rule may join with those of a batch: by machine, type, and
    the incident's state.

    A link on a leaf may be of one cause with other links there, and with nothing else that stands
    on its fifty nodes.
    """

    rules: RuleSet = field(default_factory=RuleSet)
    _asked: dict[tuple[str, Side], tuple[Rule, set[str]]] = field(default_factory=dict)
    _known: dict[tuple[str, str, bool], frozenset[str]] = field(default_factory=dict)

    def ask(self, rule: Rule, side: Side, owners: Iterable[str]) -> None:
        """Faults on this side of the rule are meant, on these machines."""
        self._asked.setdefault((rule.name, side), (rule, set()))[1].update(owners)

    def holds(self, owner: str, fault_type: str, *, state: str, has_platform_signal: bool) -> bool:
        kind = (fault_type, state, has_platform_signal)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = frozenset().union(*self._list_owners(*kind))
        return owner in known

    def _list_owners(
        self, fault_type: str, state: str, has_platform_signal: bool
    ) -> Iterator[set[str]]:
        for (_, side), (rule, owners) in self._asked.items():
            is_barred = (rule.states and State(state) not in rule.states) or (
                rule.reported_only and has_platform_signal
            )
            if not is_barred and self.rules.get_classes(rule, side, fault_type):
                yield owners


@dataclass
class Nearby:
    """Machines of the other faults that this batch's faults may meet, and what relations look at
    besides."""

    owners: set[str] = field(default_factory=set)
    around: Surroundings = field(default_factory=Surroundings)
    reach: Reach = field(default_factory=Reach)


def read_nearby(
    faults: Iterable[tuple[str, str]],
    catalog: Catalog,
    graph: Graph,
    *,
    now: datetime,
    window: timedelta,
) -> Nearby:
    """`faults` are (fault type, resource), `graph` is the inventory's. At most two looks at jobs,
    one at planned work."""
    known = site_rules.load_joining_rules()
    views = [_make_view(fault_type, resource, catalog, now) for fault_type, resource in faults]
    asked = {
        (relation, side, view)
        for view in views
        for rule, side in known.get_sides(view)
        for relation in rule.relations
    }
    with_jobs = {view.owner for relation, _, view in asked if relation is Relation.SAME_JOB}
    on, of_jobs = jobs.get_running_on(with_jobs, at=now, around=window) if with_jobs else ({}, {})
    windows = (
        _get_windows(now)
        if any(relation is Relation.SAME_MAINTENANCE for relation, _, _ in asked)
        else {}
    )
    around = Surroundings(graph, {**on, **_get_jobs_by_machine(of_jobs)}, of_jobs, windows)
    found = {one: relations.get_owners(*one, around) for one in asked}
    near = {view.owner for view in views}.union(*found.values())
    return Nearby(near, around, _get_reach(known, views, found, around))


def _get_reach(
    known: RuleSet,
    views: Iterable[FaultView],
    found: dict[_Asked, frozenset[str]],
    around: Surroundings,
) -> Reach:
    """By the types alone, since a fault may turn out to be of another component than its type
    says."""
    reach = Reach(known)
    for view in views:
        for rule, side in known.iterate_sides_of_type(view.fault_type):
            for relation in rule.relations:
                one = (relation, side, view)
                if one not in found:
                    found[one] = relations.get_owners(relation, side, view, around)
                reach.ask(rule, Side.CAUSE if side is Side.EFFECT else Side.EFFECT, found[one])
    return reach


def _get_jobs_by_machine(of_jobs: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Machine to jobs, also for the machines of these jobs that the batch does not speak of."""
    found: dict[str, set[str]] = {}
    for job, machines in of_jobs.items():
        for machine in machines:
            found.setdefault(machine, set()).add(job)
    return {machine: frozenset(ran) for machine, ran in found.items()}


def _get_windows(now: datetime) -> dict[str, frozenset[str]]:
    """Machine to the planned work in force there."""
    found: dict[str, set[str]] = {}
    for pk, machines in _PLANNED.rows(now=now):
        for machine in machines:
            found.setdefault(machine, set()).add(f"window/{pk}")
    return {machine: frozenset(windows) for machine, windows in found.items()}


def _make_view(fault_type: str, resource: str, catalog: Catalog, now: datetime) -> FaultView:
    """The fault as its type alone describes it; where it may be found depends on no more."""
    row = catalog.get(fault_type)
    if row is None:
        unknown = (Component.UNKNOWN, Severity.INDETERMINATE, Action.NONE)
        return FaultView(fault_type, resource, *unknown, occurred_at=now, observed_at=now)
    return FaultView(
        fault_type,
        resource,
        row.component,
        row.severity,
        row.action,
        occurred_at=now,
        observed_at=now,
        opens_incident=row.opens_incident,
        is_sympathetic=row.is_sympathetic,
    )
