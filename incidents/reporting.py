"""What people tell: a user's report opens an incident, or joins the one that stands on the same machine."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from detectors import catalog as fault_catalog
from detectors import resources
from detectors.catalog import FaultType
from detectors.faults import Role, fingerprint
from incidents import naming, silencing, upsert
from incidents.board import Board, new_fault, window
from incidents.cases import FaultCase, IncidentCase
from incidents.correlate import Joins
from incidents.ingesting import add_provisional
from incidents.items import EventRefused
from incidents.lifecycle import State
from incidents.models import Fault, Incident, TimelineEntry, UserReport
from incidents.notify import outbox
from incidents.views import USER_REPORT

_LONGEST_TEXT = 10_000


def report(
    *, author: str, text: str, resource: str, fault_type: str = USER_REPORT, occurred_at: datetime, now: datetime
) -> Incident:
    """Takes a user's report and answers with the incident it belongs to.

    `resource` may be any name the inventory knows; `fault_type` is one of the catalogue's, `report.user` when the
    reporter did not choose. Raises EventRefused, a ValueError, saying what is wrong with the report.
    """
    kind = fault_catalog.load().get(fault_type)
    if kind is None:
        raise EventRefused(f"{fault_type} is no fault type of the catalogue; leave it out if you are not sure")
    if not text.strip():
        raise EventRefused("a report needs a sentence that says what was seen")
    if occurred_at > now:
        raise EventRefused("the time of the report lies in the future")
    with transaction.atomic():
        upsert.lock_placement()
        board = Board(fault_catalog.load(), now)
        case = _reported(board, kind, resource, occurred_at, text)
        incident = case.member or board.open(case, f"reported by {author}", None)
        incident.row.has_user_report, incident.is_changed = True, True
        if incident.is_new and case.is_new:
            incident.row.has_platform_signal = False  # whatever type the reporter chose: nothing but people told it
        silencing.apply(board)
        board.write()
        _write_down(incident.row, author=author, text=text, resource=case.row.resource, at=occurred_at, now=now)
    return incident.row


def _reported(board: Board, kind: FaultType, name: str, occurred_at: datetime, text: str) -> FaultCase:
    """The fault that the report speaks of, placed: the one that stands already, or a new one."""
    names = naming.load({name})
    resource = names.resolve(name)
    owner = resources.owner(resource)
    add_provisional(names, {owner})
    board.nodes = {f"node/{node.name}": node for node in names.nodes.values()}
    mark = fingerprint(resource, kind.id)
    _end_what_was_closed(mark, board.now)
    standing = board.take(Fault.objects.filter(fingerprint=mark, is_active=True).select_for_update())
    board.read_neighbourhood({(kind.id, resource)})
    if standing:
        standing[0].added += 1
        standing[0].excerpts.append(("report", occurred_at, text[:_LONGEST_TEXT]))
        return standing[0]
    row = new_fault(kind, fingerprint=mark, resource=resource, qualifier="")
    row.component, row.severity, row.action = str(kind.component), str(kind.severity), str(kind.action)
    row.raised_at = row.last_seen_at = occurred_at
    row.observed_at = row.recorded_at = board.now
    case = FaultCase(row, opens_incident=True, is_sympathetic=False, is_new=True, added=1)
    case.excerpts.append(("report", occurred_at, text[:_LONGEST_TEXT]))
    board.faults[mark] = case
    _place(board, case)
    return case


def _end_what_was_closed(mark: str, now: datetime) -> None:
    """A false positive leaves its fault standing, so that no poll opens it again. A person who tells it again does."""
    closed = Fault.objects.filter(fingerprint=mark, is_active=True, membership__incident__state=State.FALSE_POSITIVE)
    Fault.objects.filter(pk__in=list(closed.values_list("pk", flat=True))).update(
        is_active=False, cleared_at=now, cleared_reason="reported again after its incident was closed"
    )


def _place(board: Board, case: FaultCase) -> None:
    """A report joins what stands on its machine, whatever its type; only without such an incident it is placed."""
    same = [incident for incident in board.incidents.values() if incident.row.owner == case.row.owner]
    near = [incident for incident in same if _is_meant(incident, case)]
    if near:
        nearest = min(near, key=lambda incident: abs(incident.row.onset_at - case.row.raised_at))
        reason = f"a user reported trouble on {case.row.owner.partition('/')[2]}"
        board.join(case, nearest, Joins(nearest.key, Role.SYMPTOM, "user_report", reason))
    else:
        board.settle_in(case)


def _is_meant(incident: IncidentCase, case: FaultCase) -> bool:
    """People tell late: what still stands is what they mean, such as a GPU that a reboot did not bring back."""
    is_standing = any(fault.row.is_active for fault in incident.members)
    return is_standing or abs(incident.row.onset_at - case.row.raised_at) <= window()


def _write_down(incident: Incident, *, author: str, text: str, resource: str, at: datetime, now: datetime) -> None:
    UserReport.objects.create(
        incident=incident,
        author=author[:150],
        text=text[:_LONGEST_TEXT],
        resource=resource,
        reported_at=at,
        recorded_at=now,
    )
    entry = TimelineEntry.objects.create(
        incident=incident,
        kind="user_report",
        actor=author[:150],
        text=f"Reported by {author}: {text[:_LONGEST_TEXT].strip()}",
        occurred_at=at,
        recorded_at=now,
    )
    outbox.enqueue([entry], now=now)
