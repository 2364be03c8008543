"""The ledger: what Kintsugi would have done in shadow beside what people did."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Node
from runbooks.models import Mode, Run, RunState, SeenAct, ShadowAct
from runbooks.shadow import shadow_log
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
WINDOW = timedelta(hours=24)
Verdict = ShadowAct.Verdict


@pytest.fixture
def site(db: None) -> Site:
    return Site(mode=Mode.SHADOW)


def _shadowed(site: Site, node: str = "gn001") -> None:
    run = site.begin(site.lose_gpu(node))
    site.advance(run)


def _look(site: Site) -> int:
    return shadow_log.record_external_acts(site.slurm.nodes(), site.now)


def _verdicts(side: str = "kintsugi") -> dict[str, str]:
    return dict(ShadowAct.objects.filter(side=side).values_list("kind", "verdict"))


def test_a_run_in_shadow_enters_the_acts_that_slurm_would_show(site: Site) -> None:
    _shadowed(site)
    assert _verdicts() == {"drain": "open", "reboot": "open", "resume": "open"}
    assert site.slurm.journal == []


def test_an_act_agrees_as_soon_as_a_person_does_the_same(site: Site) -> None:
    _look(site)
    _shadowed(site)
    site.now += timedelta(minutes=20)
    site.slurm.human_drain("gn001", "GPU lost")
    assert _look(site) == 1
    shadow_log.settle(site.now, window=WINDOW)
    assert _verdicts() == {"drain": "agreed", "reboot": "open", "resume": "open"}


def test_what_a_person_did_shortly_before_is_the_same_act(site: Site) -> None:
    _look(site)
    site.now += timedelta(minutes=20)
    site.slurm.human_drain("gn001", "GPU lost")
    _look(site)
    site.now += timedelta(minutes=5)
    _shadowed(site)
    shadow_log.settle(site.now, window=WINDOW)
    assert _verdicts()["drain"] == "agreed"


def test_an_act_that_nobody_did_differs_when_its_window_is_over(site: Site) -> None:
    _look(site)
    _shadowed(site)
    site.now += WINDOW - timedelta(seconds=1)
    assert shadow_log.settle(site.now, window=WINDOW) == 0
    site.now += timedelta(seconds=1)
    assert shadow_log.settle(site.now, window=WINDOW) == 3
    assert set(_verdicts().values()) == {"differed"}


def test_an_act_on_another_node_agrees_with_nothing(site: Site) -> None:
    _look(site)
    _shadowed(site)
    site.slurm.human_drain("gn002", "fan noise")
    site.now += timedelta(minutes=1)
    _look(site)
    shadow_log.settle(site.now, window=WINDOW)
    assert _verdicts()["drain"] == "open"


def test_what_people_did_without_kintsugi_differs_after_the_window(site: Site) -> None:
    _look(site)
    site.now += timedelta(minutes=1)
    site.slurm.human_drain("gn002", "fan noise")
    _look(site)
    shadow_log.settle(site.now, window=WINDOW)
    assert _verdicts("people") == {}
    site.now += WINDOW + timedelta(minutes=1)
    shadow_log.settle(site.now, window=WINDOW)
    assert _verdicts("people") == {"drain": "differed"}
    shadow_log.settle(site.now, window=WINDOW)
    assert ShadowAct.objects.filter(side="people").count() == 1


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


def test_an_engineer_judges_a_difference_and_takes_it_back(site: Site) -> None:
    _shadowed(site)
    site.now += WINDOW
    shadow_log.settle(site.now, window=WINDOW)
    act = ShadowAct.objects.get(kind="reboot")
    assert shadow_log.store_judgement(act.pk, "kintsugi", actor="aya", now=site.now) == ""
    act.refresh_from_db()
    assert (act.judged, act.judged_by) == ("kintsugi", "aya")
    assert shadow_log.store_judgement(act.pk, "", actor="aya", now=site.now) == ""
    act.refresh_from_db()
    assert (act.judged, act.judged_at) == ("", None)


def test_what_has_not_settled_and_words_that_are_none_are_refused(site: Site) -> None:
    _shadowed(site)
    act = ShadowAct.objects.get(kind="reboot")
    assert "no difference" in shadow_log.store_judgement(
        act.pk, "kintsugi", actor="aya", now=site.now
    )
    assert "expected kintsugi" in shadow_log.store_judgement(
        act.pk, "maybe", actor="aya", now=site.now
    )


def test_agreement_is_counted_by_runbook_with_a_wilson_interval(site: Site) -> None:
    _look(site)
    _shadowed(site)
    site.now += timedelta(minutes=1)
    site.slurm.human_drain("gn001", "GPU lost")
    _look(site)
    site.now += WINDOW
    shadow_log.settle(site.now, window=WINDOW)
    act = ShadowAct.objects.filter(verdict="differed").first()
    assert act is not None
    shadow_log.store_judgement(act.pk, "kintsugi", actor="aya", now=site.now)
    (row,) = shadow_log.compute_agreement()
    assert (row.settled, row.agreed, row.open, row.judged, row.judged_for_us) == (3, 1, 0, 1, 1)
    # 1 of 3 by Wilson's score interval: (0.0615, 0.7923), Brown, Cai and DasGupta (2001), equation
    # 4.
    assert row.share == pytest.approx((1 / 3, 0.0615, 0.7923), abs=1e-3)


def test_agreement_of_nothing_has_no_share(site: Site) -> None:
    _shadowed(site)
    (row,) = shadow_log.compute_agreement()
    assert row.share is None


def test_a_drain_of_slurms_under_another_name_of_its_user_is_no_persons_act(site: Site) -> None:
    _look(site)
    site.slurm.human_drain("gn002", "Kill task failed", user="hpcadmin")
    assert shadow_log.record_external_acts(site.slurm.nodes(), site.now, slurm_user="hpcadmin") == 0


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
    added = f"{site.slurm.nodes(('gn001',))['gn001'].reason} : hands inside"
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
