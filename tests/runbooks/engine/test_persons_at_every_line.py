"""A person says something about a node at any line of a turn: their word stands, and the run stops
or waits."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import runbooks
from detectors.detector import Output, Target
from fixtures.memory_slurm_commands import CommandShell
from incidents import services as incidents
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.engine import turn
from runbooks.lease.lease import LateWorker
from runbooks.models import Installation, Run, RunState
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import NodeChanged, NodeState, SlurmRefusal
from tests.runbooks.site import CLUSTER, Site

pytestmark = pytest.mark.django_db
ACTS = ("drain", "resume", "reboot", "cancel_reboot", "withdraw_reboot")
STEPS = ("drain", "wait_for_jobs", "confirm_on_node", "reboot", "wait_for_boot", "verify", "resume")
# wait_for_jobs is done as soon as it is looked at.
LINES = [
    (step, point)
    for step in STEPS
    for point in ("leased", "allowed", "attempted")
    if step != "wait_for_jobs"
]
THEIRS = "bob: tray out, hands inside"


def drains(site: Site) -> None:
    site.slurm.human_drain("gn001", THEIRS)


def fails(site: Site) -> None:
    site.slurm.human_fail("gn001", THEIRS)


def appends(site: Site) -> None:
    reason = node(site).reason or "nothing yet"
    site.slurm.human_drain("gn001", f"{reason} -- {THEIRS}")


def reboots(site: Site) -> None:
    site.slurm.human_reboot("gn001")


def node(site: Site) -> NodeState:
    return site.slurm.read_nodes(("gn001",))["gn001"]


def play(
    site: Site, run: Run, step: str, point: str, person: Callable[[Site], None]
) -> tuple[Run, int]:
    """The run to its end or ten minutes on, and how many acts of ours there had been when the
    person came."""
    said: list[int] = []

    def at(now_at: str) -> None:
        row = Run.objects.get(pk=run.pk)
        if now_at == point and row.plan[row.step]["step"] == step and not said:
            person(site)
            said.append(len(site.slurm.journal))

    ends_at = site.now + timedelta(minutes=10)
    run.refresh_from_db()
    while run.finished_at is None and run.wake_at is not None and run.wake_at <= ends_at:
        site.now = max(site.now, run.wake_at)
        turn.advance(run.pk, now=site.now, world=site.world, at=at)
        run.refresh_from_db()
    return run, said[0] if said else -1


@pytest.mark.parametrize("person", [drains, fails, appends])
@pytest.mark.parametrize(("step", "point"), [*LINES, ("wait_for_jobs", "leased")])
def test_a_persons_word_stands_wherever_in_a_turn_it_comes(
    step: str, point: str, person: Callable[[Site], None]
) -> None:
    site = Site(nodes=2)
    run, acts = play(site, site.begin(site.lose_gpu()), step, point, person)
    assert acts >= 0
    after = [act[0] for act in site.slurm.journal[acts:]]
    assert after == [], "nothing is done to the node after that"
    assert THEIRS in node(site).reason
    assert node(site).is_out
    assert run.state == (RunState.RUNNING if step == "drain" else RunState.ABORTED)
    assert any(THEIRS in line for line in site.story(run.incident))


def test_a_reason_that_another_installation_left_is_a_persons_whatever_number_it_bears() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    for number in (incident.pk, 90017):
        site.slurm.human_drain(
            "gn001", f"kintsugi:{number} gpu.ecc.row_remap_failure: vendor case 4711 open"
        )
        run = site.play(site.begin(incident), limit=timedelta(minutes=5))
        assert "vendor case 4711 open" in node(site).reason
        assert "Kintsugi leaves it alone while that stands" in run.waiting_for
    assert site.slurm.journal == []


def test_a_reason_names_the_installation_and_the_run_that_wrote_it() -> None:
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site_id = Installation.objects.get().site_id
    assert node(site).reason.startswith(f"kintsugi:{run.incident_id}/{site_id}-")


def test_a_run_that_an_older_version_began_goes_on_with_the_reason_that_it_wrote() -> None:
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    old = f"kintsugi:{run.incident_id} gpu.xid.79: GPU has fallen off the bus"
    site.slurm.human_drain("gn001", old, user="root")
    Run.objects.filter(pk=run.pk).update(facts={**_without_new_facts(run), "reason": old})
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome


def _without_new_facts(run: Run) -> dict[str, object]:
    new = ("written", "unchecked_act")
    return {name: fact for name, fact in run.facts.items() if name not in new}


def test_a_drain_is_known_again_when_its_worker_died_before_it_had_kept_it() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    class Killed(BaseException):
        pass

    def reaper(point: str) -> None:
        if point == "acted":
            raise Killed

    with contextlib.suppress(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=reaper)
    site.now += timedelta(seconds=10)
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]


def test_a_drain_whose_reason_slurm_replaces_with_its_own_stays_ours() -> None:
    """As slurmctld 23.02 and later do where a drained node comes back with fewer GPUs."""
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "verify"
    )
    site.slurm.slurm_drain("gn001", "gres/gpu count reported lower than configured (7 < 8)")
    assert site.play(run).state == RunState.SUCCEEDED


def test_a_reboot_that_a_person_asked_slurm_for_is_left_to_them_before_the_drain() -> None:
    site = Site(nodes=2)
    site.slurm.add_job("77", nodes=["gn001"])
    run = site.begin(site.lose_gpu())
    site.slurm.human_reboot("gn001")
    run = site.advance(run)
    assert "Someone has asked Slurm to reboot gn001" in run.waiting_for
    assert site.slurm.journal == []


def test_a_persons_reboot_before_the_return_to_service_is_not_cancelled_and_the_node_is_verified_anew() -> (
    None
):
    site = Site(nodes=2)
    run, _ = play(
        site,
        site.begin(site.lose_gpu()),
        "resume",
        "attempted",
        lambda site: site.slurm.human_reboot("gn001"),
    )
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert site.nodes.nodes["gn001"].boots == 2
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]
    assert not node(site).is_out
    story = site.story(run.incident)
    assert any(
        "Someone has asked Slurm to reboot gn001: Kintsugi leaves it to them" in line
        for line in story
    )
    assert sum("gn001 is verified" in line for line in story) == 2


def test_our_own_reboot_that_an_older_state_of_slurm_still_shows_is_nobodys_word() -> None:
    """slurmctld restarted from what it had saved before the node was back: the node has booted
    since, for us."""
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "verify"
    )
    issued_at = datetime.fromisoformat(run.facts["reboot_at"])
    site.slurm.forget_boot("gn001", reason=run.facts["reason"], at=issued_at)
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.waiting_for
    assert not any("Someone has asked" in line for line in site.story(run.incident))
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]


class _ResumedBeforeReboot(ScontrolWriter):
    """Between our look and our reboot a person resumes the node, and a job starts there."""

    def __init__(self, site: Site) -> None:
        super().__init__(CommandShell(site.slurm), parse_controller("local"), cluster_name=CLUSTER)
        self._site = site

    def reboot(self, node: str, *, as_seen: NodeState | None = None) -> NodeState:
        self._site.slurm.human_resume(node)
        self._site.slurm.add_job("78", nodes=[node])
        return super().reboot(node)


def test_a_reboot_of_ours_that_slurm_has_not_sent_is_cancelled_when_a_person_resumes_the_node() -> (
    None
):
    """The last gap: a person resumes, and a job starts, between our last look and scontrol."""
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.hung.add("gn001")
    site.world = replace(site.world, writer=_ResumedBeforeReboot(site))
    turn.advance(run.pk, now=site.now, world=site.world)
    run = site.play(run)
    assert run.state == RunState.ABORTED
    assert node(site).flags == frozenset()
    assert node(site).base == "ALLOCATED"
    assert "is cancelled: gn001 runs on" in run.outcome


@pytest.mark.parametrize("takes_out", [drains, fails])
def test_a_reboot_of_ours_on_a_node_that_a_person_took_out_is_told_to_them_and_their_act_stands(
    takes_out: Callable[[Site], None],
) -> None:
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )

    def at(point: str) -> None:
        if point == "acted":
            site.slurm.human_resume("gn001")
            site.slurm.add_job("78", nodes=["gn001"])
            site.slurm.human_reboot("gn001", user="root")
            takes_out(site)

    turn.advance(run.pk, now=site.now, world=site.world, at=at)
    run = site.play(run)
    assert run.state == RunState.ABORTED
    seen = node(site)
    assert (seen.is_draining, seen.is_failing) == (takes_out is drains, takes_out is fails)
    assert (seen.reason, seen.is_rebooting) == (THEIRS, True)
    assert "still stands" in run.outcome
    assert "scontrol cancel_reboot gn001" in run.outcome


def test_a_node_whose_worker_died_right_after_its_drain_is_handed_back_when_the_incident_ends() -> (
    None
):
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    def at(point: str) -> None:
        if point == "acted":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turn.advance(run.pk, now=site.now, world=site.world, at=at)
    assert node(site).is_draining
    incidents.act(
        run.incident_id, Trigger.MARK_FALSE_POSITIVE, actor="bob", note="ours", now=site.now
    )
    site.now += timedelta(minutes=1)
    turn.advance(run.pk, now=site.now, world=site.world)
    run.refresh_from_db()
    assert run.state == RunState.WITHDRAWN
    assert not node(site).is_draining, run.outcome


def test_a_reboot_that_a_person_asked_for_is_not_cancelled_when_they_take_the_drain_away() -> None:
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.send_reboots_after(timedelta(minutes=1))
    site.slurm.human_reboot("gn001", user="root")
    turn.advance(run.pk, now=site.now, world=site.world)
    run.refresh_from_db()
    assert run.plan[run.step]["step"] == "wait_for_boot"
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(seconds=10)
    turn.advance(run.pk, now=site.now, world=site.world)
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    assert node(site).flags == {"REBOOT_REQUESTED"}


def test_a_reboot_that_a_person_asks_for_after_ours_is_not_cancelled() -> None:
    """Ours has come, and no worker has seen it: the node is not reached by SSH."""
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.shell.silent.add("gn001")
    site.now += timedelta(minutes=1)
    assert site.slurm.reboots("gn001") == 1
    site.slurm.update("gn001", "UNDRAIN", "")
    site.slurm.send_reboots_after(timedelta(minutes=1))
    site.slurm.human_reboot("gn001", user="root")
    turn.advance(run.pk, now=site.now, world=site.world)
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    assert "that is left to them" in run.outcome
    assert node(site).flags == {"REBOOT_REQUESTED"}


def test_our_reboot_does_not_hit_whoever_takes_the_drain_away_while_the_run_is_paused() -> None:
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    services.pause(run.pk, actor="eve", now=site.now)
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert run.state == RunState.PAUSED
    assert node(site).flags == {"DRAIN", "REBOOT_REQUESTED"}
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert node(site).flags == set()
    assert "is cancelled" in run.outcome


def test_our_reboot_does_not_hit_whoever_takes_the_drain_away_once_the_run_is_over() -> None:
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    services.abort(run.pk, actor="eve", now=site.now)
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == {"DRAIN", "REBOOT_REQUESTED"}, "a person decides"
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == frozenset()
    assert any("is cancelled: gn001 runs on" in line for line in site.story(run.incident))
    assert run.wake_at is None


def test_our_reboot_does_not_hit_whoever_drains_after_an_abort_and_then_takes_it_away() -> None:
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    services.abort(run.pk, actor="eve", now=site.now)
    drains(site)
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert node(site).flags == {"DRAIN", "REBOOT_REQUESTED"}
    said = [line for line in site.story(run.incident) if "still stands" in line]
    assert len(said) == 1, "once, and what they can do"
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == frozenset()
    assert run.wake_at is None


def test_our_reboot_does_not_hit_whoever_takes_the_drain_away_while_another_run_waits() -> None:
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    drains(site)
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    services.start_manual_run(
        "drain_and_ask", run.incident_id, actor="bob", note="later", now=site.now
    )
    other = Run.objects.exclude(pk=run.pk).get()
    other = site.advance(other)
    assert other.claimed_at is None
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == frozenset()


def test_a_persons_drain_that_slurm_drops_since_our_reboot_never_came_is_put_back() -> None:
    """As slurmctld 22.05 does past ResumeTimeout."""
    settings = {"SLURM_VERSION": "22.05.8", "ReturnToService": "2", "ResumeTimeout": "90 sec"}
    site = Site(nodes=2, slurm=settings)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.hung.add("gn001")
    run = site.advance(run)
    assert node(site).flags == {"DRAIN", "REBOOT_ISSUED"}
    drains(site)
    for _ in range(8):
        site.now += timedelta(seconds=30)
        run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert node(site).is_draining
    assert node(site).reason == f"{THEIRS} (put back by Kintsugi)"
    assert any("It is put back" in line for line in site.story(run.incident))
    assert run.wake_at is None


def test_whoever_drains_while_a_drain_that_slurm_dropped_is_put_back_has_theirs_put_back() -> None:
    settings = {"SLURM_VERSION": "22.05.8", "ResumeTimeout": "90 sec"}
    site = Site(nodes=2, slurm=settings)
    site.slurm.keeps_accounts = True
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.hung.add("gn001")
    run = site.advance(run)
    drains(site)
    words = "eve: its power is off"

    class PutsBack(CommandShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            if any("put back by Kintsugi" in word for word in argv) and not spoken:
                spoken.append(site.now)
                site.now += timedelta(seconds=2)
                site.slurm.human_drain("gn001", words, user="eve")
                site.now += timedelta(seconds=2)
            return super().run(target, argv, timeout)

    spoken: list[datetime] = []
    client = ScontrolWriter(PutsBack(site.slurm), parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    for _ in range(12):
        site.now += timedelta(seconds=30)
        run = site.advance(run)
    assert spoken
    assert node(site).is_draining
    assert node(site).reason.startswith(words)
    assert run.wake_at is None


def test_an_ended_run_leaves_the_drain_of_another_run_to_that_one() -> None:
    """As slurmctld 22.05 drops it past ResumeTimeout of a reboot that the ended one had asked
    for."""
    settings = {"SLURM_VERSION": "22.05.8", "ReturnToService": "2", "ResumeTimeout": "90 sec"}
    site = Site(nodes=2, slurm=settings)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.hung.add("gn001")
    run = site.advance(run)
    services.abort(run.pk, actor="eve", now=site.now)
    other = Run.objects.get(pk=run.pk)
    other.pk, other.state, other.finished_at, other.wake_at = None, RunState.RUNNING, None, None
    other.save(force_insert=True)
    site.slurm.drain("gn001", "kintsugi:2/another gpu.lost: not there")
    for _ in range(8):
        site.now += timedelta(seconds=30)
        run = site.advance(run)
    assert not node(site).is_draining, "the other run drains it again"
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "drain"]


def test_a_persons_reboot_that_slurm_does_not_send_is_not_cancelled_past_the_time_of_a_boot() -> (
    None
):
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(days=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.human_reboot("gn001", user="root")
    run = site.advance(run)
    assert run.plan[run.step]["step"] == "wait_for_boot"
    site.now += site.world.policy.boot_time + timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == {"DRAIN", "REBOOT_REQUESTED"}
    assert run.state == RunState.FAILED
    assert "Kintsugi does not cancel it" in run.outcome


def test_a_reboot_that_a_person_asks_for_once_they_have_resumed_the_node_is_not_cancelled() -> None:
    """Their resume took ours away, and nobody looked in between."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "26.05.5"})
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    drains(site)
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert "still stands" in run.outcome
    site.slurm.human_resume("gn001")
    site.slurm.human_reboot("gn001", user="root")
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert node(site).flags == {"REBOOT_REQUESTED"}
    assert run.wake_at is None


@pytest.mark.parametrize("by_slurm", [True, False])
def test_our_reboot_is_known_by_what_stands_in_the_place_of_our_reason(by_slurm: bool) -> None:
    """24.11 without accounts keeps it when a person takes the drain away: Slurm's own, or ours with
    what they added."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "24.11.5"})
    site.slurm.keeps_accounts = False
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.send_reboots_after(timedelta(hours=1))
    text = "gres/gpu count reported lower than configured (7 < 8)"
    if by_slurm:
        site.slurm.slurm_drain("gn001", text)
    run = site.advance(run)
    if not by_slurm:
        text = f"{node(site).reason} -- bob: hands inside"
        site.slurm.update("gn001", "", text, user="bob")
    services.abort(run.pk, actor="eve", now=site.now)
    site.slurm.update("gn001", "UNDRAIN", "")
    assert (node(site).flags, node(site).reason) == ({"REBOOT_REQUESTED"}, text)
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert node(site).flags == frozenset()


def test_a_reboot_that_a_person_asks_for_after_ours_was_cancelled_is_theirs() -> None:
    """Slurm had not sent ours within the time of a boot, and the run has ended with that."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "26.05.5"})
    site.slurm.send_reboots_after(timedelta(days=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.now += site.world.policy.boot_time + timedelta(minutes=1)
    run = site.advance(run)
    assert run.state == RunState.NOT_CURED
    assert node(site).flags == {"DRAIN"}
    site.slurm.human_reboot("gn001", user="root")
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    site.advance(run)
    assert node(site).flags == {"REBOOT_REQUESTED"}


def test_a_reboot_that_a_person_asks_for_after_ours_went_with_our_drain_is_theirs() -> None:
    """Their resume took ours away, and is not to be told from what a slurmctld forgets that began
    anew just then: the node is drained again."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "26.05.5", "ReturnToService": "2"})
    site.slurm.keeps_accounts = False
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.now += timedelta(seconds=5)
    site.slurm.human_resume("gn001")
    site.slurm.configure("BOOT_TIME", f"{site.now:%Y-%m-%dT%H:%M:%S}")
    run = site.advance(run, times=2)
    assert (run.state, node(site).flags) == (RunState.RUNNING, {"DRAIN"})
    site.now += timedelta(seconds=5)
    run = site.advance(run)
    site.slurm.human_reboot("gn001")
    site.now += timedelta(seconds=5)
    site.slurm.update("gn001", "UNDRAIN", "")
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert node(site).flags == {"REBOOT_REQUESTED"}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_reboot_that_slurm_shows_as_ours_is_cancelled_and_whoever_wants_it_is_told_to_ask_again(
    is_resumed: bool,
) -> None:
    """Under 24.11 without accounts a reboot that a person asks for once they have resumed the node,
    which takes ours back, shows just as ours does once they have taken the drain alone away."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "24.11.5"})
    site.slurm.keeps_accounts = False
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    reason = node(site).reason
    if is_resumed:
        site.slurm.human_resume("gn001")
        assert node(site).flags == frozenset()
        site.slurm.human_reboot("gn001")
    else:
        site.slurm.update("gn001", "UNDRAIN", "")
    assert (node(site).flags, node(site).reason) == ({"REBOOT_REQUESTED"}, reason)
    site.now += timedelta(seconds=5)
    run = site.advance(run)
    assert (run.state, node(site).flags) == (RunState.ABORTED, frozenset())
    told = " ".join(site.story(run.incident))
    assert "gn001 runs on. Whoever has asked for one since they put it back" in told
    assert "asks again: scontrol reboot gn001" in told


def test_a_reboot_asked_for_after_a_paused_run_has_seen_the_resume_is_theirs() -> None:
    site = Site(nodes=2, slurm={"SLURM_VERSION": "24.11.5"})
    site.slurm.keeps_accounts = False
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    services.pause(run.pk, actor="bob", now=site.now)
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    site.slurm.human_reboot("gn001")
    site.now += timedelta(minutes=1)
    services.resume(run.pk, actor="bob", now=site.now)
    run = site.advance(run)
    assert (run.state, node(site).flags) == (RunState.ABORTED, {"REBOOT_REQUESTED"})


def test_a_run_that_a_person_ends_just_before_its_reboot_counts_no_later_one_as_its_own() -> None:
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )

    def abort(point: str) -> None:
        if point == "attempted":
            services.abort(run.pk, actor="bob", now=site.now)

    turn.advance(run.pk, now=site.now, world=site.world, at=abort)
    run.refresh_from_db()
    assert (run.state, node(site).flags) == (RunState.ABORTED, {"DRAIN"})
    assert "reboot_at" not in run.facts


def test_our_reboot_does_not_hit_whoever_takes_the_drain_away_once_the_incident_is_closed() -> None:
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    incidents.act(
        run.incident_id, Trigger.MARK_FALSE_POSITIVE, actor="bob", note="ours", now=site.now
    )
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert run.state == RunState.WITHDRAWN
    assert node(site).flags == {"DRAIN", "REBOOT_REQUESTED"}
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert node(site).flags == frozenset()


@pytest.mark.parametrize("state", ["UNDRAIN", "RESUME"])
def test_a_person_who_takes_the_drain_away_before_our_reboot_was_sent_is_not_taken_for_slurm(
    state: str,
) -> None:
    """With ReturnToService=2 an older Slurm takes a node back past ResumeTimeout, which begins when
    the reboot was sent. A RESUME takes the reboot away with the drain."""
    settings = {
        "SLURM_VERSION": "22.05.8",
        "ReturnToService": "2",
        "ResumeTimeout": "90 sec",
    }
    site = Site(nodes=2, slurm=settings)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.now += timedelta(minutes=2)
    run = site.advance(run)
    site.slurm.update("gn001", state, "")
    site.now += timedelta(seconds=10)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert node(site).flags == frozenset()


def test_a_persons_resume_is_not_taken_for_slurms_once_it_has_given_the_boot_up() -> None:
    """It has dropped our drain then, and that was put back: it drops it no second time."""
    settings = {
        "SLURM_VERSION": "22.05.8",
        "ReturnToService": "2",
        "ResumeTimeout": "90 sec",
    }
    site = Site(nodes=2, slurm=settings)
    site.slurm.hung.add("gn001")
    run = site.play(
        site.begin(site.lose_gpu()),
        until=lambda run: "held_at" in run.facts,
        limit=timedelta(minutes=3),
    )
    run = site.advance(run)
    assert node(site).is_draining
    assert run.plan[run.step]["step"] == "wait_for_boot"
    site.slurm.human_resume("gn001")
    site.now += timedelta(seconds=10)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert not node(site).is_draining


@pytest.mark.parametrize("act", ACTS)
def test_no_act_is_made_on_a_node_that_has_changed_since_it_was_seen(act: str) -> None:
    site = Site(nodes=2)
    seen = node(site)
    drains(site)
    words = ("kintsugi:1 x: y",) if act in ("drain", "cancel_reboot") else ()
    with pytest.raises(NodeChanged, match="nothing was done to it"):
        getattr(site.slurm, act)("gn001", *words, as_seen=seen)
    assert node(site).reason == THEIRS


def test_a_lease_that_is_lost_while_a_reboot_is_cancelled_leaves_no_node_undrained() -> None:
    """A cancel takes the drain away: what comes after it is part of the same act."""
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    site.slurm.drain("gn001", "kintsugi:1 x: y")
    site.slurm.reboot("gn001")
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise LateWorker

    shell = CommandShell(site.slurm)
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    client.with_check(check).cancel_reboot("gn001", "kintsugi:1 x: y", as_seen=node(site))
    assert node(site).flags == {"DRAIN"}
    assert len(calls) == 1


def test_a_reboot_is_not_withdrawn_from_under_a_drain() -> None:
    site = Site(nodes=2)
    drains(site)
    with pytest.raises(SlurmRefusal):
        site.slurm.withdraw_reboot("gn001")


def test_every_act_on_a_node_names_the_state_that_it_was_decided_on() -> None:
    """Whatever is not given `as_seen` overwrites what a person may have said a moment before."""
    calls = [
        (path.name, call, call.func)
        for path in sorted(Path(runbooks.__file__).parent.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    ]
    acts = [
        (name, call)
        for name, call, verb in calls
        if verb.attr in ACTS and "slurm" in ast.unparse(verb.value)
    ]
    assert len(acts) >= 6
    assert [
        name for name, call in acts if "as_seen" not in {keyword.arg for keyword in call.keywords}
    ] == []


class Killed(BaseException):
    """The worker is gone."""


def test_a_reboot_that_a_person_asks_for_where_a_worker_died_before_it_asked_for_ours_is_theirs() -> (
    None
):
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )

    def dies(point: str) -> None:
        if point == "attempted":
            raise Killed

    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=dies)
    site.slurm.human_resume("gn001")
    site.slurm.human_reboot("gn001")
    for _ in range(3):
        site.now += timedelta(minutes=1)
        run = site.advance(run)
    assert node(site).flags == {"REBOOT_REQUESTED"}
    assert "Somebody has asked Slurm to reboot gn001 since" in run.outcome
