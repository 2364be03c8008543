"""The steps `diagnose` and `burn_in`: begun once, waited for, judged; an ill node calls for the
next rung."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from detectors.detector import Target
from detectors.expected import Expected, ExpectedNic
from fixtures.cluster.facets.diagnostics import DiagnosticsFacet
from incidents.polling import poll_pauses
from runbooks.library import library
from runbooks.step import Context, Done, Failed, NotCured, Result, Step, Wait
from runbooks.steps.burn_in import BurnIn
from runbooks.steps.diagnose import Diagnose
from runbooks.steps.pause_pollers import DETECTORS
from tests.runbooks.site import Site, a_context

pytestmark = pytest.mark.django_db


def a_turn(
    site: Site, step: Step, given: dict[str, Any] | None = None, **changes: object
) -> Context:
    params = library.plan_step(step.name, given or {}).params
    return a_context(site, params=params, key=f"1-6-{step.name}", **changes)


def outcome_of(
    site: Site, step: Step, given: dict[str, Any] | None = None, *, after: timedelta, **changes: Any
) -> Result:
    """What the step says at first, checked to be a wait, and what it says when the time has
    passed."""
    context = a_turn(site, step, given, **changes)
    assert isinstance(step.run(context), Wait)
    site.now += after
    return step.run(replace(context, now=site.now))


SOON = timedelta(seconds=10)


def test_diagnosis_that_passes_goes_on_with_its_report_as_evidence() -> None:
    result = outcome_of(Site(nodes=1), Diagnose(), {"test": "dcgm", "level": 3}, after=SOON)
    assert isinstance(result, Done)
    assert result.text == "`dcgmi diag -r 3 -j` passed on gn001."
    assert "DCGM GPU Diagnostic" in next(iter(result.evidence.values()))


def test_failing_test_is_named_and_calls_for_the_next_rung() -> None:
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].facet(DiagnosticsFacet).fails = {"Targeted Stress"}
    result = outcome_of(site, Diagnose(), after=SOON)
    assert isinstance(result, NotCured)
    assert "failed: Targeted Stress on GPU 0" in result.text
    assert result.evidence


def test_wrong_setting_asks_a_person_and_calls_for_no_rung() -> None:
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].facet(DiagnosticsFacet).fails = {"Persistence Mode"}
    assert isinstance(outcome_of(site, Diagnose(), after=SOON), Failed)


@pytest.mark.parametrize(("at_least", "kind"), [(None, Done), (440, Done), (450, NotCured)])
def test_nccl_is_held_to_the_sites_measure(at_least: int | None, kind: type) -> None:
    given = {"test": "nccl"} | ({"at_least": at_least} if at_least else {})
    assert isinstance(outcome_of(Site(nodes=1), Diagnose(), given, after=SOON), kind)


def test_cards_of_the_fabric_are_outcome_of() -> None:
    site = Site(nodes=1)
    nics = (
        ExpectedNic("mlx5_0", role="fabric"),
        ExpectedNic("mlx5_1", role="fabric"),
        ExpectedNic("mlx5_8"),
    )
    target = Target("gn001", "gn001", expected=Expected(nics=nics))
    result = outcome_of(
        site, Diagnose(), {"test": "ib_write_bw"}, after=SOON, find_target=lambda: target
    )
    assert isinstance(result, Done)
    assert "on 2 cards" in result.text


def test_card_that_is_not_there_is_named() -> None:
    given = {"test": "ib_write_bw", "devices": ["mlx5_0", "mlx5_77"]}
    result = outcome_of(Site(nodes=1), Diagnose(), given, after=SOON)
    assert isinstance(result, NotCured)
    assert "failed on mlx5_77" in result.text


def test_no_card_is_tested_where_none_is_known() -> None:
    site = Site(nodes=1)
    assert isinstance(Diagnose().run(a_turn(site, Diagnose(), {"test": "ib_write_bw"})), Failed)


def test_our_own_looks_stay_away_for_as_long_as_the_test_runs() -> None:
    site = Site(nodes=1)
    outcome_of(site, Diagnose(), after=timedelta(seconds=1))
    site.now += timedelta(minutes=29)
    assert poll_pauses.get_paused_detectors("gn001", site.now) == set(DETECTORS)


def test_test_that_hangs_asks_a_person_after_its_time() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gsp_timeout", "gn001/gpu/0")
    result = outcome_of(site, Diagnose(), after=timedelta(minutes=61))
    assert isinstance(result, Failed)
    assert "has not ended on gn001 after 61 min" in result.text


def test_node_that_goes_down_under_its_test_calls_for_the_next_rung() -> None:
    site = Site(nodes=1)
    context = a_turn(site, BurnIn())
    BurnIn().run(context)
    site.nodes.reboot("gn001")
    site.now += timedelta(minutes=2)
    result = BurnIn().run(replace(context, now=site.now))
    assert isinstance(result, NotCured)
    assert "went down while the burn-in ran" in result.text


def test_node_that_does_not_answer_is_waited_for() -> None:
    site = Site(nodes=1)
    context = a_turn(site, Diagnose())
    Diagnose().run(context)
    site.shell.silent.add("gn001")
    result = Diagnose().run(replace(context, now=site.now + SOON))
    assert isinstance(result, Wait)
    assert "does not answer" in result.text


def test_burn_in_lasts_as_long_as_the_site_says_and_is_looked_at_ever_more_seldom() -> None:
    site = Site(nodes=1)
    context = a_turn(site, BurnIn(), {"lasts": "6h"})
    assert isinstance(BurnIn().run(context), Wait)
    site.now += timedelta(hours=5)
    late = BurnIn().run(replace(context, now=site.now))
    assert isinstance(late, Wait)
    assert late.again_in == timedelta(minutes=10)
    site.now += timedelta(hours=1)
    assert isinstance(BurnIn().run(replace(context, now=site.now)), Done)


def test_burn_in_that_breaks_a_gpu_calls_for_the_next_rung() -> None:
    site = Site(nodes=1)
    context = a_turn(site, BurnIn(), {"lasts": "1h"})
    BurnIn().run(context)
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/2")
    site.now += timedelta(hours=1)
    result = BurnIn().run(replace(context, now=site.now))
    assert isinstance(result, NotCured)
    assert "GPU Memory" in result.text


@pytest.mark.parametrize(("command", "kind"), [(["node-verify"], Done), (["no-such-burn"], Failed)])
def test_sites_own_burn_in_is_judged_by_its_status(command: list[str], kind: type) -> None:
    assert isinstance(outcome_of(Site(nodes=1), BurnIn(), {"command": command}, after=SOON), kind)


def test_node_that_is_not_empty_is_not_loaded() -> None:
    site = Site(nodes=1)
    site.slurm.add_job("7", nodes=["gn001"])
    assert isinstance(BurnIn().run(a_turn(site, BurnIn())), Wait)
    assert not site.nodes.nodes["gn001"].apart


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("diagnose", {"test": "furmark"}),
        ("diagnose", {"level": 5}),
        ("diagnose", {"level": True}),
        ("diagnose", {"at_least": -1}),
        ("diagnose", {"devices": ["mlx5_0; reboot"]}),
        ("diagnose", {"where": "slurm"}),
        ("burn_in", {"lasts": "for ever"}),
        ("burn_in", {"command": "stress --all"}),
    ],
)
def test_parameters_are_checked_when_the_runbook_is_read(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(library.LibraryError, match="expected"):
        library.plan_step(name, given)
