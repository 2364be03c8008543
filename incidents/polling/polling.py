"""When each detector looks at each target next, and what it remembers. The only writer of
`PollChunk`, `Poll`, `NodeReport` and `PlannedWork`.

Targets are polled in chunks of up to 50, one row each: what a round costs the database does not
depend on how many it looked at, but on what has changed. Chunks are spread over the period, and
each always falls on the same moment of it. Who is silent, was late or is paused leaves its chunk
and is polled by a time of its own until it answers: it delays no other.

A poll under way holds its row by a lease that is longer than a task may take: what is written at
its end is written only by its holder. After a stop everything is overdue, and no more is handed out
at a time than one and a half times what usually falls due: it catches up within a period and a
half, and nothing is stormed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models import Count, Max, Q, QuerySet

from detectors.detector import Sample, TargetKind
from detectors.evaluation import judge
from detectors.evaluation.judge import Memory
from incidents.models import Fault, Node, NodeReport, PlannedWork, Poll, PollChunk, Switch
from incidents.polling import poll_pauses

_log = logging.getLogger(__name__)

CHUNK = 50
# Our choice: few machines are looked at in smaller chunks, at this many moments of the period, and
# not all at once.
_MOMENTS = 20
_SMALLEST_CHUNK = 10
# Points of a sequence with this step (the golden ratio) lie evenly, however many there are.
_STEP = 0.6180339887498949
# Any fixed number: the key of the advisory lock under which the schedule is planned.
_PLAN_LOCK = 0x6B696E7473756771 & 0x7FFFFFFFFFFFFFFF
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
# Of a row: its id, when it was written, and with how many failures.
_Version = tuple[int | None, datetime | None, int]
_NEW: _Version = (None, None, 0)


@dataclass(frozen=True)
class PollPace:
    """How often one detector looks, and at what."""

    detector: str
    kind: str
    every: timedelta
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Chunk:
    """Targets that one detector looks at in one task. `lease` is what it holds their rows by.

    `number`: of the chunk whose round this is; None: targets out of step, each held by a row of its
    own. `began_at`: None until it has begun.
    """

    detector: str
    targets: tuple[str, ...]
    lease: datetime
    number: int | None = None
    began_at: datetime | None = None


@dataclass
class PollState:
    """What is known of one target as a round finds it, and as it leaves it.

    `polled_at`: its last look. `seen_at`: that of this round; None while it has seen nothing. The
    others tell of the row: `pk` None while there is none, `stored` the memory as it was read.
    """

    pk: int | None
    detector: str
    kind: str
    target: str
    failures: int = 0
    memory: Memory = field(default_factory=Memory)
    polled_at: datetime | None = None
    seen_at: datetime | None = None
    is_in_step: bool = True
    stored: bytes = b""
    version: _Version = _NEW


# Planning
# ---------------------------------------------------------------------------


def plan(paces: Sequence[PollPace], now: datetime) -> None:
    """Brings the schedule up to the inventory. What is new is first looked at within one period
    from now."""
    named = {pace.detector for pace in paces}
    with transaction.atomic():
        _lock_plan()
        PollChunk.objects.exclude(detector__in=named).delete()
        Poll.objects.exclude(detector__in=named).delete()
        for pace in paces:
            _plan_chunks(pace, now)
            _forget_gone(pace)
        NodeReport.objects.exclude(node__in=Node.objects.values("name")).delete()


def _lock_plan() -> None:
    """One process plans at a time: two would put a new target into two chunks."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_PLAN_LOCK])


def _plan_chunks(pace: PollPace, now: datetime) -> None:
    """Chunks keep their targets; what is new fills those with room first."""
    PollChunk.objects.filter(detector=pace.detector).exclude(kind=pace.kind).delete()
    chunks = list(PollChunk.objects.filter(detector=pace.detector).order_by("number"))
    members = {name for chunk in chunks for name in chunk.names}
    fresh = sorted(pace.targets - members, reverse=True)
    size = min(CHUNK, max(_SMALLEST_CHUNK, math.ceil(len(pace.targets) / _MOMENTS)))
    changed, emptied = [], []
    for chunk in chunks:
        names = [name for name in chunk.names if name in pace.targets]
        while fresh and len(names) < size:
            names.append(fresh.pop())
        if not names:
            emptied.append(chunk.pk)
        elif names != chunk.names:
            chunk.size, chunk.targets = len(names), _join_names(names)
            changed.append(chunk)
    PollChunk.objects.filter(pk__in=emptied).delete()
    PollChunk.objects.bulk_update(changed, ["size", "targets"], batch_size=_ROWS)
    PollChunk.objects.bulk_create(_make_chunks(pace, fresh[::-1], size, chunks, now))


def _make_chunks(
    pace: PollPace, names: Sequence[str], size: int, chunks: Sequence[PollChunk], now: datetime
) -> list[PollChunk]:
    first = max((chunk.number for chunk in chunks), default=-1) + 1
    made = []
    for number, start in enumerate(range(0, len(names), size), first):
        members = names[start : start + size]
        next_poll_at = _get_time_on_grid(pace.detector, number, pace.every, now)
        chunk = PollChunk(
            detector=pace.detector,
            kind=pace.kind,
            number=number,
            next_poll_at=next_poll_at,
            size=len(members),
            targets=_join_names(members),
        )
        made.append(chunk)
    return made


def _forget_gone(pace: PollPace) -> None:
    polls = Poll.objects.filter(detector=pace.detector)
    polls.exclude(kind=pace.kind).delete()
    gone = sorted(set(polls.values_list("target", flat=True)) - pace.targets)
    for start in range(0, len(gone), _ROWS):
        polls.filter(target__in=gone[start : start + _ROWS]).delete()


def _join_names(names: Sequence[str]) -> str:
    lines = "\n".join(names)
    return f"\n{lines}\n"


def get_inventory_marks() -> tuple[object, ...]:
    """Other than last time when a machine has come or gone: then the schedule is brought up to the
    inventory."""
    known = Q(is_provisional=False)
    figures = {"n": Count("pk", filter=known), "newest": Max("pk", filter=known)}
    nodes = Node.objects.aggregate(**figures)
    switches = Switch.objects.aggregate(**figures)
    return (tuple(nodes.values()), tuple(switches.values()))


# Claiming
# ---------------------------------------------------------------------------


def claim(paces: Sequence[PollPace], now: datetime, *, tick: timedelta) -> list[Chunk]:
    """What is due, leased to the caller, in chunks; the longest overdue first. `tick`: the time
    between two calls. A handful of statements, however many detectors there are."""
    free = Q(next_poll_at__lte=now) & (Q(leased_until=None) | Q(leased_until__lte=now))
    out_of_step = Poll.objects.filter(next_poll_at__isnull=False)
    chunks_due = _count_due(PollChunk.objects.all(), free)
    polls_due = _count_due(out_of_step, free)
    if not chunks_due and not polls_due:
        return []
    paused = poll_pauses.get_paused_nodes(now)
    shares = {pace.detector: tick / pace.every * _CATCHING_UP for pace in paces}
    most_chunks, most_polls = {}, {}
    for detector, share in shares.items():
        most_chunks[detector] = max(1, math.ceil(chunks_due.get(detector, 0) * share))
        most_polls[detector] = max(CHUNK, math.ceil(polls_due.get(detector, 0) * share))
    claimed = _claim_chunks(free, most_chunks, now, paused) if chunks_due else []
    if polls_due:
        is_paused = Q()
        for detector in paused:
            is_paused |= Q(detector=detector) & _filter_paused(paused, detector)
        due = out_of_step.filter(free)
        claimed += _claim_out_of_step(due.exclude(is_paused) if paused else due, most_polls, now)
    return claimed


def _count_due(rows: QuerySet[Any], free: Q) -> dict[str, int]:
    """How many rows each detector has that has any due."""
    counts = rows.order_by().values("detector")
    counts = counts.annotate(total=Count("pk"), due=Count("pk", filter=free))
    return {row["detector"]: row["total"] for row in counts if row["due"]}


def _filter_paused(paused: Mapping[str, frozenset[str]], detector: str) -> Q:
    """The rows of nodes that this detector leaves alone; none where there are none."""
    return Q(kind=TargetKind.NODE.value, target__in=sorted(paused.get(detector, ())))


def _list_first_of_each(rows: Iterable[tuple[int, str]], most: Mapping[str, int]) -> list[int]:
    """The ids of the first rows of each detector, so many of each."""
    counts: dict[str, int] = defaultdict(int)
    ids = []
    for pk, detector in rows:
        if counts[detector] < most.get(detector, 0):
            counts[detector] += 1
            ids.append(pk)
    return ids


def _claim_chunks(
    free: Q, most: Mapping[str, int], now: datetime, paused: Mapping[str, frozenset[str]]
) -> list[Chunk]:
    lease = now + LEASE
    due = PollChunk.objects.filter(free).order_by("next_poll_at")
    wanted = _list_first_of_each(due.values_list("pk", "detector"), most)
    with transaction.atomic():
        _commit_without_waiting()
        rows = list(due.filter(pk__in=wanted).select_for_update(skip_locked=True))
        PollChunk.objects.filter(pk__in=[row.pk for row in rows]).update(leased_until=lease)
    chunks = []
    for row in rows:
        is_of_nodes = row.kind == TargetKind.NODE.value
        left_alone = paused.get(row.detector, frozenset()) if is_of_nodes else frozenset()
        names = tuple(name for name in row.names if name not in left_alone)
        chunks.append(Chunk(row.detector, names, lease, row.number))
    return chunks


def _claim_out_of_step(due: QuerySet[Poll], most: Mapping[str, int], now: datetime) -> list[Chunk]:
    """Dead targets go in chunks of their own: the others do not wait for their time limits."""
    lease = now + LEASE
    wanted = _list_first_of_each(due.order_by("next_poll_at").values_list("pk", "detector"), most)
    together: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for start in range(0, len(wanted), _ROWS):
        with transaction.atomic():
            _commit_without_waiting()
            rows = due.filter(pk__in=wanted[start : start + _ROWS]).order_by("next_poll_at")
            locked = list(rows.select_for_update(skip_locked=True).defer("memory"))
            leased = Poll.objects.filter(pk__in=[row.pk for row in locked])
            leased.update(leased_until=lease)
        for row in locked:
            together[row.detector, row.failures > 0].append(row.target)
    chunks = []
    for (detector, _), names in together.items():
        for start in range(0, len(names), CHUNK):
            chunks.append(Chunk(detector, tuple(names[start : start + CHUNK]), lease))
    return chunks


def _commit_without_waiting() -> None:
    """For the caller's transaction: others see it at once, and the disk gets it within a second.

    A lease that PostgreSQL loses when its machine dies is held by nobody: what its task would have
    written at its end finds no row, and what it was to look at is due again. The sync is most of
    the time of a claim.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")


# A round, from its begin to its end
# ---------------------------------------------------------------------------


def begin(chunk: Chunk, now: datetime) -> Chunk:
    """Takes the chunk over from whoever enqueued it. Empty when another has it already, or its
    lease has run out."""
    # Another one: that of the task is used up.
    lease = max(now + LEASE, chunk.lease + timedelta(microseconds=1))
    paused = poll_pauses.get_paused_nodes(now)
    begin_rows = _begin_out_of_step if chunk.number is None else _begin_chunk
    with transaction.atomic():
        _commit_without_waiting()
        targets = begin_rows(chunk, lease, paused, now)
    return replace(chunk, targets=tuple(targets), lease=lease, began_at=now)


def _begin_out_of_step(
    chunk: Chunk, lease: datetime, paused: Mapping[str, frozenset[str]], now: datetime
) -> list[str]:
    rows = Poll.objects.filter(
        detector=chunk.detector, target__in=chunk.targets, leased_until=chunk.lease
    )
    # What was paused since it was claimed is let go, so that whoever paused it does not wait for
    # it.
    rows.filter(_filter_paused(paused, chunk.detector)).update(leased_until=None)
    if now >= chunk.lease:
        return []
    held = dict(rows.select_for_update().values_list("pk", "target"))
    Poll.objects.filter(pk__in=held).update(leased_until=lease)
    return list(held.values())


def _begin_chunk(
    chunk: Chunk, lease: datetime, paused: Mapping[str, frozenset[str]], now: datetime
) -> list[str]:
    rows = _get_leased_chunks(chunk).select_for_update()
    row = rows.first() if now < chunk.lease else None
    if row is None:
        return []
    row.leased_until = lease
    row.save(update_fields=["leased_until"])
    names = row.names
    polls = Poll.objects.filter(detector=row.detector, kind=row.kind, target__in=names)
    apart = set(polls.filter(next_poll_at__isnull=False).values_list("target", flat=True))
    if row.kind == TargetKind.NODE.value:
        left_alone = paused.get(row.detector, frozenset()).intersection(names) - apart
        if left_alone:
            _take_out_of_step(row, left_alone, now)
        apart |= left_alone
    return [name for name in names if name not in apart]


def _take_out_of_step(chunk: PollChunk, names: Iterable[str], due_at: datetime) -> None:
    """They are not looked at in this round of their chunk, so its time is not theirs any more."""
    reports = _load_reports(chunk.kind, names)
    for name in sorted(names):
        locked = Poll.objects.select_for_update()
        poll, _ = locked.get_or_create(detector=chunk.detector, kind=chunk.kind, target=name)
        poll.polled_at = _get_latest(
            poll.polled_at, chunk.polled_at, reports.get((chunk.detector, name))
        )
        poll.next_poll_at = due_at
        poll.save(update_fields=["polled_at", "next_poll_at"])


def _get_leased_chunks(chunk: Chunk) -> QuerySet[PollChunk]:
    """Its row, as long as it is held; none of one that is out of step."""
    held = PollChunk.objects.filter(detector=chunk.detector, leased_until=chunk.lease)
    return held.none() if chunk.number is None else held.filter(number=chunk.number)


def get_poll_states(chunk: Chunk, targets: Iterable[str]) -> dict[str, PollState]:
    """What was remembered of these targets; only what the chunk holds. Not locked: see
    `is_overtaken`."""
    polls = Poll.objects.filter(detector=chunk.detector, target__in=list(targets))
    if chunk.number is None:
        return {row.target: _poll_state(row) for row in polls.filter(leased_until=chunk.lease)}
    held = _get_leased_chunks(chunk).first()
    if held is None:
        return {}
    rows = {row.target: row for row in polls.filter(kind=held.kind)}
    reports = _load_reports(held.kind, targets)
    states = {}
    for name in set(targets).intersection(held.names):
        row = rows.get(name) or Poll(detector=held.detector, kind=held.kind, target=name)
        states[name] = _poll_state(
            row, _get_latest(held.polled_at, reports.get((held.detector, name)))
        )
    return states


def _load_reports(kind: str, targets: Iterable[str]) -> dict[tuple[str, str], datetime]:
    """By detector and node, its last look out of turn."""
    if kind != TargetKind.NODE.value:
        return {}
    looks: dict[tuple[str, str], datetime] = {}
    for report in NodeReport.objects.filter(node__in=list(targets)):
        if report.looked_at is not None:
            for detector in report.detectors:
                looks[detector, report.node] = report.looked_at
    return looks


def is_overtaken(
    chunk: Chunk, states: Collection[PollState], every: timedelta, now: datetime
) -> bool:
    """Whether anybody else has written one of the rows that `finish` will write: a round out of
    turn does. These rows are locked until the transaction ends; who is overtaken reads again."""
    if chunk.number is not None and not _get_leased_chunks(chunk).exists():
        return bool(states)
    is_late = _is_late(chunk, every, now)
    written = [state for state in states if is_late or _is_changed(state)]
    targets = [state.target for state in written]
    rows = Poll.objects.filter(detector=chunk.detector, target__in=targets)
    return _are_rewritten(
        written, rows if chunk.number is not None else rows.filter(leased_until=chunk.lease)
    )


def _are_rewritten(states: Sequence[PollState], rows: QuerySet[Poll]) -> bool:
    """Locks them."""
    locked = rows.order_by("pk").select_for_update().defer("memory")
    versions = {(row.detector, row.target): _get_version(row) for row in locked}
    return any(
        versions.get((state.detector, state.target), _NEW) != state.version for state in states
    )


def finish(
    states: Sequence[PollState], every: timedelta, now: datetime, *, chunk: Chunk | None
) -> None:
    """Writes what is remembered where that has changed, and when those out of step are polled
    next; lets their rows go.

    `chunk`: what holds them. None: nothing does, and each is written.
    """
    is_late = chunk is not None and _is_late(chunk, every, now)
    fresh: list[Poll] = []
    updated: list[Poll] = []
    for state in states:
        if not (chunk is None or is_late or _is_changed(state)):
            continue
        next_at = _get_next_time(state, every, now) if state.failures or is_late else None
        memory = pack(state.memory, state.seen_at)
        polled_at = state.seen_at or now
        poll = Poll(
            pk=state.pk,
            detector=state.detector,
            kind=state.kind,
            target=state.target,
            failures=state.failures,
            memory=memory,
            polled_at=polled_at,
            next_poll_at=next_at,
        )
        (fresh if poll.pk is None else updated).append(poll)
    Poll.objects.bulk_create(fresh, ignore_conflicts=True)
    _update(updated, chunk.lease if chunk is not None and chunk.number is None else None)


def _update(polls: Sequence[Poll], lease: datetime | None) -> None:
    """`lease`: of rows that are held by one of their own."""
    if not polls:
        return
    held = "" if lease is None else " AND leased_until = %s"
    holder: tuple[Any, ...] = () if lease is None else (_get_stored_form(lease),)
    values = []
    for poll in polls:
        times = (_get_stored_form(poll.polled_at), _get_stored_form(poll.next_poll_at))
        values.append((poll.memory, poll.failures, *times, poll.pk, *holder))
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE incidents_poll SET memory = %s, failures = %s, polled_at = %s,"  # noqa: S608
            f" next_poll_at = %s, leased_until = NULL WHERE id = %s{held}",
            values,
        )


def _is_changed(state: PollState) -> bool:
    """Whether its row says something else than before. The time of a look that saw nothing new is
    its chunk's."""
    if state.failures or not state.is_in_step:
        return True
    return _encode(state.memory, state.seen_at) != state.stored


def _is_late(chunk: Chunk, every: timedelta, now: datetime) -> bool:
    """Whether the next round of the chunk would have to wait for who answers now."""
    return chunk.number is not None and chunk.began_at is not None and now - chunk.began_at > every


def end(chunk: Chunk, every: timedelta, now: datetime, *, not_asked: Collection[str] = ()) -> None:
    """All have answered or been given up: the chunk's next round may come. `not_asked`: targets
    that the site has configured no way to; nothing is written of these while they are the whole
    chunk, which then waits for longer."""
    if chunk.number is None:
        return
    held = _get_leased_chunks(chunk)
    later = now + max(every, _LONGEST_WAIT)
    if not_asked and len(not_asked) == len(chunk.targets):
        held.update(next_poll_at=later, leased_until=None)
        return
    if not_asked:
        with transaction.atomic():
            row = held.select_for_update().first()
            if row is not None:
                _take_out_of_step(row, not_asked, later)
    next_at = _get_time_on_grid(chunk.detector, chunk.number, every, now + every / 2)
    held.update(polled_at=chunk.began_at, next_poll_at=next_at, leased_until=None)


def schedule_answering(kind: str, targets: Sequence[str], now: datetime) -> None:
    """These targets answer again: detectors that had given them up look soon.

    After the round's transaction: two rounds of one target that end at once would each wait for
    the row that the other one has locked.
    """
    given_up = Poll.objects.filter(next_poll_at__isnull=False, failures__gt=0)
    of_targets = given_up.filter(kind=kind, target__in=targets)
    with transaction.atomic():
        # In the order of all who lock several.
        locked = list(of_targets.order_by("pk").select_for_update().values_list("pk", flat=True))
        Poll.objects.filter(pk__in=locked).update(failures=0, next_poll_at=now)


# One target, or all of one kind
# ---------------------------------------------------------------------------


def get_last_polled(target: str, kind: str) -> dict[str, datetime]:
    """When each detector looked at this target last."""
    looks = {
        chunk.detector: chunk.polled_at
        for chunk in PollChunk.objects.of_target(target, kind)
        if chunk.polled_at
    }
    for (detector, _), reported_at in _load_reports(kind, [target]).items():
        looks[detector] = max(reported_at, looks.get(detector, reported_at))
    for row in Poll.objects.filter(target=target, kind=kind).defer("memory"):
        looked_at = _get_look_time(row, looks.pop(row.detector, None))
        if looked_at is not None:
            looks[row.detector] = looked_at
    return looks


def count_targets(detector: str) -> int:
    """How many targets it looks at."""
    chunks = PollChunk.objects.filter(detector=detector)
    return sum(chunks.values_list("size", flat=True))


def iterate_samples(
    detectors: Sequence[str], kind: str, targets: Collection[str]
) -> Iterator[tuple[str, str, Sample]]:
    """Resource, metric and what was last seen, of all that these detectors remember of these
    targets; three queries."""
    looks: dict[tuple[str, str], datetime | None] = {}
    for chunk in PollChunk.objects.filter(detector__in=detectors, kind=kind):
        for name in chunk.names:
            looks[chunk.detector, name] = chunk.polled_at
    for key, reported_at in _load_reports(kind, targets).items():
        looks[key] = _get_latest(reported_at, looks.get(key))
    polls = Poll.objects.filter(detector__in=detectors, kind=kind, target__in=sorted(targets))
    for row in polls.exclude(memory=b""):
        looked_at = _get_look_time(row, looks.get((row.detector, row.target)))
        memory = unpack(bytes(row.memory), looked_at)
        for (resource, metric), sample in memory.samples.items():
            yield resource, metric, sample


def begin_out_of_turn(node: str) -> None:
    """One round of a node out of turn at a time, until the caller's transaction ends."""
    NodeReport.objects.select_for_update().get_or_create(node=node)


def get_states_out_of_turn(node: str, detectors: Sequence[str]) -> dict[str, PollState]:
    """By detector. Rows are not locked: see `is_overtaken_out_of_turn`."""
    kind = TargetKind.NODE.value
    chunks = PollChunk.objects.of_target(node, kind).filter(detector__in=detectors)
    looks = dict(chunks.values_list("detector", "polled_at"))
    reports = _load_reports(kind, [node])
    rows = {row.detector: row for row in _get_rows(node, detectors)}
    states = {}
    for name in detectors:
        row = rows.get(name) or Poll(detector=name, kind=kind, target=node)
        states[name] = _poll_state(row, _get_latest(looks.get(name), reports.get((name, node))))
    return states


def _get_rows(node: str, detectors: Collection[str]) -> QuerySet[Poll]:
    kind = TargetKind.NODE.value
    return Poll.objects.filter(target=node, kind=kind, detector__in=detectors)


def is_overtaken_out_of_turn(node: str, states: Collection[PollState]) -> bool:
    """As `is_overtaken`: a chunk's round writes the same rows."""
    written = [state for state in states if _is_changed(state)]
    return _are_rewritten(written, _get_rows(node, [state.detector for state in written]))


def finish_out_of_turn(
    node: str, states: Sequence[PollState], every: Mapping[str, timedelta], now: datetime
) -> None:
    """Writes the rows that have changed, and of all when the look was. `every`: by detector."""
    for state in states:
        if _is_changed(state):
            finish([state], every[state.detector], now, chunk=None)
    report = NodeReport.objects.get(node=node)
    names = sorted(state.detector for state in states)
    absent = set(report.detectors).difference(names)
    if absent:
        # The report's time is no longer theirs.
        rows = _get_rows(node, absent).filter(next_poll_at=None, polled_at__lt=report.looked_at)
        rows.update(polled_at=report.looked_at)
    seen = [state.seen_at for state in states if state.seen_at is not None]
    report.looked_at, report.detectors = max(seen, default=now), names
    report.save(update_fields=["looked_at", "detectors"])


def _poll_state(row: Poll, chunk_polled_at: datetime | None = None) -> PollState:
    """A row that is not stored yet is of a target that nothing is remembered of."""
    looked_at = _get_look_time(row, chunk_polled_at)
    text = _decompress(bytes(row.memory))
    memory = _decode(text, looked_at)
    is_in_step = row.next_poll_at is None
    version = _get_version(row)
    return PollState(
        row.pk,
        row.detector,
        row.kind,
        row.target,
        row.failures,
        memory,
        looked_at,
        is_in_step=is_in_step,
        stored=text,
        version=version,
    )


def _get_version(row: Poll) -> _Version:
    return (row.pk, row.polled_at, row.failures)


def _get_look_time(row: Poll, chunk_polled_at: datetime | None) -> datetime | None:
    """The last look at the row's target: its chunk's last round counts for who is in step."""
    if row.next_poll_at is not None:
        return row.polled_at
    return _get_latest(row.polled_at, chunk_polled_at)


def _get_latest(*moments: datetime | None) -> datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _get_stored_form(moment: datetime | None) -> Any:
    """As Django stores it, so that the database compares like with like."""
    return None if moment is None else connection.ops.adapt_datetimefield_value(moment)


def _get_next_time(state: PollState, every: timedelta, now: datetime) -> datetime:
    """A period after the look, at least half a period off; further off the longer the target has
    been dead."""
    waits = every * (1 << min(max(0, state.failures - _PATIENCE), 10)) - every
    waits = min(waits, max(timedelta(0), _LONGEST_WAIT - every))
    seen_at = state.seen_at or now
    periods = max(1, math.ceil((now + every / 2 - seen_at) / every))
    return seen_at + every * (periods + math.floor(waits / every))


def _get_time_on_grid(detector: str, number: int, every: timedelta, after: datetime) -> datetime:
    """The next moment after `after` that is this chunk's own in the period."""
    digest = hashlib.blake2b(detector.encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") / 2**64 + number * _STEP) % 1
    period_s = every.total_seconds()
    phase_s = share * period_s
    passed = math.floor((after.timestamp() - phase_s) / period_s) + 1
    return datetime.fromtimestamp(phase_s + passed * period_s, tz=UTC)


# Memories as text
# ---------------------------------------------------------------------------


def pack(memory: Memory, looked_at: datetime | None) -> bytes:
    """`looked_at`: when the look was that the memory is of; `unpacked` is told it, or a later one
    that saw the same."""
    return zlib.compress(_encode(memory, looked_at), 1)


def unpack(packed_memory: bytes, looked_at: datetime | None) -> Memory:
    """What cannot be read is forgotten, as at first sight: counters then start from a new
    baseline."""
    return _decode(_decompress(packed_memory), looked_at)


def _encode(memory: Memory, looked_at: datetime | None) -> bytes:
    return msgspec.json.encode(judge.to_json(memory, looked_at))


def _decompress(packed_memory: bytes) -> bytes:
    try:
        return zlib.decompress(packed_memory) if packed_memory else b""
    except zlib.error as error:
        _log.warning("the memory of a poll cannot be read and is begun anew: %r", error)
        return b""


def _decode(text: bytes, looked_at: datetime | None) -> Memory:
    if not text:
        return Memory()
    try:
        return judge.from_json(msgspec.json.decode(text), UTC, looked_at)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("the memory of a poll cannot be read and is begun anew: %r", error)
        return Memory()


# What a round needs to know of its machines
# ---------------------------------------------------------------------------


def get_active_fingerprints(owners: Iterable[str]) -> set[str]:
    """Fingerprints of the active faults of these machines (`node/gn042`), in one query."""
    return set(
        Fault.objects.active().filter(owner__in=set(owners)).values_list("fingerprint", flat=True)
    )


def get_boots(nodes: Sequence[str]) -> dict[str, tuple[str, datetime | None]]:
    """Boot id, and when that boot was by our clock, of each of these nodes."""
    rows = Node.objects.filter(name__in=nodes).values_list("name", "boot_id", "boot_seen_at")
    return {name: (boot_id, seen_at) for name, boot_id, seen_at in rows}


def store_plans(plans: Mapping[str, str], now: datetime) -> None:
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
