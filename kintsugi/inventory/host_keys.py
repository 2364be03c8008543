"""SSH host keys of the inventory's machines: seen, shown, and pinned when a person accepts them.

A key that differs from the pinned one is never taken: it is told, and a person removes the old one
by hand.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import paramiko

from detectors.detector import Target
from detectors.transports import error_text

_TIMEOUT_S = 10.0
_AT_ONCE = 16


class KeyState(StrEnum):
    """How a machine's key compares with what is pinned."""

    KNOWN = "known"
    NEW = "new"
    CHANGED = "changed"
    SILENT = "silent"


@dataclass(frozen=True)
class HostKey:
    """One machine. `fingerprint` as `ssh-keygen -lf` prints it; `text` says what went wrong."""

    target: Target
    state: KeyState
    key: paramiko.PKey | None = None
    fingerprint: str = ""
    text: str = ""

    @property
    def host(self) -> str:
        """As known_hosts names it."""
        return _format_host_name(self.target)


def _format_host_name(target: Target) -> str:
    return target.address if target.port == 22 else f"[{target.address}]:{target.port}"


def scan_host_keys(targets: Sequence[Target], known_hosts: Path) -> list[HostKey]:
    """Every target's key beside the pinned one. Raises OSError when the file is there and cannot be
    read."""
    pinned = paramiko.HostKeys(str(known_hosts)) if known_hosts.exists() else paramiko.HostKeys()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="host-keys") as pool:
        return list(pool.map(lambda target: _scan(target, pinned), targets))


def _scan(target: Target, pinned: paramiko.HostKeys) -> HostKey:
    try:
        key = _get_key(target, pinned)
    except (OSError, EOFError, paramiko.SSHException) as error:
        return HostKey(target, KeyState.SILENT, text=error_text.format_reason(error))
    new_key = HostKey(target, KeyState.NEW, key, _compute_fingerprint(key))
    pinned_keys = pinned.lookup(new_key.host)
    if pinned_keys is None:
        return new_key
    same_kind = pinned_keys.get(key.get_name())
    if same_kind is not None and same_kind.asbytes() == key.asbytes():
        return replace(new_key, state=KeyState.KNOWN)
    texts = [f"{name} {_compute_fingerprint(old_key)}" for name, old_key in pinned_keys.items()]
    return replace(new_key, state=KeyState.CHANGED, text=f"pinned is {', '.join(texts)}")


def _get_key(target: Target, pinned: paramiko.HostKeys) -> paramiko.PKey:
    """The host key of a handshake, without logging in; of the pinned kind where one is pinned."""
    sock = socket.create_connection((target.address, target.port), timeout=_TIMEOUT_S)
    try:
        transport = paramiko.Transport(sock)
        options = transport.get_security_options()
        pinned_kinds: Collection[str] = pinned.lookup(_format_host_name(target)) or ()
        kinds = [kind for kind in options.key_types if kind in pinned_kinds]
        if kinds:
            options.key_types = tuple(kinds)
        try:
            transport.start_client(timeout=_TIMEOUT_S)
            return transport.get_remote_server_key()
        finally:
            transport.close()
    finally:
        sock.close()


def _compute_fingerprint(key: paramiko.PKey) -> str:
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def add_known_hosts(host_keys: Sequence[HostKey], known_hosts: Path) -> int:
    """Adds the new keys and keeps every line that was there; returns how many. Raises OSError."""
    rows = []
    for host_key in host_keys:
        key = host_key.key
        if host_key.state is KeyState.NEW and key is not None:
            rows.append(f"{host_key.host} {key.get_name()} {key.get_base64()}\n")
    if not rows:
        return 0
    folder = known_hosts.parent
    folder.mkdir(parents=True, exist_ok=True)
    before = known_hosts.read_text() if known_hosts.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".known_hosts-", delete=False) as new:
        new.write(before + "".join(rows))
        new.flush()
        os.fsync(new.fileno())
    os.replace(new.name, known_hosts)
    return len(rows)
