"""What a dry run's episode is counted as: by what its node shows, by what people say, and by who had
the node in hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.provenance import Forger, Provenance, Transport
from fixtures.cluster.gpu import Presence
from incidents import services as incidents
from incidents.evaluation.windows import Draft, WindowKind
from incidents.maintenance import planning
from incidents.models import Incident
from incidents.vocabulary.lifecycle import Trigger
from kintsugi.periodic import job_watch, node_watch
from runbooks import services
from runbooks.models import Mode, RunState
from runbooks.shadow.episodes import Episode, EpisodeVerdict
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# A line that came over the network, which any user of the node may have written.
TEXT = Provenance("gn001", Transport.UDP, program="kernel", forger=Forger.USER)


def begin(site: Site, incident: Incident) -> None:
    run = site.advance(site.begin(incident))
    assert run.state == RunState.SHADOWED


def pass_time(site: Site, duration: timedelta) -> None:
    """Minute by minute, as the worker and the looks at Slurm do."""
    until = site.now + duration
    while site.now < until:
        site.now += min(MINUTE, until - site.now)
        node_watch.look_at_nodes(site.now, site.world)
        job_watch.update_jobs(site.now, site.slurm)
        for run_id in services.get_due_runs(site.now):
            services.advance(run_id, now=site.now, world=site.world)


@pytest.fixture
def site(db: None) -> Site:
    site = Site(mode=Mode.SHADOW)
    pass_time(site, MINUTE)
    return site


def load(site: Site) -> Episode:
    (episode,) = services.load_episodes(EPOCH, site.now)
    return episode


def report(site: Site) -> services.DryRunReport:
    return services.compute_report(services.load_episodes(EPOCH, site.now))


def test_what_is_denied_twice_was_a_well_node_and_the_timeline_says_so(site: Site) -> None:
    incident = site.raise_fault()
    begin(site, incident)
    assert load(site).verdict is EpisodeVerdict.UNKNOWN
    pass_time(site, 6 * MINUTE)
    assert load(site).verdict is EpisodeVerdict.WELL
    assert (report(site).well.count, report(site).well.of) == (1, 1)
    (line,) = [line for line in site.story(incident) if "looked for twice" in line]
    assert "gpu.xid.79 counts as wrong here" in line
    assert "drained for nothing, and given back by now" in line
    assert site.slurm.journal == []


def test_what_is_denied_once_and_then_seen_was_a_broken_node(site: Site) -> None:
    begin(site, site.raise_fault())
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    pass_time(site, 6 * MINUTE)
    assert load(site).verdict is EpisodeVerdict.BROKEN


def test_a_text_that_the_node_denies_would_have_taken_no_node(site: Site) -> None:
    """A run that may act asks such a node before the drain."""
    begin(site, site.raise_fault(told_by=TEXT))
    pass_time(site, 6 * MINUTE)
    found = report(site)
    assert (found.well.of, found.spared) == (0, 1)
    assert (found.well.low, found.well.high) == (0.0, 1.0)


def test_a_node_that_gives_no_answer_is_asked_again_and_counts_in_nothing_before(
    site: Site,
) -> None:
    site.shell.silent.add("gn001")
    begin(site, site.lose_gpu())
    pass_time(site, 6 * MINUTE)
    assert (report(site).unknown, report(site).well.of) == (1, 0)
    site.shell.silent.clear()
    pass_time(site, 6 * MINUTE)
    assert (report(site).unknown, report(site).well.of) == (0, 1)


def test_a_persons_false_alarm_goes_before_what_was_seen(site: Site) -> None:
    incident = site.lose_gpu()
    begin(site, incident)
    assert load(site).verdict is EpisodeVerdict.BROKEN
    for gpu in site.nodes.nodes["gn001"].gpus:
        gpu.presence = Presence.PRESENT
    site.poll()
    incidents.act(incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="cable", now=site.now)
    incident.refresh_from_db()
    assert load(site).verdict is EpisodeVerdict.WELL


def test_a_node_that_a_person_had_taken_out_is_left_out(site: Site) -> None:
    site.slurm.human_drain("gn001", "kernel update")
    begin(site, site.raise_fault())
    assert (load(site).verdict, report(site).left_out) == (EpisodeVerdict.LEFT_OUT, 1)


def test_a_node_under_maintenance_is_left_out(site: Site) -> None:
    incident = site.raise_fault()
    site.start()
    draft = Draft(
        WindowKind.MAINTENANCE,
        "firmware",
        site.now,
        site.now + HOUR,
        machines=("node/gn001",),
    )
    planned = planning.plan(draft, author="bob", now=site.now)
    assert isinstance(planned, planning.PlannedWindow), planned
    site.advance(site.run_of(incident))
    pass_time(site, 6 * MINUTE)
    assert (load(site).verdict, load(site).drained_at) == (EpisodeVerdict.LEFT_OUT, None)


def test_only_jobs_that_began_after_the_drain_would_have_been_saved(site: Site) -> None:
    site.slurm.add_job("77", nodes=["gn001"])
    pass_time(site, MINUTE)
    begin(site, site.lose_gpu())
    site.slurm.finish_job("77", "NODE_FAIL")
    pass_time(site, MINUTE)
    assert (load(site).jobs_died, report(site).died.count) == (0, 0)
    site.slurm.add_job("78", nodes=["gn001"])
    pass_time(site, 20 * MINUTE)
    site.slurm.finish_job("78", "NODE_FAIL")
    pass_time(site, 39 * MINUTE)
    site.slurm.human_drain("gn001", "GPU lost")
    pass_time(site, 5 * HOUR)
    found = report(site)
    assert (found.jobs_died, found.died.count, found.died.of) == (1, 1, 1)
    assert found.hours == pytest.approx(1.0, abs=0.05)


def test_what_a_guard_costs_is_counted_until_it_lets_the_drain_pass() -> None:
    site = Site(nodes=20, mode=Mode.SHADOW)
    pass_time(site, MINUTE)
    site.slurm.human_drain("gn002", "fan noise")
    begin(site, site.stall_gpu())
    pass_time(site, 2 * HOUR)
    assert load(site).drained_at is None
    site.slurm.human_resume("gn002")
    pass_time(site, HOUR)
    found = report(site)
    assert (found.held.count, found.held.of, found.guards) == (1, 1, ("cap",))
    assert found.held_hours == pytest.approx(2.0, abs=0.2)
    assert load(site).drained_at is not None


def test_one_gesture_over_many_nodes_counts_once() -> None:
    site = Site(nodes=45, mode=Mode.SHADOW)
    pass_time(site, MINUTE)
    for name in site.names[:41]:
        site.slurm.human_drain(name, "row 3: power")
    site.slurm.human_drain("gn044", "fan noise")
    pass_time(site, 2 * MINUTE)
    gesture, alone = services.list_external_drains(EPOCH, site.now, [])
    assert (gesture.reason, gesture.by, len(gesture.nodes)) == ("row 3: power", "bob", 41)
    assert (alone.reason, alone.nodes) == ("fan noise", ("gn044",))


def test_the_report_in_words() -> None:
    site = Site(mode=Mode.SHADOW)
    pass_time(site, MINUTE)
    begin(site, site.raise_fault())
    pass_time(site, 6 * MINUTE)
    well, died, held = services.describe_report(report(site))
    assert well == "Drains of nodes that were well: 1 of 1 (95 % interval 2.5% to 100.0%)."
    assert "0 of 0 (95 % interval 0.0% to 100.0%)" in died
    assert held.endswith("0.0 node-hours.")
