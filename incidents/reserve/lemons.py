"""Lemons: machines and parts that break again and again, where each single repair looked like the
last one.

The idea is of "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (arXiv
2410.21680, section on lemon nodes): few nodes that no single failure condemns fail jobs over and
over, and are found by counting their failures, Xids, tickets and days out over four weeks. Its
thresholds were tuned on its own clusters and are not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from detectors.faults import Action, Component, Recovery
from incidents.db.prepared import Given, Prepared
from incidents.models import Incident, InService, Node, Quarantine
from incidents.state.transitions import record
from incidents.text.wording import format_resource_path as said
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import State

# Four weeks: the span over which the paper looks at a node.
WITHIN = timedelta(days=28)
# Our choice: one more than the ladder (docs/runbooks.md) takes two repairs for, after which the
# hardware is suspect. A part is told by its serial, so two are enough: what else of the
# machine could be it is left out.
INCIDENTS_OF_A_NODE = 3
INCIDENTS_OF_A_PART = 2
# Parts that wear and break. A network's trouble shows on many machines, a setting's heals with the
# setting.
_HARDWARE = (Component.GPU, Component.NVLINK, Component.NIC, Component.NODE)
_REPAIRS = tuple(str(action) for action in Action if action.at_least(Action.RESET_GPU))
_NO_FAILURE = (State.FALSE_POSITIVE.value, State.DUPLICATE.value)
_NO_HARDWARE = (str(Recovery.CONFIG_CHANGE), str(Recovery.SWITCH_RESTART))


@dataclass(frozen=True)
class Lemon:
    """What broke again and again: a machine, or a part by its serial. `incidents` are the numbers,
    oldest first."""

    resource: str
    serial: str
    incidents: tuple[int, ...]
    since_at: datetime
    why: str


@dataclass(frozen=True)
class Breakage:
    """One incident with a hardware cause, and the serial of the part that was there then (empty:
    not known).

    `is_replaced`: that part has left since, so that it speaks against the machine no longer.
    """

    incident: int
    owner: str
    resource: str
    onset_at: datetime
    serial: str = ""
    is_replaced: bool = False


def is_lemon(node: str, now: datetime) -> Lemon | None:
    """Whether the machine is one, by the incidents of the last four weeks; a part that left does
    not count."""
    found = find_lemons(_load_breakages(now, owner=f"node/{node}"))
    return next((lemon for lemon in found if not lemon.serial), None)


def list_lemons(now: datetime) -> list[Lemon]:
    """All machines and parts that are, those with the most incidents first. Two queries."""
    found = find_lemons(_load_breakages(now))
    found.sort(key=lambda lemon: (-len(lemon.incidents), lemon.resource, lemon.serial))
    return found


def find_lemons(breakages: Iterable[Breakage]) -> list[Lemon]:
    """The rule. Pure: the breakages are those of the last four weeks."""
    by_machine: dict[str, list[Breakage]] = {}
    by_part: dict[str, list[Breakage]] = {}
    by_onset = sorted(breakages, key=lambda breakage: (breakage.onset_at, breakage.incident))
    for breakage in by_onset:
        if not breakage.is_replaced:
            by_machine.setdefault(breakage.owner, []).append(breakage)
        if breakage.serial:
            by_part.setdefault(breakage.serial, []).append(breakage)
    found = []
    for owner, rows in by_machine.items():
        if len(rows) >= INCIDENTS_OF_A_NODE:
            found.append(_make_lemon(owner, "", rows))
    for serial, rows in by_part.items():
        if len(rows) >= INCIDENTS_OF_A_PART:
            found.append(_make_lemon(rows[-1].resource, serial, rows))
    return found


def _make_lemon(resource: str, serial: str, rows: Sequence[Breakage]) -> Lemon:
    what = f"part {serial}" if serial else said(resource)
    numbers = ", ".join(f"#{row.incident}" for row in rows)
    why = (
        f"{len(rows)} incidents with a hardware cause within {WITHIN.days} days speak against"
        f" {what}: {numbers}"
    )
    return Lemon(resource, serial, tuple(row.incident for row in rows), rows[0].onset_at, why)


def _get_breakages() -> QuerySet[Incident]:
    rows = Incident.objects.filter(
        component__in=[str(component) for component in _HARDWARE],
        action__in=_REPAIRS,
        owner__startswith="node/",
        onset_at__gt=Given("since"),
        onset_at__lte=Given("now"),
    )
    return rows.exclude(state__in=_NO_FAILURE).exclude(recovery__in=_NO_HARDWARE)


_COLUMNS = ("pk", "owner", "root_resource", "onset_at")
_BREAKAGES = Prepared(lambda: _get_breakages().values_list(*_COLUMNS))
_BREAKAGES_OF = Prepared(
    lambda: _get_breakages().filter(owner=Given("owner")).values_list(*_COLUMNS)
)
_STAYS = Prepared(lambda: InService.objects.filter(slot__among=Given("slots")))


def _load_breakages(now: datetime, owner: str = "") -> list[Breakage]:
    since = now - WITHIN
    if owner:
        found = _BREAKAGES_OF.rows(since=since, now=now, owner=owner)
    else:
        found = _BREAKAGES.rows(since=since, now=now)
    slots = {slot for _, _, slot, _ in found}
    stays: dict[str, list[InService]] = {}
    for stay in _STAYS.objects(slots=slots) if slots else ():
        stays.setdefault(stay.slot, []).append(stay)
    breakages = []
    for number, machine, slot, onset_at in found:
        breakages.append(_make_breakage(number, machine, slot, onset_at, stays.get(slot, ())))
    return breakages


def _make_breakage(
    number: int, machine: str, slot: str, at: datetime, stays: Iterable[InService]
) -> Breakage:
    for stay in stays:
        is_replaced = stay.to_at is not None
        if stay.from_at <= at and (stay.to_at is None or stay.to_at > at):
            return Breakage(number, machine, slot, at, serial=stay.serial, is_replaced=is_replaced)
    return Breakage(number, machine, slot, at)


_QUARANTINED = Prepared(lambda: Quarantine.objects.filter(ended_at=None).values_list("node__name"))


def get_quarantined() -> set[str]:
    """The nodes that are set aside: nothing is started on them by itself."""
    return set(_QUARANTINED.values())


def quarantine(node: str, *, incident_id: int | None, reason: str, now: datetime) -> None:
    """Sets the node aside until a person ends that. Twice is once."""
    row = Node.objects.get(name=node)
    try:
        with transaction.atomic():
            Quarantine.objects.create(
                node=row, incident_id=incident_id, reason=reason[:255], began_at=now
            )
    except IntegrityError:  # it is set aside already
        return


def release(quarantine_id: int, *, actor: str, why: str, now: datetime) -> str | Refused:
    """Ends a quarantine. The node's drain stays: whoever ends it brings it back. The sentence that
    was told."""
    if not why.strip():
        return Refused("Say what was done to the machine: whoever sees it break again will ask.")
    with transaction.atomic():
        values = {"ended_at": now, "ended_by": actor[:150], "ended_why": why.strip()[:255]}
        if Quarantine.objects.filter(pk=quarantine_id, ended_at=None).update(**values) != 1:
            return Refused(f"There is no quarantine {quarantine_id}, or it has ended.")
        row = Quarantine.objects.select_related("node").get(pk=quarantine_id)
        text = (
            f"{row.node.name} is no longer set aside as a lemon, by {actor}: {why.strip()} It stays"
            " drained."
        )
        if row.incident_id is not None:
            record(row.incident_id, kind="quarantine_ended", text=text, actor=actor, now=now)
    return text
