"""Stop, and give nothing back: runs that hold a node end, it stays drained for a person, and nothing
else gives a node back until the switch is released."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from incidents import services as incidents
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.fleet import fleet
from runbooks.models import AuditEntry, ReturnStop, Run, RunState, StopSwitch
from runbooks.people import controls
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
WHY = "bad nodes come back"


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def is_out(site: Site, node: str = "gn001") -> bool:
    return site.slurm.read_nodes()[node].is_draining


def keep(site: Site) -> str:
    outcome = services.stop(WHY, actor="alice", now=site.now, gives_back=False)
    assert isinstance(outcome, services.Controlled)
    return outcome.text


def begin_late(site: Site, run: Run) -> Run:
    """As one that was let through in the moment of the stop, and was not seen by it."""
    Run.objects.filter(pk=run.pk).update(claimed_at=None)
    keep(site)
    Run.objects.filter(pk=run.pk).update(claimed_at=site.now)
    return Run.objects.get(pk=run.pk)


def test_a_run_that_holds_a_node_ends_and_the_node_stays_drained_for_a_person() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=lambda run: run.step == 5)
    text = keep(site)
    assert "no node is given back. Runs ended, whose nodes stay as they are: 1." in text
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    before = acts(site)
    site.play(run, limit=timedelta(hours=1))
    assert acts(site) == before
    assert is_out(site)
    assert "kintsugi:" in site.slurm.read_nodes()["gn001"].reason
    incident.refresh_from_db()
    assert incident.needs_human.startswith("Resume gn001 when it is well")
    assert any(WHY in line for line in site.story(incident))
    assert AuditEntry.objects.filter(act="stop", text__contains="Nothing is given back").exists()


def test_a_run_that_holds_no_node_waits_and_goes_on_after_the_release() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    assert "whose nodes stay as they are: 0." in keep(site)
    run = site.play(run, limit=timedelta(minutes=3))
    assert (run.state, acts(site)) == (RunState.RUNNING, [])
    services.release(actor="alice", now=site.now)
    assert site.play(run).state == RunState.SUCCEEDED


def test_one_that_was_let_through_in_that_moment_waits_before_its_resume() -> None:
    site = Site(nodes=2)
    run = begin_late(site, site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5))
    run = site.play(run, limit=timedelta(minutes=30))
    assert run.state == RunState.RUNNING
    assert "nothing is given back: alice" in run.waiting_for
    assert is_out(site)
    services.release(actor="alice", now=site.now)
    assert site.play(run).state == RunState.SUCCEEDED
    assert not is_out(site)


def test_a_false_alarm_leaves_its_node_drained_meanwhile_and_a_person_is_asked() -> None:
    site = Site(nodes=2)
    site.slurm.add_job("77", nodes=["gn001"])
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), limit=timedelta(minutes=1))
    run = begin_late(site, run)
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="a test", now=site.now
    )
    run = site.play(run, limit=timedelta(minutes=10))
    assert run.state == RunState.WITHDRAWN
    assert "stays drained, since nothing is given back" in run.outcome
    assert is_out(site)


@pytest.mark.parametrize(
    "words", ["give-nothing-back\n", "aya, 26 Nov: bad nodes, give-nothing-back"]
)
def test_the_stop_file_holds_resumes_where_it_says_so_until_it_is_gone(
    tmp_path: Path, words: str
) -> None:
    site = Site(nodes=2, stop_file=tmp_path / "stop")
    run = site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5)
    (tmp_path / "stop").write_text(words)
    run = site.play(run, limit=timedelta(minutes=30))
    assert run.state == RunState.RUNNING
    assert f"the file {tmp_path / 'stop'} says give-nothing-back" in run.waiting_for
    assert is_out(site)
    (tmp_path / "stop").unlink()
    assert site.play(run).state == RunState.SUCCEEDED
    assert not is_out(site)


@pytest.mark.parametrize("words", ["", "give nothing back", "power works in row 3"])
def test_any_other_stop_file_gives_nodes_back_as_before(tmp_path: Path, words: str) -> None:
    site = Site(nodes=2, stop_file=tmp_path / "stop")
    run = site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5)
    (tmp_path / "stop").write_text(words)
    assert site.play(run).state == RunState.SUCCEEDED


def test_no_file_says_nothing_also_where_its_folder_is_none(tmp_path: Path) -> None:
    assert fleet.read_return_stop(tmp_path / "none" / "stop") == ""
    assert fleet.read_return_stop(Path("/dev/null/stop")) == ""


def test_a_stop_file_that_cannot_be_read_may_say_it(tmp_path: Path) -> None:
    (tmp_path / "stop").mkdir()
    assert "exists and is no file" in fleet.read_return_stop(tmp_path / "stop")
    os.mkfifo(tmp_path / "fifo")
    assert "exists and is no file" in fleet.read_return_stop(tmp_path / "fifo")


def test_a_false_alarm_leaves_its_node_drained_while_the_file_says_so(tmp_path: Path) -> None:
    site = Site(nodes=2, stop_file=tmp_path / "stop")
    site.slurm.add_job("77", nodes=["gn001"])
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), limit=timedelta(minutes=1))
    (tmp_path / "stop").write_text("give-nothing-back")
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="a test", now=site.now
    )
    site.play(run, limit=timedelta(minutes=10))
    assert is_out(site)


def test_the_plain_switch_gives_nodes_back_as_before() -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5)
    services.stop("wait", actor="alice", now=site.now)
    assert not ReturnStop.objects.exists()
    assert site.play(run).state == RunState.SUCCEEDED


def test_it_is_added_to_a_switch_that_stands_already() -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5)
    services.stop("wait", actor="alice", now=site.now)
    keep(site)
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    services.release(actor="alice", now=site.now)
    assert not StopSwitch.objects.filter(released_at=None).exists()


def test_without_a_reason_nothing_is_ended() -> None:
    site = Site(nodes=2)
    run = site.advance(site.begin(site.lose_gpu()))
    outcome = controls.stop(" ", actor="alice", now=site.now, gives_back=False)
    assert isinstance(outcome, services.ControlRefused)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


def test_the_command_has_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("stop", reason=WHY, give_nothing_back=True, actor="alice")
    assert "no node is given back" in capsys.readouterr().out
    assert ReturnStop.objects.get().switch.reason == WHY
    with pytest.raises(CommandError, match="one of the two"):
        call_command("stop", release=True, give_nothing_back=True)
