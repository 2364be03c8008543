"""What time alone does: quiet faults clear, hold-downs end, watched incidents resolve, old ids are
forgotten.

Also what the restart of a node, or the reset of a GPU, does to the faults that ran before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.faults import Action, ClearRule
from detectors.provenance import Provenance
from incidents.checks import overload
from incidents.db import upsert
from incidents.db.prepared import Given, Moment, Prepared
from incidents.faults import dedup, flapping
from incidents.faults.fault_views import UNREACHABLE
from incidents.maintenance import silences
from incidents.models import Fault, Incident, Node, SeenEvent
from incidents.state import after_repair, placement
from incidents.state.batch import TriageBatch, get_quiet_period
from incidents.state.cases import FaultCase, IncidentCase, TimelineNote, blocks
from incidents.state.neighbourhood import load_faults, load_incidents, load_neighbourhood
from incidents.state.persistence import persist
from incidents.state.settle import NODE_RESTARTED, settle
from incidents.state.transitions import move, record
from incidents.text.wording import format_clock, format_duration
from incidents.text.wording import format_resource_path as format_resource
from incidents.triage import grace_periods, unhealed
from incidents.triage.normalisation import get_limits
from incidents.vocabulary.changes import KINTSUGI, Acted, Change, ChangeKind
from incidents.vocabulary.lifecycle import State, Trigger

# Rows per statement, so that no sweep holds its locks for long.
_MOST_AT_ONCE = 500
# How the question ends about what still stands; nothing else is asked in these words.
_THEN_RESOLVE = " Then resolve."
_MOST_FORGOTTEN = 20_000
_OLD_EVENTS = Prepared(
    lambda: (
        SeenEvent.objects.filter(recorded_at__lt=Given("before"))
        .order_by("recorded_at")
        .values_list("key")[:_MOST_FORGOTTEN]
    )
)


def sweep(*, now: datetime) -> list[Change]:
    """Everything whose time has come. Safe to call at any time and by several at once."""
    changes: list[Change] = []
    # No lock is taken while nothing is due, as at most sweeps.
    if _QUIET.values(now=now):
        changes += _sweep_in_one_transaction(_end_quiet_faults, _get_quiet_faults(now), now)
    if _HELD.values(now=now):
        changes += _sweep_in_one_transaction(_end_hold_downs, _get_held_faults(now), now)
    changes += _end_flapping(now)
    changes += after_repair.reopen_returned(now)
    changes += unhealed.split_unhealed(now)
    changes += _settle_forgotten(now)
    _take_back_ended_asks(now)
    changes += _resolve_quiet_incidents(now)
    _forget(now)
    return changes


def record_node_restart(
    node: str, *, booted_at: datetime, boot_id: str, now: datetime
) -> list[Change]:
    """The node runs since `booted_at`: faults that a reboot ends, and were last seen before it,
    clear.

    Events from before that time are stale from now on. The same boot told twice changes nothing.
    """
    with transaction.atomic():
        upsert.lock_placement()
        known = Node.objects.select_for_update().filter(name=node).first()
        if known is None or (known.boot_id == boot_id and known.boot_seen_at is not None):
            return []
        if known.boot_seen_at is not None and booted_at < known.boot_seen_at:
            return []
        Node.objects.filter(pk=known.pk).update(boot_id=boot_id, boot_seen_at=booted_at)
        standing = (
            Fault.objects.active()
            .of_node(node)
            .filter(clears=str(ClearRule.AFTER_REBOOT), last_seen_at__lt=booted_at)
        )
        reason = f"{NODE_RESTARTED} at {format_clock(booted_at)}"
        return _clear(standing, now, lambda case: (booted_at, reason))


def record_gpu_reset(
    resources_reset: Collection[str], *, reset_at: datetime, now: datetime
) -> list[Change]:
    """These GPUs were reset: faults on them that a reset ends, and were last seen before it began,
    clear.

    What clears after a reboot and for which the vendor asks no more than a reset, on the GPU or on
    a part of it.
    """
    place = Q(resource__in=resources_reset)
    for one in resources_reset:
        place |= Q(resource__startswith=f"{one}/")
    ended = [str(action) for action in Action if not action.at_least(Action.REBOOT)]
    standing = Fault.objects.active().filter(
        place, clears=str(ClearRule.AFTER_REBOOT), action__in=ended, last_seen_at__lt=reset_at
    )
    reason = f"the GPU was reset at {format_clock(reset_at)}"
    return _sweep_in_one_transaction(
        lambda due, at: _clear(due, at, lambda case: (reset_at, reason)), standing, now
    )


def record_witness(fault_type: str, resource: str, *, told_by: Provenance, now: datetime) -> None:
    """Somebody who can be believed has looked, and sees the fault: what it calls for counts from
    now on, and it may be the cause of others."""
    standing = Fault.objects.active().filter(fault_type=fault_type, resource=resource)
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        cases = load_faults(batch, standing.order_by("fingerprint").select_for_update())
        host = resources.host_of(resource)
        batch.nodes = {f"node/{node.name}": node for node in Node.objects.filter(name=host)}
        load_neighbourhood(batch, {(fault_type, resource)})
        for case in cases:
            if case.take_provenance(told_by):
                placement.correlate_again(batch, case)
        silences.apply(batch)
        persist(batch)


def _sweep_in_one_transaction(
    work: Callable[[QuerySet[Fault], datetime], list[Change]], due: QuerySet[Fault], now: datetime
) -> list[Change]:
    with transaction.atomic():
        upsert.lock_placement()
        return work(due, now)


def _get_quiet_faults(now: Moment) -> QuerySet[Fault]:
    return Fault.objects.active().filter(clears_at__lte=now)


def _get_held_faults(now: Moment) -> QuerySet[Fault]:
    return Fault.objects.active().filter(held_until__lte=now)


_QUIET = Prepared(lambda: _get_quiet_faults(Given("now")).values_list("pk")[:1])
_HELD = Prepared(lambda: _get_held_faults(Given("now")).values_list("pk")[:1])


def _end_quiet_faults(due: QuerySet[Fault], now: datetime) -> list[Change]:
    """A fault that went quiet ended when it was last seen: that is what is known of its end."""

    def ended(case: FaultCase) -> tuple[datetime, str]:
        if case.row.is_flapping:
            last = flapping.read(case.row.changes_at)[-1]
            _tell_steady(case, f"ended at {format_clock(last)}", now)
            return last, f"it flapped, and is steady since {format_clock(last)}"
        quiet = format_duration(now - case.row.last_seen_at)
        return case.row.last_seen_at, f"not seen again for {quiet}"

    return _clear(due, now, ended)


def _end_flapping(now: datetime) -> list[Change]:
    """Faults that flapped and now stand without a change. Those that ended last have their end set
    by time."""
    rows = _FLAPPING.rows()
    if not any(_is_over(fault_type, changes_at, now=now) for fault_type, changes_at in rows):
        return []
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        for case in load_faults(batch, _get_flapping().order_by("fingerprint").select_for_update()):
            if _is_over(case.row.fault_type, case.row.changes_at, now=now):
                _stands(case, batch)
        persist(batch)
        return batch.changes


def _get_flapping() -> QuerySet[Fault]:
    return Fault.objects.active().filter(is_flapping=True, clears_at=None)


_FLAPPING = Prepared(lambda: _get_flapping().values_list("fault_type", "changes_at"))


def _is_over(fault_type: str, changes_at: list[str], *, now: datetime) -> bool:
    limits = get_limits(fault_catalog.load().get(fault_type))
    return flapping.is_over(flapping.read(changes_at), now, limits)


def _stands(case: FaultCase, batch: TriageBatch) -> None:
    row, kind = case.row, batch.catalog.get(case.row.fault_type)
    row.is_flapping, case.is_changed = False, True
    if kind is not None and kind.clears is ClearRule.AFTER_QUIET and kind.quiet is not None:
        row.clears_at = batch.now + kind.quiet
    _tell_steady(case, f"stands since {format_clock(flapping.read(row.changes_at)[-1])}", batch.now)


def _tell_steady(case: FaultCase, what: str, now: datetime) -> None:
    """Once, as its beginning was told."""
    if case.member is not None:
        where = format_resource(case.row.resource)
        text = f"{case.row.fault_type} on {where} no longer flaps: it {what}."
        case.member.entries.append(TimelineNote("steady", text, now))


def _clear(
    due: QuerySet[Fault], now: datetime, ended: Callable[[FaultCase], tuple[datetime, str]]
) -> list[Change]:
    """Clears these faults, under the placement lock, and settles their incidents."""
    batch = TriageBatch(fault_catalog.load(), now)
    ids = list(due.order_by("pk").values_list("pk", flat=True)[:_MOST_AT_ONCE])
    rows = Fault.objects.active().filter(pk__in=ids).order_by("fingerprint").select_for_update()
    for case in load_faults(batch, rows):
        at, reason = ended(case)
        placement.clear_fault(batch, case, at, reason)
    persist(batch)
    return batch.changes + settle(batch.incidents.values(), batch=batch, now=now)


def _end_hold_downs(due: QuerySet[Fault], now: datetime) -> list[Change]:
    """Faults that outlasted their hold-down get their place."""
    batch = TriageBatch(fault_catalog.load(), now)
    held = list(due.order_by("fingerprint").select_for_update()[:_MOST_AT_ONCE])
    machines = grace_periods.load_machines({row.resource for row in held if _get_period(row)}, now)
    rows = _list_no_longer_waiting(held, machines, now)
    cases = load_faults(batch, rows)
    hosts = {resources.host_of(row.owner) for row in rows} - {None}
    batch.nodes = {f"node/{node.name}": node for node in Node.objects.filter(name__in=hosts)}
    load_neighbourhood(batch, {(row.fault_type, row.resource) for row in rows})
    for case in cases:
        case.row.held_until, case.is_changed = None, True
        if _get_period(case.row) and grace_periods.is_over_by_itself(
            case.row, _get_period(case.row), machines
        ):
            placement.clear_fault(
                batch, case, case.row.last_seen_at, "seen only while its machine started"
            )
        elif case.member is None:
            placement.assign_again(batch, case)
        else:  # it came back while its incident was watched, and stays
            case.has_come = case.member.is_unsettled = True
    silences.apply(batch)
    persist(batch)
    unsettled = [case for case in batch.incidents.values() if case.is_unsettled]
    return batch.changes + settle(unsettled, batch=batch, now=now)


def _list_no_longer_waiting(
    held: Iterable[Fault], machines: grace_periods.Machines, now: datetime
) -> list[Fault]:
    """What no boot, no planned work and no overload of our own explains any more.

    The others wait on, without a place to be looked for.
    """
    due: list[Fault] = []
    later: dict[datetime, list[int]] = defaultdict(list)
    is_overloaded = overload.is_suspending(now)
    for row in held:
        until = machines.waits_until(row.resource, _get_period(row), now)
        if until is None and is_overloaded and row.fault_type in UNREACHABLE:
            until = now + overload.ASKED_AGAIN
        if until is None:
            due.append(row)
        else:
            later[until].append(row.pk)
    for until, ids in later.items():
        Fault.objects.filter(pk__in=ids).update(held_until=until)
    return due


def _get_period(row: Fault) -> timedelta:
    kind = fault_catalog.load().get(row.fault_type)
    return kind.boot_grace if kind is not None else timedelta(0)


def _settle_forgotten(now: datetime) -> list[Change]:
    """Incidents that came back to people after their faults had cleared, as when a repair was
    withdrawn."""
    chosen = _FORGOTTEN.values()
    if not chosen:
        return []
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        return settle(load_incidents(batch, chosen), batch=batch, now=now)


def _build_forgotten() -> QuerySet[Incident, Any]:
    unwatched = Incident.objects.filter(
        state__in=(State.OPEN.value, State.ACKNOWLEDGED.value), needs_human=""
    )
    without_faults = unwatched.exclude(members__fault__is_active=True).exclude(
        duplicates__members__fault__is_active=True
    )
    return without_faults.values_list("pk")[:_MOST_AT_ONCE]


_FORGOTTEN = Prepared(_build_forgotten)


def _build_asked_about() -> QuerySet[Incident, Any]:
    asked = Incident.objects.filter(
        state=State.MONITORING.value, needs_human__endswith=_THEN_RESOLVE
    )
    ended = asked.exclude(members__fault__is_active=True)
    return ended.order_by("pk").values_list("pk")[:_MOST_AT_ONCE]


_ASKED_ABOUT = Prepared(_build_asked_about)


def _take_back_ended_asks(now: datetime) -> None:
    """What still stood after the quiet period, and was asked about, has ended: nobody need look,
    and the quiet period counts from its end."""
    text = "What still stood has ended, and nobody is asked any more. The quiet period begins anew."
    for number in _ASKED_ABOUT.values():
        with transaction.atomic():
            asked = Incident.objects.select_for_update().filter(pk=number)
            if asked.filter(needs_human__endswith=_THEN_RESOLVE).first() is not None:
                record(number, kind="standing_over", text=text, now=now, needs_human="")


def _build_watched() -> QuerySet[Incident, Any]:
    is_restored = Q(restored_at__lte=Given("since")) | Q(restored_at=None)
    watched = Incident.objects.filter(is_restored, state=State.MONITORING.value, needs_human="")
    return watched.order_by("pk").values_list("pk")[:_MOST_AT_ONCE]


_WATCHED = Prepared(_build_watched)


def _resolve_quiet_incidents(now: datetime) -> list[Change]:
    """Watched incidents whose quiet period has passed. One that asks a person for something waits
    for the answer."""
    ids = _WATCHED.values(since=now - get_quiet_period())
    if not ids:
        return []
    changes = []
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        for case in load_incidents(batch, ids):
            standing = [f for f in case.members if blocks(f, case.root.row.pk) and f.row.is_active]
            lasting = [fault for fault in standing if fault.row.clears_at is None]
            if lasting:
                _ask_about(case, lasting, batch)
            elif standing or not _is_quiet(case, now):
                continue
            elif isinstance(move(case.row, Trigger.QUIET_ELAPSED, actor=KINTSUGI, now=now), Acted):
                text = f"quiet for {format_duration(get_quiet_period())}"
                changes.append(Change(case.row.pk, case.root.row.pk, ChangeKind.RESOLVED, text))
    return changes


def _is_quiet(case: IncidentCase, now: datetime) -> bool:
    """Whether nothing of it has stood for the quiet period: what came and went within its hold-down
    was no quiet."""
    blocking = [fault.row for fault in case.members if blocks(fault, case.root.row.pk)]
    ended = [row.cleared_at for row in blocking if row.cleared_at is not None]
    return all(at <= now - get_quiet_period() for at in ended)


def _ask_about(case: IncidentCase, standing: list[FaultCase], batch: TriageBatch) -> None:
    """What still stands when all should be over is for a person: nothing but a person knows what it
    belongs to."""
    first = standing[0].row
    more = f" and {len(standing) - 1} more" if len(standing) > 1 else ""
    text = (
        f"After the quiet period this still stands: {batch.format_fault(first)}{more}. It stays"
        " open until a person looks."
    )
    place = batch.format_resource(first.resource)
    asked = f"Look at {place}: {first.fault_type} still stands{more}.{_THEN_RESOLVE}"
    record(case.row.pk, kind="still_standing", text=text, now=batch.now, needs_human=asked)


def _forget(now: datetime) -> None:
    """Ids past their keeping time, in portions: a delete of millions would hold the table."""
    keys = _OLD_EVENTS.values(before=now - dedup.KEPT - timedelta(hours=1))
    if keys:
        with transaction.atomic():
            SeenEvent.objects.filter(key__in=keys).delete()
