"""What symptoms at one place say of it, counted on the model site: when a module is to blame for
its ports, and when the machines behind it are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors.catalog import catalog
from incidents.correlation import aggregation_rules, symptom_counts
from incidents.correlation.relations import Surroundings
from incidents.correlation.symptom_counts import Symptom
from incidents.faults.fault_views import FaultView
from incidents.inventory import services
from incidents.topology.graph import Graph

SITE = Path("fixtures/topology/sakuraone.toml")
AT = datetime(2026, 1, 1, tzinfo=UTC)
MODULE = next(rule for rule in aggregation_rules.load() if rule.name == "module")
# The first module of a storage switch carries the ports of gn001 and gn002.
STORAGE_MODULE = "switch/sto-01/module/1"
FIRST, SECOND = "switch/sto-01/port/Ethernet0", "switch/sto-01/port/Ethernet4"
FIRST_ELSEWHERE, SECOND_ELSEWHERE = "switch/sto-02/port/Ethernet0", "switch/sto-02/port/Ethernet4"


@pytest.fixture(scope="module")
def around() -> Surroundings:
    return Surroundings(graph=Graph(services.load(SITE)))


def a_symptom(fault_type: str, resource: str, *, at: datetime = AT) -> Symptom:
    row = catalog.load()[fault_type]
    view = FaultView(
        fault_type=fault_type,
        resource=resource,
        component=row.component,
        severity=row.severity,
        action=row.action,
        occurred_at=at,
        observed_at=at,
        opens_incident=row.opens_incident,
        is_sympathetic=row.is_sympathetic,
    )
    return Symptom(f"{resource} {fault_type}", view, at)


def ports_down(*ports: str) -> list[Symptom]:
    return [a_symptom("switch.port.down", port) for port in ports]


def is_concluded(symptoms: Iterable[Symptom], around: Surroundings) -> bool:
    symptoms = list(symptoms)
    by_place = symptom_counts.group_by_place(MODULE, symptoms, around)
    failures = symptom_counts.group_failures(MODULE, symptoms, around)
    count = symptom_counts.count_symptoms(MODULE, STORAGE_MODULE, by_place, AT, around, failures)
    return count.is_conclusive


def test_a_module_is_to_blame_when_both_its_links_go_and_both_nodes_are_well(
    around: Surroundings,
) -> None:
    assert is_concluded(ports_down(FIRST, SECOND), around)


@pytest.mark.parametrize("fault_type", ["slurm.node_down", "target.unreachable"])
def test_a_module_is_not_to_blame_when_both_nodes_are_gone(
    around: Surroundings, fault_type: str
) -> None:
    gone = [a_symptom(fault_type, f"node/{name}") for name in ("gn001", "gn002")]

    assert not is_concluded([*ports_down(FIRST, SECOND), *gone], around)


def test_a_module_is_not_to_blame_when_both_nodes_lost_another_link_too(
    around: Surroundings,
) -> None:
    lost = ports_down(FIRST, SECOND, FIRST_ELSEWHERE, SECOND_ELSEWHERE)

    assert not is_concluded(lost, around)


@pytest.mark.parametrize(
    "dead",
    [
        a_symptom("slurm.node_down", "node/gn001"),
        a_symptom("switch.port.down", FIRST_ELSEWHERE),
        a_symptom("nic.link.down", "node/gn001/nic/mlx5_0"),
    ],
    ids=["for Slurm", "at the other switch", "at a leaf"],
)
def test_a_module_is_to_blame_when_one_of_its_nodes_is_dead_and_the_other_alive(
    around: Surroundings, dead: Symptom
) -> None:
    assert is_concluded([*ports_down(FIRST, SECOND), dead], around)


def test_a_node_that_tells_of_the_modules_own_link_has_lost_no_other(around: Surroundings) -> None:
    told = [a_symptom("nic.link.down", f"node/{name}/nic/mlx5_8") for name in ("gn001", "gn002")]

    assert is_concluded([*ports_down(FIRST, SECOND), *told], around)


def test_a_bad_module_is_seen_beside_a_leaf_that_died_and_took_other_links_of_its_nodes(
    around: Surroundings,
) -> None:
    behind_leaf = [
        replace(symptom, root_type="switch.ports_lost", root_place="switch/leaf-01")
        for symptom in ports_down(*(f"switch/leaf-01/port/Ethernet{port}" for port in (0, 4)))
    ]

    assert is_concluded([*ports_down(FIRST, SECOND), *behind_leaf], around)


def test_links_that_were_lost_before_the_window_or_may_come_back_say_nothing_of_their_nodes(
    around: Surroundings,
) -> None:
    earlier = AT - MODULE.window - timedelta(seconds=1)
    long_ago = [
        a_symptom("switch.port.down", port, at=earlier)
        for port in (FIRST_ELSEWHERE, SECOND_ELSEWHERE)
    ]
    held = [
        replace(symptom, is_held=True) for symptom in ports_down(FIRST_ELSEWHERE, SECOND_ELSEWHERE)
    ]

    assert is_concluded([*ports_down(FIRST, SECOND), *long_ago], around)
    assert is_concluded([*ports_down(FIRST, SECOND), *held], around)


def test_no_module_of_a_storage_switch_is_to_blame_when_a_whole_row_goes_dark(
    around: Surroundings,
) -> None:
    """Half of the switch's modules: the other half beside them is quiet."""
    row = [
        f"switch/{switch}/port/Ethernet{4 * node}"
        for switch in ("sto-01", "sto-02")
        for node in range(50)
    ]

    assert not is_concluded(ports_down(*row), around)
