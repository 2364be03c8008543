"""Slurm is asked for its jobs each minute, sooner when an incident opens, by one process; silence
is never nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from fixtures.memory_slurm import MemorySlurm
from incidents import services
from incidents.impact import impact
from incidents.jobs import job_source
from incidents.models import Incident, IncidentJob, Job, JobSource
from runbooks.slurm.protocol import RecentJobs
from tests.builders import NOW, an_event
from tests.kintsugi.beaten import Beaten
from tests.runbooks.site import CLUSTER

pytestmark = pytest.mark.django_db
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NODES = ("gn041", "gn042", "gn043")


class Watched:
    """A Slurm in memory on a clock that the test turns; counts how often it is asked."""

    def __init__(self) -> None:
        self.now = NOW - timedelta(hours=1)
        self.asked: list[timedelta] = []
        self.held_back: set[str] = set()  # jobs whose end slurmctld has not told slurmdbd yet
        self.slurm = MemorySlurm(
            {name: ["gpu"] for name in NODES}, cluster_name=CLUSTER, now=lambda: self.now
        )
        self.slurm.add_job("7", nodes=("gn041", "gn042"))
        self.now = NOW
        self.site = Beaten(self)

    def read_recent_jobs(self, lately: timedelta) -> RecentJobs:
        self.asked.append(lately)
        told = self.slurm.read_recent_jobs(lately)
        return replace(
            told, records=[one for one in told.records if one.job_id not in self.held_back]
        )

    def look(self, after: timedelta = timedelta(0)) -> None:
        self.now = self.site.now = self.now + after
        self.site.pipeline.update_jobs()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def lose_a_gpu() -> Incident:
    services.ingest([an_event()], now=NOW)
    return Incident.objects.get()


def test_slurm_is_asked_once_a_minute_whichever_process_sweeps(watched: Watched) -> None:
    for _ in range(30):
        watched.look(4 * SECOND)
    assert len(watched.asked) == 2


def test_slurm_is_asked_at_once_when_an_incident_opened(watched: Watched) -> None:
    watched.look()
    incident = lose_a_gpu()
    watched.look(9 * SECOND)
    assert len(watched.asked) == 1
    watched.look(SECOND)
    assert len(watched.asked) == 2
    incident.refresh_from_db()
    assert (incident.jobs_touched, incident.impact_at) == (1, watched.now)


def test_a_job_with_which_kintsugi_tests_a_node_is_nobodys_loss(watched: Watched) -> None:
    watched.slurm.add_job("8", nodes=("gn042",), name="kintsugi_12-2-diagnose")
    watched.slurm.add_job("9", nodes=("gn042",), name="kintsugi_paper")
    watched.look()
    assert set(Job.objects.values_list("job_id", flat=True)) == {"7", "9"}


def test_accounts_are_asked_for_what_was_missed_and_no_further_than_events_count(
    watched: Watched,
) -> None:
    watched.look()
    watched.look(MINUTE)
    watched.look(5 * timedelta(hours=1))
    watched.look(timedelta(days=30))
    week = timedelta(days=7)
    assert watched.asked == [week, timedelta(hours=1) + MINUTE, timedelta(hours=6), week]


def test_a_long_silence_is_asked_for_again_until_slurmctld_has_told_what_it_held_back(
    watched: Watched,
) -> None:
    hour = timedelta(hours=1)
    for after in (timedelta(0), 5 * hour, MINUTE, 9 * MINUTE, MINUTE):
        watched.look(after)
    assert watched.asked[1:] == [6 * hour, 6 * hour + MINUTE, 6 * hour + 10 * MINUTE, hour + MINUTE]


def test_an_end_is_learned_when_slurmctld_tells_it_after_the_first_answer(watched: Watched) -> None:
    watched.look()
    watched.now += MINUTE
    watched.slurm.finish_job("7", "TIMEOUT")
    watched.held_back = {"7"}
    watched.look(timedelta(hours=5))
    assert Job.objects.get().state == "UNKNOWN"
    watched.held_back = set()
    watched.look(MINUTE)
    assert (Job.objects.get().state, Job.objects.get().ended_at) == ("TIMEOUT", NOW + MINUTE)


def test_a_job_lost_with_its_node_is_told_with_its_owner(watched: Watched) -> None:
    watched.look()
    incident = lose_a_gpu()
    watched.now += 6 * MINUTE
    watched.slurm.finish_job("7", "NODE_FAIL")
    watched.look(MINUTE)
    row = IncidentJob.objects.select_related("job").get()
    assert (row.outcome, row.is_harmed, row.job.user) == ("NODE_FAIL", True, "alice")
    assert row.gpu_hours_lost == pytest.approx(1.6)
    (entry,) = incident.timeline.filter(kind=impact.KIND)
    assert "alice (7 NODE_FAIL, 2 nodes)" in entry.text


def test_the_work_since_its_checkpoint_is_lost_when_the_job_tells_of_one(watched: Watched) -> None:
    watched.slurm.comment_job("7", f"checkpoint={(NOW - 30 * MINUTE).timestamp():.0f}")
    lose_a_gpu()
    watched.now += 6 * MINUTE
    watched.slurm.finish_job("7", "CANCELLED")
    watched.look()
    row = IncidentJob.objects.get()
    assert (row.gpu_hours_lost, row.is_estimate) == (pytest.approx(16 * 0.6), False)


def test_jobs_are_not_known_and_not_none_when_slurm_does_not_answer(watched: Watched) -> None:
    watched.slurm.is_answering = False
    incident = lose_a_gpu()
    watched.look()
    incident.refresh_from_db()
    assert incident.impact_at is None
    assert "Unable to contact slurm controller" in job_source.get_notice()


def test_slurm_is_asked_no_sooner_when_it_did_not_answer(watched: Watched) -> None:
    watched.slurm.is_answering = False
    lose_a_gpu()
    for _ in range(12):
        watched.look(10 * SECOND)
    assert len(watched.asked) == 2


def test_jobs_run_on_as_last_seen_when_slurm_is_away_and_their_end_is_learned_when_it_is_back(
    watched: Watched,
) -> None:
    watched.look()
    watched.slurm.is_answering = False
    watched.look(MINUTE)
    assert Job.objects.get().ended_at is None
    watched.now += MINUTE
    watched.slurm.finish_job("7", "TIMEOUT")
    watched.slurm.is_answering = True
    watched.look(timedelta(hours=2))
    assert (Job.objects.get().state, Job.objects.get().ended_at) == ("TIMEOUT", NOW + 2 * MINUTE)
    assert job_source.get_notice() == ""


def test_an_end_is_not_known_when_nobody_keeps_accounts_and_nobody_looked(watched: Watched) -> None:
    watched.slurm.keeps_accounts = False
    watched.look()
    lose_a_gpu()
    watched.slurm.finish_job("7", "FAILED")
    watched.look(10 * MINUTE)
    assert Job.objects.get().state == "UNKNOWN"
    assert IncidentJob.objects.get().gpu_hours_lost is None
    assert "keeps no accounts" in job_source.get_notice()


def test_accounts_that_do_not_answer_are_said_and_asked_again_from_where_they_ended(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.look()
    source = JobSource.objects.get()
    job_source.record_answer(
        NOW + MINUTE, has_accounts=None, complaint="sacct ended with status 1: no slurmdbd"
    )
    source.refresh_from_db()
    assert (source.accounts_at, source.has_accounts) == (NOW, True)
    assert "no slurmdbd" in job_source.get_notice()
    assert f"They last told at {NOW:%Y-%m-%d %H:%M}" in job_source.get_notice()


def test_a_tick_of_the_pipeline_looks_at_jobs(watched: Watched) -> None:
    Beaten(watched.slurm).pipeline.tick()
    assert Job.objects.get().job_id == "7"
