"""Valid values by default; a test overrides what it is about."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from detectors.catalog import catalog
from detectors.faults import Action, Component, EventKind, FaultEvent, Severity, fingerprint
from detectors.resources import owner as owner_of
from incidents.inventory import graphs
from incidents.models import (
    Cable,
    Fault,
    Gpu,
    Incident,
    IncidentFault,
    Node,
    NodeInterval,
    Switch,
)
from incidents.vocabulary.lifecycle import State

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
GPU = "node/gn042/gpu/0000:19:00.0"
OTHER_GPU = "node/gn042/gpu/0000:3b:00.0"
_ids = itertools.count(1)


def an_event(
    fault_type: str = "gpu.xid.79",
    resource: str = GPU,
    *,
    at: datetime = NOW,
    kind: EventKind = EventKind.RAISED,
    **values: Any,
) -> FaultEvent:
    """A raised Xid 79 by default; severity, action and component are those of the catalogue's
    row."""
    row = catalog.load().get(fault_type)
    defaults: dict[str, Any] = {
        "event_id": f"{next(_ids):032x}",
        "source": "syslog",
        "occurred_at": at,
        "observed_at": at + timedelta(milliseconds=20),
        "severity": row.severity if row else Severity.MAJOR,
        "action": row.action if row else Action.WATCH,
        "component": row.component if row else Component.UNKNOWN,
        "code": row.code if row else None,
        "excerpt": f"kernel: {fault_type} on {resource}",
    }
    return FaultEvent(
        fault_type=fault_type, event=kind, resource=resource, **{**defaults, **values}
    )


def a_clear(fault_type: str, resource: str, *, at: datetime, **values: Any) -> FaultEvent:
    return an_event(fault_type, resource, at=at, kind=EventKind.CLEARED, **values)


def a_node(
    name: str = "gn042", gpus: Sequence[str] = ("0000:19:00.0", "0000:3b:00.0"), **values: Any
) -> Node:
    node = Node.objects.create(name=name, **{"pod": "pod-a", "partitions": ["gpu"], **values})
    Gpu.objects.bulk_create(
        [Gpu(node=node, index=index, pci_address=pci) for index, pci in enumerate(gpus)]
    )
    return node


def an_interval(node: str = "gn042", *, at: datetime = NOW, **values: Any) -> NodeInterval:
    """A node in service in Slurm by default, from then on; with a `holder` it is drained."""
    is_serving = not values.get("holder")
    state = "IDLE" if is_serving else "IDLE+DRAIN"
    defaults = {"state": state, "is_serving": is_serving, "since": at, "seen_at": at}
    return NodeInterval.objects.create(node=node, **{**defaults, **values})


def a_switch(name: str = "leaf-01", role: str = "leaf", **values: Any) -> Switch:
    return Switch.objects.create(name=name, role=role, **values)


def a_cable(a: str, b: str) -> Cable:
    graphs.forget()
    return Cable.objects.create(a=a, b=b)


def a_fault(
    fault_type: str = "gpu.xid.79", resource: str = GPU, *, at: datetime = NOW, **values: Any
) -> Fault:
    """An active fault row, without an incident."""
    row = catalog.load().get(fault_type)
    defaults: dict[str, Any] = {
        "fingerprint": fingerprint(resource, fault_type, values.get("qualifier", "")),
        "owner": owner_of(resource),
        "component": str(row.component if row else Component.UNKNOWN),
        "severity": str(row.severity if row else Severity.MAJOR),
        "action": str(row.action if row else Action.WATCH),
        "clears": str(row.clears) if row else "by_operator",
        "code": row.code if row else None,
        "raised_at": at,
        "observed_at": at,
        "recorded_at": at,
        "last_seen_at": at,
    }
    return Fault.objects.create(fault_type=fault_type, resource=resource, **{**defaults, **values})


def an_incident(
    fault_type: str = "gpu.xid.79",
    resource: str = GPU,
    *,
    at: datetime = NOW,
    state: State = State.OPEN,
    fault: Fault | None = None,
    **values: Any,
) -> Incident:
    """An incident with its root fault joined; the node is made when it is not there."""
    root = fault or a_fault(fault_type, resource, at=at)
    kind, _, name = root.owner.partition("/")
    node = Node.objects.get_or_create(name=name)[0] if kind == "node" else None
    defaults: dict[str, Any] = {
        "title": f"{root.resource}: {root.fault_type}",
        "component": root.component,
        "fault_type": root.fault_type,
        "severity": root.severity,
        "action": root.action,
        "root_resource": root.resource,
        "owner": root.owner,
        "node": node,
        "has_platform_signal": True,
        "onset_at": at,
        "opened_at": at,
        "recorded_at": at,
        "updated_at": at,
    }
    incident = Incident.objects.create(state=state.value, root_fault=root, **{**defaults, **values})
    IncidentFault.objects.create(
        incident=incident, fault=root, role="root", rule="root", reason="first", joined_at=at
    )
    return incident
