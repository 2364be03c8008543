"""What people find of parts: the list, one part's way, and what a machine's page shows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import InService, Nic, Node
from incidents.vocabulary.part_kinds import Part
from tests.builders import GPU, NOW, OTHER_GPU, a_cable, a_node
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def replaced() -> Node:
    """gn042, whose GPU 0 was replaced; the old one came back in the next slot."""
    node = a_node()
    for days, slot, serial in ((0, GPU, "1650001"), (1, GPU, "1650002"), (2, OTHER_GPU, "1650001")):
        part_history.settle(
            [Sighting(Part.GPU, slot, serial)], NOW + timedelta(days=days), why="seen by a poll"
        )
    return node


@pytest.mark.usefixtures("replaced")
def test_parts_are_found_by_serial_and_by_slot(people: People) -> None:
    for query, count in (("q=1650001", 2), ("q=gn042", 3), ("q=4711", 0)):
        answer = people.viewer.get(f"/incidents/inservice/?{query}")
        assert answer.status_code == 200
        assert len(answer.context["cl"].result_list) == count


@pytest.mark.usefixtures("replaced")
def test_page_of_a_part_shows_where_it_was_and_what_else_was_in_its_slot(people: People) -> None:
    row = InService.objects.get(serial="1650001", slot=GPU)
    page = people.viewer.get(f"/incidents/inservice/{row.pk}/change/").content.decode()
    assert "1650002 is in its place" in page
    assert "in service" in page
    assert page.count('class="k-code">1650002<') == 1


def test_page_of_a_node_shows_its_nics_with_their_cables_and_the_parts_that_left(
    people: People, replaced: Node
) -> None:
    Nic.objects.create(node=replaced, device="mlx5_0", netdev="rail0", role="fabric", rail=0)
    a_cable("node/gn042/nic/mlx5_0", "switch/leaf-01/port/Ethernet4")
    page = people.viewer.get(f"/incidents/node/{replaced.pk}/change/").content.decode()
    for words in ("rail0", "leaf-01", "Ethernet4", "Parts that left", "1650001"):
        assert words in page


@pytest.mark.usefixtures("replaced")
def test_nobody_changes_the_ledger_by_hand(people: People) -> None:
    row = InService.objects.latest("id")
    assert (
        people.admin.post(f"/incidents/inservice/{row.pk}/change/", {"serial": "x"}).status_code
        == 405
    )
    assert people.admin.get("/incidents/inservice/add/").status_code in (302, 404)
