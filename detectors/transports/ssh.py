"""SSH to the nodes, on connections that are kept. Every time limit of a command on a node lives
here."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Optional

import paramiko

from detectors.detector import Command, DetectorError, Output, Target, Unreachable
from detectors.transports import bundle, error_text
from detectors.transports.bundle import GRACE_S
from detectors.transports.local import LONGEST_OUTPUT, LocalShell, build_too_long_error
from detectors.transports.ssh_access import SshAccess

__all__ = ["LocalShell", "SshAccess", "SshShell"]

DEFAULT_PORT = 22
_NO_STATUS = -1  # paramiko's word for a channel that was closed without an exit status
_CONNECT_TIMEOUT_S = 10.0
_IDLE_LOOK_S = 2.0
# Ten detectors that look at a dead target wait for it once: what a connection failed by is told
# again for so long.
_FAILURE_KEPT_S = 10.0
_WORTH_KEEPING_S = 1.0  # a refusal comes at once: asking again costs nothing
# Of sshd's ten sessions per connection (MaxSessions in sshd_config(5)).
_MOST_SESSIONS = 4
# How long a refused session is asked for again: as long as a connection may take.
_SESSION_PATIENCE_S = _CONNECT_TIMEOUT_S
_FIRST_SESSION_WAIT_S = 0.05
_LONGEST_SESSION_WAIT_S = 0.4
# What was sent and not acknowledged for so long ends the connection (TCP_USER_TIMEOUT in tcp(7)):
# else a command on a machine that has gone would wait for its whole limit, which is minutes.
_UNANSWERED_S = 15


@dataclass(frozen=True)
class _Patience:
    """How long a machine may take, s: to take a connection, to say its first line on it, to let our
    user in."""

    accept_s: float
    greet_s: float
    admit_s: float


# A machine that runs takes a connection in milliseconds, however busy it is: the kernel answers.
# Linux asks at 0, 1 and 3 s (RFC 6298; tcp_syn_retries in tcp(7)). sshd greets before it asks
# anything of PAM, of directories or of a file system that may hang (sshd.c of OpenSSH calls
# kex_exchange_identification before any authentication; Debian's asks tcp_wrappers before that,
# whose rules by name ask DNS). Its seconds are our choice: one try of a resolver takes 5 s
# (resolv.conf(5)). Whoever waits keeps others from being looked at, so one that let us wait last
# time has less.
_USUAL = _Patience(3.5, 5.0, _CONNECT_TIMEOUT_S)
_SHORT = _Patience(1.5, 2.0, 5.0)


class SshShell:
    """Commands over SSH on connections that are kept, one per target; safe to use from several
    threads.

    Host keys are checked against `known_hosts` and never learnt. The command's words are quoted one
    by one, so the far shell sees exactly `argv`; it runs under `timeout` there, so a hung one does
    not pile up.
    """

    def __init__(
        self,
        *,
        user: str,
        key_file: Optional[Path],
        known_hosts: Path,
        group_of: Callable[[Target], Optional[SshAccess]] = lambda target: None,
    ) -> None:
        """`group_of` gives targets another way in than the default, which may have no key then; it
        may raise too.

        Raises DetectorError for unreadable files.
        """
        self._default = SshAccess(user, known_hosts, key_file)
        self._group_of = group_of
        self._keys: dict[Path, paramiko.PKey] = {}
        self._pinned = _Pinned()
        self._connections: dict[tuple[str, int, str], _Connection] = {}
        self._guard = threading.Lock()
        if key_file is not None:
            self.check(self._default)

    def check(self, access: SshAccess) -> None:
        """Raises DetectorError when its key or known_hosts cannot be read."""
        try:
            if access.key_file is not None:
                self._keys[access.key_file] = paramiko.PKey.from_path(access.key_file)
            self._pinned.load_keys(access.known_hosts)
        except (OSError, ValueError, paramiko.SSHException) as error:
            raise DetectorError(
                f"SSH key {access.key_file} or host keys {access.known_hosts} cannot be read:"
                f" {error}"
            ) from error

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        """Raises Unreachable when the target does not answer or refuses us."""
        limit_s = timeout.total_seconds()
        return self._converse(target, argv[0], _limit(argv, limit_s), limit_s)

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        """One channel for all of them. Raises as `run` does, and DetectorError when the round
        before still runs."""
        nonce = secrets.token_hex(8)
        is_root = self._get_entry(target).user == "root"
        argv = bundle.build_locked_command(
            name, bundle.build_script(commands, nonce, is_root=is_root)
        )
        limit_s = sum(command.timeout.total_seconds() + GRACE_S for command in commands)
        line = shlex.join(("env", "LC_ALL=C", *argv))
        output = self._converse(target, name, line, limit_s)
        if output.status == bundle.BUSY:
            raise DetectorError(f"{name} on {target.name}: the round before still runs")
        if nonce.encode() not in output.stdout:
            raise DetectorError(
                f"{name} on {target.name}: its commands were not run: {output.complaint}"
            )
        return bundle.split_outputs(commands, nonce, output.stdout, output.stderr)

    def _converse(self, target: Target, what: str, line: str, limit_s: float) -> Output:
        begun = time.monotonic()
        entry = self._get_entry(target)
        connection = self._get_connection(target, entry)
        if not connection.sessions.acquire(timeout=limit_s):
            raise DetectorError(
                f"{what} on {target.name}: {_MOST_SESSIONS} commands run there already"
            )
        try:
            channel = self._open_channel(connection, target, entry, begun + limit_s)
            try:
                output = _converse(channel, line, begun, limit_s)
            finally:
                channel.close()
            if max(len(output.stdout), len(output.stderr)) > LONGEST_OUTPUT:
                raise build_too_long_error(what, target)
            return output
        except (OSError, EOFError, paramiko.SSHException) as error:
            connection.forget()
            where = f"{target.name} ({target.address}:{entry.port})"
            raise Unreachable(f"{what} on {where}: {error_text.format_reason(error)}") from error
        finally:
            connection.sessions.release()

    def close(self) -> None:
        with self._guard:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.forget()

    def _get_entry(self, target: Target) -> SshAccess:
        """The target's own user and port, where they are not just the default's, go before its
        group's."""
        access = self._group_of(target) or self._default
        port = target.port if target.port != DEFAULT_PORT else access.port or DEFAULT_PORT
        is_its_own = target.user not in ("", self._default.user)
        return replace(access, user=target.user if is_its_own else access.user, port=port)

    def _get_connection(self, target: Target, entry: SshAccess) -> _Connection:
        key = (target.address, entry.port or DEFAULT_PORT, entry.user)
        with self._guard:
            return self._connections.setdefault(key, _Connection())

    def _open_channel(
        self, connection: _Connection, target: Target, entry: SshAccess, deadline: float
    ) -> paramiko.Channel:
        """A channel on the kept connection; a connection that died meanwhile is made anew, once.

        Raises DetectorError when sshd refuses a further session on it: the connection is alive
        then, and others use it.
        """
        client, is_kept = self._get_client(connection, target, entry)
        try:
            return _open_session(connection, client, target, deadline)
        except (paramiko.SSHException, EOFError, OSError):
            if not is_kept:
                raise
            connection.forget(client)
        client, _ = self._get_client(connection, target, entry)
        return _open_session(connection, client, target, deadline)

    def _get_client(
        self, connection: _Connection, target: Target, entry: SshAccess
    ) -> tuple[paramiko.SSHClient, bool]:
        """One connection at a time is made to one target: others wait for it, and hear of its
        failure."""
        with connection.connecting:
            if connection.client is not None:
                return connection.client, True
            connection.complain()
            begun = time.monotonic()
            try:
                connection.client = self._connect(target, entry, connection.patience)
            except (OSError, EOFError, paramiko.SSHException) as error:
                if time.monotonic() - begun > _WORTH_KEEPING_S:
                    connection.record_failure(error)
                raise
            connection.patience = _USUAL
            return connection.client, False

    def _connect(self, target: Target, entry: SshAccess, patience: _Patience) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        port = entry.port or DEFAULT_PORT
        named = target.address if port == DEFAULT_PORT else f"[{target.address}]:{port}"
        for key in self._pinned.get_host_keys(named, entry.known_hosts):
            client.get_host_keys().add(named, key.get_name(), key)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        with contextlib.ExitStack() as unless_connected:
            unless_connected.callback(_close, client)
            sock = socket.create_connection((target.address, port), timeout=patience.accept_s)
            _tune(sock)
            user_key = self._keys.get(entry.key_file) if entry.key_file is not None else None
            uses_agent = entry.key_file is None
            client.connect(
                target.address,
                port,
                username=entry.user,
                pkey=user_key,
                sock=sock,
                allow_agent=uses_agent,
                look_for_keys=False,
                timeout=_CONNECT_TIMEOUT_S,
                banner_timeout=patience.greet_s,
                auth_timeout=patience.admit_s,
            )
            unless_connected.pop_all()
        _slow_down(client)
        return client


def _slow_down(client: paramiko.SSHClient) -> None:
    """A connection that nobody uses looks every 2 s whether it is still wanted, not paramiko's ten
    times a second; an answer wakes it at once."""
    transport = client.get_transport()
    if transport is not None:
        transport.sock.settimeout(_IDLE_LOOK_S)


def _close(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.sock.shutdown(socket.SHUT_RDWR)  # wakes its thread
    client.close()


class _Connection:
    """One target's connection, who may use it at once, and why there is none."""

    def __init__(self) -> None:
        self.connecting = threading.Lock()
        # One session is opened at a time: paramiko keeps one error for a whole connection, so that
        # of two sessions refused at once one would look like a connection that has died.
        self.opening = threading.Lock()
        self.sessions = threading.BoundedSemaphore(_MOST_SESSIONS)
        self.client: Optional[paramiko.SSHClient] = None
        self.patience = _USUAL
        self._error: Optional[Exception] = None
        self._failed_at = 0.0

    def record_failure(self, error: Exception) -> None:
        self._error, self._failed_at = error, time.monotonic()
        self.patience = _SHORT

    def complain(self) -> None:
        """Raises what the last attempt failed by, while that is fresh."""
        if self._error is not None and time.monotonic() - self._failed_at < _FAILURE_KEPT_S:
            raise paramiko.SSHException(f"{error_text.format_reason(self._error)} (a moment ago)")
        self._error = None

    def forget(self, client: Optional[paramiko.SSHClient] = None) -> None:
        """Close the connection, unless it has been made anew meanwhile."""
        with self.connecting:
            if self.client is None or client not in (None, self.client):
                return
            gone, self.client = self.client, None
        _close(gone)


class _Pinned:
    """Host keys by file, read anew when the file has changed."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[int, paramiko.HostKeys]] = {}
        self._guard = threading.Lock()

    def load_keys(self, path: Path) -> paramiko.HostKeys:
        """Of a file that is not there yet: none, so that nobody is trusted."""
        if not path.exists():
            return paramiko.HostKeys()
        with self._guard:
            changed_at = path.stat().st_mtime_ns
            known = self._files.get(path)
            if known is None or known[0] != changed_at:
                known = self._files[path] = (changed_at, paramiko.HostKeys(str(path)))
            return known[1]

    def get_host_keys(self, name: str, path: Path) -> list[paramiko.PKey]:
        found = self.load_keys(path).lookup(name)
        return list(found.values()) if found is not None else []


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # else 40 ms a command: Nagle and delayed ACKs
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_S * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _UNANSWERED_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _UNANSWERED_S // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _open_session(
    connection: _Connection, client: paramiko.SSHClient, target: Target, deadline: float
) -> paramiko.Channel:
    """A refused session is no dead connection: sshd counts one that we have closed until it has
    seen its command's end, which a busy machine is late with.

    Raises DetectorError when it is refused until `deadline` (monotonic, s) or for as long as
    anybody waits.
    """
    last_try_at = min(deadline, time.monotonic() + _SESSION_PATIENCE_S)
    wait_s = _FIRST_SESSION_WAIT_S
    while True:
        try:
            with connection.opening:
                return _open(client)
        except paramiko.ChannelException as error:
            if time.monotonic() + wait_s > last_try_at:
                raise DetectorError(
                    f"{target.name}: its sshd opens no further session (MaxSessions): {error}"
                ) from error
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_SESSION_WAIT_S)


def _open(client: paramiko.SSHClient) -> paramiko.Channel:
    transport = client.get_transport()
    if transport is None:
        raise EOFError("the connection is closed")
    return transport.open_session(timeout=_CONNECT_TIMEOUT_S)


def _limit(argv: tuple[str, ...], limit_s: float) -> str:
    return shlex.join(("timeout", f"--kill-after={GRACE_S:g}", f"{limit_s:g}", *argv))


def _converse(channel: paramiko.Channel, command: str, begun: float, limit_s: float) -> Output:
    """Read until the far end closes, time is over, or one of the streams is longer than anybody
    reads."""
    deadline = begun + limit_s + GRACE_S
    channel.exec_command(command)
    stdout, stderr = bytearray(), bytearray()
    try:
        _drain(channel, stdout, deadline)
        while len(stderr) <= LONGEST_OUTPUT and (chunk := channel.recv_stderr(65536)):
            stderr += chunk
        if max(len(stdout), len(stderr)) > LONGEST_OUTPUT:
            return Output(None, bytes(stdout), bytes(stderr), _get_time_since(begun))
        channel.status_event.wait(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return Output(None, bytes(stdout), bytes(stderr), _get_time_since(begun))
    status = channel.recv_exit_status() if channel.status_event.is_set() else None
    if status == _NO_STATUS and not channel.get_transport().is_active():
        raise EOFError("the connection was lost")
    if status == bundle.TIMED_OUT:
        status = None
    return Output(status, bytes(stdout), bytes(stderr), _get_time_since(begun))


def _drain(channel: paramiko.Channel, into: bytearray, deadline: float) -> None:
    while len(into) <= LONGEST_OUTPUT:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = channel.recv(65536)
        if not chunk:
            return
        into += chunk


def _get_time_since(begun: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - begun)
