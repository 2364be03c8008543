"""What arming needs, point by point: each problem says what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from detectors.detector import Output, Unreachable
from incidents.checks import heartbeats
from incidents.checks.heartbeats import PartReport, Process
from incidents.models import Node
from runbooks.models import Mode
from runbooks.outcomes import Controlled, ControlRefused
from runbooks.people import controls, preflight
from runbooks.people.preflight import Check
from runbooks.power.access import BmcAccess, BmcKind
from runbooks.power.protocol import NoPower
from runbooks.power.site import SitePower
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
WORKER = PartReport("worker-runbook", ("runbook",), trouble="Redis takes nothing: no memory.")


def found(site: Site) -> dict[str, Check]:
    return {check.name: check for check in preflight.run_checks(site.world)}


def test_every_point_is_well_on_a_site_that_is_ready() -> None:
    assert [check for check in preflight.run_checks(Site(nodes=2).world) if not check.is_ok] == []


def _set(key: str, value: str) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        site.slurm._config[key] = value

    return change


def _no_nodes(site: Site) -> None:
    Node.objects.all().delete()


def _silence(site: Site) -> None:
    site.shell.silent.update(site.names)


def _controllers_away(site: Site) -> None:
    site.power.away.update(site.names)


def _not_root(site: Site) -> None:
    site.slurm.user = "alice"


@pytest.mark.parametrize(
    ("change", "point", "text", "todo"),
    [
        (
            _set("ClusterName", "production"),
            "cluster_name",
            "Slurm is cluster production",
            "KINTSUGI_CLUSTER_NAME",
        ),
        (_set("RebootProgram", ""), "reboot_program", "would do nothing", "Set RebootProgram"),
        (_set("ReturnToService", "2"), "return_to_service", "is 2", "ReturnToService=0 or 1"),
        (_set("ReturnToService", ""), "return_to_service", "is unknown", "ReturnToService=0 or 1"),
        (
            _set("ResumeTimeout", "60 sec"),
            "resume_timeout",
            "ResumeTimeout is 60 s",
            "above the longest boot",
        ),
        (
            _set("ResumeTimeout", "180 sec"),
            "resume_timeout",
            "KINTSUGI_BOOT_TIME 180 s",
            "above the longest boot",
        ),
        (_not_root, "privileges", "alice", "AdminLevel=Operator"),
        (_no_nodes, "nodes", "0 of 0 nodes", "inventory import"),
        (_silence, "node_access", "no route to host", "KINTSUGI_SSH_KEY"),
        (_controllers_away, "power", "cannot be reached", "Correct [group.bmc]"),
    ],
)
def test_problem_says_what_was_found_and_what_to_do(
    change: Callable[[Site], None], point: str, text: str, todo: str
) -> None:
    site = Site(nodes=2)
    change(site)
    check = found(site)[point]
    assert not check.is_ok
    assert text in check.found
    assert todo in check.todo


def test_missing_rights_of_root_stand_only_against_the_runbooks_that_need_them() -> None:
    site = Site(nodes=3)
    site.set_mode(Mode.SHADOW, "gpu_reset")
    assert found(site)["root_rights"].is_ok
    assert "lets runs reset GPUs (gpu_reset)" in found(site)["root_rights"].found
    site.nodes.nodes["gn002"].forbidden = ("nvidia-smi --gpu-reset", "systemctl start")
    check = found(site)["root_rights"]
    assert check.found.startswith(
        "1 of 3 nodes looked at do not let runs reset GPUs: gn002 refuses systemctl start "
    )
    assert (
        check.todo
        == "Install the lines of `kintsugi inventory sudoers --acts` on the nodes, or set gpu_reset to off."
    )
    armed = controls.set_mode(
        "gpu_reset", Mode.ARMED, actor="alice", now=site.now, world=site.world
    )
    assert isinstance(armed, ControlRefused)
    assert "inventory sudoers --acts" in armed.reason
    other = controls.set_mode(
        "drain_and_ask", Mode.ARMED, actor="alice", now=site.now, world=site.world
    )
    assert isinstance(other, Controlled)
    assert all(len(gpu.uuid) > 0 and gpu.is_healthy for gpu in site.nodes.nodes["gn002"].gpus)


def test_rights_of_root_that_no_node_tells_are_not_taken_for_given() -> None:
    site = Site(nodes=2)
    site.set_mode(Mode.SHADOW, "gpu_reset")
    _silence(site)
    check = found(site)["root_rights"]
    assert (check.is_ok, check.found) == (False, "No node could be asked what sudo allows.")


def test_missing_rights_to_restart_services_are_told_and_stop_no_runbook() -> None:
    site = Site(nodes=3)
    site.set_mode(Mode.SHADOW, "isolate_node")
    assert found(site)["restart_rights"].is_ok
    site.nodes.nodes["gn002"].forbidden = ("systemctl restart munge.service",)
    check = found(site)["restart_rights"]
    assert not check.is_ok
    assert check.found.endswith("gn002 refuses systemctl restart munge.service.")
    assert "isolate_node reboots a node for a service that a restart would mend" in check.todo
    assert not check.stands_against("isolate_node")


def test_a_kept_report_stands_against_the_same_runbooks() -> None:
    site = Site(nodes=2)
    site.set_mode(Mode.SHADOW, "gpu_reset")
    site.nodes.nodes["gn001"].forbidden = ("nvidia-smi",)
    preflight.create_report(site.world, by="worker", now=site.now)
    kept = preflight.load_report(site.now)
    assert kept is not None
    assert [check.name for check in kept if check.stands_against("gpu_reset")] == ["root_rights"]
    assert not [check for check in kept if check.stands_against("drain_reboot_verify")]


def test_one_silent_node_does_not_stop_arming() -> None:
    site = Site(nodes=3)
    site.shell.silent.add("gn001")
    assert found(site)["node_access"].is_ok


def test_slurm_that_does_not_answer_is_the_only_point() -> None:
    site = Site(nodes=2)
    site.slurm.is_answering = False
    assert [check.name for check in preflight.run_checks(site.world)] == ["slurm"]


def test_command_exits_1_and_prints_what_to_do_when_slurm_is_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("preflight")
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert "problem  slurm: KINTSUGI_SLURM is off" in shown
    assert "Set KINTSUGI_SLURM" in shown


def test_command_names_parts_of_kintsugi_that_are_silent_or_kept_from_their_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = timezone.now()
    for report, ago in ((PartReport("beat"), 5), (WORKER, 0)):
        at = now - timedelta(minutes=ago)
        heartbeats.write(Process("mgmt-1", 100, "0.2.0", at), [report], at)
    with pytest.raises(SystemExit):
        call_command("preflight")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " parts: " in line]
    assert line.startswith("problem")
    for words in ("beat on mgmt-1", "for 5 min", "repairs rest", WORKER.trouble):
        assert words in line


def test_silent_parts_stand_against_no_runbook() -> None:
    now = timezone.now()
    long_ago = now - timedelta(hours=1)
    heartbeats.write(Process("mgmt-1", 100, "0.2.0", long_ago), [WORKER], long_ago)
    check = preflight.check_parts(now)
    assert (check.is_ok, check.stands_against("drain_reboot_verify")) == (False, False)


def test_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("preflight", json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["is_ready"] is False
    assert set(answer["checks"][0]) == {"name", "is_ok", "found", "todo", "only_for"}


def test_a_site_without_controllers_may_arm_and_is_told_so() -> None:
    site = Site(nodes=2)
    site.world = replace(site.world, power=NoPower())
    assert found(site)["power"] == Check(
        "power",
        True,
        "No management controllers are given ([group.bmc]): cold cycles are a person's.",
    )


def test_a_controller_that_is_away_and_nodes_that_have_none_stop_nothing() -> None:
    site = Site(nodes=3)
    site.power.away.add("gn001")
    access = BmcAccess(BmcKind.REDFISH, "kintsugi", "secret")
    assert found(site)["power"].found == "2 of 3 management controllers looked at answer."
    site.world = replace(site.world, power=SitePower(lambda node: access))
    assert found(site)["power"].is_ok  # the inventory says of none where it is


def test_a_kernel_log_that_our_account_may_not_read_stands_against_repairs_alone() -> None:
    site = Site(nodes=3)
    real = site.shell.run

    def run(target, argv, timeout):  # type: ignore[no-untyped-def]
        if argv[0] != "journalctl" or target.name != "gn002":
            return real(target, argv, timeout)
        hint = b"Hint: You are currently not seeing messages from other users and the system.\n"
        return Output(0, b"", hint, timedelta(0))

    def refuse(target, name, commands):  # type: ignore[no-untyped-def]
        raise Unreachable("sudo: a password is required")

    assert found(site)["kernel_log"].is_ok
    site.shell.run = run  # type: ignore[method-assign]
    site.shell.run_all = refuse  # type: ignore[method-assign]
    check = found(site)["kernel_log"]
    assert check.found.startswith("The kernel log of 1 of 3 nodes looked at cannot be read")
    assert "gn002: journalctl: Hint: You are currently not seeing messages" in check.found
    assert "systemd-journal" in check.todo
    assert check.stands_against("drain_reboot_verify")
    assert not check.stands_against("drain_and_ask")


def test_a_log_host_of_the_inventory_that_is_no_listed_relay_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(nodes=2)
    Node.objects.create(name="log01", address="10.0.0.9", role="loghost")
    for relays in (None, [], ["10.0.1.0/24"]):
        monkeypatch.setitem(settings.KINTSUGI, "KINTSUGI_SYSLOG_RELAYS", relays)
        check = found(site)["log_hosts"]
        assert (check.is_ok, "log01 is no listed relay" in check.found) == (False, True)
        assert "KINTSUGI_SYSLOG_RELAYS" in check.todo
        assert not check.stands_against("drain_reboot_verify")
    monkeypatch.setitem(settings.KINTSUGI, "KINTSUGI_SYSLOG_RELAYS", ["10.0.0.0/24"])
    assert found(site)["log_hosts"].is_ok
