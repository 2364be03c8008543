"""Jobs that keep a node which was seen broken: what a site's policy for their partition does with them,
and what no policy does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from incidents.models import Incident
from incidents.state import outbox
from runbooks import services
from runbooks.guards.job_policy import JobPolicy, Then
from runbooks.models import Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def a_site(**policy: Any) -> Site:
    site = Site(job_policies=(JobPolicy(("gpu",), **policy),))
    site.slurm.add_job("77", nodes=["gn001"])
    return site


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def begin(site: Site, incident: Incident | None = None, minutes: int = 5) -> Run:
    run = site.begin(incident or site.lose_gpu())
    return site.play(run, limit=minutes * MINUTE)


def write_checkpoint(site: Site) -> None:
    site.slurm.comment_job("77", f"checkpoint={site.now.timestamp():.0f}")


def test_the_owner_reads_of_it_in_the_jobs_output_once() -> None:
    site = a_site(tells=True)
    run = begin(site, minutes=20)
    (notice,) = [act for act in site.slurm.journal if act[0] == "notify"]
    assert notice[1] == "77"
    assert "gn001, where job 77 runs, is broken" in notice[2]
    assert "scontrol update JobId=77 Comment=kintsugi=requeue" in notice[2]
    assert "alice reads of it in the output of job 77." in site.story(run.incident)


def test_a_job_is_asked_for_a_checkpoint_and_starts_anew_once_it_has_written_one() -> None:
    site = a_site(signal="USR1", is_batch=True, requeues_at_checkpoint=True)
    run = begin(site)
    assert ("signal", "77", "USR1", "batch") in site.slurm.journal
    assert acts(site) == ["drain", "signal"]
    write_checkpoint(site)
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "signal", "requeue", "reboot", "resume"]
    assert any(
        "was requeued, as the policy for gpu has it" in line for line in site.story(run.incident)
    )


def test_a_job_without_progress_is_requeued_at_the_policys_end() -> None:
    site = a_site(longest=20 * MINUTE, then=Then.REQUEUE)
    run = begin(site, minutes=19)
    assert acts(site) == ["drain"]
    run = site.play(run, limit=10 * MINUTE)
    assert acts(site)[:2] == ["drain", "requeue"]


def test_a_job_that_writes_checkpoints_is_not_without_progress() -> None:
    site = a_site(longest=20 * MINUTE, then=Then.REQUEUE)
    run = begin(site, minutes=15)
    write_checkpoint(site)
    run = site.play(run, limit=15 * MINUTE)
    assert acts(site) == ["drain"]
    run = site.play(run, limit=15 * MINUTE)
    assert acts(site)[:2] == ["drain", "requeue"]


def test_a_policy_that_asks_asks_at_its_end_and_moves_no_job() -> None:
    site = a_site(longest=10 * MINUTE)
    incident = site.lose_gpu()
    begin(site, incident, minutes=9)
    incident.refresh_from_db()
    assert incident.needs_human == ""
    site.play(site.run_of(incident), limit=6 * MINUTE)
    incident.refresh_from_db()
    assert incident.needs_human.startswith("Ask alice about job 77 on gn001")
    assert incident.timeline.filter(kind=outbox.JOBS_IN_THE_WAY).count() == 1
    assert acts(site) == ["drain"]


@pytest.mark.parametrize("gpus", [0, 4])
def test_a_job_that_may_use_another_gpu_is_left_alone(gpus: int) -> None:
    site = Site(job_policies=(JobPolicy(("gpu",), tells=True, signal="USR1", then=Then.REQUEUE),))
    site.slurm.add_job("77", nodes=["gn001"], gpus_per_node=gpus)
    begin(site, minutes=120)
    assert acts(site) == ["drain"]


def test_a_fault_that_nobody_has_seen_on_the_node_moves_no_job() -> None:
    site = a_site(tells=True, signal="USR1", longest=MINUTE, then=Then.REQUEUE)
    site.shell.silent.add("gn001")
    begin(site, site.raise_fault(), minutes=120)
    assert acts(site) == ["drain"]


def test_a_fault_that_leaves_the_node_of_use_to_jobs_moves_none() -> None:
    site = a_site(tells=True, signal="USR1", longest=MINUTE, then=Then.REQUEUE)
    begin(site, site.stall_gpu(), minutes=120)
    assert "requeue" not in acts(site)


def test_a_job_of_a_partition_without_a_policy_is_waited_for() -> None:
    site = Site(job_policies=(JobPolicy(("debug",), tells=True, then=Then.REQUEUE),))
    site.slurm.add_job("77", nodes=["gn001"])
    begin(site, minutes=120)
    assert acts(site) == ["drain"]


def test_the_stop_switch_keeps_a_policy_from_moving_jobs() -> None:
    site = a_site(longest=20 * MINUTE, then=Then.REQUEUE)
    run = begin(site)
    services.stop("looking", actor="ada", now=site.now)
    run = site.play(run, limit=60 * MINUTE)
    assert acts(site) == ["drain"]
    assert "stop switch" in run.waiting_for
