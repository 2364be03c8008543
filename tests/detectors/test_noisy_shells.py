"""What real nodes say besides what was asked: noise is passed over, and a refusal is never taken
for health."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from detectors.detector import (
    Command,
    DetectorError,
    NothingToCompare,
    OneByOne,
    Output,
    Reading,
    Target,
    TargetKind,
    Transports,
    Unreachable,
)
from detectors.faults import Observation
from detectors.polling import observe_one
from detectors.transports import bundle
from detectors.transports.ssh import SshAccess, SshShell
from tests.services.sshd import Sshd

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
SECONDS_5 = timedelta(seconds=5)
NEEDS = pytest.mark.needs("sshd", "ssh-keygen")


class Asks(NothingToCompare):
    """Runs two commands, one of them as root, and takes whatever comes for an answer."""

    name: ClassVar[str] = "asks"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    commands: ClassVar[tuple[Command, ...]] = (
        Command("locale", ("sh", "-c", "echo $LC_ALL"), SECONDS_5),
        Command("secret", ("cat", "/etc/hostname"), SECONDS_5, as_root=True),
    )

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        return Reading(
            self.name, target, now, via.shell.run_all(target, f"test-{os.getpid()}", self.commands)
        )

    def parse(self, reading: Reading) -> Iterator[Observation]:
        yield reading.saw("asks.locale", reading.outputs["locale"].stdout.decode().strip())
        yield reading.answered()

    def sniff(self, text: bytes) -> str:
        return "locale"


Look = Callable[..., dict[str, Observation]]


@pytest.fixture
def look() -> Iterator[Look]:
    """Looks through a real sshd with these settings; observations by metric."""
    servers: list[Sshd] = []

    def through(**settings: str) -> dict[str, Observation]:
        server = Sshd(**settings).start()
        servers.append(server)
        shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
        try:
            seen = observe_one(
                Target("gn001", "127.0.0.1", server.port), Asks(), Transports(shell), NOW
            )
        finally:
            shell.close()
        return {observation.metric: observation for observation in seen}

    yield through
    for server in servers:
        server.remove()


@NEEDS
def test_a_shell_that_prints_at_login_is_passed_over(look: Look) -> None:
    noise = "echo Welcome to gn001; echo '<xml>' >&2; printf 'no line end'; eval \"$SSH_ORIGINAL_COMMAND\"; echo bye"
    seen = look(ForceCommand=noise)
    assert seen["asks.locale"].value == "C"
    assert seen["detector.answered"].value is True


@NEEDS
def test_a_banner_before_the_login_is_passed_over(look: Look, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("All activity is monitored.\n" * 50)
    assert look(Banner=str(tmp_path / "banner"))["detector.answered"].value is True


@NEEDS
def test_another_locale_of_the_node_does_not_reach_the_commands(look: Look) -> None:
    assert look(SetEnv="LC_ALL=ja_JP.UTF-8")["asks.locale"].value == "C"


@NEEDS
@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (
            "echo This account is currently not available.; exit 1",
            "status 1: This account is currently not available",
        ),
        ("echo 'sh: 1: flock: not found' >&2; exit 127", "status 127: sh: 1: flock: not found"),
        ("echo 'WARNING: Your password has expired.' >&2; exit 1", "Your password has expired"),
        ("true", "status 0: no output"),
        (
            "echo 'flock: cannot open lock file: Read-only file system' >&2; exit 66",
            "Read-only file system",
        ),
    ],
)
def test_commands_that_were_not_run_are_told_with_what_the_node_said(
    look: Look, instead: str, said: str
) -> None:
    seen = look(ForceCommand=instead)
    assert seen["detector.answered"].value is False
    assert "on gn001: its commands were not run" in seen["detector.answered"].attributes["text"]
    assert said in seen["detector.answered"].attributes["text"]
    assert seen["target.reachable"].value is True


@NEEDS
def test_a_round_that_still_runs_there_is_not_joined_by_the_next(look: Look) -> None:
    lock = Path(bundle.lock_path(f"test-{os.getpid()}"))
    holder = subprocess.Popen(
        ["flock", "-n", str(lock), "sh", "-c", "echo held; cat"], stdin=-1, stdout=-1
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert "the round before still runs" in look()["detector.answered"].attributes["text"]
    finally:
        holder.communicate()
        lock.unlink(missing_ok=True)


@NEEDS
def test_a_command_whose_output_is_cut_by_its_time_limit_says_so() -> None:
    server = Sshd().start()
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    try:
        hangs = Command(
            "hangs", ("sh", "-c", "echo '<nvidia_smi_log>'; sleep 60"), timedelta(seconds=0.3)
        )
        after = Command("after", ("echo", "done"), SECONDS_5)
        outputs = shell.run_all(
            Target("gn001", "127.0.0.1", server.port), f"cut-{os.getpid()}", [hangs, after]
        )
    finally:
        shell.close()
        server.remove()
    assert outputs["hangs"].status is None
    assert outputs["hangs"].stdout.startswith(b"<nvidia_smi_log>")
    assert outputs["after"].stdout == b"done\n"


@NEEDS
def test_many_detectors_share_one_connection_within_the_sessions_that_sshd_allows() -> None:
    server = Sshd(MaxSessions="4").start()
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    target = Target("gn001", "127.0.0.1", server.port)
    found: list[bytes] = []

    def ask() -> None:
        found.append(
            shell.run(target, ("sh", "-c", "echo $SSH_CONNECTION; sleep 0.1"), SECONDS_5).stdout
        )

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shell.close()
    server.remove()
    assert len(found) == 12
    assert len(set(found)) == 1


@NEEDS
def test_a_session_that_sshd_refuses_is_waited_for_and_cuts_nobody_else_off() -> None:
    server = Sshd(MaxSessions="1").start()
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    target = Target("gn001", "127.0.0.1", server.port)
    found: list[bytes] = []

    def ask() -> None:
        output = shell.run(target, ("sh", "-c", "sleep 1; echo done"), timedelta(seconds=20))
        found.append(output.stdout)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shell.close()
    server.remove()
    assert found == [b"done\n"] * 3


@NEEDS
def test_an_sshd_that_opens_no_session_at_all_is_named_when_the_time_of_the_command_is_over() -> (
    None
):
    server = Sshd(MaxSessions="0").start()
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    try:
        with pytest.raises(DetectorError, match=r"gn001: .* no further session \(MaxSessions\)"):
            shell.run(Target("gn001", "127.0.0.1", server.port), ("true",), timedelta(seconds=1))
    finally:
        shell.close()
        server.remove()


@NEEDS
def test_a_group_with_an_unusable_key_is_refused_while_the_others_go_on(tmp_path: Path) -> None:
    server = Sshd().start()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True
    )
    wrong = SshAccess(server.user, server.known_hosts, tmp_path / "other")
    shell = SshShell(
        user=server.user,
        key_file=server.key_file,
        known_hosts=server.known_hosts,
        group_of=lambda target: wrong if target.name == "gn009" else None,
    )
    shell.check(wrong)
    try:
        with pytest.raises(Unreachable, match=r"gn009 .*Authentication"):
            shell.run(Target("gn009", "127.0.0.1", server.port), ("true",), SECONDS_5)
        assert (
            shell.run(Target("gn001", "127.0.0.1", server.port), ("true",), SECONDS_5).status == 0
        )
    finally:
        shell.close()
        server.remove()


class Sudoed(OneByOne):
    """The bundle's own script in a real shell of this machine, where `sudo` is what a test puts on
    PATH."""

    def __init__(self, path: Path) -> None:
        self._environment = {"PATH": f"{path}:/usr/bin:/bin"}

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise DetectorError("not asked")

    def run_all(self, target: Target, name: str, commands: object) -> dict[str, Output]:
        script = bundle.build_script(Asks.commands, "5eed", is_root=False)
        done = subprocess.run(
            ["sh", "-c", script], env=self._environment, capture_output=True, check=False
        )
        return bundle.split_outputs(Asks.commands, "5eed", done.stdout, done.stderr)


@pytest.mark.parametrize(
    "says",
    [
        "sudo: a password is required",
        "Sorry, user kintsugi is not allowed to execute '/bin/cat /etc/hostname' as root on gn001.",
        "kintsugi is not in the sudoers file.",
        "sudo: sorry, you must have a tty to run sudo",
        "sudo: no tty present and no askpass program specified",
    ],
)
def test_a_sudo_that_refuses_makes_the_detector_silent_whatever_else_it_saw(
    tmp_path: Path, says: str
) -> None:
    fake = tmp_path / "sudo"
    fake.write_text(f'#!/bin/sh\necho "{says}" >&2\nexit 1\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    seen = {
        o.metric: o
        for o in observe_one(Target("gn001", "h"), Asks(), Transports(Sudoed(tmp_path)), NOW)
    }
    assert seen["detector.answered"].value is False
    assert (
        seen["detector.answered"]
        .attributes["text"]
        .startswith("sudo -n cat /etc/hostname: status 1: ")
    )
    assert seen["asks.locale"].value is not None


def test_a_node_without_sudo_is_silent_too(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("sh", "timeout", "cat", "echo"):
        (empty / name).symlink_to(f"/usr/bin/{name}")
    shell = Sudoed(empty)
    shell._environment["PATH"] = str(empty)
    seen = {o.metric: o for o in observe_one(Target("gn001", "h"), Asks(), Transports(shell), NOW)}
    assert "failed to run command" in seen["detector.answered"].attributes["text"]


def test_a_program_that_is_missing_behind_sudo_is_the_detectors_own_to_judge(
    tmp_path: Path,
) -> None:
    fake = tmp_path / "sudo"
    fake.write_text('#!/bin/sh\necho "sudo: nvme: command not found" >&2\nexit 1\n')
    fake.chmod(0o755)
    seen = {
        o.metric: o
        for o in observe_one(Target("gn001", "h"), Asks(), Transports(Sudoed(tmp_path)), NOW)
    }
    assert seen["detector.answered"].value is True
