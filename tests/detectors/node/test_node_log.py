"""Kernel lines of a node's journal: each once, none of before the first sight, and told when some
were lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Output, Reading, Sample, Target, Transports
from detectors.evaluation import judge
from detectors.faults import EventKind, FaultEvent, Observation
from detectors.logs.log_events import lines_to_events
from detectors.logs.signatures import Matcher
from detectors.node.node_log import MOST_LINES, WINDOW, NodeLogDetector
from detectors.polling import observe_one
from fixtures.cluster.facets.node_log import NodeLogFacet
from fixtures.cluster.log_line import Priority
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.matching import get_shipped_matcher

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
TARGET = Target("gn001", "127.0.0.1")
NODE_LOG = NodeLogDetector()
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return get_shipped_matcher(engine="re")


def entry(
    number: int, message: object = "usb 1-1: new device", **fields: object
) -> dict[str, object]:
    micros = int(NOW.timestamp() * 1e6) - 500_000_000 + number * 1_000_000
    return {
        "__CURSOR": f"s=1f;i={number:x};b=9b;m={number:x};t={micros:x};x={number:x}",
        "__REALTIME_TIMESTAMP": str(micros),
        "_SOURCE_MONOTONIC_TIMESTAMP": str(777_000_000_101 + number * 1_000_000),
        "PRIORITY": "3",
        "MESSAGE": message,
        **fields,
    }


def reading(entries: Sequence[dict[str, object]], at: datetime = NOW) -> Reading:
    text = "".join(json.dumps(each) + "\n" for each in entries).encode()
    return Reading("node_log", TARGET, at, {"journal": Output(0, text, b"", timedelta(0))})


class Rounds:
    """Round after round of one node, as the poller keeps its memory."""

    def __init__(self) -> None:
        self.memory = judge.Memory()
        self.at = NOW

    def see(
        self, entries: Sequence[dict[str, object]], *, after: timedelta = timedelta(minutes=1)
    ) -> list[Observation]:
        self.at += after
        seen = list(NODE_LOG.parse(reading(entries, self.at)))
        compared = list(NODE_LOG.compare(seen, self.memory.samples))
        self.memory = judge.judge_round(
            NODE_LOG, seen, self.memory, active=(), catalog=catalog.load()
        ).memory
        return compared


def new(compared: Sequence[Observation]) -> list[str]:
    return [o.attributes["cursor"] for o in compared if o.metric == "log.line"]


def is_complete(compared: Sequence[Observation]) -> bool:
    return next(o.value for o in compared if o.metric == "log.complete") is True


def test_lines_of_before_the_first_sight_are_never_new() -> None:
    rounds = Rounds()
    assert rounds.see([entry(1, XID)]) == []
    assert new(rounds.see([entry(1, XID)])) == []


def test_what_follows_an_empty_first_sight_is_new() -> None:
    rounds = Rounds()
    rounds.see([])
    assert new(rounds.see([entry(1)])) == [entry(1)["__CURSOR"]]


def test_the_place_is_kept_while_the_kernel_is_quiet() -> None:
    rounds = Rounds()
    rounds.see([entry(1)])
    for _ in range(30):
        assert is_complete(rounds.see([]))
    assert new(rounds.see([entry(2)])) == [entry(2)["__CURSOR"]]


@given(cuts=st.lists(st.integers(0, 40), max_size=8), keep=st.integers(0, 40))
def test_every_line_is_new_exactly_once_however_rounds_fall(cuts: list[int], keep: int) -> None:
    rounds, entries, told = Rounds(), [entry(number) for number in range(40)], []
    ends = sorted([0, *cuts, 40])
    for end in ends:
        told += new(rounds.see(entries[max(0, min(ends) - keep) : end]))
    assert told == [each["__CURSOR"] for each in entries]


def test_a_poller_that_was_away_longer_than_the_window_tells_that_lines_were_lost() -> None:
    rounds = Rounds()
    rounds.see([entry(1)])
    compared = rounds.see([entry(900)], after=WINDOW + timedelta(minutes=1))
    assert not is_complete(compared)
    assert new(compared) == [entry(900)["__CURSOR"]]


def test_a_storm_beyond_what_is_read_tells_that_lines_were_lost() -> None:
    rounds = Rounds()
    rounds.see([entry(1)])
    assert not is_complete(rounds.see([entry(number) for number in range(2, MOST_LINES + 2)]))


def test_a_journal_that_was_cleared_begins_anew_without_repeating_old_lines() -> None:
    rounds = Rounds()
    rounds.see([entry(5), entry(6)])
    compared = rounds.see(
        [entry(2, __CURSOR="s=2e;i=1;t=" + entry(2)["__CURSOR"].split("t=")[1]), entry(7)]
    )  # type: ignore[attr-defined]
    assert not is_complete(compared)
    assert new(compared) == [entry(7)["__CURSOR"]]


def test_a_round_without_an_answer_moves_no_place() -> None:
    rounds = Rounds()
    rounds.see([entry(1)])
    silent = Reading(
        "node_log",
        TARGET,
        NOW,
        {"journal": Output(1, b"", b"sudo: a password is required", timedelta(0))},
    )
    assert list(NODE_LOG.compare(list(NODE_LOG.parse(silent)), rounds.memory.samples)) == []
    assert new(rounds.see([entry(1), entry(2)])) == [entry(2)["__CURSOR"]]


def test_a_message_that_is_no_text_is_read_too() -> None:
    shown = next(NODE_LOG.parse(reading([entry(1, [69, 82, 82, 255, 10, 33])])))
    assert shown.value.endswith("] ERR\N{REPLACEMENT CHARACTER} !")


def events_of(
    world: SimulatedWorld, at: datetime, memory: judge.Memory, matcher: Matcher
) -> tuple[list[FaultEvent], judge.Memory]:
    seen = observe_one(TARGET, NODE_LOG, Transports(shell=SimulatedShell(world)), at)
    events = lines_to_events(seen, memory.samples, detector=NODE_LOG, matcher=matcher)
    return events, judge.judge_round(
        NODE_LOG, seen, memory, active=(), catalog=catalog.load()
    ).memory


def test_a_line_of_the_journal_is_the_fault_that_its_copy_by_syslog_is(matcher: Matcher) -> None:
    at = NOW
    world = SimulatedWorld.sakuraone(clock=lambda: at)
    _, memory = events_of(world, at, judge.Memory(), matcher)
    at += timedelta(seconds=30)
    line = world.node("gn001").kernel(XID, at=at, priority=Priority.ERR)
    at += timedelta(seconds=30)
    (event,), memory = events_of(world, at, memory, matcher)
    (by_syslog,) = matcher.facts(line.wire(), default_host="-", observed_at=at, zone=UTC)

    assert (event.fault_type, event.resource) == ("gpu.xid.79", "node/gn001/gpu/0000:9b:00.0")
    assert event.source_key == by_syslog.source_key != ""
    assert abs(event.occurred_at - by_syslog.occurred_at) < timedelta(seconds=1)
    assert events_of(world, at, memory, matcher)[0] == []


def test_a_line_read_twice_keeps_its_identity(matcher: Matcher) -> None:
    before = judge.judge_round(
        NODE_LOG,
        list(NODE_LOG.parse(reading([]))),
        judge.Memory(),
        active=(),
        catalog=catalog.load(),
    ).memory.samples
    seen = list(NODE_LOG.parse(reading([entry(1, XID)])))
    first, second = (
        lines_to_events(seen, before, detector=NODE_LOG, matcher=matcher) for _ in range(2)
    )
    assert [event.event_id for event in first] == [event.event_id for event in second] != []


def test_the_first_boot_lines_after_a_restart_of_the_node_are_new(matcher: Matcher) -> None:
    at = NOW
    world = SimulatedWorld.sakuraone(clock=lambda: at)
    world.node("gn001").kernel("mlx5_core 0000:18:00.0 rail0: Link up", at=at)
    _, memory = events_of(world, at, judge.Memory(), matcher)
    at += timedelta(minutes=2)
    world.reboot("gn001", now=at)
    world.node("gn001").kernel(XID, at=at)
    at += timedelta(minutes=1)
    raised = [
        e.fault_type
        for e in events_of(world, at, memory, matcher)[0]
        if e.event is EventKind.RAISED
    ]
    assert raised == ["gpu.xid.79"]


_OBJECTS = st.dictionaries(st.text(max_size=4), st.integers()).map(
    lambda found: json.dumps(found).encode()
)


@given(st.lists(st.one_of(st.binary(max_size=60), _OBJECTS), max_size=6))
def test_parse_and_compare_are_total(lines: list[bytes]) -> None:
    taken = Reading(
        "node_log", TARGET, NOW, {"journal": Output(0, b"\n".join(lines), b"", timedelta(0))}
    )
    seen = list(NODE_LOG.parse(taken))
    list(NODE_LOG.compare(seen, {("node/gn001", "log.cursor"): Sample("s=1;t=zz", NOW)}))
    assert sum(o.metric == "detector.answered" for o in seen) == 1


def test_a_storm_of_lines_is_read_in_linear_time_and_bounded() -> None:
    text = (json.dumps(entry(1)) + "\n").encode() * (3 * MOST_LINES)
    seen = list(
        NODE_LOG.parse(
            Reading("node_log", TARGET, NOW, {"journal": Output(0, text, b"", timedelta(0))})
        )
    )
    assert sum(o.metric == "log.shown" for o in seen) == MOST_LINES


def test_the_simulated_storm_is_over_after_a_restart() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    facet = world.node("gn001").facet(NodeLogFacet)
    facet.is_storm = True
    world.reboot("gn001", now=NOW)
    assert not facet.is_storm
