"""Pause frames are followed from the ports that stand still to the card that sends them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import EventKind
from incidents.correlation.pause_frames import find_sources
from incidents.models import Fault, Incident
from incidents.topology.graph import Graph
from incidents.topology.topology import CablePlace, Topology
from incidents.triage import aggregation
from incidents.triage.ingest import ingest
from incidents.triage.sweep import sweep
from tests.builders import NOW
from tests.incidents.sites import a_site, happen, nics, open_incidents

CARD, OTHER_CARD = "node/gn001/nic/mlx5_0", "node/gn002/nic/mlx5_1"
LEAF_1, LEAF_2, SPINE = "switch/leaf-01", "switch/leaf-02", "switch/spine-01"
GRAPH = Graph(
    Topology(
        cables=(
            CablePlace(CARD, f"{LEAF_1}/port/E0"),
            CablePlace(OTHER_CARD, f"{LEAF_2}/port/E0"),
            CablePlace(f"{LEAF_1}/port/U0", f"{SPINE}/port/D1"),
            CablePlace(f"{LEAF_2}/port/U0", f"{SPINE}/port/D2"),
        )
    )
)


def test_a_card_is_the_source_when_its_own_port_stands_still() -> None:
    assert find_sources({f"{LEAF_1}/port/E0"}, GRAPH) == {CARD: {f"{LEAF_1}/port/E0"}}


def test_the_trail_leads_over_leaf_and_spine_when_pause_has_spread() -> None:
    still = {f"{LEAF_1}/port/E0", f"{SPINE}/port/D1", f"{LEAF_2}/port/U0"}

    assert find_sources(still, GRAPH) == {CARD: still}


def test_no_card_is_blamed_when_the_trail_ends_at_a_switch() -> None:
    assert find_sources({f"{SPINE}/port/D1"}, GRAPH) == {}


def test_nothing_is_followed_when_a_port_has_no_known_cable() -> None:
    assert find_sources({f"{LEAF_1}/port/E7"}, GRAPH) == {}


def test_two_cards_are_sources_when_each_stops_a_port_of_its_own() -> None:
    still = {f"{LEAF_1}/port/E0", f"{LEAF_2}/port/E0"}

    assert find_sources(still, GRAPH) == {
        CARD: {f"{LEAF_1}/port/E0"},
        OTHER_CARD: {f"{LEAF_2}/port/E0"},
    }


def test_the_walk_ends_when_switches_pause_each_other_in_a_ring() -> None:
    ring = Graph(
        Topology(
            cables=tuple(
                CablePlace(f"switch/s{n}/port/A", f"switch/s{(n + 1) % 3}/port/B") for n in range(3)
            )
        )
    )

    assert find_sources({f"switch/s{n}/port/A" for n in range(3)}, ring) == {}


@pytest.mark.django_db
def test_the_card_is_the_root_when_its_leaf_and_the_spines_stand_still() -> None:
    a_site()
    happen("switch.pfc_storm", ["switch/leaf-03/port/Ethernet8"])
    happen("switch.pfc_storm", [f"{SPINE}/port/Ethernet16"], at=NOW + timedelta(seconds=10))
    happen("nic.pfc.stalling", nics(2, ["gn005", "gn006"]), at=NOW + timedelta(seconds=20))

    assert open_incidents() == [("nic.pfc.source", "node/gn003/nic/mlx5_2")]


@pytest.mark.django_db
def test_the_cards_own_word_is_the_root_when_it_comes_later() -> None:
    a_site()
    happen("switch.pfc_storm", ["switch/leaf-03/port/Ethernet8"])
    happen("nic.pfc.storm", ["node/gn003/nic/mlx5_2"], at=NOW + timedelta(seconds=30))

    assert open_incidents() == [("nic.pfc.storm", "node/gn003/nic/mlx5_2")]


@pytest.mark.django_db
def test_the_conclusion_ends_when_no_port_stands_still() -> None:
    a_site()
    happen("switch.pfc_storm", ["switch/leaf-03/port/Ethernet8"])
    assert aggregation.find_ended(NOW + timedelta(minutes=1)) == []
    happen(
        "switch.pfc_storm",
        ["switch/leaf-03/port/Ethernet8"],
        at=NOW + timedelta(minutes=2),
        kind=EventKind.CLEARED,
    )
    now = NOW + timedelta(minutes=3)
    ingest(aggregation.find_ended(now), now=now)

    assert not Fault.objects.filter(fault_type="nic.pfc.source", is_active=True).exists()


@pytest.mark.django_db
def test_a_port_that_still_stands_still_is_no_storm_of_its_own_when_the_card_says_no_more() -> None:
    """The card counts the times at which its own limit ended a pause; none for a while does not end
    the storm."""
    a_site()
    ports = ["switch/leaf-03/port/Ethernet8", f"{SPINE}/port/Ethernet16"]
    happen("switch.pfc_storm", ports)
    happen("nic.pfc.storm", ["node/gn003/nic/mlx5_2"], at=NOW + timedelta(seconds=30))
    over = NOW + timedelta(minutes=16)
    happen("nic.pfc.storm", ["node/gn003/nic/mlx5_2"], at=over, kind=EventKind.CLEARED)
    happen("switch.pfc_storm", ports[:1], at=over, kind=EventKind.CLEARED)
    ingest(aggregation.find_ended(over), now=over)
    sweep(now=over + timedelta(minutes=30))

    assert open_incidents() == [("nic.pfc.storm", "node/gn003/nic/mlx5_2")]
    assert Incident.objects.count() == 1
