"""Time grows with what is read and no faster: every pattern and every parser, found by package."""

from __future__ import annotations

import gc
import importlib
import inspect
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import detectors
from detectors import registry
from detectors.catalog import catalog, line_patterns
from detectors.detector import Command, Output
from detectors.logs.header import parse_header
from detectors.logs.signatures import Matcher
from detectors.slurm import reservations
from detectors.transports import bundle
from tests.detectors import growth
from tests.detectors.growth import find_growth
from tests.detectors.test_contract import _reading
from tests.growth import find_inline_patterns, find_slow_pattern, measure_cpu

_AT = datetime(2026, 1, 12, tzinfo=UTC)
_SIGNALS = Path(__file__).parents[2] / "fixtures" / "signals"
# A flag such as `pattern.search` in the module's text says how a pattern is used.
_USES = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split")
_ANCHORED = frozenset({"match", "fullmatch"})
_PUMPS = (" ", "a", "0", "[", "{", "<a>", "a: ", "|", "\t", "-", ":", "\x1b", "é")


def _patterns(value: object, name: str) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _patterns(inner, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list | frozenset | set):
        for number, inner in enumerate(value):
            yield from _patterns(inner, f"{name}[{number}]")


def _find_patterns() -> Iterator[Any]:
    seen: set[int] = set()
    for module in pkgutil.walk_packages(detectors.__path__, "detectors."):
        if module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        text = inspect.getsource(loaded)
        for name, value in vars(loaded).items():
            for place, pattern in _patterns(value, f"{module.name}.{name}"):
                if name.startswith("__") or id(pattern) in seen:
                    continue
                seen.add(id(pattern))
                uses = {use for use in _USES if re.search(rf"\b{name}\b[\w\[\]]*\.{use}\b", text)}
                yield pytest.param(pattern, frozenset(uses or {"search"}), id=place[:120])


def _work(pattern: re.Pattern[Any], use: str) -> Callable[[str], object]:
    called = getattr(pattern, use if use in _ANCHORED else "search")
    if isinstance(pattern.pattern, str):
        return lambda text: called(text)
    return lambda text: called(text.encode("latin-1", "replace"))


def _text(pattern: re.Pattern[Any]) -> str:
    source = pattern.pattern
    return source if isinstance(source, str) else source.decode("latin-1")


@pytest.fixture
def longest(*, is_full_length: bool) -> int:
    """The longest field of a request (128 KiB); in the deep tier what a sender may send at once."""
    return growth.MIB if is_full_length else 128 * growth.KIB


@pytest.mark.parametrize(("pattern", "uses"), list(_find_patterns()))
def test_no_pattern_takes_longer_than_its_text_is_long(
    pattern: re.Pattern[Any], uses: frozenset[str], longest: int
) -> None:
    for before, pump, after in sorted(set(growth.attacks(_text(pattern)))):
        for use in {use if use in _ANCHORED else "search" for use in uses}:
            grown = find_growth(_work(pattern, use), before, pump, after, longest=longest)
            assert not grown, f"{pattern.pattern!r} on {before[:40]!r} + {pump!r} * n: {grown}"


INLINE, WORKED_OUT = find_inline_patterns("detectors")


@pytest.mark.parametrize("place", sorted(INLINE))
def test_no_pattern_within_a_function_takes_longer_than_its_text_is_long(
    place: str, longest: int
) -> None:
    pattern = INLINE[place]
    for before, pump, after in sorted(set(growth.attacks(_text(pattern)))):
        grown = find_growth(_work(pattern, "search"), before, pump, after, longest=longest)
        assert not grown, f"{pattern.pattern!r} on {before[:40]!r} + {pump!r} * n: {grown}"


# What works patterns out: the catalogue's, measured as signatures, those of programs' names, which
# are measured as what the module holds, and these two.
WORKING_OUT = {
    "detectors/catalog/catalog.py": None,
    "detectors/catalog/line_patterns.py": None,
    "detectors/logs/matcher.py": None,
    "detectors/logs/unread_words.py": None,
    "detectors/slurm/reservations.py": reservations.parse_reservations,
    "detectors/transports/bundle.py": lambda text: bundle.split_outputs(
        [Command("one", ("true",))], "nonce", text.encode(), text.encode()
    ),
}


def test_what_works_patterns_out_takes_no_longer_than_its_text_is_long(longest: int) -> None:
    assert {place.partition(":")[0] for place in WORKED_OUT} == set(WORKING_OUT)
    heads = ("", "ReservationName=x StartTime=", "kintsugi-nonce begin\n")
    for work, head in itertools.product(filter(None, WORKING_OUT.values()), heads):
        for pump in (*_PUMPS, "\n", "ReservationName=x ", "StartTime=", "\nkintsugi-nonce begin\n"):
            grown = find_growth(work, head, pump, "\x01", longest=longest)
            assert not grown, f"{head!r} + {pump!r} * n: {grown}"


def test_a_pattern_that_grows_faster_is_found() -> None:
    slow = re.compile(r"(?:a|b)+c")
    (grown, *_) = [
        found
        for before, pump, after in growth.attacks(slow.pattern)
        if (found := find_growth(slow.search, before, pump, after))
    ]
    assert "bytes took" in grown


def test_one_that_is_cubic_is_found_before_it_hangs() -> None:
    cubic = re.compile(r"x\s*\s*\s*y")
    began = time.thread_time()
    assert "bytes took" in find_growth(cubic.search, "x", " ", "z")
    # 1 KiB of it alone takes some seconds; 16 KiB took an hour.
    assert time.thread_time() - began < 60


def test_no_garbage_is_collected_while_something_is_measured() -> None:
    during: list[str] = []

    def note_collection(phase: str, _counts: object) -> None:
        during.append(phase)

    def allocate(text: str) -> object:
        gc.callbacks.append(note_collection)
        held = [[character] for character in text]
        gc.callbacks.remove(note_collection)
        return held

    measure_cpu(allocate, "a" * 100_000, time.thread_time, give_up_s=60.0)
    assert (during, gc.isenabled()) == ([], True)
    allocate("a" * 100_000)
    assert during


EXPONENTIAL = ("(?:a+)+c", "(?:a|a)*b", r"x(?:\s*\S*)*y", r"^(\d+)*$", "((a*)*)*b")
CUBIC = (r"x\s*\s*\s*y", r"\d*\d*\d*x")


@pytest.mark.parametrize("source", [*EXPONENTIAL, *CUBIC])
def test_what_would_not_end_is_named_within_seconds(source: str) -> None:
    pattern = re.compile(source)
    began = time.thread_time()
    found = ""
    for before, pump, after in growth.attacks(source):
        found = found or find_growth(pattern.search, before, pump, after, longest=64 * growth.KIB)
    assert "bytes took" in found
    assert time.thread_time() - began < SECONDS
    began = time.thread_time()
    assert " s for " in find_slow_pattern(pattern, longest=64 * growth.KIB)
    assert time.thread_time() - began < SECONDS


# Our choice: somebody waits for it.
SECONDS = 15.0


@pytest.fixture(scope="module", params=["RE2", "re"])
def matcher(request: pytest.FixtureRequest) -> Iterator[Matcher]:
    """As the receiver has it, and as the check on a node, where there is no RE2."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "re":
            patch.setattr(line_patterns, "re2", None)
        yield Matcher(catalog.load())


def _signature_attacks() -> Iterator[tuple[str, str, str]]:
    """Drawn from each signature; one of each first word and pump is enough."""
    found: dict[tuple[str, str], tuple[str, str, str]] = {}
    for signature in catalog.load().signatures:
        for before, pump, after in growth.attacks(signature.pattern):
            found.setdefault((before[:12], pump), (before, pump, after))
        for before, pump, after in growth.attacks(signature.unless or "x"):
            found.setdefault((before[:12], pump), (before, pump, after))
    return iter(sorted(found.values()))


def test_no_signature_takes_longer_than_its_line_is_long(matcher: Matcher, longest: int) -> None:
    def work(text: str) -> object:
        line = f"<3>1 - gn042 kernel - - - {text}".encode("utf-8", "replace").replace(b"\n", b" ")
        return matcher.facts(line, default_host="x", observed_at=_AT, zone=UTC)

    for before, pump, after in _signature_attacks():
        line = before + pump * (64 * growth.KIB // len(pump)) + after
        began = time.thread_time()
        work(line)
        # Beyond 8 KiB nothing is matched; a step of a quadratic one at 64 KiB takes 1 s.
        if time.thread_time() - began > 0.02:
            grown = find_growth(work, before, pump, after, longest=longest)
            assert not grown, f"{before[:60]!r} + {pump!r} * n: {grown}"


@pytest.mark.parametrize(
    "head",
    ["", "<3>", "<3>1 - ", "<3>1 - gn042 kernel - - - ", "Jan 12 03:04:05 gn042 ", "[1.000000] "],
)
def test_no_header_takes_longer_than_its_line_is_long(head: str, longest: int) -> None:
    def work(text: str) -> object:
        return parse_header(text.encode("utf-8", "replace"), observed_at=_AT, zone=UTC)

    for pump in (*_PUMPS, "a ", '[a b="c"]', "message repeated 2 times: [ ", "1: ", "a@", "x\t"):
        for after in ("", ")", "]"):
            grown = find_growth(work, head, pump, after, longest=longest)
            assert not grown, f"{head!r} + {pump!r} * n + {after!r}: {grown}"


def _captured(name: str) -> list[str]:
    """The largest files of a detector's captures, as pumps."""
    files = [path for path in (_SIGNALS / name).rglob("*") if path.suffix not in (".json", ".toml")]
    texts = sorted(
        (path for path in files if path.is_file()), key=lambda path: -path.stat().st_size
    )
    return [path.read_text(errors="replace")[: 2 * growth.KIB] for path in texts[:2]]


@pytest.mark.parametrize("detector", registry.DETECTORS, ids=lambda detector: detector.name)
def test_no_parser_takes_longer_than_its_output_is_long(detector: Any, longest: int) -> None:
    def work(text: str) -> object:
        content = text.encode("utf-8", "replace")
        reading = _reading(detector, Output(0, content, b"", timedelta(0)))
        return list(detector.parse(reading))

    for pump in (*_PUMPS, *_captured(detector.name)):
        if pump:
            grown = find_growth(work, "", pump, "\x01", longest=longest)
            assert not grown, f"{pump[:40]!r} * n: {grown}"
