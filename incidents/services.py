"""The public face of what is known: everything that other packages may ask of incidents.

Only these functions write; each says what it did as values.
"""

from __future__ import annotations

from incidents.checks.blind_detectors import evaluate_blindness
from incidents.checks.cables import evaluate_cables, record_verdicts
from incidents.checks.clock_steps import get_step_back, move_times_back
from incidents.checks.management_network import evaluate_management_network
from incidents.checks.overload import evaluate_overload
from incidents.checks.own_health import evaluate_own_health
from incidents.checks.rails import evaluate_rails
from incidents.maintenance.active_windows import get_maintained
from incidents.maintenance.reviews import list_due as reviews_due
from incidents.maintenance.slurm_windows import Followed, follow, follow_states
from incidents.maintenance.slurm_windows import sweep as end_silences
from incidents.people.closing import act
from incidents.people.edit import Rearranged, merge, reroot, split
from incidents.people.report import report
from incidents.polling.last_polls import get_last_polls
from incidents.state.transitions import ask, note_withdrawal, record, take_back
from incidents.triage.aggregation import find_ended as conclusions_ended
from incidents.triage.inbox import ingest_waiting, ingest_wires
from incidents.triage.inbox import is_waiting as is_inbox_waiting
from incidents.triage.inbox import read_backlog as read_inbox
from incidents.triage.ingest import get_active_fingerprints, ingest
from incidents.triage.normalisation import EventRefused
from incidents.triage.sweep import record_gpu_reset, record_node_restart, sweep
from incidents.vendor.deadlines import check_deadlines as vendor_cases_due
from incidents.vocabulary.changes import Acted, Change, ChangeKind, Refused

__all__ = [
    "Acted",
    "Change",
    "ChangeKind",
    "EventRefused",
    "Followed",
    "Rearranged",
    "Refused",
    "act",
    "ask",
    "conclusions_ended",
    "end_silences",
    "evaluate_blindness",
    "evaluate_cables",
    "evaluate_management_network",
    "evaluate_overload",
    "evaluate_own_health",
    "evaluate_rails",
    "follow",
    "follow_states",
    "get_active_fingerprints",
    "get_last_polls",
    "get_maintained",
    "get_step_back",
    "ingest",
    "ingest_waiting",
    "ingest_wires",
    "is_inbox_waiting",
    "merge",
    "move_times_back",
    "note_withdrawal",
    "read_inbox",
    "record",
    "record_gpu_reset",
    "record_node_restart",
    "record_verdicts",
    "report",
    "reroot",
    "reviews_due",
    "split",
    "sweep",
    "take_back",
    "vendor_cases_due",
]
