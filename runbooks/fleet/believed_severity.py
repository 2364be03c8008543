"""How grave a run is by what can be believed alone. A text that anybody may have written, beside a
fault that a witness has seen, lets no node go before others where room is short."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, F, OuterRef, Q
from django.db.models.fields.json import KeyTextTransform

from detectors.faults import Severity
from detectors.provenance import BELIEVED
from incidents.db.prepared import Among, Given, Prepared
from incidents.models import Fault, Incident
from runbooks.models import Run
from runbooks.node.witnesses import WITNESSED_SEVERITY

_SEVERITIES = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(membership__incident=Given("incident"), forger__in=BELIEVED)
        .values_list("severity")
    )
)


def get_severity(run: Run) -> Severity:
    """The incident's, where jobs that are hit have raised it or nothing is believed; else the
    gravest of what is believed."""
    incident = run.incident
    known = list_believed(incident)
    if WITNESSED_SEVERITY in run.facts:
        known.append(Severity(run.facts[WITNESSED_SEVERITY]))
    if not known or is_raised_by_jobs(incident):
        return Severity(incident.severity)
    return get_gravest(known)


def list_believed(incident: Incident) -> list[Severity]:
    """Of its standing faults that no user of their machine can have told of."""
    return [Severity(word) for word in _SEVERITIES.values(incident=incident.pk)]


def is_raised_by_jobs(incident: Incident) -> bool:
    """Whether the harm to jobs calls for more than its faults do."""
    own = Severity(incident.own_severity or incident.severity)
    return Severity(incident.severity).rank > own.rank


def get_gravest(severities: Collection[Severity]) -> Severity:
    return max(severities, key=lambda word: word.rank)


def is_among(name: str) -> Q:
    """Of runs that a witness speaks for: that `get_severity` is one of those `Given(name)`, which
    hold whatever is graver than the least of them."""
    given = Given(name)
    faults = Fault.objects.active().filter(membership__incident=OuterRef("incident"))
    believed = faults.filter(forger__in=BELIEVED, severity__among=given)
    has_own = ~Q(incident__own_severity="")
    is_raised = has_own & ~Q(incident__own_severity=F("incident__severity"))
    witnessed = KeyTextTransform(WITNESSED_SEVERITY, "facts")
    is_seen = Q(Among(witnessed, given))
    return Q(incident__severity__among=given) & (is_raised | is_seen | Q(Exists(believed)))
