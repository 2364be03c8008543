"""A person drains, or drains again, between the client's last look and its update: what Slurm's
accounts say of it is put back, and the run stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.detector import Output, Target
from fixtures.memory_slurm_commands import CommandShell
from incidents import services as incidents
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.engine import turn
from runbooks.lease.lease import LEASE
from runbooks.models import Run, RunState
from runbooks.slurm import ownership
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.ownership import Owner
from tests.runbooks.site import CLUSTER, Site

pytestmark = pytest.mark.django_db
THEIRS = "bob: tray out, hands inside"


class Meanwhile(CommandShell):
    """Lets people act right before the first `scontrol update`s, once the client has looked."""

    def __init__(self, site: Site, word: str, *acts: Callable[[], None]) -> None:
        super().__init__(site.slurm)
        self._word, self._acts, self.times = word, acts, 0

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        is_awaited = "update" in argv and (self.times > 0 or self._word in argv)
        if is_awaited and self.times < len(self._acts):
            self.times += 1
            self._acts[self.times - 1]()
        return super().run(target, argv, timeout)


def play(word: str, *, seconds: int, accounts: bool = True) -> tuple[Site, Run]:
    """A whole run; bob drains right before our update of that kind, which slurmctld takes so many
    seconds later."""
    site = Site(nodes=2)
    site.slurm.keeps_accounts = accounts

    def person() -> None:
        site.slurm.human_drain("gn001", THEIRS)
        site.now += timedelta(seconds=seconds)

    shell = Meanwhile(site, word, person)
    run = play_on(site, shell)
    assert shell.times == 1
    return site, run


def play_on(
    site: Site,
    shell: CommandShell,
    *,
    run: Run | None = None,
    limit: timedelta = timedelta(minutes=10),
) -> Run:
    """A whole run through that client, or the rest of `run`, and what is looked at once more after
    it."""
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.play(run or site.begin(site.lose_gpu()), limit=limit)
    for _ in range(6):
        if run.wake_at is not None:
            site.now = max(site.now, run.wake_at)
            run = site.advance(run)
    return run


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def test_a_drain_that_ours_has_written_over_is_put_back_with_its_words_and_the_run_stops() -> None:
    site, run = play("State=DRAIN", seconds=2)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert run.state == RunState.ABORTED
    assert acts(site) == ["drain", "drain"], "ours, and theirs again: no reboot, no resume"
    assert node.is_draining
    assert node.reason.startswith(f"{THEIRS} (by bob, 2025-01-15 03:00:00 UTC")
    assert "bob had drained gn001" in run.outcome
    assert THEIRS in run.outcome
    assert any(THEIRS in line for line in site.story(run.incident))


def test_a_drain_within_the_same_second_is_known_by_its_user_though_its_words_are_lost() -> None:
    site, run = play("State=DRAIN", seconds=0)
    assert run.state == RunState.ABORTED
    assert acts(site) == ["drain", "drain"]
    assert "ask bob" in site.slurm.read_nodes(("gn001",))["gn001"].reason
    assert "with words that are lost" in run.outcome


@pytest.mark.parametrize("seconds", [0, 2])
def test_a_drain_that_our_resume_has_undone_is_put_back(seconds: int) -> None:
    site, run = play("State=RESUME", seconds=seconds)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert acts(site) == ["drain", "reboot", "resume", "drain"]
    assert node.is_draining
    assert node.reason.startswith(THEIRS)
    run.incident.refresh_from_db()
    assert "See whether gn001 is to stay out" in run.incident.needs_human
    assert run.wake_at is None


class AfterResume(Meanwhile):
    """Lets a person drain right before our resume, and something else happen right after it."""

    def __init__(self, site: Site, before: Callable[[], None], after: Callable[[], None]) -> None:
        super().__init__(site, "State=RESUME", before)
        self._after = after

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        output = super().run(target, argv, timeout)
        if "State=RESUME" in argv:
            self._after()
        return output


def play_after_resume(after: Callable[[Site], None]) -> Site:
    site = Site(nodes=2)

    def person() -> None:
        site.slurm.human_drain("gn001", THEIRS)
        site.now += timedelta(seconds=2)

    shell = AfterResume(site, person, lambda: after(site))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.begin(site.lose_gpu())
    for _ in range(60):
        site.now += timedelta(seconds=5)
        run = site.advance(run)
    return site


def test_a_drain_that_our_resume_has_undone_is_put_back_on_a_node_that_has_crashed_since() -> None:
    site = play_after_resume(lambda site: site.slurm.switch_off("gn001"))
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert (node.base, node.is_draining) == ("DOWN", True)
    assert node.reason.startswith(THEIRS)


def test_a_drain_that_our_resume_has_undone_is_put_back_though_another_asks_for_a_reboot() -> None:
    site = play_after_resume(lambda site: site.slurm.human_reboot("gn001"))
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert node.is_draining
    assert node.reason.startswith(THEIRS)
    assert "cancel_reboot" not in acts(site), "theirs"


class Afterwards(CommandShell):
    """Lets a person act right after our drain, before the client reads it back."""

    def __init__(self, site: Site, act: Callable[[], None]) -> None:
        super().__init__(site.slurm)
        self._act: Callable[[], None] | None = act

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        output = super().run(target, argv, timeout)
        if self._act is not None and "State=DRAIN" in argv:
            act, self._act = self._act, None
            act()
        return output


def test_what_a_person_adds_to_our_reason_before_it_is_read_back_is_theirs() -> None:
    site = Site(nodes=2)

    def note() -> None:
        reason = site.slurm.read_nodes(("gn001",))["gn001"].reason
        site.slurm.update("gn001", "", f"{reason} -- {THEIRS}", user="bob")

    run = play_on(site, Afterwards(site, note))
    assert acts(site) == ["drain"]
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.endswith(f" -- {THEIRS}")
    assert "Kintsugi leaves it alone while that stands" in run.waiting_for


def test_what_is_put_back_is_a_persons_for_every_later_run() -> None:
    site, run = play("State=DRAIN", seconds=2)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    known = ownership.load_written(run.facts)
    assert ownership.get_owner(node, run.incident_id, known) is Owner.PERSON


def test_without_accounts_the_window_remains() -> None:
    """docs/runbooks.md says so."""
    site, run = play("State=DRAIN", seconds=2, accounts=False)
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "resume"]


def test_a_drain_that_was_over_before_ours_is_nobodys_word() -> None:
    site = Site(nodes=2)
    site.slurm.human_drain("gn001", THEIRS)
    site.now += timedelta(seconds=5)
    site.slurm.human_resume("gn001")
    site.now += timedelta(seconds=5)
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "resume"]


def test_a_drain_that_its_person_took_back_within_the_second_of_ours_is_nobodys_word() -> None:
    """slurmdbd opens its row of that second again (as_mysql_node_down): ours is not told."""
    site = Site(nodes=2)

    def person() -> None:
        site.slurm.human_drain("gn001", THEIRS)
        site.slurm.human_resume("gn001")

    run = play_on(site, Meanwhile(site, "State=DRAIN", person))
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "resume"]


def drains_once_more(site: Site, words: str) -> Callable[[], None]:
    """A person's drain, seconds apart from what comes before and after it."""

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain("gn001", words)
        site.now += timedelta(seconds=2)

    return person


@pytest.mark.parametrize("word", ["State=DRAIN", "State=RESUME"])
def test_whoever_speaks_while_a_persons_words_are_put_back_has_theirs_put_back_too(
    word: str,
) -> None:
    site = Site(nodes=2)
    second = "eve: and mine, too"
    shell = Meanwhile(site, word, drains_once_more(site, THEIRS), drains_once_more(site, second))
    play_on(site, shell)
    assert shell.times == 2
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(second)


def test_a_drain_that_our_resume_has_undone_is_put_back_though_slurm_had_replaced_our_reason() -> (
    None
):
    """As 23.02 and later do where a drained node registers with fewer GPUs."""
    site = Site(nodes=2)

    def both() -> None:
        site.now += timedelta(seconds=2)
        fewer = "gres/gpu count reported lower than configured (7 < 8)"
        site.slurm.slurm_drain("gn001", fewer)
        drains_once_more(site, THEIRS)()

    play_on(site, Meanwhile(site, "State=RESUME", both))
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)


def test_a_drain_that_our_resume_has_undone_is_put_back_though_slurm_had_appended_to_ours() -> None:
    """Before a worker kept our reason; the accounts hold it without what is appended."""
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=dies_after_its_act)
    site.slurm.human_reboot("gn001")
    site.now += timedelta(minutes=2)
    run = site.advance(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.endswith(" : reboot issued")
    incidents.act(run.incident_id, Trigger.RESOLVE, actor="bob", note="reseated", now=site.now)

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain("gn001", THEIRS)
        site.now += timedelta(seconds=2)

    shell = Meanwhile(site, "State=RESUME", person)
    play_on(site, shell, run=run)
    assert shell.times == 1
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)


def test_a_run_that_is_aborted_right_after_its_drain_looks_all_the_same() -> None:
    site = Site(nodes=2)
    shell = Meanwhile(site, "State=DRAIN", drains_once_more(site, THEIRS))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.advance(site.begin(site.lose_gpu()))
    services.abort(run.pk, actor="eve", now=site.now)
    run.refresh_from_db()
    assert run.wake_at is not None
    site.now = max(site.now, run.wake_at)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)


class Killed(BaseException):
    """The worker is gone."""


def abort(site: Site, run: Run) -> None:
    services.abort(run.pk, actor="eve", now=site.now)


def dies_after_its_act(point: str) -> None:
    if point == "acted":
        raise Killed


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_drain_that_comes_after_its_run_was_aborted_is_told_and_puts_a_persons_words_back(
    is_killed: bool,
) -> None:
    site = Site(nodes=2)
    site.slurm.slurm_drain("gn001", "Kill task failed")  # what ours takes over is no person's word
    site.now += timedelta(seconds=2)
    run = site.begin(site.lose_gpu())

    def people() -> None:
        abort(site, run)
        drains_once_more(site, THEIRS)()

    shell = Meanwhile(site, "State=DRAIN", people)
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    point = dies_after_its_act if is_killed else lambda point: None
    with contextlib.suppress(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=point)
    site.now += timedelta(seconds=10)
    run = site.advance(run)
    told = site.story(run.incident)
    assert any("This was under way when run" in line and "is drained" in line for line in told)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert acts(site) == ["drain", "drain"]
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_drain_that_comes_after_its_run_was_aborted_leaves_the_words_that_it_took_over(
    is_killed: bool,
) -> None:
    """An abort, and nobody's word: the node stays ours, and a person is asked to resume it."""
    site = Site(nodes=2)
    site.slurm.slurm_drain("gn001", "NHC: check_fs_mount")
    site.now += timedelta(seconds=2)
    site.slurm.slurm_drain("gn001", "Kill task failed")
    site.now += timedelta(seconds=2)
    run = site.begin(site.lose_gpu())
    shell = Meanwhile(site, "State=DRAIN", lambda: abort(site, run))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    point = dies_after_its_act if is_killed else lambda point: None
    with contextlib.suppress(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=point)
    for _ in range(3):
        site.now += timedelta(seconds=10)
        run = site.advance(run)
    assert acts(site) == ["drain"]
    run.incident.refresh_from_db()
    assert run.incident.out_of_service_at is not None, "the pages say what Slurm says"
    assert run.incident.restored_at is None
    run.incident.refresh_from_db()
    assert run.incident.needs_human == "Resume gn001 when it is well, and resolve the incident."


def test_words_that_could_not_be_put_back_at_once_are_put_back_later() -> None:
    site = Site(nodes=2)

    class Deaf(Meanwhile):
        """slurmctld answers nothing when the words are put back for the first time."""

        is_deaf = True

        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            is_put_back = any("put back by Kintsugi" in word for word in argv)
            if is_put_back and self.is_deaf:
                self.is_deaf = False
                return Output(1, b"", b"Unable to contact slurm controller", timedelta(0))
            return super().run(target, argv, timeout)

    shell = Deaf(site, "State=DRAIN", drains_once_more(site, THEIRS))
    play_on(site, shell)
    assert not shell.is_deaf
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)


def test_a_silent_slurmdbd_holds_a_run_up_for_seconds_only() -> None:
    site = Site(nodes=2)

    class Silent(CommandShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            if "sacctmgr" in argv:
                words = b"sacctmgr: error: Sending PersistInit msg: Connection refused"
                return Output(1, b"", words, timedelta(0))
            return super().run(target, argv, timeout)

    client = ScontrolWriter(Silent(site.slurm), parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "resume"]


def test_a_node_that_a_person_resumed_after_the_drain_of_a_worker_that_died_is_left_in_service() -> (
    None
):
    """A resume keeps the reason there, and tells of the drain that nobody has lived to keep."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": "24.11.5"})
    site.slurm.keeps_accounts = False
    run = site.begin(site.lose_gpu())
    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=dies_after_its_act)
    site.slurm.human_resume("gn001")
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith("kintsugi:")
    site.now += LEASE + timedelta(seconds=1)
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert "was resumed by a person since" in run.outcome
    assert acts(site) == ["drain"]
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out


def test_the_accounts_tell_of_the_drain_of_a_worker_that_died_and_of_the_resume_after_it() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=dies_after_its_act)
    site.now += timedelta(seconds=3)
    site.slurm.human_resume("gn001")
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason == ""
    site.now += LEASE + timedelta(seconds=1)
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert "was resumed by a person since" in run.outcome
    assert acts(site) == ["drain"]


def test_a_worker_that_stood_still_before_its_act_does_not_do_it_once_another_has() -> None:
    """In between a person has resumed the node: it looks as it did before the first drain."""
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    def stand_still(point: str) -> None:
        if point == "attempted" and not site.slurm.journal:
            site.now += LEASE + timedelta(seconds=1)
            turn.advance(run.pk, now=site.now, world=site.world)
            site.now += timedelta(seconds=2)
            site.slurm.human_resume("gn001")

    turn.advance(run.pk, now=site.now, world=site.world, at=stand_still)
    assert acts(site) == ["drain"]
    site.now += timedelta(minutes=1)
    run = site.play(run)
    assert run.state == RunState.ABORTED
    assert "was resumed by someone else" in run.outcome
    assert acts(site) == ["drain"]


def test_a_drain_that_a_person_takes_back_within_the_second_of_ours_was_theirs_for_long() -> None:
    """The accounts end it when ours begins, as if ours had written over it: but it was seen gone."""
    site = Site(nodes=2)
    site.slurm.human_drain("gn001", THEIRS)
    site.now += timedelta(minutes=1)
    site.slurm.update("gn001", "UNDRAIN", "")
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "resume"]


def test_the_drain_of_a_later_run_of_ours_is_not_put_back_as_a_persons() -> None:
    """It came within the second in which the run before gave the node back, and a person has taken
    it away since."""
    site = Site(nodes=2)
    run = site.play(
        site.begin(site.lose_gpu()),
        until=lambda run: run.state == RunState.SUCCEEDED,
        limit=timedelta(minutes=10),
    )
    assert run.wake_at is not None
    later = Run.objects.get(pk=run.pk)
    later.pk, later.fence = None, 0
    reason = f"kintsugi:{run.incident_id}/later gpu.xid.79: GPU has fallen off the bus"
    later.facts = {"written": [{"reason": reason, "by": "root", "at": ""}]}
    later.save(force_insert=True)
    site.slurm.drain("gn001", reason)
    site.now += timedelta(seconds=2)
    site.slurm.update("gn001", "UNDRAIN", "")
    site.now = max(site.now, run.wake_at)
    site.advance(run)
    assert acts(site) == ["drain", "reboot", "resume", "drain"]
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


class AfterCancel(CommandShell):
    """Lets a person act once, so many programs after our `scontrol cancel_reboot`."""

    def __init__(self, site: Site, programs: int, act: Callable[[], None]) -> None:
        super().__init__(site.slurm)
        self._act, self._programs = act, programs
        self._since: int | None = None
        self.has_acted = False

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if self._since is not None:
            self._since += 1
            if self._since == self._programs:
                self.has_acted = True
                self._act()
        if "cancel_reboot" in argv:
            self._since = 0
        return super().run(target, argv, timeout)


@pytest.mark.parametrize("programs", [1, 2, 3])
@pytest.mark.parametrize("version", ["22.05.8", "26.05.5"])
def test_a_drain_that_comes_while_our_reboot_is_cancelled_stands_in_the_end(
    version: str, programs: int
) -> None:
    """Whichever program comes next: a look, the client's look before its drain, or that drain."""
    site = Site(nodes=2, slurm={"SLURM_VERSION": version})
    site.slurm.send_reboots_after(timedelta(hours=9))
    policy = replace(site.world.policy, boot_time=timedelta(minutes=2))
    site.world = replace(site.world, policy=policy)

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain("gn001", THEIRS)
        site.now += timedelta(seconds=2)

    shell = AfterCancel(site, programs, person)
    play_on(site, shell)
    assert "reboot" in acts(site)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert node.is_draining
    assert node.reason.startswith(THEIRS)


def test_a_drain_that_comes_while_our_reboot_is_cancelled_stands_though_the_worker_dies() -> None:
    """Before it has kept that it had drained the node anew: the next one sees that it was."""
    site = Site(nodes=2)
    site.slurm.send_reboots_after(timedelta(hours=9))
    policy = replace(site.world.policy, boot_time=timedelta(minutes=2))
    site.world = replace(site.world, policy=policy)
    shell = AfterCancel(site, 3, drains_once_more(site, THEIRS))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.begin(site.lose_gpu())
    died = 0

    def reach(point: str) -> None:
        nonlocal died
        if point == "acted" and shell.has_acted and not died:
            died += 1
            raise Killed

    for _ in range(120):
        site.now += timedelta(seconds=5)
        with contextlib.suppress(Killed):
            turn.advance(run.pk, now=site.now, world=site.world, at=reach)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert died == 1
    assert node.is_draining
    assert node.reason.startswith(THEIRS)


def test_a_drain_that_a_worker_that_died_has_written_over_is_put_back_though_nobody_wants_the_run() -> (
    None
):
    """The incident is a false alarm by then: what ours had written over comes before giving back."""
    site = Site(nodes=2)
    shell = Meanwhile(site, "State=DRAIN", drains_once_more(site, THEIRS))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.begin(site.lose_gpu())
    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=dies_after_its_act)
    incidents.act(
        run.incident_id, Trigger.MARK_FALSE_POSITIVE, actor="eve", note="ours", now=site.now
    )
    for _ in range(12):
        site.now += timedelta(seconds=6)
        run = site.advance(run)
    node = site.slurm.read_nodes(("gn001",))["gn001"]
    assert run.finished_at is not None
    assert node.is_draining
    assert node.reason.startswith(THEIRS)


@pytest.mark.parametrize("dies", [False, True])
def test_a_drain_that_ours_has_written_over_is_put_back_though_the_run_is_paused(
    dies: bool,
) -> None:
    site = Site(nodes=2)
    shell = Meanwhile(site, "State=DRAIN", drains_once_more(site, THEIRS))
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    site.world = replace(site.world, slurm=client, writer=client)
    run = site.begin(site.lose_gpu())
    if dies:
        with pytest.raises(Killed):
            turn.advance(run.pk, now=site.now, world=site.world, at=dies_after_its_act)
    else:
        site.advance(run)
    services.pause(run.pk, actor="eve", now=site.now)
    for _ in range(6):
        site.now += timedelta(seconds=6)
        run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert acts(site) == ["drain", "drain"]
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(THEIRS)
