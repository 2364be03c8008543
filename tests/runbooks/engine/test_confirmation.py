"""A fault is looked for on the node while its jobs go on: at once after the drain. What is refuted
twice by what can see it keeps no node, and what only a person has told takes none unseen."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.provenance import Forger, Provenance, Transport
from fixtures.cluster.gpu import Presence
from incidents import services as incidents
from incidents.models import Incident
from kintsugi.cli import lists
from kintsugi.health import metrics
from runbooks import services
from runbooks.engine import refutations
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.models import Mode, Run, RunState
from runbooks.node import witnesses
from runbooks.shadow import episode_facts
from runbooks.shadow.episode_facts import FaultLook
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db
WEEK = timedelta(days=7)
MINUTES = timedelta(minutes=10)


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def with_job(site: Site) -> Site:
    site.slurm.add_job("77", nodes=["gn001"])
    return site


def report(site: Site, fault_type: str = "gpu.lost") -> Incident:
    return incidents.report(
        author="ada",
        text="CUDA error: no such device",
        resource=site.gpu("gn001"),
        fault_type=fault_type,
        occurred_at=site.now,
        now=site.now,
    )


def test_a_false_line_gives_the_node_back_within_minutes_while_its_week_long_job_goes_on() -> None:
    site = with_job(Site())
    incident = site.raise_fault()
    run = site.play(site.begin(incident), limit=WEEK)
    assert run.state == RunState.WITHDRAWN
    assert site.now - EPOCH < MINUTES
    assert acts(site) == ["drain", "resume"]
    assert [job.job_id for job in site.slurm.list_jobs("gn001")] == ["77"]
    assert "was looked for twice and is not there" in run.outcome
    assert "gn001 is handed back" in run.outcome
    incident.refresh_from_db()
    assert incident.is_open
    assert f"kintsugi incident why {incident.pk}" in incident.needs_human
    assert any("gpu.xid.79 counts as wrong here" in line for line in site.story(incident))


def test_the_same_without_any_job() -> None:
    site = Site()
    run = site.play(site.begin(site.raise_fault()), limit=WEEK)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain", "resume"])
    assert site.now - EPOCH < MINUTES


def test_refuted_rules_are_counted_by_type() -> None:
    site = with_job(Site())
    site.play(site.begin(site.raise_fault()), limit=WEEK)
    assert refutations.count_by_type() == {"gpu.xid.79": 1}
    line = 'kintsugi_refuted_faults{type="gpu.xid.79"} 1.0'
    assert line in metrics.format_metrics(site.now).decode()


def test_an_operator_sees_which_rule_was_wrong_how_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = with_job(Site())
    lists.list_wrong_rules()
    assert "No fault that was told of was refuted" in capsys.readouterr().out
    numbers = []
    for node in ("gn001", "gn002"):
        incident = site.raise_fault(node)
        site.play(site.begin(incident), limit=WEEK)
        site.set_mode(Mode.ARMED)
        numbers.append(incident.pk)
    real = site.begin(site.lose_gpu("gn003"))
    site.play(real, limit=timedelta(hours=2))
    (rule,) = refutations.list_wrong_rules(EPOCH)
    assert (rule.fault_type, rule.refuted) == ("gpu.xid.79", 2)
    assert rule.incidents == tuple(reversed(numbers))
    assert EPOCH < rule.last_at <= site.now
    assert refutations.list_wrong_rules(site.now + WEEK) == []
    lists.list_wrong_rules(days=3650, as_json=True)
    assert '"refuted": 2' in capsys.readouterr().out


def test_a_lost_gpu_is_confirmed_at_once_while_the_job_goes_on() -> None:
    site = with_job(Site())
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), limit=timedelta(seconds=10))
    assert "still on gn001" in run.waiting_for
    (text,) = [line for line in site.story(incident) if line.startswith("Confirmed on gn001")]
    assert "gpu.lost" in text
    assert run.facts[witnesses.CONFIRMED_AT] == EPOCH.isoformat()
    run = site.play(run, limit=timedelta(hours=2))
    assert acts(site) == ["drain"]
    site.slurm.finish_job("77")
    run = site.play(run)
    assert (run.state, acts(site)) == (RunState.SUCCEEDED, ["drain", "reboot", "resume"])


def test_what_was_seen_once_is_not_refuted_by_a_look_after_the_jobs_end() -> None:
    site = with_job(Site())
    run = site.play(site.begin(site.lose_gpu()), limit=timedelta(minutes=1))
    site.nodes.nodes["gn001"].gpus[0].presence = Presence.PRESENT
    site.slurm.finish_job("77")
    run = site.play(run, limit=timedelta(hours=2))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])
    assert "is not confirmed on gn001" in run.waiting_for


def test_a_node_that_cannot_be_looked_at_is_not_refuted_and_people_read_why() -> None:
    site = with_job(Site())
    site.shell.silent.add("gn001")
    incident = site.raise_fault()
    run = site.play(site.begin(incident), limit=timedelta(hours=2))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])
    told = [line for line in site.story(incident) if "neither be confirmed nor ruled out" in line]
    assert len(told) == 1
    assert "Kintsugi cannot reach it" in told[0]


def test_a_look_that_fails_between_two_denials_does_not_count_as_one() -> None:
    site = with_job(Site())
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=1))
    assert witnesses.REFUTED_SINCE in run.facts
    site.shell.silent.add("gn001")
    run = site.play(run, limit=timedelta(minutes=20))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])
    site.shell.silent.clear()
    answers_at = site.now
    run = site.play(run, limit=WEEK)
    assert run.state == RunState.WITHDRAWN
    assert site.now - answers_at >= witnesses.REFUTED_AFTER


def test_no_job_is_requeued_for_a_fault_that_a_first_look_does_not_show() -> None:
    site = with_job(Site())
    site.slurm.comment_job("77", "kintsugi=requeue")
    run = site.play(site.begin(site.raise_fault()), limit=WEEK)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain", "resume"])


def test_a_second_fault_of_the_node_is_taken_in_before_the_first_is_given_up() -> None:
    site = with_job(Site())
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=1))
    site.nodes.nodes["gn001"].gpus[2].presence = Presence.NO_HANDLE
    site.poll()
    run = site.play(run, limit=timedelta(hours=2))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])
    assert (run.fault_type, run.facts["resource"]) == ("gpu.lost", site.gpu("gn001", 2))
    site.slurm.finish_job("77")
    assert site.play(run).state == RunState.SUCCEEDED


def test_a_run_that_a_person_began_by_hand_is_not_refuted() -> None:
    site = with_job(Site())
    incident = site.raise_fault()
    site.play(site.begin(incident), limit=MINUTES)
    asked = {"actor": "ada", "note": "I saw it"}
    services.start_manual_run(DRAIN_REBOOT_VERIFY, incident.pk, now=site.now, **asked)
    run = site.play(Run.objects.latest("pk"), limit=timedelta(hours=2))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain", "resume", "drain"])


def test_a_node_that_another_incident_needs_stays_drained_for_that_one() -> None:
    site = with_job(Site())
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=1))
    site.now += timedelta(minutes=4)
    other = site.raise_fault(fault_type="nic.missing", resource="node/gn001/nic/mlx5_0")
    assert other.pk != run.incident_id
    run = site.play(run, limit=MINUTES)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain"])
    assert f"gn001 stays drained for incident #{other.pk}" in run.outcome
    site.start()
    following = site.advance(site.run_of(other), times=2)
    assert following.step > 0, following.waiting_for


def test_what_a_person_would_be_asked_about_is_looked_for_beside_the_jobs_too() -> None:
    site = with_job(Site())
    incident = site.raise_fault(fault_type="gpu.ecc.row_remap_failure")
    run = site.play(site.begin(incident), limit=WEEK)
    assert run.runbook == DRAIN_AND_ASK
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain", "resume"])
    assert site.now - EPOCH < MINUTES


def test_what_the_nodes_own_kernel_has_written_is_not_refuted() -> None:
    site = with_job(Site())
    incident = site.lose_gpu()
    site.nodes.nodes["gn001"].gpus[0].presence = Presence.PRESENT
    run = site.play(site.begin(incident), limit=timedelta(hours=2))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])


def test_a_fault_that_was_refuted_and_is_told_again_is_looked_for_before_the_drain() -> None:
    site = with_job(Site())
    incident = site.raise_fault()
    site.play(site.begin(incident), limit=WEEK)
    site.set_mode(Mode.ARMED)
    for _ in range(3):
        site.now += timedelta(minutes=30)
        assert site.raise_fault().pk == incident.pk
        site.start()
        for run in Run.objects.unfinished():
            site.play(run, limit=WEEK)
    assert acts(site) == ["drain", "resume"]
    assert Run.objects.count() > 1
    site.now += timedelta(minutes=30)
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    site.raise_fault()
    site.start()
    site.play(Run.objects.latest("pk"), limit=timedelta(minutes=1))
    assert acts(site) == ["drain", "resume", "drain"]


def test_a_report_by_type_of_a_node_that_is_well_takes_it_from_nobody() -> None:
    site = with_job(Site())
    incident = report(site)
    run = site.play(site.begin(incident), limit=WEEK)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, [])
    assert "ada" in run.outcome


def test_a_report_by_type_of_what_is_there_drains_within_the_look() -> None:
    site = with_job(Site())
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    run = site.play(site.begin(report(site)), limit=timedelta(seconds=10))
    assert (run.state, acts(site)) == (RunState.RUNNING, ["drain"])


def test_a_report_of_what_no_detector_sees_is_believed_as_before() -> None:
    site = with_job(Site())
    told_by = Provenance("ada", Transport.PERSON, "ada", forger=Forger.NOBODY)
    incident = site.raise_fault(fault_type="gpu.xid.119", told_by=told_by)
    site.play(site.begin(incident), limit=timedelta(seconds=10))
    assert acts(site) == ["drain"]


@pytest.mark.parametrize(
    ("condition", "look", "says"),
    [
        ("lost", FaultLook.SEEN, "Confirmed on gn001: gpu.lost"),
        ("well", FaultLook.DENIED, "its gpu check finds nothing wrong"),
        ("silent", FaultLook.UNKNOWN, "Kintsugi cannot reach it"),
    ],
)
def test_shadow_looks_too_and_writes_down_what_it_saw(
    condition: str, look: FaultLook, says: str
) -> None:
    site = with_job(Site(mode=Mode.SHADOW))
    if condition == "silent":
        site.shell.silent.add("gn001")
    incident = site.lose_gpu() if condition == "lost" else site.raise_fault()
    run = site.advance(site.begin(incident))
    assert (run.state, acts(site)) == (RunState.SHADOWED, [])
    assert episode_facts.load(run.facts).look is look
    assert says in run.outcome
    assert refutations.count_by_type() == {}
