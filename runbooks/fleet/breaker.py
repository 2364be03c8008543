"""The breaker: trips when much of the fleet turns bad at once, and stays open until a person closes
it.

A trip is a fault of Kintsugi's own, so that people are told of it as of any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q

from detectors.catalog import catalog
from detectors.catalog.catalog import OF_A_NODE
from detectors.faults import Action, EventKind, FaultEvent, Fitness
from detectors.provenance import BELIEVED
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Given, Prepared
from incidents.models import Fault, Incident, IncidentFault, Node
from incidents.vocabulary.lifecycle import State
from runbooks.guards import causes
from runbooks.guards.verdicts import Bounds
from runbooks.models import Breaker, Run
from runbooks.node.witnesses import WITNESS
from runbooks.slurm.protocol import NodeState

FAULT_TYPE = "kintsugi.breaker_tripped"
_RESOURCE = "kintsugi/breaker"
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]
_OF_NODES = [component.value for component in OF_A_NODE]
_NOT_BAD = [State.FALSE_POSITIVE.value, State.DUPLICATE.value]


def _is_believed() -> Q:
    """Seen by somebody who can be believed, or by its node when a run asked it; or a run was let
    take the node out, since nobody could be asked. What anybody may have written trips nothing."""
    members = IncidentFault.objects.filter(incident=OuterRef("pk"))
    drains = Q(fault__action__in=_REPAIRS) | Q(fault__fault_type__among=Given("unfit"))
    believed = members.filter(drains, fault__forger__in=BELIEVED)
    runs = Run.objects.filter(incident=OuterRef("pk"))
    seen = runs.filter(Q(claimed_at__isnull=False) | Q(facts__has_key=WITNESS))
    return Q(Exists(believed)) | Q(Exists(seen))


_LATEST = Prepared(
    lambda: Breaker.objects.order_by(F("closed_at").desc(nulls_first=True), "pk")[:1]
)
_TOLD = Prepared(lambda: Fault.objects.active().filter(fault_type=FAULT_TYPE).values_list("pk")[:1])
_CALLED = Prepared(
    lambda: (
        Incident.objects.filter(
            Q(action__in=_REPAIRS, component__in=_OF_NODES) | Q(fault_type__among=Given("unfit")),
            opened_at__gt=Given("since"),
        )
        .filter(node__is_provisional=False)
        .exclude(state__in=_NOT_BAD)
        .filter(_is_believed())
        .values_list("node__name")
    )
)


@dataclass(frozen=True)
class BreakerRecord:
    """What stands of it: the trip that is `open`, None where none is; then `closed_at` says when a
    person has closed the last one, None where none was ever."""

    open: Breaker | None
    closed_at: datetime | None


def read_record() -> BreakerRecord:
    """One query."""
    latest: Breaker | None = next(iter(_LATEST.objects()), None)
    if latest is None:
        return BreakerRecord(None, None)
    is_open = latest.closed_at is None
    return BreakerRecord(latest if is_open else None, latest.closed_at)


def get_open_breaker() -> Breaker | None:
    return read_record().open


def get_nodes_turned_bad(
    nodes: Mapping[str, NodeState], record: BreakerRecord, now: datetime, *, bounds: Bounds
) -> frozenset[str]:
    """Nodes for which a repair was called for, that became unfit for jobs, or that Slurm set down,
    within the window.

    What turned bad before a person closed the breaker was looked at, and counts no more.
    """
    since = _get_window_start(record, now, bounds)
    unfit = [row.id for row in catalog.load() if row.fitness is Fitness.UNFIT]
    called = _CALLED.values(since=since, unfit=unfit)
    down = (name for name, node in nodes.items() if _is_down_since(node, since))
    return frozenset((*called, *down))


def _is_down_since(node: NodeState, since: datetime) -> bool:
    if node.base != "DOWN" or node.reason_changed_at is None:
        return False
    return since < node.reason_changed_at


def trip(why: str, now: datetime) -> None:
    """Nothing where it is open already, or where another worker was first."""
    try:
        with transaction.atomic():
            Breaker.objects.create(why=why[:255], tripped_at=now)
    except IntegrityError:
        return


def evaluate_breaker(now: datetime, *, bounds: Bounds) -> list[FaultEvent]:
    """Trips it by what the database alone tells, and says what began and what ended. Few queries,
    none to Slurm."""
    record = read_record()
    tripped = record.open
    if tripped is None:
        bad = get_nodes_turned_bad({}, record, now, bounds=bounds)
        if causes.is_too_many(len(bad), 0, bounds=bounds):  # however many there are
            fleet = Node.objects.inventoried().count()
            if causes.is_too_many(len(bad), fleet, bounds=bounds):
                trip(causes.format_trip(bad, fleet, bounds=bounds), now)
                tripped = get_open_breaker()
    is_told = bool(_TOLD.values())
    if tripped is not None and not is_told:
        text = (
            f"The breaker has tripped: {tripped.why}. No node is taken out of service until a"
            " person closes it."
        )
        return [make_conclusion(EventKind.RAISED, FAULT_TYPE, _RESOURCE, text=text, now=now)]
    if tripped is None and is_told:
        return [
            make_conclusion(
                EventKind.CLEARED,
                FAULT_TYPE,
                _RESOURCE,
                text="A person closed the breaker.",
                now=now,
            )
        ]
    return []


def _get_window_start(record: BreakerRecord, now: datetime, bounds: Bounds) -> datetime:
    begin = now - bounds.breaker_window
    return max(begin, record.closed_at) if record.closed_at is not None else begin
