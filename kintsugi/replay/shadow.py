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
from incidents.state.board import window
from kintsugi.replay import database, due, shadow_history, shadow_steps
from kintsugi.replay.due import Kind
from kintsugi.replay.shadow_history import History
from kintsugi.replay.shadow_outcome import OutcomeDifference, Placed, ShadowOutcome, differences
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

    since: datetime
    until: datetime
    events: int
    faults: int
    before: int
    after: int
    is_recorded: bool
    differences: tuple[OutcomeDifference, ...]
    steps: int
    """What people and repairs did in the period."""
    otherwise: tuple[ShadowStepDone, ...]
    """Of them, what was not done in the last play as in the one before, or as at the site."""

    def as_json(self) -> dict[str, Any]:
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "events": self.events,
            "faults": self.faults,
            "incidents": {"before": self.before, "after": self.after},
            "before_is": "recorded" if self.is_recorded else "present rules",
            "differences": [one.as_json() for one in self.differences],
            "steps": {"played": self.steps, "otherwise": [one.as_json() for one in self.otherwise]},
        }

    def text(self) -> Iterator[str]:
        than = "as the site recorded it" if self.is_recorded else "with the present rules"
        with_rules = "the present rules" if self.is_recorded else "the changed rules"
        since, until = f"{self.since:%Y-%m-%d}", f"{self.until:%Y-%m-%d}"
        yield (
            f"{_counted(self.faults, 'fault')} of {since} to {until} (UTC), as"
            f" {_counted(self.events, 'event')}."
        )
        yield f"{_counted(self.before, 'incident')} {than}, {self.after} with {with_rules}."
        if not self.differences:
            yield "No incident would be another."
        for one in self.differences:
            yield f"  {one.text}"
        if self.steps:
            steps = _counted(self.steps, "step")
            yield f"{steps} of people and repairs played too, {len(self.otherwise)} came otherwise."
        for step in self.otherwise:
            yield f"  {step.text}"


def compare(*, now: datetime, days: int, rules: Path | None, say: Say) -> Compared:
    """Plays the last days once (without changed rules) or twice. Raises CorrelationError for rules
    that do not load."""
    concluded = _concluded()
    if rules is not None:
        with _rules(rules):
            site_rules.joining()
            concluded |= _concluded()
    since = now - timedelta(days=days)
    history = shadow_history.read(since, now, concluded=concluded)
    events, faults = _counted(len(history.events), "event"), _counted(len(history.marks), "fault")
    steps = _counted(len(history.steps), "step")
    say(
        f"{events} of {faults}, and {steps} of people and repairs, since {since:%Y-%m-%d %H:%M} UTC"
    )
    present, done = _played(history, "present rules", say)
    before, after = history.recorded, present
    was_done = [ShadowStepDone(step, ShadowResult.DONE) for step in history.steps]
    if rules is not None:
        with _rules(rules):
            was_done = done
            before, (after, done) = present, _played(history, "changed rules", say)
    return Compared(
        since=since.astimezone(UTC),
        until=now.astimezone(UTC),
        events=len(history.events),
        faults=len(history.marks),
        before=len(before.groups()),
        after=len(after.groups()),
        is_recorded=rules is None,
        differences=tuple(differences(before, after, history.recorded)),
        steps=len(history.steps),
        otherwise=tuple(
            one for one, was in zip(done, was_done, strict=True) if one.result is not was.result
        ),
    )


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


def _concluded() -> frozenset[str]:
    """Types that the rules themselves conclude, so that a play makes them anew."""
    rows = tomllib.loads(_CONCLUDED.read_text(encoding="utf-8"))["type"]
    return frozenset(row["id"] for row in rows) | {rule.concludes for rule in site_rules.counting()}


@contextmanager
def _rules(folder: Path) -> Iterator[None]:
    """Within it the site's own rules are those of this folder."""
    site = settings.KINTSUGI
    settings.KINTSUGI = site | {"KINTSUGI_CORRELATION": folder}
    try:
        yield
    finally:
        settings.KINTSUGI = site


def _played(history: History, name: str, say: Say) -> tuple[ShadowOutcome, list[ShadowStepDone]]:
    with database.temporary():
        graphs.forget()
        try:
            _furnish(history)
            done = _play(history, name, say)
            return _outcome(history), done
        finally:
            graphs.forget()


def _furnish(history: History) -> None:
    with transaction.atomic():
        for model, rows in history.tables:
            model._default_manager.all().delete()
            model._default_manager.bulk_create([model(**row) for row in rows], batch_size=_AT_ONCE)


def _play(history: History, name: str, say: Say) -> list[ShadowStepDone]:
    sweeps, day = _Sweeps(history.starts_at), None
    done: list[ShadowStepDone] = []
    for one in _agenda(history):
        now = one.at if isinstance(one, ShadowStep) else one[-1].observed_at
        sweeps.up_to(now)
        if isinstance(one, ShadowStep):
            done.append(shadow_steps.play(one))
        else:
            services.ingest(one, now=now)
        sweeps.look_after(now)
        if now.date() != day:
            day = now.date()
            say(f"{name}: {day}")
    sweeps.up_to(history.until + _AFTERMATH)
    return done


def _agenda(history: History) -> Iterator[list[FaultEvent] | ShadowStep]:
    """Events in batches, and between them what was done. Of one moment, the events come first: they
    were its reason."""
    events = ((event.observed_at, 0, event) for event in history.events)
    steps = ((step.at, 1, step) for step in history.steps)
    moments: Iterator[tuple[datetime, int, FaultEvent | ShadowStep]] = heapq.merge(
        events, steps, key=lambda moment: moment[:2]
    )
    batch: list[FaultEvent] = []
    for at, _, one in moments:
        if batch and (
            isinstance(one, ShadowStep)
            or at - batch[0].observed_at >= _GROUPING
            or len(batch) >= _AT_ONCE
        ):
            yield batch
            batch = []
        if isinstance(one, ShadowStep):
            yield one
        else:
            batch.append(one)
    if batch:
        yield batch


class _Sweeps:
    """The looks of a sweep every few seconds, without those that would find nothing."""

    def __init__(self, starts_at: datetime) -> None:
        self._last_at = starts_at
        self._looks: set[datetime] = set()

    def look_after(self, ingested_at: datetime) -> None:
        """What no row says is due: windows in which faults are counted, and what does not heal with
        its cause."""
        self._looks |= {ingested_at + _COUNTED, ingested_at + window() + _COUNTED}

    def up_to(self, until: datetime) -> None:
        while (at := self._next()) < until:
            self._looks = {look for look in self._looks if look > at}
            ended = services.conclusions_ended(at)
            if ended:
                services.ingest(ended, now=at)
            services.sweep(now=at)
            self._last_at = at

    def _next(self) -> datetime:
        """What was due before the last look and still is would be looked at for ever: it waits
        longer."""
        found = [look for look in self._looks if look > self._last_at]
        for kind, at in due.moments():
            if kind in (Kind.FAULT, Kind.WATCHED):
                found.append(
                    at + _MARGIN if at >= self._last_at else self._last_at + _OVERDUE_AGAIN
                )
        return max(min(found, default=_NEVER), self._last_at + _SWEPT_EVERY)


def _outcome(history: History) -> ShadowOutcome:
    """Where each fault of the site came to be: the play's fault of its fingerprint that stood when
    it was raised."""
    rows: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for name, raised_at, pk in Fault.objects.values_list("fingerprint", "raised_at", "pk").order_by(
        "raised_at"
    ):
        rows[name].append((raised_at, pk))
    links = {
        link.fault_id: link
        for link in IncidentFault.objects.select_related("incident__duplicate_of").order_by("pk")
    }
    placed, titles = {}, {}
    for mark in history.marks:
        link = links.get(
            shadow_steps.get_last_active(rows.get(mark.fingerprint, []), mark.raised_at)
        )
        if link is None:
            placed[mark.key] = Placed(None)
            continue
        incident = link.incident.duplicate_of or link.incident
        is_root = incident.root_fault_id == link.fault_id
        placed[mark.key] = Placed(incident.pk, is_root, link.rule, link.reason)
        titles[incident.pk] = incident.title
    return ShadowOutcome(placed, titles)
