"""When each detector looks at each target next, and what it remembers. The only writer of `Poll`
and `PlannedWork`.

Polls are spread over their period by a hash of detector and target, so that the same poll always
falls on the same moment of the period. A poll under way holds its row by a lease that is longer
than a task may take: what is written at its end is written only by its holder. After a stop
everything is overdue, and no more is handed out at a time than one and a half times what usually
falls due: it catches up within a period and a half, and nothing is stormed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models import Count, Max, Q, QuerySet

from detectors.detector import Sample, TargetKind
from detectors.evaluation import judge
from detectors.evaluation.judge import Memory
from incidents.models import Fault, Node, PlannedWork, Poll, Switch
from incidents.polling import poll_pauses

_log = logging.getLogger(__name__)

CHUNK = 50
# A task ends or is ended after two minutes (CELERY_TASK_TIME_LIMIT); one that waited so long in its
# queue is dropped.
LEASE = timedelta(seconds=180)
_CATCHING_UP = 1.5
# Dead targets are asked as usual until their fault can stand (three polls), then ever more seldom.
_PATIENCE = 3
_LONGEST_WAIT = timedelta(minutes=5)
# Slurm is asked every minute; what it said longer ago than this keeps nothing from people.
PLANNED_FOR = timedelta(minutes=15)
# Our choice: detectors have three rounds, as many as make a target dead, to see a node well that
# Slurm is done with. Without it every node of a planned restart would be told the moment Slurm has
# it back.
SETTLES = timedelta(minutes=3)
_ROWS = 2000


@dataclass(frozen=True)
class PollPace:
    """How often one detector looks, and at what."""

    detector: str
    kind: str
    every: timedelta
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Chunk:
    """Targets that one detector looks at in one task. `lease` is what it holds their rows by."""

    detector: str
    targets: tuple[str, ...]
    lease: datetime


@dataclass
class PollState:
    """A row as a round finds it, and as it leaves it."""

    pk: int
    detector: str
    target: str
    failures: int = 0
    memory: Memory = field(default_factory=Memory)
    polled_at: datetime | None = None


def plan(paces: Sequence[PollPace], now: datetime) -> None:
    """Brings the schedule up to the inventory. What is new is first looked at within one period
    from now."""
    named = {pace.detector for pace in paces}
    Poll.objects.exclude(detector__in=named).delete()
    for pace in paces:
        polls = Poll.objects.filter(detector=pace.detector)
        known = set(polls.filter(kind=pace.kind).values_list("target", flat=True))
        gone = sorted(known - pace.targets)
        for start in range(0, len(gone), _ROWS):
            targets = gone[start : start + _ROWS]
            polls.filter(target__in=targets).delete()
        fresh = []
        for name in sorted(pace.targets - known):
            first_at = _on_grid(pace.detector, name, pace.every, now)
            poll = Poll(detector=pace.detector, kind=pace.kind, target=name, next_poll_at=first_at)
            fresh.append(poll)
        Poll.objects.bulk_create(fresh, batch_size=_ROWS, ignore_conflicts=True)


def marks() -> tuple[object, ...]:
    """Other than last time when a machine has come or gone: then the schedule is brought up to the
    inventory."""
    known = Q(is_provisional=False)
    figures = {"n": Count("pk", filter=known), "newest": Max("pk", filter=known)}
    nodes = Node.objects.aggregate(**figures)
    switches = Switch.objects.aggregate(**figures)
    return (tuple(nodes.values()), tuple(switches.values()))


def claim(paces: Sequence[PollPace], now: datetime, *, tick: timedelta) -> list[Chunk]:
    """What is due, leased to the caller, in chunks; the longest overdue first. `tick`: the time
    between two calls."""
    free = Q(next_poll_at__lte=now) & (Q(leased_until=None) | Q(leased_until__lte=now))
    by_detector = Poll.objects.order_by().values("detector")
    counts = by_detector.annotate(total=Count("pk"), due=Count("pk", filter=free))
    waiting = {row["detector"]: row["total"] for row in counts if row["due"]}
    paused = poll_pauses.get_paused_nodes(now) if waiting else {}
    chunks: list[Chunk] = []
    for pace in paces:
        if pace.detector in waiting:
            usual = waiting[pace.detector] * (tick / pace.every)
            most = max(CHUNK, math.ceil(usual * _CATCHING_UP))
            is_paused = _paused(paused, pace.detector)
            due = Poll.objects.filter(free, detector=pace.detector).exclude(is_paused)
            chunks += _claimed(due, pace.detector, most, now)
    return chunks


def _paused(paused: Mapping[str, frozenset[str]], detector: str) -> Q:
    """The rows of nodes that this detector leaves alone; none where there are none."""
    return Q(kind=TargetKind.NODE.value, target__in=sorted(paused.get(detector, ())))


def _claimed(due: QuerySet[Poll], detector: str, most: int, now: datetime) -> list[Chunk]:
    """Dead targets go in chunks of their own: the others do not wait for their time limits."""
    lease = now + LEASE
    with transaction.atomic():
        unlocked = due.order_by("next_poll_at").select_for_update(skip_locked=True)
        rows = list(unlocked.values_list("pk", "target", "failures")[:most])
        ids = [pk for pk, _, _ in rows]
        for start in range(0, len(ids), _ROWS):
            leased = Poll.objects.filter(pk__in=ids[start : start + _ROWS])
            leased.update(leased_until=lease)
    living = [target for _, target, failures in rows if not failures]
    dead = [target for _, target, failures in rows if failures]
    chunks = []
    for names in (living, dead):
        for start in range(0, len(names), CHUNK):
            chunk_names = tuple(names[start : start + CHUNK])
            chunks.append(Chunk(detector, chunk_names, lease))
    return chunks


def begin(chunk: Chunk, now: datetime) -> Chunk:
    """Takes the chunk over from whoever rang. Empty when another has it already, or its lease has
    run out."""
    lease = max(
        now + LEASE, chunk.lease + timedelta(microseconds=1)
    )  # another one: the ring's own is used up
    with transaction.atomic():
        rows = Poll.objects.filter(
            detector=chunk.detector, target__in=chunk.targets, leased_until=chunk.lease
        )
        # What was paused since it was rung is let go, so that whoever paused it does not wait for
        # it.
        rows.filter(_paused(poll_pauses.get_paused_nodes(now), chunk.detector)).update(
            leased_until=None
        )
        held = (
            dict(rows.select_for_update().values_list("pk", "target")) if now < chunk.lease else {}
        )
        Poll.objects.filter(pk__in=held).update(leased_until=lease)
    return Chunk(chunk.detector, tuple(held.values()), lease)


def get_poll_states(chunk: Chunk, targets: Iterable[str]) -> dict[str, PollState]:
    """What was remembered of these targets; only rows that the chunk holds. Not locked: see
    `versions`."""
    return {row.target: _poll_state(row) for row in _leased_polls(chunk, targets)}


def versions(chunk: Chunk, targets: Iterable[str]) -> dict[str, tuple[datetime | None, int]]:
    """When each of these rows was written last, and with how many failures: locked until the
    transaction ends.

    A round out of turn writes rows that a chunk holds. Where these are not as `kept` read them, it
    has to read again.
    """
    rows = (
        _leased_polls(chunk, targets)
        .select_for_update()
        .values_list("target", "polled_at", "failures")
    )
    return {target: (polled_at, failures) for target, polled_at, failures in rows}


def _leased_polls(chunk: Chunk, targets: Iterable[str]) -> QuerySet[Poll]:
    rows = Poll.objects.filter(
        detector=chunk.detector, target__in=list(targets), leased_until=chunk.lease
    )
    return rows.order_by("pk")


def last_polled(target: str, kind: str) -> dict[str, datetime]:
    """When each detector looked at this target last."""
    rows = Poll.objects.filter(target=target, kind=kind, polled_at__isnull=False)
    return {name: at for name, at in rows.values_list("detector", "polled_at") if at is not None}


def samples(
    detectors: Sequence[str], kind: str, targets: Collection[str]
) -> Iterator[tuple[str, str, Sample]]:
    """Resource, metric and what was last seen, of all that these detectors remember of these
    targets; one query."""
    polls = Poll.objects.filter(detector__in=detectors, kind=kind, target__in=sorted(targets))
    for packed_memory in polls.exclude(memory=b"").values_list("memory", flat=True):
        memory = unpacked(bytes(packed_memory))
        for (resource, metric), sample in memory.samples.items():
            yield resource, metric, sample


def kept_of(
    target: str, kind: str, detectors: Sequence[str], now: datetime
) -> dict[str, PollState]:
    """By detector, for a round of one target out of turn; locked, missing rows made, in the
    caller's transaction."""
    rows = (
        Poll.objects.filter(target=target, kind=kind, detector__in=detectors)
        .order_by("pk")
        .select_for_update()
    )
    known = {row.detector: _poll_state(row) for row in rows}
    missing = [name for name in detectors if name not in known]
    if missing:
        fresh = [
            Poll(detector=name, kind=kind, target=target, next_poll_at=now) for name in missing
        ]
        Poll.objects.bulk_create(fresh, ignore_conflicts=True)
        known = {row.detector: _poll_state(row) for row in rows.all()}
    return known


def _poll_state(row: Poll) -> PollState:
    memory = unpacked(bytes(row.memory))
    return PollState(row.pk, row.detector, row.target, row.failures, memory, row.polled_at)


def finish(
    rounds: Sequence[PollState], every: timedelta, now: datetime, *, lease: datetime | None
) -> None:
    """Writes what is remembered and when the next round comes, and lets the rows go that are held
    by `lease`.

    None: rows of a round out of turn, which holds none.
    """
    values = []
    for state in rounds:
        next_at = _next(state.detector, state.target, every, state.failures, now)
        memory = packed(state.memory)
        values.append((memory, state.failures, _stored(now), _stored(next_at), state.pk))
    held = "" if lease is None else " AND leased_until = %s"
    holder: tuple[Any, ...] = () if lease is None else (_stored(lease),)
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE incidents_poll SET memory = %s, failures = %s, polled_at = %s, next_poll_at = %s,"  # noqa: E501, S608
            f" leased_until = NULL WHERE id = %s{held}",
            [(*value, *holder) for value in values],
        )


def answered(kind: str, targets: Sequence[str], now: datetime) -> None:
    """These targets answer again: detectors that had given them up look soon."""
    Poll.objects.filter(kind=kind, target__in=targets, failures__gt=0).update(
        failures=0, next_poll_at=now
    )


def _stored(moment: datetime) -> Any:
    """As Django stores it, so that the database compares like with like."""
    return connection.ops.adapt_datetimefield_value(moment)


def _next(detector: str, target: str, every: timedelta, failures: int, now: datetime) -> datetime:
    """A moment of the usual grid, at least half a period off; further off the longer the target has
    been dead."""
    waits = every * (1 << min(max(0, failures - _PATIENCE), 10)) - every
    waits = min(waits, max(timedelta(0), _LONGEST_WAIT - every))
    usual = _on_grid(detector, target, every, now + every / 2)
    return usual + every * math.floor(waits / every)


def _on_grid(detector: str, target: str, every: timedelta, after: datetime) -> datetime:
    """The next moment after `after` that is this poll's own in the period."""
    digest = hashlib.blake2b(f"{detector}/{target}".encode(), digest_size=8).digest()
    period_s = every.total_seconds()
    phase_s = int.from_bytes(digest, "big") / 2**64 * period_s
    passed = math.floor((after.timestamp() - phase_s) / period_s) + 1
    return datetime.fromtimestamp(phase_s + passed * period_s, tz=UTC)


def packed(memory: Memory) -> bytes:
    return zlib.compress(msgspec.json.encode(judge.to_json(memory)), 1)


def unpacked(text: bytes) -> Memory:
    """What cannot be read is forgotten, as at first sight: counters then start from a new
    baseline."""
    if not text:
        return Memory()
    try:
        return judge.from_json(msgspec.json.decode(zlib.decompress(text)), UTC)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        _log.warning("the memory of a poll cannot be read and is begun anew: %r", error)
        return Memory()


# What a round needs to know of its machines
# ---------------------------------------------------------------------------


def get_active_fingerprints(owners: Iterable[str]) -> set[str]:
    """Fingerprints of the active faults of these machines (`node/gn042`), in one query."""
    return set(
        Fault.objects.active().filter(owner__in=set(owners)).values_list("fingerprint", flat=True)
    )


def boots(nodes: Sequence[str]) -> dict[str, tuple[str, datetime | None]]:
    """Boot id, and when that boot was by our clock, of each of these nodes."""
    rows = Node.objects.filter(name__in=nodes).values_list("name", "boot_id", "boot_seen_at")
    return {name: (boot_id, seen_at) for name, boot_id, seen_at in rows}


def learn_plans(plans: Mapping[str, str], now: datetime) -> None:
    """What Slurm said of these nodes: why they are worked on as planned, empty when they are not.

    One that it is done with counts a little longer (`SETTLES`), one that it says nothing of for 15
    minutes more.
    """
    if not plans:
        return
    PlannedWork.objects.filter(until__lte=now).delete()
    known = set(PlannedWork.objects.values_list("node", flat=True))
    over = sorted(name for name in known if not plans.get(name, "-"))
    settled_at = now + SETTLES
    PlannedWork.objects.filter(node__in=over, until__gt=settled_at).update(until=settled_at)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in plans.items():
        if why:
            by_reason[why].append(name)
    until = now + PLANNED_FOR
    for why, names in by_reason.items():
        PlannedWork.objects.filter(node__in=names).update(why=why, seen_at=now, until=until)
        fresh = []
        for name in names:
            if name not in known:
                work = PlannedWork(node=name, why=why, since=now, seen_at=now, until=until)
                fresh.append(work)
        PlannedWork.objects.bulk_create(fresh, ignore_conflicts=True)
