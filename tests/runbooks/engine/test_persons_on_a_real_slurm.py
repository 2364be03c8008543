"""A person drains, annotates, fails, resumes or reboots the node while a turn is under way, on a
real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target
from detectors.transports.ssh import LocalShell
from fixtures.cluster.slurm_daemons import SlurmDaemons
from runbooks.engine import turn
from runbooks.engine.turn import Point
from runbooks.models import Run, RunState
from runbooks.slurm.client import ScontrolWriter, parse_controller
from tests.runbooks.conftest import CLUSTER, boots, reboots_asked
from tests.runbooks.real_site import RealSite
from tests.runbooks.slurm.test_real_slurm_states import a_run, a_slurm, look
from tests.services.patience import deadline_in
from tests.services.slurmdbd import PROGRAMS, Slurmdbd

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
NODE = "gn001"
THEIRS = "bob: tray out, hands inside, do not touch"


def update(slurm: SlurmDaemons, *words: str) -> None:
    slurm.command("scontrol", "update", f"NodeName={NODE}", *words)


def reboot(slurm: SlurmDaemons) -> None:
    slurm.command("scontrol", "reboot", NODE)


def at(run: Run, step: str, point: str, act: Callable[[], None]) -> Point:
    """The person acts once, at that line of a turn of that step."""
    done: list[str] = []

    def reached(now_at: str) -> None:
        row = Run.objects.get(pk=run.pk)
        if now_at == point and row.plan[row.step]["step"] == step and not done:
            done.append(now_at)
            act()

    return reached


def until_left_alone(site: RealSite, run: Run, person: Point = lambda point: None) -> None:
    """Turn after turn, until the run waits for the person."""
    deadline = deadline_in(60)
    while (
        "Kintsugi leaves it alone while that stands" not in Run.objects.get(pk=run.pk).waiting_for
    ):
        assert time.monotonic() < deadline, Run.objects.get(pk=run.pk).waiting_for
        Run.objects.filter(pk=run.pk).update(wake_at=site.now())
        turn.advance(run.pk, now=site.now(), world=site.world, at=person)


def test_a_drain_by_a_person_between_our_look_and_our_drain_stands(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, incident = a_run(slurm)
        person = at(
            run, "drain", "attempted", lambda: update(slurm, "State=DRAIN", f"Reason={THEIRS}")
        )
        until_left_alone(site, run, person)
        assert (look(slurm).reason, look(slurm).is_draining) == (THEIRS, True)
        assert (boots(slurm, NODE), reboots_asked(slurm, NODE)) == (0, 0)
        assert any(THEIRS in line for line in incident.timeline.values_list("text", flat=True))


def test_a_drain_by_a_person_just_before_our_resume_stands(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        person = at(
            run, "resume", "attempted", lambda: update(slurm, "State=DRAIN", f"Reason={THEIRS}")
        )
        run = site.play(run.pk, at=person)
        assert run.state == RunState.ABORTED
        assert (look(slurm).reason, look(slurm).is_draining) == (THEIRS, True)


def test_a_note_that_a_person_adds_to_our_reason_stops_the_run(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)

        def note() -> None:
            update(slurm, f"Reason={look(slurm).reason} -- bob: RMA ordered, KEEP OUT")

        run = site.play(run.pk, at=at(run, "confirm_on_node", "leased", note))
        assert run.state == RunState.ABORTED
        assert look(slurm).reason.endswith("-- bob: RMA ordered, KEEP OUT")
        assert (look(slurm).is_draining, reboots_asked(slurm, NODE)) == (True, 0)


def test_a_node_that_a_person_has_set_to_fail_is_left_alone(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        update(slurm, "State=FAIL", f"Reason={THEIRS}")
        assert look(slurm).is_failing
        site, run, _ = a_run(slurm)
        until_left_alone(site, run)
        assert (look(slurm).reason, look(slurm).is_failing) == (THEIRS, True)


def test_fail_in_the_place_of_our_drain_stops_the_run(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        person = at(
            run,
            "confirm_on_node",
            "leased",
            lambda: update(slurm, "State=FAIL", f"Reason={THEIRS}"),
        )
        run = site.play(run.pk, at=person)
        assert run.state == RunState.ABORTED
        assert "was set to FAIL by root" in run.outcome
        assert (look(slurm).reason, look(slurm).is_failing) == (THEIRS, True)


def test_a_reboot_that_a_person_asks_for_just_before_our_resume_is_made_and_the_node_verified_anew(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path, boot_takes=2) as slurm:
        site, run, incident = a_run(slurm)
        person = at(run, "resume", "attempted", lambda: reboot(slurm))
        run = site.play(run.pk, at=person)
        story = list(incident.timeline.values_list("text", flat=True))
        assert run.state == RunState.SUCCEEDED, story
        assert (boots(slurm, NODE), reboots_asked(slurm, NODE)) == (2, 2)
        assert sum("gn001 is verified" in line for line in story) == 2, story
        slurm.wait_until(lambda: not look(slurm).is_out, what="it serves again")


class Meanwhile(LocalShell):
    """Runs programs, and lets a person act right before that act (the last words of its command
    line), after the client has looked."""

    def __init__(self, act: Callable[[], None], last: str) -> None:
        super().__init__()
        self._act, self._last = act, last
        self._has_acted = False

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if self._last in " ".join(argv) and not self._has_acted:
            self._has_acted = True
            self._act()
        return super().run(target, argv, timeout)


def busy(slurm: SlurmDaemons) -> None:
    """A person resumes the node, and a job starts there."""
    update(slurm, "State=RESUME")
    slurm.command("sbatch", f"--nodelist={NODE}", "--output=/dev/null", "--wrap=sleep 120")
    slurm.wait_until(
        lambda: NODE in slurm.command("squeue", "-h", "-t", "R", "-o", "%N"), what="the job runs"
    )


def meanwhile(
    site: RealSite, slurm: SlurmDaemons, act: Callable[[], None], last: str = f"reboot {NODE}"
) -> None:
    client = ScontrolWriter(
        Meanwhile(act, last), parse_controller("local"), cluster_name=CLUSTER, conf=str(slurm.conf)
    )
    site.world = replace(site.world, slurm=client, writer=client)


def test_a_persons_resume_between_our_turns_stands_though_slurm_keeps_our_reason(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        update(slurm, "State=RESUME")
        run = site.play(run.pk)
        assert run.state == RunState.ABORTED
        assert "gn001 was resumed by someone else" in run.outcome
        assert (look(slurm).is_draining, reboots_asked(slurm, NODE)) == (False, 0)


def test_a_node_that_a_person_has_resumed_before_our_reboot_is_not_rebooted(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        run = site.play(run.pk, at=at(run, "reboot", "attempted", lambda: busy(slurm)))
        assert run.state == RunState.ABORTED
        assert reboots_asked(slurm, NODE) == 0
        assert look(slurm).flags == frozenset()


def test_a_reboot_of_ours_that_slurm_has_not_sent_is_cancelled_when_a_person_was_quicker(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        meanwhile(site, slurm, lambda: busy(slurm))
        run = site.play(run.pk)
        assert run.state == RunState.ABORTED
        assert "is cancelled: gn001 runs on" in run.outcome
        assert (look(slurm).is_rebooting, look(slurm).is_draining) == (False, False)
        assert (boots(slurm, NODE), reboots_asked(slurm, NODE)) == (0, 1)
        assert NODE in slurm.command("squeue", "-h", "-t", "R", "-o", "%N")


def test_a_reboot_of_ours_is_not_cancelled_from_under_a_persons_drain_and_they_are_told(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)

        def act() -> None:
            busy(slurm)
            update(slurm, "State=DRAIN", f"Reason={THEIRS}")

        meanwhile(site, slurm, act)
        run = site.play(run.pk)
        assert run.state == RunState.ABORTED
        assert (look(slurm).reason, look(slurm).is_draining, look(slurm).is_rebooting) == (
            THEIRS,
            True,
            True,
        )
        assert "still stands" in run.outcome
        slurm.command("scontrol", "cancel_reboot", NODE)
        assert not look(slurm).is_draining, "which is why Kintsugi does not do that"


@pytest.fixture
def accounts() -> Iterator[Slurmdbd]:
    """Of one test alone: what a person wrote in another would stand there until our first drain."""
    slurmdbd = Slurmdbd()
    try:
        yield slurmdbd.start()
    finally:
        slurmdbd.remove()


def play_until_put_back(site: RealSite, run: Run, slurm: SlurmDaemons) -> Run:
    """To the run's end, and on until the person's words stand on the node again."""
    deadline = deadline_in(120)
    while not (look(slurm).is_draining and look(slurm).reason.startswith(THEIRS)):
        assert time.monotonic() < deadline, Run.objects.get(pk=run.pk).outcome
        Run.objects.filter(pk=run.pk, wake_at__isnull=False).update(wake_at=site.now())
        turn.advance(run.pk, now=site.now(), world=site.world)
    return Run.objects.get(pk=run.pk)


@pytest.mark.needs(*PROGRAMS)
def test_a_drain_that_ours_has_written_over_is_put_back_as_slurmdbd_tells_it(
    tmp_path: Path, accounts: Slurmdbd
) -> None:
    with a_slurm(tmp_path, **accounts.settings) as slurm:
        site, run, _ = a_run(slurm)

        def act() -> None:
            update(slurm, "State=DRAIN", f"Reason={THEIRS}")
            second = int(time.time())
            slurm.wait_until(lambda: int(time.time()) > second, what="another second")

        meanwhile(site, slurm, act, f"NodeName={NODE} State=DRAIN Reason=kintsugi")
        run = site.play(run.pk)
        assert run.state == RunState.ABORTED, run.outcome
        assert THEIRS in run.outcome
        assert look(slurm).is_draining
        assert look(slurm).reason.startswith(f"{THEIRS} (by root, ")
        assert (boots(slurm, NODE), reboots_asked(slurm, NODE)) == (0, 0)


@pytest.mark.needs(*PROGRAMS)
def test_a_drain_that_our_resume_has_undone_is_put_back_as_slurmdbd_tells_it(
    tmp_path: Path, accounts: Slurmdbd
) -> None:
    with a_slurm(tmp_path, **accounts.settings) as slurm:
        site, run, incident = a_run(slurm)
        meanwhile(
            site,
            slurm,
            lambda: update(slurm, "State=DRAIN", f"Reason={THEIRS}"),
            f"NodeName={NODE} State=RESUME",
        )
        run = play_until_put_back(site, run, slurm)
        incident.refresh_from_db()
        assert "See whether gn001 is to stay out" in incident.needs_human
        assert reboots_asked(slurm, NODE) == 1
