"""How groups of targets are entered: the TOML file of KINTSUGI_CREDENTIALS, checked whole before
anything starts.

Secrets never stand in it: each comes from a file (`community_file`) or a variable of the
environment (`community_env`). Those of management controllers switch power: they are read where a
process acts, and nowhere else. Of several groups that name a target the first that has the medium's
table speaks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from detectors import toml_text
from detectors.detector import SNMP_PORT, NotConfigured, Target, TargetKind
from detectors.transports.http import Basic, Bearer
from detectors.transports.snmp_credentials import (
    AuthProtocol,
    PrivProtocol,
    SnmpCredentials,
    SnmpVersion,
)
from detectors.transports.ssh_access import SshAccess
from incidents.topology.topology import expand
from runbooks.power.access import BmcAccess, BmcKind

ALL = "*"
_WHO = {"nodes": TargetKind.NODE, "switches": TargetKind.SWITCH, "sites": TargetKind.SITE}
# IPMI 2.0, sections 13.20 and 13.28: user names of 16 bytes, passwords of 20.
_IPMI_USER, _IPMI_PASSWORD = 16, 20
# The fields of SnmpCredentials, Bearer, Basic and BmcAccess that are secret.
_SECRETS = ("community", "auth_key", "priv_key", "token", "password")
_HOSTS = 'a host list such as "gn[001-100],mt001", or "*"'


@dataclass(frozen=True)
class CredentialGroup:
    """Targets by kind (`*`: all of it) and what they are entered with, by medium."""

    named: Mapping[TargetKind, frozenset[str]]
    ssh: SshAccess | None = None
    snmp: SnmpCredentials | None = None
    http: Bearer | Basic | None = None
    bmc: BmcAccess | None = None

    def holds(self, target: Target) -> bool:
        names = self.named.get(target.kind, frozenset())
        return ALL in names or target.name in names


@dataclass(frozen=True)
class Credentials:
    groups: tuple[CredentialGroup, ...] = ()

    def find_ssh(self, target: Target) -> SshAccess | None:
        """None: the default of KINTSUGI_SSH_KEY."""
        for group in self._iterate_groups(target):
            if group.ssh:
                return group.ssh
        return None

    def get_snmp(self, target: Target) -> SnmpCredentials:
        """Raises NotConfigured for a target that no group with SNMP names."""
        for group in self._iterate_groups(target):
            if group.snmp and target.snmp_port == SNMP_PORT:
                return group.snmp
            if group.snmp:
                return replace(group.snmp, port=target.snmp_port)
        raise NotConfigured(
            f"{target.name}: no group of KINTSUGI_CREDENTIALS gives it SNMP credentials"
        )

    def find_http(self, target: Target, url: str) -> Bearer | Basic | None:
        """None: nothing is shown, as most exporters ask for nothing."""
        for group in self._iterate_groups(target):
            if group.http:
                return group.http
        return None

    def find_bmc(self, target: Target) -> BmcAccess | None:
        """How its management controller is entered; None for a node that no group with controllers
        names."""
        for group in self._iterate_groups(target):
            if group.bmc:
                return group.bmc
        return None

    def list_secrets(self) -> list[str]:
        """Each community, key, token and password once: what nothing that leaves may hold."""
        found: list[str] = []
        for group in self.groups:
            for access in (group.snmp, group.http, group.bmc):
                values = (getattr(access, name, "") for name in _SECRETS)
                found += [value for value in values if value]
        return list(dict.fromkeys(found))

    def _iterate_groups(self, target: Target) -> Iterator[CredentialGroup]:
        return (group for group in self.groups if group.holds(target))


def load(
    path: Path, environ: Mapping[str, str] = os.environ, *, with_bmc: bool = False
) -> Credentials:
    """Raises ImproperlyConfigured with every problem of the file: file, line, key, and what was
    expected.

    `with_bmc`: this process acts. Without it [group.bmc] is passed over and its secrets stay
    unread.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rows = toml_text.parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(
            f"KINTSUGI_CREDENTIALS={path}: cannot be read: {error}"
        ) from error
    except ValueError as error:
        raise ImproperlyConfigured(f"KINTSUGI_CREDENTIALS={path}: no TOML: {error}") from error
    problems: list[str] = []
    group_rows = rows.get("group", [])
    if set(rows) - {"group"} or not isinstance(group_rows, list) or not group_rows:
        problems.append(f"{path}:1: expected [[group]] tables and nothing else")
        group_rows = []
    media = {**_MEDIA, "bmc": _parse_bmc if with_bmc else _skip}
    groups = []
    for number, row in enumerate(group_rows):
        table = _Table(path, text, number, "", row, environ, problems)
        groups.append(_parse_group(table, row, media))
    if problems:
        raise ImproperlyConfigured("\n".join(problems))
    return Credentials(tuple(groups))


@dataclass
class _Table:
    """One table of one group, with where it stands and where complaints go."""

    path: Path
    text: str
    number: int
    name: str
    row: Mapping[str, Any]
    environ: Mapping[str, str]
    problems: list[str]
    used: set[str] = field(default_factory=set)

    def complain(self, key: str, reason: str) -> None:
        where = f"{self.path}:{_find_line(self.text, self.number, self.name, key)}"
        place = f"[group.{self.name}] {key}" if self.name else f"[[group]] {key}"
        self.problems.append(f"{where}: {place}: {reason}")

    def take(self, key: str, expected: str, read: Callable[[Any], Any], default: Any = None) -> Any:
        """The value as `read` makes it; `default` where the key is not given, or is wrong."""
        self.used.add(key)
        if key not in self.row:
            return default
        try:
            return read(self.row[key])
        except (ValueError, TypeError, OSError):
            self.complain(key, f"expected {expected}")
            return default

    def read_secret(self, key: str) -> str:
        """From `<key>_file` or `<key>_env`; empty where neither is given."""
        self.used |= {key, f"{key}_file", f"{key}_env"}
        if key in self.row:
            self.complain(key, f"secrets do not stand in this file: use {key}_file or {key}_env")
        if f"{key}_file" in self.row and f"{key}_env" in self.row:
            self.complain(f"{key}_env", f"{key}_file is given too: keep one of them")
        text: str = self.take(f"{key}_file", "a file that can be read", _read_single_line, "")
        name = self.row.get(f"{key}_env")
        if name is None:
            return text
        value = self.environ.get(str(name), "")
        if not value:
            self.complain(
                f"{key}_env", f"expected a variable of the environment that is set, {name} is not"
            )
        return text or value

    def finish(self) -> None:
        for key in sorted(set(self.row) - self.used):
            self.complain(key, f"no such key; expected {', '.join(sorted(self.used))}")


def _parse_group(
    table: _Table, row: Any, media: Mapping[str, Callable[[_Table], Any]]
) -> CredentialGroup:
    if not isinstance(row, dict):
        table.problems.append(f"{table.path}: group {table.number + 1}: expected a table")
        return CredentialGroup({})
    named = {kind: table.take(key, _HOSTS, _names, frozenset()) for key, kind in _WHO.items()}
    if not any(key in row for key in _WHO):
        table.complain("nodes", f"expected at least one of {', '.join(_WHO)}: {_HOSTS}")
    access: dict[str, Any] = {}
    for medium, parse in media.items():
        table.used.add(medium)
        inner_row = row.get(medium)
        if isinstance(inner_row, dict):
            inner = replace(table, name=medium, row=inner_row, used=set())
            access[medium] = parse(inner)
            inner.finish()
        elif inner_row is not None:
            table.complain(medium, "expected a table")
    if not any(medium in row for medium in media):
        table.complain("ssh", f"expected at least one of the tables {', '.join(media)}")
    table.finish()
    return CredentialGroup(named, **access)


def _parse_ssh(table: _Table) -> SshAccess:
    key_file = table.take("key_file", "a file that can be read", _parse_readable_path)
    uses_agent = table.take("agent", "true or false", _parse_flag, False)
    if "key_file" not in table.row and not uses_agent:
        table.complain("key_file", "expected the path of a private key, or agent = true")
    if key_file is not None and uses_agent:
        table.complain("agent", "key_file is given too: keep one of them")
    default = Path.home() / ".ssh" / "known_hosts"
    known_hosts = table.take(
        "known_hosts", "a file that can be read", _parse_readable_path, default
    )
    user = table.take("user", "a user name", _parse_word, "kintsugi")
    port = table.take("port", "a port, 1 to 65535", _parse_port)
    return SshAccess(user=user, known_hosts=known_hosts, key_file=key_file, port=port)


def _parse_snmp(table: _Table) -> SnmpCredentials | None:
    before = len(table.problems)
    values: dict[str, Any] = {}
    for key, (expected, parse, default) in _SNMP_KEYS.items():
        values[key] = table.take(key, expected, parse, default)
    for key in ("community", "auth_key", "priv_key"):
        values[key] = table.read_secret(key)
    if len(table.problems) > before:
        return None
    try:
        return SnmpCredentials(**values)
    except ValueError as error:
        table.complain("version", str(error))
        return None


def _parse_http(table: _Table) -> Bearer | Basic | None:
    token = table.read_secret("bearer")
    user = table.take("user", "a user name", _parse_word, "")
    password = table.read_secret("password")
    if user and (token or not password):
        table.complain("user", "expected password_file or password_env beside it, and no bearer")
        return None
    if user:
        return Basic(user, password)
    if not token:
        table.complain(
            "bearer_file", "expected bearer_file or bearer_env, or user and password_file"
        )
        return None
    return Bearer(token)


def _parse_bmc(table: _Table) -> BmcAccess | None:
    before = len(table.problems)
    kind = table.take("kind", "redfish or ipmi, in quotes", BmcKind)
    user = table.take("user", "a user name", _parse_word, "")
    password = table.read_secret("password")
    ca_file = table.take("ca_file", "a file that can be read", _parse_readable_path)
    verify = table.take("verify", "true or false", _parse_flag, True)
    system_names = "a system's Id, UUID or Name; {name} is the node's name"
    system = table.take("system", system_names, _parse_word, "")
    cipher = table.take("cipher", "the number of a cipher suite, 0 to 255", _parse_cipher, 17)
    if len(table.problems) > before:
        return None
    if kind is None:
        table.complain("kind", "expected redfish or ipmi, in quotes")
    if not user or not password:
        table.complain("user", "expected a user, and password_file or password_env beside it")
    if kind is BmcKind.IPMI and not _fits_ipmi(user, password):
        table.complain(
            "user", f"IPMI takes a user of {_IPMI_USER} bytes and a password of {_IPMI_PASSWORD}"
        )
    for key in _UNUSED_KEYS.get(kind, ()):
        if key in table.row:
            table.complain(key, f"{kind} has no use for it")
    if len(table.problems) > before or kind is None:
        return None
    certificates = str(ca_file) if ca_file is not None else ""
    return BmcAccess(kind, user, password, certificates, verify, system, cipher)


def _fits_ipmi(user: str, password: str) -> bool:
    return len(user.encode()) <= _IPMI_USER and len(password.encode()) <= _IPMI_PASSWORD


def _skip(table: _Table) -> None:
    table.used |= set(table.row)


_MEDIA: dict[str, Callable[[_Table], Any]] = {
    "ssh": _parse_ssh,
    "snmp": _parse_snmp,
    "http": _parse_http,
}
_UNUSED_KEYS: dict[BmcKind | None, tuple[str, ...]] = {
    BmcKind.IPMI: ("ca_file", "verify", "system"),
    BmcKind.REDFISH: ("cipher",),
}


def _names(value: Any) -> frozenset[str]:
    lists: Sequence[Any] = value if isinstance(value, list) else [value]
    return frozenset(_expand_lists(lists))


def _expand_lists(lists: Sequence[Any]) -> Iterator[str]:
    for text in lists:
        if not isinstance(text, str):
            raise TypeError(text)
        yield from [ALL] if text == ALL else expand(text)


def _parse_readable_path(value: Any) -> Path:
    path = Path(_parse_word(value)).expanduser()
    with path.open("rb"):
        return path


def _read_single_line(value: Any) -> str:
    text = _parse_readable_path(value).read_text(encoding="utf-8").strip("\r\n")
    if not text or "\n" in text:
        raise ValueError
    return text


def _parse_word(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _parse_port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65536:
        raise ValueError(value)
    return value


def _parse_cipher(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 256:
        raise ValueError(value)
    return value


def _format_choices(kind: type[AuthProtocol] | type[PrivProtocol]) -> str:
    return ", ".join(str(word) for word in kind)


# What each key of [group.snmp] may be, how it is read, and what it is where it is not given.
_SNMP_KEYS: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "version": ("2c or 3, in quotes", SnmpVersion, SnmpVersion.V2C),
    "user": ("a user name", _parse_word, ""),
    "auth_protocol": (_format_choices(AuthProtocol), AuthProtocol, AuthProtocol.NONE),
    "priv_protocol": (_format_choices(PrivProtocol), PrivProtocol, PrivProtocol.NONE),
    "port": ("a port, 1 to 65535", _parse_port, 161),
    "context": ("a context's name", _parse_word, ""),
}

_HEADER = re.compile(r"\A\s*(\[\[?)([\w.\s-]+)\]\]?\s*(?:#.*)?")


def _find_line(text: str, number: int, table: str, key: str) -> int:
    """Where the key stands, from 1; the table's or the group's own line where it is missing."""
    group, current, best = -1, "", 1
    wanted = f"group.{table}" if table else "group"
    assignment = re.compile(rf"\s*\"?{re.escape(key)}\"?\s*=")
    for count, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            current = "".join(header[2].split())
            group += header[1] == "[["
            if group == number and current in ("group", wanted):
                best = count
        elif (group, current) == (number, wanted) and assignment.match(line):
            return count
    return best
