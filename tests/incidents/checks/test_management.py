"""Many nodes fall silent while Slurm hears them: one incident of the management network, and nobody
repairs a node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest

from incidents import services
from incidents.checks import management_network
from incidents.models import Fault, Incident, Switch
from runbooks.engine.start import start_due
from tests.builders import NOW, a_clear, a_node, an_event
from tests.runbooks.site import Site

SECOND = timedelta(seconds=1)
POD = {f"gn{number:03}": "pod-a" if number <= 10 else "pod-b" for number in range(1, 31)}


def test_a_third_of_a_pod_is_a_silence_of_that_pod() -> None:
    four = sorted(POD)[:4]
    assert management_network.find_silent_groups(four, POD) == [
        management_network.SilentGroup(tuple(four), 10, "the nodes of pod-a")
    ]


def test_two_nodes_are_a_coincidence_however_small_the_pod() -> None:
    assert management_network.find_silent_groups(["a", "b"], {"a": "pod-a", "b": "pod-a"}) == []


def test_a_third_of_everything_is_a_silence_of_all_nodes() -> None:
    names = sorted(POD)[5:15]
    assert [silence.where for silence in management_network.find_silent_groups(names, POD)] == [
        "all nodes"
    ]


def test_nodes_outside_of_the_inventory_do_not_count() -> None:
    assert management_network.find_silent_groups(["x", "y", "z"], {"a": "", "b": "", "c": ""}) == []


class Pod:
    """Nine nodes that polls have found silent, one after the other."""

    def __init__(self) -> None:
        self.now = NOW
        self.names = [f"gn{number:03}" for number in range(1, 10)]
        self.heard: Collection[str] | None = self.names
        for name in self.names:
            a_node(name)

    def hears(self, names: Sequence[str]) -> Collection[str] | None:
        return self.heard

    def fall_silent(self, names: Sequence[str], *, apart: timedelta = 5 * SECOND) -> None:
        for name in names:
            self.now += apart
            services.ingest(
                [an_event("target.unreachable", f"node/{name}", at=self.now)], now=self.now
            )
            self.sweep()

    def answer(self, names: Sequence[str]) -> None:
        self.now += timedelta(minutes=1)
        services.ingest(
            [a_clear("target.unreachable", f"node/{name}", at=self.now) for name in names],
            now=self.now,
        )
        self.sweep()

    def sweep(self) -> None:
        services.ingest(
            services.evaluate_management_network(self.now, hears=self.hears), now=self.now
        )
        services.sweep(now=self.now)

    def wait(self, duration: timedelta) -> None:
        self.now += duration
        self.sweep()


@pytest.fixture
def pod(db: None) -> Pod:
    return Pod()


def test_nodes_that_slurm_hears_become_one_incident_of_the_management_network(pod: Pod) -> None:
    pod.fall_silent(pod.names[:6])
    pod.wait(timedelta(minutes=10))
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.component) == (
        "network.management_unreachable",
        "facility",
    )
    assert incident.members.filter(role="symptom").count() == 6
    assert set(incident.members.filter(role="symptom").values_list("rule", flat=True)) == {
        "behind_management"
    }


def test_it_says_how_many_and_where_to_look(pod: Pod) -> None:
    pod.fall_silent(pod.names[:4])
    excerpt = Fault.objects.get(fault_type="network.management_unreachable").evidence.get().excerpt
    assert (
        "3 of 9 (all nodes) stopped answering Kintsugi within 5 min, and Slurm hears 3 of them"
        in excerpt
    )
    assert "management switch" in excerpt


def test_a_node_that_falls_silent_later_joins_it(pod: Pod) -> None:
    pod.fall_silent(pod.names[:4])
    pod.wait(timedelta(minutes=30))
    pod.fall_silent(pod.names[7:8])
    pod.wait(timedelta(minutes=5))
    assert Incident.objects.get().members.count() == 6


def test_nodes_that_slurm_does_not_hear_are_their_own_trouble(pod: Pod) -> None:
    pod.heard = ()
    pod.fall_silent(pod.names[:6])
    pod.wait(timedelta(minutes=5))
    assert set(Incident.objects.values_list("fault_type", flat=True)) == {"target.unreachable"}
    assert Incident.objects.count() == 6


def test_nothing_is_concluded_when_slurm_cannot_be_asked(pod: Pod) -> None:
    pod.heard = None
    pod.fall_silent(pod.names[:6])
    assert not Fault.objects.filter(fault_type="network.management_unreachable").exists()


def test_nodes_that_fall_silent_over_an_hour_are_no_one_cause(pod: Pod) -> None:
    pod.fall_silent(pod.names[:6], apart=timedelta(minutes=10))
    assert not Fault.objects.filter(fault_type="network.management_unreachable").exists()


def test_one_silent_node_is_told_after_its_hold_down_alone(pod: Pod) -> None:
    pod.fall_silent(pod.names[:1])
    assert not Incident.objects.exists()
    pod.wait(timedelta(minutes=3))
    assert Incident.objects.get().fault_type == "target.unreachable"


def test_it_ends_when_most_nodes_answer_again(pod: Pod) -> None:
    pod.fall_silent(pod.names[:6])
    pod.answer(pod.names[:5])
    assert not Fault.objects.get(fault_type="network.management_unreachable").is_active
    pod.answer(pod.names[5:6])
    assert Incident.objects.get().state == "monitoring"


@pytest.mark.django_db
def test_no_run_starts_for_it() -> None:
    site = Site(nodes=9)
    for name in site.names:
        services.ingest([an_event("target.unreachable", f"node/{name}", at=site.now)], now=site.now)
    services.ingest(
        services.evaluate_management_network(site.now, hears=lambda names: names), now=site.now
    )
    assert Incident.objects.count() == 1
    assert start_due(None, now=site.now, world=site.world) == []


def test_many_switches_that_fall_silent_are_one_incident_of_the_management_network(
    pod: Pod,
) -> None:
    names = [f"leaf-{number:02}" for number in range(1, 7)]
    for name in names:
        Switch.objects.create(name=name, role="leaf")
    for name in names:
        pod.now += 5 * SECOND
        services.ingest([an_event("target.unreachable", f"switch/{name}", at=pod.now)], now=pod.now)
        pod.sweep()
    pod.wait(timedelta(minutes=10))
    incident = Incident.objects.get()
    assert incident.fault_type == "network.management_unreachable"
    assert incident.members.filter(role="symptom").count() == len(names)
    excerpt = Fault.objects.get(fault_type="network.management_unreachable").evidence.get().excerpt
    assert "of 6 (all switches) stopped answering Kintsugi" in excerpt


def test_it_ends_when_most_switches_answer_again(pod: Pod) -> None:
    for name in ("leaf-01", "leaf-02", "leaf-03"):
        Switch.objects.create(name=name, role="leaf")
        services.ingest([an_event("target.unreachable", f"switch/{name}", at=pod.now)], now=pod.now)
    pod.sweep()
    assert Fault.objects.filter(
        fault_type="network.management_unreachable", is_active=True
    ).exists()
    pod.now += timedelta(minutes=1)
    services.ingest(
        [
            a_clear("target.unreachable", f"switch/{name}", at=pod.now)
            for name in ("leaf-01", "leaf-02")
        ],
        now=pod.now,
    )
    pod.sweep()
    assert not Fault.objects.filter(
        fault_type="network.management_unreachable", is_active=True
    ).exists()


def a_fabric() -> None:
    for pod in ("pod-a", "pod-b"):
        for number in range(1, 9):
            Switch.objects.create(name=f"{pod}-leaf-{number}", role="leaf", pod=pod)
    for number in range(1, 9):
        Switch.objects.create(name=f"spine-{number}", role="spine")


def fall_silent(pod: Pod, names: Sequence[str]) -> None:
    for name in names:
        pod.now += 5 * SECOND
        services.ingest([an_event("target.unreachable", f"switch/{name}", at=pod.now)], now=pod.now)
        pod.sweep()


def test_the_leafs_of_one_pod_that_fall_silent_are_one_incident(pod: Pod) -> None:
    a_fabric()
    names = [f"pod-a-leaf-{number}" for number in range(1, 9)]
    fall_silent(pod, names)
    pod.wait(timedelta(minutes=10))
    incident = Incident.objects.get()
    assert incident.fault_type == "network.management_unreachable"
    assert incident.members.filter(role="symptom").count() == len(names)
    excerpt = Fault.objects.get(fault_type="network.management_unreachable").evidence.get().excerpt
    assert excerpt.startswith(
        "3 of 8 (the switches of pod-a) stopped answering Kintsugi within 5 min"
    )


def test_leafs_of_two_pods_that_fall_silent_are_no_silence_of_either(pod: Pod) -> None:
    a_fabric()
    fall_silent(pod, ["pod-a-leaf-1", "pod-a-leaf-2", "pod-b-leaf-1", "pod-b-leaf-2"])
    assert not Fault.objects.filter(fault_type="network.management_unreachable").exists()


def test_a_silence_of_a_pods_switches_ends_when_they_answer_again(pod: Pod) -> None:
    a_fabric()
    names = [f"pod-a-leaf-{number}" for number in range(1, 5)]
    fall_silent(pod, names)
    management = Fault.objects.get(fault_type="network.management_unreachable")
    services.ingest(
        [a_clear("target.unreachable", f"switch/{name}", at=pod.now) for name in names[:2]],
        now=pod.now,
    )
    pod.sweep()
    management.refresh_from_db()
    assert management.is_active
    pod.now += timedelta(minutes=1)
    services.ingest(
        [a_clear("target.unreachable", f"switch/{name}", at=pod.now) for name in names[2:]],
        now=pod.now,
    )
    pod.sweep()
    management.refresh_from_db()
    assert not management.is_active
