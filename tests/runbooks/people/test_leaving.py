"""The way out: runs end, drains of ours are handed to people or given back, and a person's stand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from detectors.detector import Output, Target
from detectors.transports.ssh import LocalShell
from fixtures.memory_slurm_commands import CommandShell
from incidents.inventory import node_tokens
from incidents.models import Node
from kintsugi.clients import wiring
from runbooks import services
from runbooks.engine import turn
from runbooks.models import AuditEntry, Run, RunState, StopSwitch
from runbooks.node import overwritten
from runbooks.node import traces as node_traces
from runbooks.people import leaving
from runbooks.people.leaving import Left
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import NodeState, SlurmRefusal
from runbooks.step import World
from tests.runbooks.node.test_overwritten import Meanwhile
from tests.runbooks.site import CLUSTER, Site
from tests.runbooks.slurm.test_real_slurm_states import a_run, a_slurm, look

NODE = "gn001"
THEIRS = "bob: tray out, hands inside"


class Killed(BaseException):
    """As by SIGKILL: nothing that comes after is done."""


class KilledAfter(CommandShell):
    """Dies right after one `scontrol update` that Slurm has taken."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.slurm)
        self._is_dead = False

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        output = super().run(target, argv, timeout)
        if "update" in argv and not self._is_dead:
            self._is_dead = True
            raise Killed
        return output


def by_commands(site: Site, shell: CommandShell) -> World:
    client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
    return replace(site.world, slurm=client, writer=client)


def drained_site() -> tuple[Site, Run]:
    """A run under way that has drained gn001."""
    site = Site(nodes=3)
    run = site.begin(site.lose_gpu())
    while not state_of(site).is_draining:
        site.advance(run)
    run.refresh_from_db()
    return site, run


def state_of(site: Site, node: str = NODE) -> NodeState:
    return site.slurm.read_nodes((node,))[node]


def leave(site: Site, *give_back: str, world: World | None = None) -> list[Left]:
    def clock() -> datetime:
        site.now += timedelta(seconds=1)
        return site.now

    leaving.stop_everything(actor="ada", now=site.now)
    leaving.end_runs(actor="ada", now=site.now)
    chosen = frozenset(give_back)
    found = leaving.leave_drains(world or site.world, give_back=chosen, actor="ada", clock=clock)
    return list(found)


def told(run: Run) -> list[str]:
    return list(run.incident.timeline.filter(kind="left").values_list("text", flat=True))


@pytest.mark.django_db
def test_a_run_under_way_ends_and_its_drain_becomes_a_persons() -> None:
    site, run = drained_site()
    [left] = leave(site)
    run.refresh_from_db()
    run.incident.refresh_from_db()
    reason = (
        f"left to people by Kintsugi (ada): incident #{run.incident_id},"
        " gpu.xid.79: GPU has fallen off the bus"
    )
    assert (run.state, run.wake_at, run.leased_until) == (RunState.WITHDRAWN, None, None)
    assert (state_of(site).reason, state_of(site).is_draining) == (reason, True)
    assert left.text == f'gn001 stays drained and is handed to people: "{reason}".'
    assert told(run) == [left.text]
    assert "Kintsugi has left it to you, drained" in run.incident.needs_human
    assert StopSwitch.objects.get().reason == leaving.REASON
    phases = AuditEntry.objects.filter(act="leave", node=NODE, run=run.pk)
    assert list(phases.order_by("pk").values_list("phase", flat=True)) == ["done", "begun", "done"]
    assert leave(site) == []
    assert StopSwitch.objects.count() == 1


@pytest.mark.django_db
def test_no_later_run_takes_the_node_that_was_handed_over() -> None:
    site, _run = drained_site()
    leave(site)
    StopSwitch.objects.update(released_at=site.now)
    before = list(site.slurm.journal)
    site.now += timedelta(hours=25)
    site.start()
    for later in Run.objects.unfinished():
        site.play(later, limit=timedelta(minutes=5))
    assert site.slurm.journal == before


@pytest.mark.django_db
def test_a_drain_that_an_ended_run_has_left_is_handed_over_too() -> None:
    site = Site(nodes=3)
    run = site.play(site.begin(site.lose_gpu(is_dead=True)))
    assert run.finished_at is not None
    assert [left.node for left in leave(site)] == [NODE]
    assert state_of(site).reason.startswith("left to people by Kintsugi (ada)")


@pytest.mark.django_db
def test_a_node_is_given_back_where_that_is_asked_for() -> None:
    site, run = drained_site()
    [left] = leave(site, NODE)
    assert left.text == "gn001 is given back, since ada has Kintsugi leave: it takes jobs again."
    assert not state_of(site).is_out
    assert told(run) == [left.text]


@pytest.mark.django_db
def test_a_node_that_a_poll_shows_to_be_ill_is_not_given_back() -> None:
    site, _run = drained_site()
    site.poll()
    [held] = leaving.list_drains(site.world, give_back=frozenset({NODE}), now=site.now)
    assert not held.gives_back
    assert "was last polled as active" in held.objection
    [left] = leave(site, NODE)
    assert "stays drained and is handed to people" in left.text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "reason", [THEIRS, "kintsugi:4711 gpu.lost: another installation's", "OURS -- bob: KEEP OUT"]
)
def test_what_is_not_just_as_a_run_wrote_it_is_a_persons_and_is_not_touched(reason: str) -> None:
    site, _run = drained_site()
    reason = reason.replace("OURS", state_of(site).reason)
    site.slurm.human_drain(NODE, reason)
    before = state_of(site)
    assert leave(site, NODE) == []
    assert state_of(site) == before


@pytest.mark.django_db
@pytest.mark.parametrize("word", ["State=DRAIN", "State=RESUME"])
def test_a_person_in_the_moment_of_the_act_gets_their_words_back(word: str) -> None:
    site, run = drained_site()
    site.slurm.keeps_accounts = True

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain(NODE, THEIRS)
        site.now += timedelta(seconds=2)

    world = by_commands(site, Meanwhile(site, word, person))
    give_back = (NODE,) if word == "State=RESUME" else ()
    [left] = leave(site, *give_back, world=world)
    assert "their drain and their words are put back" in left.text
    assert state_of(site).is_draining
    assert state_of(site).reason.startswith(THEIRS)
    assert told(run) == [left.text]


def overwrite_person() -> tuple[Site, Run]:
    """A run that has just drained gn001 over what bob wrote in that moment."""
    site = Site(nodes=3)
    site.slurm.keeps_accounts = True

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain(NODE, THEIRS)
        site.now += timedelta(seconds=2)

    world = by_commands(site, Meanwhile(site, "State=DRAIN", person))
    run = site.begin(site.lose_gpu())
    while not state_of(site).reason.startswith("kintsugi:"):
        turn.advance(run.pk, now=site.now, world=world)
    assert overwritten.is_unchecked(Run.objects.get(pk=run.pk).facts)
    return site, run


@pytest.mark.django_db
@pytest.mark.parametrize("give_back", [(), (NODE,)])
def test_a_person_whose_words_the_run_itself_wrote_over_just_before_gets_them_back(
    give_back: tuple[str, ...],
) -> None:
    site, run = overwrite_person()
    [left] = leave(site, *give_back)
    assert "their drain and their words are put back" in left.text
    assert state_of(site).is_draining
    assert state_of(site).reason.startswith(THEIRS)
    assert told(run) == [left.text]


@pytest.mark.django_db
def test_a_person_who_speaks_again_in_the_moment_in_which_words_are_put_back_gets_these_back() -> (
    None
):
    site, run = drained_site()
    site.slurm.keeps_accounts = True

    def say(words: str) -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain(NODE, words)
        site.now += timedelta(seconds=2)

    acts = (lambda: say("bob: looking"), lambda: say(THEIRS))
    [left] = leave(site, world=by_commands(site, Meanwhile(site, "State=DRAIN", *acts)))
    assert state_of(site).is_draining
    assert state_of(site).reason.startswith(THEIRS)
    assert told(run) == [left.text]


@pytest.mark.django_db
def test_a_person_in_the_moment_in_which_our_reboot_is_cancelled_gets_their_words_back() -> None:
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )

    def person() -> None:
        site.now += timedelta(seconds=2)
        site.slurm.human_drain(NODE, THEIRS)
        site.now += timedelta(seconds=2)

    [left] = leave(site, world=by_commands(site, Meanwhile(site, "State=DRAIN", person)))
    assert "their drain and their words are put back" in left.text
    assert state_of(site).flags == {"DRAIN"}
    assert state_of(site).reason.startswith(THEIRS)
    assert told(run) == [left.text]


@pytest.mark.django_db
def test_our_reboot_does_not_hit_whoever_has_just_taken_the_drain_away() -> None:
    """No run looks after it once Kintsugi leaves."""
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.slurm.update(NODE, "UNDRAIN", "")
    assert state_of(site).flags == {"REBOOT_REQUESTED"}
    [left] = leave(site)
    assert state_of(site).flags == frozenset()
    assert "is cancelled" in left.text
    assert told(run) == [left.text]
    assert leave(site) == []


@pytest.mark.django_db
def test_whoever_has_taken_a_node_over_is_told_that_our_reboot_of_it_still_stands() -> None:
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    site.slurm.human_drain(NODE, THEIRS)
    [left] = leave(site)
    assert f"scontrol cancel_reboot {NODE}" in left.text
    assert (state_of(site).flags, state_of(site).reason) == ({"DRAIN", "REBOOT_REQUESTED"}, THEIRS)
    assert told(run) == [left.text]
    assert leave(site) == []


@pytest.mark.django_db
def test_a_reboot_that_a_person_asks_for_after_a_leave_is_theirs_at_the_next() -> None:
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    leave(site)
    assert state_of(site).flags == {"DRAIN"}
    site.slurm.human_resume(NODE)
    site.slurm.human_reboot(NODE)
    assert leave(site) == []
    assert state_of(site).flags == {"REBOOT_REQUESTED"}


@pytest.mark.django_db
def test_a_reboot_under_a_drain_that_could_not_be_left_is_cancelled_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )

    def refuse(*args: object, **values: object) -> NodeState:
        raise SlurmRefusal("slurmctld is busy")

    with monkeypatch.context() as patched:
        patched.setattr(site.slurm, "cancel_reboot", refuse)
        [left] = leave(site)
    assert not left.is_done
    assert state_of(site).flags == {"DRAIN", "REBOOT_REQUESTED"}
    [left] = leave(site)
    assert left.is_done
    assert state_of(site).flags == {"DRAIN"}


@pytest.mark.django_db
def test_a_reboot_of_a_person_is_not_taken_for_that_of_a_run_that_ended_before() -> None:
    """Its own had gone with the person's resume."""
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "wait_for_boot"
    )
    services.abort(run.pk, actor="bob", now=site.now)
    site.slurm.human_resume(NODE)
    site.slurm.human_reboot(NODE)
    assert leave(site) == []
    assert state_of(site).flags == {"REBOOT_REQUESTED"}


@pytest.mark.django_db
def test_a_persons_reboot_is_left_standing() -> None:
    site = Site(nodes=3)
    site.slurm.send_reboots_after(timedelta(hours=1))
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.slurm.human_reboot(NODE, user="root")
    site.advance(run)
    leave(site)
    assert state_of(site).flags == {"DRAIN", "REBOOT_REQUESTED"}


@pytest.mark.django_db
@pytest.mark.parametrize("give_back", [(), (NODE,)])
def test_a_leave_that_was_killed_after_its_act_is_told_once_by_the_next(
    give_back: tuple[str, ...],
) -> None:
    site, run = drained_site()
    with pytest.raises(Killed):
        leave(site, *give_back, world=by_commands(site, KilledAfter(site)))
    assert told(run) == []
    acts = [act[0] for act in site.slurm.journal]
    [left] = leave(site, *give_back)
    assert [act[0] for act in site.slurm.journal] == acts, "nothing is done twice"
    assert told(run) == [left.text]
    assert leave(site, *give_back) == []


@pytest.mark.django_db
def test_a_leave_that_was_killed_before_its_act_does_it_the_next_time() -> None:
    site, run = drained_site()

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        leave(site, world=by_commands(site, Meanwhile(site, "State=DRAIN", die)))
    assert state_of(site).reason.startswith("kintsugi:")
    [left] = leave(site)
    assert told(run) == [left.text]
    assert state_of(site).reason.startswith("left to people by Kintsugi")


@pytest.mark.django_db
def test_a_node_that_a_person_took_after_the_kill_is_left_to_them() -> None:
    site, _run = drained_site()
    with pytest.raises(Killed):
        leave(site, world=by_commands(site, KilledAfter(site)))
    site.slurm.human_drain(NODE, THEIRS)
    [left] = leave(site)
    assert left.text == f"gn001 was changed by bob meanwhile, and is left as it is: {THEIRS}"
    assert state_of(site).reason == THEIRS


# The command
# ---------------------------------------------------------------------------


def call(*words: str) -> str:
    out = StringIO()
    call_command("leave", *words, actor="ada", stdout=out, skip_checks=True)
    return out.getvalue()


@pytest.fixture
def commanded(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings, tmp_path: Path
) -> tuple[Site, Run]:
    site, run = drained_site()
    monkeypatch.setattr(wiring, "build_world", lambda: site.world)
    settings.DATA_DIR = tmp_path
    return site, run


@pytest.mark.django_db
def test_without_yes_it_lists_and_changes_nothing(commanded: tuple[Site, Run]) -> None:
    site, run = commanded
    before = site.slurm.read_nodes()
    said = call("--give-back", NODE)
    assert "Nothing is done without --yes" in said
    assert f"Run {run.pk} (drain_reboot_verify on gn001) ends where it is." in said
    assert "is given back." in said
    assert site.slurm.read_nodes() == before
    assert not StopSwitch.objects.exists()
    run.refresh_from_db()
    assert run.finished_at is None


@pytest.mark.django_db
def test_with_yes_it_does_all_of_it_and_says_what_remains(
    commanded: tuple[Site, Run], tmp_path: Path
) -> None:
    site, run = commanded
    row = Node.objects.get(name=NODE)
    node_tokens.create(row, lasts=timedelta(days=1), actor="ada", now=site.now)
    Run.objects.filter(pk=run.pk).update(leased_until=None)
    said = call("--yes", "--to", str(tmp_path / "out"))
    assert "gn001 stays drained and is handed to people" in said
    assert list((tmp_path / "out").iterdir())
    assert "What remains:" in said
    assert "1 open incidents" in said
    with pytest.raises(CommandError, match="gn002 is not drained by Kintsugi"):
        call("--yes", "--to", str(tmp_path / "out"), "--give-back", "gn002")


@pytest.mark.django_db
@pytest.mark.parametrize("words", [(), ("--yes",)], ids=["listed", "done"])
def test_a_slurm_that_does_not_answer_is_said_at_the_end_of_all_the_rest(
    commanded: tuple[Site, Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    site, run = commanded
    Run.objects.filter(pk=run.pk).update(leased_until=None)
    site.slurm.is_answering = False
    with pytest.raises(
        CommandError, match="Drains that Kintsugi holds stay as they are: call"
    ) as said:
        call_command("leave", *words, "--to", str(tmp_path / "out"), actor="ada", skip_checks=True)
    assert str(said.value).count("Slurm was not read") == 1
    assert "What remains:" in capsys.readouterr().out
    site.slurm.is_answering = True
    assert site.slurm.read_nodes()[NODE].is_draining
    assert "gn001 stays drained and is handed to people" in call("--yes", "--to", str(tmp_path))


# Nodes
# ---------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home on a node, with our key between others and a crontab."""
    (tmp_path / ".ssh").mkdir()
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.write_text("ssh-ed25519 AAAAtheirs bob\nssh-ed25519 AAAAours= kintsugi\n")
    keys.chmod(0o600)
    crontab = tmp_path / "crontab"
    table = tmp_path / "table"
    table.write_text("0 1 * * * backup\n* * * * * /usr/local/sbin/kintsugi-check --post x\n")
    crontab.write_text(
        f'#!/bin/sh\n[ "$1" = -l ] && exec cat {table}\ncat > {table}.new && mv {table}.new {table}\n'
    )
    crontab.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def traces(*, removes: bool) -> node_traces.Traces:
    entries = [(Target(NODE, "127.0.0.1"), "AAAAours=")]
    [found] = node_traces.look_after(LocalShell(), entries, removes=removes)
    return found


def test_a_look_at_a_node_names_what_is_there_and_changes_nothing(home: Path) -> None:
    keys, table = home / ".ssh" / "authorized_keys", home / "table"
    before = keys.read_text(), table.read_text()
    found = traces(removes=False)
    assert found.complaint == ""
    assert "its lines of the crontab" in found.found
    assert f"our key in {keys}" in found.found
    assert (keys.read_text(), table.read_text()) == before


def test_our_key_and_our_crontab_lines_go_and_nobody_elses(home: Path) -> None:
    keys, table = home / ".ssh" / "authorized_keys", home / "table"
    removed = traces(removes=True).removed
    assert f"our key from {keys}" in removed
    assert keys.read_text() == "ssh-ed25519 AAAAtheirs bob\n"
    assert keys.stat().st_mode & 0o777 == 0o600
    assert table.read_text() == "0 1 * * * backup\n"
    again = traces(removes=True)
    assert not any("key" in what for what in again.removed)
    assert "wherever sshd takes it from" in again.hidden[0]


# A real Slurm
# ---------------------------------------------------------------------------


@pytest.mark.needs("slurmctld", "slurmd", "munged")
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_a_real_slurm_keeps_the_node_drained_with_the_words_of_who_left_it(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        leaving.stop_everything(actor="ada", now=site.now())
        assert leaving.end_runs(actor="ada", now=site.now()).numbers == (run.pk,)
        [left] = leaving.leave_drains(
            site.world, give_back=frozenset(), actor="ada", clock=site.now
        )
        assert left.is_done
        assert look(slurm).is_draining
        assert look(slurm).reason.startswith("left to people by Kintsugi (ada): incident #")
        assert leaving.list_drains(site.world, give_back=frozenset(), now=site.now()) == []
