"""What machines of one role mostly show, and what is too little to say."""

from __future__ import annotations

import pytest
from pytest_django import DjangoAssertNumQueries

from detectors.detector import TargetKind
from detectors.faults import Observation
from incidents.inventory import peers, services
from incidents.models import Shown
from tests.builders import NOW, a_node

pytestmark = pytest.mark.django_db


def version(name: str, value: str, metric: str = "config.nic_driver") -> Observation:
    attributes = {"key": "nic_driver.mlx5_core"} if metric.startswith("config.") else {}
    return Observation(f"node/{name}", metric, value, NOW, attributes)


@pytest.mark.parametrize(
    ("values", "usual"),
    [
        (["5.8", "5.8", "5.9"], {"nic_driver.mlx5_core": "5.8"}),
        (["5.8", "5.9"], {}),
        (["5.8", "5.8", "5.9", "5.9"], {}),
        (["5.8", "5.8", "5.8"], {"nic_driver.mlx5_core": "5.8"}),
    ],
    ids=["most of three", "two", "as many here as there", "all"],
)
def test_usual_is_what_more_than_half_of_at_least_three_show(
    values: list[str], usual: dict[str, str]
) -> None:
    for number, value in enumerate(values):
        a_node(f"n{number}")
        peers.store_values([version(f"n{number}", value)])
    assert peers.get_usual("node").get("compute", {}) == usual
    expected = services.list_targets(TargetKind.NODE, ["n0"])[0].expected
    assert expected.peers == usual


def test_machines_of_another_role_are_no_peers() -> None:
    for number in range(3):
        a_node(f"n{number}", role="compute")
        a_node(f"m{number}", role="login")
        peers.store_values([version(f"n{number}", "1"), version(f"m{number}", "2")])
    assert {role: list(found.values()) for role, found in peers.get_usual("node").items()} == {
        "compute": ["1"],
        "login": ["2"],
    }


def test_one_query_is_asked_while_nothing_has_changed(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(5):
        a_node(f"n{number}")
    seen = [version(f"n{number}", "1") for number in range(5)]
    seen += [version(f"n{number}", "550.90.07", "gpu.driver_version") for number in range(5)]
    assert peers.store_values(seen) == 10
    with django_assert_num_queries(1):
        assert peers.store_values(seen) == 0
    with django_assert_num_queries(0):
        assert peers.store_values([version("n1", "x", "nic.driver")]) == 0


def test_new_version_replaces_the_old_one() -> None:
    a_node("n1")
    peers.store_values([version("n1", "1")])
    assert peers.store_values([version("n1", "2")]) == 1
    assert [row.value for row in Shown.objects.all()] == ["2"]
