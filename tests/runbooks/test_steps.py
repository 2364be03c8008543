"""Single steps at their edges: what confirms a fault, how the verify command runs apart from us, what a look costs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target
from detectors.expected import Expected
from detectors.transport import LocalShell
from fixtures.cluster.gpu import Presence
from fixtures.cluster.world import SimulatedShell
from runbooks.library import STEPS
from runbooks.step import Context, Done, Effect, Failed, StandingFault, Wait, patience, told
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.reboot import Reboot
from runbooks.steps.verify import GRACE, KEY, SCRIPT, Verify
from runbooks.steps.wait_for_boot import WaitForBoot
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db


def a_context(site: Site, **changes: object) -> Context:
    """gn001, drained by incident 7 for a lost GPU 0."""
    if not site.slurm.nodes(("gn001",))["gn001"].is_draining:
        site.slurm.drain("gn001", "kintsugi:7 gpu.xid.79: GPU has fallen off the bus")
    expected = tuple((str(gpu.index), gpu.pci) for gpu in site.nodes.nodes["gn001"].gpus)
    context = Context(
        run_id=1,
        incident_id=7,
        fault_type="gpu.xid.79",
        resource=site.gpu("gn001"),
        node="gn001",
        target=Target("gn001", "gn001", expected=Expected(gpus=expected)),
        state=site.slurm.nodes(("gn001",))["gn001"],
        facts={"drained_at": told(EPOCH), "booted_at": told(site.now)},
        world=site.world,
        now=site.now,
    )
    return replace(context, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_that_acts_asks_the_guards_or_gives_back(step: object) -> None:
    effect, act = step.effect, step.act  # type: ignore[attr-defined]
    assert (effect is Effect.READ_ONLY) == (act is None) or step.name == "resume"  # type: ignore[attr-defined]


def test_fault_is_confirmed_when_the_nodes_own_detector_sees_that_gpu_lost() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    result = ConfirmOnNode().run(context := a_context(site))
    assert isinstance(result, Done)
    assert context.facts["boot_id_before"] == site.nodes.nodes["gn001"].boot_id


def test_fault_is_not_confirmed_by_another_gpus_loss() -> None:
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
    assert Reboot().is_done(context) is None
    site.nodes.reboot("gn001")
    site.now += timedelta(minutes=10)
    done = Reboot().is_done(replace(context, now=site.now))
    assert done is not None
    assert "by someone else" in done.text


def test_boot_is_told_by_slurms_boot_time_when_no_boot_id_was_known() -> None:
    site = Site(nodes=1)
    context = a_context(site)
    context.facts["reboot_at"] = told(site.now)
    assert isinstance(WaitForBoot().run(context), Wait)
    booted = replace(context.state, boot_time=site.now + timedelta(minutes=3))
    result = WaitForBoot().run(replace(context, state=booted))
    assert isinstance(result, Done)
    assert result.boot is not None


@pytest.mark.parametrize(("since_boot", "kind"), [(GRACE - timedelta(seconds=1), Wait), (GRACE, Failed)])
def test_trouble_after_a_boot_counts_once_the_grace_is_over(since_boot: timedelta, kind: type) -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_dead", "gn001/gpu/3")
    context = a_context(site, now=site.now + since_boot)
    assert isinstance(Verify().run(context), kind)


@pytest.mark.parametrize(
    ("fault_type", "seen_after", "is_trouble"),
    [
        ("gpu.xid.79", timedelta(minutes=1), True),
        ("gpu.xid.79", -timedelta(minutes=1), False),
        ("nic.link.down", timedelta(minutes=1), False),
    ],
)
def test_hardware_fault_since_the_boot_fails_the_verification(
    fault_type: str, seen_after: timedelta, is_trouble: bool
) -> None:
    site = Site(nodes=1)
    standing = [StandingFault(fault_type, "node/gn001", site.now + seen_after)]
    result = Verify().run(a_context(site, standing=standing, now=site.now + GRACE))
    assert isinstance(result, Failed) == is_trouble


class _NodeOfOurs(SimulatedShell):
    """The simulated node, but for the verify script: this machine runs that."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return LocalShell().run(target, argv, timeout) if KEY in argv else super().run(target, argv, timeout)


def verify_to_the_end(site: Site, command: tuple[str, ...], *, after: timedelta = timedelta(0)) -> Done | Wait | Failed:
    policy = replace(site.world.policy, verify_command=command)
    world = replace(site.world, shell=_NodeOfOurs(site.nodes), policy=policy)
    context = a_context(site, world=world)
    deadline = time.monotonic() + 20
    while isinstance(result := Verify().run(context), Wait) and time.monotonic() < deadline:
        context = replace(context, now=context.now + after)
        time.sleep(0.02)
    assert not isinstance(result, str)
    return result  # type: ignore[return-value]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_verify_command_runs_once_apart_from_us_and_its_end_is_read(scratch: Path) -> None:
    count = scratch / "count"
    result = verify_to_the_end(Site(nodes=1), ("sh", "-c", f'echo "it\'s $0" >> {count}; sleep 0.3', "a b"))
    assert isinstance(result, Done)
    assert count.read_text() == "it's a b\n"


@pytest.mark.usefixtures("scratch")
def test_verification_fails_with_the_commands_last_words() -> None:
    result = verify_to_the_end(Site(nodes=1), ("sh", "-c", "echo GPU 3: fail; exit 226"))
    assert isinstance(result, Failed)
    assert "ended with status 226: GPU 3: fail" in result.text


@pytest.mark.usefixtures("scratch")
def test_verification_fails_when_the_command_does_not_exist() -> None:
    result = verify_to_the_end(Site(nodes=1), ("no-such-check",))
    assert isinstance(result, Failed)
    assert "ended with status 127" in result.text


@pytest.mark.usefixtures("scratch")
def test_verification_fails_when_the_command_outlasts_its_limit() -> None:
    result = verify_to_the_end(Site(nodes=1), ("sleep", "30"), after=timedelta(minutes=6))
    assert isinstance(result, Failed)
    assert "has not ended after" in result.text


def test_result_that_another_user_put_there_is_not_believed(scratch: Path) -> None:
    planted = scratch / f"{KEY}-9"
    if os.getuid() == 0:
        planted.mkdir()
        (planted / "status").write_text("0\n")
        os.chown(planted, 65534, 65534)
    else:
        planted.symlink_to("/")
    output = LocalShell().run(Target("here", "here"), ("sh", "-c", SCRIPT, KEY, "9", "true"), timedelta(seconds=10))
    assert output.stdout.startswith(b"ended 126\n")


@pytest.mark.parametrize(
    ("waited", "again_in"),
    [
        (timedelta(0), timedelta(seconds=2)),
        (timedelta(seconds=100), timedelta(seconds=10)),
        (timedelta(hours=2), timedelta(minutes=1)),
    ],
)
def test_looks_come_less_often_the_longer_a_wait_lasts(waited: timedelta, again_in: timedelta) -> None:
    assert patience(EPOCH, EPOCH + waited, longest=timedelta(minutes=1)) == again_in
