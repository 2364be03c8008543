"""SSH to the nodes, on connections that are kept. Every time limit of a command on a node lives here."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import paramiko

from detectors import bundle
from detectors.bundle import GRACE_S
from detectors.detector import Command, DetectorError, Output, Target, Unreachable
from detectors.local import LONGEST_OUTPUT, LocalShell

__all__ = ["LocalShell", "SshShell"]

_CONNECT_TIMEOUT_S = 10.0


class SshShell:
    """Commands over SSH on connections that are kept, one per target; safe to use from several threads.

    Host keys are checked against `known_hosts` and never learnt. The command's words are quoted one by one,
    so the far shell sees exactly `argv`; it runs under `timeout` there, so a hung one does not pile up.
    """

    def __init__(self, *, user: str, key_file: Path, known_hosts: Path) -> None:
        """Raises DetectorError when key or known_hosts cannot be read."""
        self._user = user
        self._known_hosts = str(known_hosts)
        try:
            self._key = paramiko.PKey.from_path(key_file)
            paramiko.HostKeys(self._known_hosts)
        except (OSError, ValueError, paramiko.SSHException) as error:
            raise DetectorError(f"SSH key {key_file} or host keys {known_hosts} cannot be read: {error}") from error
        self._clients: dict[tuple[str, int, str], paramiko.SSHClient] = {}
        self._guard = threading.Lock()

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        """Raises Unreachable when the target does not answer or refuses us."""
        limit_s = timeout.total_seconds()
        return self._converse(target, argv[0], _bounded(argv, limit_s), limit_s)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        """One channel for all of them. Raises as `run` does, and DetectorError when the round before still runs."""
        nonce = secrets.token_hex(8)
        is_root = (target.user or self._user) == "root"
        argv = bundle.wrapped(name, bundle.script(commands, nonce, is_root=is_root))
        limit_s = sum(command.timeout.total_seconds() + GRACE_S for command in commands)
        output = self._converse(target, name, f"LC_ALL=C {shlex.join(argv)}", limit_s)
        if output.status == bundle.BUSY:
            raise DetectorError(f"{name} on {target.name}: the round before still runs")
        if nonce.encode() not in output.stdout:
            raise DetectorError(f"{name} on {target.name}: its commands were not run: {output.complaint}")
        return bundle.taken_apart(commands, nonce, output.stdout, output.stderr)

    def _converse(self, target: Target, what: str, line: str, limit_s: float) -> Output:
        begun = time.monotonic()
        try:
            channel = self._channel(target)
            try:
                return _converse(channel, line, begun, limit_s)
            finally:
                channel.close()
        except (OSError, EOFError, paramiko.SSHException) as error:
            self._forget(target)
            where = f"{target.name} ({target.address}:{target.port})"
            raise Unreachable(f"{what} on {where}: {error or type(error).__name__}") from error

    def close(self) -> None:
        with self._guard:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _channel(self, target: Target) -> paramiko.Channel:
        """A channel on the kept connection; a connection that died meanwhile is made anew, once."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            return _open(self._client(target))
        self._forget(target)
        return _open(self._client(target))

    def _client(self, target: Target) -> paramiko.SSHClient:
        key = (target.address, target.port, target.user or self._user)
        with self._guard:
            kept = self._clients.get(key)
        if kept is not None:
            return kept
        client = self._connect(target)
        with self._guard:
            winner = self._clients.setdefault(key, client)
        if winner is not client:
            client.close()
        return winner

    def _connect(self, target: Target) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.load_host_keys(self._known_hosts)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            sock = socket.create_connection((target.address, target.port), timeout=_CONNECT_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms a command: Nagle and delayed ACKs
            client.connect(
                target.address,
                target.port,
                username=target.user or self._user,
                pkey=self._key,
                sock=sock,
                allow_agent=False,
                look_for_keys=False,
                timeout=_CONNECT_TIMEOUT_S,
                banner_timeout=_CONNECT_TIMEOUT_S,
                auth_timeout=_CONNECT_TIMEOUT_S,
            )
        except BaseException:
            client.close()
            raise
        return client

    def _forget(self, target: Target) -> None:
        with self._guard:
            client = self._clients.pop((target.address, target.port, target.user or self._user), None)
        if client is not None:
            client.close()


def _open(client: paramiko.SSHClient) -> paramiko.Channel:
    transport = client.get_transport()
    if transport is None:
        raise EOFError("the connection is closed")
    return transport.open_session(timeout=_CONNECT_TIMEOUT_S)


def _bounded(argv: tuple[str, ...], limit_s: float) -> str:
    return shlex.join(("timeout", f"--kill-after={GRACE_S:g}", f"{limit_s:g}", *argv))


def _converse(channel: paramiko.Channel, command: str, begun: float, limit_s: float) -> Output:
    """Read until the far end closes or time is over. Both streams are bounded."""
    deadline = begun + limit_s + GRACE_S
    channel.exec_command(command)
    stdout, stderr = bytearray(), bytearray()
    try:
        _drain(channel, stdout, deadline)
        while len(stderr) < LONGEST_OUTPUT and (chunk := channel.recv_stderr(65536)):
            stderr += chunk
        channel.status_event.wait(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return Output(None, bytes(stdout), bytes(stderr), _since(begun))
    status = channel.recv_exit_status() if channel.status_event.is_set() else None
    return Output(None if status == bundle.TIMED_OUT else status, bytes(stdout), bytes(stderr), _since(begun))


def _drain(channel: paramiko.Channel, into: bytearray, deadline: float) -> None:
    while len(into) < LONGEST_OUTPUT:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = channel.recv(65536)
        if not chunk:
            return
        into += chunk


def _since(begun: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - begun)
