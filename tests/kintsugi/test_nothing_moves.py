"""Critical nodes for which nothing moves, from the events to the message that asks a person."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors import resources
from incidents.models import Incident
from incidents.notify.notifier import Reply
from kintsugi.web import console
from runbooks.fleet import breaker
from runbooks.models import Run
from tests.builders import an_incident
from tests.kintsugi.test_pipeline import House
from tests.kintsugi.web.test_wider_causes import armed, drained, happen

pytestmark = pytest.mark.django_db
__all__ = ["armed"]


def lose_gpu(house: House, node: str) -> None:
    house.stage.world.inject("gpu_lost", f"node/{node}/gpu/2")
    happen(house, "gpu.xid.79", resources.gpu(node, house.stage.world.nodes[node].gpus[2].pci))


def loud(house: House) -> list[str]:
    """What was told in the channel as well as in a thread."""
    contents = [message.content for message in house.stage.notifier.messages]
    return [content.text for content in contents if isinstance(content, Reply) and content.is_loud]


def test_each_node_that_the_breaker_keeps_in_service_is_asked_about_and_the_channel_is_told_once(
    armed: House,
) -> None:
    lost = [f"gn{number:03}" for number in range(4, 49, 4)]
    for node in lost:
        lose_gpu(armed, node)
    armed.let_pass(timedelta(minutes=12))

    kept = Incident.objects.filter(node__name__in=set(lost) - set(drained(armed)))
    # Ten of a hundred are drained, as of no use, and the eleventh trips the breaker.
    assert kept.count() == 2
    assert {incident.needs_human.partition(":")[0] for incident in kept} == {"The breaker is open"}
    tripped = Incident.objects.get(fault_type=breaker.FAULT_TYPE)
    assert tripped.needs_human.startswith("Find out why so many nodes turned bad at once")
    assert [text for text in loud(armed) if "breaker" in text] == [
        text for text in loud(armed) if text.endswith(tripped.needs_human)
    ]
    assert {ask.about for ask in console.get_waiting_items()} == {
        str(incident) for incident in (*kept, tripped)
    }


def test_the_home_page_says_how_many_more_ask_than_it_lists() -> None:
    for number in range(console.HOME_ROWS + 5):
        an_incident(
            resource=f"node/gn{number:03}/gpu/0000:19:00.0", needs_human=f"Look at gn{number:03}."
        )

    asks = console.get_waiting_items()

    assert [ask.text for ask in asks[-2:]] == [
        "Look at gn024.",
        "See what else is asked of people: 5 more",
    ]


def test_a_person_is_asked_for_a_node_that_may_not_be_rebooted_again_today(armed: House) -> None:
    lose_gpu(armed, "gn017")
    armed.let_pass(timedelta(minutes=8))
    assert Run.objects.get().state == "succeeded"
    armed.stage.world.inject("gsp_timeout", "node/gn017/gpu/3")
    happen(
        armed, "gpu.xid.119", resources.gpu("gn017", armed.stage.world.nodes["gn017"].gpus[3].pci)
    )
    armed.let_pass(timedelta(minutes=12))

    incident = Incident.objects.get(fault_type="gpu.xid.119")
    assert incident.needs_human.startswith("gn017 was restarted within 24 h and is drained")
    assert loud(armed)[-1].endswith(incident.needs_human)
    assert "a node is rebooted once in 24 h" in loud(armed)[-1]


def test_a_person_is_asked_for_water_in_a_machine_for_which_there_is_no_runbook(
    armed: House,
) -> None:
    happen(armed, "facility.leak", "node/gn030")
    armed.let_pass(timedelta(minutes=9))
    assert Incident.objects.get().needs_human == ""
    armed.let_pass(timedelta(minutes=2))

    incident = Incident.objects.get()
    assert incident.needs_human.startswith(
        "Look after gn030 by hand: no runbook is for facility.leak"
    )
    assert len(loud(armed)) == 1
    armed.let_pass(timedelta(hours=1))
    assert len(loud(armed)) == 1
