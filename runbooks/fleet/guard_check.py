"""Asks the guards for a run, and lets it take the node out in the same transaction, so that every
limit holds.

However many workers ask at once: one lock, and each sees what those before it were allowed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from incidents.db.prepared import Prepared
from incidents.state import transitions
from incidents.state.outbox import BEYOND_LIMIT
from runbooks.fleet import armings, breaker, fleet
from runbooks.fleet.fleet import FleetSnapshot
from runbooks.guards import table
from runbooks.guards.policy import Policy
from runbooks.guards.table import Act, Allowed, Fleet, GuardRefused, Refusal, Request
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import Arming, FleetLock, Run
from runbooks.node import witnesses

# What another worker has just changed is looked at again at once.
_SOON = timedelta(seconds=1)


def build_request(act: Act, node: str, fault_type: str) -> Request:
    """`is_unusable` by the catalogue: a critical fault leaves nothing of use."""
    is_unusable = witnesses.leaves_unusable(fault_type)
    return Request(act, node, fault_type, is_unusable=is_unusable)


def weighs_demands(act: Act, run: Run) -> bool:
    """Whether the guards look at what jobs need: of a node that serves no job as it is they do
    not."""
    return not build_request(act, run.place, run.fault_type).is_unusable


def claim_node(
    run: Run,
    act: Act,
    snapshot: FleetSnapshot,
    *,
    policy: Policy,
    now: datetime,
    unusable: str = "",
) -> Allowed | GuardRefused:
    """What was looked at in Slurm comes from before the lock: others wait for it. `unusable` names
    the fault that was seen on the node itself just now and leaves it of no use."""
    if run.claimed_at is not None and act is not Act.DRAIN:
        return check_guards(run, act, snapshot, policy=policy, now=now)
    wanted = build_request(act, run.place, run.fault_type)
    with transaction.atomic():
        _lock_fleet()
        if witnesses.UNRECORDED in run.facts:  # the breaker counts what the node has shown
            lease.update(run, facts=run.facts)
        state = _load_fleet(run, snapshot, policy=policy, now=now, unusable=unusable)
        verdict = table.check(wanted, state, now)
        if isinstance(verdict, Allowed):
            passed = table.find_passed_limit(wanted, state, now)
            if passed is not None and run.claimed_at is None:
                _tell_beyond_limit(run, unusable, passed, now)
            if state.arming is not None:
                verdict = _use_arming(run, state.arming, now)
        if isinstance(verdict, Allowed):
            lease.update(run, claimed_at=now, facts=run.facts)
    return _trip_breaker(verdict, now)


_FLEET_LOCK = Prepared(
    lambda: FleetLock.objects.select_for_update().filter(name="fleet").values_list("pk")
)


def _lock_fleet() -> None:
    """Until the transaction's end. SQLite's transactions are immediate: there the whole database is
    the lock."""
    if not _FLEET_LOCK.rows():
        FleetLock.objects.get_or_create(name="fleet")
        _FLEET_LOCK.rows()


def _use_arming(run: Run, number: int, now: datetime) -> Allowed | GuardRefused:
    """The run counts once against the arming by which it may act, and people read so."""
    if run.facts.get(armings.USED) == number:
        return Allowed()
    if not armings.count_run(number, now):
        reason = f"Arming {number} has ended meanwhile"
        return GuardRefused(Refusal.MODE, reason, now + _SOON)
    run.facts[armings.USED] = number
    arming = Arming.objects.get(pk=number)
    text = f"Run {run.pk} acts by {armings.describe(arming)}: {arming.reason}"
    transitions.record(run.incident_id, kind="run_note", text=text, now=now)
    return Allowed()


def _tell_beyond_limit(run: Run, fault: str, passed: GuardRefused, now: datetime) -> None:
    """A person hears of it at once: so many nodes out is no everyday matter."""
    node = run.place
    text = (
        f"{node} is drained beyond a limit, since it is of no use to any job: {fault}. The limit:"
        f" {passed.reason}. Kintsugi goes on with its repair. Bring other nodes back, or stop"
        " everything: kintsugi stop --reason WHY."
    )
    transitions.record(run.incident_id, kind=BEYOND_LIMIT, text=text, now=now)


def check_guards(
    run: Run,
    act: Act,
    snapshot: FleetSnapshot,
    *,
    policy: Policy,
    now: datetime,
    unusable: str = "",
) -> Allowed | GuardRefused:
    """What the guards would say now. Takes nothing: they are asked again when the node is about to
    be taken out."""
    wanted = build_request(act, run.place, run.fault_type)
    state = _load_fleet(run, snapshot, policy=policy, now=now, unusable=unusable)
    return _trip_breaker(table.check(wanted, state, now), now)


def _load_fleet(
    run: Run, snapshot: FleetSnapshot, *, policy: Policy, now: datetime, unusable: str
) -> Fleet:
    limits = library.get_limits(run.runbook)
    return fleet.load_fleet(run, snapshot, limits=limits, policy=policy, now=now, unusable=unusable)


def _trip_breaker(verdict: Allowed | GuardRefused, now: datetime) -> Allowed | GuardRefused:
    """What trips the breaker keeps it open, also when the nodes are no longer new."""
    if isinstance(verdict, GuardRefused) and verdict.kind is Refusal.BREAKER:
        breaker.trip(verdict.reason.removeprefix("The breaker is open: "), now)
    return verdict
