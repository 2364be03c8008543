"""The step `verify`: what counts against a repaired node, what calls for the next rung, and the
site's own command."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target
from detectors.faults import Recovery
from detectors.transports.ssh import LocalShell
from fixtures.cluster.gpu import Presence
from fixtures.cluster.world import SimulatedShell
from runbooks.models import RunState
from runbooks.node import detached_command, looking, mig_devices
from runbooks.step import ActiveFault, Context, Done, Failed, NotCured, Result, Wait, format_iso
from runbooks.steps.verify import GRACE, Verify
from tests.runbooks.site import Site, a_context
from tests.services.patience import deadline_in

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("since_boot", "kind"), [(GRACE - timedelta(seconds=1), Wait), (GRACE, Failed)]
)
def test_trouble_after_a_boot_counts_once_the_grace_is_over(
    since_boot: timedelta, kind: type
) -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_dead", "gn001/gpu/3")
    assert isinstance(Verify().run(a_context(site, now=site.now + since_boot)), kind)


@pytest.mark.parametrize(
    ("resource", "kind"),
    [("gn001/gpu/0", NotCured), ("gn001/gpu/3", Failed)],
    ids=["same part", "another part"],
)
def test_fault_that_stands_on_the_same_part_calls_for_the_next_rung(
    resource: str, kind: type
) -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_ecc_uncorrectable", resource)
    assert isinstance(Verify().run(a_context(site, now=site.now + GRACE)), kind)


def test_gpu_that_the_boot_did_not_bring_back_calls_for_the_next_rung_and_says_what_was_tried() -> (
    None
):
    site = Site(nodes=1)
    site.nodes.nodes["gn001"].gpus[0].presence = Presence.MISSING
    context = a_context(site, now=site.now + GRACE)
    context.facts["recovery"] = Recovery.COLD_CYCLE.value
    result = Verify().run(context)
    assert isinstance(result, NotCured)
    assert result.text.startswith("The power cycle has not cured gpu.xid.79 on node/gn001/gpu/")
    assert result.evidence["detectors"]


def test_node_that_cannot_be_reached_is_a_persons_to_look_at() -> None:
    site = Site(nodes=1)
    site.shell.silent.add("gn001")
    assert isinstance(Verify().run(a_context(site, now=site.now + GRACE)), Failed)


@pytest.mark.parametrize(
    ("fault_type", "resource", "seen_after", "kind"),
    [
        ("gpu.xid.79", "node/gn001", timedelta(minutes=1), NotCured),
        ("gpu.xid.79", "node/gn001/gpu/0000:db:00.0", timedelta(minutes=1), Failed),
        ("gpu.xid.79", "node/gn001", -timedelta(minutes=1), Done),
        ("nic.link.down", "node/gn001", timedelta(minutes=1), Done),
    ],
)
def test_hardware_fault_since_the_boot_counts_against_the_node(
    fault_type: str, resource: str, seen_after: timedelta, kind: type
) -> None:
    site = Site(nodes=1)
    standing = [ActiveFault(fault_type, resource, site.now + seen_after)]
    context = a_context(site, find_active_faults=lambda: standing, now=site.now + GRACE)
    result = Verify().run(context)
    if kind is Done:
        assert isinstance(result, Wait)  # for its command, or its first look
    else:
        assert isinstance(result, kind)


def test_fault_seen_before_the_reset_is_none_after_it() -> None:
    site = Site(nodes=1)
    standing = [ActiveFault("gpu.xid.79", site.gpu("gn001"), site.now + timedelta(minutes=1))]
    context = a_context(
        site, find_active_faults=lambda: standing, now=site.now + timedelta(minutes=5)
    )
    context.facts["reset_at"] = format_iso(site.now + timedelta(minutes=2))
    assert isinstance(Verify().run(context), Wait)


def test_node_that_was_neither_booted_nor_reset_is_judged_from_when_its_verification_began() -> (
    None
):
    site = Site(nodes=1)
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0")
    context = a_context(site, facts={})
    assert isinstance(Verify().run(context), Wait)
    assert isinstance(Verify().run(replace(context, now=site.now + GRACE)), NotCured)


class _NodeOfOurs(SimulatedShell):
    """The simulated node, but for what runs apart: this machine runs that."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return (
            LocalShell().run(target, argv, timeout)
            if detached_command.NAME in argv
            else super().run(target, argv, timeout)
        )


def verify_to_the_end(
    site: Site, command: tuple[str, ...], *, after: timedelta = timedelta(0)
) -> Result:
    policy = replace(site.world.policy, verify_command=command)
    context = a_context(
        site, world=replace(site.world, shell=_NodeOfOurs(site.nodes), policy=policy)
    )
    deadline = deadline_in(20)
    while isinstance(result := Verify().run(context), Wait) and time.monotonic() < deadline:
        context = replace(context, now=context.now + after)
        time.sleep(0.02)
    return result


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_verify_command_runs_once_apart_from_us_and_its_end_is_read(scratch: Path) -> None:
    count = scratch / "count"
    result = verify_to_the_end(
        Site(nodes=1), ("sh", "-c", f'echo "it\'s $0" >> {count}; sleep 0.3; echo all well', "x")
    )
    assert isinstance(result, Done)
    assert list(result.evidence.values()) == ["all well\n"]
    assert count.read_text() == "it's x\n"


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
    result = verify_to_the_end(Site(nodes=1), ("sleep", "3"), after=timedelta(minutes=6))
    assert isinstance(result, Failed)
    assert "has not ended after" in result.text


# Settings that a boot or a reset has lost
# ---------------------------------------------------------------------------


def declare(site: Site, **settings: str) -> Context:
    """gn001 after its repair, where the inventory declares these of its GPUs."""
    policy = replace(site.world.policy, verify_command=())
    context = a_context(site, world=replace(site.world, policy=policy))
    target = context.find_target()
    expected = replace(target.expected, settings=settings)
    return replace(context, find_target=lambda: replace(target, expected=expected))


def test_a_setting_that_was_lost_is_told_and_keeps_no_node_out() -> None:
    site = Site(nodes=1)
    for gpu in site.nodes.nodes["gn001"].gpus[:2]:
        gpu.has_persistence = False
    result = Verify().run(declare(site, gpu_persistence_mode="Enabled", gpu_mig="Disabled"))
    assert isinstance(result, Wait)
    assert result.text.endswith(
        "But a setting of its GPUs was lost (node/gn001/gpu/0000:19:00.0: persistence mode is"
        " Disabled, declared is Enabled, and 1 more): set it anew."
    )


def test_nothing_is_told_of_settings_that_are_as_declared_or_not_declared() -> None:
    site = Site(nodes=1)
    as_declared = Verify().run(declare(site, gpu_persistence_mode="Enabled", gpu_mig="Disabled"))
    site.nodes.nodes["gn001"].gpus[0].has_persistence = False
    undeclared = Verify().run(declare(site))
    for result in (as_declared, undeclared):
        assert isinstance(result, Wait)
        assert "setting" not in result.text


# MIG devices that a boot or a reset has ended
# ---------------------------------------------------------------------------

TWO_DEVICES = (("3g.40gb", 60), ("3g.40gb", 60))


def a_site_with_mig(verify: tuple[str, ...] = ("true",)) -> Site:
    """GPU 5 is split."""
    site = Site(nodes=1)
    site.world = replace(site.world, policy=replace(site.world.policy, verify_command=verify))
    site.nodes.nodes["gn001"].gpus[5].mig_devices = TWO_DEVICES
    return site


def test_a_reboot_that_ended_mig_devices_says_so_and_gives_the_node_back() -> None:
    site = a_site_with_mig()
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0")
    run = site.play(site.begin(site.raise_fault(fault_type="gpu.ecc.uncorrectable")))
    assert run.state == RunState.SUCCEEDED
    (line,) = [line for line in site.story(run.incident) if "MIG devices" in line]
    gpu = site.gpu("gn001", 5)
    assert line.endswith(
        f"But MIG devices of its GPUs are others ({gpu}: 2 of 60, 60 multiprocessors before, none"
        " now): create them anew."
    )


def seen_before_repair(site: Site) -> Context:
    context = a_context(site, world=site.world)
    del context.facts["booted_at"]
    mig_devices.note_before(context, look(context))
    return context


def look(context: Context) -> looking.NodeInspection:
    return looking.inspect_node(context, only=("gpu",))


def test_only_devices_that_are_not_there_again_are_told_of() -> None:
    site = a_site_with_mig()
    context = seen_before_repair(site)
    assert mig_devices.list_lost(context, look(context)) == []
    site.nodes.nodes["gn001"].gpus[5].mig_devices = TWO_DEVICES[:1]
    expected = (
        f"{site.gpu('gn001', 5)}: 2 of 60, 60 multiprocessors before, 1 of 60 multiprocessors"
    )
    assert mig_devices.list_lost(context, look(context)) == [f"{expected} now"]


def test_what_is_seen_after_the_repair_never_counts_as_before() -> None:
    site = a_site_with_mig()
    context = seen_before_repair(site)
    context.facts["booted_at"] = format_iso(site.now)
    site.nodes.nodes["gn001"].gpus[5].mig_devices = ()
    mig_devices.note_before(context, look(context))
    assert len(mig_devices.list_lost(context, look(context))) == 1


def test_of_a_gpu_that_gives_no_answer_it_is_not_said_that_its_devices_are_gone() -> None:
    site = a_site_with_mig()
    context = seen_before_repair(site)
    site.nodes.nodes["gn001"].gpus[5].presence = Presence.MISSING
    mig_devices.note_before(context, look(context))
    assert mig_devices.list_lost(context, look(context)) == []
    assert list(context.facts[mig_devices.BEFORE]) == [site.gpu("gn001", 5)]


def test_mig_devices_that_the_inventory_declares_are_told_once_by_name() -> None:
    site = a_site_with_mig()
    for gpu in site.nodes.nodes["gn001"].gpus:
        gpu.mig_devices = TWO_DEVICES
    context = declare(site, gpu_mig_devices="3g.40gb:2")
    context.facts[mig_devices.BEFORE] = {site.gpu("gn001", 5): "2 of 60, 60 multiprocessors"}
    assert "MIG" not in Verify().run(context).text
    site.nodes.nodes["gn001"].gpus[5].mig_devices = (("1g.10gb", 16),)
    said = Verify().run(context).text
    assert said.endswith(
        f"But a setting of its GPUs was lost ({site.gpu('gn001', 5)}: MIG devices are 1g.10gb:1,"
        " declared is 3g.40gb:2): set it anew."
    )
