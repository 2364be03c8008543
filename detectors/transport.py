"""The doors to the world: SSH with kept connections, and the machine we run on. Every time limit lives here."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import paramiko

from detectors.detector import DetectorError, Output, Target

_CONNECT_TIMEOUT_S = 10.0
_GRACE_S = 5.0
_LONGEST_OUTPUT = 8 * 1024 * 1024
_TIMED_OUT = 124  # the status of coreutils' timeout


class LocalShell:
    """Commands on this machine. The whole process group is killed when its time is over."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        """Raises DetectorError when the program cannot be started."""
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise DetectorError(f"{argv[0]} on {target.name}: cannot be started ({error.strerror})") from error
        status: int | None
        try:
            stdout, stderr = process.communicate(timeout=timeout.total_seconds())
            status = process.returncode
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            status = None
        return Output(status, stdout[:_LONGEST_OUTPUT], stderr[:_LONGEST_OUTPUT], _since(begun))


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
        """Raises DetectorError when the target cannot be reached or refuses us."""
        begun = time.monotonic()
        limit_s = timeout.total_seconds()
        try:
            channel = self._channel(target)
            try:
                return _converse(channel, _bounded(argv, limit_s), begun, limit_s)
            finally:
                channel.close()
        except (OSError, EOFError, paramiko.SSHException) as error:
            self._forget(target)
            where = f"{target.name} ({target.address}:{target.port})"
            raise DetectorError(f"{argv[0]} on {where}: {error or type(error).__name__}") from error

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
    return shlex.join(("timeout", f"--kill-after={_GRACE_S:g}", f"{limit_s:g}", *argv))


def _converse(channel: paramiko.Channel, command: str, begun: float, limit_s: float) -> Output:
    """Read until the far end closes or time is over. Both streams are bounded."""
    deadline = begun + limit_s + _GRACE_S
    channel.exec_command(command)
    stdout, stderr = bytearray(), bytearray()
    try:
        _drain(channel, stdout, deadline)
        while len(stderr) < _LONGEST_OUTPUT and (chunk := channel.recv_stderr(65536)):
            stderr += chunk
        channel.status_event.wait(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return Output(None, bytes(stdout), bytes(stderr), _since(begun))
    status = channel.recv_exit_status() if channel.status_event.is_set() else None
    return Output(None if status == _TIMED_OUT else status, bytes(stdout), bytes(stderr), _since(begun))


def _drain(channel: paramiko.Channel, into: bytearray, deadline: float) -> None:
    while len(into) < _LONGEST_OUTPUT:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = channel.recv(65536)
        if not chunk:
            return
        into += chunk


def _since(begun: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - begun)
