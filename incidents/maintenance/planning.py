"""What people do with windows: plan one, look what it would keep, change it, end it. Each says what
it did, or why not.

Makes and changes `Silence` rows of people; what they mean for incidents is
`incidents.maintenance.silences`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from incidents.db import upsert
from incidents.evaluation.windows import (
    Draft,
    DraftField,
    Kept,
    KnownNames,
    Problem,
    Window,
    WindowPlace,
    get_review_time,
    judge,
    list_problems,
)
from incidents.inventory import graphs
from incidents.maintenance import active_windows, silences
from incidents.models import Decision, Fault, IncidentFault, Node, Silence, Switch
from incidents.text.wording import format_moment
from incidents.topology.topology import expand_typed
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import OPEN

_SHOWN = 20


@dataclass(frozen=True)
class PlannedWindow:
    """It is so from now on; `text` says what, and `incidents` how many are kept from people by it
    now."""

    silence_id: int
    text: str
    incidents: int = 0


@dataclass(frozen=True)
class NotPlanned:
    """Nothing was changed; each problem names its field and what to do."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Preview:
    """What a window would keep from people if it were in force now. `partly`: touched, and told all
    the same."""

    incidents: tuple[tuple[int, str], ...] = ()
    partly: tuple[tuple[int, str], ...] = ()
    incident_count: int = 0
    partly_count: int = 0
    faults: int = 0

    @property
    def text(self) -> str:
        kept = (
            f"{self.faults} active faults and {self.incident_count} open incidents would be kept"
            " from people now."
        )
        if not self.partly_count:
            return kept
        return f"{kept} {self.partly_count} more reach beyond it and would be told all the same."


def get_known_names(fault_type: str = "") -> KnownNames:
    """What patterns can be about: the inventory, what stands now, and the catalogue."""
    catalog = fault_catalog.load()
    standing = set(Fault.objects.active().values_list("resource", "fault_type"))
    machines = {resources.node(name) for name in Node.objects.values_list("name", flat=True)}
    machines |= {resources.switch(name) for name in Switch.objects.values_list("name", flat=True)}
    types = {*catalog.types, *(found for _, found in standing)}
    if catalog.get(fault_type) is not None:
        types.add(fault_type)
    return KnownNames(
        frozenset(machines | {resource for resource, _ in standing}), frozenset(types)
    )


def parse_machines(text: str, there: KnownNames) -> tuple[str, ...]:
    """`gn[001-004],leaf-03` as paths. An unknown name is taken for a node's, and then refused as
    unknown. Raises ValueError with a sentence."""
    names = expand_typed(text)
    return tuple(dict.fromkeys(_get_path(name, there) for name in names))


def _get_path(name: str, there: KnownNames) -> str:
    if "/" in name:
        return name
    choices = (resources.node(name), resources.switch(name))
    return next((path for path in choices if path in there.resources), choices[0])


def list_refusals(draft: Draft, now: datetime) -> list[Problem]:
    """What stands against it, as things are now."""
    return list_problems(draft, get_known_names(draft.fault_type), now)


def plan(draft: Draft, *, author: str, now: datetime) -> PlannedWindow | NotPlanned:
    """Makes the window. It is in force at once when its start has come."""
    found = list_refusals(draft, now)
    if found:
        return NotPlanned(tuple(found))
    with transaction.atomic():
        upsert.lock_placement()
        row = Silence(kind=draft.kind.value, author=author[:150], recorded_at=now)
        row.resource = draft.resource
        row.machines = sorted(draft.machines)
        row.fault_type = draft.fault_type
        row.reason = draft.reason.strip()[:255]
        row.starts_at = draft.starts_at
        row.began_at = now if draft.starts_at <= now else None
        row.ends_at = draft.ends_at
        row.review_at = get_review_time(draft)
        row.save()
        window = active_windows.make_window(row)
        title = f"Window {row.pk}, a {window.what}, {_format_times(row)}"
        text = f"{title}: made by {author} ({row.reason})."
        _remember(row.pk, text, author, now)
        if window.is_in_force(now):
            silences.reconsider(now, begun=[window])
        return PlannedWindow(row.pk, text, row.incidents.count())


def change(
    silence_id: int,
    *,
    ends_at: datetime | None,
    review_at: datetime | None,
    reason: str = "",
    actor: str,
    now: datetime,
) -> PlannedWindow | NotPlanned | Refused:
    """Another end or review: earlier, later, or none. The reason stays when no new one is given."""
    row = Silence.objects.filter(pk=silence_id).first()
    if row is None or row.ended_at is not None:
        return _refuse_ended(silence_id, row)
    if row.origin:
        return Refused(
            f"Window {silence_id} follows Slurm ({row.origin}): change it there, or end it here."
        )
    draft = replace(
        _make_draft(row), ends_at=ends_at, review_at=review_at, reason=reason.strip() or row.reason
    )
    matter = {DraftField.ENDS_AT, DraftField.REVIEW_AT, DraftField.REASON}
    found = [
        problem
        for problem in list_problems(draft, get_known_names(), now)
        if problem.field in matter
    ]
    if found:
        return NotPlanned(tuple(found))
    with transaction.atomic():
        upsert.lock_placement()
        seen = Silence.objects.filter(
            pk=row.pk, ended_at=None, ends_at=row.ends_at, review_at=row.review_at
        )
        values = {
            "ends_at": ends_at,
            "review_at": _get_review_time(draft, now),
            "reason": draft.reason[:255],
        }
        if not seen.update(**values):
            return Refused(
                f"Window {silence_id} was changed by someone else meanwhile; look at it again."
            )
        row.refresh_from_db()
        text = f"Window {row.pk} was changed by {actor}: now {_format_times(row)} ({row.reason})."
        _remember(row.pk, text, actor, now)
        return PlannedWindow(row.pk, text, row.incidents.count())


def end(silence_id: int, *, actor: str, now: datetime) -> PlannedWindow | Refused:
    """Ends the window now. What still stands under it is announced."""
    with transaction.atomic():
        upsert.lock_placement()
        row = Silence.objects.filter(pk=silence_id).first()
        if row is None or not silences.finish([silence_id], by=actor, now=now):
            return _refuse_ended(silence_id, row)
        kept = row.incidents.count()
        silences.reconsider(now)
        announced = kept - row.incidents.count()
        text = (
            f"Window {silence_id} is ended by {actor};"
            f" {announced} incidents that it kept are announced."
        )
        _remember(silence_id, text, actor, now)
        return PlannedWindow(silence_id, text, announced)


def preview(draft: Draft, now: datetime) -> Preview:
    """What it would keep from people, with the windows in force, as if it had begun."""
    window = replace(draft.build_window(), starts_at=now, ends_at=None)
    peer = graphs.get_current().find_peer
    others = active_windows.list_in_force(now)
    places: dict[tuple[int, str], list[WindowPlace]] = defaultdict(list)
    links = IncidentFault.objects.filter(
        fault__is_active=True, incident__state__in=[state.value for state in OPEN]
    )
    for link in links.filter(incident__silence=None).select_related("fault", "incident"):
        incident = (link.incident_id, link.incident.title)
        places[incident].append(silences.get_place(link.fault, peer))
    kept, partly = [], []
    for incident, fault_places in places.items():
        if not any(window.covers(place) for place in fault_places):
            continue
        if isinstance(judge(fault_places, [*others, window], now), Kept):
            kept.append(incident)
        else:
            partly.append(incident)
    active = Fault.objects.active().iterator()
    fault_count = sum(window.covers(silences.get_place(fault, peer)) for fault in active)
    kept_shown = tuple(kept[:_SHOWN])
    partly_shown = tuple(partly[:_SHOWN])
    return Preview(kept_shown, partly_shown, len(kept), len(partly), fault_count)


def get_history(silence_id: int) -> QuerySet[Decision]:
    """What was done with a window, and what it kept."""
    return (
        Decision.objects.filter(rule=silences.get_rule(silence_id))
        .select_related("incident")
        .order_by("id")
    )


def _refuse_ended(silence_id: int, row: Silence | None) -> Refused:
    if row is None:
        return Refused(f"There is no window {silence_id}.")
    row.refresh_from_db()
    when = format_moment(row.ended_at) if row.ended_at is not None else "just now"
    return Refused(f"Window {silence_id} was ended already: {when}, by {row.ended_by}.")


def _make_draft(row: Silence) -> Draft:
    window: Window = active_windows.make_window(row)
    draft = Draft(
        kind=window.kind,
        reason=row.reason,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        review_at=row.review_at,
        may_cover_all=True,
    )
    return replace(
        draft,
        resource=row.resource,
        machines=tuple(row.machines),
        fault_type=row.fault_type,
    )


def _get_review_time(draft: Draft, now: datetime) -> datetime | None:
    """Counted from now: whoever changes a window vouches for it."""
    return get_review_time(replace(draft, starts_at=max(draft.starts_at, now)))


def _format_times(row: Silence) -> str:
    parts = [f"from {format_moment(row.starts_at)}"]
    parts += [f"until {format_moment(row.ends_at)}"] if row.ends_at is not None else []
    parts += (
        [f"with a review on {format_moment(row.review_at)}"] if row.review_at is not None else []
    )
    return ", ".join(parts)


def _remember(window: int, text: str, actor: str, now: datetime) -> None:
    rule = silences.get_rule(window)
    Decision.objects.create(
        kind=Decision.Kind.SILENCED,
        rule=rule,
        text=text[:500],
        actor=actor[:150],
        recorded_at=now,
    )
