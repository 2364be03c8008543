"""A command apart from any connection: begun once, read later, and ended in order also when it was
killed."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import Output, Target, Unreachable
from detectors.transports.ssh import LocalShell
from runbooks.node import detached_command
from runbooks.node.detached_command import Answer, DetachedJob, Ended, NotBegun, Running, Unknown
from tests.services.patience import deadline_in

HERE = Target("here", "here")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def folder(scratch: Path, job: DetachedJob) -> Path:
    own = sorted(path for path in scratch.glob("kintsugi-*") if path.stat().st_uid == os.getuid())
    return own[0] / job.key


def looked(job: DetachedJob, *, until: type | tuple[type, ...] = (Ended, Unknown)) -> Answer:
    deadline = deadline_in(20)
    while not isinstance(answer := detached_command.poll_command(LocalShell(), HERE, job), until):
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer


def appears(path: Path) -> str:
    deadline = deadline_in(20)
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    return path.read_text()


def test_look_begins_nothing(scratch: Path) -> None:
    job = DetachedJob("1-2-verify", ("touch", str(scratch / "begun")))
    assert detached_command.poll_command(LocalShell(), HERE, job) == NotBegun()
    assert not (scratch / "begun").exists()


def test_command_runs_once_however_often_it_is_started(scratch: Path) -> None:
    count = scratch / "count"
    job = DetachedJob(
        "1-2-verify",
        ("sh", "-c", f'echo "it\'s $0" >> {count}; sleep 0.3; echo said; exit 7', "a b"),
    )
    assert [detached_command.start(LocalShell(), HERE, job) for _ in range(3)] == [Running()] * 3
    assert looked(job) == Ended(7, "said\n")
    assert detached_command.start(LocalShell(), HERE, job) == Ended(7, "said\n")
    assert count.read_text() == "it's a b\n"


def test_another_key_is_another_run() -> None:
    one, other = DetachedJob("1-2-verify", ("true",)), DetachedJob("2-2-verify", ("false",))
    for job in (one, other):
        detached_command.start(LocalShell(), HERE, job)
    assert (looked(one), looked(other)) == (Ended(0, ""), Ended(1, ""))


def test_end_is_done_after_the_command_and_told_with_it() -> None:
    job = DetachedJob(
        "1-2-reset", ("sh", "-c", "echo reset; exit 2"), after="echo restored in $KINTSUGI_APART"
    )
    detached_command.start(LocalShell(), HERE, job)
    ended = looked(job)
    assert isinstance(ended, Ended)
    assert ended.status == 2
    assert ended.said.startswith("reset\nrestored in /")


def test_output_is_shown_from_its_end() -> None:
    job = DetachedJob("1-2-long", ("sh", "-c", "seq 1 1000"), shown=9)
    detached_command.start(LocalShell(), HERE, job)
    assert looked(job) == Ended(0, "999\n1000\n")


def test_command_that_does_not_exist_ends_as_in_a_shell() -> None:
    job = DetachedJob("1-2-none", ("no-such-check",))
    detached_command.start(LocalShell(), HERE, job)
    ended = looked(job)
    assert isinstance(ended, Ended)
    assert ended.status == 127


def test_what_was_killed_with_all_that_watched_it_is_lost_and_has_its_end_done_once(
    scratch: Path,
) -> None:
    pids, ends = scratch / "pids", scratch / "ends"
    job = DetachedJob(
        "1-2-reset",
        ("sh", "-c", f"echo $$ $PPID > {pids}; exec sleep 60"),
        after=f"echo end >> {ends}",
    )
    detached_command.start(LocalShell(), HERE, job)
    child, watcher = (int(word) for word in appears(pids).split())
    for pid in (watcher, child):
        os.kill(pid, signal.SIGKILL)
    assert looked(job) == Ended(None, "")
    assert detached_command.start(LocalShell(), HERE, job) == Ended(None, "")
    assert ends.read_text() == "end\n"


def test_command_whose_watcher_was_killed_is_waited_for_before_its_end_is_done(
    scratch: Path,
) -> None:
    pids, go, ends = scratch / "pids", scratch / "go", scratch / "ends"
    script = (
        f"echo $PPID > {pids}; while [ ! -f {go} ]; do sleep 0.05; done; echo command >> {ends}"
    )
    job = DetachedJob("1-2-reset", ("sh", "-c", script), after=f"echo end >> {ends}")
    detached_command.start(LocalShell(), HERE, job)
    os.kill(int(appears(pids)), signal.SIGKILL)
    assert detached_command.poll_command(LocalShell(), HERE, job) == Running()
    go.touch()
    assert isinstance(looked(job), Ended)
    assert ends.read_text() == "command\nend\n"


def test_what_another_user_put_there_is_not_believed(scratch: Path) -> None:
    job = DetachedJob("1-2-verify", ("true",))
    planted = scratch / f"kintsugi-{os.getuid()}" / job.key
    if os.getuid() == 0:
        planted.mkdir(parents=True)
        (planted / "status").write_text("99\n")
        os.chown(planted.parent, 65534, 65534)
    else:
        planted.parent.symlink_to("/")
    detached_command.start(LocalShell(), HERE, job)
    assert looked(job) == Ended(0, "")


def test_folder_is_its_users_alone(scratch: Path) -> None:
    job = DetachedJob("1-2-verify", ("true",))
    detached_command.start(LocalShell(), HERE, job)
    looked(job)
    assert folder(scratch, job).stat().st_mode & 0o077 == 0


class _Silent(LocalShell):
    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise Unreachable("here: no route to host")


class _WithoutLocks(LocalShell):
    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return super().run(
            target, (*argv[:2], argv[2].replace("flock", "no-such-flock"), *argv[3:]), timeout
        )


def test_node_that_does_not_answer_tells_nothing() -> None:
    assert detached_command.start(_Silent(), HERE, DetachedJob("1", ("true",))) == Unknown(
        "here: no route to host"
    )


def test_node_without_flock_begins_nothing_and_says_so(scratch: Path) -> None:
    answer = detached_command.start(
        _WithoutLocks(), HERE, DetachedJob("1", ("touch", str(scratch / "begun")))
    )
    assert isinstance(answer, Unknown)
    assert "no-such-flock" in answer.why
    assert not (scratch / "begun").exists()


@pytest.mark.parametrize("key", ["", "../x", "a b", "a/b", "x" * 121])
def test_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        detached_command.start(LocalShell(), HERE, replace(DetachedJob("1", ("true",)), key=key))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Welcome!\nnever\n", NotBegun()),
        ("running\n", Running()),
        ("ended 0\n", Ended(0, "")),
        ("banner\nended 226\nGPU 3: fail\n", Ended(226, "GPU 3: fail\n")),
        ("ended lost\nx", Ended(None, "x")),
    ],
)
def test_answer_is_read_behind_what_a_login_shell_prints(text: str, answer: Answer) -> None:
    assert detached_command.parse_answer(text) == answer


@given(st.text())
def test_any_text_is_an_answer_or_none(text: str) -> None:
    assert isinstance(detached_command.parse_answer(text), NotBegun | Running | Ended | Unknown)
