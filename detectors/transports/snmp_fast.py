"""SNMP by gufo-snmp's compiled decoder (the extra `fast-snmp`): a fraction of the processor time,
for many switches.

The same contract as `detectors.transports.snmp`. It asks one column after the other, in the
caller's own thread, on sockets that are kept. An agent that never ends a table sends its iterator
on for ever, so rows, time and order are watched here. Addresses (IpAddress) come as text; no
detector reads any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from detectors.detector import DetectorError, SnmpValue, Target, Unreachable
from detectors.transports import error_text
from detectors.transports.snmp import SnmpTransport
from detectors.transports.snmp_credentials import (
    AuthProtocol,
    Credentials,
    PrivProtocol,
    SnmpCredentials,
    SnmpLimits,
    SnmpVersion,
    describe_access_check,
    describe_address,
)
from detectors.transports.snmp_walk import parse_oid

try:
    from gufo.snmp import _fast as fast
    from gufo.snmp import user as users
    from gufo.snmp.sync import SnmpSession
except ImportError:  # the extra is not installed: pysnmp serves
    SnmpSession = None  # type: ignore[assignment, misc]

T = TypeVar("T")
# gufo-snmp announces that it takes small v3 messages; not every agent cuts its answers to that
# size, some stay silent.
_ROWS_PER_V3_ANSWER = 20
# RFC 3414, 2.2.3: messages of an engine whose clock is off by more than 150 s are turned down.
_FRESH_S = 100.0


@dataclass
class _Kept:
    """A session and when it was last used (monotonic seconds)."""

    session: Any
    used_at: float


class FastSnmpTransport:
    """detectors.detector.Snmp. Raises DetectorError when gufo-snmp is not installed."""

    def __init__(self, credentials: Credentials, limits: SnmpLimits | None = None) -> None:
        if SnmpSession is None:
            raise DetectorError("gufo-snmp is not installed: it comes with the extra `fast-snmp`")
        self._credentials = credentials
        self._limits = limits or SnmpLimits()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, SnmpCredentials], list[_Kept]] = {}
        self._rows: dict[tuple[str, str], int] = {}

    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]:
        """None where the agent has no such object. Raises Unreachable and DetectorError."""
        found: dict[str, SnmpValue] = dict.fromkeys(oids)
        size = self._limits.objects_per_answer
        with self._open_session(target) as session:
            for start in range(0, len(oids), size):
                found.update(self._retry(partial(session.get_many, oids[start : start + size])))
        return found

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        """Raises Unreachable when nothing answers at all, DetectorError past a limit or when it
        stops halfway."""
        found: dict[str, SnmpValue] = {}
        deadline = time.monotonic() + self._limits.walk_s
        with self._open_session(target) as session:
            for column in columns:
                before = len(found)
                try:
                    self._walk_column(session, target, column, found, deadline)
                except TimeoutError:
                    if not found:
                        raise
                    place = describe_address(target, self._credentials(target))
                    text = f"{place}: it stopped answering after {len(found)} objects"
                    raise DetectorError(text) from None
                self._rows[target.name, column] = len(found) - before
        return found

    def close(self) -> None:
        with self._lock:
            self._idle.clear()

    def _walk_column(
        self,
        session: Any,
        target: Target,
        column: str,
        found: dict[str, SnmpValue],
        deadline: float,
    ) -> None:
        most = self._limits.objects_per_answer
        if self._credentials(target).version is SnmpVersion.V3:
            most = min(most, _ROWS_PER_V3_ANSWER)
        cursor = fast.GetIter(column, min(most, self._rows.get((target.name, column), most) + 1))
        last = parse_oid(column)
        while True:
            if time.monotonic() > deadline:
                raise self._make_error(
                    target, f"not done within {self._limits.walk_s:g} s, {len(found)} objects read"
                )
            try:
                answer = self._retry(lambda: session._sock.get_bulk(cursor))
            except StopAsyncIteration:
                return
            for bound in answer:
                if bound is None:
                    return
                oid, value = bound
                if (here := parse_oid(oid)) <= last:
                    raise self._make_error(target, f"the agent went back to {oid}")
                last = here
                found[oid] = value
            if not answer:
                return
            if len(found) > self._limits.objects:
                raise self._make_error(
                    target, f"more than {self._limits.objects} objects below {column}: given up"
                )

    def _retry(self, ask: Callable[[], T]) -> T:
        """Asks again when no answer comes. Raises TimeoutError after the last try."""
        for left in reversed(range(self._limits.retries + 1)):
            try:
                return _call_without_panic(ask)
            except (TimeoutError, BlockingIOError):
                if not left:
                    raise TimeoutError from None
        raise TimeoutError

    @contextmanager
    def _open_session(self, target: Target) -> Iterator[Any]:
        """A session that is kept for the next time unless it failed."""
        credentials = self._credentials(target)
        key = (target.address, credentials)
        with self._lock:
            idle = self._idle.setdefault(key, [])
            kept = idle.pop() if idle else None
        try:
            if kept is None:
                kept = _Kept(_open(target.address, credentials, self._limits), float("-inf"))
            if time.monotonic() - kept.used_at > _FRESH_S:
                session = kept.session
                self._retry(session.refresh)
            yield kept.session
        except DetectorError:
            raise
        except (TimeoutError, BlockingIOError):
            tries = self._limits.retries + 1
            raise Unreachable(
                f"{describe_address(target, credentials)}: no answer in {tries} tries of"
                f" {self._limits.timeout_s:g} s. Check that the switch is up, its address and port,"
                f" {describe_access_check(credentials)}"
            ) from None
        except fast.SnmpAuthError:
            place = describe_address(target, credentials)
            raise Unreachable(
                f"{place}: authentication failed. Check the user's name on the"
                " switch, the authentication key and protocol of the user"
            ) from None
        except (fast.SnmpError, OSError, ValueError) as error:
            raise DetectorError(
                f"{describe_address(target, credentials)}: {error_text.format_reason(error)}"
            ) from None
        kept.used_at = time.monotonic()
        with self._lock:
            idle.append(kept)

    def _make_error(self, target: Target, text: str) -> DetectorError:
        return DetectorError(f"{describe_address(target, self._credentials(target))}: {text}")


def _call_without_panic(ask: Callable[[], T]) -> T:
    """An answer that is no SNMP makes the decoder panic, in an exception class that cannot be
    imported."""
    try:
        return ask()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError("an answer that cannot be decoded") from None


def _open(address: str, credentials: SnmpCredentials, limits: SnmpLimits) -> Any:
    port, timeout_s = credentials.port, limits.timeout_s
    if credentials.version is SnmpVersion.V2C:
        community = credentials.community
        return SnmpSession(address, port=port, community=community, timeout=timeout_s)
    user = _make_user(credentials)
    return SnmpSession(address, port=port, user=user, timeout=timeout_s)


def _make_user(credentials: SnmpCredentials) -> Any:
    auth_key, priv_key = _get_auth_key(credentials), _get_priv_key(credentials)
    return users.User(credentials.user, auth_key=auth_key, priv_key=priv_key)


def _get_auth_key(credentials: SnmpCredentials) -> Any:
    secret = credentials.auth_key.encode()
    match credentials.auth_protocol:
        case AuthProtocol.SHA:
            return users.Sha1Key(secret)
        case AuthProtocol.SHA224:
            return users.Sha224Key(secret)
        case AuthProtocol.SHA256:
            return users.Sha256Key(secret)
        case AuthProtocol.SHA384:
            return users.Sha384Key(secret)
        case AuthProtocol.SHA512:
            return users.Sha512Key(secret)
        case _:
            return None


def _get_priv_key(credentials: SnmpCredentials) -> Any:
    secret = credentials.priv_key.encode()
    match credentials.priv_protocol:
        case PrivProtocol.AES128:
            return users.Aes128Key(secret)
        case PrivProtocol.AES192:
            return users.Aes192Key(secret)
        case PrivProtocol.AES256:
            return users.Aes256Key(secret)
        case _:
            return None


def choose(
    credentials: Credentials, limits: SnmpLimits | None = None, *, is_fast: bool = False
) -> SnmpTransport | FastSnmpTransport:
    """The fast decoder where it is wanted and installed, pysnmp otherwise."""
    return (
        FastSnmpTransport(credentials, limits)
        if is_fast and SnmpSession is not None
        else SnmpTransport(credentials, limits)
    )
