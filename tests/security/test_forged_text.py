"""Who can write a text cannot move a node: forged lines drain, reset, reboot and condemn nothing,
fill no cap and trip no breaker; what is true is repaired as before."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, timedelta

import pytest

from detectors.catalog.catalog import load
from detectors.detector import Output
from detectors.faults import Action
from detectors.provenance import Forger, Provenance, Transport, of_line
from incidents import services as incidents
from incidents.models import Fault, Incident, VendorCase
from incidents.people import explain
from incidents.text import account as story
from runbooks import services
from runbooks.fleet import breaker
from runbooks.models import Mode, Run, RunState
from runbooks.node import looking, witnesses
from runbooks.node.witnesses import Unseen
from tests.matching import get_shipped_matcher
from tests.runbooks.site import KERNEL_RECORD, Site, a_context

pytestmark = pytest.mark.django_db
NODE = "gn001"
RUNBOOKS = ("gpu_reset", "nvlink_fabric_recover", "cold_cycle", "vendor_replacement")
UDP = Provenance("10.66.6.6", Transport.UDP, program="kernel", facility=0)
USER = Provenance(NODE, Transport.NODE_CHECK, program="kernel", forger=Forger.USER)
HOUR = timedelta(hours=1)
XID = "NVRM: Xid (PCI:0000:19:00): 119, pid=1, Timeout waiting for RPC from GSP!"
UE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"


def a_site(nodes: int = 6) -> Site:
    site = Site(nodes=nodes, verify_command=("true",))
    for runbook in RUNBOOKS:
        site.set_mode(Mode.ARMED, runbook)
    return site


def turn(site: Site, times: int, step: timedelta) -> None:
    """As the sweep does: starts what is called for, and gives each run that is due its turn."""
    for _ in range(times):
        services.start_due(None, now=site.now, world=site.world)
        for _ in range(12):
            due = services.get_due_runs(site.now)
            for run in due:
                services.advance(run, now=site.now, world=site.world)
                services.start_after(run, now=site.now, world=site.world)
            if not due:
                break
        incidents.sweep(now=site.now)
        site.now += step


def is_drained(site: Site, node: str = NODE) -> bool:
    return site.slurm.read_nodes((node,))[node].is_draining


def count_acts(site: Site) -> tuple[int, int, int, int]:
    """Reboots, resets of GPUs, switches of power, vendor cases."""
    node = site.nodes.nodes[NODE]
    resets = sum(gpu.resets for gpu in node.gpus)
    cases = VendorCase.objects.count()
    return site.slurm.reboots(NODE), resets, len(site.power.journal), cases


# What any user of a node can have its kernel write, and what anybody writes into a log.
QUOTED = {
    "overlay": f"overlayfs: failed to resolve '/tmp/{UE}': -2",
    "overlay, a new line in the name": f"overlayfs: failed to resolve '/tmp/\n{XID}': -2",
    "mount": f"EXT4-fs ({XID}): unable to read superblock",
    "device": f"netlink: {XID}: bytes leftover after parsing attributes",
    "process": "EDAC MC0: 1 UE [4711]: segfault at 0 ip 0000 sp 0000 error 4 in a.out[400000+1000]",
    "process, out of memory": "EDAC MC0: 1 UE invoked oom-killer: gfp_mask=0xcc0, order=0",
    "nothing but the log host": "",
}


@pytest.mark.parametrize("kind", QUOTED)
@pytest.mark.parametrize("told_by", [UDP, USER], ids=["udp", "a post"])
@pytest.mark.parametrize(
    ("fault_type", "is_of_gpu"), [("node.memory.uncorrected", False), ("gpu.xid.119", True)]
)
def test_three_forged_lines_move_nothing(
    kind: str, told_by: Provenance, fault_type: str, is_of_gpu: bool
) -> None:
    site = a_site()
    resource = site.gpu(NODE) if is_of_gpu else f"node/{NODE}"
    for _ in range(3):
        if QUOTED[kind]:
            site.nodes.nodes[NODE].kernel(QUOTED[kind], at=site.now)
        site.raise_fault(NODE, fault_type=fault_type, resource=resource, told_by=told_by)
        turn(site, 12, timedelta(seconds=20))
        assert not is_drained(site)
        site.now += timedelta(hours=25)
    assert count_acts(site) == (0, 0, 0, 0)
    asked = Incident.objects.latest("pk").needs_human
    assert "See who wrote it" in asked
    assert "mark the incident a false alarm" in asked
    assert not Run.objects.filter(claimed_at__isnull=False).exists()


@pytest.mark.parametrize(
    ("fault_type", "line"),
    [
        ("gpu.xid.119", XID),
        ("gpu.xid.48", "NVRM: Xid (PCI:0000:19:00): 48, pid=1, An uncorrectable double bit error"),
        ("node.memory.uncorrected", UE),
    ],
)
def test_what_the_kernel_itself_says_is_repaired_without_a_person(
    fault_type: str, line: str
) -> None:
    site = a_site()
    site.nodes.nodes[NODE].kernel(line, at=site.now)
    resource = site.gpu(NODE) if fault_type.startswith("gpu") else f"node/{NODE}"
    site.raise_fault(NODE, fault_type=fault_type, resource=resource, told_by=UDP)
    turn(site, 1, timedelta(0))
    assert is_drained(site)
    turn(site, 60, timedelta(seconds=20))
    reboots, resets, _, _ = count_acts(site)
    assert reboots + resets == 1
    assert not is_drained(site)


def test_a_lost_gpu_that_a_text_told_of_is_repaired_without_a_person() -> None:
    site = a_site()
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    site.raise_fault(NODE, told_by=UDP)
    turn(site, 60, timedelta(seconds=20))
    assert count_acts(site)[0] == 1
    assert not is_drained(site)


def test_no_process_can_take_the_words_of_a_driver_for_its_name() -> None:
    """The kernel writes the first 15 characters of a process's name where its message begins."""
    site = a_site(nodes=1)
    for words in (XID, UE, "nvidia-nvswitch0: SXid (PCI:0000:19:00.0): 20034, Fatal, Link 3"):
        for name in (words[:length] for length in range(1, 16)):
            for message in (
                f"{name}[4711]: segfault at 0 ip 0 sp 0 error 4",
                f"traps: {name}[4711] general protection fault ip:0 sp:0 error:0",
                f"{name}[4711] trap invalid opcode ip:0 sp:0 error:0",
                f"{name}/4711: potentially unexpected fatal signal 11.",
                f"{name} invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
                f"{name}: page allocation failure: order:0, mode:0xcc0",
                f"{name} (4711): {words}",
                f"{name}[4711]: {words}",
            ):
                site.nodes.nodes[NODE].kernel(message, at=site.now)
    log = looking.read_kernel_log(a_context(site))
    assert log.complaint == ""
    assert [fact.excerpt for fact in log.raised] == []


def test_forged_lines_fill_no_cap() -> None:
    site = a_site(nodes=100)
    for number, code in enumerate((79, 119, 120, 95, 48, 62, 64, 46)):
        site.raise_fault(site.names[number], fault_type=f"gpu.xid.{code}", told_by=UDP)
        turn(site, 5, timedelta(minutes=3))
    lost = "gn050"
    site.nodes.inject("gpu_lost", f"{lost}/gpu/0")
    site.raise_fault(lost, told_by=UDP)
    turn(site, 2, timedelta(seconds=1))
    assert [name for name in site.names if is_drained(site, name)] == [lost]
    turn(site, 30, timedelta(minutes=1))
    assert site.slurm.reboots(lost) == 1


def test_forged_lines_trip_no_breaker() -> None:
    site = a_site(nodes=100)
    for name in site.names[:15]:
        site.raise_fault(name, told_by=UDP)
    turn(site, 10, timedelta(seconds=30))
    breaker.evaluate_breaker(site.now, bounds=site.world.policy.bounds)
    assert breaker.get_open_breaker() is None
    assert not any(is_drained(site, name) for name in site.names)


def test_as_many_nodes_that_are_really_ill_trip_it() -> None:
    site = a_site(nodes=100)
    for name in site.names[:15]:
        site.raise_fault(name, told_by=KERNEL_RECORD)
    breaker.evaluate_breaker(site.now, bounds=site.world.policy.bounds)
    assert breaker.get_open_breaker() is not None


def test_a_place_that_was_taken_while_the_node_could_not_be_asked_is_given_back() -> None:
    site = a_site()
    site.shell.silent.add(NODE)
    site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=UDP)
    turn(site, 2, timedelta(seconds=20))
    assert is_drained(site)
    site.shell.silent.clear()
    turn(site, 20, timedelta(seconds=20))
    assert not is_drained(site)
    assert count_acts(site) == (0, 0, 0, 0)
    run = Run.objects.get()
    assert run.state == RunState.WITHDRAWN
    assert f"{NODE} is handed back" in run.outcome


def test_what_was_denied_begins_anew_once_somebody_who_is_believed_sees_it() -> None:
    site = a_site()
    site.raise_fault(NODE, told_by=UDP)
    turn(site, 12, timedelta(seconds=20))
    assert Run.objects.get().state == RunState.WITHDRAWN
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    site.poll(NODE)
    turn(site, 60, timedelta(seconds=20))
    assert site.slurm.reboots(NODE) == 1


def test_the_same_text_again_has_the_node_asked_again_after_a_while() -> None:
    site = a_site()
    site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=UDP)
    turn(site, 12, timedelta(seconds=20))
    for _ in range(5):
        site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=UDP)
        turn(site, 3, timedelta(seconds=20))
    assert Run.objects.count() == 1
    site.now += timedelta(minutes=10)
    site.nodes.nodes[NODE].kernel(XID, at=site.now)
    site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=UDP)
    turn(site, 1, timedelta(0))
    assert is_drained(site)


def test_a_forged_line_keeps_no_other_fault_of_its_node_waiting() -> None:
    site = a_site()
    site.raise_fault(
        NODE, fault_type="node.memory.uncorrected", resource=f"node/{NODE}", told_by=UDP
    )
    turn(site, 1, timedelta(0))
    site.now += timedelta(minutes=30)
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/3")
    site.raise_fault(NODE, fault_type="gpu.lost", resource=site.gpu(NODE, 3))
    turn(site, 60, timedelta(seconds=20))
    assert site.slurm.reboots(NODE) == 1


def test_a_person_who_begins_a_run_by_hand_is_a_witness() -> None:
    site = a_site()
    incident = site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=UDP)
    turn(site, 12, timedelta(seconds=20))
    services.start_manual_run(
        "drain_reboot_verify", incident.pk, actor="mai", note="I saw it", now=site.now
    )
    turn(site, 2, timedelta(seconds=1))
    assert is_drained(site)


def test_no_vendor_is_called_for_a_node_that_could_not_be_asked() -> None:
    site = a_site()
    site.shell.silent.add(NODE)
    site.raise_fault(NODE, fault_type="gpu.ecc.unrepairable", told_by=UDP)
    turn(site, 20, timedelta(seconds=30))
    assert VendorCase.objects.count() == 0
    assert "No vendor is called" in Run.objects.get().waiting_for


def test_a_forged_fault_beside_a_true_one_condemns_no_part() -> None:
    site = a_site()
    site.nodes.inject("gpu_ecc_uncorrectable", f"{NODE}/gpu/0")
    site.raise_fault(NODE, fault_type="gpu.xid.48")
    site.raise_fault(NODE, fault_type="gpu.ecc.unrepairable", told_by=UDP)
    turn(site, 20, timedelta(seconds=30))
    assert "vendor_replacement" not in Run.objects.values_list("runbook", flat=True)
    assert VendorCase.objects.count() == 0


def test_a_part_that_is_seen_to_be_broken_goes_to_the_vendor_without_a_person() -> None:
    site = a_site()
    site.raise_fault(NODE, fault_type="gpu.ecc.unrepairable")
    turn(site, 5, timedelta(seconds=30))
    assert VendorCase.objects.count() == 1


def test_a_node_that_has_booted_since_denies_nothing() -> None:
    """A panic stands in the log of the boot that it ended."""
    site = a_site()
    resource = f"node/{NODE}"
    site.raise_fault(NODE, fault_type="node.kernel.panic", resource=resource, told_by=UDP)
    site.nodes.reboot(NODE)
    site.now += timedelta(minutes=1)
    turn(site, 1, timedelta(0))
    assert is_drained(site)


def test_a_journal_that_kintsugi_may_not_read_denies_nothing() -> None:
    site = a_site(nodes=1)
    real = site.shell.run

    def run(target, argv, timeout):  # type: ignore[no-untyped-def]
        if argv[0] != "journalctl":
            return real(target, argv, timeout)
        hint = b"Hint: You are currently not seeing messages from other users and the system.\n"
        return Output(0, b"", hint, timedelta(0))

    site.nodes.nodes[NODE].kernel(XID, at=site.now)
    site.shell.run = run  # type: ignore[method-assign]
    log = looking.read_kernel_log(a_context(site))
    assert "not seeing messages" in log.complaint
    asked = a_context(site, fault_type="gpu.xid.119")
    candidates = witnesses.list_candidates(asked)
    assert isinstance(witnesses.find_witness(asked, candidates), Unseen)

    as_root = site.nodes.nodes[NODE].run(looking.KERNEL_LOG.argv)[1]
    answers = {looking.KERNEL_LOG.name: Output(0, as_root, b"", timedelta(0))}
    site.shell.run_all = lambda target, name, commands: answers  # type: ignore[method-assign]
    log = looking.read_kernel_log(a_context(site))
    assert [fact.fault_type for fact in log.raised] == ["gpu.xid.119"]


XID_18 = "NVRM: Xid (PCI:0000:19:00): 18, pid=1, Bus mastering disabled"
XID_48 = "NVRM: Xid (PCI:0000:19:00): 48, pid=1, An uncorrectable double bit error"


def tell_true_reset(site: Site) -> None:
    site.nodes.nodes[NODE].kernel(XID_48, at=site.now)
    site.raise_fault(NODE, fault_type="gpu.xid.48")


@pytest.mark.parametrize("is_forged_first", [True, False], ids=["first", "after"])
@pytest.mark.parametrize("forged", ["gpu.xid.79", "gpu.ecc.unrepairable"])
def test_a_forged_fault_beside_a_true_one_lifts_no_repair(
    forged: str, is_forged_first: bool
) -> None:
    site = a_site()
    if is_forged_first:
        site.raise_fault(NODE, fault_type=forged, told_by=UDP)
        turn(site, 1, timedelta(seconds=20))
        tell_true_reset(site)
    else:
        tell_true_reset(site)
        site.raise_fault(NODE, fault_type=forged, told_by=UDP)
    incident = Incident.objects.get()
    assert incident.members.count() == 2
    assert incident.action == Action.RESET_GPU
    turn(site, 60, timedelta(seconds=20))
    assert count_acts(site) == (0, 1, 0, 0)
    account = explain.build_account(incident.pk)
    assert account is not None
    told = story.format_text(account)
    assert f"{forged} is not believed" in told
    assert "gpu.xid.48 is not believed" not in told


def test_a_stronger_text_that_the_nodes_kernel_has_written_too_lifts_the_repair() -> None:
    site = a_site()
    tell_true_reset(site)
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    incident = site.raise_fault(NODE, told_by=UDP)
    assert incident.action == Action.RESET_GPU
    turn(site, 60, timedelta(seconds=20))
    incident.refresh_from_db()
    assert incident.action == Action.REBOOT
    assert site.slurm.reboots(NODE) == 1
    lost = Fault.objects.get(fault_type="gpu.xid.79")
    assert Forger(lost.forger) is Forger.ROOT


def test_a_forged_word_of_the_same_fault_lifts_no_repair() -> None:
    site = a_site()
    incident = site.raise_fault(NODE, fault_type="gpu.xid.48")
    site.now += timedelta(seconds=5)
    site.raise_fault(NODE, fault_type="gpu.xid.48", action=Action.COLD_CYCLE, told_by=UDP)
    incident.refresh_from_db()
    fault = Fault.objects.get()
    assert fault.count == 2
    assert fault.action == incident.action == Action.RESET_GPU


def test_what_a_forged_word_called_for_ends_with_the_first_who_is_believed() -> None:
    site = a_site()
    site.raise_fault(NODE, fault_type="gpu.xid.48", action=Action.COLD_CYCLE, told_by=UDP)
    site.now += timedelta(seconds=5)
    incident = site.raise_fault(NODE, fault_type="gpu.xid.48")
    assert Fault.objects.get().action == incident.action == Action.RESET_GPU


def test_a_forged_repair_beside_a_true_warning_trips_no_breaker() -> None:
    site = a_site(nodes=100)
    for name in site.names[:15]:
        gpu = site.gpu(name)
        site.raise_fault(name, fault_type="gpu.slowdown.thermal", resource=gpu)
        site.raise_fault(name, fault_type="gpu.xid.48", resource=gpu, told_by=UDP)
    breaker.evaluate_breaker(site.now, bounds=site.world.policy.bounds)
    assert breaker.get_open_breaker() is None


def silence(site: Site, node: str) -> None:
    """It answers neither Slurm nor SSH."""
    site.shell.silent.add(node)
    site.slurm.set_down(node)


def confirm_forged(site: Site) -> Run:
    """The run of a forged fault, once it has looked at its node."""
    site.raise_fault(NODE, told_by=UDP)
    turn(site, 6, timedelta(seconds=20))
    return Run.objects.get()


def test_a_node_that_answers_nobody_shows_that_it_is_down_and_no_forged_fault() -> None:
    site = a_site()
    silence(site, NODE)
    run = confirm_forged(site)
    assert run.fault_type == "slurm.node_down"
    assert run.facts["resource"] == f"node/{NODE}"
    assert any("gpu.xid.79 on" in text for text in site.story(run.incident))


def test_a_node_that_a_witness_has_seen_ill_and_that_answers_nobody_is_repaired_for_that() -> None:
    site = a_site()
    site.raise_fault(NODE)
    silence(site, NODE)
    turn(site, 6, timedelta(seconds=20))
    assert Run.objects.get().fault_type == "gpu.xid.79"


def test_a_node_that_is_silent_with_its_pod_confirms_nothing() -> None:
    site = a_site()
    for name in site.names[:3]:
        silence(site, name)
        with suppress(Incident.DoesNotExist):
            site.raise_fault(name, fault_type="target.unreachable", resource=f"node/{name}")
    run = confirm_forged(site)
    assert run.fault_type == "gpu.xid.79"
    assert "not it alone" in run.waiting_for
    assert site.slurm.reboots(NODE) == 0


def test_a_forged_fault_that_is_over_leaves_no_repair_for_the_true_warning_beside_it() -> None:
    site = a_site()
    assert load()["gpu.xid.18"].action is Action.WATCH
    site.nodes.nodes[NODE].kernel(XID_18, at=site.now)
    incident = site.raise_fault(NODE, fault_type="gpu.xid.18")
    site.raise_fault(NODE, fault_type="gpu.xid.154", action=Action.REBOOT, told_by=UDP)
    Fault.objects.filter(fault_type="gpu.xid.154").update(is_active=False, cleared_at=site.now)
    incident.refresh_from_db()
    assert (incident.members.count(), incident.action) == (2, Action.REBOOT)
    turn(site, 20, timedelta(seconds=20))
    assert count_acts(site) == (0, 0, 0, 0)
    assert not is_drained(site)


def test_a_line_that_any_program_can_write_drains_nothing() -> None:
    """`logger -t NAME` of any user writes such a line."""
    lines = {
        "node.hardware_event": "ipmid[77]: SEL Entry: FRU: 7, Record: Standard (0x02), Time: "
        "2026-11-21 03:59:58, Sensor: MACHINE_CHK_ERR (0x40), Event Data: (AB0707) Uncorrected",
        "storage.mount_failed": "automount[77]: >> mount.nfs: Connection refused",
        "node.service.failed": "systemd[1]: slurmd.service: Job slurmd.service/start failed with "
        "result 'dependency'.",
    }
    site = a_site(nodes=2)
    for fault_type, line in lines.items():
        (fact,) = get_shipped_matcher().facts(
            f"Nov 21 03:59:58 {NODE} {line}".encode(),
            default_host=NODE,
            observed_at=site.now,
            zone=UTC,
        )
        told_by = of_line(
            Provenance(NODE, Transport.NODE_CHECK, forger=Forger.ROOT),
            program=fact.program,
            facility=fact.facility,
            severity=fact.priority,
            is_of_driver=fact.is_of_driver,
        )
        assert fact.fault_type == fault_type
        assert told_by.forger is Forger.USER
        site.raise_fault(NODE, fault_type=fault_type, resource=f"node/{NODE}", told_by=told_by)
        turn(site, 12, timedelta(seconds=20))
        assert not is_drained(site)
    assert count_acts(site) == (0, 0, 0, 0)
    assert not Run.objects.filter(claimed_at__isnull=False).exists()
