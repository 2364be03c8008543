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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import paramiko

from detectors.detector import Target
from detectors.transports import error_text

_TIMEOUT_S = 10.0
_AT_ONCE = 16


class KeyStanding(StrEnum):
    """How a machine's key stands to what is pinned."""

    KNOWN = "known"
    NEW = "new"
    CHANGED = "changed"
    SILENT = "silent"


@dataclass(frozen=True)
class SeenHostKey:
    """One machine. `fingerprint` as `ssh-keygen -lf` prints it; `text` says what went wrong."""

    target: Target
    standing: KeyStanding
    key: paramiko.PKey | None = None
    fingerprint: str = ""
    text: str = ""

    @property
    def host(self) -> str:
        """As known_hosts names it."""
        address, port = self.target.address, self.target.port
        return address if port == 22 else f"[{address}]:{port}"


def scan_host_keys(targets: Sequence[Target], known_hosts: Path) -> list[SeenHostKey]:
    """Every target's key beside the pinned one. Raises OSError when the file is there and cannot be
    read."""
    pinned = paramiko.HostKeys(str(known_hosts)) if known_hosts.exists() else paramiko.HostKeys()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="host-keys") as pool:
        return list(pool.map(lambda target: _look(target, pinned), targets))


def _look(target: Target, pinned: paramiko.HostKeys) -> SeenHostKey:
    try:
        key = _key(target, pinned)
    except (OSError, EOFError, paramiko.SSHException) as error:
        return SeenHostKey(target, KeyStanding.SILENT, text=error_text.reason(error))
    seen = SeenHostKey(target, KeyStanding.NEW, key, _fingerprint(key))
    kept = pinned.lookup(seen.host)
    if kept is None:
        return seen
    own = kept.get(key.get_name())
    if own is not None and own.asbytes() == key.asbytes():
        return SeenHostKey(target, KeyStanding.KNOWN, key, seen.fingerprint)
    old = ", ".join(f"{name} {_fingerprint(other)}" for name, other in kept.items())
    return SeenHostKey(target, KeyStanding.CHANGED, key, seen.fingerprint, f"pinned is {old}")


def _key(target: Target, pinned: paramiko.HostKeys) -> paramiko.PKey:
    """The host key of a handshake, without logging in; of the pinned kind where one is pinned."""
    sock = socket.create_connection((target.address, target.port), timeout=_TIMEOUT_S)
    try:
        transport = paramiko.Transport(sock)
        kept = pinned.lookup(
            target.address if target.port == 22 else f"[{target.address}]:{target.port}"
        )
        kinds = [
            kind
            for kind in transport.get_security_options().key_types
            if kept is not None and kind in kept
        ]
        if kinds:
            transport.get_security_options().key_types = tuple(kinds)
        try:
            transport.start_client(timeout=_TIMEOUT_S)
            return transport.get_remote_server_key()
        finally:
            transport.close()
    finally:
        sock.close()


def _fingerprint(key: paramiko.PKey) -> str:
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def pin(seen: Sequence[SeenHostKey], known_hosts: Path) -> int:
    """Adds the new keys and keeps every line that was there; returns how many. Raises OSError."""
    fresh = [each for each in seen if each.standing is KeyStanding.NEW and each.key is not None]
    if not fresh:
        return 0
    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    before = known_hosts.read_text() if known_hosts.exists() else ""
    rows = [
        f"{each.host} {each.key.get_name()} {each.key.get_base64()}"
        for each in fresh
        if each.key is not None
    ]
    text = before + ("" if not before or before.endswith("\n") else "\n") + "\n".join(rows) + "\n"
    with tempfile.NamedTemporaryFile(
        "w", dir=known_hosts.parent, prefix=".known_hosts-", delete=False
    ) as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    os.replace(new.name, known_hosts)
    return len(fresh)
