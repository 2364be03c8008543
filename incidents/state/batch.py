"""The faults and incidents that one transaction of triage touches, read once and written once:
values, and how people read them.

`neighbourhood` reads them, `placement` changes them by the rules, `persistence` writes them; the
caller holds the placement lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings

from detectors import resources
from detectors.catalog.catalog import Catalog, FaultType
from incidents.correlation.candidates import CandidateIndex
from incidents.db.upsert import WiderLockNeeded
from incidents.inventory import aliases
from incidents.models import Decision, Fault, Node
from incidents.state import site_rules
from incidents.state.cases import FaultCase, IncidentCase
from incidents.text import wording
from incidents.vocabulary.changes import Change, ChangeKind


def get_join_window() -> timedelta:
    period: timedelta = settings.KINTSUGI["KINTSUGI_JOIN_WINDOW"]
    return period


def get_quiet_period() -> timedelta:
    period: timedelta = settings.KINTSUGI["KINTSUGI_QUIET_PERIOD"]
    return period


@dataclass(frozen=True)
class LockedPods:
    """The pods in which no other transaction places faults, and which machine is of which."""

    pods: frozenset[str]
    get_pod: Callable[[str], str]


@dataclass
class TriageBatch:
    """Faults by fingerprint, open incidents by key, and the changes made so far, in order."""

    catalog: Catalog
    now: datetime
    nodes: dict[str, Node] = field(default_factory=dict)
    faults: dict[str, FaultCase] = field(default_factory=dict)
    replaced: list[FaultCase] = field(default_factory=list)
    """Faults that ended in this batch, and came again as others: their own end is written with the
    rest."""
    unassigned: list[FaultCase] = field(default_factory=list)
    incidents: dict[int, IncidentCase] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    """What was judged and why, of rows that may be new: written after them."""
    locked: LockedPods | None = None
    """Where nothing else is placed meanwhile. None: anywhere."""
    hidden: frozenset[int] = frozenset()
    """Incidents that this batch leaves out: what parts from one must not be placed there again."""
    index: CandidateIndex = field(
        default_factory=lambda: CandidateIndex(site_rules.load_joining_rules())
    )
    """Where the faults of this batch meet by the rules."""
    _gpus: dict[str, int] = field(default_factory=dict)
    _looked_up: set[str] = field(default_factory=set)
    opened: int = 0
    pending: list[tuple[ChangeKind, FaultCase, IncidentCase | None, str]] = field(
        default_factory=list
    )

    def build_case(self, row: Fault) -> FaultCase:
        """The row as a case; a type that left the catalogue is taken for one that opens
        incidents."""
        known = self.catalog.get(row.fault_type)
        return FaultCase(
            row,
            opens_incident=known is None or known.opens_incident,
            is_sympathetic=known is not None and known.is_sympathetic,
            excerpts_before=row.excerpts,
        )

    def format_resource(self, path: str) -> str:
        """A resource as people say it, its GPU by index; one query for all nodes of the batch."""
        if "/gpu/" in path and resources.owner(path) not in self._looked_up:
            owners = {
                resources.owner(path),
                *self.nodes,
                *(case.row.owner for case in self.faults.values()),
            }
            owners -= self._looked_up
            self._looked_up |= owners
            self._gpus.update(
                aliases.get_gpu_indexes({owner.partition("/")[2] for owner in owners})
            )
        return wording.format_resource_path(path, self._gpus)

    def format_fault(self, row: Fault) -> str:
        """`GPU has fallen off the bus (gpu.xid.79) on gn017 GPU 3`."""
        known = self.catalog.get(row.fault_type)
        what = f"{known.title} ({row.fault_type})" if known else row.fault_type
        return f"{what} on {self.format_resource(row.resource)}"

    def format_title(self, fault: FaultCase) -> str:
        known = self.catalog.get(fault.row.fault_type)
        what = known.title if known else fault.row.fault_type
        return f"{self.format_resource(fault.row.resource)}: {what}"

    def has_locked(self, machine: str) -> bool:
        """Whether no other transaction may change what is of the machine."""
        return self.locked is None or self.locked.get_pod(machine) in self.locked.pods

    def require_lock(self, machines: Iterable[str]) -> None:
        """What is of these machines is about to change. Raises WiderLockNeeded where another
        transaction may change it too."""
        beyond = [machine for machine in machines if not self.has_locked(machine)]
        if beyond:
            raise WiderLockNeeded(beyond)

    def require_stillness(self, machines: Iterable[str]) -> None:
        """The same for what is only read. What belongs to no pod changes under the lock of all
        alone, and stands still."""
        if self.locked is None:
            return
        still = self.locked.pods | {""}
        beyond = [machine for machine in machines if self.locked.get_pod(machine) not in still]
        if beyond:
            raise WiderLockNeeded(beyond)

    def is_unassigned(self, fault: FaultCase) -> bool:
        return fault.member is None and fault in self.unassigned

    def put_incident(self, incident: IncidentCase) -> None:
        self.incidents[incident.key] = incident
        self.index.enter(incident.key, incident, root=incident.root, members=incident.members)

    def note(
        self, kind: ChangeKind, fault: FaultCase, incident: IncidentCase | None, text: str
    ) -> None:
        self.pending.append((kind, fault, incident, text))

    def decide(
        self,
        kind: Decision.Kind,
        fault: FaultCase | None,
        incident: IncidentCase | None,
        text: str,
        *,
        rule: str = "",
        until: datetime | None = None,
    ) -> None:
        """Says why, in the transaction of what it explains."""
        fault_row = fault.row if fault else None
        incident_row = incident.row if incident else None
        decision = Decision(
            fault=fault_row,
            incident=incident_row,
            kind=kind,
            rule=rule,
            text=text[:500],
            until=until,
            recorded_at=self.now,
        )
        self.decisions.append(decision)


def build_fault(kind: FaultType, *, fingerprint: str, resource: str, qualifier: str) -> Fault:
    """A row with what the type and the identity say; the caller fills in the event."""
    return Fault(
        fingerprint=fingerprint,
        fault_type=kind.id,
        resource=resource,
        qualifier=qualifier,
        owner=resources.owner(resource),
        clears=str(kind.clears),
        code=kind.code,
        is_active=True,
    )
