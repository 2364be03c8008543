"""Kintsugi's own overload is told as its own: nothing is concluded from silence, and no repair
waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from detectors.detector import DetectorError, Unreachable
from incidents import services
from incidents.checks import overload
from incidents.checks.overload import LATE, OVERLOADED, STEADY, Pace
from incidents.models import Fault, Incident, Poll
from incidents.polling.polling import LEASE
from kintsugi.web import banners
from tests.builders import NOW, a_clear, a_node, a_switch, an_event
from tests.kintsugi.periodic.test_polling import MINUTE, House, Told
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
SLOW = Pace(12.0, timedelta(hours=1))
WELL = Pace(1.2, timedelta(hours=1))
UNKNOWN = Pace(None, timedelta(hours=1))


def everybody(names: Sequence[str]) -> Sequence[str]:
    return names


def nobody_can_be_asked(names: Sequence[str]) -> None:
    return None


class Silent(House):
    """Nodes that stop answering while Slurm hears them all, and a process that gets on as a test
    says."""

    def __init__(self, *, nodes: int = 9) -> None:
        self.told = Told()
        self.own_pace = WELL
        self.hears: Any = everybody
        super().__init__(self.told, nodes=nodes)

    def fall_silent(self) -> None:
        self.told.seen = {
            name: Unreachable(f"{name} (10.0.0.1:22): timed out") for name in self.names
        }

    def answer(self) -> None:
        self.told.seen = {}

    def sweep(self) -> None:
        services.ingest(
            services.evaluate_overload(self.now, pace=self.own_pace, hears=self.hears), now=self.now
        )
        services.ingest(
            services.evaluate_management_network(self.now, hears=self.hears), now=self.now
        )
        services.ingest(services.evaluate_blindness(self.now), now=self.now)
        services.sweep(now=self.now)

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.rounds()
            self.sweep()

    def told_of(self) -> set[str]:
        """Incidents, and our own fault, which opens none."""
        own = Fault.objects.filter(fault_type=OVERLOADED).values_list("fault_type", flat=True)
        incidents = set(Incident.objects.values_list("fault_type", flat=True))
        assert OVERLOADED not in incidents
        return incidents | set(own)


def test_silence_is_concluded_from_when_we_get_on_well() -> None:
    """What the next tests must not see."""
    house = Silent()
    house.fall_silent()
    house.minutes(6)
    assert house.told_of() == {"network.management_unreachable"}


def test_nothing_is_concluded_from_silence_while_we_wait_for_a_processor_and_one_fault_of_our_own_says_so() -> (
    None
):
    house = Silent()
    house.fall_silent()
    house.own_pace = SLOW
    house.minutes(15)
    assert house.told_of() == {OVERLOADED}
    fault = Fault.objects.get(fault_type=OVERLOADED)
    said = fault.evidence.get().excerpt
    assert "what should take it 1 s takes 12 s" in said
    assert "Give its machine more processors" in said


def test_faults_that_were_recorded_before_we_knew_open_nothing_when_all_answer_again() -> None:
    house = Silent(nodes=2)  # too few for a conclusion: each would have an incident of its own
    house.fall_silent()
    house.minutes(3)
    assert Fault.objects.filter(fault_type="target.unreachable", is_active=True).count() == 2
    house.own_pace = SLOW
    house.minutes(10)
    house.answer()
    house.minutes(1)
    house.own_pace = WELL
    house.minutes(10)
    assert house.told_of() == {OVERLOADED}
    assert not Fault.objects.filter(is_active=True).exists()


def test_who_is_silent_still_when_the_overload_is_over_is_told_then() -> None:
    house = Silent()
    house.fall_silent()
    house.own_pace = SLOW
    house.minutes(10)
    house.own_pace = WELL
    house.minutes(8)
    assert not Fault.objects.get(fault_type=OVERLOADED).is_active
    assert house.told_of() == {OVERLOADED, "network.management_unreachable"}


def test_a_detector_that_gives_no_answer_while_we_are_overloaded_is_not_called_blind() -> None:
    house = Silent()
    house.told.seen = {name: DetectorError("not done within 30 s") for name in house.names}
    house.told.seen["gn001"] = Unreachable("gn001 (10.0.0.1:22): timed out")
    house.own_pace = SLOW
    house.minutes(15)
    assert house.told_of() == {OVERLOADED}


def test_the_overload_lasts_as_long_as_we_are_slow_whoever_answers_meanwhile() -> None:
    house = Silent()
    house.fall_silent()
    house.own_pace = SLOW
    house.minutes(3)
    house.answer()
    house.minutes(5)
    assert Fault.objects.get(fault_type=OVERLOADED).is_active
    house.own_pace = Pace(STEADY - 0.1, timedelta(hours=1))
    house.minutes(1)
    assert not Fault.objects.get(fault_type=OVERLOADED).is_active
    assert Fault.objects.filter(fault_type=OVERLOADED).count() == 1
    assert Incident.objects.count() == 0


def test_being_slow_is_told_to_nobody_while_all_answer() -> None:
    house = Silent()
    house.own_pace = SLOW
    house.minutes(10)
    assert house.told_of() == set()


def test_a_process_that_does_not_know_its_pace_ends_no_overload() -> None:
    house = Silent()
    house.fall_silent()
    house.own_pace = SLOW
    house.minutes(3)
    house.own_pace = UNKNOWN
    house.minutes(3)
    assert Fault.objects.get(fault_type=OVERLOADED).is_active


class TestLatePolls:
    def polls(self, lag: timedelta, *, late: int, of: int = 20, leased: bool = False) -> None:
        due = NOW - lag
        for number in range(of):
            at = due if number < late else NOW + MINUTE
            until = due + LEASE + timedelta(seconds=2) if leased else None
            Poll.objects.create(
                detector="told",
                kind="node",
                target=f"gn{number}",
                next_poll_at=at,
                leased_until=until,
            )

    def said(self, pace: Pace = WELL) -> list[str]:
        return [
            event.excerpt for event in services.evaluate_overload(NOW, pace=pace, hears=everybody)
        ]

    def test_many_polls_that_begin_late_are_told_with_the_seconds(self) -> None:
        self.polls(timedelta(seconds=95), late=5)
        assert ["begin up to 95 s late" in text for text in self.said()] == [True]

    def test_few_late_polls_are_no_overload(self) -> None:
        self.polls(timedelta(seconds=95), late=2)
        assert self.said() == []

    def test_polls_that_are_not_later_than_half_a_period_are_no_overload(self) -> None:
        self.polls(LATE, late=20)
        assert self.said() == []

    def test_a_poll_under_way_is_as_late_as_it_was_begun_however_long_its_target_hangs(
        self,
    ) -> None:
        self.polls(timedelta(seconds=95), late=20, leased=True)
        assert self.said() == []

    def test_what_was_missed_while_kintsugi_was_stopped_is_no_overload(self) -> None:
        self.polls(timedelta(hours=8), late=20)
        assert self.said(Pace(1.0, timedelta(minutes=1))) == []


def test_one_that_reaches_nothing_at_all_looks_at_its_own_link() -> None:
    names = [f"gn{number}" for number in range(6)]
    for name in names:
        a_node(name)
        a_switch(f"leaf-{name}")
    owners = [f"node/{name}" for name in names] + [f"switch/leaf-{name}" for name in names]
    services.ingest([an_event("target.unreachable", owner, at=NOW) for owner in owners], now=NOW)
    (event,) = services.evaluate_overload(NOW, pace=WELL, hears=nobody_can_be_asked)
    assert "6 of 6 nodes and 6 of 6 switches do not answer it, nor does Slurm" in event.excerpt
    assert services.evaluate_overload(NOW, pace=WELL, hears=everybody) == []
    services.ingest(
        [a_clear("target.unreachable", owner, at=NOW + MINUTE) for owner in owners[:4]],
        now=NOW + MINUTE,
    )
    assert services.evaluate_overload(NOW + MINUTE, pace=WELL, hears=nobody_can_be_asked) == []


def test_a_banner_says_that_kintsugi_is_overloaded_and_what_to_do() -> None:
    assert not [banner for banner in banners.get_banners() if "overloaded" in banner.text]
    services.ingest(
        [an_event(OVERLOADED, overload.RESOURCE, excerpt="Polls are 95 s late. Give it more.")],
        now=NOW,
    )
    (banner,) = [banner for banner in banners.get_banners() if "overloaded" in banner.text]
    assert (
        banner.text == "Kintsugi is overloaded since 03:00 UTC. Polls are 95 s late. Give it more."
    )


def test_no_repair_waits_for_our_own_overload() -> None:
    site = Site(nodes=4)
    services.ingest([an_event(OVERLOADED, overload.RESOURCE, at=site.now)], now=site.now)
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == "succeeded"
    assert not [line for line in site.story(run.incident) if "wider cause" in line]
