"""Keys for acts are held by the process that acts alone: every other looks, and cannot act even if it wanted to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from fixtures.memory_slurm import MemorySlurm
from kintsugi import tasks, wiring
from kintsugi.doors import LookingSlurm, NoSlurm
from runbooks import preflight, services
from runbooks.models import Mode, PreflightReport, Run, RunState
from runbooks.slurm import Slurm, SlurmRefusal
from tests.builders import a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]

LOOKS = {"config", "nodes", "jobs", "recent_jobs", "reservations", "job", "partitions", "demands", "access"}


def _verbs() -> list[str]:
    return [name for name, _ in inspect.getmembers(Slurm, inspect.isfunction) if not name.startswith("_")]


@pytest.fixture
def looking(settings: Settings) -> Iterator[None]:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_ACTS": False}
    tasks.pipeline.cache_clear()
    yield
    tasks.pipeline.cache_clear()


def _call(slurm: Any, verb: str) -> Any:
    """With as many nothings as it needs."""
    needed = [
        one
        for one in inspect.signature(getattr(Slurm, verb)).parameters.values()
        if one.name != "self" and one.default is inspect.Parameter.empty
    ]
    by_place = ["gn001" for one in needed if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    by_name = {one.name: timedelta(minutes=1) for one in needed if one.kind is inspect.Parameter.KEYWORD_ONLY}
    return getattr(slurm, verb)(*by_place, **by_name)


@pytest.mark.parametrize("verb", [verb for verb in _verbs() if verb not in LOOKS])
def test_a_process_that_looks_is_refused_every_act(verb: str) -> None:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="c", now=timezone.now)
    with pytest.raises(SlurmRefusal, match="KINTSUGI_ACTS=no"):
        _call(LookingSlurm(slurm), verb)
    assert slurm.journal == []


@pytest.mark.parametrize("verb", _verbs())
def test_a_site_without_slurm_is_told_so_by_every_verb(verb: str) -> None:
    with pytest.raises(SlurmRefusal, match="KINTSUGI_SLURM is off"):
        _call(NoSlurm(), verb)


def test_a_process_that_looks_sees_what_slurm_shows() -> None:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="c", now=timezone.now)
    assert LookingSlurm(slurm).nodes() == slurm.nodes()
    assert LookingSlurm(slurm).config() == slurm.config()
    assert LookingSlurm(slurm).access() == slurm.access()


def test_the_world_of_a_process_that_looks_cannot_act(looking: None) -> None:
    assert isinstance(wiring.world().slurm, LookingSlurm)


@pytest.mark.django_db
class TestTurns:
    @pytest.fixture
    def run(self) -> Run:
        a_node()
        return a_run(an_incident(), wake_at=timezone.now() - timedelta(minutes=1))

    def test_a_run_that_would_act_is_left_to_the_process_that_acts(self, looking: None, run: Run) -> None:
        tasks.advance(run.pk)
        run.refresh_from_db()
        assert (run.state, run.fence) == (RunState.RUNNING, 0)

    def test_a_run_in_shadow_is_written_down_by_any_process(self, looking: None, run: Run) -> None:
        Run.objects.filter(pk=run.pk).update(mode=Mode.SHADOW)
        tasks.advance(run.pk)
        run.refresh_from_db()
        assert run.state == RunState.SHADOWED


@pytest.mark.django_db
class TestArming:
    BOOK = "drain_reboot_verify"

    def _report(self, *, is_ok: bool, age: timedelta = timedelta(minutes=1)) -> None:
        check = {"name": "slurm", "is_ok": is_ok, "found": "It answers.", "todo": "" if is_ok else "Mend it."}
        PreflightReport.objects.create(at=timezone.now() - age, by="ada", checks=[check])

    def _arm(self, people: People) -> Any:
        return people.admin.post("/modes/", {"runbook": self.BOOK, "mode": "armed"})

    def test_the_console_arms_by_a_fresh_report_of_the_process_that_acts(self, looking: None, people: People) -> None:
        self._report(is_ok=True)
        assert self._arm(people).status_code == 302
        assert services.mode_of(self.BOOK) is Mode.ARMED

    def test_without_a_fresh_report_it_asks_for_one_and_says_so(self, looking: None, people: People) -> None:
        self._report(is_ok=True, age=timedelta(hours=1))
        answer = self._arm(people)
        assert answer.status_code == 409
        assert "Arm it again in a minute" in answer.content.decode()
        assert services.mode_of(self.BOOK) is Mode.SHADOW

    def test_a_report_with_problems_refuses_with_what_to_do(self, looking: None, people: People) -> None:
        self._report(is_ok=False)
        answer = self._arm(people)
        assert "Mend it." in answer.content.decode()
        assert services.mode_of(self.BOOK) is Mode.SHADOW

    def test_the_process_that_acts_keeps_every_point_that_it_found(self) -> None:
        world = wiring.world()
        assert not services.report_preflight(world, by="ada", now=timezone.now())
        assert preflight.reported(timezone.now()) == preflight.check(world)
