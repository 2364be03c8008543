"""Single steps at their edges: what confirms a fault, how the verify command runs apart from us,
what a look costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.detector import OneByOne, Output, Target
from fixtures.cluster.gpu import Presence
from runbooks.library.library import STEPS
from runbooks.step import Context, Done, Result, StepEffect, Wait, format_iso, get_backoff
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.reboot import Reboot
from runbooks.steps.wait_for_boot import WaitForBoot
from tests.runbooks.site import EPOCH, Site, a_context

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_that_acts_asks_the_guards_or_gives_back(step: object) -> None:
    effect, act = step.effect, step.act  # type: ignore[attr-defined]
    assert (effect is StepEffect.READ_ONLY) == (act is None) or step.name == "resume"  # type: ignore[attr-defined]


def test_fault_is_confirmed_when_the_nodes_own_detector_sees_that_gpu_lost() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    result = ConfirmOnNode().run(context := a_context(site))
    assert isinstance(result, Done)
    assert context.facts["boot_id_before"] == site.nodes.nodes["gn001"].boot_id


def test_fault_is_not_confirmed_by_the_loss_of_a_gpu_that_is_not_of_its_incident() -> None:
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].gpus[5].presence = Presence.MISSING
    assert isinstance(ConfirmOnNode().run(a_context(site)), Wait)
    assert isinstance(ConfirmOnNode().run(a_context(site, resource=site.gpu("gn001", 5))), Done)


def test_fault_that_no_detector_sees_is_confirmed_by_the_nodes_own_kernel_log() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gsp_timeout", "gn001/gpu/0")
    site.nodes.nodes["gn001"].gpus[0].is_hung = False
    result = ConfirmOnNode().run(a_context(site, fault_type="gpu.xid.119"))
    assert isinstance(result, Done)
    assert "its own kernel log says" in result.text


def test_fault_that_no_detector_sees_is_not_confirmed_when_the_kernel_log_lacks_it() -> None:
    result = ConfirmOnNode().run(a_context(Site(nodes=1), fault_type="gpu.xid.119"))
    assert isinstance(result, Wait)
    assert "its own kernel log does not hold it" in result.text
    assert result.ask


def test_reboot_is_taken_for_done_when_the_node_runs_another_boot() -> None:
    site = Site(nodes=1)
    context = a_context(site)
    context.facts["boot_id_before"] = site.nodes.nodes["gn001"].boot_id
    assert Reboot().find_done(context) is None
    site.nodes.reboot("gn001")
    site.now += timedelta(minutes=10)
    done = Reboot().find_done(replace(context, now=site.now))
    assert done is not None
    assert "by someone else" in done.text


class Uptime(OneByOne):
    """A node whose /proc/uptime says so, on whatever boot."""

    def __init__(self, said: str) -> None:
        self.said = said

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        text = f"00000000-0000-4000-8000-000000000007\n{self.said} 77.77\n"
        return Output(0, text.encode(), b"", timedelta(0))


@pytest.mark.parametrize("said", ["9" * 10, "9" * 5000, "1e9", "-77.77", "x"])
def test_an_uptime_that_no_machine_has_tells_of_no_boot(said: str) -> None:
    context = a_context(Site(nodes=1))
    context.facts["boot_id_before"] = "00000000-0000-4000-8000-000000000001"
    context.facts["reboot_at"] = format_iso(context.now - timedelta(minutes=3))
    assert isinstance(_run_beside(context, "77.77"), Done)
    assert isinstance(_run_beside(context, said), Wait)


def _run_beside(context: Context, uptime: str) -> Result:
    return WaitForBoot().run(replace(context, world=replace(context.world, shell=Uptime(uptime))))


def test_boot_is_told_by_slurms_boot_time_when_no_boot_id_was_known() -> None:
    site = Site(nodes=1)
    context = a_context(site)
    context.facts["reboot_at"] = format_iso(site.now)
    assert isinstance(WaitForBoot().run(context), Wait)
    booted = replace(context.state, boot_time=site.now + timedelta(minutes=3))
    result = WaitForBoot().run(replace(context, state=booted))
    assert isinstance(result, Done)
    assert result.boot is not None


@pytest.mark.parametrize(
    ("waited", "again_in"),
    [
        (timedelta(0), timedelta(seconds=2)),
        (timedelta(seconds=100), timedelta(seconds=10)),
        (timedelta(hours=2), timedelta(minutes=1)),
    ],
)
def test_looks_come_less_often_the_longer_a_wait_lasts(
    waited: timedelta, again_in: timedelta
) -> None:
    assert get_backoff(EPOCH, EPOCH + waited, longest=timedelta(minutes=1)) == again_in
