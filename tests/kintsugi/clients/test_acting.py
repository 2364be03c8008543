"""Keys for acts are held by the process that acts alone: every other looks, and cannot act even if
it wanted to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from kintsugi import tasks
from kintsugi.clients import wiring
from kintsugi.clients.doors import NoShell
from runbooks import services
from runbooks.models import Mode, PreflightReport, Run, RunState
from runbooks.people import preflight
from runbooks.slurm.client import ScontrolReader, ScontrolWriter
from runbooks.slurm.protocol import SlurmReader, SlurmRefusal, SlurmWriter, do_nothing
from tests.builders import a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]


def _verbs(protocol: type) -> set[str]:
    return {
        name
        for name, _ in inspect.getmembers(protocol, inspect.isfunction)
        if not name.startswith("_") and name != "with_check"
    }


VERBS = sorted(_verbs(SlurmWriter))
ACTS = sorted(_verbs(SlurmWriter) - _verbs(SlurmReader))


@pytest.fixture
def looking(settings: Settings) -> Iterator[None]:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_ACTS": False}
    tasks.pipeline.cache_clear()
    yield
    tasks.pipeline.cache_clear()


_VALUES: dict[str, Any] = {"lately": timedelta(hours=1), "job_id": "7", "beside": do_nothing}


def _call(slurm: Any, verb: str) -> Any:
    """With as many nothings as it needs."""
    needed = [
        one
        for one in inspect.signature(getattr(SlurmWriter, verb)).parameters.values()
        if one.name != "self" and one.default is inspect.Parameter.empty
    ]
    by_place = [
        _VALUES.get(one.name, "gn001")
        for one in needed
        if one.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    by_name = {
        one.name: ["gn001"] if one.name == "nodes" else timedelta(minutes=1)
        for one in needed
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return getattr(slurm, verb)(*by_place, **by_name)


@pytest.mark.parametrize("verb", ACTS)
def test_a_process_that_looks_is_refused_every_act(looking: None, verb: str) -> None:
    world = wiring.build_world()
    assert not hasattr(world.slurm, verb)
    with pytest.raises(SlurmRefusal, match="KINTSUGI_ACTS=no"):
        _call(world.slurm_writer, verb)


def test_reading_is_all_that_a_reader_does() -> None:
    assert ACTS == [
        "admit_node",
        "cancel",
        "cancel_reboot",
        "drain",
        "exclude_node",
        "notify_job",
        "reboot",
        "remove_comment",
        "requeue",
        "reserve",
        "resume",
        "set_partitions",
        "signal_job",
        "submit",
        "unreserve",
        "withdraw_reboot",
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_a_site_without_slurm_is_told_so_by_every_verb(verb: str) -> None:
    with pytest.raises(SlurmRefusal, match="KINTSUGI_SLURM is off"):
        _call(wiring.build_slurm_writer(NoShell()), verb)


@pytest.mark.parametrize("verb", sorted(_verbs(SlurmReader)))
def test_a_reader_has_every_verb_that_looks(verb: str) -> None:
    with pytest.raises(SlurmRefusal, match="KINTSUGI_SLURM is off"):
        _call(wiring.build_slurm_reader(NoShell()), verb)


def test_the_world_of_a_process_that_looks_cannot_act(looking: None) -> None:
    world = wiring.build_world()
    assert (type(world.slurm), world.writer) == (ScontrolReader, None)


def test_the_world_of_a_process_that_acts_reads_and_writes_through_one_client() -> None:
    world = wiring.build_world()
    assert isinstance(world.writer, ScontrolWriter)
    assert world.slurm is world.writer


@pytest.mark.django_db
class TestTurns:
    @pytest.fixture
    def run(self) -> Run:
        a_node()
        return a_run(an_incident(), wake_at=timezone.now() - timedelta(minutes=1))

    def test_a_run_that_would_act_is_left_to_the_process_that_acts(
        self, looking: None, run: Run
    ) -> None:
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
        check = {
            "name": "slurm",
            "is_ok": is_ok,
            "found": "It answers.",
            "todo": "" if is_ok else "Mend it.",
        }
        PreflightReport.objects.create(at=timezone.now() - age, by="ada", checks=[check])

    def _arm(self, people: People) -> Any:
        return people.admin.post("/modes/", {"runbook": self.BOOK, "mode": "armed"})

    def test_the_console_arms_by_a_fresh_report_of_the_process_that_acts(
        self, looking: None, people: People
    ) -> None:
        self._report(is_ok=True)
        assert self._arm(people).status_code == 302
        assert services.get_mode(self.BOOK) is Mode.ARMED

    def test_without_a_fresh_report_it_asks_for_one_and_says_so(
        self, looking: None, people: People
    ) -> None:
        self._report(is_ok=True, age=timedelta(hours=1))
        answer = self._arm(people)
        assert answer.status_code == 409
        assert "Arm it again in a minute" in answer.content.decode()
        assert services.get_mode(self.BOOK) is Mode.SHADOW

    def test_a_report_with_problems_refuses_with_what_to_do(
        self, looking: None, people: People
    ) -> None:
        self._report(is_ok=False)
        answer = self._arm(people)
        assert "Mend it." in answer.content.decode()
        assert services.get_mode(self.BOOK) is Mode.SHADOW

    def test_the_process_that_acts_keeps_every_point_that_it_found(self) -> None:
        world = wiring.build_world()
        assert not services.report_preflight(world, by="ada", now=timezone.now())
        assert preflight.load_report(timezone.now()) == preflight.run_checks(world)
