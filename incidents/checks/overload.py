"""Whether Kintsugi itself comes too late to be able to say who is silent. Reads only.

A manager that waits for a processor, or whose own link is down, times out on machines that have
answered. So while its own polls are late or it reaches nothing at all, nothing is concluded from
silence: one fault of its own says so. It stands on no machine of the site, so no repair waits for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from detectors import resources
from detectors.faults import EventKind, FaultEvent
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Prepared
from incidents.faults.fault_views import SILENT_TARGET
from incidents.models import Fault, Node, Poll, PollChunk, Switch
from incidents.polling.polling import LEASE

OVERLOADED = "kintsugi.overloaded"
RESOURCE = "kintsugi/polls"
# Our choice: half of the usual period of polls; and so many that it is not one detector's own
# trouble.
LATE = timedelta(seconds=30)
LATE_SHARE = 0.1
FEWEST = 3
# After a stop everything is overdue, and caught up with within a period and a half
# (incidents.polling.polling).
_CATCHES_UP = timedelta(minutes=3)
# Our choice, measured on two cores: beside eight busy loops a second of Kintsugi's work took 10 to
# 20, and switches began to seem silent at 8; without them it took 1 to 3.
SLOW, STEADY = 5.0, 3.0
# As long as the hold-down of a target that does not answer: two rounds of polls, in which whoever
# answers has answered.
ASKED_AGAIN = timedelta(minutes=2)
_MOST = 5000

Asked = Callable[[Sequence[str]], Collection[str] | None]
"""Which of these nodes Slurm hears; None when Slurm cannot be asked."""


@dataclass(frozen=True)
class Pace:
    """How this process gets on. `second_takes`: what a second of its computing has taken lately, in
    seconds; None when it is not known (yet)."""

    second_takes: float | None
    up_for: timedelta = timedelta(0)


UNHINDERED = Pace(1.0)


def is_suspending(now: datetime) -> bool:
    """Whether silence says nothing now: while the overload stands, and until everything was asked
    again."""
    lasts = Q(is_active=True) | Q(cleared_at__gt=now - ASKED_AGAIN)
    return Fault.objects.filter(lasts, fault_type=OVERLOADED).exists()


def evaluate_overload(now: datetime, *, pace: Pace, hears: Asked) -> list[FaultEvent]:
    """The beginning or the end of the overload, if this is either."""
    is_active = bool(_STANDING.values())
    reason = _format_reason(now, pace, hears, is_active=is_active)
    if reason and not is_active:
        return [_make_event(EventKind.RAISED, reason, now)]
    if is_active and not reason and pace.second_takes is not None:
        return [_make_event(EventKind.CLEARED, "its polls are in time again", now)]
    return []


def _format_reason(now: datetime, pace: Pace, hears: Asked, *, is_active: bool) -> str:
    """What makes its judgement of silence worthless, for people; empty when nothing does."""
    lag = _poll_lag(now) if pace.up_for > _CATCHES_UP else None
    if lag is not None:
        slowness = _format_slowness(pace)
        return (
            f"Kintsugi's own polls begin up to {lag.total_seconds():.0f} s late{slowness}. Until"
            " it has caught up it takes no machine's silence for a fault. Give its machine more"
            " processors or less other work; see what runs there (top), and that its poll workers"
            " run."
        )
    if _is_slow(pace, is_active=is_active):
        return (
            f"Kintsugi waits for a processor: what should take it 1 s takes {pace.second_takes:.0f}"
            " s, and answers time out at its end. Until that is over it takes no machine's silence"
            " for a fault. Give its machine more processors or less other work; see what runs"
            " there (top)."
        )
    return _format_isolation(hears)


def _is_slow(pace: Pace, *, is_active: bool) -> bool:
    """It begins when anybody seems silent, and lasts as long as we are slow, whoever answers
    meanwhile."""
    if pace.second_takes is None:
        return False
    if is_active:
        return pace.second_takes >= STEADY
    return pace.second_takes >= SLOW and _is_any_target_silent()


def _format_slowness(pace: Pace) -> str:
    if pace.second_takes is None or pace.second_takes < STEADY:
        return ""
    return f", and what should take it 1 s takes {pace.second_takes:.0f} s"


def _poll_lag(now: datetime) -> timedelta | None:
    """By how much the latest poll begins too late; None while few do. A chunk counts as many polls
    as it has targets.

    One under way is as late as it was taken: how long its target takes to answer is not our
    lateness.
    """
    starts = []
    total = 0
    chunks = PollChunk.objects.values_list("next_poll_at", "leased_until", "size")
    for due_at, leased_until, size in chunks:
        total += size
        starts.append((_poll_start(leased_until, now) - due_at, size))
    overdue = Poll.objects.filter(next_poll_at__lte=now - LATE)
    for poll in overdue.defer("memory")[:_MOST]:
        if poll.next_poll_at is not None:
            starts.append((_poll_start(poll.leased_until, now) - poll.next_poll_at, 1))
    late = [(lag, size) for lag, size in starts if lag > LATE]
    count = sum(size for _, size in late)
    if count < FEWEST or count <= LATE_SHARE * total:
        return None
    return max(lag for lag, _ in late)


def _poll_start(leased_until: datetime | None, now: datetime) -> datetime:
    """When a poll was taken; now, if nobody has taken it."""
    if leased_until is None or leased_until <= now:
        return now
    return leased_until - LEASE


def _is_any_target_silent() -> bool:
    """Whether there is any silence that could be taken for a fault."""
    silent = Poll.objects.filter(next_poll_at__isnull=False, failures__gt=0)
    return silent.exists() or _get_silent_targets().exists()


def _get_silent_targets() -> QuerySet[Fault]:
    return Fault.objects.active().filter(fault_type=SILENT_TARGET)


_STANDING = Prepared(
    lambda: Fault.objects.active().filter(fault_type=OVERLOADED).values_list("pk")[:1]
)
_SILENT_OWNERS = Prepared(lambda: _get_silent_targets().values_list("owner"))


def _format_isolation(hears: Asked) -> str:
    """Most of all that it asks, by every way, Slurm's too: then it is not the others who are
    silent."""
    owners = set(_SILENT_OWNERS.values())
    if len(owners) < FEWEST:
        return ""
    nodes = Node.objects.inventoried().count()
    switches = Switch.objects.inventoried().count()
    silent_nodes = sorted(
        host for owner in owners if (host := resources.host_of(owner)) is not None
    )
    silent_switches = len(owners) - len(silent_nodes)
    if not nodes or not switches:
        return ""
    if len(silent_nodes) * 2 <= nodes or silent_switches * 2 <= switches:
        return ""
    if hears(silent_nodes) is not None:
        return ""
    return (
        f"Kintsugi reaches almost nothing: {len(silent_nodes)} of {nodes} nodes and"
        f" {silent_switches} of {switches} switches do not answer it, nor does Slurm. Until one of"
        " them does it takes no machine's silence for a fault. Look at its own machine and at its"
        " link."
    )


def _make_event(kind: EventKind, text: str, now: datetime) -> FaultEvent:
    return make_conclusion(kind, OVERLOADED, RESOURCE, text=text, now=now)


def get_active_overload() -> Sequence[tuple[datetime, str]]:
    """Since when the overload stands, and what was said of it; for the console."""
    notices = []
    for fault in Fault.objects.active().filter(fault_type=OVERLOADED):
        evidence = fault.evidence.order_by("-occurred_at").first()
        notices.append((fault.raised_at, evidence.excerpt if evidence else ""))
    return notices
