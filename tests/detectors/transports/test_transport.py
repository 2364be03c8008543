"""The shells: local, and SSH against a real sshd. Both keep the same promises."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import paramiko
import pytest

from detectors.detector import Command, DetectorError, Shell, Target, Unreachable
from detectors.transports import ssh
from detectors.transports.ssh import LocalShell, SshShell
from tests.services.ports import free_port
from tests.services.sshd import Sshd

SECONDS_5 = timedelta(seconds=5)


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    server = Sshd().start()
    yield server
    server.remove()


@pytest.fixture(
    params=["local", pytest.param("ssh", marks=pytest.mark.needs("sshd", "ssh-keygen"))]
)
def door(request: pytest.FixtureRequest) -> Iterator[tuple[Shell, Target]]:
    if request.param == "local":
        yield LocalShell(), Target("here", "127.0.0.1")
        return
    server: Sshd = request.getfixturevalue("sshd")
    shell = SshShell(user=server.user, key_file=server.key_file, known_hosts=server.known_hosts)
    yield shell, Target("gn001", "127.0.0.1", server.port)
    shell.close()


def test_output_and_status_come_back_as_they_are(door: tuple[Shell, Target]) -> None:
    shell, target = door
    output = shell.run(
        target, (sys.executable, "-c", "print('out'); raise SystemExit('err')"), SECONDS_5
    )
    assert (output.status, output.stdout.strip(), output.stderr.strip()) == (1, b"out", b"err")


def test_no_command_gets_what_is_in_our_environment_and_it_does_not_need(
    door: tuple[Shell, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SLACK_BOT_TOKEN", "xoxb-secret")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    shell, target = door
    output = shell.run(target, ("env",), SECONDS_5)
    names = {line.partition("=")[0] for line in output.stdout.decode().splitlines()}
    assert "PATH" in names
    assert not names & {"KINTSUGI_SLACK_BOT_TOKEN", "PGPASSWORD"}


def test_words_reach_the_program_unchanged_when_a_shell_would_read_them(
    door: tuple[Shell, Target],
) -> None:
    shell, target = door
    output = shell.run(target, ("echo", "$HOME; `id`", "a  b", "*"), SECONDS_5)
    assert output.stdout == b"$HOME; `id` a  b *\n"


def test_a_command_is_cut_off_when_its_time_is_over(door: tuple[Shell, Target]) -> None:
    shell, target = door
    output = shell.run(target, ("sleep", "60"), timedelta(seconds=0.2))
    assert output.status is None
    assert output.took < SECONDS_5


def test_large_output_on_both_streams_does_not_block(door: tuple[Shell, Target]) -> None:
    shell, target = door
    program = "import sys; sys.stderr.write('e' * 900_000); sys.stdout.write('o' * 900_000)"
    output = shell.run(target, (sys.executable, "-c", program), SECONDS_5)
    assert (len(output.stdout), len(output.stderr)) == (900_000, 900_000)


def test_output_longer_than_anybody_reads_is_an_error_and_no_half_an_answer(
    door: tuple[Shell, Target],
) -> None:
    shell, target = door
    with pytest.raises(DetectorError, match=r"head on .*: wrote more than 32 MiB"):
        shell.run(target, ("head", "-c", "33M", "/dev/zero"), timedelta(minutes=2))
    assert shell.run(target, ("echo", "on"), SECONDS_5).stdout == b"on\n"


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_host_key_that_changed_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    client_key = " ".join((sshd.home / "client.pub").read_text().split()[:2])
    other.write_text(f"[127.0.0.1]:{sshd.port} {client_key}\n")
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=other)
    with pytest.raises(DetectorError, match="gn001"):
        shell.run(Target("gn001", "127.0.0.1", sshd.port), ("true",), SECONDS_5)


@pytest.mark.needs("sshd", "ssh-keygen")
def test_an_unknown_host_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").touch()
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=tmp_path / "known_hosts")
    with pytest.raises(DetectorError, match="not found in known_hosts"):
        shell.run(Target("gn001", "127.0.0.1", sshd.port), ("true",), SECONDS_5)


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_target_that_does_not_listen_is_named(sshd: Sshd) -> None:
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    port = free_port()
    with pytest.raises(DetectorError, match=rf"gn009 \(127.0.0.1:{port}\)"):
        shell.run(Target("gn009", "127.0.0.1", port), ("true",), SECONDS_5)


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_kept_connection_is_made_anew_when_the_far_end_dropped_it(sshd: Sshd) -> None:
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    target = Target("gn001", "127.0.0.1", sshd.port)
    client_port = ("sh", "-c", "echo $SSH_CONNECTION")
    first = shell.run(target, client_port, SECONDS_5).stdout
    kept = shell.run(target, client_port, SECONDS_5).stdout
    sshd.drop_sessions()
    anew = shell.run(target, client_port, SECONDS_5).stdout
    shell.close()
    assert first == kept != anew


def test_a_key_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="cannot be read"):
        SshShell(user="kintsugi", key_file=tmp_path / "none", known_hosts=tmp_path / "none")


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(DetectorError, match="no-such-program"):
        LocalShell().run(Target("here", "127.0.0.1"), ("no-such-program",), SECONDS_5)


@pytest.mark.needs("sshd", "ssh-keygen")
def test_many_that_look_at_a_dead_target_wait_for_it_once(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_USUAL", ssh._Patience(1.0, 1.1, 1.0))
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and never says a word
        target = Target("gn009", "127.0.0.1", mute.getsockname()[1])
        said: list[str] = []

        def ask() -> None:
            with pytest.raises(Unreachable) as caught:
                shell.run(target, ("true",), SECONDS_5)
            said.append(str(caught.value))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum("a moment ago" in text for text in said) == 7


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_machine_that_was_silent_is_given_less_time_until_it_answers(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection
    given: list[float] = []

    def connect_late(address: tuple[str, int], timeout: float) -> socket.socket:
        given.append(timeout)
        if len(given) <= 2:
            raise TimeoutError("timed out")
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect_late)
    monkeypatch.setattr(ssh, "_FAILURE_KEPT_S", 0.0)
    monkeypatch.setattr(ssh, "_WORTH_KEEPING_S", 0.0)
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    target = Target("gn001", "127.0.0.1", sshd.port)
    for _ in range(2):
        with pytest.raises(Unreachable, match="timed out"):
            shell.run(target, ("true",), SECONDS_5)
    for _ in range(2):
        shell.run(target, ("true",), SECONDS_5)
        sshd.drop_sessions()
    shell.close()
    assert given == [3.5, 1.5, 1.5, 3.5]


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_machine_that_took_a_connection_and_said_nothing_is_given_less_time(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where sshd waits for a processor, or for memory."""
    connect = paramiko.SSHClient.connect
    given: list[tuple[float, float]] = []

    def note(client: paramiko.SSHClient, *words: Any, **limits: Any) -> None:
        given.append((limits["banner_timeout"], limits["auth_timeout"]))
        connect(client, *words, **limits)

    monkeypatch.setattr(paramiko.SSHClient, "connect", note)
    monkeypatch.setattr(ssh, "_FAILURE_KEPT_S", 0.0)
    monkeypatch.setattr(ssh, "_USUAL", ssh._Patience(1.0, 1.1, 1.2))
    monkeypatch.setattr(ssh, "_SHORT", ssh._Patience(0.5, 0.6, 0.7))
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = Target("gn009", "127.0.0.1", mute.getsockname()[1])
        for _ in range(2):
            with pytest.raises(Unreachable, match="banner"):
                shell.run(target, ("true",), SECONDS_5)
    shell.close()
    assert given == [(1.1, 1.2), (0.6, 0.7)]


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_host_key_that_is_pinned_while_we_run_is_known_at_the_next_connection(
    sshd: Sshd, tmp_path: Path
) -> None:
    pinned = tmp_path / "known_hosts"
    pinned.touch()
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=pinned)
    with pytest.raises(Unreachable, match="not found in known_hosts"):
        shell.run(Target("gn001", "127.0.0.1", sshd.port), ("true",), SECONDS_5)
    pinned.write_bytes(sshd.known_hosts.read_bytes())
    assert shell.run(Target("gn001", "127.0.0.1", sshd.port), ("true",), SECONDS_5).status == 0
    shell.close()


@pytest.mark.needs("sshd", "ssh-keygen")
def test_a_connection_that_breaks_under_a_command_is_the_target_not_the_command(sshd: Sshd) -> None:
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    target = Target("gn001", "127.0.0.1", sshd.port)
    shell.run(target, ("true",), SECONDS_5)
    cut = threading.Timer(0.5, sshd.drop_sessions)
    cut.start()
    with pytest.raises(Unreachable, match="the connection was lost"):
        shell.run(target, ("sleep", "20"), timedelta(seconds=30))
    cut.join()
    shell.close()


@pytest.mark.needs("sshd", "ssh-keygen")
def test_bundled_commands_keep_their_exit_codes(sshd: Sshd) -> None:
    shell = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=sshd.known_hosts)
    commands = [
        Command(f"exit-{code}", ("sh", "-c", f"exit {code}"), SECONDS_5) for code in (0, 1, 3, 127)
    ]
    outputs = shell.run_all(
        Target("gn001", "127.0.0.1", sshd.port), f"codes-{os.getpid()}", commands
    )
    shell.close()
    assert [output.status for output in outputs.values()] == [0, 1, 3, 127]
