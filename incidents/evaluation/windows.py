"""Which window keeps which fault from people at a time, and which windows may be made at all. Pure.

A window is a silence, a maintenance or a shelf; it never says that a fault is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from detectors import resources
from incidents.text.wording import format_duration, format_moment

# Our choice: a month is longer than most vendor repairs of the model site took, and short enough
# that whoever made the window still knows why. Alertmanager's silences need an end but may last for
# years, and are then forgotten.
LONGEST_WITHOUT_REVIEW = timedelta(days=30)
# Our choice: a week holds a holiday and a weekend. A window that nobody vouches for by then ends.
ANSWERED_WITHIN = timedelta(days=7)
# Our choice: the longest grace of a boot (detectors/catalog/grace.toml), as the last act of planned
# work is often a restart. What a boot brings waits for so long after a maintenance, and is not told
# if it passes; what it brought before the end waits too. So does Icinga 2: "if a downtime ended,
# give the checkable a chance to recover afterwards before sending a notification"
# (lib/icinga/checkable-notification.cpp, FireSuppressedNotifications).
SETTLING = timedelta(minutes=10)

# The fault that asks for a review must not be kept from people by the very window that it is about.
REVIEW_DUE = "kintsugi.silence_review"

_KINDS_OF_PARTS = frozenset({"gpu", "nic", "nvswitch", "pci", "storage", "port", "module", "job"})
_MAGIC = "*?["


class WindowKind(StrEnum):
    """What sort of window: `shelf` is RFC 8632's, for one kind of alarm that is known to stand."""

    SILENCE = "silence"
    MAINTENANCE = "maintenance"
    SHELF = "shelf"


class DraftField(StrEnum):
    """What about a draft is wrong; the form's fields and the command's options go by these
    names."""

    WHERE = "where"
    FAULT_TYPE = "fault_type"
    REASON = "reason"
    STARTS_AT = "starts_at"
    ENDS_AT = "ends_at"
    REVIEW_AT = "review_at"
    EVERYTHING = "everything"


@dataclass(frozen=True)
class WindowPlace:
    """What a window looks at: the fault's type, its resource, and what the cable of that resource
    leads to. `may_pass_since`: since when it stands, where a machine's start brings such faults
    by itself, and takes them with it."""

    fault_type: str
    resource: str
    far_end: str = ""
    may_pass_since: datetime | None = None


@dataclass(frozen=True)
class Window:
    """One window. An empty pattern matches everything; `machines` are owners such as
    `node/gn001`."""

    key: int
    kind: WindowKind
    reason: str
    author: str
    starts_at: datetime
    ends_at: datetime | None = None
    resource: str = ""
    machines: frozenset[str] = frozenset()
    fault_type: str = ""
    ended_at: datetime | None = None

    def is_in_force(self, at: datetime) -> bool:
        is_over = self.ended_at is not None or (self.ends_at is not None and self.ends_at <= at)
        return self.starts_at <= at and not is_over

    def is_settling(self, place: WindowPlace, at: datetime) -> bool:
        """A maintenance that has ended a moment ago, and the fault may be of its last restart: it
        came while the work went on."""
        ended_at = self.ended_at or self.ends_at
        if self.kind is not WindowKind.MAINTENANCE or ended_at is None:
            return False
        if place.may_pass_since is None or place.may_pass_since < self.starts_at:
            return False
        is_just_over = ended_at <= at < ended_at + SETTLING
        return is_just_over and self.covers(place)

    def covers(self, place: WindowPlace) -> bool:
        if place.fault_type == REVIEW_DUE:
            return False
        if self.fault_type and not fnmatchcase(place.fault_type, self.fault_type):
            return False
        if self.machines:
            return self._is_on_machines(place)
        return not self.resource or any(
            _is_match(path, self.resource) for path in _list_with_wholes(place.resource)
        )

    def _is_on_machines(self, place: WindowPlace) -> bool:
        """A switch's port whose cable leads to a machine under maintenance goes down with it: that
        is part of it."""
        ends = {resources.owner(place.resource), resources.owner(place.far_end)}
        return bool(ends & self.machines)

    @property
    def what(self) -> str:
        """`maintenance of gn001, gn002 and 3 more`, `silence of nic.* on node/gn0*`."""
        return (
            f"{self.kind} of {format_extent(self.resource, sorted(self.machines), self.fault_type)}"
        )


@dataclass(frozen=True)
class Kept:
    """Every standing fault is covered; `window` is the one that people are told of: of the root,
    the last to end. None: the root's maintenance has ended, and what its restarts brought may pass
    by itself."""

    window: Window | None


@dataclass(frozen=True)
class Outside:
    """The standing fault of this number is covered by no window: people are told of the whole
    incident."""

    number: int


@dataclass(frozen=True)
class Nothing:
    """No fault stands: nothing changes."""


Judgement = Kept | Outside | Nothing


def judge(standing: Sequence[WindowPlace], windows: Collection[Window], at: datetime) -> Judgement:
    """What windows mean for an incident; its root's place comes first when the root stands.

    As in Alertmanager, where a group is told as soon as one alert of it is not silenced. Severity
    plays no part. A maintenance that has just ended covers what a boot brings for a while.
    """
    if not standing:
        return Nothing()
    in_force = [window for window in windows if window.is_in_force(at)]
    for number, place in enumerate(standing):
        is_covered = any(window.covers(place) for window in in_force)
        if not is_covered and not any(window.is_settling(place, at) for window in windows):
            return Outside(number)
    first = [window for window in in_force if window.covers(standing[0])]
    return Kept(
        max(
            first,
            key=lambda window: (window.ends_at is None, window.ends_at or at, -window.key),
            default=None,
        )
    )


def format_extent(resource: str, machines: Sequence[str], fault_type: str) -> str:
    """What a window covers, for people."""
    names = [owner.partition("/")[2] or owner for owner in machines]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    where = f"{', '.join(names[:3])}{more}" if names else resource
    if fault_type and where:
        return f"{fault_type} on {where}"
    return where or f"{fault_type} everywhere"


def _list_with_wholes(resource: str) -> Iterator[str]:
    """A resource and what it is part of: a pattern of a machine covers all of its parts."""
    parts = resource.split("/")
    yield resource
    for count in range(len(parts) - 1, 1, -1):
        yield "/".join(parts[:count])


# What may be made
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """A window that somebody wants. `may_cover_all`: the person said that everything is meant."""

    kind: WindowKind
    reason: str
    starts_at: datetime
    ends_at: datetime | None = None
    review_at: datetime | None = None
    resource: str = ""
    machines: tuple[str, ...] = ()
    fault_type: str = ""
    may_cover_all: bool = False

    def build_window(self, key: int = 0, author: str = "") -> Window:
        return Window(
            key,
            self.kind,
            self.reason,
            author,
            self.starts_at,
            self.ends_at,
            self.resource,
            frozenset(self.machines),
            self.fault_type,
        )


@dataclass(frozen=True)
class KnownNames:
    """What a pattern can be about: machines (and other resources of faults) by path, and ids of
    fault types."""

    resources: frozenset[str]
    fault_types: frozenset[str]


@dataclass(frozen=True)
class Problem:
    field: DraftField
    text: str


def list_problems(draft: Draft, known: KnownNames, now: datetime) -> list[Problem]:
    """What stands against the draft, each with what to do; empty: it can be made."""
    found = [*_check_words(draft), *_check_times(draft, now)]
    found += (
        _check_machines(draft, known)
        if draft.kind is WindowKind.MAINTENANCE
        else _check_patterns(draft, known)
    )
    return found


def get_review_time(draft: Draft) -> datetime | None:
    """When its review is due: as asked, after 30 days where it lasts longer, else never."""
    if draft.review_at is not None:
        return draft.review_at
    latest = draft.starts_at + LONGEST_WITHOUT_REVIEW
    return latest if draft.ends_at is None or draft.ends_at > latest else None


def _check_words(draft: Draft) -> Iterator[Problem]:
    if not draft.reason.strip():
        yield Problem(DraftField.REASON, "Say why: everyone who sees it will ask.")
    if draft.kind is WindowKind.SHELF and not (draft.resource and draft.fault_type):
        yield Problem(
            DraftField.FAULT_TYPE,
            "A shelf is for one kind of fault in one place: give resource and fault type.",
        )


def _check_times(draft: Draft, now: datetime) -> Iterator[Problem]:
    start, end, review = max(draft.starts_at, now), draft.ends_at, draft.review_at
    if end is None and review is None and draft.kind is WindowKind.MAINTENANCE:
        yield Problem(
            DraftField.ENDS_AT, "A maintenance needs an end; it can be extended while it runs."
        )
    elif end is None and review is None:
        yield Problem(
            DraftField.ENDS_AT, "Give an end or a review: nothing is kept from people for ever."
        )
    if end is not None and end <= draft.starts_at:
        text = (
            f"The end, {format_moment(end)}, is not after the start,"
            f" {format_moment(draft.starts_at)}."
        )
        yield Problem(DraftField.ENDS_AT, text)
    elif end is not None and end <= now:
        yield Problem(
            DraftField.ENDS_AT,
            f"The end, {format_moment(end)}, has passed already; it is {format_moment(now)} now.",
        )
    if review is not None and review <= start:
        yield Problem(
            DraftField.REVIEW_AT,
            f"The review, {format_moment(review)}, is not after the start, {format_moment(start)}.",
        )
    if review is not None and review > start + LONGEST_WITHOUT_REVIEW:
        latest = format_moment(start + LONGEST_WITHOUT_REVIEW)
        text = (
            f"A review is due after {format_duration(LONGEST_WITHOUT_REVIEW)} at the latest:"
            f" by {latest}."
        )
        yield Problem(DraftField.REVIEW_AT, text)
    if review is not None and end is not None and review >= end:
        yield Problem(DraftField.REVIEW_AT, "It ends before its review: leave the review out.")


def _check_machines(draft: Draft, known: KnownNames) -> Iterator[Problem]:
    machines = frozenset(path for path in known.resources if path.count("/") == 1)
    if not draft.machines:
        yield Problem(DraftField.WHERE, "Name the machines, such as gn[001-004] or leaf-03.")
    unknown = sorted(set(draft.machines) - machines)
    if unknown:
        names = ", ".join(path.partition("/")[2] or path for path in unknown[:5])
        more = " ..." if unknown[5:] else ""
        yield Problem(DraftField.WHERE, f"The inventory knows no machine {names}{more}.")
        return
    covers_all = len(machines) > 1 and machines <= set(draft.machines)
    if covers_all and not draft.may_cover_all:
        text = f"That is all {len(machines)} machines. Say that you mean all of them."
        yield Problem(DraftField.EVERYTHING, text)


def _check_patterns(draft: Draft, known: KnownNames) -> Iterator[Problem]:
    if not draft.resource and not draft.fault_type:
        yield Problem(DraftField.WHERE, "Give a resource, a fault type, or both.")
        return
    has_trouble = False
    if draft.resource and not _is_known_resource(draft.resource, known.resources):
        has_trouble = True
        yield Problem(
            DraftField.WHERE,
            f"Nothing known matches {draft.resource}. Write a path such as node/gn042, node/gn0*,"
            " or switch/leaf-03/port/Ethernet64.",
        )
    if draft.fault_type and not _is_known_type(draft.fault_type, known.fault_types):
        has_trouble = True
        has_below = _has_below(draft.fault_type, known.fault_types)
        near = f"; {draft.fault_type}.* would match" if has_below else ""
        yield Problem(
            DraftField.FAULT_TYPE, f"The catalogue has no fault type {draft.fault_type}{near}."
        )
    if not has_trouble and not draft.may_cover_all and _covers_all(draft, known):
        text = "That keeps every fault of every machine from people. Say that you mean everything."
        yield Problem(DraftField.EVERYTHING, text)


def _is_known_resource(pattern: str, known: Iterable[str]) -> bool:
    """By the whole path, or by its machine where the part is of a kind that machines have."""
    parts = pattern.split("/")
    machine = "/".join(parts[:2])
    names_part = len(parts) > 3 and parts[2] in _KINDS_OF_PARTS
    is_wild = len(parts) > 2 and any(letter in _MAGIC for letter in parts[2])
    is_part = names_part or is_wild
    return any(_is_match(path, pattern) or (is_part and _is_match(path, machine)) for path in known)


def _is_known_type(pattern: str, fault_types: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in fault_types)


def _is_match(path: str, pattern: str) -> bool:
    """A name may hold a bracket of its own, such as a job's."""
    return path == pattern or fnmatchcase(path, pattern)


def _has_below(pattern: str, fault_types: Iterable[str]) -> bool:
    return any(name.startswith(f"{pattern}.") for name in fault_types)


def _covers_all(draft: Draft, known: KnownNames) -> bool:
    types = known.fault_types
    if draft.fault_type and not all(fnmatchcase(name, draft.fault_type) for name in types):
        return False
    if not draft.resource:
        return True
    machines = [path for path in known.resources if path.count("/") == 1]
    return len(machines) > 1 and all(fnmatchcase(path, draft.resource) for path in machines)
