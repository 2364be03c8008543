"""Whether Kintsugi itself is well: parts that fell silent, events that wait, disks that fill. Reads
only.

Evaluated by the sweep, and by another process while nothing sweeps: a beat that died must not take
the news of its death with it. Whatever is read here stands in the database, so any process may.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detectors.faults import EventKind, FaultEvent
from detectors.receivers.delivery import Backlog
from incidents.checks import own_health_texts as texts
from incidents.checks.heartbeats import is_fresh, is_witness, list_latest
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Prepared
from incidents.models import Fault, Heartbeat, PeriodicTask
from incidents.text.wording import format_moment

PART_SILENT = "kintsugi.part_silent"
INBOX_OLD = "kintsugi.inbox_old"
SPOOL_OLD = "kintsugi.spool_old"
DISK_FULL = "kintsugi.disk_full"
CLOCK_APART = "kintsugi.clock_apart"
DATABASE_SLOW = "kintsugi.database_slow"
REDIS_REFUSES = "kintsugi.redis_refuses"
FAULT_TYPES = (
    *(PART_SILENT, INBOX_OLD, SPOOL_OLD, DISK_FULL, CLOCK_APART, DATABASE_SLOW),
    REDIS_REFUSES,
)
# The claim of this evaluation among processes (incidents.checks.periodic_tasks).
TASK = "own_health"
_UNDONE_AFTER = timedelta(seconds=30)
# Our choice: a batch waits for milliseconds where a worker is free. It ends at half, so that a
# worker that just keeps up does not make it come and go.
OLD_AFTER, OLD_UNTIL = timedelta(seconds=60), timedelta(seconds=30)
# What a spool may still grow by while the database is away (detectors.receivers.syslog,
# MAX_SPOOL_BYTES); of a small file system a tenth (our choice). It ends a quarter above that.
_ROOM_BYTES, _ROOM_SHARE, _ROOM_AGAIN = 2 * 1024**3, 0.1, 1.25
# Our choice: NTP keeps machines of one site within milliseconds, and lines of two machines are put
# in order by seconds. It ends at a fifth.
APART, TOGETHER = timedelta(seconds=5), timedelta(seconds=1)
# Our choice: a row is written within milliseconds; a run's lease (5 s, runbooks.lease.lease) is
# renewed every second.
SLOW_WRITE_S, QUICK_WRITE_S = 1.0, 0.5
_STANDING = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(fault_type__in=FAULT_TYPES)
        .values_list("fault_type", "resource", "qualifier")
    )
)
_INBOX = ("kintsugi/inbox", "")
_DATABASE = ("kintsugi/database", "")
_REDIS = ("kintsugi/redis", "")
# Our choice: a restart of Redis takes seconds.
_REFUSES_FOR = timedelta(seconds=30)

Place = tuple[str, str]
"""Resource and qualifier of a fault."""


@dataclass(frozen=True)
class _Finding:
    """What was found of one fault type: a text for each place that is bad, and one for each that is
    good. What stands at an undecided place goes on standing."""

    fault_type: str
    bad: dict[Place, str] = field(default_factory=dict)
    good: dict[Place, str] = field(default_factory=dict)
    undecided: set[Place] = field(default_factory=set)


def evaluate_own_health(now: datetime, *, inbox: Backlog) -> list[FaultEvent]:
    """The beginnings and the ends of Kintsugi's faults of its own, of the types here."""
    rows = list_latest()
    findings = [_evaluate_parts(rows, now), _evaluate_inbox(rows, inbox, now)]
    findings += [_evaluate_spools(rows, now), _evaluate_disks(rows, now)]
    findings += [_evaluate_clocks(rows, now), _evaluate_database(rows, now)]
    findings.append(_evaluate_redis(rows, now))
    standing: dict[str, set[Place]] = defaultdict(set)
    for fault_type, *place in _STANDING.rows():
        standing[fault_type].add((place[0], place[1]))
    events = []
    for finding in findings:
        events += _make_events(finding, standing[finding.fault_type], now)
    return events


def is_done(now: datetime) -> bool:
    """Whether some process has evaluated it lately."""
    return PeriodicTask.objects.filter(name=TASK, began_at__gt=now - _UNDONE_AFTER).exists()


def has_silent_worker(queue: str, now: datetime) -> bool:
    """Whether all workers that served this queue are silent: what follows is told by that fault."""
    return _is_unserved(queue, list_latest(), now)


def describe_silence(row: Heartbeat, rows: Sequence[Heartbeat], now: datetime) -> str:
    """What is said of a part that has fallen silent; `rows`: all parts."""
    same_part = [other for other in rows if other.part == row.part and is_fresh(other, now)]
    same_process = [other for other in rows if (other.host, other.pid) == (row.host, row.pid)]
    return texts.describe_silence(
        row,
        now,
        hosts=[other.host for other in same_part],
        is_embedded=len(same_process) > 1,
    )


def list_standing() -> list[tuple[datetime, str]]:
    """Since when each of them stands, and what was said of it; for the console."""
    faults = Fault.objects.active().filter(fault_type__in=FAULT_TYPES).order_by("raised_at")
    found = []
    for fault in faults:
        last = fault.evidence.order_by("-occurred_at").first()
        found.append((fault.raised_at, last.excerpt if last is not None else ""))
    return found


def _make_events(finding: _Finding, standing: set[Place], now: datetime) -> list[FaultEvent]:
    """Only what changes: a fault that stands is not told again."""
    begun = {place: text for place, text in finding.bad.items() if place not in standing}
    ended = {place: text for place, text in finding.good.items() if place in standing}
    for place in standing - finding.bad.keys() - finding.good.keys() - finding.undecided:
        ended[place] = "that process has been gone for a day and is no longer part of the site"
    return [
        *_make_conclusions(EventKind.RAISED, finding.fault_type, begun, now),
        *_make_conclusions(EventKind.CLEARED, finding.fault_type, ended, now),
    ]


def _make_conclusions(
    kind: EventKind, fault_type: str, texts: Mapping[Place, str], now: datetime
) -> list[FaultEvent]:
    return [
        make_conclusion(kind, fault_type, resource, qualifier=qualifier, text=text, now=now)
        for (resource, qualifier), text in texts.items()
    ]


def _evaluate_parts(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    """Nobody is called silent while the database was away from all, or all are just starting."""
    finding = _Finding(PART_SILENT)
    has_witness = any(is_witness(row, now) for row in rows)
    for row in rows:
        place = (f"kintsugi/{row.host}/{row.part}", "")
        if is_fresh(row, now):
            since = format_moment(row.unbroken_since)
            finding.good[place] = f"{texts.describe_part(row)} writes again since {since}"
        elif has_witness:
            finding.bad[place] = describe_silence(row, rows, now)
        else:
            finding.undecided.add(place)
    return finding


def _is_unserved(queue: str, rows: Sequence[Heartbeat], now: datetime) -> bool:
    workers = [row for row in rows if queue in row.queues]
    return bool(workers) and not any(is_fresh(row, now) for row in workers)


def _evaluate_inbox(rows: Sequence[Heartbeat], inbox: Backlog, now: datetime) -> _Finding:
    """Where the workers of the inbox are silent their own fault says so, once."""
    if inbox.age <= OLD_UNTIL:
        text = "the inbox is worked off: no batch waits for more than half a minute"
        return _Finding(INBOX_OLD, good={_INBOX: text})
    if inbox.age <= OLD_AFTER or _is_unserved("ingest", rows, now):
        return _Finding(INBOX_OLD, undecided={_INBOX})
    hosts = [row.host for row in rows if "ingest" in row.queues and is_fresh(row, now)]
    text = texts.describe_old_inbox(inbox.batches, inbox.size, inbox.age, now, hosts=hosts)
    return _Finding(INBOX_OLD, bad={_INBOX: text})


def _evaluate_spools(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    """Of receivers that are alive: what a silent one has on disk is not known."""
    finding = _Finding(SPOOL_OLD)
    for row in rows:
        place = (f"kintsugi/{row.host}/spool", "")
        if row.backlog_bytes is None:
            continue
        if not is_fresh(row, now):
            finding.undecided.add(place)
        elif row.backlog_since is None:
            finding.good[place] = f"{texts.describe_part(row)} delivers again"
        elif now - row.backlog_since > OLD_AFTER:
            finding.bad[place] = texts.describe_old_spool(row, row.backlog_since, now)
        else:
            finding.undecided.add(place)
    return finding


def _evaluate_disks(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    finding = _Finding(DISK_FULL)
    for row in rows:
        if row.disk_free is None or row.disk_size is None:
            continue
        place = (f"kintsugi/{row.host}/disk", row.directory[:96])
        least = min(_ROOM_BYTES, row.disk_size * _ROOM_SHARE)
        if not is_fresh(row, now):
            finding.undecided.add(place)
        elif row.disk_free < least:
            finding.bad[place] = texts.describe_full_disk(row, least)
        elif row.disk_free >= least * _ROOM_AGAIN:
            free = texts.format_size(row.disk_free)
            finding.good[place] = f"{row.directory} on {row.host} has {free} free again"
        else:
            finding.undecided.add(place)
    return finding


def _evaluate_clocks(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    """Of each host by the process that wrote last."""
    finding = _Finding(CLOCK_APART)
    latest = {row.host: row for row in sorted(rows, key=lambda row: row.seen_at)}
    for host, row in latest.items():
        place = (f"kintsugi/{host}/clock", "")
        if not is_fresh(row, now) or row.clock_ahead_s is None:
            finding.undecided.add(place)
            continue
        ahead = timedelta(seconds=row.clock_ahead_s)
        if abs(ahead) >= APART:
            finding.bad[place] = texts.describe_wrong_clock(row, ahead)
        elif abs(ahead) <= TOGETHER:
            finding.good[place] = f"the clock of {host} agrees with the database's again"
        else:
            finding.undecided.add(place)
    return finding


def _evaluate_database(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    """Slow is what most processes see: a single one may wait for its own processor."""
    known = [row for row in rows if is_fresh(row, now) and row.write_s is not None]
    slow = [row for row in known if (row.write_s or 0.0) >= SLOW_WRITE_S]
    if slow and len(slow) * 2 > len(known):
        text = texts.describe_slow_database(slow, len(known))
        return _Finding(DATABASE_SLOW, bad={_DATABASE: text})
    if known and all((row.write_s or 0.0) <= QUICK_WRITE_S for row in known):
        return _Finding(DATABASE_SLOW, good={_DATABASE: "rows are written within half a second"})
    return _Finding(DATABASE_SLOW, undecided={_DATABASE})


def _evaluate_redis(rows: Sequence[Heartbeat], now: datetime) -> _Finding:
    """One fault, however many processes tell of it: a Redis that refuses refuses all."""
    fresh = [row for row in rows if is_fresh(row, now)]
    kept_from_work = [row for row in fresh if row.trouble and row.trouble_since is not None]
    stands = [row for row in kept_from_work if now - _get_since(row) >= _REFUSES_FOR]
    if stands:
        return _Finding(REDIS_REFUSES, bad={_REDIS: texts.describe_refusal(stands, now)})
    if kept_from_work or not any(row.queues for row in fresh):
        return _Finding(REDIS_REFUSES, undecided={_REDIS})
    return _Finding(REDIS_REFUSES, good={_REDIS: "Redis takes work again, and the workers get on"})


def _get_since(row: Heartbeat) -> datetime:
    return row.trouble_since or row.seen_at
