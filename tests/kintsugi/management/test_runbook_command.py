"""`kintsugi runbook lint|show|simulate|start`."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from kintsugi.management.person import get_person
from runbooks.models import CureAttempt, Mode, Run
from runbooks.people.simulate import CannotSimulate, simulate
from tests.runbooks.site import Site


def said(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command("runbook", *args, stdout=out, **options)
    return out.getvalue()


def test_the_shipped_library_has_no_problem() -> None:
    assert "runbooks, no problem." in said("lint")


def test_each_problem_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nversion: 0\n")
    with pytest.raises(CommandError) as refused:
        said("lint", str(tmp_path / "mine.yaml"))
    assert refused.value.returncode == 1
    assert str(refused.value).splitlines() == [
        (
            "mine.yaml:1: the runbook has no title, no meaning, no steps; expected the keys"
            " name, version, title, meaning, steps"
        ),
        "mine.yaml:2: version is '0'; expected a whole number from 1",
    ]


def test_a_sites_folder_that_cannot_be_read_is_linted_all_the_same(
    tmp_path: Path, settings: Any
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_RUNBOOKS": tmp_path}
    with pytest.raises(CommandError, match=r"mine\.yaml:1: the runbook has no version"):
        said("lint")


@pytest.mark.django_db
def test_all_are_listed_with_mode_and_version() -> None:
    assert "drain_reboot_verify: shadow (Drain, reboot, verify, version 3 (" in said("show")


@pytest.mark.django_db
def test_one_is_told_whole() -> None:
    told = said("show", "drain_reboot_verify")
    assert "For: faults that call for reboot, reset_gpu of class gpu, misconfiguration, nic" in told
    assert "Ladder: GPU reset → [warm reboot] → cold power cycle → vendor" in told
    assert "  5. reboot: reboot it through Slurm; disrupts the node, asks the guards" in told


@pytest.mark.django_db
def test_what_is_no_runbook_is_refused() -> None:
    with pytest.raises(CommandError, match="There is no runbook pray; there are"):
        said("show", "pray")


@pytest.mark.django_db
def test_simulation_says_each_step_each_guard_and_touches_nothing() -> None:
    site = Site(nodes=20)
    site.lose_gpu("gn001")
    site.slurm.human_drain("gn002", "bob tests")
    told = simulate(
        "drain_reboot_verify", "gn001", fault_type="gpu.xid.79", now=site.now, world=site.world
    )
    assert [step.step for step in told.steps][:2] == ["drain", "requeue_dead_jobs"]
    drain = told.steps[0]
    assert drain.would == "drain gn001"
    assert [one.guard for one in drain.guards if not one.allows] == ["cap"]
    assert told.is_for
    assert (told.chosen, told.because) == (
        "drain_reboot_verify",
        "action class reboot calls for a reboot",
    )
    assert told.faults == (f"gpu.xid.79 on {site.gpu('gn001')}",)
    assert site.slurm.journal == []
    assert not Run.objects.exists()
    assert not CureAttempt.objects.exists()
    assert json.loads(json.dumps(told.as_json()))["steps"][0]["guards"]


@pytest.mark.django_db
def test_simulation_names_a_persons_drain() -> None:
    site = Site(nodes=20)
    site.slurm.human_drain("gn001", "bob tests")
    told = simulate("drain_reboot_verify", "gn001", fault_type="", now=site.now, world=site.world)
    assert (
        told.in_the_way
        == 'bob has taken gn001 out: "bob tests". A run would leave it alone while that stands.'
    )


@pytest.mark.django_db
def test_simulation_says_when_the_mode_stands_in_the_way() -> None:
    site = Site(nodes=20, mode=Mode.SHADOW)
    told = simulate("drain_reboot_verify", "gn001", fault_type="", now=site.now, world=site.world)
    assert [one.guard for one in told.steps[0].guards if not one.allows] == ["mode"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("runbook", "node", "fault_type", "why"),
    [
        ("pray", "gn001", "", "There is no runbook pray"),
        ("drain_and_ask", "gn999", "", "gn999 is not in the inventory"),
        ("drain_and_ask", "gn001", "gpu.tired", "There is no fault type gpu.tired"),
    ],
)
def test_simulation_of_what_is_not_known_is_refused(
    runbook: str, node: str, fault_type: str, why: str
) -> None:
    site = Site(nodes=2)
    with pytest.raises(CannotSimulate, match=why):
        simulate(runbook, node, fault_type=fault_type, now=site.now, world=site.world)


@pytest.mark.django_db
def test_run_is_started_for_an_incident() -> None:
    site = Site(nodes=20)
    incident = site.lose_gpu()
    assert f"is started by alice, typed by {get_person()}" in said(
        "start", "drain_and_ask", str(incident.pk), "--actor", "alice"
    )
    assert site.run_of(incident).approved_by == f"alice, typed by {get_person()}"
    with pytest.raises(CommandError, match="A run is under way there"):
        said("start", "drain_and_ask", str(incident.pk))
