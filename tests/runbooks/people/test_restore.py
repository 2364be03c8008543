"""Yesterday's database beside today's Slurm: nothing is done on the strength of what is not known
any more."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from incidents.models import Incident
from incidents.vocabulary.lifecycle import State
from kintsugi.clients import wiring
from runbooks import services
from runbooks.models import Run, RunState, StopSwitch
from runbooks.people.restore import NUMBERS_LEFT_OUT, Restored
from runbooks.slurm.ownership import format_reason
from runbooks.slurm.protocol import SlurmError
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def follow(site: Site) -> Restored:
    return services.follow_restore(site.world.slurm, actor="ada", now=site.now)


def drained_site() -> tuple[Site, Run]:
    """A run that has drained gn001 and waits."""
    site = Site(nodes=3)
    run = site.begin(site.lose_gpu())
    while not site.world.slurm.read_nodes(("gn001",))["gn001"].is_draining:
        site.advance(run)
    return site, run


def test_the_stop_switch_stands_afterwards_and_once() -> None:
    site = Site(nodes=1)
    follow(site)
    follow(site)
    switch = StopSwitch.objects.get()
    assert (switch.engaged_by, switch.released_at) == ("ada", None)
    assert "restored from a backup" in switch.reason


def test_unfinished_runs_end_and_their_nodes_stay_as_they_are() -> None:
    site, run = drained_site()
    before = site.world.slurm.read_nodes()
    assert follow(site).withdrawn == (run.pk,)
    run.refresh_from_db()
    assert (run.state, run.wake_at, run.leased_until) == (RunState.WITHDRAWN, None, None)
    assert site.world.slurm.read_nodes() == before
    incident = Incident.objects.get()
    assert incident.state != State.REPAIRING
    assert "Look at gn001" in incident.needs_human
    assert follow(site).withdrawn == ()


def test_a_worker_that_was_at_it_stores_nothing_more() -> None:
    site, run = drained_site()
    follow(site)
    assert site.advance(run).state == RunState.WITHDRAWN


def test_numbers_that_the_lost_time_may_have_used_are_left_out() -> None:
    site, run = drained_site()
    known = Incident.objects.get().pk
    site.world.slurm_writer.drain("gn002", format_reason(known + 70_000, "gpu.lost", "GPU lost"))
    restored = follow(site)
    assert restored.next_incident == known + 70_000 + NUMBERS_LEFT_OUT + 1
    assert site.lose_gpu("gn003").pk == restored.next_incident
    services.release(actor="ada", now=site.now)
    site.start()
    assert Run.objects.exclude(pk=run.pk).first().pk > run.pk + NUMBERS_LEFT_OUT


def test_drains_of_the_lost_time_are_listed_and_those_of_known_runs_are_not() -> None:
    site, _ = drained_site()
    lost = format_reason(4711, "gpu.lost", "GPU lost")
    site.world.slurm_writer.drain("gn002", lost)
    site.world.slurm_writer.drain("gn003", "fan tray, ada")
    drains = follow(site).drains
    assert drains is not None
    assert [(drain.node, drain.reason) for drain in drains] == [("gn002", lost)]


class Unreachable:
    def read_nodes(self, names: object = ()) -> None:
        raise SlurmError("sinfo: Unable to contact slurm controller")


def test_without_slurm_the_rest_is_done_and_it_says_so() -> None:
    restored = services.follow_restore(Unreachable(), actor="ada", now=Site(nodes=1).now)  # type: ignore[arg-type]
    assert restored.drains is None
    assert "Unable to contact" in restored.slurm_error
    assert StopSwitch.objects.filter(released_at=None).exists()


def test_the_command_says_what_it_did_and_what_is_left_to_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, run = drained_site()
    site.world.slurm_writer.drain("gn002", format_reason(4711, "gpu.lost", "GPU lost"))
    monkeypatch.setattr(wiring, "build_world", lambda: site.world)
    out = StringIO()
    call_command("restored", "--actor", "ada", stdout=out, skip_checks=True)
    said = out.getvalue()
    assert "The stop switch is engaged" in said
    (switch,) = StopSwitch.objects.all()
    assert switch.engaged_by.startswith("ada, typed by ")
    assert f"runs {run.pk}." in said
    assert 'gn002: "kintsugi:4711 gpu.lost: GPU lost"' in said
    assert "kintsugi stop --release" in said
