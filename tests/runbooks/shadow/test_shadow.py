"""What people do to nodes is written down as Slurm shows it; what Kintsugi does itself is not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Node
from runbooks.models import Mode, Run, RunState, SeenAct
from runbooks.shadow import shadow_log
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(db: None) -> Site:
    return Site(mode=Mode.SHADOW)


def _look(site: Site) -> int:
    return shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)


def test_what_kintsugi_does_itself_is_no_persons_act() -> None:
    site = Site(mode=Mode.ARMED)
    _look(site)
    run = site.begin(site.lose_gpu())
    site.play(run)
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]
    _look(site)
    assert not SeenAct.objects.exists()


def test_a_node_seen_for_the_first_time_tells_of_no_act(site: Site) -> None:
    site.slurm.human_drain("gn003", "old story")
    assert _look(site) == 0
    assert Node.objects.get(name="gn003").seen.is_out


def test_a_drain_of_slurms_under_another_name_of_its_user_is_no_persons_act(site: Site) -> None:
    _look(site)
    site.slurm.human_drain("gn002", "Kill task failed", user="hpcadmin")
    assert (
        shadow_log.record_external_acts(site.slurm.read_nodes(), site.now, slurm_user="hpcadmin")
        == 0
    )


FEWER = "gres/gpu count reported lower than configured (7 < 8)"


@pytest.mark.parametrize("reason", ["do not touch", "kintsugi:1 gpu.xid.79: vendor case"])
def test_a_persons_reason_is_known_when_slurm_has_replaced_it_whatever_it_looks_like(
    reason: str,
) -> None:
    """As slurmctld 23.02 and later do where a drained node comes back with fewer GPUs."""
    site = Site(nodes=2)
    _look(site)
    site.slurm.human_drain("gn001", reason)
    _look(site)
    site.slurm.slurm_drain("gn001", FEWER)
    _look(site)
    assert shadow_log.find_persons_reason("gn001") == reason
    run = site.advance(site.begin(site.lose_gpu()))
    assert site.slurm.journal == []
    assert reason in run.waiting_for


def test_what_a_run_has_written_is_no_persons_reason_though_slurm_has_replaced_it() -> None:
    site = Site(nodes=2)
    _look(site)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "verify"
    )
    Run.objects.filter(pk=run.pk).update(
        state=RunState.FAILED, finished_at=site.now - timedelta(hours=1)
    )
    _look(site)
    site.slurm.slurm_drain("gn001", FEWER)
    _look(site)
    assert shadow_log.find_persons_reason("gn001") == ""


def test_words_that_a_person_added_to_ours_are_known_when_slurm_has_replaced_them() -> None:
    """As slurmctld 22.05 does at a second reboot (set_node_reboot_reason,
    src/slurmctld/node_mgr.c)."""
    site = Site(nodes=2)
    _look(site)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "verify"
    )
    added = f"{site.slurm.read_nodes(('gn001',))['gn001'].reason} : hands inside"
    site.slurm.human_drain("gn001", added)
    _look(site)
    site.slurm.slurm_drain("gn001", "reboot issued")
    _look(site)
    assert shadow_log.find_persons_reason("gn001") == added
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot"]


def test_a_reboot_that_slurm_writes_over_our_reason_alone_leaves_the_drain_ours() -> None:
    site = Site(nodes=2)
    _look(site)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "verify"
    )
    _look(site)
    site.slurm.slurm_drain("gn001", "reboot issued")
    _look(site)
    assert shadow_log.find_persons_reason("gn001") == ""
    assert site.play(run).state == RunState.SUCCEEDED
