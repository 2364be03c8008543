"""Asks the guards for a run, and lets it take the node out in the same transaction, so that every
limit holds.

However many workers ask at once: one lock, and each sees what those before it were allowed.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from detectors.catalog import catalog
from detectors.faults import Severity
from runbooks.fleet import breaker, fleet
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table
from runbooks.guards.policy import Policy
from runbooks.guards.table import Act, Allowed, GuardRefused, Refusal, Request
from runbooks.lease import lease
from runbooks.models import FleetLock, Run


def build_request(act: Act, node: str, fault_type: str) -> Request:
    """`is_unusable` by the catalogue: a critical fault leaves nothing of use (DESIGN, section
    3)."""
    row = catalog.load().get(fault_type)
    return Request(
        act, node, fault_type, is_unusable=row is not None and row.severity is Severity.CRITICAL
    )


def claim_node(
    run: Run, act: Act, snapshot: FleetSnapshot, *, policy: Policy, now: datetime
) -> Allowed | GuardRefused:
    """What was looked at in Slurm comes from before the lock: others wait for it."""
    if run.claimed_at is not None and act is not Act.DRAIN:
        return check_guards(run, act, snapshot, policy=policy, now=now)
    wanted = build_request(act, run.place, run.fault_type)
    FleetLock.objects.get_or_create(name="fleet")
    with transaction.atomic():
        # SQLite's transactions are immediate: there the whole database is the lock.
        FleetLock.objects.select_for_update().get(name="fleet")
        verdict = table.check(wanted, fleet.load_fleet(run, snapshot, policy=policy, now=now), now)
        if isinstance(verdict, Allowed):
            lease.update(run, claimed_at=now)
    return _trip_breaker(verdict, now)


def check_guards(
    run: Run, act: Act, snapshot: FleetSnapshot, *, policy: Policy, now: datetime
) -> Allowed | GuardRefused:
    """What the guards would say now. Takes nothing: they are asked again when the node is about to
    be taken out."""
    wanted = build_request(act, run.place, run.fault_type)
    return _trip_breaker(
        table.check(wanted, fleet.load_fleet(run, snapshot, policy=policy, now=now), now), now
    )


def _trip_breaker(verdict: Allowed | GuardRefused, now: datetime) -> Allowed | GuardRefused:
    """What trips the breaker keeps it open, also when the nodes are no longer new."""
    if isinstance(verdict, GuardRefused) and verdict.kind is Refusal.BREAKER:
        breaker.trip(verdict.reason.removeprefix("The breaker is open: "), now)
    return verdict
