"""Makes the events that Kintsugi concludes from several faults; no single machine told them. Reads
the catalogue alone.

What is counted, and when it concludes: `incidents.triage.aggregation`, by the rows of gather.toml.
"""

from __future__ import annotations

from datetime import datetime

from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent, event_id
from detectors.provenance import Forger, Provenance, Transport

# The attribute of a concluded event that names its rule.
CONCLUDED_BY = "rule"
# What is seen of ourselves; what is concluded of others is worth what was told of them.
OWN = Provenance("kintsugi", Transport.CONCLUDED, forger=Forger.NOBODY)
_FROM = {
    False: Provenance("kintsugi", Transport.CONCLUDED),
    True: Provenance("kintsugi", Transport.CONCLUDED, forger=Forger.ROOT),
}


def make_conclusion(
    kind: EventKind,
    fault_type: str,
    resource: str,
    *,
    text: str,
    now: datetime,
    qualifier: str = "",
    is_believed: bool = False,
) -> FaultEvent:
    """Of the type's own severity, action and component; `text` is its evidence, for people.
    `is_believed`: what was measured alone would be enough for it."""
    identity = event_id("concluded", fault_type, resource, qualifier, kind, now.isoformat())
    is_about_ourselves = resource.startswith("kintsugi/")
    provenance = OWN if is_about_ourselves else _FROM[is_believed]
    return catalog.load()[fault_type].create_event(
        identity,
        kind,
        resource,
        source="poll",
        at=now,
        qualifier=qualifier,
        excerpt=text,
        provenance=provenance,
    )
