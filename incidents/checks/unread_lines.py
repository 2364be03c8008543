"""Lines that no signature takes, kept as templates with their machines. Receivers and pollers write
them; nothing here raises a fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Greatest, Least

from detectors import resources
from detectors.logs.unread import UnreadLine, key_of, merge
from incidents.models import Incident, UnreadOnMachine, UnreadTemplate

# A form that was not seen for so long is forgotten (our choice: a quarter's patches change logs).
KEPT_FOR = timedelta(days=90)
# Rows; those that were not seen for longest go first. Whoever invents lines fills no table.
MOST_TEMPLATES = 2_000
MOST_MACHINES = 200
_MOST_SAMPLES = 3
# Lines so long before an incident began are shown beside it (our choice: what leads to a fault is
# mostly printed within minutes, and polls see it minutes later).
BEFORE = timedelta(minutes=15)
_MOST_MEMBERS = 200


@dataclass(frozen=True)
class UnreadSighting:
    """Unread lines of one template on one machine, shown beside an incident there."""

    key: str
    program: str
    template: str
    machine: str
    count: int
    first_at: datetime
    last_at: datetime
    sample: str


def record(lines: Sequence[UnreadLine], now: datetime) -> None:
    """Adds to what is known of each template and machine. Times are those at which we heard of it,
    since a line may claim any."""
    if not lines:
        return
    with transaction.atomic():
        known = _Templates({line.program for line in lines})
        # In one order everywhere, so that two writers never wait for each other.
        for line in sorted(lines, key=lambda line: (*line.identity[1:], line.host)):
            template = known.find(line.program, line.template)
            if template is None:
                template = known.add(line, now)
            else:
                _add_to_template(template, line, now)
            _add_to_machine(template, line, now)
        _forget_old(now)


class _Templates:
    """Those of some programs, as `record` meets them."""

    def __init__(self, programs: Collection[str]) -> None:
        self._by_program: dict[str, list[UnreadTemplate]] = {name: [] for name in programs}
        rows = UnreadTemplate.objects.filter(program__in=programs).order_by("program", "key")
        for row in rows.select_for_update():
            self._by_program[row.program].append(row)

    def find(self, program: str, template: str) -> UnreadTemplate | None:
        """The row of this form. One of a like form becomes that of both."""
        rows = self._by_program[program]
        for row in rows:
            if row.template == template:
                return row
        for row in rows:
            both = merge(row.template, template)
            if both is None:
                continue
            if both != row.template:
                row.template = both
                row.save(update_fields=["template"])
            return row
        return None

    def add(self, line: UnreadLine, now: datetime) -> UnreadTemplate:
        defaults = {
            "program": line.program,
            "template": line.template,
            "severity": line.severity,
            "count": line.count,
            "first_at": now,
            "last_at": now,
            "samples": [line.sample],
        }
        key = key_of(line.program, line.template)
        row, is_new = UnreadTemplate.objects.get_or_create(key=key, defaults=defaults)
        if not is_new:  # another receiver wrote it meanwhile
            _add_to_template(row, line, now)
        self._by_program[line.program].append(row)
        return row


def _add_to_template(row: UnreadTemplate, line: UnreadLine, now: datetime) -> None:
    samples = row.samples
    if line.sample not in samples:
        samples = [*samples[: _MOST_SAMPLES - 1], line.sample]
    row.samples = samples
    severities = [severity for severity in (row.severity, line.severity) if severity is not None]
    row.severity = min(severities, default=None)
    UnreadTemplate.objects.filter(pk=row.pk).update(
        severity=row.severity, samples=samples, **_count_up(line, now)
    )


def _count_up(line: UnreadLine, now: datetime) -> dict[str, Any]:
    """What each sighting changes of a row; two receivers may count at once."""
    return {"count": F("count") + line.count, "last_at": Greatest(F("last_at"), now)}


def _add_to_machine(template: UnreadTemplate, line: UnreadLine, now: datetime) -> None:
    machines = UnreadOnMachine.objects.filter(template=template)
    known = machines.filter(machine=line.host)
    first_at = Least(F("first_at"), now)
    changed = known.update(first_at=first_at, sample=line.sample, **_count_up(line, now))
    if changed or machines.count() >= MOST_MACHINES:
        return
    UnreadOnMachine.objects.get_or_create(
        template=template,
        machine=line.host,
        defaults={
            "count": line.count,
            "first_at": now,
            "last_at": now,
            "sample": line.sample,
        },
    )


def _forget_old(now: datetime) -> None:
    UnreadTemplate.objects.filter(last_at__lt=now - KEPT_FOR).delete()
    excess = UnreadTemplate.objects.count() - MOST_TEMPLATES
    if excess > 0:
        oldest = UnreadTemplate.objects.order_by("last_at", "pk").values_list("pk", flat=True)
        UnreadTemplate.objects.filter(pk__in=list(oldest[:excess])).delete()


def list_templates(words: Iterable[str] = ()) -> QuerySet[UnreadTemplate]:
    """With `machine_count`, the newest first. All words stand in program, template or the name of
    a machine."""
    found = UnreadTemplate.objects.all()
    for word in words:
        on_machine = UnreadOnMachine.objects.filter(machine=word.lower()).values("template")
        found = found.filter(
            Q(program__icontains=word) | Q(template__icontains=word) | Q(pk__in=on_machine)
        )
    return found.annotate(machine_count=Count("machines")).order_by("-first_at", "-pk")


def get_sightings(
    machines: Collection[str], since: datetime, until: datetime, *, most: int = 10
) -> list[UnreadSighting]:
    """What these machines said within a time that nobody reads, the last first."""
    rows = UnreadOnMachine.objects.filter(
        machine__in=machines, last_at__gte=since, first_at__lte=until
    ).select_related("template")
    return [_make_sighting(row) for row in rows.order_by("-last_at", "-pk")[:most]]


def get_sightings_beside(incident: Incident, now: datetime) -> list[UnreadSighting]:
    """What the machines of an incident said while it stood, and shortly before."""
    members = incident.members.order_by("pk").values_list("fault__resource", flat=True)
    machines = {_get_machine(path) for path in members[:_MOST_MEMBERS]}
    return get_sightings(machines, incident.onset_at - BEFORE, incident.closed_at or now)


def _get_machine(path: str) -> str:
    return resources.short_host(path.split("/", 2)[1])


def _make_sighting(row: UnreadOnMachine) -> UnreadSighting:
    template = row.template
    return UnreadSighting(
        template.key,
        template.program,
        template.template,
        row.machine,
        count=row.count,
        first_at=row.first_at,
        last_at=row.last_at,
        sample=row.sample,
    )
