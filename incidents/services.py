"""The public face of what is known: everything that other packages may ask of incidents.

Only these functions write; each says what it did as values.
"""

from __future__ import annotations

from incidents.acting import act, record
from incidents.blindness import judged as blind_detectors
from incidents.cable_ends import judged as cable_verdicts
from incidents.cable_ends import say as say_verdicts
from incidents.changes import Acted, Change, ChangeKind, Refused
from incidents.following import Followed, follow, follow_states
from incidents.following import sweep as end_silences
from incidents.gathering import ended as conclusions_ended
from incidents.holding import note_withdrawal
from incidents.ingesting import active_fingerprints, ingest, quarantine
from incidents.items import EventRefused
from incidents.management import judged as management_network
from incidents.rearranging import Rearranged, merge, reroot, split
from incidents.reporting import report
from incidents.reviews import due as reviews_due
from incidents.silencing import maintained
from incidents.slow_rails import judged as slow_rails
from incidents.sweeping import gpus_reset, node_restarted, sweep
from incidents.vendor_watch import due as vendor_cases_due

__all__ = [
    "Acted",
    "Change",
    "ChangeKind",
    "EventRefused",
    "Followed",
    "Rearranged",
    "Refused",
    "act",
    "active_fingerprints",
    "blind_detectors",
    "cable_verdicts",
    "conclusions_ended",
    "end_silences",
    "follow",
    "follow_states",
    "gpus_reset",
    "ingest",
    "maintained",
    "management_network",
    "merge",
    "node_restarted",
    "note_withdrawal",
    "quarantine",
    "record",
    "report",
    "reroot",
    "reviews_due",
    "say_verdicts",
    "slow_rails",
    "split",
    "sweep",
    "vendor_cases_due",
]
