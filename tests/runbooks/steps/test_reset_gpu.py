"""The step `reset_gpu`: once, not over processes, not for a GPU that cannot answer, looked at when
unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from detectors.faults import Recovery
from fixtures.cluster.facets.gpu import GpuFacet
from fixtures.cluster.facets.services import ServicesFacet
from runbooks.library import library
from runbooks.step import Context, Done, NotCured, Wait, format_iso
from runbooks.steps.reset_gpu import ResetGpu
from tests.runbooks.site import Site, a_context

pytestmark = pytest.mark.django_db

STEP = ResetGpu()
LONG = timedelta(seconds=6)


def a_turn(site: Site, *, given: dict[str, Any] | None = None, **changes: object) -> Context:
    """gn001, drained and empty, its GPU 0 with a row to remap."""
    params = library.plan_step("reset_gpu", given or {}).params
    return a_context(
        site, params=params, fault_type="gpu.ecc.row_remap_pending", key="1-4-reset_gpu", **changes
    )


def begun(site: Site, **changes: Any) -> Context:
    """The same turn, once the reset was asked for and its time has passed."""
    context = a_turn(site, **changes)
    assert STEP.find_done(context) is None
    assert STEP.find_obstacle(context) is None
    assert isinstance(STEP.run(context), Wait)
    asked_at, site.now = site.now, site.now + LONG
    return replace(context, now=site.now, attempted_at=asked_at)


def resets(site: Site) -> list[int]:
    return [gpu.resets for gpu in site.nodes.nodes["gn001"].gpus]


def test_one_gpu_is_reset_and_what_was_stopped_for_it_runs_again() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0")
    node = site.nodes.nodes["gn001"]
    before = set(node.facet(ServicesFacet).active)
    done = STEP.find_done(begun(site))
    assert isinstance(done, Done)
    assert done.reset is not None
    assert done.reset.resources == (site.gpu("gn001"),)
    assert "was successfully reset" in done.evidence["nvidia-smi --gpu-reset"]
    assert node.gpu(0).is_healthy
    assert resets(site) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert node.facet(ServicesFacet).active == before
    assert ("stop", "nvidia-fabricmanager") not in node.facet(ServicesFacet).orders
    assert all(gpu.has_persistence for gpu in node.gpus)


def test_all_gpus_are_reset_with_the_fabric_manager_stopped() -> None:
    site = Site(nodes=1)
    site.nodes.inject("nvlink_error", "gn001/gpu/0")
    done = STEP.find_done(begun(site, given={"which": "all"}))
    assert isinstance(done, Done)
    assert done.reset is not None
    assert len(done.reset.resources) == 9
    assert resets(site) == [1] * 8
    orders = site.nodes.nodes["gn001"].facet(ServicesFacet).orders
    assert ("stop", "nvidia-fabricmanager") in orders
    assert "nvidia-fabricmanager" in site.nodes.nodes["gn001"].facet(ServicesFacet).active


def test_reset_is_asked_for_once_however_often_it_is_looked_at() -> None:
    site = Site(nodes=1)
    context = begun(site)
    assert isinstance(STEP.find_done(context), Done)
    assert isinstance(STEP.run(context), Done)
    assert resets(site) == [1, 0, 0, 0, 0, 0, 0, 0]


def test_reset_under_way_is_waited_for() -> None:
    site = Site(nodes=1)
    context = a_turn(site)
    STEP.run(context)
    context = replace(context, attempted_at=site.now)
    assert STEP.find_done(context) is None
    assert isinstance(STEP.find_obstacle(context), Wait)


def test_attempt_that_never_reached_the_node_is_begun_again() -> None:
    site = Site(nodes=1)
    context = a_turn(site, attempted_at=site.now)
    assert STEP.find_done(context) is None
    assert STEP.find_obstacle(context) is None


@pytest.mark.parametrize("injection", ["gpu_lost", "gsp_timeout"])
def test_gpu_that_cannot_answer_is_not_reset_and_the_next_rung_is_called_for(
    injection: str,
) -> None:
    site = Site(nodes=1)
    site.nodes.inject(injection, "gn001/gpu/0")
    blocked = STEP.find_obstacle(a_turn(site))
    assert isinstance(blocked, NotCured)
    assert "does not answer" in blocked.text
    assert resets(site) == [0] * 8


def test_another_gpus_loss_does_not_keep_this_one_from_its_reset_but_all_from_theirs() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_lost", "gn001/gpu/5")
    assert STEP.find_obstacle(a_turn(site)) is None
    assert isinstance(STEP.find_obstacle(a_turn(site, given={"which": "all"})), NotCured)


def test_process_that_holds_the_gpu_is_waited_for_and_a_person_is_asked() -> None:
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].facet(GpuFacet).processes = [(4242, "python3", 0)]
    context = a_turn(site)
    blocked = STEP.find_obstacle(context)
    assert isinstance(blocked, Wait)
    assert "Process 4242 (python3) holds GPU 0000:19:00.0" in blocked.text
    assert blocked.ask
    later = replace(context, now=site.now + timedelta(minutes=11))
    assert isinstance(STEP.find_obstacle(later), NotCured)


def test_process_on_another_gpu_is_none_of_its_business() -> None:
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].facet(GpuFacet).processes = [(4242, "python3", 3)]
    assert STEP.find_obstacle(a_turn(site)) is None
    assert isinstance(STEP.find_obstacle(a_turn(site, given={"which": "all"})), Wait)


def test_node_that_is_not_empty_is_waited_for() -> None:
    site = Site(nodes=1)
    site.slurm.add_job("7", nodes=["gn001"])
    assert isinstance(STEP.find_obstacle(a_turn(site)), Wait)


def test_reset_that_is_refused_calls_for_the_next_rung_with_nvidia_smis_words() -> None:
    site = Site(nodes=1)
    context = a_turn(site)
    STEP.run(context)
    site.nodes.nodes["gn001"].facet(GpuFacet).processes = [(4242, "python3", 0)]
    asked_at, site.now = site.now, site.now + LONG
    context = replace(context, now=site.now, attempted_at=asked_at)
    assert STEP.find_done(context) is None
    blocked = STEP.find_obstacle(context)
    assert isinstance(blocked, NotCured)
    assert "In use by another client" in blocked.text
    assert site.nodes.nodes["gn001"].facet(ServicesFacet).active >= {
        "nvidia-dcgm",
        "nvidia-persistenced",
    }


def test_reset_that_does_not_end_calls_for_the_next_rung() -> None:
    site = Site(nodes=1)
    context = a_turn(site)
    STEP.run(context)
    asked_at, site.now = site.now, site.now + timedelta(minutes=11)
    site.nodes.nodes["gn001"].apart[context.key].begun_at = site.now
    blocked = STEP.find_obstacle(replace(context, now=site.now, attempted_at=asked_at))
    assert isinstance(blocked, NotCured)
    assert "11 min after the reset was begun it has not ended" in blocked.text


def test_node_that_falls_silent_during_its_reset_is_waited_for_and_then_called_uncured() -> None:
    site = Site(nodes=1)
    context = begun(site)
    site.shell.silent.add("gn001")
    assert STEP.find_done(context) is None
    assert isinstance(STEP.find_obstacle(context), Wait)
    assert isinstance(
        STEP.find_obstacle(replace(context, now=site.now + timedelta(minutes=11))), NotCured
    )


def test_boot_since_the_drain_is_as_good_as_a_reset() -> None:
    site = Site(nodes=1)
    context = a_turn(site)
    context.facts["boot_id_before"] = site.nodes.nodes["gn001"].boot_id
    site.nodes.reboot("gn001")
    site.now += timedelta(minutes=10)
    done = STEP.find_done(replace(context, now=site.now))
    assert isinstance(done, Done)
    assert done.boot is not None
    assert resets(site) == [0] * 8


def test_fault_that_names_no_gpu_has_none_reset_by_itself() -> None:
    site = Site(nodes=1)
    assert isinstance(
        STEP.find_obstacle(a_turn(site, resource="node/gn001/nvswitch/0000:07:00.0")), NotCured
    )
    assert (
        STEP.find_obstacle(
            a_turn(site, resource="node/gn001/nvswitch/0000:07:00.0", given={"which": "all"})
        )
        is None
    )


def test_link_of_a_gpu_has_its_gpu_reset() -> None:
    site = Site(nodes=1)
    context = a_turn(site, resource=f"{site.gpu('gn001')}/nvlink/3")
    assert STEP.find_obstacle(context) is None


def test_reset_is_a_rung_of_the_ladder() -> None:
    assert STEP.recovery is Recovery.GPU_RESET


def test_time_of_the_reset_is_remembered_for_the_verification() -> None:
    site = Site(nodes=1)
    context = begun(site)
    STEP.find_done(context)
    assert context.facts["reset_at"] == format_iso(site.now)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"which": "some"}, "expected one of part, all"),
        ({"longest": "soon"}, "expected a duration"),
        ({"units": ["a b"]}, "expected a list of names"),
        ({"units": "dcgm"}, "expected a list of names"),
        ({"gpu": 3}, "no parameter gpu"),
    ],
)
def test_parameters_are_checked_when_the_runbook_is_read(given: dict[str, Any], words: str) -> None:
    with pytest.raises(library.LibraryError, match=words):
        library.plan_step("reset_gpu", given)
