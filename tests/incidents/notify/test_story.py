"""What a card says of a place, of what goes on, and of what is asked."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from incidents.inventory.resource_names import format_resource
from incidents.models import Gpu, Node, Switch
from incidents.notify import story
from incidents.vocabulary.lifecycle import OPEN, State
from tests.incidents.builders import T0, an_entry, an_incident

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    node = Node.objects.create(name="gn042", rack="r07", pod="pod-a")
    Gpu.objects.create(node=node, index=4, pci_address="0000:9b:00.0")
    Switch.objects.create(name="leaf-03", role="leaf", pod="pod-a", rail=2)
    return node


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("node/gn042/gpu/0000:9b:00.0", "gn042 GPU 4 (0000:9b:00.0)"),
        ("node/gn042/gpu/0000:ff:00.0", "gn042 GPU 0000:ff:00.0"),
        ("node/gn042/nic/mlx5_4", "gn042 NIC mlx5_4"),
        ("node/gn042/nvswitch/0000:05:00.0", "gn042 NVSwitch 0000:05:00.0"),
        ("node/gn042", "gn042"),
        ("node/-/gpu/0000:9b:00.0", "unknown host GPU 0000:9b:00.0"),
        ("switch/leaf-03/port/Ethernet64", "leaf-03 port Ethernet64"),
        ("switch/leaf-03", "switch leaf-03"),
    ],
)
def test_a_resource_is_said_as_a_person_says_it(resource: str, said: str) -> None:
    assert format_resource(resource) == said


def test_the_place_is_what_the_inventory_knows(node: Node) -> None:
    assert story.format_place(an_incident(node=node)) == "rack r07, pod-a"
    assert story.format_place(an_incident(owner="switch/leaf-03")) == "leaf switch, pod-a, rail 2"
    assert story.format_place(an_incident(owner="switch/unheard-of")) == "not in the inventory"
    assert story.format_place(an_incident(owner="pod/pod-a")) == "pod of the network"
    assert story.format_place(an_incident(owner="rack/r01")) == "rack"
    stranger = Node.objects.create(name="stranger", is_provisional=True)
    assert story.format_place(an_incident(node=stranger)) == "not in the inventory"


@pytest.mark.parametrize("state", list(State))
def test_every_state_says_what_happens_and_what_one_can_do(state: State) -> None:
    card = story.build_card(an_incident(state=state), now=T0)
    assert card.now.endswith(".")
    assert card.asked.endswith(".")


@pytest.mark.parametrize("state", sorted(OPEN))
def test_a_person_who_is_needed_comes_before_anything_else(state: State) -> None:
    card = story.build_card(an_incident(state=state, needs_human="Look at gn042."), now=T0)
    assert (card.needs_human, card.asked, card.now) == (True, "Look at gn042.", story.STOPPED)


def test_nobody_is_asked_for_anything_once_it_is_over() -> None:
    assert not story.build_card(
        an_incident(state=State.RESOLVED, needs_human="Look at gn042."), now=T0
    ).needs_human


def test_a_running_repair_says_its_last_step_and_not_what_joined_meanwhile() -> None:
    incident = an_incident(state=State.REPAIRING)
    an_entry(incident, kind="step_done", text="gn042 reboots.")
    an_entry(incident, kind="joined", text="gpu.lost joined.")
    card = story.build_card(incident, now=T0)
    assert card.now == "Kintsugi is repairing it. gn042 reboots."
    assert card.latest == "gpu.lost joined."


def test_the_link_is_the_consoles_page(settings: Settings) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_BASE_URL": "https://console.example/"}
    assert story.get_console_url(7) == "https://console.example/incidents/incident/7/change/"


def test_a_card_says_nothing_of_jobs_until_they_are_counted() -> None:
    incident = an_incident()
    assert story.build_card(incident, now=T0).impact == ""
    incident.impact_at, incident.nodes_touched = T0, 2
    assert story.build_card(incident, now=T0).impact == "no job ran on its 2 nodes"


@pytest.mark.parametrize(
    ("changes", "is_given"),
    [
        ({"state": State.OPEN}, True),
        ({"state": State.ACKNOWLEDGED}, True),
        ({"state": State.REPAIRING}, False),
        ({"state": State.REPAIRING, "needs_human": "Look at gn042."}, True),
        ({"state": State.MONITORING}, False),
        ({"state": State.RESOLVED, "needs_human": "Look at gn042."}, False),
        ({"state": State.OPEN, "fault_type": "gpu.xid.0"}, False),
    ],
)
def test_a_card_says_how_to_go_about_it_while_it_is_a_persons(
    changes: dict[str, str], is_given: bool
) -> None:
    of_a_card = {"fault_type": "nic.tx_timeout", "root_resource": "node/gn042/nic/mlx5_0"}
    card = story.build_card(an_incident(**{**of_a_card, **changes}), now=T0)
    assert ("of the card mlx5_0" in card.advice) is is_given
    assert bool(card.advice) is is_given
