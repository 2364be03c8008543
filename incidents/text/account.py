"""An incident told as a colleague would tell it: values and their words. Pure: reads no table,
decides nothing.

`incidents.people.explain` fills it; the console, `kintsugi incident why` and its JSON show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from detectors.resources import printable
from incidents.text import wording

KINTSUGI = "kintsugi"
_CLOCKS = {"device": "the device's clock", "ours": "our clock", "person": "the reporter's word"}
_NAMED = 5


@dataclass(frozen=True)
class SeenFaults:
    """Faults of one type: how many, where, when, by which sources and clocks, and how many still
    stand."""

    fault_type: str
    title: str
    severity: str
    faults: int
    active: int
    events: int
    places: tuple[str, ...]
    first_at: datetime
    last_at: datetime
    observed_at: datetime
    sources: tuple[str, ...]
    clocks: tuple[str, ...]
    told_by: tuple[str, ...] = ()
    is_doubted: bool = False
    """Told by a text alone, beside what is believed: it lifts no repair."""


@dataclass(frozen=True)
class Joined:
    """Faults that one rule, or one person, put here, with the sentence that says why."""

    rule: str
    because: str
    by: str
    faults: int
    fault_types: tuple[str, ...]
    places: tuple[str, ...]
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class DecisionGroup:
    """Decisions of one kind, rule and sense: the latest one's text, and how often."""

    kind: str
    rule: str
    text: str
    by: str
    times: int
    first_at: datetime
    last_at: datetime
    until: datetime | None


@dataclass(frozen=True)
class Reported:
    """What a person told, in their words."""

    author: str
    text: str
    place: str
    at: datetime


@dataclass(frozen=True)
class ChangeBefore:
    """What was changed at the site in the day before, and where: on that many machines, of which
    some are named; on none of them means everywhere."""

    author: str
    summary: str
    reference: str
    places: tuple[str, ...]
    machines: int
    at: datetime


@dataclass(frozen=True)
class PersonsAct:
    """What a person did to the incident."""

    actor: str
    what: str
    text: str
    at: datetime


@dataclass(frozen=True)
class Other:
    """Another incident that belongs to the story, and how."""

    incident: int
    relation: str
    title: str


@dataclass(frozen=True)
class Quiet:
    """A silence that keeps the incident from people."""

    kind: str
    author: str
    reason: str
    until: datetime | None


@dataclass(frozen=True)
class RootAccount:
    """The fault that counts as the cause, why, and what it was judged by."""

    fault_type: str
    title: str
    place: str
    because: str
    rule: str
    by: str
    at: datetime
    observed_at: datetime
    clock: str
    sources: tuple[str, ...]
    excerpt: str
    told_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Account:
    """Everything that explains one incident, long lists grouped."""

    incident: int
    title: str
    state: str
    severity: str
    onset_at: datetime
    opened_at: datetime
    faults: int
    root: RootAccount | None
    seen: tuple[SeenFaults, ...]
    reported: tuple[Reported, ...]
    changes: tuple[ChangeBefore, ...]
    joined: tuple[Joined, ...]
    held_until: datetime | None
    held_reason: str
    judged: tuple[DecisionGroup, ...]
    silence: Quiet | None
    people: tuple[PersonsAct, ...]
    others: tuple[Other, ...]

    def as_json(self) -> dict[str, Any]:
        """Times as ISO 8601 with offset; the keys are those of this class."""
        values: dict[str, Any] = _get_plain_value(asdict(self))
        return values

    def list_sections(self) -> list[Section]:
        """Headings with their sentences, in the order of a good story; what there is not is left
        out."""
        sections = [Section(heading, tuple(lines(self))) for heading, lines in _SECTIONS]
        return [section for section in sections if section.lines]


class Line(StrEnum):
    """How a line of the account is shown."""

    SENTENCE = "sentence"
    EVIDENCE = "evidence"


@dataclass(frozen=True)
class Sentence:
    text: str
    kind: Line = Line.SENTENCE


@dataclass(frozen=True)
class Section:
    heading: str
    lines: tuple[Sentence, ...]


def format_text(account: Account) -> str:
    """For a terminal."""
    state = account.state.replace("_", " ")
    times = (
        f"since {wording.format_moment(account.onset_at)}; opened"
        f" {wording.format_moment(account.opened_at)}"
    )
    lines = [
        f"Incident #{account.incident}: {account.title}",
        f"{state}, {account.severity}, {times}.",
    ]
    for section in account.list_sections():
        lines += ["", section.heading]
        lines += [
            f"  {'| ' if line.kind is Line.EVIDENCE else ''}{line.text}" for line in section.lines
        ]
    # What others wrote stands in it: nothing of it is for the terminal to obey.
    return "\n".join(printable(line) for line in "\n".join(lines).split("\n"))


# Sentences
# ---------------------------------------------------------------------------


def _describe_root(account: Account) -> Iterator[Sentence]:
    root = account.root
    if root is None:
        return
    what = f"{root.title} ({root.fault_type}) on {root.place}"
    began = f"{wording.format_moment(root.at)} by {_CLOCKS.get(root.clock, root.clock)}"
    sources = f" by {_format_list(root.sources)}" if root.sources else ""
    yield Sentence(f"{what}, {began}, seen{sources} at {wording.format_clock(root.observed_at)}.")
    chosen = f"{root.by} chose it" if root.by != KINTSUGI else "It is the root"
    yield Sentence(f"{chosen}: {_end_sentence(root.because)}")
    yield from _describe_tellers(root.told_by)
    if root.excerpt:
        yield Sentence(root.excerpt.strip(), Line.EVIDENCE)


def _describe_seen(account: Account) -> Iterator[Sentence]:
    for seen in account.seen:
        clocks = _format_list([_CLOCKS.get(clock, clock) for clock in seen.clocks])
        sources = f", by {_format_list(seen.sources)}" if seen.sources else ""
        what = f"{_format_times(seen.faults)}{seen.title} ({seen.fault_type})"
        where = _format_places(seen.places, seen.faults)
        span = f"{_format_span(seen.first_at, seen.last_at)} by {clocks}{sources}"
        events = f"{seen.events} event{'' if seen.events == 1 else 's'}"
        yield Sentence(f"{what} on {where}, {span}; {events}, {_format_standing(seen)}.")
        yield from _describe_tellers(seen.told_by)
        if seen.is_doubted:
            yield Sentence(
                f"{seen.fault_type} is not believed: a text alone has told it, and it lifts no"
                " repair unless the node shows it too."
            )


def _describe_tellers(told_by: Sequence[str]) -> Iterator[Sentence]:
    for teller in told_by[:_NAMED]:
        yield Sentence(f"Told by {teller}.")


def _format_standing(seen: SeenFaults) -> str:
    if not seen.active:
        return "cleared" if seen.faults == 1 else "all cleared"
    if seen.active < seen.faults:
        return f"{seen.active} still stand"
    return "it stands" if seen.faults == 1 else "all stand"


def _describe_reported(account: Account) -> Iterator[Sentence]:
    for report in account.reported:
        yield Sentence(
            f"{report.author} reported {report.place} at {wording.format_moment(report.at)}:"
            f" {report.text.strip()}"
        )


def _describe_changes(account: Account) -> Iterator[Sentence]:
    for change in account.changes[:_NAMED]:
        before = wording.format_duration(account.onset_at - change.at)
        where = (
            _format_places(change.places, change.machines) if change.places else "the whole site"
        )
        reference = f" ({change.reference})" if change.reference else ""
        when = f"{wording.format_moment(change.at)}, {before} before"
        what = f"{_end_sentence(change.summary)}{reference}"
        yield Sentence(f"{when}, on {where}, by {change.author}: {what}")
    left = len(account.changes) - _NAMED
    if left > 0:
        yield Sentence(f"{left} more: `kintsugi change list`.")


def _describe_joined(account: Account) -> Iterator[Sentence]:
    for joined in account.joined:
        who = f"Rule {joined.rule}" if joined.by == KINTSUGI else joined.by
        faults = f"{joined.faults} faults" if joined.faults > 1 else "one fault"
        fault_types = _format_list(joined.fault_types[:_NAMED])
        where = _format_places(joined.places, joined.faults)
        yield Sentence(
            f"{who} put {faults} here ({fault_types} on {where}): {_end_sentence(joined.because)}"
        )


def _describe_held_back(account: Account) -> Iterator[Sentence]:
    if account.held_until is not None:
        yield Sentence(
            f"No repair starts before {wording.format_moment(account.held_until)}:"
            f" {_end_sentence(account.held_reason or 'held')}"
        )
    yield from _describe_judgements(account, "held", "withdrawn", "recorded")


def _describe_conclusions(account: Account) -> Iterator[Sentence]:
    yield from _describe_judgements(account, "concluded", "rerooted", "merged", "split")


def _describe_nearly(account: Account) -> Iterator[Sentence]:
    yield from _describe_judgements(account, "nearly")


def _describe_judgements(account: Account, *kinds: str) -> Iterator[Sentence]:
    for judged in account.judged:
        if judged.kind in kinds and judged.by == KINTSUGI:
            until = f" Until {wording.format_moment(judged.until)}." if judged.until else ""
            more = f" ({judged.times} times)" if judged.times > 1 else ""
            rule = f"{judged.rule}: " if judged.rule else ""
            yield Sentence(
                f"{wording.format_moment(judged.last_at)}"
                f" {rule}{_end_sentence(judged.text)}{more}{until}"
            )


def _describe_silence(account: Account) -> Iterator[Sentence]:
    quiet = account.silence
    if quiet is not None:
        until = (
            f"until {wording.format_moment(quiet.until)}" if quiet.until else "until it is reviewed"
        )
        yield Sentence(
            f"{quiet.kind.capitalize()} by {quiet.author} {until}: {_end_sentence(quiet.reason)}"
        )
    yield from _describe_judgements(account, "silenced", "announced")


def _describe_people(account: Account) -> Iterator[Sentence]:
    for done in account.people:
        what = done.what.replace("_", " ")
        yield Sentence(
            f"{wording.format_moment(done.at)} {done.actor}, {what}: {_end_sentence(done.text)}"
        )


def _describe_others(account: Account) -> Iterator[Sentence]:
    for other in account.others:
        yield Sentence(f"#{other.incident} {other.relation}: {_end_sentence(other.title)}")


_SECTIONS = (
    ("The cause", _describe_root),
    ("What was seen", _describe_seen),
    ("What people reported", _describe_reported),
    ("What was changed in the day before", _describe_changes),
    ("Why it is one incident", _describe_joined),
    ("What was concluded and moved", _describe_conclusions),
    ("What was held back", _describe_held_back),
    ("What nearly matched", _describe_nearly),
    ("Who was not told, and why", _describe_silence),
    ("What people did", _describe_people),
    ("Other incidents of this story", _describe_others),
)


def _format_list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _format_times(count: int) -> str:
    return "" if count == 1 else f"{count} x "


def _format_places(places: Sequence[str], faults: int) -> str:
    shown = places[:_NAMED]
    left = faults - len(shown)
    return _format_list(shown) + (f" and {left} more" if left > 0 else "")


def _format_span(first: datetime, last: datetime) -> str:
    if first == last:
        return wording.format_moment(first)
    end = wording.format_clock(last) if last.date() == first.date() else wording.format_moment(last)
    return f"from {wording.format_moment(first)} to {end}"


def _end_sentence(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _get_plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _get_plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_get_plain_value(inner) for inner in value]
    return value
