"""Which end of a cable is suspect, from what the polls of both remember: said once, and who has to
wait for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import pytest

from detectors.detector import Sample
from detectors.evaluation.cable_ends import LIGHT
from detectors.evaluation.judge import Memory
from incidents.checks import cables
from incidents.checks.cables import KIND, CableVerdict, evaluate_cables, is_news, record_verdicts
from incidents.inventory import graphs, services
from incidents.models import Incident, IncidentFault, Poll, TimelineEntry
from incidents.polling import polling
from incidents.topology.topology import (
    CablePlace,
    ModulePlace,
    NicPlace,
    NodePlace,
    SwitchPlace,
    Topology,
)
from tests.builders import NOW, a_fault, an_incident

MINUTE = timedelta(minutes=1)
NICS = [f"node/gn{number:03}/nic/mlx5_4" for number in range(1, 9)]
PORTS = [f"switch/leaf-04/port/Ethernet{4 * number}" for number in range(8)]
GOOD, DARK = [1.0, 1.0, -8.9, -5.9], [1.0, -40.0, -8.9, -5.9]


def a_verdict(found: str, about: str = "a cable", to_do: str = "look.") -> CableVerdict:
    return CableVerdict(1, about, found, to_do)


FIBRE, LASER = a_verdict("The fibre."), a_verdict("The laser.")


@pytest.mark.parametrize(
    ("said", "is_one"),
    [
        ([], True),
        ([(FIBRE, 1)], False),
        ([(FIBRE, 600)], False),
        ([(a_verdict("The fibre.", to_do="wait for job 7."), 1)], False),
        ([(LASER, 1)], True),
        ([(LASER, 1), (FIBRE, 5)], False),
        ([(LASER, 1), (FIBRE, 70)], True),
        ([(a_verdict("The fibre.", about="another cable"), 1)], True),
        ([(a_verdict("The laser.", about="another cable"), 1), (FIBRE, 5)], False),
    ],
    ids=[
        *(
            "first",
            "same",
            "same, long ago",
            "same, but for the jobs",
            "changed",
            "back at once",
            "back after an hour",
        ),
        *("another cable", "another cable in between"),
    ],
)
def test_a_verdict_is_news_when_it_changes_and_not_when_it_flaps(
    said: list[tuple[CableVerdict, int]], is_one: bool
) -> None:
    before = [(verdict.text, NOW - minutes * MINUTE) for verdict, minutes in said]
    assert is_news(FIBRE, before, NOW) is is_one


def remember(
    detector: str, target: str, kind: str, values: Mapping[tuple[str, str], object], at: datetime
) -> None:
    memory = Memory({key: Sample(value, at) for key, value in values.items()})
    Poll.objects.update_or_create(
        detector=detector,
        target=target,
        kind=kind,
        defaults={"polled_at": at, "memory": polling.pack(memory, at)},
    )


class Leaf:
    """Eight nodes at a leaf, two to a module; everything is well and was seen a minute ago."""

    def __init__(self) -> None:
        services.apply(
            Topology(
                nodes=tuple(
                    NodePlace(nic.split("/")[1], nics=(NicPlace("mlx5_4"),)) for nic in NICS
                ),
                switches=(SwitchPlace("leaf-04", "leaf"),),
                cables=tuple(CablePlace(*ends) for ends in zip(NICS, PORTS, strict=True)),
                modules=tuple(
                    ModulePlace(
                        "leaf-04",
                        str(n + 1),
                        tuple(p.rpartition("/")[2] for p in PORTS[2 * n : 2 * n + 2]),
                    )
                    for n in range(4)
                ),
            ),
            NOW,
        )
        graphs.forget()
        self.running: Mapping[str, frozenset[str]] | None = {}
        self.light(at=NOW - MINUTE)

    def light(self, *, at: datetime, **dark: list[float]) -> None:
        """`dark`: nic0 or port0 and what it says instead."""
        for number, nic in enumerate(NICS):
            light = dark.get(f"nic{number}", GOOD)
            remember("transceiver", nic.split("/")[1], "node", {(nic, LIGHT): light}, at)
        ports = {
            (port, LIGHT): dark.get(f"port{number}", GOOD) for number, port in enumerate(PORTS)
        }
        remember("switch_sensors", "leaf-04", "switch", ports, at)

    def jobs(self, names: Collection[str]) -> Mapping[str, frozenset[str]] | None:
        return self.running

    def verdicts(self, now: datetime = NOW) -> list[CableVerdict]:
        return evaluate_cables(now, jobs=self.jobs)


@pytest.fixture
def leaf(db: None) -> Leaf:
    return Leaf()


def opened(
    number: int = 0,
    *,
    fault_type: str = "nic.transceiver.rx_power_low",
    ago: timedelta = 5 * MINUTE,
) -> Incident:
    return an_incident(fault_type, NICS[number], at=NOW - ago)


def test_the_leafs_half_of_a_module_is_suspect_and_its_other_half_has_a_job(leaf: Leaf) -> None:
    incident = opened()
    leaf.light(at=NOW - MINUTE, nic0=[-40.0, 1.0, -8.9, -5.9], port0=DARK)
    leaf.running = {"gn001": frozenset(), "gn002": frozenset({"7"})}
    (verdict,) = leaf.verdicts()
    assert verdict.incident == incident.pk
    assert verdict.found.startswith(
        "leaf-04 port Ethernet0 sends too little light: its laser is failing."
    )
    assert "take a spare port for this cable" in verdict.to_do
    assert verdict.to_do.endswith("gn002 runs job 7: wait for the end, or drain first.")


def test_when_slurm_does_not_answer_a_person_has_to_ask_before_unplugging(leaf: Leaf) -> None:
    opened()
    leaf.light(at=NOW - MINUTE, nic0=DARK)
    leaf.running = None
    (verdict,) = leaf.verdicts()
    assert "Slurm does not say whether jobs run on gn001" in verdict.to_do


def test_what_was_seen_long_ago_says_nothing_of_now(leaf: Leaf) -> None:
    opened()
    leaf.light(at=NOW - 16 * MINUTE, nic0=DARK)
    assert leaf.verdicts() == []


def test_a_new_incident_waits_until_both_ends_have_looked(leaf: Leaf) -> None:
    opened(ago=MINUTE)
    leaf.light(at=NOW, nic0=DARK)
    assert leaf.verdicts() == []
    assert len(leaf.verdicts(NOW + MINUTE)) == 1


@pytest.mark.parametrize(("count", "said"), [(4, 4), (5, 0)])
def test_many_cables_of_one_incident_have_a_cause_that_is_none_of_them(
    leaf: Leaf, count: int, said: int
) -> None:
    incident = opened()
    for number in range(1, count):
        fault = a_fault("nic.transceiver.rx_power_low", NICS[number])
        IncidentFault.objects.create(incident=incident, fault=fault, role="symptom", joined_at=NOW)
    leaf.light(at=NOW - MINUTE, **{f"nic{number}": DARK for number in range(count)})
    assert len(leaf.verdicts()) == said


@pytest.mark.parametrize("fault_type", ["nic.missing", "nic.rail.slow", "gpu.xid.79"])
def test_what_is_no_fault_of_a_link_is_left_alone(leaf: Leaf, fault_type: str) -> None:
    opened(fault_type=fault_type)
    leaf.light(at=NOW - MINUTE, nic0=DARK)
    assert leaf.verdicts() == []


def test_a_cable_that_is_well_now_is_not_judged(leaf: Leaf) -> None:
    opened()
    assert leaf.verdicts() == []


def test_two_sweeps_at_once_say_it_once(leaf: Leaf) -> None:
    opened()
    leaf.light(at=NOW - MINUTE, nic0=DARK)
    verdicts = leaf.verdicts()
    assert [record_verdicts(verdicts, NOW), record_verdicts(verdicts, NOW)] == [1, 0]
    assert TimelineEntry.objects.get(kind=KIND).text == verdicts[0].text


def test_a_site_without_such_incidents_costs_one_query(
    leaf: Leaf, django_assert_num_queries: object
) -> None:
    with django_assert_num_queries(1):  # type: ignore[operator]
        assert cables.evaluate_cables(NOW, jobs=leaf.jobs) == []
