"""Pauses of polls: by detector and node, ended by their holder or by time, and never silent for
ever."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from incidents.models import Node, PollChunk, PollPause
from incidents.polling import poll_pauses, polling
from incidents.polling.polling import Chunk, PollPace
from tests.builders import NOW
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
TICK = timedelta(seconds=5)
NODES = ("gn001", "gn002")
PACES = [PollPace(name, "node", MINUTE, frozenset(NODES)) for name in ("gpu", "nic")]


@pytest.fixture(autouse=True)
def schedule() -> None:
    Node.objects.bulk_create(Node(name=name, address=name) for name in NODES)
    polling.plan(PACES, NOW)
    PollChunk.objects.update(next_poll_at=NOW)


def paused(node: str = "gn001", *, holder: str = "run 1", lasts: timedelta = 15 * MINUTE) -> None:
    poll_pauses.pause(
        node, ("gpu",), holder=holder, why="it resets a GPU", until=NOW + lasts, now=NOW
    )


def looked_at(detector: str, now: datetime = NOW) -> set[str]:
    chunks = [polling.begin(chunk, now) for chunk in polling.claim(PACES, now, tick=TICK)]
    return {target for chunk in chunks if chunk.detector == detector for target in chunk.targets}


def test_paused_detector_leaves_its_node_alone_and_nothing_else() -> None:
    paused()
    chunks = polling.claim(PACES, NOW, tick=TICK)
    assert {(chunk.detector, target) for chunk in chunks for target in chunk.targets} == {
        ("gpu", "gn002"),
        ("nic", "gn001"),
        ("nic", "gn002"),
    }


def test_node_is_looked_at_again_as_soon_as_the_holder_ends_it() -> None:
    paused()
    poll_pauses.end("run 1")
    assert looked_at("gpu") == set(NODES)


def test_pause_of_another_holder_stands_when_one_ends() -> None:
    paused()
    paused(holder="run 2")
    poll_pauses.end("run 1")
    assert looked_at("gpu") == {"gn002"}


def test_pause_ends_by_itself_when_its_holder_has_died() -> None:
    paused(lasts=MINUTE)
    assert looked_at("gpu", NOW + MINUTE - TICK) == {"gn002"}
    assert "gn001" in looked_at("gpu", NOW + MINUTE)


def test_pause_told_again_lasts_longer_and_stays_one() -> None:
    paused(lasts=MINUTE)
    paused(lasts=5 * MINUTE)
    assert PollPause.objects.get().until == NOW + 5 * MINUTE
    assert poll_pauses.get_paused_detectors("gn001", NOW + 2 * MINUTE) == {"gpu"}
    assert poll_pauses.get_paused_detectors("gn002", NOW) == frozenset()


def test_look_that_was_rung_before_the_pause_and_not_begun_is_let_go() -> None:
    chunk = next(chunk for chunk in polling.claim(PACES, NOW, tick=TICK) if chunk.detector == "gpu")
    paused()
    assert not poll_pauses.is_quiet("gn001", ("gpu",), NOW)
    assert polling.begin(chunk, NOW).targets == ("gn002",)
    assert poll_pauses.is_quiet("gn001", ("gpu",), NOW)


def test_look_under_way_is_known_until_it_ends_or_its_lease_does() -> None:
    chunk = next(chunk for chunk in polling.claim(PACES, NOW, tick=TICK) if chunk.detector == "gpu")
    begun: Chunk = polling.begin(chunk, NOW)
    paused()
    assert not poll_pauses.is_quiet("gn001", ("gpu",), NOW)
    assert poll_pauses.is_quiet("gn001", ("nvlink",), NOW)
    assert poll_pauses.is_quiet("gn001", ("gpu",), begun.lease)


def test_pauses_that_are_over_are_forgotten_with_the_next() -> None:
    paused("gn002", lasts=MINUTE)
    poll_pauses.pause(
        "gn001",
        ("gpu",),
        holder="run 2",
        why="it resets a GPU",
        until=NOW + 9 * MINUTE,
        now=NOW + 2 * MINUTE,
    )
    assert [row.node for row in PollPause.objects.all()] == ["gn001"]


def test_nodes_page_says_who_leaves_it_alone_and_until_when(people: People) -> None:
    now = timezone.now()
    poll_pauses.pause(
        "gn001", ("gpu",), holder="run 1", why="run 1 resets a GPU", until=now + 9 * MINUTE, now=now
    )
    page = people.viewer.get(
        f"/incidents/node/{Node.objects.get(name='gn001').pk}/change/"
    ).content.decode()
    assert "Not looked at by gpu since" in page
    assert "run 1 resets a GPU" in page
