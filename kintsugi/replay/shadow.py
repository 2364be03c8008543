"""What other rules would have done to the last days of this site: its faults as events, played on a
database apart.

Nothing of the site is touched: its tables are read first, then it is played without a node, a Slurm
or a message. What people and repairs did to incidents is done again at its time, where the play has
that incident (`shadow_steps`).
"""

from __future__ import annotations

import heapq
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from detectors.catalog import catalog as fault_catalog
from detectors.faults import FaultEvent
from incidents import services
from incidents.inventory import graphs
from incidents.models import Fault, IncidentFault
from incidents.state import site_rules
from incidents.state.batch import get_join_window
from kintsugi.replay import database, due, shadow_history, shadow_steps
from kintsugi.replay.due import Due
from kintsugi.replay.shadow_history import History
from kintsugi.replay.shadow_outcome import (
    OutcomeDifference,
    Placed,
    ShadowOutcome,
    compute_differences,
)
from kintsugi.replay.shadow_steps import ShadowResult, ShadowStep, ShadowStepDone

Say = Callable[[str], None]

_CONCLUDED = Path(fault_catalog.__file__).parent / "concluded.toml"

# Our choice: hold-downs are whole minutes, so what a sweep every few seconds finds is found in
# time.
_SWEPT_EVERY = timedelta(seconds=30)
_GROUPING = timedelta(seconds=1)
_AT_ONCE = 1_000
_MARGIN = timedelta(seconds=1)
_OVERDUE_AGAIN = timedelta(minutes=5)
_NEVER = datetime.max.replace(tzinfo=UTC)
_COUNTED = timedelta(seconds=61)
# At the end: what waits for its hold-down or a grace has been judged by then.
_AFTERMATH = timedelta(minutes=30)


@dataclass(frozen=True)
class Compared:
    """`before`: the present rules, or without changed ones what the site recorded; `after`: the
    changed ones."""

    history: History
    before: int
    after: int
    is_recorded: bool
    differences: tuple[OutcomeDifference, ...]
    otherwise: tuple[ShadowStepDone, ...]
    """What was not done in the last play as in the one before, or as at the site."""

    @property
    def steps(self) -> int:
        """What people and repairs did in the period."""
        return len(self.history.steps)

    @property
    def faults(self) -> int:
        return len(self.history.marks)

    @property
    def period(self) -> tuple[datetime, datetime]:
        return self.history.since.astimezone(UTC), self.history.until.astimezone(UTC)

    def as_json(self) -> dict[str, Any]:
        incidents = {"before": self.before, "after": self.after}
        differing = [difference.as_json() for difference in self.differences]
        otherwise = [step.as_json() for step in self.otherwise]
        return {
            **self._history_json(),
            "incidents": incidents,
            "before_is": "recorded" if self.is_recorded else "present rules",
            "differences": differing,
            "steps": {"played": self.steps, "otherwise": otherwise},
        }

    def _history_json(self) -> dict[str, Any]:
        since, until = self.period
        return {
            "since": since.isoformat(),
            "until": until.isoformat(),
            "events": len(self.history.events),
            "faults": self.faults,
        }

    def format_lines(self) -> Iterator[str]:
        before = "as the site recorded it" if self.is_recorded else "with the present rules"
        after = "with the present rules" if self.is_recorded else "with the changed rules"
        since, until = self.period
        faults = _format_count(self.faults, "fault")
        events = _format_count(len(self.history.events), "event")
        yield f"{faults} of {since:%Y-%m-%d} to {until:%Y-%m-%d} (UTC), as {events}."
        yield f"{_format_count(self.before, 'incident')} {before}, {self.after} {after}."
        if not self.differences:
            yield "No incident would be another."
        for difference in self.differences:
            yield f"  {difference.text}"
        if self.steps:
            steps = _format_count(self.steps, "step")
            yield f"{steps} of people and repairs played too, {len(self.otherwise)} came otherwise."
        for step in self.otherwise:
            yield f"  {step.text}"


def compare(*, now: datetime, days: int, rules: Path | None, say: Say) -> Compared:
    """Plays the last days once (without changed rules) or twice. Raises CorrelationError for rules
    that do not load."""
    concluded = _load_concluded_types()
    if rules is not None:
        with _use_rules(rules):
            site_rules.load_joining_rules()
            concluded |= _load_concluded_types()
    history = shadow_history.read(now - timedelta(days=days), now, concluded=concluded)
    say(_format_history(history))
    present = _play_apart(history, "present rules", say)
    if rules is None:
        steps = [ShadowStepDone(step, ShadowResult.DONE) for step in history.steps]
        recorded = _Play(history.recorded, steps)
        return _make_comparison(history, recorded, present, is_recorded=True)
    with _use_rules(rules):
        changed = _play_apart(history, "changed rules", say)
    return _make_comparison(history, present, changed, is_recorded=False)


@dataclass(frozen=True)
class _Play:
    """What came of the period, and what was done with each of its steps."""

    outcome: ShadowOutcome
    steps: list[ShadowStepDone]

    def count_incidents(self) -> int:
        return len(self.outcome.get_groups())


def _make_comparison(
    history: History, before: _Play, after: _Play, *, is_recorded: bool
) -> Compared:
    found = compute_differences(before.outcome, after.outcome, history.recorded)
    otherwise = _find_otherwise(before.steps, after.steps)
    return Compared(
        history,
        before.count_incidents(),
        after.count_incidents(),
        is_recorded=is_recorded,
        differences=tuple(found),
        otherwise=tuple(otherwise),
    )


def _find_otherwise(
    before: list[ShadowStepDone], after: list[ShadowStepDone]
) -> Iterator[ShadowStepDone]:
    """The steps that came otherwise after than before."""
    for step_before, step_after in zip(before, after, strict=True):
        if step_after.result is not step_before.result:
            yield step_after


def _format_history(history: History) -> str:
    events = _format_count(len(history.events), "event")
    faults = _format_count(len(history.marks), "fault")
    steps = _format_count(len(history.steps), "step")
    since = f"{history.since:%Y-%m-%d %H:%M} UTC"
    return f"{events} of {faults}, and {steps} of people and repairs, since {since}"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _load_concluded_types() -> frozenset[str]:
    """Types that the rules themselves conclude, so that a play makes them anew."""
    rows = tomllib.loads(_CONCLUDED.read_text(encoding="utf-8"))["type"]
    by_counting = {rule.concludes for rule in site_rules.load_counting_rules()}
    return frozenset(row["id"] for row in rows) | by_counting


@contextmanager
def _use_rules(folder: Path) -> Iterator[None]:
    """Within it the site's own rules are those of this folder."""
    site = settings.KINTSUGI
    settings.KINTSUGI = site | {"KINTSUGI_CORRELATION": folder}
    try:
        yield
    finally:
        settings.KINTSUGI = site


def _play_apart(history: History, name: str, say: Say) -> _Play:
    with database.use_temporary_database():
        graphs.forget()
        try:
            _write_tables(history)
            steps = _play(history, name, say)
            return _Play(_read_outcome(history), steps)
        finally:
            graphs.forget()


def _write_tables(history: History) -> None:
    with transaction.atomic():
        for model, rows in history.tables:
            manager = model._default_manager
            manager.all().delete()
            manager.bulk_create([model(**row) for row in rows], batch_size=_AT_ONCE)


def _play(history: History, name: str, say: Say) -> list[ShadowStepDone]:
    sweeps, day = _Sweeps(history.starts_at), None
    steps_done: list[ShadowStepDone] = []
    for item in _iterate_agenda(history):
        now = item.at if isinstance(item, ShadowStep) else item[-1].observed_at
        sweeps.sweep_until(now)
        if isinstance(item, ShadowStep):
            steps_done.append(shadow_steps.play(item))
        else:
            services.ingest(item, now=now)
        sweeps.schedule_after(now)
        if now.date() != day:
            day = now.date()
            say(f"{name}: {day}")
    sweeps.sweep_until(history.until + _AFTERMATH)
    return steps_done


def _iterate_agenda(history: History) -> Iterator[list[FaultEvent] | ShadowStep]:
    """Events in batches, and between them what was done. Of one moment, the events come first: they
    were its reason."""
    items: Iterator[FaultEvent | ShadowStep] = heapq.merge(
        history.events, history.steps, key=_get_sort_key
    )
    batch: list[FaultEvent] = []
    for item in items:
        if batch and not _belongs(item, batch):
            yield batch
            batch = []
        if isinstance(item, ShadowStep):
            yield item
        else:
            batch.append(item)
    if batch:
        yield batch


def _get_sort_key(item: FaultEvent | ShadowStep) -> tuple[datetime, bool]:
    """Its time; an event sorts before a step of the same time."""
    if isinstance(item, ShadowStep):
        return item.at, True
    return item.observed_at, False


def _belongs(item: FaultEvent | ShadowStep, batch: list[FaultEvent]) -> bool:
    if isinstance(item, ShadowStep) or len(batch) >= _AT_ONCE:
        return False
    return item.observed_at - batch[0].observed_at < _GROUPING


class _Sweeps:
    """Sweeps every few seconds, without those that would find nothing."""

    def __init__(self, starts_at: datetime) -> None:
        self._last_at = starts_at
        self._scheduled: set[datetime] = set()

    def schedule_after(self, ingested_at: datetime) -> None:
        """What no row says is due: windows in which faults are counted, and what does not heal with
        its cause."""
        self._scheduled |= {ingested_at + _COUNTED, ingested_at + get_join_window() + _COUNTED}

    def sweep_until(self, until: datetime) -> None:
        now = self._get_next_time()
        while now < until:
            self._scheduled = {at for at in self._scheduled if at > now}
            ended = services.conclusions_ended(now)
            if ended:
                services.ingest(ended, now=now)
            services.sweep(now=now)
            self._last_at = now
            now = self._get_next_time()

    def _get_next_time(self) -> datetime:
        """What was due before the last sweep and still is would be swept for ever: it waits
        longer."""
        times = [at for at in self._scheduled if at > self._last_at]
        for kind, due_at in due.iterate_moments():
            if kind not in (Due.FAULT, Due.WATCHED):
                continue
            is_overdue = due_at < self._last_at
            times.append(self._last_at + _OVERDUE_AGAIN if is_overdue else due_at + _MARGIN)
        return max(min(times, default=_NEVER), self._last_at + _SWEPT_EVERY)


def _read_outcome(history: History) -> ShadowOutcome:
    """Where each fault of the site came to be: the play's fault of its fingerprint that was active
    when it was raised."""
    faults: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    rows = Fault.objects.order_by("raised_at").values_list("fingerprint", "raised_at", "pk")
    for fingerprint, raised_at, pk in rows:
        faults[fingerprint].append((raised_at, pk))
    links = IncidentFault.objects.select_related("incident__duplicate_of").order_by("pk")
    link_of_fault = {link.fault_id: link for link in links}
    placed, titles = {}, {}
    for mark in history.marks:
        with_fingerprint = faults.get(mark.fingerprint, [])
        fault = shadow_steps.get_last_active(with_fingerprint, mark.raised_at)
        link = link_of_fault.get(fault)
        if link is None:
            placed[mark.key] = Placed(None)
            continue
        incident = link.incident.duplicate_of or link.incident
        is_root = incident.root_fault_id == link.fault_id
        placed[mark.key] = Placed(incident.pk, is_root, link.rule, link.reason)
        titles[incident.pk] = incident.title
    return ShadowOutcome(placed, titles)
