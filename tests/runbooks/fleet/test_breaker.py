"""The breaker: trips when much turns bad at once, lets recoveries through, and is closed by a
person alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.fleet import breaker
from runbooks.models import Breaker, Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def turn_bad(site: Site, first: int, count: int) -> list[Incident]:
    return [site.lose_gpu(name) for name in site.names[first : first + count]]


def sweep(site: Site) -> None:
    told = services.evaluate_breaker(site.now, bounds=site.world.policy.bounds)
    if told:
        incidents.ingest(told, now=site.now)


def acts(site: Site) -> list[tuple[str, ...]]:
    return [act[:2] for act in site.slurm.journal]


def test_it_trips_when_more_than_the_share_turns_bad_at_once_and_nothing_is_drained() -> None:
    site = Site(nodes=50)
    lost = turn_bad(site, 0, 6)
    site.start()
    for incident in lost:
        run = site.advance(site.run_of(incident))
        assert "The breaker is open" in run.waiting_for
        assert "6 of 50 nodes turned bad within 10 min" in run.waiting_for
    assert site.slurm.journal == []
    assert Breaker.objects.filter(closed_at=None).count() == 1


def test_it_does_not_trip_when_as_many_turn_bad_as_the_share_allows() -> None:
    site = Site(nodes=60)
    lost = turn_bad(site, 0, 6)
    site.start()
    site.advance(site.run_of(lost[0]))
    assert acts(site) == [("drain", "gn001")]
    assert breaker.get_open_breaker() is None


def test_it_does_not_trip_when_nodes_turn_bad_one_after_the_other() -> None:
    site = Site(nodes=20)
    for index in range(8):
        turn_bad(site, index, 1)
        site.now += timedelta(minutes=5)
    sweep(site)
    assert breaker.get_open_breaker() is None


def test_nodes_that_slurm_sets_down_at_once_count() -> None:
    site = Site(nodes=20)
    for name in site.names[1:7]:
        site.slurm.set_down(name)
    run = site.advance(site.begin(site.lose_gpu("gn001")))
    assert "7 of 20 nodes turned bad" in run.waiting_for


def test_it_stays_open_until_a_person_closes_it_and_the_sweep_tells_people() -> None:
    site = Site(nodes=20)
    turn_bad(site, 0, 6)
    sweep(site)
    told = Incident.objects.get(fault_type=breaker.FAULT_TYPE)
    assert "kintsugi.breaker_tripped" in told.fault_type
    site.now += timedelta(days=3)
    sweep(site)
    assert breaker.get_open_breaker() is not None
    assert Incident.objects.filter(fault_type=breaker.FAULT_TYPE).count() == 1

    outcome = services.close_breaker("a wrong detector", actor="alice", now=site.now)
    sweep(site)

    told.refresh_from_db()
    assert isinstance(outcome, services.Controlled)
    assert told.state == "monitoring"
    assert Breaker.objects.get().closed_by == "alice"


def test_what_turned_bad_before_it_was_closed_does_not_trip_it_again_and_runs_go_on() -> None:
    site = Site(nodes=20)
    first = turn_bad(site, 0, 6)[0]
    run = site.advance(site.begin(first))
    services.close_breaker("row 3 was hot", actor="alice", now=site.now)
    assert services.get_due_runs(site.now) != []
    run = site.advance(run)
    assert acts(site) == [("drain", "gn001")]


def test_a_node_that_is_drained_already_is_repaired_and_comes_back_while_it_is_open() -> None:
    site = Site(nodes=20)
    run = site.begin(site.lose_gpu("gn001"))
    site.advance(run)
    turn_bad(site, 1, 6)
    sweep(site)
    assert breaker.get_open_breaker() is not None
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]


def test_false_alarms_do_not_count() -> None:
    site = Site(nodes=20)
    for incident in turn_bad(site, 0, 6)[:3]:
        incidents.act(
            incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="alice", note="a test", now=site.now
        )
    sweep(site)
    assert breaker.get_open_breaker() is None


def test_it_is_closed_once_and_with_a_reason() -> None:
    site = Site(nodes=20)
    turn_bad(site, 0, 6)
    sweep(site)
    assert isinstance(
        services.close_breaker(" ", actor="alice", now=site.now), services.ControlRefused
    )
    services.close_breaker("seen", actor="alice", now=site.now)
    outcome = services.close_breaker("seen", actor="bob", now=site.now)
    assert str(outcome) == "The breaker has not tripped."


def test_the_command_shows_and_closes_it(capsys: pytest.CaptureFixture[str]) -> None:
    site = Site(nodes=20)
    call_command("breaker")
    turn_bad(site, 0, 6)
    sweep(site)
    call_command("breaker")
    with pytest.raises(CommandError, match="Say what was found"):
        call_command("breaker", close=True)
    call_command("breaker", close=True, reason="leaf-03 was at fault", actor="alice")
    told = capsys.readouterr().out
    assert "The breaker has not tripped." in told
    assert "The breaker tripped at 2025-01-15 03:00 UTC: 6 of 20 nodes turned bad" in told
    assert "The breaker is closed." in told
    assert not Run.objects.exists()
