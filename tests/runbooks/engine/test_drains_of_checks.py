"""A node that another check of the site has drained: taken over where a row says so, else left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.detector import Output, Reading, Target, TargetKind
from detectors.evaluation.classify import classify
from detectors.provenance import Forger, Provenance, Transport
from detectors.slurm.slurm_nodes import SlurmNodesDetector
from fixtures.cluster.slurm_daemons import SlurmDaemons
from incidents import services as incidents
from incidents.models import Fault, Incident
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.models import Run, RunState
from runbooks.people import preflight
from runbooks.shadow import shadow_log
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site
from tests.runbooks.slurm.test_real_slurm_states import a_slurm, look
from tests.site_rows import nhc, site_rows

REASON = "NHC: check_gpus: GPU 0 is lost"
_BY_SLURM = Provenance("slurm", Transport.SLURM, program="slurm_nodes", forger=Forger.NOBODY)


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def a_drained_site() -> Site:
    """A GPU is lost, and NHC, run as root, has drained its node."""
    site = Site()
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    site.slurm.human_drain("gn001", REASON, user="root")
    return site


def begin(site: Site) -> Run:
    return site.begin(site.raise_fault(fault_type="gpu.lost"))


@pytest.mark.django_db
def test_a_run_takes_over_the_drain_of_a_check_and_gives_the_node_back(tmp_path: Path) -> None:
    with site_rows(tmp_path, nhc(resume=True)):
        site = a_drained_site()
        run = site.play(begin(site))
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "resume"]
    assert any(f'with the reason "{REASON}"' in line for line in site.story(run.incident))


@pytest.mark.django_db
@pytest.mark.parametrize("rows", ["", nhc(resume=False)])
def test_the_drain_of_a_check_is_left_alone_where_no_row_lets_a_run_take_it(
    tmp_path: Path, rows: str
) -> None:
    with site_rows(tmp_path, rows):
        site = a_drained_site()
        run = site.play(begin(site), limit=timedelta(minutes=4))
        who = "a check of the site (root)" if rows else "root"
        assert f'gn001 is taken out by {who}: "{REASON}"' in run.waiting_for
    assert acts(site) == []


@pytest.mark.django_db
def test_a_row_that_comes_later_lets_the_run_that_waits_go_on(tmp_path: Path) -> None:
    site = a_drained_site()
    shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
    run = site.play(begin(site), limit=timedelta(minutes=4))
    assert acts(site) == []
    with site_rows(tmp_path, nhc(resume=True)):
        run = site.play(run)
    assert run.state == RunState.SUCCEEDED


@pytest.mark.django_db
def test_a_persons_drain_over_which_the_check_has_written_stays_theirs(tmp_path: Path) -> None:
    with site_rows(tmp_path, nhc(resume=True)):
        site = Site()
        site.nodes.inject("gpu_lost", "gn001/gpu/0")
        shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
        site.slurm.human_drain("gn001", "bob: hands inside", user="bob")
        shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
        site.slurm.human_drain("gn001", REASON, user="root")
        shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
        run = site.play(begin(site), limit=timedelta(minutes=4))
    assert 'a person: "bob: hands inside", over which a check has written' in run.waiting_for
    assert acts(site) == []


@pytest.mark.django_db
def test_a_run_stops_when_the_check_drains_the_node_anew(tmp_path: Path) -> None:
    with site_rows(tmp_path, nhc(resume=True)):
        site = a_drained_site()
        run = site.play(
            begin(site), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
        )
        site.slurm.human_drain("gn001", REASON, user="root")
        run = site.play(run)
    assert run.state == RunState.ABORTED
    assert "resume" not in acts(site)
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason == REASON


@pytest.mark.django_db
def test_a_run_that_is_withdrawn_leaves_the_checks_reason(tmp_path: Path) -> None:
    with site_rows(tmp_path, nhc(resume=True)):
        site = a_drained_site()
        site.nodes.reboot("gn001")
        run = site.play(begin(site), limit=timedelta(minutes=4))
        incidents.act(
            run.incident_id,
            Trigger.MARK_FALSE_POSITIVE,
            actor="alice",
            note="looked at it",
            now=site.now,
        )
        run = site.play(run)
    assert run.state == RunState.WITHDRAWN
    state = site.slurm.read_nodes(("gn001",))["gn001"]
    assert (state.reason, state.is_draining) == (REASON, True)
    assert acts(site) == ["drain", "drain"]


@pytest.mark.django_db
def test_preflight_names_the_drains_that_no_row_explains(tmp_path: Path) -> None:
    site = a_drained_site()
    site.slurm.human_drain("gn002", "[node_problem] disk", user="root")
    with site_rows(tmp_path, nhc(resume=False)):
        checks = {check.name: check for check in preflight.run_checks(site.world)}
    found = checks["other_drains"].found
    assert f'rows of the site explain the drains of gn001 ("{REASON}")' in found
    assert 'no row of the site explains them: gn002 ("[node_problem] disk")' in found
    assert "[[drain]]" in checks["other_drains"].todo


@contextmanager
def a_slurm_with_a_drain(directory: Path) -> Iterator[SlurmDaemons]:
    with a_slurm(directory) as slurm:
        slurm.command("scontrol", "update", "NodeName=gn001", "State=DRAIN", f"Reason={REASON}")
        yield slurm


@pytest.mark.needs("slurmctld", "slurmd", "munged")
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_the_drain_of_a_check_in_a_real_slurm_becomes_its_fault_and_is_repaired(
    tmp_path: Path,
) -> None:
    """A poll of Slurm opens the incident, the run takes the node over and gives it back, and the
    next poll ends the fault."""
    rows = tmp_path / "rows"
    rows.mkdir()
    with site_rows(rows, nhc(resume=True)), a_slurm_with_a_drain(tmp_path) as slurm:
        site = RealSite(slurm.conf, slurm.directory / "boots", ("gn001",), lost=("gn001/gpu/0",))
        tables = Site(nodes=0)
        tables.add_node("gn001")
        poll_slurm(slurm, site)
        incident = Incident.objects.get(node__name="gn001")
        assert incident.root_fault is not None
        assert incident.root_fault.fault_type == "gpu.lost"
        services.start_due([incident.pk], now=site.now(), world=site.world)
        run = Run.objects.get(incident=incident)
        site.play_until(run.pk, lambda run: "reboot_at" in run.facts)
        poll_slurm(slurm, site)
        assert Fault.objects.active().filter(fault_type="gpu.lost").exists()
        run = site.play(run.pk)
        assert run.state == RunState.SUCCEEDED, run.outcome
        slurm.wait_until(lambda: not look(slurm).is_out, what="it answers after its resume")
        poll_slurm(slurm, site)
    assert not Fault.objects.active().filter(fault_type="gpu.lost").exists()
    incident.refresh_from_db()
    assert incident.state != State.OPEN


def poll_slurm(slurm: SlurmDaemons, site: RealSite) -> None:
    detector = SlurmNodesDetector()
    target = Target("slurm", "127.0.0.1", kind=TargetKind.SITE)
    shown = slurm.command("scontrol", "--all", "show", "node")
    outputs = {"nodes": Output(0, shown.encode(), b"", timedelta(0))}
    reading = Reading(detector.name, target, site.now(), outputs)
    active = set(Fault.objects.active().values_list("fingerprint", flat=True))
    rows = catalog.load()
    events = [
        event
        for seen in detector.parse(reading)
        for event in classify(seen, active, rows)
        if event.fault_type == "gpu.lost"
    ]
    incidents.ingest(events, now=site.now())
