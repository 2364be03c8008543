"""What windows in force mean for incidents: kept from people, and announced once when they outgrow
or outlast it.

The only writer of `Incident.silence`; `Silence` rows are made and changed by
`incidents.maintenance.planning` (people) and `incidents.maintenance.slurm_windows` (Slurm), and end
here. Never hides a fault: everything is recorded as always.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q, QuerySet

from detectors.catalog import catalog as fault_catalog
from incidents.db import upsert
from incidents.db.prepared import Given, Moment, Prepared
from incidents.evaluation.windows import (
    ANSWERED_WITHIN,
    SETTLING,
    Kept,
    Outside,
    Window,
    WindowKind,
    WindowPlace,
    judge,
)
from incidents.inventory import graphs
from incidents.maintenance.active_windows import (
    format_end,
    list_in_force,
    list_settling,
    make_window,
)
from incidents.models import Decision, Fault, Incident, IncidentFault, Silence
from incidents.state import outbox, site_rules
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase, IncidentCase, TimelineNote
from incidents.state.neighbourhood import load_incidents
from incidents.state.persistence import persist
from incidents.text.wording import format_moment
from incidents.vocabulary.changes import KINTSUGI, Change
from incidents.vocabulary.lifecycle import OPEN, State

_OPEN = [state.value for state in OPEN]
_NOT_WATCHED = [state.value for state in OPEN if state is not State.MONITORING]


def get_rule(window: int) -> str:
    """What the decisions of one window have in common."""
    return f"window:{window}"


# Incidents
# ---------------------------------------------------------------------------


def apply(batch: TriageBatch) -> None:
    """Keeps new incidents of this batch that windows cover from people, and announces those that
    outgrew theirs.

    An incident that people know of is kept from them only by a window that begins later.
    """
    cases = [
        case for case in batch.incidents.values() if case.is_new or case.row.silence_id is not None
    ]
    _judge(cases, list_in_force(batch.now) if cases else [], batch)


def end_due(now: datetime) -> list[Change]:
    """Windows whose time has come end or begin: what outlasts the one is announced, what the other
    covers is kept. What waited for a while after its maintenance is announced then."""
    asked = now - ANSWERED_WITHIN
    if not _DUE.values(now=now, asked=asked) and not _SETTLED.values(settled=now - SETTLING):
        return []
    with transaction.atomic():
        upsert.lock_placement()
        _get_due(now, asked).filter(ends_at__lte=now).update(
            ended_at=F("ends_at"), ended_by=KINTSUGI
        )
        _get_due(now, asked).filter(review_at__lte=asked).update(ended_at=now, ended_by=KINTSUGI)
        begun = list(_get_due(now, asked).filter(began_at=None))
        Silence.objects.filter(pk__in=[row.pk for row in begun]).update(began_at=now)
        return reconsider(now, begun=[make_window(row) for row in begun])


def _get_due(now: Moment, asked: Moment) -> QuerySet[Silence]:
    over = Q(ends_at__lte=now) | Q(review_at__lte=asked)
    return Silence.objects.filter(ended_at=None).filter(over | Q(began_at=None, starts_at__lte=now))


_DUE = Prepared(lambda: _get_due(Given("now"), Given("asked")).values_list("pk")[:1])
_SETTLED = Prepared(
    lambda: Incident.objects.filter(
        state__in=_NOT_WATCHED,
        silence__isnull=False,
        silence__ended_at__lte=Given("settled"),
    ).values_list("pk")[:1]
)


def finish(ids: Collection[int], *, by: str, now: datetime) -> int:
    """Ends those of these windows that have not ended, under the placement lock; how many."""
    standing = Silence.objects.filter(pk__in=ids, ended_at=None)
    return standing.update(ended_at=now, ended_by=by[:150])


def reconsider(now: datetime, *, begun: Sequence[Window] = ()) -> list[Change]:
    """Judges all that is kept from people anew, and what they know against the windows that begin.

    In the caller's transaction, under the placement lock.
    """
    kept = set(
        Incident.objects.filter(silence__isnull=False, state__in=_OPEN).values_list("pk", flat=True)
    )
    ids = kept | _find_touched_incidents(begun)
    if not ids:
        return []
    batch = TriageBatch(fault_catalog.load(), now)
    _judge(
        load_incidents(batch, ids),
        list_in_force(now),
        batch,
        begun={window.key for window in begun},
    )
    persist(batch)
    return batch.changes


def _find_touched_incidents(begun: Sequence[Window]) -> set[int]:
    """Incidents that people know of, with a standing fault that one of these covers."""
    if not begun:
        return set()
    peer = graphs.get_current().find_peer
    links = IncidentFault.objects.filter(
        fault__is_active=True, incident__state__in=_OPEN, incident__silence__isnull=True
    ).select_related("fault")
    incidents = set()
    for link in links:
        fault_place = get_place(link.fault, peer)
        if any(window.covers(fault_place) for window in begun):
            incidents.add(link.incident_id)
    return incidents


def get_place(fault: Fault, peer: Callable[[str], str | None]) -> WindowPlace:
    return WindowPlace(fault.fault_type, fault.resource, peer(fault.resource) or "")


def _get_place_of_case(case: FaultCase, peer: Callable[[str], str | None]) -> WindowPlace:
    """What a boot brings by the catalogue may pass by itself after planned work."""
    kind = fault_catalog.load().get(case.row.fault_type)
    place = get_place(case.row, peer)
    if kind is None or not kind.boot_grace:
        return place
    return replace(place, may_pass_since=case.row.raised_at)


def _judge(
    cases: Sequence[IncidentCase],
    windows: Sequence[Window],
    batch: TriageBatch,
    begun: Collection[int] = (),
) -> None:
    is_any_kept = any(case.row.silence_id is not None for case in cases)
    settling = list_settling(batch.now) if is_any_kept else []
    peer = graphs.get_current().find_peer if windows or settling else lambda resource: None
    for case in cases:
        faults = _list_standing(case)
        is_kept = case.row.silence_id is not None
        places = [_get_place_of_case(fault, peer) for fault in faults]
        judged = judge(places, [*windows, *settling] if is_kept else windows, batch.now)
        if isinstance(judged, Kept):
            is_of_window = case.is_new or is_kept
            if judged.window is not None and (is_of_window or judged.window.key in begun):
                _keep(case, judged.window, batch)
        elif isinstance(judged, Outside):
            if is_kept:
                _announce(case, faults[judged.number], batch)
            elif case.is_new:
                case.row.announced_at = batch.now
        elif is_kept and not case.is_watched and not _is_about_to_end(case, windows, settling):
            # No fault stands and yet it is not over: a repair goes on, or a person is asked for
            # something.
            _announce(case, case.root, batch)


def _is_about_to_end(
    case: IncidentCase, windows: Iterable[Window], settling: Iterable[Window]
) -> bool:
    """Whether its window goes on, or has just ended and its faults have too: those of this batch,
    or all but what was concluded from them, which the next sweep ends."""
    if any(window.key == case.row.silence_id for window in windows):
        return True
    is_settling = any(window.key == case.row.silence_id for window in settling)
    has_active_fault = any(fault.row.is_active for fault in case.members)
    return is_settling and (case.is_unsettled or has_active_fault)


def _list_standing(case: IncidentCase) -> list[FaultCase]:
    """The faults that count, the root first. Of a new incident all: what came and went in one batch
    is no less kept. What was concluded of a rack, a feed, a pod or the site says no more than the
    faults of machines that it was concluded from."""
    faults = [fault for fault in case.members if fault.row.is_active or case.is_new]
    if len(case.members) > 1:
        faults = [fault for fault in faults if not _is_of_many_machines(fault.row)]
    return sorted(faults, key=lambda fault: fault is not case.root)


def _is_of_many_machines(fault: Fault) -> bool:
    """Concluded, by a counting rule, of what many machines share."""
    if not fault.owner.startswith(("rack/", "feed/", "pod/", "site/")):
        return False
    return any(rule.concludes == fault.fault_type for rule in site_rules.load_counting_rules())


def _keep(case: IncidentCase, window: Window, batch: TriageBatch) -> None:
    if case.row.silence_id == window.key:
        return
    was_told = case.row.silence_id is None and not case.is_new
    case.row.silence_id, case.is_changed = window.key, True
    origin = f"{window.what} by {window.author} ({window.reason})"
    text = f"Kept from people {format_end(window)}: {origin}."
    if window.kind is WindowKind.MAINTENANCE:
        text += " No repair starts there meanwhile."
    case.entries.append(TimelineNote("silenced", text, batch.now))
    batch.decisions.append(
        _make_decision(Decision.Kind.SILENCED, case, window.key, text, batch.now)
    )
    if was_told:
        outbox.withdraw([case.row.pk or 0])
        outbox.show([case.row.pk or 0], now=batch.now)


def _announce(case: IncidentCase, cause: FaultCase, batch: TriageBatch) -> None:
    """Told once: since when it stands, under which window it was kept, and why it is told now."""
    row = Silence.objects.get(pk=case.row.silence_id or 0)
    window = make_window(row)
    if window.is_in_force(batch.now):
        why = f"{batch.format_fault(cause.row)} is not part of it"
    else:
        ended = window.ended_at or window.ends_at or batch.now
        why = f"that ended {format_moment(ended)}"
        if row.ended_by not in ("", KINTSUGI):
            why = f"{why} by {row.ended_by}"
    since = format_moment(case.row.onset_at)
    keeper = f"{window.what} ({window.author}: {window.reason})"
    text = (
        f"Announced now: it stands since {since} and was kept from people by {keeper}, and {why}."
    )
    case.row.silence = None
    case.row.announced_at = batch.now
    case.is_changed = True
    case.entries.append(TimelineNote("announced", text, batch.now))
    announced = _make_decision(Decision.Kind.ANNOUNCED, case, window.key, text, batch.now)
    batch.decisions.append(announced)


def _make_decision(
    kind: Decision.Kind, case: IncidentCase, window: int, text: str, now: datetime
) -> Decision:
    return Decision(
        incident=case.row, kind=kind, rule=get_rule(window), text=text[:500], recorded_at=now
    )


def count_kept() -> int:
    """How many open incidents are kept from people."""
    return Incident.objects.filter(silence__isnull=False, state__in=_OPEN).count()
