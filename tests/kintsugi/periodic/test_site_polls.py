"""What Slurm and the metrics of a site tell, from the poll to the incident that people read."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from detectors.catalog import catalog
from detectors.detector import Detector, Target, TargetKind
from detectors.expected import Expected
from detectors.metrics.prometheus import PrometheusDetector
from detectors.slurm.job_stalled import JobStalledDetector
from detectors.slurm.slurm_jobs import SlurmJobsDetector
from detectors.slurm.slurm_nodes import SlurmNodesDetector
from fixtures.cluster.http import PROMETHEUS_URL
from fixtures.cluster.metric_faults import POLLED
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedWorld
from incidents.models import Fault, Incident
from kintsugi.periodic.polling import Watch
from kintsugi.pipeline import Pipeline
from runbooks.models import Run
from tests.builders import NOW, a_node
from tests.kintsugi.periodic.test_polling import Rings
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


class House:
    """A simulated cluster whose site is polled, its nodes in the inventory."""

    def __init__(self, *detectors: Detector) -> None:
        self.now = NOW
        self.cluster = SimulatedWorld.sakuraone(clock=lambda: self.now)
        for name in ("gn001", "gn002", "gn003", "gn004"):
            a_node(name)
        expected = Expected(urls={"prometheus": PROMETHEUS_URL})
        sites = tuple(
            Target(name, "", kind=TargetKind.SITE, expected=expected)
            for name in ("slurm", "prometheus")
        )
        watch = Watch(simulated_transports(self.cluster), detectors, sites=sites)
        self.ring = Rings()
        self.pipeline = Pipeline(
            Site(nodes=0).world,
            None,  # type: ignore[arg-type]
            self.ring,
            lambda: self.now,
            catalog.load(),
            watch,
        )

    def pass_by(self, period: timedelta) -> None:
        until: datetime = self.now + period
        while self.now < until:
            self.now += MINUTE / 2
            self.pipeline.poll_due(MINUTE / 2)
            while self.ring.polls:
                self.pipeline.poll(self.ring.polls.pop(0))

    def standing(self) -> set[tuple[str, str]]:
        return set(Fault.objects.filter(is_active=True).values_list("fault_type", "resource"))


def test_a_stalled_job_is_told_once_with_its_owner_and_ends_with_the_job() -> None:
    house = House(JobStalledDetector())
    [row] = [row for row in POLLED if row.fault_type == "job.stalled"]
    resource = row.breaks(house.cluster, "slurm")
    house.pass_by(9 * MINUTE)
    assert house.standing() == set()
    house.pass_by(5 * MINUTE)
    assert house.standing() == {("job.stalled", resource)}
    incident = Incident.objects.get()
    assert "of alice: 24 GPUs on 3 nodes" in Fault.objects.get().evidence.all()[0].excerpt
    assert not Run.objects.exists()
    row.mends(house.cluster, "slurm")
    house.pass_by(3 * MINUTE)
    assert house.standing() == set()
    assert Incident.objects.get() == incident


def test_a_drain_of_slurm_opens_an_incident_and_a_persons_does_not() -> None:
    house = House(SlurmNodesDetector())
    house.cluster.site.slurm.human_drain("gn001", 'fan | slot=3 "loud"')
    house.cluster.site.slurm.slurm_drain("gn002", "Kill task failed")
    house.pass_by(3 * MINUTE)
    assert house.standing() == {("slurm.drained_by_slurm", "node/gn002")}
    assert Incident.objects.count() == 1
    house.cluster.site.slurm.human_resume("gn002")
    house.pass_by(2 * MINUTE)
    assert house.standing() == set()


def test_a_slurm_that_does_not_answer_is_one_fault_and_clears_nothing() -> None:
    house = House(SlurmNodesDetector())
    house.cluster.site.slurm.slurm_drain("gn002", "Kill task failed")
    house.pass_by(2 * MINUTE)
    house.cluster.site.slurm.is_answering = False
    house.pass_by(6 * MINUTE)
    assert house.standing() == {
        ("slurm.drained_by_slurm", "node/gn002"),
        ("detector.silent", "site/slurm"),
    }


def test_a_healthy_site_shows_no_fault() -> None:
    house = House(
        SlurmNodesDetector(), SlurmJobsDetector(), JobStalledDetector(), PrometheusDetector()
    )
    house.cluster.site.slurm.add_job("1", nodes=("gn001", "gn002"), user="alice")
    house.cluster.site.end_job("COMPLETED", nodes=("gn003",), user="bob", name="eval")
    house.pass_by(11 * MINUTE)
    assert house.standing() == set()
