"""The three tiers of the suite, and the order in which its tests run.

`--tier=fast` keeps the pure tests that `durations.tsv` does not know to be slow, `--tier=plain` all
but the longest plays, `--tier=deep` what plain left out or shortened, at full length. Without
`--tier` every test that was named runs, as in plain. `--record` keeps the durations of the tests
that ran.
"""

from __future__ import annotations

import enum
import gc
import os
import re
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.db import connection
from hypothesis.internal.conjecture import providers

from tests.durations import (
    QUICK,
    Duration,
    get_key,
    get_slowest,
    load_durations,
    read_clocks,
    save_durations,
)
from tests.statements import StatementRecorder, choose_tests, load_chosen, save_chosen
from tests.touched import Touched

# What one test of the fast tier may take, and one of the plain tier.
FAST = Duration(wall_s=1.0, cpu_s=0.15)
PLAIN = Duration(wall_s=100.0, cpu_s=100.0)
# Marks of tests that are not for the fast tier, however quick.
NOT_PURE = ("database", "needs")
EXAMPLES = {"fast": 10, "plain": 100, "deep": 1000}
_MARKS_OF_FILE = re.compile(r"^pytestmark = .*(?:\n[ )\]].*)*", re.MULTILINE)
_USES_SERVICE = re.compile(r"\bmark\.(?:django_db|needs)\b")
_SPEAKS_OF_SQLITE = re.compile(r"\bmark\.sqlite\b|\bdatabase_on_disk\b")
# How much of what a failed test said is repeated, in characters.
_SAID = 1500
# Tests that share a fixture of these scopes run one after the other, or it is made for each.
_SHARED_SCOPES = {"class", "module", "package"}


class Tier(enum.StrEnum):
    FAST = "fast"
    PLAIN = "plain"
    DEEP = "deep"


@dataclass
class Unit:
    """Tests that run one after the other in one process."""

    items: list[pytest.Item] = field(default_factory=list)
    seconds: float = 0.0


def _get_unit_key(item: pytest.Item) -> str:
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    ours = [found[-1] for found in fixtures.values() if found and found[-1].baseid]
    is_shared = any(fixture.scope in _SHARED_SCOPES for fixture in ours)
    # Which fixtures one asks for by name is known only when it runs: a service may be among them.
    asks_by_name = any("request" in fixture.argnames for fixture in ours)
    may_share_service = asks_by_name and item.get_closest_marker("needs") is not None
    return str(item.path) if is_shared or may_share_service else item.nodeid


def get_units(items: Iterable[pytest.Item], durations: dict[str, Duration]) -> list[Unit]:
    """Slowest first."""
    units: dict[str, Unit] = {}
    for item in items:
        unit = units.setdefault(_get_unit_key(item), Unit())
        unit.items.append(item)
        unit.seconds += durations.get(get_key(item), QUICK).longest_s
    return sorted(units.values(), key=lambda unit: -unit.seconds)


def deal(units: list[Unit], workers: int) -> list[pytest.Item]:
    """The order of which xdist's work stealing gives each worker as many tests and as many seconds
    as the others, the units in the order given."""
    quota = sum(len(unit.items) for unit in units) / workers
    hands = [Unit() for _ in range(workers)]
    for unit in units:
        with_room = [hand for hand in hands if len(hand.items) < quota]
        hand = min(with_room or hands, key=lambda hand: hand.seconds)
        hand.items += unit.items
        hand.seconds += unit.seconds
    return [item for hand in hands for item in hand.items]


def is_within(duration: Duration, limit: Duration) -> bool:
    return duration.wall_s <= limit.wall_s and duration.cpu_s <= limit.cpu_s


def uses_services(file: Path) -> bool:
    """Whether each of its tests does, by the marks that it gives all of them."""
    if not file.name.startswith("test_") or file.suffix != ".py":
        return False
    marks = _MARKS_OF_FILE.search(file.read_text(encoding="utf-8"))
    return marks is not None and _USES_SERVICE.search(marks[0]) is not None


def is_longer_in_deep(item: pytest.Item) -> bool:
    """Whether plain runs it with fewer examples or fewer rounds."""
    is_property = bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
    return is_property or "is_full_length" in getattr(item, "fixturenames", ())


def belongs(item: pytest.Item, tier: str, durations: dict[str, Duration]) -> bool:
    duration = durations.get(get_key(item), QUICK)
    if tier == Tier.FAST:
        is_pure = not any(item.get_closest_marker(name) for name in NOT_PURE)
        return is_pure and is_within(duration, FAST)
    is_long = not is_within(duration, PLAIN)
    if tier == Tier.DEEP:
        return is_long or is_longer_in_deep(item)
    return not is_long or is_longer_in_deep(item)


def drives(item: pytest.Item, program: str) -> bool:
    """Whether it is marked as needing this program."""
    return any(program in mark.args for mark in item.iter_markers("needs"))


def is_repeated_on_sqlite(item: pytest.Item, which: str, chosen: frozenset[str]) -> bool:
    """`which`: `differing`, or `rest` for all others that use the database. Of those that need a
    program, which have their statements and races in tests without one, the rest has what runs on a
    file as in production."""
    runs_on_file = "database_on_disk" in getattr(item, "fixturenames", ())
    needs_program = item.get_closest_marker("needs") is not None
    is_race = runs_on_file and not needs_program
    is_of_sqlite = item.get_closest_marker("sqlite") is not None
    is_differing = get_key(item) in chosen or is_of_sqlite or is_race
    if which == "differing":
        return is_differing
    if needs_program:
        return runs_on_file and not is_differing
    uses_database = item.get_closest_marker("database") is not None
    return uses_database and not is_differing


def may_differ_on_sqlite(file: Path, chosen: frozenset[str]) -> bool:
    """Whether one of its tests may be of those that `is_repeated_on_sqlite` calls differing: it has a
    chosen one, or its text names a race or the embedded database."""
    if not file.name.startswith("test_") or file.suffix != ".py":
        return True
    has_chosen = any(key.startswith(f"{file.name}::") for key in chosen)
    return has_chosen or _SPEAKS_OF_SQLITE.search(file.read_text(encoding="utf-8")) is not None


@pytest.fixture(scope="session")
def is_full_length(request: pytest.FixtureRequest) -> bool:
    """Whether a test that repeats something does so as often as it can: in the deep tier."""
    return request.config.getoption("--tier") == Tier.DEEP


def _load_hypothesis_profile(tier: str) -> None:
    """The same examples on every run in CI, so that a failure there is the change's own; elsewhere
    new ones each time. The explain phase traces every line and takes longer than all others."""
    phases = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
    hypothesis.settings.register_profile(
        tier,
        max_examples=EXAMPLES[tier],
        derandomize=tier == Tier.FAST or os.environ.get("CI") == "true",
        deadline=None,
        phases=phases,
    )
    hypothesis.settings.load_profile(tier)
    if tier == Tier.FAST:
        # It reads the source of every module of ours for values to try, at each start: seconds of
        # each process, for ten examples a test.
        providers._get_local_constants = lambda: providers._local_constants


class TierRun:
    """What one process of a run selects, orders, measures and leaves out."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tier: str | None = config.getoption("--tier")
        base: str | None = config.getoption("--touched-first")
        self.touched = Touched(base) if base else None
        self.on_sqlite: str | None = config.getoption("--on-sqlite")
        self.program: str | None = config.getoption("--driving")
        self.chosen = load_chosen()
        self.recorder = StatementRecorder() if config.getoption("--record") else None
        self.shapes: dict[str, set[str]] = {}
        self.durations = load_durations()
        self.measured: list[tuple[str, Duration]] = []
        self.left_out: list[str] = []
        # Set by the first process, which the workers inherit it from.
        self.started_at = float(os.environ.setdefault("TEST_RUN_STARTED_AT", str(time.time())))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self.tier is None:
            return
        kept, others = [], []
        for item in items:
            (kept if self._belongs(item, self.tier) else others).append(item)
        if others:
            config.hook.pytest_deselected(items=others)
        units = get_units(kept, self.durations)
        if self.touched is not None:
            get_distance = self.touched.get_distance
            units.sort(key=lambda unit: get_distance(unit.items[0].path))
        workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
        items[:] = deal(units, workers)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """What is only left out again is not read: half of all files, and most of them on SQLite."""
        if self.tier == Tier.FAST and uses_services(collection_path):
            return True
        if self.on_sqlite == "differing" and not may_differ_on_sqlite(collection_path, self.chosen):
            return True
        return None

    def pytest_collection_finish(self) -> None:
        """What is loaded by now stays: the garbage collector need not look at it again."""
        gc.collect()
        gc.freeze()

    def _belongs(self, item: pytest.Item, tier: str) -> bool:
        if self.program is not None and not drives(item, self.program):
            return False
        if self.on_sqlite is not None:
            return is_repeated_on_sqlite(item, self.on_sqlite, self.chosen)
        return belongs(item, tier, self.durations)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        limit_s = self.config.getoption("--start-within")
        if limit_s is None or time.time() < self.started_at + limit_s:
            return None
        self.left_out.append(item.nodeid)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtest_protocol")
    # pytest takes no hook whose name does not begin so.
    def pytest_measure(self, item: pytest.Item) -> Generator[None, object, object]:
        started = read_clocks()
        result = yield
        if item.nodeid in self.left_out[-1:]:
            return result
        key = get_key(item)
        self.measured.append((key, read_clocks() - started))
        if self.recorder is not None:
            shapes = self.recorder.take_shapes()
            if item.get_closest_marker("needs") is None:
                self.shapes[key] = shapes
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.left_out += output.get("left_out", [])
        self.measured += [(key, Duration(*s)) for key, s in output.get("measured", [])]
        self.shapes |= {key: set(shapes) for key, shapes in output.get("shapes", {}).items()}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = self.left_out
            output["measured"] = [(key, (d.wall_s, d.cpu_s)) for key, d in self.measured]
            output["shapes"] = {key: sorted(shapes) for key, shapes in self.shapes.items()}
        elif self.recorder is not None:
            self._save_record()

    def _save_record(self) -> None:
        known = self.durations | get_slowest(self.measured)
        save_durations(known)
        if self.tier == Tier.PLAIN and connection.vendor == "postgresql":
            seconds = {key: duration.longest_s for key, duration in known.items()}
            save_chosen(choose_tests(self.shapes, seconds))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        failures = self.config.getoption("--failures-to")
        if failures is not None:
            _append_failures(Path(failures), terminalreporter.stats)
        if self.left_out:
            terminalreporter.section(f"left out for want of time: {len(self.left_out)}")
            for nodeid in sorted(self.left_out):
                terminalreporter.write_line(nodeid)
        if self.tier == Tier.PLAIN and self.on_sqlite is None:
            self._print_long(terminalreporter)
        if self.tier == Tier.FAST:
            self._print_slow(terminalreporter)

    def _print_long(self, terminalreporter: Any) -> None:
        long = [key for key, taken in self.durations.items() if not is_within(taken, PLAIN)]
        for key in long:
            terminalreporter.write_line(f"left to the deep tier: {key}")

    def _print_slow(self, terminalreporter: Any) -> None:
        slow = {
            key: duration
            for key, duration in get_slowest(self.measured).items()
            if not is_within(duration, FAST)
        }
        if slow:
            terminalreporter.section("slow for this tier; ./script/test --record leaves them out")
        for key, duration in sorted(slow.items(), key=lambda row: -row[1].longest_s):
            terminalreporter.write_line(f"{duration.cpu_s:6.2f} s of CPU  {key}")


def _append_failures(file: Path, stats: Mapping[str, Sequence[Any]]) -> None:
    """A line for each test that failed, and the end of what it said."""
    with file.open("a") as lines:
        for report in [*stats.get("failed", ()), *stats.get("error", ())]:
            said = getattr(report, "longreprtext", "")
            lines.write(f"{report.nodeid}\n{said[-_SAID:]}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=[str(tier) for tier in Tier], help="which tests run")
    group.addoption("--record", action="store_true", help="keep how long each test took")
    group.addoption(
        "--on-sqlite",
        choices=["differing", "rest"],
        help="of what uses a database, what the databases do not read alike, or all else",
    )
    group.addoption("--driving", metavar="PROGRAM", help="of these, what drives this program")
    group.addoption("--touched-first", metavar="BASE", help="first what differs from this commit")
    group.addoption(
        "--start-within",
        type=float,
        metavar="SECONDS",
        help="start no test later than that, and name those left out",
    )
    group.addoption(
        "--failures-to", metavar="FILE", help="add to this file what failed, and how it ended"
    )


def pytest_configure(config: pytest.Config) -> None:
    _load_hypothesis_profile(config.getoption("--tier") or Tier.PLAIN)
    config.pluginmanager.register(TierRun(config), "kintsugi-tier-run")
